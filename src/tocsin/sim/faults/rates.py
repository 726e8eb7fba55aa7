"""Base rates, in faults per GPU and year.

Counts are those of the Llama 3 405B run (Grattafiori et al., arXiv 2407.21783, table of root causes): 16,384 H100 over
54 days, interruptions by faulty GPU 148, HBM3 72, GPU SRAM 19, GPU system processor 17, thermal interface and sensor 6,
power supply 3. The Delta study (arXiv 2503.11901) gives H100 memory a 3.2 times shorter time between errors than
A100 memory.
"""

from __future__ import annotations

from tocsin.sim.models import GpuModel

GPU_YEARS = 16_384 * 54 / 365.25

LLAMA3_FAULTY_GPU = 148 / GPU_YEARS
LLAMA3_HBM = 72 / GPU_YEARS
LLAMA3_SRAM = 19 / GPU_YEARS
LLAMA3_GSP = 17 / GPU_YEARS
LLAMA3_THERMAL = 6 / GPU_YEARS
LLAMA3_POWER_SUPPLY = 3 / GPU_YEARS

DELTA_MEMORY_FACTOR = 3.2


def memory_factor(model: GpuModel) -> float:
    """Memory error rate of a model relative to H100; newer parts count as H100, for want of a figure."""
    return 1.0 if model.arch in {"hopper", "blackwell"} else 1.0 / DELTA_MEMORY_FACTOR

"""How the rate of memory errors differs between models.

The Delta study (arXiv 2503.11901) gives H100 memory a 3.2 times shorter time between errors than A100 memory.
"""

from __future__ import annotations

from tocsin.sim.models import GpuModel

DELTA_MEMORY_FACTOR = 3.2


def memory_factor(model: GpuModel) -> float:
    """Memory error rate of a model relative to H100; newer parts count as H100, for want of a figure."""
    return 1.0 if model.arch in {"hopper", "blackwell"} else 1.0 / DELTA_MEMORY_FACTOR

"""A big fleet as numbers: readings of any number of GPUs and metrics, each value drawn anew.

Values have the resolution at which NVML gives their unit: whole degrees, milliwatts, whole bytes, hundredths of a
utilisation; rates and ratios of two numbers have all digits. Nothing repeats but by chance, which is harder on encoders
and stores than a real fleet.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tocsin.domain.metrics import METRICS, MetricSpec
from tocsin.domain.reading import Gpu, Reading

GPUS_PER_NODE = 8
measuring = True
"""False where benchmarks only have to run (`--benchmark-disable`): a small fleet shows as much."""
PLAIN = tuple(spec.name for spec in METRICS.values() if spec.entity == "gpu" and not spec.label)


def fleet(gpus: int) -> list[Gpu]:
    """GPUs in nodes of 8."""
    return [
        Gpu(
            uuid=f"GPU-{n:08x}-0000-4000-8000-{n:012x}",
            host=f"gpu-node-{n // GPUS_PER_NODE:04d}",
            index=n % GPUS_PER_NODE,
            model="NVIDIA H100 80GB HBM3",
            serial=f"165{n:010d}",
            pci_bus_id=f"00000000:{n % GPUS_PER_NODE + 16:02x}:00.0",
        )
        for n in range(gpus)
    ]


def _column(spec: MetricSpec, place: int, rng: np.random.Generator, rows: int) -> npt.NDArray[np.float64]:
    unit = spec.unit
    if unit == "ratio":
        drawn = rng.random(rows)
        return np.round(drawn, 2) if place % 2 else drawn
    if unit in ("celsius", "hertz"):
        return rng.integers(30, 90, rows) * (1.0 if unit == "celsius" else 15e6)
    digits = {"watts": (700, 3), "joules": (1e9, 3), "seconds": (1e6, 6), "bytes/s": (3e10, 9)}
    if unit in digits:
        high, kept = digits[unit]
        return np.round(rng.uniform(0, high, rows), kept)
    return rng.integers(0, 80 << 30 if unit == "bytes" else 4, rows).astype(np.float64)


def matrix(metrics: Sequence[str], rows: int, seed: int) -> npt.NDArray[np.float64]:
    """float64[rows, metrics], within the bounds of the metric table."""
    rng = np.random.default_rng(seed)
    columns = []
    for place, name in enumerate(metrics):
        spec = METRICS[name]
        columns.append(np.clip(_column(spec, place, rng, rows), spec.minimum, spec.maximum))
    return np.column_stack(columns)


def readings(gpus: Sequence[Gpu], metrics: Sequence[str], at_ms: int, seed: int = 0) -> list[Reading]:
    """One reading of each GPU."""
    rows = matrix(metrics, len(gpus), seed).tolist()
    return [Reading(gpu, at_ms, dict(zip(metrics, row, strict=True))) for gpu, row in zip(gpus, rows, strict=True)]

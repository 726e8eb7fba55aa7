"""What the metrics of a job say about each stage on the way of its data, as shares of 0 to 1."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tocsin.forecaster.diagnosis.window import Floats, WindowMeans, mean

PCIE_LANE_BYTES = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
"""Bytes a second of one lane in one direction by generation, line code taken off (PCI-SIG base specifications)."""
NVLINK_BYTES = 50e9
NVLINK_BYTES_BLACKWELL = 100e9
"""Bytes a second of one NVLink, both directions together: generations 3 and 4 (A100 600 GB/s over 12 links, H100 900
over 18), and 5 (B200 1,800 over 18); vendor data sheets."""
BLACKWELL = ("B200", "B300")
SATURATED = 0.6
"""Mean share of a link's capacity from which on it counts as the limit: copies come in bursts, and protocol overhead
leaves about 0.85 at best (own choice)."""
IDLE_POWER = 0.12
"""Power of a GPU that does nothing as a share of its limit: H100 70 to 85 of 700 W (own choice)."""
PRESSURE_FULL = 0.3
"""Share of time in which some task waits, from which on waiting counts in full (own choice)."""
CPU_BUSY = 0.7
"""CPU utilisation of a node above which its processors begin to be short (own choice)."""

METRICS = (
    "gpu_utilization_ratio",
    "gpu_sm_active_ratio",
    "gpu_tensor_active_ratio",
    "gpu_dram_active_ratio",
    "gpu_power_watts",
    "gpu_power_limit_enforced_watts",
    "gpu_sm_clock_hertz",
    "gpu_sm_clock_max_hertz",
    "gpu_pcie_receive_bytes_per_second",
    "gpu_pcie_transmit_bytes_per_second",
    "gpu_pcie_link_generation",
    "gpu_pcie_link_width",
    "gpu_pcie_link_width_max",
    "gpu_nvlink_bandwidth_bytes_per_second",
    "gpu_nvlink_links_max",
    "host_cpu_utilization_ratio",
    "host_cpu_iowait_ratio",
    "host_cpu_pressure_ratio",
    "host_io_pressure_ratio",
)
"""What a diagnosis of a slow job looks at; any of it may be missing."""


@dataclass(frozen=True, slots=True)
class Signals:
    """All float64[g], a value per GPU, NaN where unknown.

    `resident` is the share of time in which a kernel was there, `computing` how hard the GPU worked: SMs, memory
    or, where neither is counted, power. `receive` and `transmit` are shares of the PCIe link's capacity in either
    direction, `nvlink` of all links in both. `clock` is the SM clock's share of its maximum, `lanes` that of the link's
    width. `storage` and `cpu` say how much the node waits for either.
    """

    resident: Floats
    computing: Floats
    receive: Floats
    transmit: Floats
    nvlink: Floats
    clock: Floats
    lanes: Floats
    storage: Floats
    cpu: Floats


def signals(found: WindowMeans) -> Signals:
    """The signals of the GPUs of one job."""
    # Figures that no hardware gives may overflow; shares are cut to 0 to 1 where they are used.
    with np.errstate(over="ignore", invalid="ignore"):
        return _signals(found, _link_bytes(found))


def _signals(found: WindowMeans, link: Floats) -> Signals:
    return Signals(
        resident=found.of("gpu_utilization_ratio"),
        computing=_computing(found),
        receive=found.of("gpu_pcie_receive_bytes_per_second") / link,
        transmit=found.of("gpu_pcie_transmit_bytes_per_second") / link,
        nvlink=_nvlink(found),
        clock=found.of("gpu_sm_clock_hertz") / _positive(found.of("gpu_sm_clock_max_hertz")),
        lanes=found.of("gpu_pcie_link_width") / _positive(found.of("gpu_pcie_link_width_max")),
        storage=np.fmax(found.of("host_io_pressure_ratio"), found.of("host_cpu_iowait_ratio")) / PRESSURE_FULL,
        cpu=np.fmax(
            found.of("host_cpu_pressure_ratio") / PRESSURE_FULL,
            (found.of("host_cpu_utilization_ratio") - CPU_BUSY) / (1.0 - CPU_BUSY),
        ),
    )


def _positive(values: Floats) -> Floats:
    return np.where(values > 0, values, np.nan)


def _computing(found: WindowMeans) -> Floats:
    """A collective that spins keeps few SMs busy; kernels that work keep most of them, or the memory, busy."""
    counted = np.fmax(found.of("gpu_sm_active_ratio"), found.of("gpu_dram_active_ratio"))
    counted = np.fmax(counted, found.of("gpu_tensor_active_ratio"))
    power = found.of("gpu_power_watts") / _positive(found.of("gpu_power_limit_enforced_watts"))
    drawn = np.clip((power - IDLE_POWER) / (1.0 - IDLE_POWER), 0.0, 1.0)
    return np.where(np.isfinite(counted), counted, drawn)


def _link_bytes(found: WindowMeans) -> Floats:
    generation = found.of("gpu_pcie_link_generation")
    # The mean over a window may lie between two generations: an idle link slows down. The faster one is what it can do.
    lane = [PCIE_LANE_BYTES.get(int(np.ceil(one - 0.05)), np.nan) if np.isfinite(one) else np.nan for one in generation]
    return np.array(lane, dtype=np.float64) * _positive(found.of("gpu_pcie_link_width"))


def _nvlink(found: WindowMeans) -> Floats:
    blackwell = [any(name in gpu.model for name in BLACKWELL) for gpu in found.gpus]
    each = np.where(np.array(blackwell, dtype=np.bool_), NVLINK_BYTES_BLACKWELL, NVLINK_BYTES)
    capacity = _positive(found.of("gpu_nvlink_links_max")) * each
    return found.of("gpu_nvlink_bandwidth_bytes_per_second") / capacity


def share(values: Floats) -> float:
    """Mean over the GPUs, kept within 0 to 1; 0 where nobody knows."""
    found = mean(values)
    return min(max(found, 0.0), 1.0) if np.isfinite(found) else 0.0

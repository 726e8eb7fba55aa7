"""OpenTelemetry's names for what the metric table has of a GPU, and its state in OpenTelemetry's words.

Source: the semantic conventions for hardware (`hw.*`, in development). A temperature is that of a sensor, which has an
id of its own and the GPU as its parent; errors of all kinds are one metric, told apart by `error.type`, whose values
are free. So rows here count nothing twice: each is the sum of its kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tocsin.domain.reading import Gpu, Reading


@dataclass(frozen=True, slots=True)
class HardwareName:
    """Name, unit and attributes of a row; `sensor` is the part of the GPU that a sensor of its own measures."""

    name: str
    unit: str
    attributes: Mapping[str, str] = field(default_factory=dict)
    sensor: str = ""

    def attributes_of(self, gpu: Gpu) -> dict[str, str]:
        """Those that say what is measured."""
        if not self.sensor:
            return {"hw.id": gpu.uuid, "hw.type": "gpu", **self.attributes}
        own = {"hw.id": f"{gpu.uuid}/temperature/{self.sensor}", "hw.type": "temperature", "hw.parent": gpu.uuid}
        return own | {"hw.sensor_location": self.sensor}


def _errors(kind: str) -> HardwareName:
    return HardwareName("hw.errors", "{error}", {"error.type": kind})


HARDWARE: Mapping[str, HardwareName] = {
    "gpu_memory_total_bytes": HardwareName("hw.gpu.memory.limit", "By"),
    "gpu_memory_used_bytes": HardwareName("hw.gpu.memory.usage", "By"),
    "gpu_memory_used_ratio": HardwareName("hw.gpu.memory.utilization", "1"),
    "gpu_utilization_ratio": HardwareName("hw.gpu.utilization", "1", {"hw.gpu.task": "general"}),
    "gpu_encoder_utilization_ratio": HardwareName("hw.gpu.utilization", "1", {"hw.gpu.task": "encoder"}),
    "gpu_decoder_utilization_ratio": HardwareName("hw.gpu.utilization", "1", {"hw.gpu.task": "decoder"}),
    "gpu_pcie_receive_bytes_total": HardwareName("hw.gpu.io", "By", {"network.io.direction": "receive"}),
    "gpu_pcie_transmit_bytes_total": HardwareName("hw.gpu.io", "By", {"network.io.direction": "transmit"}),
    "gpu_power_watts": HardwareName("hw.power", "W"),
    "gpu_energy_joules_total": HardwareName("hw.energy", "J"),
    "gpu_temperature_celsius": HardwareName("hw.temperature", "Cel", sensor="gpu"),
    "gpu_memory_temperature_celsius": HardwareName("hw.temperature", "Cel", sensor="memory"),
    "gpu_ecc_corrected_volatile_total": _errors("corrected"),
    "gpu_ecc_uncorrected_volatile_total": _errors("uncorrected"),
    "gpu_ecc_deferred_volatile_total": _errors("deferred"),
    "gpu_pcie_replay_total": _errors("pcie_replay"),
    "gpu_nvlink_crc_flit_errors_total": _errors("nvlink_crc_flit"),
    "gpu_nvlink_crc_data_errors_total": _errors("nvlink_crc_data"),
    "gpu_nvlink_replay_errors_total": _errors("nvlink_replay"),
    "gpu_nvlink_recovery_errors_total": _errors("nvlink_recovery"),
}
"""By row of the metric table."""
STATUS = HardwareName("hw.status", "1")
UP_DOWN = frozenset({"hw.gpu.memory.limit", "hw.gpu.memory.usage", STATUS.name})
"""Sums that fall as well."""

_SIGNS: Mapping[str, tuple[str, ...]] = {
    "failed": ("gpu_row_remap_failure", "gpu_memory_unrepairable"),
    "predicted_failure": ("gpu_ecc_sram_threshold_exceeded",),
    "degraded": (
        "gpu_row_remap_pending",
        "gpu_retired_pages_pending",
        "gpu_repair_pending",
        "gpu_clocks_hw_thermal_slowdown",
        "gpu_clocks_hw_power_brake",
        "gpu_fabric_problem",
    ),
}
"""What makes each state, the gravest first (own choice: the conventions say nothing of when a state holds)."""


def states(reading: Reading) -> dict[str, float]:
    """1 for the state that the GPU is in and 0 for the others, by `hw.state`; empty where nothing was read that tells.

    A GPU that answers nothing at all has failed. A part of a GPU has no state of its own.
    """
    known = any(name in reading.values for names in _SIGNS.values() for name in names)
    if reading.gpu.is_mig or not (known or reading.is_lost):
        return {}
    holds = "failed" if reading.is_lost else "ok"
    if holds == "ok":
        shown = (state for state, names in _SIGNS.items() if any(reading.values.get(name) for name in names))
        holds = next(shown, "ok")
    return {state: float(state == holds) for state in ("ok", *_SIGNS)}

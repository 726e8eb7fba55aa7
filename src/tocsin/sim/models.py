"""The GPU models of the simulated fleet: limits from ``gpu_models.csv``, and which metrics a model lacks.

Limits carry over from public captures and vendor tables; an empty cell means that the part does not state the limit.
Idle power, PCIe generation, the assumed maximum operating temperature and the NVLink domain's size are own choices.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib import resources

MARGIN_ARCHS = frozenset({"ada", "hopper", "blackwell"})
"""Architectures that report a thermal margin."""

_ALWAYS_MISSING = frozenset({"gpu_memory_limit_bytes", "gpu_fan_speed_ratio"})
"""No control-group limit is set, and every board is passively cooled: fans belong to the host."""

_UTILISATION_WITHOUT_MIG = frozenset(
    {
        "gpu_utilization_ratio",
        "gpu_memory_copy_utilization_ratio",
        "gpu_encoder_utilization_ratio",
        "gpu_decoder_utilization_ratio",
        "gpu_jpeg_utilization_ratio",
        "gpu_ofa_utilization_ratio",
        "gpu_process_sm_utilization_ratio",
    }
)
_ROW_REMAP = frozenset(
    {
        "gpu_row_remap_correctable_total",
        "gpu_row_remap_uncorrectable_total",
        "gpu_row_remap_pending",
        "gpu_row_remap_failure",
        "gpu_row_remap_banks",
    }
)
_RETIRED_PAGES = frozenset(
    {"gpu_retired_pages_corrected_total", "gpu_retired_pages_uncorrected_total", "gpu_retired_pages_pending"}
)
_AMPERE_ON = frozenset(
    {
        "gpu_ecc_sram_corrected_volatile_total",
        "gpu_ecc_sram_uncorrected_volatile_total",
        "gpu_ecc_sram_threshold_exceeded",
        "gpu_repair_pending",
    }
)
_ABSOLUTE_LIMITS = frozenset(
    {"gpu_temperature_slowdown_celsius", "gpu_temperature_shutdown_celsius", "gpu_temperature_max_operating_celsius"}
)
_MARGIN = frozenset(
    {
        "gpu_thermal_margin_celsius",
        "gpu_tlimit_slowdown_celsius",
        "gpu_tlimit_shutdown_celsius",
        "gpu_tlimit_max_operating_celsius",
    }
)
_HBM = frozenset({"gpu_memory_temperature_celsius", "gpu_memory_temperature_max_operating_celsius"})
_NVLINK = frozenset(
    {
        "gpu_nvlink_up",
        "gpu_nvlink_links_max",
        "gpu_nvlink_transmit_bytes_total",
        "gpu_nvlink_receive_bytes_total",
        "gpu_nvlink_bandwidth_bytes_per_second",
    }
)
_NVLINK_OLD = frozenset(
    {
        "gpu_nvlink_crc_flit_errors_total",
        "gpu_nvlink_crc_data_errors_total",
        "gpu_nvlink_replay_errors_total",
        "gpu_nvlink_recovery_errors_total",
    }
)
_NVLINK_5 = frozenset(
    {
        "gpu_nvlink_link_recovery_total",
        "gpu_nvlink_symbol_errors_total",
        "gpu_nvlink_effective_ber_ratio",
        "gpu_nvlink_symbol_ber_ratio",
    }
)
_FABRIC = frozenset({"gpu_fabric_state", "gpu_fabric_health"})
_MIG = frozenset(
    {
        "gpu_mig_instances",
        "gpu_mig_remaining_capacity",
        "gpu_mig_fragmentation_ratio",
        "gpu_mig_instance_memory_used_ratio",
    }
)


@dataclass(frozen=True, slots=True)
class GpuModel:
    """One row of ``gpu_models.csv``. None where the part does not state a limit; watts, degrees Celsius, MHz."""

    name: str
    arch: str
    memory_bytes: float
    default_power_w: float
    min_power_w: float
    max_power_w: float
    max_operating_c: float | None
    slowdown_c: float | None
    shutdown_c: float | None
    tlimit_slowdown: float | None
    tlimit_shutdown: float | None
    memory_max_operating_c: float | None
    sm_clock_mhz: float
    memory_clock_mhz: float
    nvlink_version: int
    nvlink_links: int
    nvlink_gb_s: float
    mig: bool
    pcie_generation: int
    idle_power_w: float
    ceiling_c: float
    domain_hosts: int

    @property
    def slowdown_at_c(self) -> float:
        """Temperature at which hardware halves the clocks, stated or derived from the margin's offset."""
        return self.slowdown_c if self.slowdown_c is not None else self.ceiling_c - (self.tlimit_slowdown or 0.0)

    def unsupported(self, *, mig_on: bool) -> frozenset[str]:
        """Canonical names that this model cannot read; with MIG on, also those that MIG hides."""
        lacking = _ALWAYS_MISSING | self._unsupported_board() | self._unsupported_links()
        return lacking | (_UTILISATION_WITHOUT_MIG | _ROW_REMAP if mig_on else _MIG)

    def _unsupported_board(self) -> frozenset[str]:
        lacking: frozenset[str] = frozenset()
        lacking |= _ABSOLUTE_LIMITS if self.max_operating_c is None else frozenset()
        lacking |= frozenset() if self.arch in MARGIN_ARCHS else _MARGIN
        lacking |= _HBM if self.memory_max_operating_c is None and self.nvlink_version == 0 else frozenset()
        if self.memory_max_operating_c is None:
            lacking |= {"gpu_memory_temperature_max_operating_celsius"}
        lacking |= _ROW_REMAP | _AMPERE_ON if self.arch == "turing" else _RETIRED_PAGES
        if self.arch not in {"turing", "ampere"}:
            lacking |= {"gpu_app_sm_clock_hertz"}
        if self.arch not in {"hopper", "blackwell"}:
            lacking |= {"gpu_memory_unrepairable"}
        if self.nvlink_version:
            lacking |= {"gpu_encoder_utilization_ratio"}
        return lacking if self.mig else lacking | {"gpu_mig_mode"}

    def _unsupported_links(self) -> frozenset[str]:
        c2c = frozenset() if self.domain_hosts > 1 else frozenset({"gpu_c2c_link_errors_total"})
        fabric = frozenset() if self.nvlink_version >= 4 else _FABRIC
        if self.nvlink_version == 0:
            return _NVLINK | _NVLINK_OLD | _NVLINK_5 | fabric | c2c
        return (_NVLINK_OLD if self.nvlink_version >= 5 else _NVLINK_5) | fabric | c2c


def _number(text: str) -> float | None:
    return float(text) if text else None


def _parse(row: dict[str, str]) -> GpuModel:
    return GpuModel(
        name=row["model"],
        arch=row["arch"],
        memory_bytes=float(row["memory_mib"]) * 1024 * 1024,
        default_power_w=float(row["default_power_w"]),
        min_power_w=float(row["min_power_w"]),
        max_power_w=float(row["max_power_w"]),
        max_operating_c=_number(row["max_operating_c"]),
        slowdown_c=_number(row["slowdown_c"]),
        shutdown_c=_number(row["shutdown_c"]),
        tlimit_slowdown=_number(row["tlimit_slowdown"]),
        tlimit_shutdown=_number(row["tlimit_shutdown"]),
        memory_max_operating_c=_number(row["memory_max_operating_c"]),
        sm_clock_mhz=float(row["sm_clock_mhz"]),
        memory_clock_mhz=float(row["memory_clock_mhz"]),
        nvlink_version=int(row["nvlink_version"]),
        nvlink_links=int(row["nvlink_links"]),
        nvlink_gb_s=float(row["nvlink_gb_s"]),
        mig=row["mig"] == "1",
        pcie_generation=int(row["pcie_generation"]),
        idle_power_w=float(row["idle_power_w"]),
        ceiling_c=float(row["assumed_max_operating_c"]),
        domain_hosts=int(row["domain_hosts"]),
    )


@cache
def models() -> dict[str, GpuModel]:
    """Name to model, in the order of the file."""
    text = resources.files("tocsin.sim").joinpath("gpu_models.csv").read_text(encoding="utf-8")
    parsed = [_parse(row) for row in csv.DictReader(text.splitlines())]
    return {model.name: model for model in parsed}

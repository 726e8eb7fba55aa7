"""What nvidia-smi prints, cell by cell: one table for its XML and its CSV, and the meaning of a cell's text.

XML paths are those of ``nvsmi_device_v11.dtd`` to ``v13``; CSV fields those of ``nvidia-smi --help-query-gpu`` of
drivers 535 to 590. Adding a metric is one row.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tocsin.domain.metrics import variant
from tocsin.domain.reading import Missing

_NUMBER = re.compile(r"^(-?\d+(?:\.\d+)?)\s*(.*)$")
_UNITS = {
    "": 1.0,
    "x": 1.0,
    "C": 1.0,
    "W": 1.0,
    "bank(s)": 1.0,
    "%": 0.01,
    "MiB": float(1 << 20),
    "KiB": 1024.0,
    "MHz": 1e6,
    "mW": 1e-3,
    "us": 1e-6,
    "ns": 1e-9,
}
_WORDS = {
    "yes": 1.0,
    "no": 0.0,
    "enabled": 1.0,
    "disabled": 0.0,
    "active": 1.0,
    "not active": 0.0,
    # The driver's recovery verdict (nvml.h, nvmlDeviceGpuRecoveryAction_t)
    "none": 0.0,
    "reset": 1.0,
    "gpu reset": 1.0,
    "reboot": 2.0,
    "node reboot": 2.0,
    "drain p2p": 3.0,
    "drain and reset": 4.0,
    # The fabric's state (nvml.h, NVML_GPU_FABRIC_STATE_*)
    "not supported": 0.0,
    "not started": 1.0,
    "in progress": 2.0,
    "completed": 3.0,
}
_REASONS = {
    "gpu is lost": Missing.LOST,
    "gpu requires reset": Missing.RESET_REQUIRED,
    "insufficient permissions": Missing.DENIED,
    "insufficient permission": Missing.DENIED,
    "not supported": Missing.UNSUPPORTED,
    "n/a": Missing.UNSUPPORTED,
    "requested functionality has been deprecated": Missing.UNSUPPORTED,
    "timeout": Missing.TIMED_OUT,
}
_BRACKETS = re.compile(r"^\[(.*)\]$")


def cell(text: str) -> float | Missing:
    """The value of a cell in base units (bytes, hertz, ratios, seconds), or why it has none.

    A cell in brackets is always a reason. Text that is none of the known ones is blank.
    """
    text = text.strip()
    bracketed = _BRACKETS.match(text)
    words = (bracketed[1] if bracketed else text).strip().lower()
    if bracketed:
        return _REASONS.get(words, Missing.BLANK)
    if words.startswith("0x"):
        try:
            return float(int(words, 16))
        except ValueError:
            return Missing.BLANK
    if (number := _NUMBER.match(text)) is not None:
        return _scaled(float(number[1]), number[2].strip())
    if re.fullmatch(r"p\d{1,2}", words):
        return float(words[1:])
    if words in _REASONS and words != "not supported":
        return _REASONS[words]
    return _WORDS.get(words, Missing.BLANK)


def _scaled(value: float, unit: str) -> float | Missing:
    if (factor := _UNITS.get(unit)) is None:
        return Missing.BLANK
    # Dividing by the inverse keeps 57 % exactly 0.57.
    return value * factor if factor >= 1 else value / round(1 / factor)


@dataclass(frozen=True, slots=True)
class SmiMetric:
    """Where one metric (or variant) stands. Several XML paths or CSV fields are names of different driver versions.

    A path with ``+`` is a sum, blank unless all of its parts are there.
    """

    key: str
    xml: tuple[str, ...]
    csv: tuple[str, ...] = ()


def _row(key: str, xml: str, csv: str = "") -> SmiMetric:
    return SmiMetric(key, tuple(xml.split("|")) if xml else (), tuple(csv.split("|")) if csv else ())


_VOLATILE, _AGGREGATE = "ecc_errors/volatile/", "ecc_errors/aggregate/"


def _total(where: str, outcome: str) -> str:
    dram = f"{where}dram_{outcome}"
    if outcome == "correctable":
        return f"{where}sram_correctable+{dram}|{where}single_bit/total"
    parts = f"{where}sram_uncorrectable_parity+{where}sram_uncorrectable_secded"
    return f"{where}sram_uncorrectable+{dram}|{parts}+{dram}|{where}double_bit/total"


_POWER, _OLD_POWER = "gpu_power_readings/", "power_readings/"
_COUNTERS = "clocks_event_reasons_counters/clocks_event_reasons_counters_"
_REMAP = "remapped_rows/row_remapper_histogram/row_remapper_histogram_"

ROWS: tuple[SmiMetric, ...] = (
    _row("gpu_utilization_ratio", "utilization/gpu_util", "utilization.gpu"),
    _row("gpu_memory_copy_utilization_ratio", "utilization/memory_util", "utilization.memory"),
    _row("gpu_encoder_utilization_ratio", "utilization/encoder_util", "utilization.encoder"),
    _row("gpu_decoder_utilization_ratio", "utilization/decoder_util", "utilization.decoder"),
    _row("gpu_jpeg_utilization_ratio", "utilization/jpeg_util", "utilization.jpeg"),
    _row("gpu_ofa_utilization_ratio", "utilization/ofa_util", "utilization.ofa"),
    _row("gpu_memory_total_bytes", "fb_memory_usage/total", "memory.total"),
    _row("gpu_memory_used_bytes", "fb_memory_usage/used", "memory.used"),
    _row("gpu_memory_free_bytes", "fb_memory_usage/free", "memory.free"),
    _row("gpu_memory_reserved_bytes", "fb_memory_usage/reserved", "memory.reserved"),
    _row("gpu_bar1_used_bytes", "bar1_memory_usage/used"),
    _row("gpu_bar1_total_bytes", "bar1_memory_usage/total"),
    _row("gpu_temperature_celsius", "temperature/gpu_temp", "temperature.gpu"),
    _row("gpu_memory_temperature_celsius", "temperature/memory_temp", "temperature.memory"),
    _row("gpu_thermal_margin_celsius", "temperature/gpu_temp_tlimit", "temperature.gpu.tlimit"),
    _row("gpu_temperature_slowdown_celsius", "temperature/gpu_temp_slow_threshold"),
    _row("gpu_temperature_shutdown_celsius", "temperature/gpu_temp_max_threshold"),
    _row("gpu_temperature_max_operating_celsius", "temperature/gpu_temp_max_gpu_threshold"),
    _row("gpu_memory_temperature_max_operating_celsius", "temperature/gpu_temp_max_mem_threshold"),
    _row("gpu_tlimit_slowdown_celsius", "temperature/gpu_temp_slow_tlimit_threshold"),
    _row("gpu_tlimit_shutdown_celsius", "temperature/gpu_temp_max_tlimit_threshold"),
    _row("gpu_tlimit_max_operating_celsius", "temperature/gpu_temp_max_gpu_tlimit_threshold"),
    _row(
        "gpu_power_watts",
        f"{_POWER}average_power_draw|{_POWER}power_draw|{_OLD_POWER}power_draw",
        "power.draw.average|power.draw",
    ),
    _row("gpu_power_instant_watts", f"{_POWER}instant_power_draw", "power.draw.instant"),
    _row("gpu_power_limit_watts", f"{_POWER}requested_power_limit|{_OLD_POWER}power_limit", "power.limit"),
    _row(
        "gpu_power_limit_enforced_watts",
        f"{_POWER}current_power_limit|{_OLD_POWER}enforced_power_limit",
        "enforced.power.limit",
    ),
    _row(
        "gpu_power_limit_default_watts",
        f"{_POWER}default_power_limit|{_OLD_POWER}default_power_limit",
        "power.default_limit",
    ),
    _row("gpu_power_limit_min_watts", f"{_POWER}min_power_limit|{_OLD_POWER}min_power_limit", "power.min_limit"),
    _row("gpu_power_limit_max_watts", f"{_POWER}max_power_limit|{_OLD_POWER}max_power_limit", "power.max_limit"),
    _row("gpu_sm_clock_hertz", "clocks/sm_clock", "clocks.current.sm"),
    _row("gpu_memory_clock_hertz", "clocks/mem_clock", "clocks.current.memory"),
    _row("gpu_sm_clock_max_hertz", "max_clocks/sm_clock", "clocks.max.sm"),
    _row("gpu_memory_clock_max_hertz", "max_clocks/mem_clock", "clocks.max.memory"),
    _row("gpu_app_sm_clock_hertz", "applications_clocks/graphics_clock", "clocks.applications.graphics"),
    _row("gpu_clocks_event_reasons_bitmask", "", "clocks_event_reasons.active|clocks_throttle_reasons.active"),
    _row("gpu_power_cap_seconds_total", f"{_COUNTERS}sw_power_cap"),
    _row("gpu_sync_boost_seconds_total", f"{_COUNTERS}sync_boost"),
    _row("gpu_sw_thermal_slowdown_seconds_total", f"{_COUNTERS}sw_therm_slowdown"),
    _row("gpu_hw_thermal_slowdown_seconds_total", f"{_COUNTERS}hw_therm_slowdown"),
    _row("gpu_hw_power_brake_seconds_total", f"{_COUNTERS}hw_power_brake"),
    _row("gpu_performance_state", "performance_state", "pstate"),
    _row("gpu_fan_speed_ratio", "fan_speed", "fan.speed"),
    _row("gpu_ecc_mode_enabled", "ecc_mode/current_ecc", "ecc.mode.current"),
    _row("gpu_ecc_corrected_volatile_total", _total(_VOLATILE, "correctable"), "ecc.errors.corrected.volatile.total"),
    _row(
        "gpu_ecc_uncorrected_volatile_total",
        _total(_VOLATILE, "uncorrectable"),
        "ecc.errors.uncorrected.volatile.total",
    ),
    _row(
        "gpu_ecc_corrected_aggregate_total", _total(_AGGREGATE, "correctable"), "ecc.errors.corrected.aggregate.total"
    ),
    _row(
        "gpu_ecc_uncorrected_aggregate_total",
        _total(_AGGREGATE, "uncorrectable"),
        "ecc.errors.uncorrected.aggregate.total",
    ),
    _row("gpu_ecc_dram_corrected_volatile_total", f"{_VOLATILE}dram_correctable", "ecc.errors.corrected.volatile.dram"),
    _row(
        "gpu_ecc_dram_uncorrected_volatile_total",
        f"{_VOLATILE}dram_uncorrectable",
        "ecc.errors.uncorrected.volatile.dram",
    ),
    _row("gpu_ecc_sram_corrected_volatile_total", f"{_VOLATILE}sram_correctable", "ecc.errors.corrected.volatile.sram"),
    _row(
        "gpu_ecc_sram_uncorrected_volatile_total",
        f"{_VOLATILE}sram_uncorrectable|{_VOLATILE}sram_uncorrectable_parity+{_VOLATILE}sram_uncorrectable_secded",
        "ecc.errors.uncorrected.volatile.sram",
    ),
    _row("gpu_ecc_sram_threshold_exceeded", f"{_AGGREGATE}sram_threshold_exceeded"),
    _row(
        "gpu_retired_pages_corrected_total",
        "retired_pages/multiple_single_bit_retirement/retired_count",
        "retired_pages.single_bit_ecc.count",
    ),
    _row(
        "gpu_retired_pages_uncorrected_total",
        "retired_pages/double_bit_retirement/retired_count",
        "retired_pages.double_bit.count",
    ),
    _row(
        "gpu_retired_pages_pending",
        "retired_pages/pending_retirement|retired_pages/pending_blacklist",
        "retired_pages.pending",
    ),
    _row("gpu_row_remap_correctable_total", "remapped_rows/remapped_row_corr"),
    _row("gpu_row_remap_uncorrectable_total", "remapped_rows/remapped_row_unc"),
    _row("gpu_row_remap_pending", "remapped_rows/remapped_row_pending"),
    _row("gpu_row_remap_failure", "remapped_rows/remapped_row_failure"),
    *(
        _row(variant("gpu_row_remap_banks", "availability", grade), f"{_REMAP}{grade}")
        for grade in ("max", "high", "partial", "low", "none")
    ),
    _row("gpu_memory_unrepairable", "ecc_errors/unrepairable_memory"),
    _row(variant("gpu_repair_pending", "unit", "channel"), "ecc_errors/channel_repair_pending"),
    _row(variant("gpu_repair_pending", "unit", "tpc"), "ecc_errors/tpc_repair_pending"),
    _row("gpu_recovery_action", "gpu_recovery_action"),
    _row(
        "gpu_pcie_link_generation",
        "pci/pci_gpu_link_info/pcie_gen/current_link_gen",
        "pcie.link.gen.current",
    ),
    _row("gpu_pcie_link_generation_max", "pci/pci_gpu_link_info/pcie_gen/max_link_gen", "pcie.link.gen.max"),
    _row("gpu_pcie_link_width", "pci/pci_gpu_link_info/link_widths/current_link_width", "pcie.link.width.current"),
    _row("gpu_pcie_link_width_max", "pci/pci_gpu_link_info/link_widths/max_link_width", "pcie.link.width.max"),
    _row("gpu_pcie_replay_total", "pci/replay_counter"),
    _row("gpu_fabric_state", "fabric/state", "fabric.state"),
    _row("gpu_mig_mode", "mig_mode/current_mig", "mig.mode.current"),
)

REASON_BITS: dict[str, int] = {
    "gpu_idle": 0x1,
    "applications_clocks_setting": 0x2,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
    "display_clocks_setting": 0x100,
}
"""Bit of each clocks-event reason (nvml.h, ``nvmlClocksEventReason*``) by its name in the XML."""


class Cells:
    """Values and reasons of one GPU; `lost` once any cell said that the GPU is."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}
        self.missing: dict[str, Missing] = {}
        self.lost = False

    def add(self, key: str, found: float | Missing) -> None:
        """Keep a value or a reason; a value outranks reasons, an earlier reason stays."""
        if isinstance(found, Missing):
            self.lost = self.lost or found is Missing.LOST
            if key not in self.values:
                self.missing.setdefault(key, found)
        else:
            self.values[key] = found
            self.missing.pop(key, None)

    def finish(self) -> None:
        """Add what is made of other cells: the used share of what a program can have."""
        total, used = self.values.get("gpu_memory_total_bytes"), self.values.get("gpu_memory_used_bytes")
        reserved = self.values.get("gpu_memory_reserved_bytes")
        if total is None or used is None or reserved is None or total <= reserved:
            self.add("gpu_memory_used_ratio", self.missing.get("gpu_memory_used_bytes", Missing.BLANK))
        else:
            self.add("gpu_memory_used_ratio", used / (total - reserved))


def first(names: Iterable[str], ask: Callable[[str], float | Missing | None]) -> float | Missing:
    """The first of `names` that has a value; else the first reason; else that nothing answers to it."""
    reason: Missing | None = None
    for name in names:
        found = ask(name)
        if isinstance(found, float):
            return found
        reason = found if reason is None else reason
    return Missing.UNSUPPORTED if reason is None else reason


def total(path: str, ask: Callable[[str], float | Missing | None]) -> float | Missing | None:
    """The sum behind a path with ``+``; a reason where a part has one, None where a part is not there."""
    result = 0.0
    for part in path.split("+"):
        found = ask(part)
        if not isinstance(found, float):
            return found
        result += found
    return result


METRICS_READ: tuple[str, ...] = tuple(dict.fromkeys([*(row.key for row in ROWS), "gpu_memory_used_ratio"]))
"""Keys that the source reads of a whole GPU, processes and MIG instances apart."""

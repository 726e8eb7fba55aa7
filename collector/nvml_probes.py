"""Which NVML question answers which metric. Adding a metric is one row.

Fields are asked first, in one batched call per GPU. Calls follow in order, each made only where one of its metrics
still has no value, so a later row is the fallback of an earlier one. ``nvmlDeviceGetPcieThroughput`` is left out on
purpose: it blocks 20 ms per counter; the PCIe rates come from the byte counters instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tocsin.collector.nvml_library import ALL_LINKS, MEMORY_V2
from tocsin.domain.metrics import METRICS, split_variant, variant

Answer = Mapping[str, float | None]

_PERCENT = 0.01
_MILLI = 1e-3
_NANO = 1e-9
_KIBI = 1024.0
_MEGA = 1e6


@dataclass(frozen=True, slots=True)
class FieldProbe:
    """One field value: `key` (a metric or variant) is the answer times `scale`; `packed` marks a packed error rate."""

    key: str
    field: int
    scale: float = 1.0
    scope: int = 0
    packed: bool = False


@dataclass(frozen=True, slots=True)
class CallProbe:
    """One function of a GPU: `read` turns its answer into values by key, None where the driver gave a blank."""

    function: str
    arguments: tuple[Any, ...]
    metrics: tuple[str, ...]
    read: Callable[[Any], Answer]


@dataclass(frozen=True, slots=True)
class LinkField:
    """A field that is asked once for each NVLink, with the link as its scope."""

    metric: str
    field: int
    scale: float = 1.0
    packed: bool = False


@dataclass(frozen=True, slots=True)
class LinkCall:
    """A function that is asked once for each NVLink: ``function(handle, link, *arguments)``."""

    metric: str
    function: str
    arguments: tuple[Any, ...] = ()


def scaled(value: float, scale: float) -> float:
    """`value` times `scale`; a scale below 1 divides by its inverse, so that 57 percent is exactly 0.57."""
    return value * scale if scale >= 1 else value / round(1 / scale)


def _one(metric: str, function: str, *arguments: Any, scale: float = 1.0, part: str | int | None = None) -> CallProbe:
    """A function whose answer, or the attribute or item `part` of it, is one metric."""

    def read(answer: Any) -> Answer:
        value = answer if part is None else getattr(answer, part) if isinstance(part, str) else answer[part]
        return {metric: None if value is None else scaled(value, scale)}

    return CallProbe(function, arguments, (metric,), read)


def unpack_ber(packed: float) -> float:
    """A bit-packed NVLink 5 error rate: bits 0 to 7 are the exponent, 8 to 11 the mantissa (nvml.h, fields 216 to 222).

    The rate is mantissa times ten to the minus exponent; a driver that gives a plain rate below 1 is taken at its word.
    """
    if packed < 1:
        return packed
    bits = int(packed)
    return float((bits >> 8) & 0xF) * 10.0 ** -(bits & 0xFF)


def _memory(answer: Any) -> Answer:
    usable = answer.total - answer.reserved
    return {
        "gpu_memory_total_bytes": answer.total,
        "gpu_memory_used_bytes": answer.used,
        "gpu_memory_free_bytes": answer.free,
        "gpu_memory_reserved_bytes": answer.reserved,
        "gpu_memory_used_ratio": answer.used / usable if usable > 0 else None,
    }


def _old_memory(answer: Any) -> Answer:
    # Version 1 counts what the driver reserves as used, so neither `used` nor a ratio can be had from it.
    return {"gpu_memory_total_bytes": answer.total, "gpu_memory_free_bytes": answer.free}


def _processes(answer: Any) -> Answer:
    values: dict[str, float | None] = {"gpu_processes": len(answer)}
    for process in answer:
        values[variant("gpu_process_memory_used_bytes", "pid", str(process.pid))] = process.usedGpuMemory
    return values


def _histogram(answer: Any) -> Answer:
    grades = ("max", "high", "partial", "low", "none")
    return {variant("gpu_row_remap_banks", "availability", grade): getattr(answer, grade) for grade in grades}


def _repair(answer: Any) -> Answer:
    return {variant("gpu_repair_pending", "unit", unit): answer[i] for i, unit in enumerate(("channel", "tpc"))}


def _utilization(answer: Any) -> Answer:
    return {
        "gpu_utilization_ratio": scaled(answer.gpu, _PERCENT),
        "gpu_memory_copy_utilization_ratio": scaled(answer.memory, _PERCENT),
    }


def _rows(answer: Any) -> Answer:
    return dict(zip(_ROW_REMAP, answer, strict=True))


def _bar1(answer: Any) -> Answer:
    return {"gpu_bar1_used_bytes": answer.bar1Used, "gpu_bar1_total_bytes": answer.bar1Total}


def _fabric(answer: Any) -> Answer:
    return {"gpu_fabric_state": answer.state, "gpu_fabric_health": getattr(answer, "healthSummary", None)}


_ROW_REMAP = (
    "gpu_row_remap_correctable_total",
    "gpu_row_remap_uncorrectable_total",
    "gpu_row_remap_pending",
    "gpu_row_remap_failure",
)
_PCIE_ERRORS = {
    "correctable": 173,
    "naks_received": 174,
    "receiver": 175,
    "bad_tlp": 176,
    "naks_sent": 177,
    "bad_dllp": 178,
    "non_fatal": 179,
    "fatal": 180,
    "unsupported_request": 181,
    "lcrc": 182,
    "lane": 183,
    "l0_to_recovery": 169,
}

FIELDS: tuple[FieldProbe, ...] = (
    FieldProbe("gpu_ecc_mode_enabled", 1),
    FieldProbe("gpu_ecc_corrected_volatile_total", 3),
    FieldProbe("gpu_ecc_uncorrected_volatile_total", 4),
    FieldProbe("gpu_ecc_corrected_aggregate_total", 5),
    FieldProbe("gpu_ecc_uncorrected_aggregate_total", 6),
    FieldProbe("gpu_ecc_dram_corrected_volatile_total", 11),
    FieldProbe("gpu_ecc_dram_uncorrected_volatile_total", 12),
    FieldProbe("gpu_retired_pages_corrected_total", 29),
    FieldProbe("gpu_retired_pages_uncorrected_total", 30),
    FieldProbe("gpu_retired_pages_pending", 31),
    FieldProbe("gpu_nvlink_crc_flit_errors_total", 38),
    FieldProbe("gpu_nvlink_crc_data_errors_total", 45),
    FieldProbe("gpu_power_cap_seconds_total", 74, _NANO),
    FieldProbe("gpu_thermal_violation_seconds_total", 75, _NANO),
    FieldProbe("gpu_sync_boost_seconds_total", 76, _NANO),
    FieldProbe("gpu_board_limit_seconds_total", 77, _NANO),
    FieldProbe("gpu_reliability_seconds_total", 79, _NANO),
    FieldProbe("gpu_memory_temperature_celsius", 82),
    FieldProbe("gpu_energy_joules_total", 83, _MILLI),
    FieldProbe("gpu_nvlink_links_max", 91),
    FieldProbe("gpu_pcie_replay_total", 94),
    FieldProbe("gpu_nvlink_transmit_bytes_total", 138, _KIBI, ALL_LINKS),
    FieldProbe("gpu_nvlink_receive_bytes_total", 139, _KIBI, ALL_LINKS),
    *(FieldProbe(metric, 142 + i) for i, metric in enumerate(_ROW_REMAP)),
    *(FieldProbe(variant("gpu_pcie_errors_total", "kind", kind), field) for kind, field in _PCIE_ERRORS.items()),
    FieldProbe("gpu_power_watts", 185, _MILLI),
    FieldProbe("gpu_power_instant_watts", 186, _MILLI),
    FieldProbe("gpu_power_limit_min_watts", 187, _MILLI),
    FieldProbe("gpu_power_limit_max_watts", 188, _MILLI),
    FieldProbe("gpu_power_limit_default_watts", 189, _MILLI),
    FieldProbe("gpu_power_limit_enforced_watts", 190, _MILLI),
    FieldProbe("gpu_power_limit_watts", 192, _MILLI),
    FieldProbe("gpu_tlimit_shutdown_celsius", 193),
    FieldProbe("gpu_tlimit_slowdown_celsius", 194),
    FieldProbe("gpu_tlimit_max_operating_celsius", 196),
    FieldProbe("gpu_pcie_transmit_bytes_total", 197),
    FieldProbe("gpu_pcie_receive_bytes_total", 198),
    FieldProbe(variant("gpu_nvlink_link_recovery_total", "result", "successful"), 213),
    FieldProbe(variant("gpu_nvlink_link_recovery_total", "result", "failed"), 214),
    FieldProbe("gpu_recovery_action", 230),
    FieldProbe(variant("gpu_c2c_link_errors_total", "kind", "interrupt"), 231),
    FieldProbe(variant("gpu_c2c_link_errors_total", "kind", "replay"), 232),
    FieldProbe(variant("gpu_c2c_link_errors_total", "kind", "replay_back_to_back"), 233),
    FieldProbe("gpu_sw_thermal_slowdown_seconds_total", 269, _NANO),
    FieldProbe("gpu_hw_thermal_slowdown_seconds_total", 270, _NANO),
    FieldProbe("gpu_hw_power_brake_seconds_total", 271, _NANO),
)

LINK_FIELDS: tuple[LinkField, ...] = (
    LinkField("gpu_nvlink_replay_errors_total", 161),
    LinkField("gpu_nvlink_recovery_errors_total", 162),
    LinkField("gpu_nvlink_effective_ber_ratio", 220, packed=True),
    LinkField("gpu_nvlink_symbol_errors_total", 221),
    LinkField("gpu_nvlink_symbol_ber_ratio", 222, packed=True),
)

LINK_CALLS: tuple[LinkCall, ...] = (
    LinkCall("gpu_nvlink_up", "nvmlDeviceGetNvLinkState"),
    LinkCall("gpu_nvlink_replay_errors_total", "nvmlDeviceGetNvLinkErrorCounter", (0,)),
    LinkCall("gpu_nvlink_recovery_errors_total", "nvmlDeviceGetNvLinkErrorCounter", (1,)),
)
"""Arguments 0 and 1 are ``NVML_NVLINK_ERROR_DL_REPLAY`` and ``..._RECOVERY``."""

LINK_METRICS = tuple(
    dict.fromkeys([row.metric for row in LINK_FIELDS] + [row.metric for row in LINK_CALLS]),
)

MEMORY = CallProbe(
    "nvmlDeviceGetMemoryInfo",
    (MEMORY_V2,),
    (
        "gpu_memory_total_bytes",
        "gpu_memory_used_bytes",
        "gpu_memory_free_bytes",
        "gpu_memory_reserved_bytes",
        "gpu_memory_used_ratio",
    ),
    _memory,
)
PROCESSES = CallProbe(
    "nvmlDeviceGetComputeRunningProcesses",
    (),
    ("gpu_processes", "gpu_process_memory_used_bytes"),
    _processes,
)

CALLS: tuple[CallProbe, ...] = (
    _one("gpu_temperature_celsius", "nvmlDeviceGetTemperatureV", 0),
    _one("gpu_temperature_celsius", "nvmlDeviceGetTemperature", 0),
    _one("gpu_thermal_margin_celsius", "nvmlDeviceGetMarginTemperature"),
    CallProbe(
        "nvmlDeviceGetUtilizationRates",
        (),
        ("gpu_utilization_ratio", "gpu_memory_copy_utilization_ratio"),
        _utilization,
    ),
    _one("gpu_encoder_utilization_ratio", "nvmlDeviceGetEncoderUtilization", scale=_PERCENT, part=0),
    _one("gpu_decoder_utilization_ratio", "nvmlDeviceGetDecoderUtilization", scale=_PERCENT, part=0),
    _one("gpu_jpeg_utilization_ratio", "nvmlDeviceGetJpgUtilization", scale=_PERCENT, part=0),
    _one("gpu_ofa_utilization_ratio", "nvmlDeviceGetOfaUtilization", scale=_PERCENT, part=0),
    MEMORY,
    CallProbe("nvmlDeviceGetMemoryInfo", (), ("gpu_memory_total_bytes", "gpu_memory_free_bytes"), _old_memory),
    CallProbe("nvmlDeviceGetBAR1MemoryInfo", (), ("gpu_bar1_used_bytes", "gpu_bar1_total_bytes"), _bar1),
    _one("gpu_power_watts", "nvmlDeviceGetPowerUsage", scale=_MILLI),
    _one("gpu_energy_joules_total", "nvmlDeviceGetTotalEnergyConsumption", scale=_MILLI),
    _one("gpu_power_limit_watts", "nvmlDeviceGetPowerManagementLimit", scale=_MILLI),
    _one("gpu_power_limit_enforced_watts", "nvmlDeviceGetEnforcedPowerLimit", scale=_MILLI),
    _one("gpu_power_limit_default_watts", "nvmlDeviceGetPowerManagementDefaultLimit", scale=_MILLI),
    _one("gpu_power_limit_min_watts", "nvmlDeviceGetPowerManagementLimitConstraints", scale=_MILLI, part=0),
    _one("gpu_power_limit_max_watts", "nvmlDeviceGetPowerManagementLimitConstraints", scale=_MILLI, part=1),
    _one("gpu_temperature_shutdown_celsius", "nvmlDeviceGetTemperatureThreshold", 0),
    _one("gpu_temperature_slowdown_celsius", "nvmlDeviceGetTemperatureThreshold", 1),
    _one("gpu_memory_temperature_max_operating_celsius", "nvmlDeviceGetTemperatureThreshold", 2),
    _one("gpu_temperature_max_operating_celsius", "nvmlDeviceGetTemperatureThreshold", 3),
    _one("gpu_sm_clock_hertz", "nvmlDeviceGetClockInfo", 1, scale=_MEGA),
    _one("gpu_memory_clock_hertz", "nvmlDeviceGetClockInfo", 2, scale=_MEGA),
    _one("gpu_sm_clock_max_hertz", "nvmlDeviceGetMaxClockInfo", 1, scale=_MEGA),
    _one("gpu_memory_clock_max_hertz", "nvmlDeviceGetMaxClockInfo", 2, scale=_MEGA),
    _one("gpu_app_sm_clock_hertz", "nvmlDeviceGetApplicationsClock", 1, scale=_MEGA),
    _one("gpu_clocks_event_reasons_bitmask", "nvmlDeviceGetCurrentClocksEventReasons"),
    _one("gpu_clocks_event_reasons_bitmask", "nvmlDeviceGetCurrentClocksThrottleReasons"),
    _one("gpu_performance_state", "nvmlDeviceGetPerformanceState"),
    _one("gpu_fan_speed_ratio", "nvmlDeviceGetFanSpeed_v2", 0, scale=_PERCENT),
    _one("gpu_fan_speed_ratio", "nvmlDeviceGetFanSpeed", scale=_PERCENT),
    _one("gpu_ecc_mode_enabled", "nvmlDeviceGetEccMode", part=0),
    _one("gpu_ecc_corrected_volatile_total", "nvmlDeviceGetTotalEccErrors", 0, 0),
    _one("gpu_ecc_corrected_aggregate_total", "nvmlDeviceGetTotalEccErrors", 0, 1),
    _one("gpu_ecc_uncorrected_volatile_total", "nvmlDeviceGetTotalEccErrors", 1, 0),
    _one("gpu_ecc_uncorrected_aggregate_total", "nvmlDeviceGetTotalEccErrors", 1, 1),
    _one("gpu_ecc_dram_corrected_volatile_total", "nvmlDeviceGetMemoryErrorCounter", 0, 0, 2),
    _one("gpu_ecc_dram_uncorrected_volatile_total", "nvmlDeviceGetMemoryErrorCounter", 1, 0, 2),
    _one("gpu_ecc_sram_corrected_volatile_total", "nvmlDeviceGetMemoryErrorCounter", 0, 0, 7),
    _one("gpu_ecc_sram_uncorrected_volatile_total", "nvmlDeviceGetMemoryErrorCounter", 1, 0, 7),
    _one("gpu_ecc_sram_threshold_exceeded", "nvmlDeviceGetSramEccErrorStatus", part="bThresholdExceeded"),
    _one("gpu_retired_pages_pending", "nvmlDeviceGetRetiredPagesPendingStatus"),
    CallProbe("nvmlDeviceGetRemappedRows", (), _ROW_REMAP, _rows),
    CallProbe("nvmlDeviceGetRowRemapperHistogram", (), ("gpu_row_remap_banks",), _histogram),
    _one("gpu_memory_unrepairable", "nvmlDeviceGetUnrepairableMemoryFlag_v1"),
    CallProbe("nvmlDeviceGetRepairStatus", (), ("gpu_repair_pending",), _repair),
    _one("gpu_pcie_link_generation", "nvmlDeviceGetCurrPcieLinkGeneration"),
    _one("gpu_pcie_link_width", "nvmlDeviceGetCurrPcieLinkWidth"),
    _one("gpu_pcie_link_generation_max", "nvmlDeviceGetMaxPcieLinkGeneration"),
    _one("gpu_pcie_link_width_max", "nvmlDeviceGetMaxPcieLinkWidth"),
    _one("gpu_pcie_replay_total", "nvmlDeviceGetPcieReplayCounter"),
    CallProbe("nvmlDeviceGetGpuFabricInfoV", (), ("gpu_fabric_state", "gpu_fabric_health"), _fabric),
    PROCESSES,
    _one("gpu_mig_mode", "nvmlDeviceGetMigMode", part=0),
)

INSTANCE_CALLS: tuple[CallProbe, ...] = (MEMORY, PROCESSES)
"""What the handle of a MIG instance answers."""

RATES: dict[str, tuple[str, ...]] = {
    "gpu_pcie_transmit_bytes_per_second": ("gpu_pcie_transmit_bytes_total",),
    "gpu_pcie_receive_bytes_per_second": ("gpu_pcie_receive_bytes_total",),
    "gpu_nvlink_bandwidth_bytes_per_second": ("gpu_nvlink_transmit_bytes_total", "gpu_nvlink_receive_bytes_total"),
}
"""Rates made of the growth of counters between two readings."""


def metric_of(key: str) -> str:
    """The canonical name of a metric or variant."""
    return split_variant(key)[0]


def is_static(key: str) -> bool:
    """Whether the metric is read once per enumeration."""
    return METRICS[metric_of(key)].static


def _all_metrics() -> tuple[str, ...]:
    names = [metric_of(probe.key) for probe in FIELDS]
    names += LINK_METRICS
    names += [metric for call in CALLS for metric in call.metrics]
    names += ["gpu_xid_last_code", *RATES]
    return tuple(dict.fromkeys(names))


PROBED: tuple[str, ...] = _all_metrics()
"""Every metric that the NVML source reads of a whole GPU, those of MIG apart."""

"""Which NVML question answers which metric. Adding a metric is one row.

Fields are asked first, in one batched call per GPU and tier. Calls follow in order, each made only where one of its
metrics still has no value, so a later row is the fallback of an earlier one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any

from tocsin.collector.nvml.answers import (
    CLOCK_REASONS,
    KIBI,
    MEGA,
    MILLI,
    NANO,
    PERCENT,
    ROW_REMAP,
    Read,
    bar1,
    clock_reasons,
    fabric,
    histogram,
    link_up,
    memory,
    metric_of,
    modes,
    old_memory,
    one,
    repair,
    rows,
    sram,
    utilization,
)
from tocsin.collector.nvml.library import ALL_LINKS, MEMORY_V2
from tocsin.domain.clock import SECOND
from tocsin.domain.metrics import METRICS, variant


class Tier(Enum):
    """How often a metric is read; the value is the period in milliseconds."""

    FAST = 0
    """At every reading."""
    PROCESSES = 30 * SECOND
    """Lists of processes: two calls each, and locks in the driver."""
    SLOW = 60 * SECOND
    """What changes slowly or is dear to ask: ECC, repair, links, fabric, MIG and vGPU layout."""
    STATIC = -1
    """Once per enumeration."""


@dataclass(frozen=True, slots=True)
class FieldProbe:
    """One field value: `key` (a metric or variant) is the answer times `scale`; `packed` marks a packed error rate.

    Fields with one `key` in one batch are summed. `state` marks a link's state, which becomes up or down.
    """

    key: str
    field: int
    scale: float = 1.0
    scope: int = 0
    packed: bool = False
    state: bool = False


@dataclass(frozen=True, slots=True)
class CallProbe:
    """One function of a GPU: `read` turns its answer into values by key, None where the driver gave a blank."""

    function: str
    arguments: tuple[Any, ...]
    metrics: tuple[str, ...]
    read: Read


def _one(metric: str, function: str, *arguments: Any, scale: float = 1.0, part: str | int | None = None) -> CallProbe:
    return CallProbe(function, arguments, (metric,), one(metric, scale, part))


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
_ECC_LOCATIONS = {"l1": (7, 8), "l2": (9, 10), "register": (13, 14), "texture": (15, 16)}
"""Fields of corrected and uncorrected errors by location, for GPUs before Ampere."""

FIELDS: tuple[FieldProbe, ...] = (
    FieldProbe("gpu_ecc_mode_enabled", 1),
    FieldProbe("gpu_ecc_mode_pending", 2),
    FieldProbe("gpu_ecc_corrected_volatile_total", 3),
    FieldProbe("gpu_ecc_uncorrected_volatile_total", 4),
    FieldProbe("gpu_ecc_corrected_aggregate_total", 5),
    FieldProbe("gpu_ecc_uncorrected_aggregate_total", 6),
    FieldProbe("gpu_ecc_dram_corrected_volatile_total", 11),
    FieldProbe("gpu_ecc_dram_uncorrected_volatile_total", 12),
    FieldProbe("gpu_ecc_dram_corrected_aggregate_total", 22),
    FieldProbe("gpu_ecc_dram_uncorrected_aggregate_total", 23),
    *(
        FieldProbe(variant(f"gpu_ecc_{kind}_volatile_by_location_total", "location", location), fields[i])
        for location, fields in _ECC_LOCATIONS.items()
        for i, kind in enumerate(("corrected", "uncorrected"))
    ),
    FieldProbe(variant("gpu_ecc_uncorrected_volatile_by_location_total", "location", "cbu"), 17),
    FieldProbe("gpu_retired_pages_corrected_total", 29),
    FieldProbe("gpu_retired_pages_uncorrected_total", 30),
    FieldProbe("gpu_retired_pages_pending", 31),
    FieldProbe("gpu_nvlink_crc_flit_errors_total", 38),
    FieldProbe("gpu_nvlink_crc_data_errors_total", 45),
    FieldProbe("gpu_power_cap_seconds_total", 74, NANO),
    FieldProbe("gpu_thermal_violation_seconds_total", 75, NANO),
    FieldProbe("gpu_sync_boost_seconds_total", 76, NANO),
    FieldProbe("gpu_board_limit_seconds_total", 77, NANO),
    FieldProbe("gpu_low_utilization_seconds_total", 78, NANO),
    FieldProbe("gpu_reliability_seconds_total", 79, NANO),
    FieldProbe("gpu_below_application_clocks_seconds_total", 80, NANO),
    FieldProbe("gpu_below_base_clocks_seconds_total", 81, NANO),
    FieldProbe("gpu_memory_temperature_celsius", 82),
    FieldProbe("gpu_energy_joules_total", 83, MILLI),
    FieldProbe("gpu_nvlink_links_max", 91),
    FieldProbe("gpu_pcie_replay_total", 94),
    FieldProbe("gpu_nvlink_transmit_bytes_total", 138, KIBI, ALL_LINKS),
    FieldProbe("gpu_nvlink_receive_bytes_total", 139, KIBI, ALL_LINKS),
    *(FieldProbe(metric, 142 + i) for i, metric in enumerate(ROW_REMAP)),
    FieldProbe("gpu_nvlink_ecc_data_errors_total", 160),
    *(FieldProbe(variant("gpu_pcie_errors_total", "kind", kind), field) for kind, field in _PCIE_ERRORS.items()),
    FieldProbe("gpu_power_watts", 185, MILLI),
    FieldProbe("gpu_power_instant_watts", 186, MILLI),
    FieldProbe("gpu_module_power_watts", 186, MILLI, 1),
    FieldProbe("gpu_power_limit_min_watts", 187, MILLI),
    FieldProbe("gpu_power_limit_max_watts", 188, MILLI),
    FieldProbe("gpu_power_limit_default_watts", 189, MILLI),
    FieldProbe("gpu_power_limit_enforced_watts", 190, MILLI),
    FieldProbe("gpu_power_limit_watts", 192, MILLI),
    FieldProbe("gpu_tlimit_shutdown_celsius", 193),
    FieldProbe("gpu_tlimit_slowdown_celsius", 194),
    FieldProbe("gpu_tlimit_memory_max_celsius", 195),
    FieldProbe("gpu_tlimit_max_operating_celsius", 196),
    FieldProbe("gpu_pcie_transmit_bytes_total", 197),
    FieldProbe("gpu_pcie_receive_bytes_total", 198),
    FieldProbe("gpu_recovery_action", 230),
    FieldProbe(variant("gpu_c2c_link_errors_total", "kind", "interrupt"), 231),
    FieldProbe(variant("gpu_c2c_link_errors_total", "kind", "replay"), 232),
    FieldProbe(variant("gpu_c2c_link_errors_total", "kind", "replay_back_to_back"), 233),
    FieldProbe("gpu_sw_thermal_slowdown_seconds_total", 269, NANO),
    FieldProbe("gpu_hw_thermal_slowdown_seconds_total", 270, NANO),
    FieldProbe("gpu_hw_power_brake_seconds_total", 271, NANO),
)

_REASONS = ("gpu_clocks_event_reasons_bitmask", *CLOCK_REASONS)
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
    memory,
)

CALLS: tuple[CallProbe, ...] = (
    _one("gpu_temperature_celsius", "nvmlDeviceGetTemperatureV", 0),
    _one("gpu_temperature_celsius", "nvmlDeviceGetTemperature", 0),
    _one("gpu_thermal_margin_celsius", "nvmlDeviceGetMarginTemperature"),
    CallProbe(
        "nvmlDeviceGetUtilizationRates",
        (),
        ("gpu_utilization_ratio", "gpu_memory_copy_utilization_ratio"),
        utilization,
    ),
    _one("gpu_encoder_utilization_ratio", "nvmlDeviceGetEncoderUtilization", scale=PERCENT, part=0),
    _one("gpu_decoder_utilization_ratio", "nvmlDeviceGetDecoderUtilization", scale=PERCENT, part=0),
    _one("gpu_jpeg_utilization_ratio", "nvmlDeviceGetJpgUtilization", scale=PERCENT, part=0),
    _one("gpu_ofa_utilization_ratio", "nvmlDeviceGetOfaUtilization", scale=PERCENT, part=0),
    MEMORY,
    CallProbe("nvmlDeviceGetMemoryInfo", (), ("gpu_memory_total_bytes", "gpu_memory_free_bytes"), old_memory),
    CallProbe("nvmlDeviceGetBAR1MemoryInfo", (), ("gpu_bar1_used_bytes", "gpu_bar1_total_bytes"), bar1),
    _one("gpu_memory_limit_bytes", "nvmlDeviceGetMemoryLimits_v1", part="hardLimit"),
    _one("gpu_power_watts", "nvmlDeviceGetPowerUsage", scale=MILLI),
    _one("gpu_energy_joules_total", "nvmlDeviceGetTotalEnergyConsumption", scale=MILLI),
    _one("gpu_power_limit_watts", "nvmlDeviceGetPowerManagementLimit", scale=MILLI),
    _one("gpu_power_limit_enforced_watts", "nvmlDeviceGetEnforcedPowerLimit", scale=MILLI),
    _one("gpu_power_limit_default_watts", "nvmlDeviceGetPowerManagementDefaultLimit", scale=MILLI),
    _one("gpu_power_limit_min_watts", "nvmlDeviceGetPowerManagementLimitConstraints", scale=MILLI, part=0),
    _one("gpu_power_limit_max_watts", "nvmlDeviceGetPowerManagementLimitConstraints", scale=MILLI, part=1),
    _one("gpu_temperature_shutdown_celsius", "nvmlDeviceGetTemperatureThreshold", 0),
    _one("gpu_temperature_slowdown_celsius", "nvmlDeviceGetTemperatureThreshold", 1),
    _one("gpu_memory_temperature_max_operating_celsius", "nvmlDeviceGetTemperatureThreshold", 2),
    _one("gpu_temperature_max_operating_celsius", "nvmlDeviceGetTemperatureThreshold", 3),
    _one("gpu_sm_clock_hertz", "nvmlDeviceGetClockInfo", 1, scale=MEGA),
    _one("gpu_memory_clock_hertz", "nvmlDeviceGetClockInfo", 2, scale=MEGA),
    _one("gpu_sm_clock_max_hertz", "nvmlDeviceGetMaxClockInfo", 1, scale=MEGA),
    _one("gpu_memory_clock_max_hertz", "nvmlDeviceGetMaxClockInfo", 2, scale=MEGA),
    _one("gpu_app_sm_clock_hertz", "nvmlDeviceGetApplicationsClock", 1, scale=MEGA),
    CallProbe("nvmlDeviceGetCurrentClocksEventReasons", (), _REASONS, clock_reasons),
    CallProbe("nvmlDeviceGetCurrentClocksThrottleReasons", (), _REASONS, clock_reasons),
    _one("gpu_performance_state", "nvmlDeviceGetPerformanceState"),
    _one("gpu_fan_speed_ratio", "nvmlDeviceGetFanSpeed_v2", 0, scale=PERCENT),
    _one("gpu_fan_speed_ratio", "nvmlDeviceGetFanSpeed", scale=PERCENT),
    _one("gpu_fan_speed_rpm", "nvmlDeviceGetFanSpeedRPM"),
    _one("gpu_persistence_mode", "nvmlDeviceGetPersistenceMode"),
    CallProbe(
        "nvmlDeviceGetEccMode",
        (),
        ("gpu_ecc_mode_enabled", "gpu_ecc_mode_pending"),
        modes("gpu_ecc_mode_enabled", "gpu_ecc_mode_pending"),
    ),
    _one("gpu_ecc_corrected_volatile_total", "nvmlDeviceGetTotalEccErrors", 0, 0),
    _one("gpu_ecc_corrected_aggregate_total", "nvmlDeviceGetTotalEccErrors", 0, 1),
    _one("gpu_ecc_uncorrected_volatile_total", "nvmlDeviceGetTotalEccErrors", 1, 0),
    _one("gpu_ecc_uncorrected_aggregate_total", "nvmlDeviceGetTotalEccErrors", 1, 1),
    _one("gpu_ecc_dram_corrected_volatile_total", "nvmlDeviceGetMemoryErrorCounter", 0, 0, 2),
    _one("gpu_ecc_dram_uncorrected_volatile_total", "nvmlDeviceGetMemoryErrorCounter", 1, 0, 2),
    _one("gpu_ecc_dram_corrected_aggregate_total", "nvmlDeviceGetMemoryErrorCounter", 0, 1, 2),
    _one("gpu_ecc_dram_uncorrected_aggregate_total", "nvmlDeviceGetMemoryErrorCounter", 1, 1, 2),
    _one("gpu_ecc_sram_corrected_volatile_total", "nvmlDeviceGetMemoryErrorCounter", 0, 0, 7),
    _one("gpu_ecc_sram_uncorrected_volatile_total", "nvmlDeviceGetMemoryErrorCounter", 1, 0, 7),
    CallProbe(
        "nvmlDeviceGetSramEccErrorStatus",
        (),
        ("gpu_ecc_sram_threshold_exceeded", "gpu_ecc_sram_uncorrected_aggregate_total"),
        sram,
    ),
    _one("gpu_retired_pages_pending", "nvmlDeviceGetRetiredPagesPendingStatus"),
    CallProbe("nvmlDeviceGetRemappedRows", (), ROW_REMAP, rows),
    CallProbe("nvmlDeviceGetRowRemapperHistogram", (), ("gpu_row_remap_banks",), histogram),
    _one("gpu_memory_unrepairable", "nvmlDeviceGetUnrepairableMemoryFlag_v1"),
    CallProbe("nvmlDeviceGetRepairStatus", (), ("gpu_repair_pending",), repair),
    _one("gpu_pcie_link_generation", "nvmlDeviceGetCurrPcieLinkGeneration"),
    _one("gpu_pcie_link_width", "nvmlDeviceGetCurrPcieLinkWidth"),
    _one("gpu_pcie_link_generation_max", "nvmlDeviceGetMaxPcieLinkGeneration"),
    _one("gpu_pcie_link_width_max", "nvmlDeviceGetMaxPcieLinkWidth"),
    _one("gpu_pcie_replay_total", "nvmlDeviceGetPcieReplayCounter"),
    CallProbe(
        "nvmlDeviceGetGpuFabricInfoV", (), ("gpu_fabric_state", "gpu_fabric_health", "gpu_fabric_problem"), fabric
    ),
    CallProbe(
        "nvmlDeviceGetMigMode",
        (),
        ("gpu_mig_mode", "gpu_mig_mode_pending"),
        modes("gpu_mig_mode", "gpu_mig_mode_pending"),
    ),
)

THROUGHPUT: tuple[CallProbe, ...] = (
    _one("gpu_pcie_transmit_bytes_per_second", "nvmlDeviceGetPcieThroughput", 0, scale=KIBI),
    _one("gpu_pcie_receive_bytes_per_second", "nvmlDeviceGetPcieThroughput", 1, scale=KIBI),
)
"""The driver's own measurement, over 20 ms in which the call blocks: asked once in a slow period, and only where
neither the byte counters nor GPM answer."""

INSTANCE_CALLS: tuple[CallProbe, ...] = (MEMORY,)
"""What the handle of a MIG instance answers at every reading."""

GPM: dict[int, tuple[str, float]] = {
    1: ("gpu_graphics_engine_active_ratio", PERCENT),
    2: ("gpu_sm_active_ratio", PERCENT),
    3: ("gpu_sm_occupancy_ratio", PERCENT),
    4: ("gpu_integer_active_ratio", PERCENT),
    5: ("gpu_tensor_active_ratio", PERCENT),
    6: (variant("gpu_tensor_pipe_active_ratio", "pipe", "dfma"), PERCENT),
    7: (variant("gpu_tensor_pipe_active_ratio", "pipe", "hmma"), PERCENT),
    8: (variant("gpu_tensor_pipe_active_ratio", "pipe", "dmma"), PERCENT),
    9: (variant("gpu_tensor_pipe_active_ratio", "pipe", "imma"), PERCENT),
    10: ("gpu_dram_active_ratio", PERCENT),
    11: ("gpu_fp64_active_ratio", PERCENT),
    12: ("gpu_fp32_active_ratio", PERCENT),
    13: ("gpu_fp16_active_ratio", PERCENT),
    20: ("gpu_pcie_transmit_bytes_per_second", KIBI * KIBI),
    21: ("gpu_pcie_receive_bytes_per_second", KIBI * KIBI),
    60: ("gpu_nvlink_receive_bytes_per_second", KIBI * KIBI),
    61: ("gpu_nvlink_transmit_bytes_per_second", KIBI * KIBI),
}
"""Metric and scale of each GPM id that is asked of a whole GPU (nvml.h, ``NVML_GPM_METRIC_...``)."""
INSTANCE_GPM: dict[int, tuple[str, float]] = {number: GPM[number] for number in GPM if number < 20}
"""What is asked of a MIG instance: links belong to the GPU."""

RATES: dict[str, tuple[str, ...]] = {
    "gpu_pcie_transmit_bytes_per_second": ("gpu_pcie_transmit_bytes_total",),
    "gpu_pcie_receive_bytes_per_second": ("gpu_pcie_receive_bytes_total",),
    "gpu_nvlink_transmit_bytes_per_second": ("gpu_nvlink_transmit_bytes_total",),
    "gpu_nvlink_receive_bytes_per_second": ("gpu_nvlink_receive_bytes_total",),
    "gpu_nvlink_bandwidth_bytes_per_second": ("gpu_nvlink_transmit_bytes_total", "gpu_nvlink_receive_bytes_total"),
}
"""Rates made of the growth of counters between two readings, where they grow; GPM's stand where they do not."""

PROCESS_METRICS = ("gpu_processes", "gpu_process_memory_used_bytes", "gpu_process_sm_utilization_ratio")


@dataclass(frozen=True, slots=True)
class LinkField:
    """A field that is asked once for each NVLink, with the link as its scope.

    `kind` is empty where each link is a variant of the metric; else the links are summed up to that variant.
    """

    metric: str
    field: int
    kind: str = ""
    packed: bool = False
    state: bool = False


@dataclass(frozen=True, slots=True)
class LinkCall:
    """A function that is asked once for each NVLink: ``function(handle, link, *arguments)``."""

    metric: str
    function: str
    arguments: tuple[int, ...] = ()


_PACKET_ERRORS = {
    "malformed": 206,
    "buffer_overrun": 207,
    "receive": 208,
    "remote": 209,
    "general": 210,
    "link_integrity": 211,
    "transmit_discard": 212,
}

LINK_FIELDS: tuple[LinkField, ...] = (
    LinkField("gpu_nvlink_up", 165, state=True),
    LinkField("gpu_nvlink_replay_errors_total", 161),
    LinkField("gpu_nvlink_recovery_errors_total", 162),
    LinkField("gpu_nvlink_crc_errors_total", 163),
    LinkField("gpu_nvlink_effective_errors_total", 219),
    LinkField("gpu_nvlink_effective_ber_ratio", 220, packed=True),
    LinkField("gpu_nvlink_symbol_errors_total", 221),
    LinkField("gpu_nvlink_symbol_ber_ratio", 222, packed=True),
    LinkField("gpu_nvlink_link_recovery_total", 213, kind="successful"),
    LinkField("gpu_nvlink_link_recovery_total", 214, kind="failed"),
    *(LinkField("gpu_nvlink_packet_errors_total", field, kind=kind) for kind, field in _PACKET_ERRORS.items()),
)
"""Read in the slow tier. NVLink 5 knows the fields from 206 on, earlier links those up to 163."""
BYTE_FIELDS: tuple[LinkField, ...] = (
    LinkField("gpu_nvlink_transmit_bytes_total", 202),
    LinkField("gpu_nvlink_receive_bytes_total", 204),
)
"""Bytes by link, read at every reading where the driver has no sum over all links."""
LINK_CALLS: tuple[LinkCall, ...] = (
    LinkCall("gpu_nvlink_up", "nvmlDeviceGetNvLinkState"),
    LinkCall("gpu_nvlink_replay_errors_total", "nvmlDeviceGetNvLinkErrorCounter", (0,)),
    LinkCall("gpu_nvlink_recovery_errors_total", "nvmlDeviceGetNvLinkErrorCounter", (1,)),
)
"""Arguments 0 and 1 are ``NVML_NVLINK_ERROR_DL_REPLAY`` and ``..._RECOVERY``."""

LINK_METRICS = tuple(dict.fromkeys([row.metric for row in LINK_FIELDS] + [row.metric for row in LINK_CALLS]))

_FAST_FAMILIES = frozenset({"utilization", "memory", "thermal", "power", "clocks"})
_FAST = frozenset({"gpu_recovery_action", *(counter for counters in RATES.values() for counter in counters), *RATES})
_SLOW = frozenset({"gpu_persistence_mode", "gpu_memory_limit_bytes", "gpu_bar1_total_bytes", "gpu_app_sm_clock_hertz"})


def tier_of(key: str) -> Tier:
    """How often a metric or variant is read; a call belongs where the first of its metrics does."""
    name = metric_of(key)
    spec = METRICS[name]
    if spec.static:
        return Tier.STATIC
    if name in PROCESS_METRICS:
        return Tier.PROCESSES
    return Tier.FAST if name in _FAST or (spec.family in _FAST_FAMILIES and name not in _SLOW) else Tier.SLOW


def fields_of(tier: Tier) -> tuple[FieldProbe, ...]:
    """The fields of a tier, those of links apart."""
    return _FIELDS[tier]


def calls_of(tier: Tier) -> tuple[CallProbe, ...]:
    """The calls of a tier, those of links apart."""
    return _CALLS[tier]


@cache
def link_fields(rows: tuple[LinkField, ...], links: int) -> tuple[FieldProbe, ...]:
    """`rows` for each of a GPU's links."""
    return tuple(_link_field(row, link) for row in rows for link in range(links))


def _link_field(row: LinkField, link: int) -> FieldProbe:
    key = variant(row.metric, METRICS[row.metric].label, row.kind or str(link))
    return FieldProbe(key, row.field, scope=link, packed=row.packed, state=row.state)


@cache
def link_calls(links: int) -> tuple[CallProbe, ...]:
    """The calls of a GPU's links."""
    return tuple(_link_call(row, link) for row in LINK_CALLS for link in range(links))


def _link_call(row: LinkCall, link: int) -> CallProbe:
    key = variant(row.metric, "link", str(link))
    if row.metric == "gpu_nvlink_up":
        return CallProbe(row.function, (link,), (key,), lambda answer: {key: link_up(answer)})
    return CallProbe(row.function, (link, *row.arguments), (key,), lambda answer: {key: answer})


def _all_metrics() -> tuple[str, ...]:
    names = [metric_of(probe.key) for probe in FIELDS]
    names += LINK_METRICS
    names += [metric for call in CALLS for metric in call.metrics]
    names += [metric_of(key) for key, _ in GPM.values()]
    names += [*PROCESS_METRICS, "gpu_driver_latency_seconds", "gpu_xid_last_code", *RATES]
    return tuple(dict.fromkeys(names))


_FIELDS = {tier: tuple(probe for probe in FIELDS if tier_of(probe.key) is tier) for tier in Tier}
_CALLS = {tier: tuple(call for call in CALLS if tier_of(call.metrics[0]) is tier) for tier in Tier}

PROBED: tuple[str, ...] = _all_metrics()
"""Every metric that the NVML source reads of a whole GPU, those of MIG and vGPU apart."""

"""What is asked once for each NVLink, and which metrics are read how often."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from tocsin.collector.nvml.decode import link_up, metric_of
from tocsin.collector.nvml.probes import CALLS, FIELDS, GPM, PROCESS_METRICS, RATES, CallProbe, FieldProbe, Tier
from tocsin.domain.metrics import METRICS, variant


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
    if name in _FAST or (spec.family in _FAST_FAMILIES and name not in _SLOW):
        return Tier.FAST
    return Tier.SLOW


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
    label = METRICS[row.metric].label
    key = variant(row.metric, label, row.kind or str(link))
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

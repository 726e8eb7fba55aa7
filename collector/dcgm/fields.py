"""DCGM's fields in Tocsin's names and units: by field name of either generation, by field id, and its blank sentinels.

DCGM 4.6 renamed 325 fields and kept their numbers; the metric table has both names. What the table cannot say is here:
rows that several fields feed as variants, per-link fields, and fields that look like a row of the table and are not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from tocsin.domain.metrics import BY_DCGM_NAME, METRICS, MetricSpec, variant
from tocsin.domain.reading import Missing

XID_NAMES = frozenset({"DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_XID_ERROR"})
SXID_FATAL = frozenset({"DCGM_FI_DEV_NVSWITCH_FATAL_ERRORS", "DCGM_FI_DEV_SXID_FATAL_ERROR"})
SXID_NON_FATAL = frozenset({"DCGM_FI_DEV_NVSWITCH_NON_FATAL_ERRORS", "DCGM_FI_DEV_SXID_NON_FATAL_ERROR"})
XID_COUNT = "DCGM_EXP_XID_ERRORS_COUNT"

_OLDER_NAMES = {"DCGM_FI_DEV_CLOCK_THROTTLE_REASONS": "DCGM_FI_DEV_CLOCKS_EVENT_REASONS"}
"""Names from before DCGM 3.3.6; field 112."""
NOT_OURS = frozenset({69, 75, 171, 174, 200, 201})
"""Fields that must not feed a row: 69 counts slices, not instances; 75 is binary; 171 is an error code, not the state
of the fabric; 174 is a mask, not the summary; 200 and 201 are deprecated and answered as not supported."""
_NOT_OUR_NAMES = frozenset(
    {
        "DCGM_FI_DEV_MIG_MAX_SLICES",
        "DCGM_FI_DEV_MIG_ATTRIBUTES",
        "DCGM_FI_DEV_FABRIC_MANAGER_ERROR_CODE",
        "DCGM_FI_DEV_FABRIC_MANAGER_ERROR",
        "DCGM_FI_DEV_FABRIC_HEALTH_MASK",
        "DCGM_FI_DEV_PCIE_TX_THROUGHPUT",
        "DCGM_FI_DEV_PCIE_RX_THROUGHPUT",
    }
)
_LANE = re.compile(r"^(DCGM_FI_DEV_NVLINK_\w+?)_L(\d{1,2})(?:_TOTAL)?$")
_LINK_UP = "gpu_nvlink_up"
_ACTIVE_STATES = (1.0, 2.0)
"""NVML field 165: 1 active, 2 asleep (trained, saving power); 0 inactive and 3 traffic off carry nothing."""


@dataclass(frozen=True, slots=True)
class Field:
    """One DCGM field: the row that it feeds, and which variant of it where the row has any (empty: the link says).

    `second` is a field that gives way where another, named before it in the table, feeds the same row: power and
    sync-boost time stand in a violation counter and in a newer one of another beginning, which must not alternate.
    `scale` is the factor to the unit of the table where it is not DCGM's: of a metric of another exporter.
    """

    spec: MetricSpec
    value: str = ""
    second: bool = False
    scale: float | None = None

    def key(self, link: str = "") -> str:
        """Canonical name or variant; `link` is the NVLink of the entity that was read, empty for a whole GPU."""
        chosen = self.value or (link if self.spec.label == "link" else "")
        return variant(self.spec.name, self.spec.label, chosen) if chosen else self.spec.name

    def of_links(self) -> bool:
        """Whether its values may belong to a single NVLink."""
        return self.spec.label == "link" and not self.value

    def of_states(self) -> bool:
        """Whether raw values are states, which `plain` turns into numbers."""
        return self.spec.name == _LINK_UP

    def plain(self, raw: float) -> float:
        """`raw` as a number that only has to be scaled: the states of a link become 1 (up) and 0; NaN stays."""
        if self.of_states() and raw == raw:
            return 1.0 if raw in _ACTIVE_STATES else 0.0
        return raw

    def scaled(self, raw: float) -> float:
        """`raw`, as the exporter prints it, in the unit of the metric table."""
        return self.plain(raw) * (self.spec.dcgm_scale if self.scale is None else self.scale)


@cache
def field_named(name: str) -> Field | None:
    """The field called `name` by any release; None where no row of the table is fed by it."""
    if name in _NOT_OUR_NAMES:
        return None
    if (spec := BY_DCGM_NAME.get(_OLDER_NAMES.get(name, name))) is not None:
        value = _variant_of(spec, name)
        rivals = len(spec.dcgm_ids) > 1 and not spec.label
        return Field(spec, value, rivals and name not in _names_of(spec, spec.dcgm_ids[0]))
    if (lane := _LANE.match(name)) is None:
        return None
    whole = BY_DCGM_NAME.get(f"{lane[1]}_TOTAL")
    return Field(whole, lane[2]) if whole is not None and whole.label == "link" else None


def _variant_of(spec: MetricSpec, name: str) -> str:
    """Which variant of a row with several fields `name` is; the labels are those that NVML's readings carry."""
    if spec.label == "availability":
        return name.rsplit("_", 1)[1].lower()
    if spec.label == "result":
        return "successful" if "SUCCESSFUL" in name else "failed" if "FAILED" in name else "all"
    return "correctable" if spec.label == "kind" else ""


def _names_of(spec: MetricSpec, number: int) -> Iterator[str]:
    """Names of the field `number`: the table lists ids in the order of the names, old generation first."""
    place = spec.dcgm_ids.index(number)
    if len(spec.dcgm_ids) == 1:
        yield from spec.dcgm_names
    elif len(spec.dcgm_names) % len(spec.dcgm_ids) == 0:
        yield from spec.dcgm_names[place :: len(spec.dcgm_ids)]
    else:
        yield from (name for name in spec.dcgm_names if name not in _NOT_OUR_NAMES)


@cache
def names_numbered(number: int) -> tuple[str, ...]:
    """All names of field `number`; empty where it feeds no row."""
    if number in NOT_OURS:
        return ()
    spec = next((spec for spec in METRICS.values() if number in spec.dcgm_ids), None)
    return () if spec is None else tuple(name for name in _names_of(spec, number) if name not in _NOT_OUR_NAMES)


@cache
def field_numbered(number: int) -> Field | None:
    """The field with id `number`; None where it feeds no row."""
    names = names_numbered(number)
    return field_named(names[0]) if names else None


def readable_ids() -> list[int]:
    """Ids of every field that feeds a row, rising."""
    return sorted({n for spec in METRICS.values() for n in spec.dcgm_ids if field_numbered(n) is not None})


# dcgm_structs.h: DCGM_INT64_BLANK, DCGM_FP64_BLANK (2^47) and DCGM_INT32_BLANK; the next three of each say not found,
# not supported and no permission.
INT64_BLANK = 0x7FFFFFFFFFFFFFF0
FP64_BLANK = 140_737_488_355_328
INT32_BLANK = 0x7FFFFFF0
_REASONS = (Missing.BLANK, Missing.BLANK, Missing.UNSUPPORTED, Missing.DENIED)
_TEXTS = {
    "<<<NOT_SUPPORTED>>>": Missing.UNSUPPORTED,
    "<<<NOT_PERMISSIONED>>>": Missing.DENIED,
    "<<<NOT_FOUND>>>": Missing.BLANK,
    "<<<NULL>>>": Missing.BLANK,
    "N/A": Missing.BLANK,
}


def blank_text(text: str) -> Missing | None:
    """The reason that a text in place of a number gives; None where it is no blank of DCGM's."""
    found = _TEXTS.get(text)
    return Missing.BLANK if found is None and text.startswith("<<<") and text.endswith(">>>") else found


def blank_number(raw: float, text: str = "") -> Missing | None:
    """The reason that a number stands for nothing, before any scaling; None where it is a value.

    A double cannot tell the four sentinels of 64-bit integers apart; `text`, where it is at hand, can.
    """
    if raw != raw or raw in (float("inf"), float("-inf")):
        return Missing.BLANK
    if raw < INT32_BLANK:
        return None
    if raw >= INT64_BLANK:
        offset = int(text) - INT64_BLANK if text.isdigit() else 0
        return _REASONS[offset] if 0 <= offset < len(_REASONS) else Missing.BLANK
    for base in (FP64_BLANK, INT32_BLANK):
        if base <= raw <= base + 3 and raw == int(raw):
            return _REASONS[int(raw) - base]
    return None


# The counters file that Tocsin ships for dcgm-exporter has what its rules read and the exporter's own default leaves
# out. dcgm-exporter refuses to start on a field that its DCGM does not know, on a field that comes twice, and on a
# line with more than three columns (older releases: comments too). Fields younger than DCGM 3.3 are therefore
# comments.

NEWEST_ID = 1099
"""The highest field of a GPU in DCGM 3.3; ids are never used again for something else."""
YOUNGER = frozenset({153, 170, 175, 342, 343, 346, 1091, 1092})
"""Fields below it that DCGM 3.3.9 does not list."""
NEEDS_LINKS = 1508
DRIVER_VERSION = "DCGM_FI_DRIVER_VERSION"


_RAW_UNITS = {
    ("ratio", 0.01): "percent",
    ("bytes", 1048576.0): "MiB",
    ("bytes/s", 1e6): "MB/s",
    ("hertz", 1e6): "MHz",
    ("joules", 0.001): "mJ",
    ("seconds", 1e-9): "ns",
}
"""The unit in which the exporter shows a field, by ours and the factor between them."""


def _row(name: str, kind: str, text: str) -> str:
    return f"{name}, {kind}, {text.rstrip('.').replace(',', ';')}."


def _help(spec: MetricSpec) -> str:
    raw = _RAW_UNITS.get((spec.unit, spec.dcgm_scale), "")
    return f"{spec.help.rstrip('.')} ({raw})" if raw else spec.help


def _rows(ids: list[int]) -> Iterator[str]:
    for number in ids:
        if (which := field_numbered(number)) is not None:
            # Names of before 4.6 are aliases in 4.6: every release knows them.
            yield _row(names_numbered(number)[0], which.spec.kind.value, _help(which.spec))


def is_old(number: int) -> bool:
    """Whether every DCGM since 3.3 has the field."""
    return number <= NEWEST_ID and number not in YOUNGER


def counters_csv() -> str:
    """The file, made from the metric table."""
    ids = [number for number in readable_ids() if number != NEEDS_LINKS]
    lines = [
        "# Counters of dcgm-exporter for Tocsin. Made by `tocsin reference dcgm-counters`.,,",
        "# For DCGM 3.3.9 and newer: dcgm-exporter -f tocsin-counters.csv,,",
        "# DCGM FIELD; Prometheus metric type; help message,,",
        "",
        *_rows([number for number in ids if is_old(number)]),
        _row(DRIVER_VERSION, "label", "Version of the driver"),
        _row(XID_COUNT, "gauge", "XIDs within the last five minutes by code: shows repeats that the gauge hides"),
        "",
        "# Fields of newer DCGM. Remove the mark before those that yours lists (dcgmi dmon -l).,,",
        *(f"# {row}" for row in _rows([number for number in ids if not is_old(number)])),
    ]
    return "\n".join(lines) + "\n"

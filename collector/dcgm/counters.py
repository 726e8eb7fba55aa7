"""The counters file that Tocsin ships for dcgm-exporter: what its rules read and the exporter's own default leaves out.

dcgm-exporter refuses to start on a field that its DCGM does not know, on a field that comes twice, and on a line with
more than three columns (older releases: comments too). Fields younger than DCGM 3.3 are therefore comments.
"""

from __future__ import annotations

from collections.abc import Iterator

from tocsin.collector.dcgm.fields import XID_COUNT, field_numbered, names_numbered, readable_ids
from tocsin.domain.metrics import MetricSpec

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
        which = field_numbered(number)
        if which is not None:
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

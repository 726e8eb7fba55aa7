"""Tables of an evidence bundle as CSV: decoded XIDs, telemetry around faults, and how peers did then."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from tocsin.domain.clock import MINUTE, SECOND, to_iso
from tocsin.domain.csv_text import csv_text
from tocsin.domain.event import Event, EventKind
from tocsin.domain.metrics import METRICS, spec_of
from tocsin.domain.reading import Gpu, Missing, Reading
from tocsin.queries.evidence_privacy import Screen
from tocsin.rules.xid import XidSpec, shipped_catalogue
from tocsin.rules.xid_explain import WORDS
from tocsin.store.port import Columns, Store

AROUND_MS = 10 * MINUTE
"""Before and after each fault (own choice)."""
PEER_AGE_MS = MINUTE
"""Oldest value of a peer that stands for an instant (own choice)."""
MOST_ROWS = 200_000
"""Rows of `telemetry.csv`, some 20 MB."""
PEER_INSTANTS = 40
"""Instants of one window at which peers are looked at."""
_PLAIN = frozenset(name for name, spec in METRICS.items() if not spec.static)
_OWNERS = "gpu_process"


@dataclass(frozen=True, slots=True)
class Window:
    """[`start_ms`, `end_ms`) around one fault or several."""

    start_ms: int
    end_ms: int


def windows_of(faults: Sequence[Event]) -> list[Window]:
    """Time around `faults`; what overlaps is one window."""
    found: list[Window] = []
    for at_ms in sorted(event.at_ms for event in faults):
        start, end = at_ms - AROUND_MS, at_ms + AROUND_MS + 1
        if found and start <= found[-1].end_ms:
            found[-1] = Window(found[-1].start_ms, end)
        else:
            found.append(Window(start, end))
    return found


def spec_seen(event: Event) -> XidSpec:
    """The catalogue's row of an XID as this event had it."""
    return shipped_catalogue().seen(event.code, event.severity, event.remedy)


def xid_table(events: Iterable[Event], screen: Screen) -> bytes:
    """Every event, XIDs decoded; the kernel's line names processes and is there only with owners."""
    rows = []
    for event in events:
        spec = spec_seen(event) if event.kind is EventKind.XID else None
        message = event.message if screen.with_owners and not screen.holds_secret(event.message) else ""
        decoded = ("", "", "", "", "", "") if spec is None else _decoded(spec)
        rows.append((to_iso(event.at_ms), event.kind.value, event.code, *decoded, event.source, message))
    head = ("at", "kind", "code", "name", "class", "severity", "vendor_action", "vendor_action_in_words", "provenance")
    return table((*head, "source", "message"), rows)


def _decoded(spec: XidSpec) -> tuple[str, ...]:
    words = WORDS.get(spec.vendor_action, "")
    return spec.name, spec.xid_class, spec.severity.value, spec.vendor_action, words, spec.provenance


def telemetry_table(readings: Iterable[Reading], faults: Sequence[Event], screen: Screen) -> tuple[bytes, int]:
    """One row a value, with its unit, or without and the reason; and how many rows were left out."""
    rows: list[tuple[object, ...]] = []
    left = 0
    at = np.array(sorted(event.at_ms for event in faults), dtype=np.int64)
    for reading in readings:
        offset = int(at[np.abs(at - reading.at_ms).argmin()]) if at.size else reading.at_ms
        head = (to_iso(reading.at_ms), (reading.at_ms - offset) / SECOND)
        for name in sorted(reading.values.keys() | reading.missing.keys()):
            spec = spec_of(name)
            if spec is None or (name.startswith(_OWNERS) and not screen.with_owners):
                continue
            if len(rows) >= MOST_ROWS:
                left += 1
                continue
            value, missing = reading.values.get(name, ""), reading.missing.get(name)
            reason = "" if missing is None else Missing(missing).label
            rows.append((*head, name, spec.unit, value if reason == "" else "", reason))
    return table(("at", "seconds_from_nearest_fault", "metric", "unit", "value", "missing"), rows), left


def peer_table(store: Store, own: Sequence[Reading], peers: Sequence[Gpu], windows: Sequence[Window]) -> bytes:
    """Median and range of each metric over `peers` at the instants of `own`, thinned to `PEER_INSTANTS` a window."""
    rows: list[tuple[object, ...]] = []
    uuids = [peer.uuid for peer in peers]
    for window in windows if uuids else ():
        mine = [one for one in own if window.start_ms <= one.at_ms < window.end_ms]
        chosen = mine[:: max(1, -(-len(mine) // PEER_INSTANTS))]
        names = sorted({name for one in chosen for name in one.values if name in _PLAIN and not _owned(name)})
        if not names:
            continue
        found = store.columns(names, window.start_ms - PEER_AGE_MS, window.end_ms, uuids)
        for one in chosen:
            rows += _peer_rows(one, names, found)
    head = ("at", "metric", "unit", "this_gpu", "peers_median", "peers_minimum", "peers_maximum", "peers")
    return table(head, rows)


def _owned(name: str) -> bool:
    return name.startswith(_OWNERS)


def _peer_rows(one: Reading, names: Sequence[str], found: Columns) -> list[tuple[object, ...]]:
    first, last = np.searchsorted(found.at_ms, (one.at_ms - PEER_AGE_MS + 1, one.at_ms + 1))
    numbers, values = found.gpu[first:last], found.values[first:last]
    rows: list[tuple[object, ...]] = []
    for column, name in enumerate(names):
        # Rows are by instant, so that the last of a GPU is its newest.
        known = ~np.isnan(values[:, column])
        newest = dict(zip(numbers[known].tolist(), values[known, column].tolist(), strict=True))
        seen = np.array(list(newest.values()), dtype=np.float64)
        of = (float(np.median(seen)), float(seen.min()), float(seen.max())) if seen.size else ("", "", "")
        rows.append((to_iso(one.at_ms), name, METRICS[name].unit, one.values.get(name, ""), *of, len(seen)))
    return rows


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> bytes:
    """The bytes of a file of the bundle."""
    return csv_text(head, rows).encode()

"""The fleet as a map: groups, such as racks, side by side in bands, a node a column, a GPU a cell.

`fleet_map.js` draws it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import resources
from itertools import pairwise
from typing import Any

import streamlit as st

from tocsin.client.models import STATE_RANKS, FleetMap, GpuState
from tocsin.dashboard.palette import SYMBOLS, Palette, ink, mix
from tocsin.dashboard.text import Text

# The canvas on which the map is drawn, as a Streamlit component.

_HTML = """<div class="map"><canvas tabindex="0" role="application"></canvas><div class="tip" hidden></div>
<div class="said" role="status"></div></div>"""


def _file(name: str) -> str:
    return resources.files("tocsin.dashboard").joinpath(name).read_text(encoding="utf-8")


@cache
def _component() -> Callable[..., Any]:
    return st.components.v2.component(
        "tocsin_fleet_map", html=_HTML, css=_file("fleet_map.css"), js=_file("fleet_map.js")
    )


@dataclass(frozen=True, slots=True)
class Opened:
    """The cell that was just opened: its node by host and group, and its place there."""

    host: str
    group: str
    slot: int


def canvas(data: dict[str, Any], key: str) -> Opened | None:
    """Draw `data` (see `heatmap.drawing`); the GPU that was just opened, None where none was."""
    opened = _component()(key=key, data=data, on_opened_change=lambda: None).get("opened")
    return Opened(str(opened["host"]), str(opened["group"]), int(opened["slot"])) if opened else None


ROWS = 8
"""Cells of a column at most; a node with more GPUs and instances takes several columns."""
SHAPE = 1.5
"""Width of the map by its height, as the page has room for it."""
BETWEEN = 0.043
"""Height of a band's label and the gap below it, as a share of the map's."""
SHADES = 32
"""Steps of a colour scale."""
NUMBERED = 256
"""GPUs up to which cells carry their number."""


@dataclass(frozen=True, slots=True)
class Measure:
    """What the colour shows: the map's column, its range, and its unit."""

    column: str
    low: float
    high: float
    factor: float
    unit: str
    alarm: float | None = None
    """Value from which the colours are those of trouble; None where high is no trouble."""

    def scale(self, palette: Palette) -> list[tuple[float, str]]:
        """Colours from 0 (`low`) to 1 (`high`)."""
        top = 1.0 if self.alarm is None else (self.alarm - self.low) / (self.high - self.low)
        stops = [(0.0, palette.scale[0]), (0.5 * top, palette.scale[1]), (top, palette.scale[2])]
        if self.alarm is None:
            return stops
        return [*stops, (top, palette.states[GpuState.WARNING]), (1.0, palette.states[GpuState.CRITICAL])]

    def colour(self, value: float, palette: Palette) -> str:
        """The colour of `value`, cut off at both ends."""
        share = min(1.0, max(0.0, (value - self.low) / (self.high - self.low)))
        stops = self.scale(palette)
        for (left, low), (right, high) in pairwise(stops):
            if share < right:
                return mix(low, high, (share - left) / (right - left))
        return stops[-1][1]

    def shades(self, palette: Palette) -> list[str]:
        """`SHADES` colours from low to high."""
        span = self.high - self.low
        return [self.colour(self.low + span * (n + 0.5) / SHADES, palette) for n in range(SHADES)]

    def shade(self, value: float | None) -> int:
        """The place of `value` among the shades; -1 where there is none."""
        if value is None:
            return -1
        share = (self.factor * value - self.low) / (self.high - self.low)
        return min(SHADES - 1, max(0, int(share * SHADES)))


MEASURES: dict[str, Measure | None] = {
    "state": None,
    "temperature": Measure("temperature", 30.0, 95.0, 1.0, "°C", 85.0),
    "utilization": Measure("utilization", 0.0, 100.0, 100.0, "%"),
    "memory": Measure("memory", 0.0, 100.0, 100.0, "%", 90.0),
    "risk": Measure("risk", 0.0, 100.0, 100.0, "%", 50.0),
}
"""Choices of colour; None colours by state."""


@dataclass(frozen=True, slots=True)
class HeatmapLayout:
    """Where each node is drawn: the column and the band that it starts in. `labels` are column, band and group."""

    column: tuple[int, ...]
    band: tuple[int, ...]
    columns: int
    bands: int
    labels: tuple[tuple[int, int, str], ...]


def _pack(widths: Sequence[int], groups: Sequence[str], most: int) -> HeatmapLayout:
    """Nodes from left to right in bands of `most` columns; a group that fits into one band is not broken."""
    sizes: list[tuple[int, int, str]] = []
    for place, (width, group) in enumerate(zip(widths, groups, strict=True)):
        if sizes and sizes[-1][2] == group:
            sizes[-1] = (sizes[-1][0], sizes[-1][1] + width, group)
        else:
            sizes.append((place, width, group))
    starts = {place: (size, group) for place, size, group in sizes}
    column, band, labels = [], [], []
    at = row = 0
    for place, width in enumerate(widths):
        if place in starts:
            at += 1 if at else 0
            size, group = starts[place]
            if at and at + min(size, most) > most:
                at, row = 0, row + 1
            labels.append((at, row, group))
        if at and at + width > most:
            at, row = 0, row + 1
            labels.append((0, row, groups[place]))
        column.append(at)
        band.append(row)
        at += width
    used = max((start + width for start, width in zip(column, widths, strict=True)), default=1)
    return HeatmapLayout(tuple(column), tuple(band), used, row + 1, tuple(labels))


@lru_cache(maxsize=8)
def arrange(widths: tuple[int, ...], groups: tuple[str, ...], rows: int) -> HeatmapLayout:
    """The packing of nodes `widths` columns wide, in `groups`, that makes cells of `rows` in a column largest."""
    total = sum(widths) + len(set(groups))
    best: tuple[float, float, HeatmapLayout] | None = None
    for bands in range(1, 41):
        layout = _pack(widths, groups, max([*widths, -(-total // bands)]))
        wide, high = SHAPE / layout.columns, (1.0 / layout.bands - BETWEEN) / rows
        found = (min(wide, high), wide * high, layout)
        if best is None or found[:2] > best[:2]:
            best = found
        if layout.bands > len(widths):
            break
    assert best is not None
    return best[2]


@dataclass(frozen=True, slots=True)
class Chosen:
    """The GPUs that are drawn: places in the columns of the map, and of each the node's place and its own there.

    A node is a host, or the part of one that is in a group; `hosts`, `groups` and `sizes` are by node.
    """

    gpus: list[int]
    hosts: list[int]
    groups: list[str]
    node: list[int]
    slot: list[int]
    sizes: list[int]


RACK = "rack"
LABEL = "label:"
"""What the key of a label follows in the name of a grouping."""


def groupings(fleet: FleetMap) -> list[str]:
    """What the map can be grouped by; the rack first, also where none is known."""
    jobs = ["job"] if fleet.jobs else []
    return [RACK, *jobs, "model", "pool", *(f"{LABEL}{key}" for key in fleet.labels)]


def _groups(fleet: FleetMap, by: str) -> list[str]:
    """The group of each GPU; empty where it has none."""
    if by == "job":
        return ["" if place is None else fleet.jobs[place] for place in fleet.job]
    if by == "model":
        return [fleet.models[place] for place in fleet.model]
    label = fleet.labels.get(by.removeprefix(LABEL)) if by.startswith(LABEL) else None
    of_host = [label.values[place] for place in label.of] if label is not None else fleet.racks
    if by == "pool":
        of_host = fleet.pools
    return [of_host[host] for host in fleet.host]


def _in_order(names: Sequence[str]) -> list[int]:
    """Places of `names`, those of one name together: numbers in names by their value, what has no name last."""
    rank = {name: place for place, name in enumerate(sorted(set(names), key=_by_number))}
    return sorted(range(len(names)), key=lambda place: rank[names[place]])


def _by_number(name: str) -> tuple[bool, list[Any]]:
    # Every second part is a number: not read as one, for it may be longer than Python reads.
    parts = re.split(r"([0-9]+)", name)
    return not name, [(len(bare := part.lstrip("0")), bare) if n % 2 else part for n, part in enumerate(parts)]


def choose(fleet: FleetMap, pools: Sequence[str] = (), find: str = "", by: str = RACK) -> Chosen:
    """GPUs of `pools` (none: all) whose host, rack or UUID has `find` in it, grouped `by` one of `groupings`."""
    wanted = find.strip().lower()
    allowed = [not pools or pool in pools for pool in fleet.pools]
    named = [wanted in f"{host} {rack}".lower() for host, rack in zip(fleet.hosts, fleet.racks, strict=True)]
    chosen = Chosen([], [], [], [], [], [])
    places: dict[tuple[str, int], int] = {}
    groups = _groups(fleet, by)
    # The map itself is by rack.
    for gpu in range(len(groups)) if by == RACK else _in_order(groups):
        host = fleet.host[gpu]
        if not allowed[host] or not (named[host] or wanted in fleet.uuid[gpu].lower()):
            continue
        node = places.setdefault((groups[gpu], host), len(places))
        if node == len(chosen.hosts):
            chosen.hosts.append(host)
            chosen.groups.append(groups[gpu])
            chosen.sizes.append(0)
        chosen.gpus.append(gpu)
        chosen.node.append(node)
        chosen.slot.append(chosen.sizes[node])
        chosen.sizes[node] += 1
    return chosen


def _percent(values: Sequence[float | None], chosen: Chosen) -> list[int]:
    return [-1 if values[gpu] is None else round(100 * (values[gpu] or 0.0)) for gpu in chosen.gpus]


def drawing(fleet: FleetMap, chosen: Chosen, choice: str, text: Text, palette: Palette, label: str) -> dict[str, Any]:
    """What `fleet_map.js` needs: places, shades, words and colours. It goes to browsers, so it is short."""
    measure = MEASURES[choice]
    rows = min(ROWS, max(chosen.sizes, default=1))
    groups = tuple(chosen.groups)
    # Where some have a group, the others stand apart.
    unnamed = text("fleet.by.none") if any(groups) else ""
    layout = arrange(tuple(-(-size // rows) for size in chosen.sizes), groups, rows)
    states = [fleet.state[gpu] for gpu in chosen.gpus]
    names = [fleet.hosts[host] for host in chosen.hosts]
    shared = _shared(names)
    if measure is None:
        shades, colours = states, [palette.states[state] for state in STATE_RANKS]
    else:
        values = getattr(fleet, measure.column)
        shades, colours = [measure.shade(values[gpu]) for gpu in chosen.gpus], measure.shades(palette)
    return (
        _values(fleet, chosen)
        | _look(text, palette)
        | {
            "hosts": names,
            "short": [name[shared:] for name in names],
            "groups": groups,
            "column": layout.column,
            "band": layout.band,
            "columns": layout.columns,
            "bands": layout.bands,
            "rows": rows,
            "labels": [(column, band, name or unnamed) for column, band, name in layout.labels],
            "node": chosen.node,
            "slot": chosen.slot,
            "index": [fleet.index[gpu] for gpu in chosen.gpus],
            "state": states,
            "shade": shades,
            "numbers": _numbers(fleet, chosen, measure),
            "colours": colours,
            "inks": [ink(colour) for colour in colours],
            "label": label,
        }
    )


def _values(fleet: FleetMap, chosen: Chosen) -> dict[str, Any]:
    """What is told of a cell; -1 where there is no value."""
    return {
        "temperature": [-1 if (t := fleet.temperature[gpu]) is None else round(t) for gpu in chosen.gpus],
        "utilization": _percent(fleet.utilization, chosen),
        "memory": _percent(fleet.memory, chosen),
        "risk": _percent(fleet.risk, chosen),
    }


def _look(text: Text, palette: Palette) -> dict[str, Any]:
    return {
        # Symbols on the background, beside cells that are too small for them.
        "marks": [palette.words[state] for state in STATE_RANKS],
        "symbols": [SYMBOLS[state] for state in STATE_RANKS],
        "names": [text.name("state", state.value) for state in STATE_RANKS],
        "words": {name: text(f"colour.{name}") for name in MEASURES},
        "text": palette.text,
        "muted": palette.muted,
        "focus": palette.line,
        "ground": palette.background,
    }


def _shared(names: Sequence[str]) -> int:
    """Length of what all of `names` begin with, up to their last hyphen, point or underscore in it."""
    first, last = min(names), max(names)
    same = next((n for n, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), 0)
    return max(first[:same].rfind(sign) for sign in "-._") + 1


def _numbers(fleet: FleetMap, chosen: Chosen, measure: Measure | None) -> list[str]:
    """What the cells say besides their colour; nothing where they are many."""
    if measure is None or len(chosen.gpus) > NUMBERED:
        return []
    values = getattr(fleet, measure.column)
    return ["" if values[gpu] is None else f"{measure.factor * values[gpu]:.0f}" for gpu in chosen.gpus]

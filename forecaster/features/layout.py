"""Which column of a table of readings feeds which channel; worked out once per set of columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tocsin.domain.metrics import spec_of
from tocsin.forecaster.features.arrays import Rows
from tocsin.forecaster.features.channels import Channel, Kind
from tocsin.forecaster.features.plan import Plan

LIVELY = (
    "gpu_power_watts",
    "gpu_energy_joules_total",
    "gpu_temperature_celsius",
    "gpu_sm_clock_hertz",
    "gpu_utilization_ratio",
)
"""What moves on a live GPU; power and energy come first."""
FAMILIES = ("utilization", "memory", "thermal", "power", "clocks", "ecc", "pcie", "nvlink", "process")
"""Families of the metric table whose presence is watched."""
LOAD = "gpu_utilization_ratio"


@dataclass(frozen=True, slots=True)
class Feed:
    """A channel with the rows of the value table (metric, reading) that it reads; `place` is its row among the
    channels."""

    place: int
    channel: Channel
    any_of: tuple[Rows, ...]
    over: Rows


@dataclass(frozen=True, slots=True)
class Layout:
    """`columns` of a table are used; they fill the rows `keys` of what is remembered of all keys of the plan.

    `counters`, `lively` and `families` are places among `columns`, of lively ones with their number in `LIVELY`.
    """

    columns: Rows
    keys: Rows
    counters: Rows
    lively: tuple[tuple[int, int], ...]
    families: tuple[tuple[int, Rows], ...]
    feeds: tuple[Feed, ...]
    load: int


def _rows(numbers: list[int]) -> Rows:
    return np.array(numbers, dtype=np.intp)


def layout(plan: Plan, keys: Mapping[str, int], columns: Mapping[str, int]) -> Layout:
    """The layout for a table with `columns`, a name to its place; `keys` numbers what is remembered."""
    used = [name for name in keys if name in columns]
    place = {name: number for number, name in enumerate(used)}
    specs = {name: spec_of(name) for name in used}
    kinds = {name: channel.kind for channel in plan.channels for way in channel.any_of for name in way}
    families = []
    for number, family in enumerate(FAMILIES):
        members = [place[name] for name, spec in specs.items() if spec and spec.family == family and not spec.static]
        if members:
            families.append((number, _rows(members)))
    return Layout(
        _rows([columns[name] for name in used]),
        _rows([keys[name] for name in used]),
        _rows([place[name] for name in used if kinds.get(name) is Kind.COUNTER]),
        tuple((number, place[name]) for number, name in enumerate(LIVELY) if name in place),
        tuple(families),
        tuple(_feeds(plan, keys, place)),
        place.get(LOAD, -1),
    )


def _feeds(plan: Plan, keys: Mapping[str, int], place: Mapping[str, int]) -> list[Feed]:
    found = []
    names = plan.names
    for channel in plan.channels:
        ways = tuple(_rows([place[key] for key in way if key in place]) for way in channel.any_of)
        ways = tuple(way for way in ways if way.size)
        # What a value is divided by may come seldom, so it is taken from what is remembered.
        over = _rows([keys[key] for key in channel.over])
        if ways:
            found.append(Feed(names.index(channel.name), channel, ways, over))
    return found

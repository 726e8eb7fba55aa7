"""Panels and boards in words of our own, before they become JSON of Grafana."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from tocsin.domain.metrics import METRICS
from tocsin.telemetry.metrics import OWN_METRICS

Backend = Literal["prometheus", "influxdb"]
Kind = Literal["timeseries", "stat", "table", "timeline", "bars"]

UNITS = {
    "ratio": "percentunit",
    "celsius": "celsius",
    "watts": "watt",
    "joules": "joule",
    "hertz": "hertz",
    "bytes": "bytes",
    "bytes/s": "Bps",
    "seconds": "s",
}
"""Unit of the metric table to Grafana's name for it; of the others Grafana writes the bare number."""


@dataclass(frozen=True, slots=True)
class Query:
    """One query. `legend` names a series; `instant` asks for now alone; `name` is the column of a table."""

    text: str
    legend: str = ""
    instant: bool = False
    name: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """A threshold: from `value` on, in `color`; None is the beginning."""

    value: float | None
    color: str


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel. A backend without queries does not have it.

    `units` are by column of a table. `states` maps numbers to words and colours. `link` is the board that a click on a
    row leads to, with the row's host and GPU.
    """

    title: str
    text: str
    kind: Kind
    prometheus: tuple[Query, ...] = ()
    influxdb: tuple[Query, ...] = ()
    unit: str = "short"
    width: int = 12
    height: int = 8
    steps: tuple[Step, ...] = ()
    units: dict[str, str] = field(default_factory=dict)
    states: dict[int, tuple[str, str]] = field(default_factory=dict)
    link: str = ""
    least: float | None = None
    most: float | None = None
    stack: bool = False
    hidden: tuple[str, ...] = ()

    def queries(self, backend: Backend) -> tuple[Query, ...]:
        """Those for one kind of data source."""
        return self.prometheus if backend == "prometheus" else self.influxdb


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under one headline."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Board:
    """One dashboard. `scope` says what can be chosen: the pools, one host, or one GPU."""

    name: str
    title: str
    text: str
    scope: Literal["fleet", "host", "gpu"]
    rows: tuple[Row, ...]
    span: str = "now-6h"


def unit_of(name: str, *, rate: bool = False) -> str:
    """Grafana's unit of a metric of the table, or of its change per second."""
    unit = METRICS[name].unit
    if rate:
        return {"bytes": "Bps", "joules": "watt", "seconds": "percentunit"}.get(unit, "short")
    return UNITS.get(unit, "short")


def help_of(name: str) -> str:
    """What a metric means, from the metric table or from that of our own metrics."""
    return METRICS[name].help if name in METRICS else OWN_METRICS[name].help

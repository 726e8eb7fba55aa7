"""Kind ``peer``: a value that stands out from GPUs of the same model at equal load."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from tocsin.domain.finding import evidence_of
from tocsin.domain.phrase import say
from tocsin.rules.conditions.base import MetricRef, Probe, Report, World, metric_ref
from tocsin.rules.levels import Comparer, LevelCondition, Number
from tocsin.rules.peer_screen import PeerScreen
from tocsin.rules.peer_values import group_medians
from tocsin.rules.sheet import GPU_SHEET, MetricColumn
from tocsin.rules.table import Bools, Floats, Ints
from tocsin.rules.units import show_value


class Peer(LevelCondition):
    """Holds where the metric less the median of the peers is beyond the level.

    Peers are the GPUs of the same model, within the host or rack if so asked, whose load falls into the same step of a
    logarithmic scale. With fewer than `peers` of them nothing is known. A host with a value that no GPU of its model
    can show is nobody's peer, nor is a GPU that its host does not have.
    """

    words = frozenset({"peers", "median"})
    kind: Literal["peer"]
    metric: str
    """The metric that is compared."""
    load: str = "gpu_power_watts"
    """The metric that says how much work a GPU does."""
    within: Number = Field(default=0.15, gt=0, le=1)
    """Width of a load step, relative: 0.15 puts 200 W and 225 W together."""
    group: Literal["fleet", "rack", "host"] = "fleet"
    """Where peers are looked for."""
    peers: int = Field(default=2, ge=2)
    """Least number of peers beside the GPU itself."""

    def metrics(self) -> tuple[MetricRef, ...]:
        return (metric_ref(self.metric, "metric"), metric_ref(self.load, "load"), *self.references())

    def check(self) -> None:
        spec = self.metrics()[0].spec
        span = spec.maximum - spec.minimum
        self.check_levels(spec.unit, -span, span)

    def bind(self, world: World) -> Probe:
        return PeerProbe(self, world)

    def meaning(self) -> str:
        unit = self.metrics()[0].spec.unit
        return f"{self.metric} less the median of peers at equal {self.load} {self.level_meaning(unit)}"


class PeerProbe(Probe):
    """Compares every GPU with the median of its group in each step that brings readings."""

    heeds_events = False

    def __init__(self, condition: Peer, world: World) -> None:
        self._condition = condition
        self._frame = world.frame
        value, load = condition.metrics()[:2]
        self._column: MetricColumn = world.column(value)
        self._load: MetricColumn = world.column(load)
        self._comparer = Comparer(condition, world)
        self._screen = PeerScreen(world.frame.roster, world.frame.sheets[GPU_SHEET])
        self._median = world.frame.gpus.vector(np.float64, np.nan, timeline=True)
        self._peers = world.frame.gpus.vector(np.int64, 0, timeline=True)

    def update(self) -> None:
        if not self._frame.gpus.updated.v.any():
            return
        values, load = self._column.v, self._load.v
        model = self._frame.roster.model.v
        rows = np.flatnonzero(~np.isnan(values) & (load > 0) & (model >= 0))
        self._median.v[:] = np.nan
        if rows.size <= self._condition.peers:
            return
        step = np.floor(np.log(load[rows]) / np.log1p(self._condition.within)).astype(np.int64)
        groups = _groups(model[rows], self._domain(rows), step)
        counted = self._counted()[rows]
        median, size = group_medians(values[rows], groups, counted)
        others = size - counted
        self._median.v[rows] = np.where(others >= self._condition.peers, median, np.nan)
        self._peers.v[rows] = others

    def _counted(self) -> Bools:
        """Who counts among the peers of others; within a host nobody else speaks."""
        if self._condition.group == "host":
            return np.ones(len(self._frame.roster.gpus), dtype=np.bool_)
        return self._screen.counted(self._frame.surplus)

    def _domain(self, rows: Ints) -> Ints:
        if self._condition.group == "fleet":
            return np.zeros(rows.size, dtype=np.int64)
        roster = self._frame.roster
        return (roster.host if self._condition.group == "host" else roster.rack).v[rows]

    @property
    def _excess(self) -> Floats:
        return self._column.v - self._median.v

    def true(self) -> Bools:
        return self._comparer.true(self._excess, self.open_)

    def known(self) -> Bools:
        return self._comparer.known(self._excess)

    def report(self, row: int) -> Report:
        spec = self._column.spec
        median, peers = float(self._median.v[row]), int(self._peers.v[row])
        shown = show_value(median, spec.unit)
        at = int(self._frame.gpus.at.v[row])
        said = say("median of {n} peers at equal load {median}", n=peers, median=shown)
        evidence = (evidence_of("peers", said, at, median),)
        value = float(self._column.v[row])
        threshold, clear = median + self._comparer.level(row), self._comparer.eased(value - median, row)
        words = {"peers": str(peers), "median": shown}
        return Report(spec.name, value, threshold, evidence, words, clear=None if clear is None else median + clear)


def _groups(*codes: Ints) -> Ints:
    """A number for each row, the same where all `codes` are; from 0, below the number of rows."""
    group, count = np.zeros(codes[0].size, dtype=np.int64), 1
    for code in codes:
        # One number for each code seen, so that their product, of two numbers below the number of rows, fits.
        seen, number = np.unique(code, return_inverse=True)
        group, count = group * seen.size + number, count * seen.size
        if count > code.size:
            seen, group = np.unique(group, return_inverse=True)
            count = seen.size
    return group

"""The rule engine: level-triggered, and a pure function of its state and of what it is given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tocsin.domain.clock import DAY
from tocsin.domain.event import Event
from tocsin.domain.finding import Finding, SubjectKind
from tocsin.domain.fragmentation_fleet import FleetFragmentation, TaskClass
from tocsin.domain.pool import PoolState
from tocsin.domain.prediction import Prediction
from tocsin.domain.reading import Reading
from tocsin.rules.conditions.base import World
from tocsin.rules.frame import Ageing, Columns, EventLog, Forecasts, Frame
from tocsin.rules.render import Renderer
from tocsin.rules.schema import Rule, RuleSet
from tocsin.rules.sheet import FLEET_SHEET, GPU_SHEET, POOL_SHEET
from tocsin.rules.state import RuleState


@dataclass(frozen=True, slots=True)
class Inputs:
    """What one evaluation sees.

    `readings` are the newest of each GPU: one that was given before changes nothing, and a GPU that is left out keeps
    its last until that is stale. `events` and `predictions` are those since the last step; one that was given before
    changes nothing. `pools` are all pools whose state is known now. `mix` are the kinds of tasks that may come; empty
    means one job of the reference size.
    """

    now_ms: int
    readings: Sequence[Reading] = ()
    events: Sequence[Event] = ()
    predictions: Sequence[Prediction] = ()
    pools: Sequence[PoolState] = ()
    mix: Sequence[TaskClass] = ()


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What holds now, and what of it opened or has cleared in this step; each in the order of rules, then of subjects.

    `dropped` counts what could not be used in this step, by reason: ``reading_from_the_future``,
    ``event_from_the_future``, ``event_too_old``.
    """

    active: list[Finding] = field(default_factory=list)
    opened: list[Finding] = field(default_factory=list)
    cleared: list[Finding] = field(default_factory=list)
    dropped: Mapping[str, int] = field(default_factory=dict)


class RuleEngine:
    """Evaluates a rule set. Nothing in it reads a clock, and the order of what it is given does not matter."""

    def __init__(self, ruleset: RuleSet) -> None:
        self._ruleset = ruleset
        options = ruleset.engine
        ageing = Ageing(options.stale_intervals, options.stale_min, options.forget, options.forget_part)
        self._frame = Frame(_columns(ruleset), ageing)
        window = max([DAY, *(condition.window_ms() for rule in ruleset for condition in rule.conditions)])
        pools = self._frame.sheets[POOL_SHEET].table
        self._log = EventLog(self._frame.roster, window, self._frame.dropped)
        self._forecasts = Forecasts(self._frame.roster, pools)
        self._states = [RuleState(rule, self._world(rule)) for rule in ruleset]
        self._renderers = [
            Renderer(state, self._frame, self._frame.sheets[state.rule.sheet], ruleset.xids) for state in self._states
        ]
        self._findings: list[dict[int, Finding]] = [{} for _ in self._states]

    @property
    def fleet(self) -> FleetFragmentation | None:
        """Free GPUs and what of them is no use to the mix, as of the last step; None where no rule looks."""
        return self._frame.aggregates.fleet

    def _world(self, rule: Rule) -> World:
        sheet = self._frame.sheets[rule.sheet]
        return World(self._frame, sheet, self._log, self._forecasts, self._ruleset.xids, self._ruleset.sxids)

    def step(self, inputs: Inputs) -> Evaluation:
        """Judge all rules by the state after `inputs`."""
        self._frame.dropped.clear()
        self._take_in(inputs)
        result = Evaluation(dropped=self._frame.dropped.copy())
        for state, renderer, findings in zip(self._states, self._renderers, self._findings, strict=True):
            state.step()
            if findings or state.opened:
                self._collect(state, renderer, findings, result)
        self._let_go()
        return result

    def warm(self, steps: Iterable[Inputs]) -> None:
        """Replay past `steps`, oldest first, so that timers and open findings are what they were before a restart."""
        for inputs in steps:
            self.step(inputs)

    def _take_in(self, inputs: Inputs) -> None:
        self._log.accept(inputs.now_ms, inputs.events)
        self._forecasts.accept(inputs.predictions)
        self._frame.roster.settle()
        self._frame.sheets[POOL_SHEET].table.settle()
        touched = self._frame.touched.v
        for row, event in self._log.fresh:
            touched[row] = max(int(touched[row]), event.at_ms)
        for fresh in self._forecasts.fresh.values():
            for row, prediction in fresh:
                if prediction.subject.kind in (SubjectKind.GPU, SubjectKind.HOST):
                    touched[row] = max(int(touched[row]), prediction.at_ms)
        self._frame.load(inputs.now_ms, inputs.readings, inputs.pools, inputs.mix)

    @staticmethod
    def _collect(state: RuleState, renderer: Renderer, findings: dict[int, Finding], result: Evaluation) -> None:
        for row in sorted(state.closed, key=lambda row: findings[row].subject.key):
            result.cleared.append(findings.pop(row))
        opened = set(state.opened)
        for row in state.active:
            if row in opened or state.holds(row):
                findings[row] = renderer.finding(row)
        active = sorted(findings.items(), key=lambda item: item[1].subject.key)
        result.active.extend(finding for _, finding in active)
        result.opened.extend(finding for row, finding in active if row in opened)

    def _let_go(self) -> None:
        subjects = self._frame.roster.subjects
        leaving = np.flatnonzero(self._frame.gpus.leaving.v) if self._frame.gpus.any_leaving else ()
        keys = [subjects[int(row)].key for row in leaving]
        released = self._frame.close()
        if released:
            self._forecasts.forget(keys)
            for state in self._states:
                state.forget(released)


def _columns(ruleset: RuleSet) -> Columns:
    columns = Columns()
    lists = {GPU_SHEET: columns.gpu, POOL_SHEET: columns.pool, FLEET_SHEET: columns.fleet}
    for rule in ruleset:
        for condition in rule.conditions:
            for ref in condition.metrics():
                names = lists.get(ref.sheet)
                if names is None:
                    names = columns.variants.setdefault(ref.sheet, [])
                if ref.key not in names:
                    names.append(ref.key)
        if rule.sheet not in lists:
            columns.variants.setdefault(rule.sheet, [])
    return columns

"""The rule engine: level-triggered, and a pure function of its state and of what it is given."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tocsin.domain.clock import DAY, MINUTE, to_minute
from tocsin.domain.event import Event
from tocsin.domain.finding import ActionKind, Evidence, Finding, Subject, SubjectKind, evidence_of
from tocsin.domain.fragmentation import FleetFragmentation, TaskClass
from tocsin.domain.metrics import spec_of, split_variant
from tocsin.domain.phrase import chinese_phrases, say, say_list
from tocsin.domain.pool import PoolState
from tocsin.domain.prediction import Prediction
from tocsin.domain.reading import Gpu, Owner, Reading
from tocsin.domain.versions import VersionBefore
from tocsin.rules.conditions.base import Broadcast, Condition, Probe, Report, World
from tocsin.rules.frame import Ageing, EventLog, Forecasts, Frame, MetricKeys
from tocsin.rules.schema import Rule, RuleSet
from tocsin.rules.sheet import FLEET_SHEET, GPU_SHEET, POOL_SHEET, VERSION_SHEET, Sheet, VariantSheet
from tocsin.rules.table import Bools, Ints
from tocsin.rules.units import named_value, show_duration, show_value
from tocsin.rules.version_sheet import VersionSheet
from tocsin.rules.xid import XidCatalogue
from tocsin.topology.labels import RAIL_LABEL

# The state of one rule over all its subjects: pending, open, clearing.

_NO_GAP = np.iinfo(np.int64).max
REST_MS = 15 * MINUTE
"""What goes on for so long after it ceased to hold says so (own choice)."""


class RuleState:
    """`open` marks the rows with an open finding, `started` since when it has held, `held` when it held last.

    After `step`, `opened` and `closed` are the rows that changed, `rested` those that have just ceased to hold and
    close no sooner than `REST_MS` from then. Time is that of a row's newest reading, or the
    present instant where a condition is judged by that.
    """

    def __init__(self, rule: Rule, world: World) -> None:
        self.rule = rule
        self._world = world
        self._table = world.sheet.table
        self._all = [_probe(condition, world, rule.sheet) for condition in rule.all_]
        self._any = [_probe(condition, world, rule.sheet) for condition in rule.any_]
        self._probes = [*self._all, *self._any]
        self._clocked = any(probe.clocked for probe in self._probes)
        self.heeds_events = any(probe.heeds_events for probe in self._probes)
        vector = self._table.vector
        self.open = vector(np.bool_, False)
        self.started = vector(np.int64, 0)
        self.held = vector(np.int64, 0)
        self._since = vector(np.int64, 0, timeline=True)
        self._samples = vector(np.int64, 0, timeline=True)
        self._clear_since = vector(np.int64, 0, timeline=True)
        self._grounds = [vector(np.bool_, False) for _ in self._any]
        self._everywhere = rule.table.scope.everything
        self._scope: Bools | None = None
        self._scope_version = -1
        self._busy = False
        self._last_now = 0
        self.opened: list[int] = []
        self.closed: list[int] = []
        self.rested: list[int] = []
        self._masks: list[Bools] = []
        self._counted: Bools | None = None

    @property
    def active(self) -> list[int]:
        return [int(row) for row in np.flatnonzero(self.open.v)] if self._busy else []

    def step(self) -> None:
        self.opened, self.closed, self.rested = [], [], []
        self._counted = None
        for probe in self._probes:
            probe.update()
        if not len(self._table):
            return
        open_ = self.open.v if self._busy and self.open.v.any() else None
        for probe in self._probes:
            probe.open_ = open_
        self._masks = [probe.true() for probe in self._probes]
        true = self._in_scope(self._true())
        if self._busy or true.any():
            self._advance(true)

    def update_ahead(self) -> None:
        for probe in self._probes:
            probe.update_ahead()

    def _true(self) -> Bools:
        count = len(self._all)
        every, some = self._masks[:count], self._masks[count:]
        if not some:
            return _every(every)
        either: Bools = np.logical_or.reduce(some)
        return either & _every(every) if every else either

    def _false(self) -> Bools:
        """Rows known not to hold: one of `all` is false, or all those of `any` are on which it last held."""
        count = len(self._all)
        false = [probe.known() & ~mask for probe, mask in zip(self._probes, self._masks, strict=True)]
        result = np.zeros(len(self._table), dtype=np.bool_)
        for mask in false[:count]:
            result |= mask
        return result | self._none_left(false[count:]) if self._any else result

    def _none_left(self, false: list[Bools]) -> Bools:
        left = np.zeros(len(self._table), dtype=np.bool_)
        for ground, mask, gone in zip(self._grounds, self._masks[len(self._all) :], false, strict=True):
            ground.v[mask] = True
            ground.v[gone] = False
            left |= ground.v
        return ~left

    def _in_scope(self, true: Bools) -> Bools:
        scope = self._scope_mask()
        if scope is not None:
            true = true & scope
        return true & ~self._table.leaving.v if self._table.any_leaving else true

    def _advance(self, true: Bools) -> None:
        clock, fresh = self._clock()
        self._start(true, clock)
        counted = true & fresh
        self._samples.v[counted] += 1
        self.held.v[counted] = np.maximum(self.held.v, clock)[counted]
        self._counted = counted
        false = self._false()
        self._since.v[false & ~self.open.v] = 0
        self._open_ready(true, clock)
        self._close_cleared(true, false, clock)
        self._busy = bool(self.open.v.any() or (self._since.v > 0).any())

    def _clock(self) -> tuple[Ints, Bools]:
        """The instant at which each row is judged, and whether that is a new one."""
        if not self._clocked:
            return self._table.at.v, self._table.updated.v
        now = self._world.frame.now_ms
        newer = now > self._last_now
        self._last_now = now
        rows = len(self._table)
        return np.full(rows, now, dtype=np.int64), np.full(rows, newer, dtype=np.bool_)

    def _start(self, true: Bools, clock: Ints) -> None:
        waiting = true & ~self.open.v
        pending = self._since.v > 0
        start = waiting & (~pending | (clock - self.held.v > self._patience()))
        if not start.any():
            return
        since = self._probe_since()
        self._since.v[start] = (clock if since is None else np.minimum(since, clock))[start]
        self._samples.v[start] = 0

    def _patience(self) -> Ints | int:
        """After how long without a new reading in which it holds a pending row starts again."""
        if self._clocked:
            return _NO_GAP
        frame = self._world.frame
        if self.rule.sheet == GPU_SHEET:
            return frame.limit.v
        sheet = self._world.sheet
        if isinstance(sheet, VariantSheet):
            return frame.limit.v[sheet.parent.v]
        return int(frame.limit.v.max(initial=0))

    def _probe_since(self) -> Ints | None:
        """Since when each row is true, where a probe knows: the latest of `all`, else the earliest of `any`."""
        every = [since for probe in self._all if (since := probe.since()) is not None]
        if every:
            latest: Ints = np.maximum.reduce(every)
            return latest
        masks = self._masks[len(self._all) :]
        some = [
            np.where(mask, since, _NO_GAP)
            for probe, mask in zip(self._any, masks, strict=True)
            if not self._all and (since := probe.since()) is not None
        ]
        earliest: Ints | None = np.minimum.reduce(some) if some else None
        return earliest

    def _open_ready(self, true: Bools, clock: Ints) -> None:
        table = self.rule.table
        ready = true & ~self.open.v & (clock - self._since.v >= table.for_) & (self._samples.v >= table.samples)
        if not ready.any():
            return
        rows = np.flatnonzero(ready)
        self.open.v[rows] = True
        self.started.v[rows] = self._since.v[rows]
        self._since.v[rows] = 0
        self._clear_since.v[rows] = 0
        self.opened = [int(row) for row in rows]

    def _close_cleared(self, true: Bools, false: Bools, clock: Ints) -> None:
        if not self.open.v.any():
            return
        over = false & self.open.v
        self._clear_since.v[true] = 0
        began = over & (self._clear_since.v == 0)
        self._clear_since.v[began] = clock[began]
        if self.rule.table.clear_for >= REST_MS:
            self.rested = [int(row) for row in np.flatnonzero(began)]
        close = over & (clock - self._clear_since.v >= self.rule.table.clear_for)
        if self._table.any_leaving or self._scope_mask() is not None:
            close = close | (self.open.v & ~self._in_scope(np.ones(len(self._table), dtype=np.bool_)))
        rows = np.flatnonzero(close)
        self.open.v[rows] = False
        self._clear_since.v[rows] = 0
        self.closed = [int(row) for row in rows]

    def _scope_mask(self) -> Bools | None:
        if self._everywhere:
            return None
        scope, frame = self.rule.table.scope, self._world.frame
        version = frame.roster.version + self._table.version
        if self._scope is None or version != self._scope_version or self._scope.size != len(self._table):
            self._scope_version = version
            if self.rule.sheet == POOL_SHEET:
                covered = [scope.covers_pool(str(key)) for key in self._table.keys]
                self._scope = np.array(covered, dtype=np.bool_)
            elif self.rule.sheet == VERSION_SHEET:
                groups = [key[0] if isinstance(key, tuple) else None for key in self._table.keys]
                covered = [group is not None and scope.covers_group(group.pool, group.model) for group in groups]
                self._scope = np.array(covered, dtype=np.bool_)
            else:
                gpus = np.array([scope.covers(gpu) for gpu in frame.roster.gpus], dtype=np.bool_)
                sheet = self._world.sheet
                self._scope = gpus[sheet.parent.v] if isinstance(sheet, VariantSheet) else gpus
        return self._scope

    def clears(self, row: int) -> tuple[int, int]:
        """Since when an open row holds no more, and when it closes unless it holds again."""
        since = int(self._clear_since.v[row])
        return since, since + self.rule.table.clear_for

    def reports(self, row: int) -> list[Report]:
        """What those conditions say of a row that hold there, in the order of the rule."""
        return [probe.report(row) for probe, mask in zip(self._probes, self._masks, strict=True) if mask[row]]

    def holds(self, row: int) -> bool:
        """Whether this step brought anything new by which `row` holds."""
        return self._counted is not None and bool(self._counted[row])

    def forget(self, rows: Iterable[int]) -> None:
        rows = list(rows)
        for probe in self._probes:
            probe.forget(rows)


def _probe(condition: Condition, world: World, sheet: str) -> Probe:
    probe = condition.bind(world)
    own = condition.sheets()
    if sheet in own or not isinstance(world.sheet, VariantSheet):
        return probe
    return Broadcast(probe, world.sheet)


def _every(masks: list[Bools]) -> Bools:
    if len(masks) == 1:
        return masks[0]
    result: Bools = np.logical_and.reduce(masks)
    return result


# From an open row of a rule to a finding with its evidence and its sentence.

RACK_EVIDENCE = "rack"
"""Name of the evidence that carries the GPU's rack, which failure domains are counted by."""

_OF_SEVERAL = frozenset({POOL_SHEET, FLEET_SHEET, VERSION_SHEET})
"""Sheets whose subjects are more than one GPU."""
_PARTS = {"pid": "process", "problem": "fabric problem"}


class Renderer:
    """Makes the findings of one rule."""

    def __init__(self, state: RuleState, frame: Frame, sheet: Sheet, xids: XidCatalogue) -> None:
        self._state = state
        self._rule: Rule = state.rule
        self._frame = frame
        self._sheet = sheet
        self._xids = xids

    def finding(self, row: int) -> Finding:
        table = self._rule.table
        reports = self._state.reports(row)
        first = _first(reports)
        gpu = self._gpu(row)
        subject = self._subject(row)
        started, last = int(self._state.started.v[row]), int(self._state.held.v[row])
        words = {name: text for report in reversed(reports) for name, text in report.words.items()}
        words |= self._words(row, gpu, first, started, last)
        return Finding(
            rule=table.name,
            subject=subject,
            severity=table.severity,
            category=table.category,
            action=self._action(first),
            started_ms=started,
            last_ms=last,
            sentence=_alert(table.alert, first).format_map(_Unknown(words)),
            sentence_zh=_chinese(table.alert, first, words, subject),
            metric=first.metric,
            value=_number(first.value),
            threshold=_number(first.threshold),
            evidence=self._evidence(reports, gpu, last),
            simulated=self._simulated(row, gpu),
            owners=self._owners(row),
            told=self._rule.told,
            level=self._rule.level,
        )

    def rested(self, finding: Finding, row: int) -> Finding:
        """`finding` of an open row that holds no more: its sentence would say for long what is not so."""
        since, until = map(to_minute, self._state.clears(row))
        said = f"{finding.sentence} No longer since {since}; over at {until} unless it comes back."
        chinese = (
            f"{finding.sentence_zh}自 {since} 起已不再如此；若不再出现，{until} 结束。" if finding.sentence_zh else ""
        )
        return replace(finding, sentence=said, sentence_zh=chinese)

    def _gpu(self, row: int) -> Gpu | None:
        if self._rule.sheet in _OF_SEVERAL:
            return None
        return self._frame.roster.gpus[self.gpu_row(row)]

    def _owners(self, row: int) -> tuple[Owner, ...]:
        if self._rule.sheet in _OF_SEVERAL:
            return ()
        owners = self._frame.owners.get(self.gpu_row(row), ())
        if isinstance(self._sheet, VariantSheet) and self._sheet.label == "pid":
            return tuple(owner for owner in owners if str(owner.pid) == self._sheet.value(row))
        return owners

    def gpu_row(self, row: int) -> int:
        return int(self._sheet.parent.v[row]) if isinstance(self._sheet, VariantSheet) else row

    def _subject(self, row: int) -> Subject:
        if self._rule.sheet == FLEET_SHEET:
            return Subject(SubjectKind.FLEET, "fleet")
        if isinstance(self._sheet, VersionSheet):
            return self._sheet.subject(row)
        if self._rule.sheet == POOL_SHEET:
            name = str(self._sheet.table.keys[row])
            return Subject(SubjectKind.POOL, name, pool=name)
        whole = self._frame.roster.subjects[self.gpu_row(row)]
        if not isinstance(self._sheet, VariantSheet):
            return whole
        return Subject(whole.kind, whole.name, whole.host, whole.pool, self._sheet.value(row))

    def _action(self, first: Report) -> ActionKind:
        table = self._rule.table
        if first.value is not None and not math.isnan(first.value):
            chosen = table.action_by_value.get(str(round(first.value)))
            if chosen is not None:
                return chosen
        if isinstance(table.action, ActionKind):
            return table.action
        return first.action or self._xids.of(round(first.value or 0)).action

    def _words(self, row: int, gpu: Gpu | None, first: Report, started_ms: int, last_ms: int) -> dict[str, str]:
        subject = self._subject(row)
        spec = spec_of(first.metric) or spec_of(split_variant(first.metric)[0].partition("{")[0])
        unit = spec.unit if spec is not None else ""
        return {
            "where": where(subject, gpu, self._sheet.label if isinstance(self._sheet, VariantSheet) else ""),
            "host": subject.host,
            "gpu": subject.name,
            "model": gpu.model if gpu is not None else "",
            "pool": subject.pool,
            "part": subject.detail,
            **dict(zip(("value", "value_zh"), named_value(first.value, unit), strict=True)),
            "threshold": show_value(first.threshold, unit),
            "clear": show_value(first.clear, unit),
            "duration": show_duration(last_ms - started_ms),
            # A sentence is kept and read later: an instant stays true.
            "since": to_minute(started_ms),
            "rule": self._rule.name,
        }

    def _evidence(self, reports: list[Report], gpu: Gpu | None, at_ms: int) -> tuple[Evidence, ...]:
        found = [
            _measured(report, at_ms)
            for report in reports
            if report.metric and not report.evidence and _number(report.value) is not None
        ]
        found += [item for report in reports for item in report.evidence]
        if gpu is not None and gpu.rack:
            found.append(Evidence(RACK_EVIDENCE, gpu.rack, at_ms))
        return tuple(found)

    def _simulated(self, row: int, gpu: Gpu | None) -> bool:
        if gpu is not None:
            return gpu.simulated
        if isinstance(self._sheet, VersionSheet):
            return row in self._sheet.simulated
        roster = self._frame.roster
        mine = roster.simulated.v
        return bool((mine & (roster.pool.v == row)).any() if self._rule.sheet == POOL_SHEET else mine.any())


class _Unknown(dict[str, str]):
    """Words of conditions that do not hold at present read as unknown."""

    def __missing__(self, key: str) -> str:
        return "unknown"


class _UnknownZh(dict[str, str]):
    """The same in Chinese."""

    def __missing__(self, key: str) -> str:
        return "未知"


_BEYOND = re.compile(r"\b(above|below|at its limit of) \{threshold\}")


def _alert(template: str, report: Report) -> str:
    """The template of the sentence; where the value is back on the safe side of the threshold it says so."""
    if report.clear is None or report.threshold is None:
        return template
    clears = f"clears {'below' if report.clear < report.threshold else 'above'} {{clear}}"
    if _BEYOND.search(template):
        return _BEYOND.sub(rf"was \1 {{threshold}}, {clears}", template, count=1)
    if "level {threshold}" in template:
        return template.replace("level {threshold}", f"level {{threshold}}, {clears}", 1)
    return f"{template} It {clears}."


_BEYOND_ZH = re.compile(r"(高于|低于|已达上限) \{threshold\}")


def _chinese(template: str, report: Report, words: Mapping[str, str], subject: Subject) -> str:
    """The sentence in Chinese; empty for a rule whose `template` has no translation."""
    chinese = chinese_phrases().get(template, "")
    if not chinese:
        return ""
    said = {name.removesuffix("_zh"): word for name, word in words.items() if name.endswith("_zh") and word}
    if subject.kind in _WHERE_ZH:
        said["where"] = f"{_WHERE_ZH[subject.kind]}{f' {subject.name}' if subject.kind is SubjectKind.POOL else ''}"
    return _alert_zh(chinese, report).format_map(_UnknownZh({**words, **said}))


_WHERE_ZH = {SubjectKind.POOL: "资源池", SubjectKind.FLEET: "整个集群"}


def _alert_zh(template: str, report: Report) -> str:
    """`_alert` of a Chinese template."""
    if report.clear is None or report.threshold is None:
        return template
    clears = f"{'低于' if report.clear < report.threshold else '高于'} {{clear}} 时解除"
    if _BEYOND_ZH.search(template):
        return _BEYOND_ZH.sub(rf"曾\1 {{threshold}}，{clears}", template, count=1)
    if "限值 {threshold}" in template:
        return template.replace("限值 {threshold}", f"限值 {{threshold}}，{clears}", 1)
    return f"{template}{clears}。"


def _first(reports: list[Report]) -> Report:
    measured = [report for report in reports if report.value is not None]
    return next((report for report in measured if report.clear is None), next(iter(measured or reports), Report()))


def _number(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else value


def _measured(report: Report, at_ms: int) -> Evidence:
    spec = spec_of(report.metric) or spec_of(report.metric.partition("{")[0])
    unit = spec.unit if spec is not None else ""
    parts = [say("{value}", value=show_value(report.value, unit))]
    if report.threshold is not None and not math.isnan(report.threshold):
        parts.append(say("level {level}", level=show_value(report.threshold, unit)))
    if report.clear is not None:
        parts.append(say("clears at {level}", level=show_value(report.clear, unit)))
    return evidence_of(report.metric, say_list(parts), at_ms, _number(report.value))


def where(subject: Subject, gpu: Gpu | None, label: str = "") -> str:
    """The subject as people name it: ``node-1 GPU 3``, with the part where it is one."""
    if subject.kind is SubjectKind.POOL:
        return f"pool {subject.name}"
    if subject.kind is SubjectKind.FLEET:
        return "the fleet"
    if gpu is None or not gpu.uuid:
        return subject.host
    if gpu.is_mig:
        text = f"{gpu.host} MIG instance {gpu.mig_profile} {gpu.uuid}".replace("  ", " ")
    else:
        text = f"{gpu.host} GPU {gpu.index}" if gpu.index is not None else f"{gpu.host} {gpu.uuid}"
    if not subject.detail:
        return text
    rail = gpu.labels.get(RAIL_LABEL, "") if label == "port" else ""
    return f"{text} {_PARTS.get(label, label)} {subject.detail}{f' ({rail})' if rail else ''}"


@dataclass(frozen=True, slots=True)
class Inputs:
    """What one evaluation sees.

    `readings` are the newest of each GPU: one that was given before changes nothing, and a GPU that is left out keeps
    its last until that is stale. `events` and `predictions` are those since the last step; one that was given before
    changes nothing. `pools` are all pools whose state is known now. `mix` are the kinds of tasks that may come; empty
    means one job of the reference size. `repairs` are the instants of proven repairs, by key of the GPU or host: what
    was before one is past. `versions` are those that hosts had a day ago where they were others; the same object as
    long as it says the same. `surplus` are UUIDs of GPUs that are more than their hosts have: nobody's peers.
    """

    now_ms: int
    readings: Sequence[Reading] = ()
    events: Sequence[Event] = ()
    predictions: Sequence[Prediction] = ()
    pools: Sequence[PoolState] = ()
    mix: Sequence[TaskClass] = ()
    repairs: Mapping[str, int] = field(default_factory=dict)
    versions: Sequence[VersionBefore] = ()
    surplus: Collection[str] = ()


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

    @property
    def figures(self) -> Mapping[str, float]:
        """The fleet's metrics by name, as of the last step."""
        return self._frame.aggregates.figures

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

    def judge_events(self, inputs: Inputs) -> Evaluation:
        """Judge `inputs.events` alone, between two steps: of `inputs.readings` only the GPUs are taken in, and rules
        that look at readings alone stay as they are.

        A finding that goes on is told anew by the next step. The clock must not have gone back since the last one.
        """
        self._frame.dropped.clear()
        self._frame.turn(inputs.now_ms)
        for reading in inputs.readings:
            self._frame.roster.admit(reading.gpu)
        self._log.accept_events(inputs.now_ms, inputs.events)
        self._settle(self._log.heard())
        touched = {row for first, event in self._log.fresh for row in self._log.affected(first, event)}
        result = Evaluation(dropped=self._frame.dropped.copy())
        for state, renderer, findings in zip(self._states, self._renderers, self._findings, strict=True):
            if state.heeds_events:
                state.step()
                if findings or state.opened:
                    self._collect(state, renderer, findings, result, touched)
            elif findings:
                result.active.extend(_by_subject(findings))
        return result

    def load_ahead(self, now_ms: int, readings: Sequence[Reading]) -> None:
        """Take in some of the readings of the next step, so that it takes less time; nothing is judged by them until
        then, but for rules that heed events."""
        self._frame.load_ahead(now_ms, readings)

    def unseen(self, predictions: Sequence[Prediction]) -> list[Prediction]:
        """Those of `predictions` that the engine was not given before."""
        return self._forecasts.unseen(predictions)

    def foretell_ahead(self, predictions: Sequence[Prediction]) -> None:
        """As `load_ahead`, for some of the predictions of the next step."""
        self._forecasts.accept_ahead(predictions)
        self._settle(self._forecasts.heard())
        for state in self._states:
            state.update_ahead()

    def warm(self, steps: Iterable[Inputs]) -> None:
        """Replay past `steps`, oldest first, so that timers and open findings are what they were before a restart."""
        for inputs in steps:
            self.step(inputs)

    def _take_in(self, inputs: Inputs) -> None:
        self._log.accept(inputs.now_ms, inputs.events, inputs.repairs)
        self._forecasts.accept(inputs.predictions)
        self._settle([*self._log.heard(), *self._forecasts.heard()])
        self._frame.surplus = inputs.surplus
        self._frame.load(inputs.now_ms, inputs.readings, inputs.pools, inputs.mix, inputs.versions)

    def _settle(self, heard: Iterable[tuple[int, int]]) -> None:
        """Make room for what events and predictions name, and note of which rows something was `heard`, and of when."""
        self._frame.roster.settle()
        self._frame.sheets[POOL_SHEET].table.settle()
        touched = self._frame.touched.v
        for row, at_ms in heard:
            touched[row] = max(int(touched[row]), at_ms)

    @staticmethod
    def _collect(
        state: RuleState,
        renderer: Renderer,
        findings: dict[int, Finding],
        result: Evaluation,
        touched: Collection[int] | None = None,
    ) -> None:
        """Take into `result` what a rule holds; with `touched` only what is new of these rows of GPUs is told anew."""
        for row in sorted(state.closed, key=lambda row: findings[row].subject.key):
            result.cleared.append(findings.pop(row))
        opened = set(state.opened)
        for row in findings.keys() & state.rested:
            findings[row] = renderer.rested(findings[row], row)
        for row in state.active:
            if row in opened or (state.holds(row) and (touched is None or renderer.gpu_row(row) in touched)):
                findings[row] = renderer.finding(row)
        result.active.extend(_by_subject(findings))
        if opened:
            result.opened.extend(_by_subject({row: findings[row] for row in opened}))

    def _let_go(self) -> None:
        subjects = self._frame.roster.subjects
        leaving = np.flatnonzero(self._frame.gpus.leaving.v) if self._frame.gpus.any_leaving else ()
        keys = {subjects[int(row)].key for row in leaving}
        released = self._frame.close()
        if released:
            self._forecasts.forget(keys)
            for state in self._states:
                state.forget(released)


def _by_subject(findings: Mapping[int, Finding]) -> list[Finding]:
    return sorted(findings.values(), key=lambda one: one.subject.key)


def _columns(ruleset: RuleSet) -> MetricKeys:
    columns = MetricKeys()
    lists = {GPU_SHEET: columns.gpu, POOL_SHEET: columns.pool, FLEET_SHEET: columns.fleet, VERSION_SHEET: []}
    for rule in ruleset:
        columns.versions |= rule.sheet == VERSION_SHEET
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

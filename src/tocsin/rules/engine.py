"""The rule engine: level-triggered, and a pure function of its state and of what it is given."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tocsin.domain.clock import DAY, to_minute
from tocsin.domain.event import Event
from tocsin.domain.finding import ActionKind, Evidence, Finding, Subject, SubjectKind, evidence_of
from tocsin.domain.fragmentation import FleetFragmentation, TaskClass
from tocsin.domain.metrics import spec_of, split_variant
from tocsin.domain.phrase import chinese_phrases, say, say_list
from tocsin.domain.pool import PoolState
from tocsin.domain.prediction import Prediction
from tocsin.domain.reading import Gpu, Owner, Reading
from tocsin.domain.versions import VersionBefore
from tocsin.rules.conditions.base import Report, World
from tocsin.rules.frame import Ageing, EventLog, Forecasts, Frame, MetricKeys
from tocsin.rules.past import Past
from tocsin.rules.rule_state import RuleState
from tocsin.rules.schema import Rule, RuleSet
from tocsin.rules.sheet import FLEET_SHEET, GPU_SHEET, POOL_SHEET, VERSION_SHEET, Sheet, VariantSheet
from tocsin.rules.units import named_value, show_duration, show_value
from tocsin.rules.version_sheet import VersionSheet
from tocsin.rules.xid import XidCatalogue
from tocsin.topology.labels import RAIL_LABEL

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
        self.ruleset = ruleset
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
        return World(self._frame, sheet, self._log, self._forecasts, self.ruleset.xids, self.ruleset.sxids)

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

    def recall(self, past: Past) -> None:
        """Take in more of the past than `warm` goes through, at any time: rules whose conditions have `recall_ms` judge
        by it with the next step."""
        rows = self._frame.roster.table.rows
        known = [place for place, uuid in enumerate(past.gpus) if uuid in rows]
        there = past.of(known, np.array([rows[past.gpus[place]] for place in known], dtype=np.int64))
        for state in self._states:
            state.recall(there)

    def leave(self, gpus: Iterable[str]) -> None:
        """These GPUs have left the fleet: what holds of them ends with the next step."""
        self._frame.leave(gpus)

    def adopt(self, findings: Iterable[Finding]) -> None:
        """Take up `findings` about whole GPUs that were open before a restart, after `warm`. They go on as they were
        until their rules know more of the past; those of other rules, or of GPUs that are not known, are left out."""
        rows = self._frame.roster.table.rows
        places = {state.rule.name: place for place, state in enumerate(self._states) if state.rule.sheet == GPU_SHEET}
        for one in findings:
            place, row = places.get(one.rule), rows.get(one.subject.name)
            if place is not None and row is not None and self._states[place].adopt(row, one.started_ms, one.last_ms):
                self._findings[place][row] = one

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

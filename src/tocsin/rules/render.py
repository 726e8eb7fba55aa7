"""From an open row of a rule to a finding with its evidence and its sentence."""

from __future__ import annotations

import math

from tocsin.domain.finding import ActionKind, Evidence, Finding, Subject, SubjectKind
from tocsin.domain.metrics import spec_of, split_variant
from tocsin.domain.reading import Gpu, Owner
from tocsin.rules.conditions.base import Report
from tocsin.rules.frame import Frame
from tocsin.rules.schema import Rule
from tocsin.rules.sheet import FLEET_SHEET, POOL_SHEET, Sheet, VariantSheet
from tocsin.rules.state import RuleState
from tocsin.rules.units import show_duration, show_value
from tocsin.rules.xid import XidCatalogue

RACK_EVIDENCE = "rack"
"""Name of the evidence that carries the GPU's rack, which failure domains are counted by."""

_PARTS = {"pid": "process"}


class Renderer:
    """Makes the findings of one rule."""

    def __init__(self, state: RuleState, frame: Frame, sheet: Sheet, xids: XidCatalogue) -> None:
        self._state = state
        self._rule: Rule = state.rule
        self._frame = frame
        self._sheet = sheet
        self._xids = xids

    def finding(self, row: int) -> Finding:
        """The finding of an open row as it is now."""
        table = self._rule.table
        reports = self._state.reports(row)
        first = _first(reports)
        gpu = self._gpu(row)
        subject = self._subject(row)
        started, last = int(self._state.started.v[row]), int(self._state.held.v[row])
        words = {name: text for report in reversed(reports) for name, text in report.words.items()}
        words |= self._words(row, gpu, first, last - started)
        return Finding(
            rule=table.name,
            subject=subject,
            severity=table.severity,
            category=table.category,
            action=self._action(first),
            started_ms=started,
            last_ms=last,
            sentence=table.alert.format_map(_Unknown(words)),
            metric=first.metric,
            value=_number(first.value),
            threshold=_number(first.threshold),
            evidence=self._evidence(reports, gpu, last),
            simulated=self._simulated(row, gpu),
            owners=self._owners(row),
            told=self._rule.told,
        )

    def _gpu(self, row: int) -> Gpu | None:
        if self._rule.sheet in (POOL_SHEET, FLEET_SHEET):
            return None
        return self._frame.roster.gpus[self._gpu_row(row)]

    def _owners(self, row: int) -> tuple[Owner, ...]:
        if self._rule.sheet in (POOL_SHEET, FLEET_SHEET):
            return ()
        owners = self._frame.owners.get(self._gpu_row(row), ())
        if isinstance(self._sheet, VariantSheet) and self._sheet.label == "pid":
            return tuple(owner for owner in owners if str(owner.pid) == self._sheet.value(row))
        return owners

    def _gpu_row(self, row: int) -> int:
        return int(self._sheet.parent.v[row]) if isinstance(self._sheet, VariantSheet) else row

    def _subject(self, row: int) -> Subject:
        if self._rule.sheet == FLEET_SHEET:
            return Subject(SubjectKind.FLEET, "fleet")
        if self._rule.sheet == POOL_SHEET:
            name = str(self._sheet.table.keys[row])
            return Subject(SubjectKind.POOL, name, pool=name)
        whole = self._frame.roster.subjects[self._gpu_row(row)]
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

    def _words(self, row: int, gpu: Gpu | None, first: Report, duration_ms: int) -> dict[str, str]:
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
            "value": show_value(first.value, unit),
            "threshold": show_value(first.threshold, unit),
            "duration": show_duration(duration_ms),
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
        roster = self._frame.roster
        mine = roster.simulated.v
        return bool((mine & (roster.pool.v == row)).any() if self._rule.sheet == POOL_SHEET else mine.any())


class _Unknown(dict[str, str]):
    """Words of conditions that do not hold at present read as unknown."""

    def __missing__(self, key: str) -> str:
        return "unknown"


def _first(reports: list[Report]) -> Report:
    return next((report for report in reports if report.value is not None), reports[0] if reports else Report())


def _number(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else value


def _measured(report: Report, at_ms: int) -> Evidence:
    spec = spec_of(report.metric) or spec_of(report.metric.partition("{")[0])
    unit = spec.unit if spec is not None else ""
    text = show_value(report.value, unit)
    if report.threshold is not None and not math.isnan(report.threshold):
        text += f", level {show_value(report.threshold, unit)}"
    return Evidence(report.metric, text, at_ms, _number(report.value))


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
    return f"{text} {_PARTS.get(label, label)} {subject.detail}" if subject.detail else text

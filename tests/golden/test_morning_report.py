"""The morning report in both languages, sentence by sentence. `TOCSIN_WRITE_GOLDEN=1` writes the files anew."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tocsin.actions.model.controls import Controls, Note
from tocsin.actions.model.ledger_entry import DecisionStatus
from tocsin.client.models import GpuState
from tocsin.client.models_cards import Card, CardState
from tocsin.client.models_report import MorningReport, ReportTopic
from tocsin.domain.alert_level import AlertLevel
from tocsin.domain.clock import DAY, HOUR, MINUTE, to_iso
from tocsin.domain.decision import Decision, DecisionState, Mode, Outcome, OutcomeStatus, Ruling, Verdict
from tocsin.domain.entry import Entry, EntryKind
from tocsin.domain.finding import ActionKind, Category, Finding, Incident, Severity, Subject, SubjectKind
from tocsin.domain.place import Place, PlaceKind
from tocsin.domain.prediction import Prediction, PredictionStatus
from tocsin.queries.card_life import record_payload
from tocsin.queries.card_words import Names
from tocsin.queries.morning_report import ReportInputs, morning_report
from tocsin.queries.statement_score import StatedCase
from tocsin_testing.builders import T0, gpu, reading

GOLDEN = Path(__file__).parent / "report"
FLEET = [reading(gpu(number), T0) for number in range(4)]
SUBJECTS = [Subject(SubjectKind.GPU, one.gpu.uuid, one.gpu.host, one.gpu.pool) for one in FLEET]


def entry(kind: EntryKind, at_ms: int, **payload: Any) -> Entry:
    return Entry(1, 1, at_ms, kind, "tocsin", payload, False, "", "")


def broke(number: int, name: str, at_ms: int, **more: Any) -> Entry:
    """The entry of an incident on GPU `number`."""
    fields = {"level": AlertLevel.PAGE, "severity": Severity.CRITICAL, "category": Category.THERMAL} | more
    root = Finding("hot", SUBJECTS[number], action=ActionKind.THROTTLE, started_ms=at_ms, last_ms=at_ms,
                   sentence="It is hot.", **fields)  # fmt: skip
    incident = Incident(root, (root,), at_ms, at_ms, root.sentence, Place(PlaceKind.GPU, SUBJECTS[number].name))
    return entry(EntryKind.INCIDENT_OPENED, at_ms, id=name, card=record_payload(incident))


def over(name: str, at_ms: int, **more: str) -> Entry:
    return entry(EntryKind.INCIDENT_CLOSED, at_ms, id=name, **more)


def status(number: int, state: DecisionState, ended: OutcomeStatus | None = None, at_ms: int = T0) -> DecisionStatus:
    made = Decision(
        "hot", SUBJECTS[number], ActionKind.DRAIN, Mode.PROPOSE, Severity.CRITICAL, Category.THERMAL, at_ms - HOUR,
        T0 + (number + 1) * HOUR, f"{number}|{state}|{at_ms}", "Drain it.",
    )  # fmt: skip
    outcome = None if ended is None else Outcome(made.id, ended, "kubernetes", at_ms - MINUTE)
    verdicts = (Verdict("approval", Ruling.HOLD),) if state is DecisionState.HELD else ()
    return DecisionStatus(made, verdicts, Ruling.HOLD, state, outcome, "", at_ms)


def forecast(number: int, at_ms: int, eta_ms: int | None, **more: Any) -> Prediction:
    made = Prediction(
        SUBJECTS[number], "time_to_threshold:gpu_memory_used_ratio", at_ms, 12 * HOUR,
        PredictionStatus.CROSSING if eta_ms else PredictionStatus.LIKELY, "trend", "1", "Memory runs full.",
        metric="gpu_memory_used_ratio", threshold=0.9, probability=0.72, eta_ms=eta_ms,
    )  # fmt: skip
    return replace(made, **more)


def card(number: int, state: CardState = CardState.OPEN) -> Card:
    return Card(id=f"{number}", headline="It is hot", state=state, health=GpuState.WARNING, level=AlertLevel.WARNING,
                subject=SUBJECTS[number])  # fmt: skip


def inputs(**more: Any) -> ReportInputs:
    base: dict[str, Any] = {
        "entries": [], "cards": [], "statuses": [], "controls": Controls(), "cases": [], "predictions": [],
        "names": Names(FLEET), "gpus": 4, "mode": Mode.PROPOSE, "simulated": False, "start_ms": T0 - DAY, "end_ms": T0,
    }  # fmt: skip
    return ReportInputs(**(base | more))


EARLY, LATE = T0 - 20 * HOUR, T0 - 2 * HOUR
DUE = forecast(0, T0 - 14 * HOUR, T0 - 10 * HOUR)
BUSY = {
    "entries": [
        broke(0, "a", EARLY),
        broke(0, "b", EARLY + MINUTE, severity=Severity.WARNING),  # on the same GPU: the same card
        broke(1, "c", LATE),
        broke(2, "d", LATE, level=AlertLevel.NOTE),
        broke(3, "e", LATE, category=Category.MEMORY, level=AlertLevel.WARNING),  # housekeeping
        broke(2, "f", LATE),
        over("a", LATE),
        over("b", LATE),
        over("f", LATE, into="c"),
    ],
    "cards": [card(1), card(3), card(0, CardState.RESOLVED)],
    "statuses": [
        status(0, DecisionState.DONE, OutcomeStatus.SUCCEEDED),
        status(1, DecisionState.DONE, OutcomeStatus.SUCCEEDED, at_ms=T0 - 2 * DAY),  # before the span
        status(1, DecisionState.EXECUTING),
        status(2, DecisionState.HELD),
        status(1, DecisionState.HELD),
    ],
    "cases": [StatedCase(DUE, T0 - 9 * HOUR, True)],
    "predictions": [
        forecast(3, T0, T0 + 3 * HOUR),
        forecast(2, T0, T0 + HOUR, muted=True),
        forecast(1, T0, None, metric="", target="hazard", probability=0.004),
        forecast(0, T0, T0 - MINUTE),
    ],
}
WRONG = {
    "entries": [
        entry(EntryKind.REJECTION, LATE, reason="no"),
        entry(EntryKind.REJECTION, LATE, reason="not now", statement="right"),
    ],
    "statuses": [
        status(0, DecisionState.GOAL_NOT_REACHED, OutcomeStatus.GOAL_NOT_REACHED),
        status(1, DecisionState.FAILED, OutcomeStatus.FAILED),
    ],
    "cases": [
        StatedCase(DUE, None, True),
        StatedCase(DUE, T0 - 9 * HOUR, True),
        StatedCase(replace(DUE, at_ms=T0 - HOUR), None, False),  # its time is not over
        StatedCase(replace(DUE, at_ms=T0 - 3 * DAY), None, True),  # it was over before the span
        StatedCase(replace(DUE, status=PredictionStatus.NO_CROSSING), None, True),  # claims nothing
    ],
    "controls": Controls(paused=Note("ann", LATE, "")),
}
CASES = {
    "empty": inputs(gpus=0, names=Names([]), mode=Mode.OBSERVE),
    "quiet": inputs(cases=[StatedCase(DUE, T0 - 9 * HOUR, True)]),
    "busy": inputs(**BUSY),
    "wrong": inputs(**WRONG),
}


def as_text(report: MorningReport) -> str:
    return "".join(f"{one.topic}\n  {one.text}\n  {one.text_zh}\n" for one in report.sentences)


@pytest.mark.parametrize("name", CASES)
def test_the_report_is_this(name: str) -> None:
    report = morning_report(CASES[name])
    assert (report.start, report.end) == (to_iso(T0 - DAY), to_iso(T0))
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("TOCSIN_WRITE_GOLDEN"):
        path.write_text(as_text(report), encoding="utf-8")
    assert as_text(report) == path.read_text(encoding="utf-8")


def test_the_figures_of_a_busy_day() -> None:
    figures = morning_report(CASES["busy"]).figures
    assert (figures.broke, figures.over, figures.open_cards) == (2, 1, 2)
    assert (figures.done, figures.running, figures.waiting, figures.expected) == (1, 1, 2, 2)
    assert (figures.forecasts_settled, figures.forecasts_wrong) == (1, 0)


def test_forecasts_that_all_came_true_are_not_counted_among_what_was_wrong() -> None:
    case = StatedCase(DUE, T0 - 9 * HOUR, True)
    found = morning_report(inputs(entries=WRONG["entries"], cases=[case] * 3))
    (said,) = [one for one in found.sentences if one.topic is ReportTopic.WRONG]
    assert said.text == "Wrong: people rejected 1 decision; 3 of 3 forecasts that came due came true."
    assert said.text_zh == "错误：1 个决策被人拒绝；到期的 3 条预测全部应验。"


def test_no_fault_is_expected_of_a_gpu_that_has_failed() -> None:
    coming = forecast(1, T0, None, metric="", target="hardware_fault")
    failed = card(1).model_copy(update={"health": GpuState.CRITICAL})
    assert morning_report(inputs(predictions=[coming], cards=[card(1)])).figures.expected == 1
    assert morning_report(inputs(predictions=[coming], cards=[failed])).figures.expected == 0

"""Lines of the demo's terminal: one for each incident and each end, none too long, colour for a terminal alone."""

from __future__ import annotations

import re
from dataclasses import replace

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.actions.model.ledger_entry import DecisionStatus
from tocsin.domain.alert_level import AlertLevel
from tocsin.domain.clock import HOUR, MINUTE, to_minute
from tocsin.domain.decision import Decision, DecisionState, Mode, Ruling, Verdict
from tocsin.domain.finding import (
    PREDICTION_EVIDENCE,
    ActionKind,
    Category,
    Evidence,
    Finding,
    Incident,
    Severity,
    Subject,
    SubjectKind,
)
from tocsin.domain.prediction import Prediction, PredictionStatus
from tocsin.runtime.demo_terminal import WIDTH, DemoTerminal
from tocsin_testing.builders import T0

GPU = Subject(SubjectKind.GPU, "GPU-1", host="node-1")
MEMORY = "time_to_threshold:gpu_memory_used_ratio"


def incident(sentence: str = "node-1 GPU 0: too hot.", level: AlertLevel = AlertLevel.WARNING) -> Incident:
    root = Finding(
        rule="hot",
        subject=GPU,
        severity=Severity.WARNING,
        category=Category.THERMAL,
        action=ActionKind.THROTTLE,
        started_ms=T0,
        last_ms=T0,
        sentence=sentence,
        level=level,
    )
    return Incident(root, (root,), T0, T0, sentence)


def status(
    cause: Incident, guard: str = "", reason: str = "", sentence: str = "Throttle node-1 GPU 0: too hot."
) -> DecisionStatus:
    decision = Decision(
        rule="hot",
        subject=GPU,
        action=ActionKind.THROTTLE,
        mode=Mode.PROPOSE,
        severity=Severity.WARNING,
        category=Category.THERMAL,
        at_ms=T0,
        expires_ms=T0 + MINUTE,
        key="k",
        sentence=sentence,
        incident=cause.id,
    )
    verdicts = (Verdict(guard, Ruling.HOLD, reason),) if guard else ()
    return DecisionStatus(decision, verdicts, Ruling.HOLD, DecisionState.HELD, None, "", T0)


def test_an_incident_has_one_line_and_one_end() -> None:
    lines: list[str] = []
    terminal, one = DemoTerminal(lines.append), incident()
    clock = to_minute(T0)[11:16]
    for _ in range(5):
        terminal.look(T0, [one], [], [status(one, "evidence", "seen 1 of 3 times")])
    assert lines == [f"{clock} found: node-1 GPU 0: too hot"]
    held = status(one, "approval", "waits for a person: tocsin approve ID")
    for _ in range(5):
        terminal.look(T0, [one], [], [held])
    assert lines[1:] == [f"{clock} hold: Throttle node-1 GPU 0: waits for you: tocsin approve {held.decision.id}"]
    done = replace(held, state=DecisionState.DONE, reason="throttle in the simulated fleet; its effect is seen")
    for minute in range(10):
        terminal.look(T0 + minute * MINUTE, [], [], [done])
    assert [re.sub(r"^\S+ ", "", line) for line in lines[2:]] == [
        "done: Throttle node-1 GPU 0 (its effect is seen)",
        "ended: node-1 GPU 0: too hot (after 2 min)",
    ]
    terminal.look(T0, [one], [], [])
    assert "found: " in lines[-1]
    assert len(lines) == 5


def test_what_holds_beside_the_approval_is_what_is_said() -> None:
    lines: list[str] = []
    one = incident()
    both = replace(
        status(one, "approval", "waits for a person"),
        verdicts=(
            Verdict("approval", Ruling.HOLD, "waits for a person"),
            Verdict("max_share", Ruling.HOLD, "9 of 10 GPUs are out of service"),
        ),
    )
    DemoTerminal(lines.append).look(T0, [one], [], [both])
    assert lines[1:] == [
        f"{to_minute(T0)[11:16]} hold: Throttle node-1 GPU 0 (max_share: 9 of 10 GPUs are out of service)"
    ]


@pytest.mark.parametrize("state", [DecisionState.REJECTED, DecisionState.EXPIRED])
def test_what_is_over_holds_nothing(state: DecisionState) -> None:
    lines: list[str] = []
    one = incident()
    DemoTerminal(lines.append).look(T0, [one], [], [replace(status(one, "mode", "observe"), state=state)])
    assert len(lines) == 1


def test_an_incident_that_comes_and_goes_gives_one_line() -> None:
    lines: list[str] = []
    terminal = DemoTerminal(lines.append)
    for n in range(12):
        terminal.look(T0, [incident()] if n % 3 == 0 else [], [], [])
    assert len(lines) == 1


def test_an_incident_that_rises_to_a_page_is_told_as_one_once() -> None:
    lines: list[str] = []
    terminal, first = DemoTerminal(lines.append), incident("node-1 GPU 0: hangs")
    worse = replace(first.root, level=AlertLevel.PAGE)
    risen = replace(first, root=worse, members=(worse,), sentence="node-1 GPU 0: lost")
    assert risen.id == first.id
    for one in (first, first, risen, risen, first, risen):
        terminal.look(T0, [one], [], [])
    clock = to_minute(T0)[11:16]
    assert lines == [f"{clock} found: node-1 GPU 0: hangs", f"{clock} page: node-1 GPU 0: lost"]


def test_what_wakes_nobody_gives_one_line_in_all() -> None:
    lines: list[str] = []
    terminal = DemoTerminal(lines.append)
    notes = [incident(f"note {n}", AlertLevel.NOTE) for n in range(9)]
    terminal.look(T0, notes, [], [status(one, "approval", "x") for one in notes])
    terminal.look(T0, [], [], [])
    assert len(lines) == 1
    assert " note: " in lines[0]


@given(st.text(min_size=1, max_size=300), st.text(max_size=300), st.text(max_size=300))
def test_no_line_is_too_long_and_none_breaks(said: str, action: str, reason: str) -> None:
    lines: list[str] = []
    terminal, one = DemoTerminal(lines.append, colour=True), incident(said, AlertLevel.PAGE)
    terminal.look(T0, [one], [], [status(one, "max_share", reason, action), status(one, "approval", reason, action)])
    for _ in range(4):
        terminal.look(T0 + MINUTE, [], [], [])
    shown = [click.unstyle(line) for line in lines]
    assert shown != lines
    assert max(map(len, shown)) <= WIDTH
    assert not any("\n" in line for line in shown)


def test_what_is_forecast_is_predicted_once_and_not_found() -> None:
    lines: list[str] = []
    proof = Evidence(f"{PREDICTION_EVIDENCE}{MEMORY}", "expected", T0)
    cause = incident("node-1 GPU 0: memory reaches 98.5% at 13:09")
    root = replace(cause.root, evidence=(proof,))
    ahead = Prediction(
        subject=GPU,
        target=MEMORY,
        at_ms=T0,
        horizon_ms=HOUR,
        status=PredictionStatus.CROSSING,
        model="threshold",
        model_version="1",
        sentence=cause.sentence,
        eta_ms=T0 + 20 * MINUTE,
    )
    DemoTerminal(lines.append).look(T0, [replace(cause, root=root, members=(root,))], [ahead], [])
    assert lines == [f"{to_minute(T0)[11:16]} predicted: node-1 GPU 0: memory reaches 98.5% at 13:09"]

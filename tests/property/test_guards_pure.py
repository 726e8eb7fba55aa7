"""Every guard is pure and total: any decision over any state gets one verdict, the same again, and nothing changes."""

from __future__ import annotations

import copy

from hypothesis import given, settings

from tocsin.actions.guards.base import evaluate, guards
from tocsin.actions.model.silences import standing
from tocsin.actions.model.view import FleetView
from tocsin.domain.decision import Decision, Mode, Ruling
from tocsin.domain.finding import ActionKind
from tocsin_testing.law_guards import decisions, instants, views


@settings(max_examples=300)
@given(decisions, views, instants)
def test_pure_and_total(decision: Decision, view: FleetView, now_ms: int) -> None:
    before = copy.deepcopy((decision, view))
    verdicts = evaluate(decision, view, now_ms)
    assert [verdict.guard for verdict in verdicts] == [guard.name for guard in guards()]
    assert evaluate(decision, view, now_ms) == verdicts
    assert (decision, view) == before
    for verdict in verdicts:
        assert verdict.ruling is Ruling.ALLOW or verdict.reason
        assert verdict.until_ms is None or (verdict.ruling is Ruling.HOLD and verdict.until_ms > now_ms)


@settings(max_examples=100)
@given(decisions, views, instants)
def test_a_notification_is_held_once_done_or_silenced(decision: Decision, view: FleetView, now_ms: int) -> None:
    notice = Decision(**{name: getattr(decision, name) for name in Decision.__slots__} | {"action": ActionKind.NOTIFY})
    held = {v.guard for v in evaluate(notice, view, now_ms) if v.ruling is not Ruling.ALLOW}
    assert held <= {"not_done", "silence"}
    assert ("not_done" in held) == (notice.key in view.controls.started)
    # A silence of Tocsin's own, or one of Alertmanager's.
    assert "silence" not in held or standing(view.controls.silences, now_ms) or view.alert_silences.known


@settings(max_examples=100)
@given(decisions, views, instants)
def test_observe_and_pause_hold_every_action(decision: Decision, view: FleetView, now_ms: int) -> None:
    rulings = {v.guard: v.ruling for v in evaluate(decision, view, now_ms)}
    if decision.action is ActionKind.NOTIFY:
        return
    watching = Mode.OBSERVE in (decision.mode, view.policy.settings.mode, view.policy.mode_set(decision.rule))
    assert (rulings["mode"] is Ruling.HOLD) == watching
    assert (rulings["pause"] is Ruling.HOLD) == (view.controls.paused is not None)

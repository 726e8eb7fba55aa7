"""What has been done already: once per key, with rests, a few times a day."""

from __future__ import annotations

from tocsin.actions.guards.registry import Answer, Applies, deny, guard, hold
from tocsin.actions.policy import milliseconds
from tocsin.actions.reach import base_key
from tocsin.actions.view import FleetView
from tocsin.domain.clock import DAY, to_iso
from tocsin.domain.decision import Decision
from tocsin.domain.finding import ActionKind


def _starts(decision: Decision, view: FleetView) -> tuple[int, ...]:
    return view.controls.attempts.get((base_key(decision.subject), decision.action), ())


@guard("not_done", 50, Applies.EVERYTHING)
def not_done(decision: Decision, view: FleetView, now_ms: int) -> Answer | None:
    """Has nothing run under this key, and does nothing else run on the subject now."""
    started_ms = view.controls.started.get(decision.key)
    if started_ms is not None:
        return deny(f"already started at {to_iso(started_ms)}")
    if decision.action is ActionKind.NOTIFY:
        return None
    other = view.controls.busy.get(base_key(decision.subject))
    return hold(f"{other} runs on the subject") if other is not None else None


@guard("cooldown", 70, Applies.ACTIONS)
def cooldown(decision: Decision, view: FleetView, now_ms: int) -> Answer | None:
    """Has the subject rested since the last action of this kind."""
    until_ms = max(_starts(decision, view), default=0) + milliseconds(view.policy.settings.cooldown_seconds)
    if _starts(decision, view) and now_ms < until_ms:
        return hold(f"the last {decision.action} here was too recent", until_ms)
    return None


@guard("attempts", 170, Applies.ACTIONS)
def attempts(decision: Decision, view: FleetView, now_ms: int) -> Answer | None:
    """Are there tries left for today."""
    recent = [start for start in _starts(decision, view) if start > now_ms - DAY]
    most = view.policy.settings.limits.attempts_per_day
    if len(recent) < most:
        return None
    return hold(f"tried {len(recent)} times in 24 h, at most {most}", sorted(recent)[-most] + DAY)

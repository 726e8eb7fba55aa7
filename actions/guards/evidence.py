"""What is known: is the fault there now, seen often enough, in data that can be trusted."""

from __future__ import annotations

from tocsin.actions.guards.base import Applies, Deny, Hold, guard
from tocsin.actions.model.catalogue import is_recovery
from tocsin.actions.model.cooling import too_hot_without
from tocsin.actions.model.goals import in_words
from tocsin.actions.model.recovery import is_asked
from tocsin.actions.model.scope import affected, base_key, gpus_of
from tocsin.actions.model.view import FleetView
from tocsin.domain.clock import to_iso, to_minute
from tocsin.domain.decision import Decision, undone_by
from tocsin.domain.metrics import MetricKind, spec_of
from tocsin.domain.phrase import say
from tocsin.domain.reading import MAX_FUTURE_MS


@guard("fresh_data", 30, Applies.ACTIONS, counts_for_breaker=True)
def fresh_data(decision: Decision, view: FleetView, now_ms: int) -> Hold | None:
    """Is more than half of the subject's GPUs freshly read."""
    members = gpus_of(decision.subject, view)
    if not members:
        return Hold(say("no reading of {subject} is known", subject=base_key(decision.subject)))
    fresh = sum(member.is_fresh(now_ms, view.policy.fresh_ms) for member in members)
    if 2 * fresh > len(members):
        return None
    limit = view.policy.settings.fresh_seconds
    stale = "{n} of {total} GPUs have no reading of the last {limit} s"
    return Hold(say(stale, n=len(members) - fresh, total=len(members), limit=f"{limit:g}"))


@guard("still_live", 40, Applies.ACTIONS, counts_for_breaker=True)
def still_live(decision: Decision, view: FleetView, now_ms: int) -> Hold | None:
    """Is the root cause seen now; for restore and uncordon, is it gone, and would it stay away."""
    finding = view.findings.get(decision.findings[0] if decision.findings else "")
    if is_asked(decision):
        # A person who gives it back has seen the cause, or wants it back in spite of it.
        return None
    if is_recovery(decision.action):
        live = [identity for identity in decision.findings if identity in view.findings]
        return Hold(say("{n} causes are still seen", n=len(live))) if live else _would_return(decision, view)
    if finding is None:
        return Hold(say("the cause is not seen any more"))
    age_ms = now_ms - finding.last_ms
    if age_ms > view.policy.fresh_ms:
        return Hold(say("the cause was not seen since {at}: it may be over", at=to_minute(finding.last_ms)))
    if age_ms < -MAX_FUTURE_MS:
        return Hold(say("the cause is dated in the future: a clock is wrong"))
    return None


def _would_return(recovery: Decision, view: FleetView) -> Hold | None:
    effect = view.controls.effects.get(undone_by(recovery.parameters))
    without = None if effect is None else too_hot_without(effect, view)
    if effect is None or effect.goal is None or without is None:
        return None
    return Hold(
        say("without the throttle it would be too hot again: {figures}", figures=in_words(effect.goal, without))
    )


@guard("proof", 55, Applies.RECOVERY)
def proof(decision: Decision, view: FleetView, now_ms: int) -> Hold | None:
    """Is every GPU that is given back freshly read and healthy, and is what went wrong measured again.

    A check that answers nothing proves nothing: a GPU that hangs shows no fault either.
    """
    metric, own = decision.parameters.context.metric, {m.gpu.uuid for m in gpus_of(decision.subject, view)}
    for member in affected(decision, view):
        uuid = member.gpu.uuid
        if not member.is_fresh(now_ms, view.policy.fresh_ms):
            return Hold(say("{gpu} has no fresh reading: nothing proves that it is well", gpu=uuid))
        if not member.healthy:
            return Hold(say("{gpu} is not healthy", gpu=uuid))
        if uuid in own and _is_level(metric) and metric not in member.values:
            unproven = "{gpu} does not show {metric} now: nothing proves that it is well"
            return Hold(say(unproven, gpu=uuid, metric=metric))
    return None


def _is_level(metric: str) -> bool:
    """Whether a GPU has one value of it at any time."""
    spec = spec_of(metric)
    return spec is not None and spec.kind is MetricKind.GAUGE and not spec.label


@guard("evidence", 60, Applies.FORWARD, counts_for_breaker=True)
def evidence(decision: Decision, view: FleetView, now_ms: int) -> Hold | None:
    """Have enough consecutive evaluations seen the root cause; what the driver reported once needs no second look."""
    root = view.findings.get(decision.findings[0]) if decision.findings else None
    wanted = 1 if root is not None and root.told else view.policy.settings.confirmations
    seen = view.confirmations.get(decision.findings[0], 0) if decision.findings else 0
    if seen >= wanted:
        return None
    said = say("seen {n} of {wanted} consecutive times", n=seen, wanted=wanted)
    return Hold(said, observed=seen, limit=wanted)


@guard("boot_grace", 65, Applies.ACTIONS, counts_for_breaker=True)
def boot_grace(decision: Decision, view: FleetView, now_ms: int) -> Hold | None:
    """Has this brain watched long enough since its start."""
    until_ms = view.started_ms + view.policy.boot_grace_ms
    if now_ms >= until_ms:
        return None
    return Hold(say("started at {at}, only watching as yet", at=to_iso(view.started_ms)), until_ms)


@guard("time_box", 200, Applies.ACTIONS, denial_rejects=False)
def time_box(decision: Decision, view: FleetView, now_ms: int) -> Deny | None:
    """Has the decision not waited too long."""
    ends_ms = view.controls.expiry_ms(decision)
    return Deny(say("its time box ended at {at}", at=to_iso(ends_ms))) if now_ms >= ends_ms else None

"""What has been done already: once per key, with rests, a few times a day."""

from __future__ import annotations

from itertools import product

from tocsin.actions.guards.base import Applies, Deny, Hold, guard
from tocsin.actions.model.budget import limits_of
from tocsin.actions.model.catalogue import ACTIONS, DISRUPTIVE, Scope, is_disruptive
from tocsin.actions.model.policy import milliseconds
from tocsin.actions.model.scope import base_key, hosts_of, slot_of
from tocsin.actions.model.view import FleetView
from tocsin.domain.clock import DAY, SECOND, to_iso
from tocsin.domain.decision import Decision, ThrottleKind, ranks_in
from tocsin.domain.finding import ActionKind, SubjectKind
from tocsin.domain.phrase import say

_OPPOSITES_ON_HOSTS = {
    action: {
        other
        for other, spec in ACTIONS.items()
        if (spec.inverse is action and spec.scope is Scope.HOST)
        or (ACTIONS[action].inverse is other and ACTIONS[action].scope is Scope.HOST)
    }
    for action in ActionKind
}
"""What takes a host out that an action would give back, or the other way round."""


def _starts(decision: Decision, view: FleetView) -> tuple[int, ...]:
    """Starts of the action on the subject, also those of another cell that had it before."""
    slot, action = slot_of(decision)
    return (*view.controls.attempts.get((slot, action), ()), *view.rest.attempts.get((slot, str(action)), ()))


def _throttled_with_its_job(decision: Decision, view: FleetView) -> Decision | None:
    """The throttle of the same kind for another rank of the job, in effect on this GPU as well."""
    if decision.action is not ActionKind.THROTTLE or decision.subject.kind is not SubjectKind.GPU:
        return None
    kind = decision.parameters.throttle_kind
    for other in view.controls.effects.values():
        alike = other.action is ActionKind.THROTTLE and other.parameters.throttle_kind is kind
        elsewhere = base_key(other.subject) != base_key(decision.subject)
        if alike and elsewhere and decision.subject.name in {rank.gpu for rank in ranks_in(other.parameters)}:
            return other
    return None


def _opposite(decision: Decision, view: FleetView) -> Hold | None:
    """A hold where the same host is being taken out that this would give back, or the other way round."""
    opposites = _OPPOSITES_ON_HOSTS[decision.action]
    if not opposites:
        return None
    hosts = hosts_of(decision.subject, view)
    for other in view.controls.effects.values():
        runs = other.action in opposites and view.controls.busy.get(base_key(other.subject)) == other.action
        if runs and not hosts.isdisjoint(hosts_of(other.subject, view)):
            return Hold(say("{action} runs on the host", action=other.action))
    return None


@guard("not_done", 50, Applies.EVERYTHING)
def not_done(decision: Decision, view: FleetView, now_ms: int) -> Hold | Deny | None:
    """Has nothing run under this key, does nothing else run on the subject now, nor the opposite on its host. Heat
    waits for no fixed cap."""
    started_ms = view.controls.started.get(decision.key)
    if started_ms is not None:
        return Deny(say("already started at {at}", at=to_iso(started_ms)))
    if decision.action is ActionKind.NOTIFY:
        return None
    key = base_key(decision.subject)
    with_its_job = _throttled_with_its_job(decision, view)
    if with_its_job is not None:
        return Hold(say("throttled with its job already, by decision {id}", id=with_its_job.id))
    heat = decision.action is ActionKind.THROTTLE and decision.parameters.throttle_kind is ThrottleKind.HEAT
    if heat and key in view.controls.capping:
        return None
    other = view.controls.busy.get(key)
    return Hold(say("{action} runs on the subject", action=other)) if other is not None else _opposite(decision, view)


@guard("cooldown", 70, Applies.ACTIONS)
def cooldown(decision: Decision, view: FleetView, now_ms: int) -> Hold | None:
    """Has the subject rested since the last action of this kind."""
    until_ms = max(_starts(decision, view), default=0) + milliseconds(view.policy.settings.cooldown_seconds)
    if _starts(decision, view) and now_ms < until_ms:
        rest = view.policy.settings.cooldown_seconds
        rested = rest - (until_ms - now_ms) / SECOND
        said = say("the last {action} here was too recent", action=decision.action)
        return Hold(said, until_ms, observed=rested, limit=rest)
    return None


def _host_tries(decision: Decision, view: FleetView, now_ms: int) -> Hold | None:
    """A hold where the hosts of the subject have had their disruptive actions for today."""
    if not is_disruptive(decision.action):
        return None
    most = limits_of(view).attempts_per_host_per_day
    for host in sorted(hosts_of(decision.subject, view)):
        keys = {f"host:{host}", *(f"gpu:{member.gpu.uuid}" for member in view.parts_by_host.get(host, ()))}
        own = (start for place in product(keys, DISRUPTIVE) for start in view.controls.attempts.get(place, ()))
        elsewhere = view.rest.host_attempts.get(host, ())
        starts = sorted(start for start in (*own, *elsewhere) if start > now_ms - DAY)
        if len(starts) >= most:
            template = "host {host} had {n} disruptive actions in 24 h, at most {most}"
            return Hold(say(template, host=host, n=len(starts), most=most), starts[-most] + DAY)
    return None


@guard("attempts", 170, Applies.ACTIONS)
def attempts(decision: Decision, view: FleetView, now_ms: int) -> Hold | None:
    """Are there tries left for today, on the subject and on its host."""
    held = _host_tries(decision, view, now_ms)
    if held is not None:
        return held
    recent = [start for start in _starts(decision, view) if start > now_ms - DAY]
    most = limits_of(view).attempts_per_day
    if len(recent) < most:
        return None
    until_ms = sorted(recent)[-most] + DAY
    said = say("tried {n} times in 24 h, at most {most}", n=len(recent), most=most)
    return Hold(said, until_ms, observed=len(recent) + 1, limit=most)

"""What people allow: mode, pause, approval, hold-off, opt-in and opt-out."""

from __future__ import annotations

from tocsin.actions.guards.base import Applies, Deny, Hold, guard
from tocsin.actions.guards.limits import needs_person
from tocsin.actions.model.catalogue import ACTIONS, Scope
from tocsin.actions.model.policy import least
from tocsin.actions.model.scope import affected, base_key, hosts_of, named_host
from tocsin.actions.model.view import FleetView
from tocsin.domain.clock import to_iso
from tocsin.domain.decision import Decision, Mode
from tocsin.domain.finding import ActionKind


def effective_mode(decision: Decision, view: FleetView) -> Mode:
    """The more cautious of the decision's own mode and what is allowed to its rule at this moment."""
    return least(decision.mode, view.policy.mode_of(decision.rule, decision.action, simulated=decision.simulated))


@guard("mode", 10, Applies.ACTIONS, counts_for_breaker=True)
def mode(decision: Decision, view: FleetView, now_ms: int) -> Hold | None:
    """Is more than watching allowed."""
    if effective_mode(decision, view) is Mode.OBSERVE:
        return Hold("the mode is observe: this is what would have been done")
    return None


@guard("active", 15, Applies.ACTIONS)
def active(decision: Decision, view: FleetView, now_ms: int) -> Hold | None:
    """Is this brain the one that acts for the fleet."""
    return (
        None if view.active else Hold("another brain holds the lease, or nobody could be asked: this one only watches")
    )


@guard("pause", 20, Applies.ACTIONS)
def pause(decision: Decision, view: FleetView, now_ms: int) -> Hold | None:
    """Has nobody paused all actions."""
    note = view.controls.paused
    if note is None:
        return None
    return Hold(f"paused by {note.actor} at {to_iso(note.at_ms)}" + (f": {note.reason}" if note.reason else ""))


@guard("known_node", 85, Applies.ACTIONS)
def known_node(decision: Decision, view: FleetView, now_ms: int) -> Hold | None:
    """Does the manager, where there is one, answer, and know every host that would be taken or given back."""
    spec = ACTIONS[decision.action]
    if view.blind and (spec.disruptive or spec.recovery):
        return Hold("the manager of the nodes does not answer: what it has out of service is not known")
    if not view.nodes or (spec.scope is not Scope.HOST and decision.action is not ActionKind.UNCORDON):
        return None
    unknown = sorted(hosts_of(decision.subject, view) - view.nodes.keys())
    return Hold(f"the manager does not list {unknown[0]}") if unknown else None


@guard("managed", 90, Applies.ACTIONS, counts_for_breaker=True)
def managed(decision: Decision, view: FleetView, now_ms: int) -> Hold | None:
    """Has the operator opted in every GPU that is touched."""
    members = affected(decision, view)
    outside = [member.gpu.uuid for member in members if member.gpu.uuid not in view.managed]
    if members and not outside:
        return None
    label = view.policy.settings.managed_label
    if not members:
        return Hold(f"no GPU of {base_key(decision.subject)} is known, so none is managed")
    return Hold(
        f"{len(outside)} of {len(members)} GPUs touched are not managed, {outside[0]} among them: "
        f"list their pool in actions.managed_pools or label them {label}=true"
    )


@guard("opt_out", 100, Applies.ACTIONS, counts_for_breaker=True)
def opt_out(decision: Decision, view: FleetView, now_ms: int) -> Hold | None:
    """Does no GPU that is touched carry the opt-out label."""
    label = view.policy.settings.opt_out_label
    named = view.gpus.get(decision.subject.name)
    members = (*affected(decision, view), *(() if named is None else (named,)))
    for member in members:
        if member.has_label(label):
            return Hold(f"{member.gpu.uuid} is labelled {label}=true")
    return None


@guard("hold_off", 110, Applies.FORWARD, counts_for_breaker=True)
def hold_off(decision: Decision, view: FleetView, now_ms: int) -> Hold | Deny | None:
    """Has no person lately undone or rejected an action on the subject or its host, or cancelled the cause."""
    if decision.findings and decision.findings[0] in view.controls.cancelled:
        return Deny("a person gave the subject back: this cause is cancelled")
    hosts = (f"host:{host}" for host in sorted((hosts_of(decision.subject, view) | {named_host(decision)}) - {""}))
    keys = (base_key(decision.subject), *hosts, *(f"gpu:{m.gpu.uuid}" for m in affected(decision, view)))
    for key in keys:
        entry = view.controls.hold_offs.get(key)
        if entry is not None and now_ms < entry.until_ms:
            return Hold(f"{key} is left alone after {entry.actor} stepped in", entry.until_ms)
    return None


@guard("approval", 190, Applies.ACTIONS)
def approval(decision: Decision, view: FleetView, now_ms: int) -> Hold | Deny | None:
    """Has a person approved what is only proposed, or would take the last host, and none rejected it."""
    controls = view.controls
    no = controls.rejections.get(decision.id)
    if no is not None:
        return Deny(f"rejected by {no.actor}" + (f": {no.reason}" if no.reason else ""))
    if decision.id in controls.approvals:
        return None
    unearned = view.policy.lacking(decision.rule, decision.action, simulated=decision.simulated)
    why = "; ".join(filter(None, (needs_person(decision, view, now_ms), unearned)))
    if effective_mode(decision, view) is Mode.ACT and not why:
        return None
    return Hold(f"waits for a person: tocsin approve {decision.id}" + (f"; {why}" if why else ""))

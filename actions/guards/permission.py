"""What people allow: mode, pause, approval, hold-off, opt-in and opt-out."""

from __future__ import annotations

from tocsin.actions.guards.base import Applies, Deny, Hold, guard
from tocsin.actions.guards.limits import needs_person
from tocsin.actions.model.catalogue import ACTIONS, Scope
from tocsin.actions.model.policy import least
from tocsin.actions.model.scope import affected, base_key, gpus_of, hosts_of, named_host
from tocsin.actions.model.view import FleetView
from tocsin.domain.clock import to_iso
from tocsin.domain.decision import Decision, Mode
from tocsin.domain.finding import ActionKind, SubjectKind
from tocsin.domain.phrase import Phrase, say


def effective_mode(decision: Decision, view: FleetView) -> Mode:
    """The more cautious of the decision's own mode and what is allowed to its rule at this moment."""
    return least(decision.mode, view.policy.mode_of(decision.rule, decision.action, simulated=decision.simulated))


@guard("mode", 10, Applies.ACTIONS, counts_for_breaker=True)
def mode(decision: Decision, view: FleetView, now_ms: int) -> Hold | None:
    """Is more than watching allowed."""
    if effective_mode(decision, view) is Mode.OBSERVE:
        return Hold(say("the mode is observe: this is what would have been done"))
    return None


@guard("active", 15, Applies.ACTIONS)
def active(decision: Decision, view: FleetView, now_ms: int) -> Hold | None:
    """Is this brain the one that acts for the fleet."""
    if view.active:
        return None
    return Hold(say("another brain holds the lease, or nobody could be asked: this one only watches"))


@guard("pause", 20, Applies.ACTIONS)
def pause(decision: Decision, view: FleetView, now_ms: int) -> Hold | None:
    """Has nobody paused all actions."""
    note = view.controls.paused
    if note is None:
        return None
    return Hold(_by_person("paused by {who} at {at}", note.reason, who=note.actor, at=to_iso(note.at_ms)))


def _by_person(template: str, reason: str, **values: object) -> Phrase:
    """What a person did, and why where a reason was given."""
    return say(f"{template}: {{reason}}", reason=reason, **values) if reason else say(template, **values)


@guard("known_node", 85, Applies.ACTIONS)
def known_node(decision: Decision, view: FleetView, now_ms: int) -> Hold | None:
    """Does the manager, where there is one, answer, and know every host that would be taken or given back."""
    spec = ACTIONS[decision.action]
    if view.blind and (spec.disruptive or spec.recovery):
        return Hold(say("the manager of the nodes does not answer: what it has out of service is not known"))
    if not view.nodes or (spec.scope is not Scope.HOST and decision.action is not ActionKind.UNCORDON):
        return None
    unknown = sorted(hosts_of(decision.subject, view) - view.nodes.keys())
    return Hold(say("the manager does not list {host}", host=unknown[0])) if unknown else None


@guard("managed", 90, Applies.ACTIONS, counts_for_breaker=True)
def managed(decision: Decision, view: FleetView, now_ms: int) -> Hold | None:
    """Has the operator opted in every GPU that is touched."""
    members = affected(decision, view)
    if decision.subject.kind is SubjectKind.GPU and any(one.surplus for one in gpus_of(decision.subject, view)):
        template = (
            "{gpu} is more than host {host} is known to have: list it in topology.file, "
            "or raise actions.unshown_gpus_per_host if it is there"
        )
        return Hold(say(template, gpu=decision.subject.name, host=members[0].gpu.host))
    outside = [member.gpu.uuid for member in members if member.gpu.uuid not in view.managed]
    if members and not outside:
        return None
    label = view.policy.settings.managed_label
    if not members:
        return Hold(say("no GPU of {subject} is known, so none is managed", subject=base_key(decision.subject)))
    template = (
        "{n} of {total} GPUs touched are not managed, {gpu} among them: "
        "list their pool in actions.managed_pools or label them {label}=true"
    )
    return Hold(say(template, n=len(outside), total=len(members), gpu=outside[0], label=label))


@guard("opt_out", 100, Applies.ACTIONS, counts_for_breaker=True)
def opt_out(decision: Decision, view: FleetView, now_ms: int) -> Hold | None:
    """Does no GPU that is touched carry the opt-out label."""
    label = view.policy.settings.opt_out_label
    named = view.gpus.get(decision.subject.name)
    members = (*affected(decision, view), *(() if named is None else (named,)))
    for member in members:
        if member.has_label(label):
            return Hold(say("{gpu} is labelled {label}=true", gpu=member.gpu.uuid, label=label))
    return None


@guard("hold_off", 110, Applies.FORWARD, counts_for_breaker=True)
def hold_off(decision: Decision, view: FleetView, now_ms: int) -> Hold | Deny | None:
    """Has no person lately undone or rejected an action on the subject or its host, or cancelled the cause."""
    if decision.findings and decision.findings[0] in view.controls.cancelled:
        return Deny(say("a person gave the subject back: this cause is cancelled"))
    hosts = (f"host:{host}" for host in sorted((hosts_of(decision.subject, view) | {named_host(decision)}) - {""}))
    keys = (base_key(decision.subject), *hosts, *(f"gpu:{m.gpu.uuid}" for m in affected(decision, view)))
    for key in keys:
        entry = view.controls.hold_offs.get(key)
        if entry is not None and now_ms < entry.until_ms:
            return Hold(say("{key} is left alone after {who} stepped in", key=key, who=entry.actor), entry.until_ms)
    return None


@guard("approval", 190, Applies.ACTIONS)
def approval(decision: Decision, view: FleetView, now_ms: int) -> Hold | Deny | None:
    """Has a person approved what is only proposed, or would take the last host, and none rejected it."""
    controls = view.controls
    no = controls.rejections.get(decision.id)
    if no is not None:
        return Deny(_by_person("rejected by {who}", no.reason, who=no.actor))
    if decision.id in controls.approvals:
        return None
    unearned = view.policy.lacking(decision.rule, decision.action, simulated=decision.simulated)
    needed = needs_person(decision, view, now_ms)
    if effective_mode(decision, view) is Mode.ACT and needed is None and not unearned:
        return None
    parts = ["waits for a person: tocsin approve {id}"]
    values: dict[str, object] = {"id": decision.id}
    if needed is not None:
        parts.append(needed.template)
        values |= needed.values
    if unearned:
        parts.append("{why}")
        values["why"] = unearned
    return Hold(say("; ".join(parts), **values))

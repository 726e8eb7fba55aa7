"""What people acknowledged, snoozed, planned or silenced: which notifications wait, and where no action runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tocsin.actions.guards.base import Applies, Hold, guard
from tocsin.actions.model.alert_silences import AlertSilence
from tocsin.actions.model.ledger_entry import SILENCE
from tocsin.actions.model.scope import affected, hosts_of, named_host
from tocsin.actions.model.silences import (
    Cause,
    Silence,
    around,
    cause_of,
    matchers_of,
    standing,
)
from tocsin.actions.model.view import FleetView
from tocsin.domain.alert_level import AlertLevel
from tocsin.domain.clock import to_iso
from tocsin.domain.decision import Decision, DefragmentParameters, MigrateParameters, ranks_in
from tocsin.domain.finding import ActionKind, Subject, SubjectKind
from tocsin.domain.phrase import Phrase, say
from tocsin.domain.reading import Gpu
from tocsin.domain.silence import Matcher, MatcherKind, SilenceKind

_SAID = {
    SilenceKind.ACKNOWLEDGEMENT: "acknowledged",
    SilenceKind.SNOOZE: "snoozed",
    SilenceKind.MAINTENANCE: "maintenance planned",
}
ALERTMANAGER = "alertmanager"
ALERTMANAGER_HARD_FAULT = "alertmanager_hard_fault"
WITHHOLDING = (*SilenceKind, ALERTMANAGER, ALERTMANAGER_HARD_FAULT)
"""By what notifications are held back, as it is counted."""
_SHOWN = 100
"""Characters of a name or a reason in a verdict; own choice."""


def _in_words(one: Silence) -> Phrase:
    what = "" if one.matcher.kind is MatcherKind.CARD else " for {kind} {name}"
    why = ": {reason}" if one.reason else ""
    values = {"who": one.actor, "kind": one.matcher.kind, "name": one.matcher.name, "reason": one.reason}
    shown = {name: str(value)[:_SHOWN] for name, value in values.items()}
    return say(f"{_SAID[one.kind]}{what} by {{who}} until {{at}}{why}", at=to_iso(one.until_ms), **shown)


def _gpus_on(subject: Subject, view: FleetView) -> Iterable[Gpu]:
    if subject.kind is SubjectKind.HOST:
        return [one.gpu for one in view.parts_by_host.get(subject.name, ())]
    found = view.gpus.get(subject.name)
    return [] if found is None else [found.gpu]


def silence_of(decision: Decision, view: FleetView, now_ms: int) -> Silence | None:
    """The silence that covers what a notification is about, of several the last to end; None where none does."""
    stand = standing(view.controls.silences, now_ms)
    if not stand or not decision.findings:
        return None
    incident = view.incident_of.get(decision.incident)
    root = decision.incident or decision.findings[0]
    cause = Cause(root, decision.alert_level, (decision.subject,)) if incident is None else cause_of(incident)
    # What an action that failed says of a cause is graver than the cause itself.
    cause = replace(cause, level=decision.alert_level)
    matchers = around(cause.subjects, lambda subject: _gpus_on(subject, view))
    covering = [one for one in stand if one.contains(cause, matchers)]
    return max(covering, key=lambda one: (one.until_ms, one.id), default=None)


def alert_silence_of(decision: Decision, view: FleetView, now_ms: int) -> AlertSilence | None:
    """The silence of Alertmanager's that covers a notification; None where none does. A report is no alert."""
    if not view.alert_silences.known or decision.alert_level is AlertLevel.NOTE:
        return None
    incident = view.incident_of.get(decision.incident)
    subjects = () if incident is None else cause_of(incident).subjects
    return view.alert_silences.over(decision, subjects, lambda subject: _gpus_on(subject, view), now_ms)


def held_back_by(decision: Decision, view: FleetView, now_ms: int) -> str:
    """What holds a notification back, as it is counted; empty where nothing does."""
    if (own := silence_of(decision, view, now_ms)) is not None:
        return own.kind
    if alert_silence_of(decision, view, now_ms) is None:
        return ""
    return ALERTMANAGER_HARD_FAULT if decision.hard_fault else ALERTMANAGER


@guard(SILENCE, 52, Applies.EVERYTHING)
def silence(decision: Decision, view: FleetView, now_ms: int) -> Hold | None:
    """Has nobody acknowledged, snoozed, planned or silenced what a notification is about. It holds no action."""
    if decision.action is not ActionKind.NOTIFY:
        return None
    if (own := silence_of(decision, view, now_ms)) is not None:
        return Hold(_in_words(own), own.until_ms)
    if (one := alert_silence_of(decision, view, now_ms)) is not None:
        return Hold(one.in_words(to_iso(one.until_ms), hard_fault=decision.hard_fault), one.until_ms)
    return None


@guard("planned_maintenance", 82, Applies.ACTIONS, counts_for_breaker=True)
def planned_maintenance(decision: Decision, view: FleetView, now_ms: int) -> Hold | None:
    """Is no maintenance planned now for anything that is touched, or for where work would go."""
    plans = standing(view.controls.silences, now_ms, SilenceKind.MAINTENANCE)
    if not plans:
        return None
    touched = _touched(decision, view)
    held = [one for one in plans if one.matcher in touched]
    last = max(held, key=lambda one: (one.until_ms, one.id), default=None)
    return None if last is None else Hold(_in_words(last), last.until_ms)


def _touched(decision: Decision, view: FleetView) -> set[Matcher]:
    """The matchers of everything that the action touches.

    Of a pool or the fleet as a whole that is what it names: one host under repair keeps nobody from growing a pool.
    """
    subject = decision.subject
    gpus, hosts = _named(decision)
    found = {one for uuid in gpus if uuid in view.gpus for one in matchers_of(view.gpus[uuid].gpu)}
    found |= {Matcher(MatcherKind.HOST, host) for host in hosts}
    members = [member for host in hosts for member in view.parts_by_host.get(host, ())]
    if subject.kind is SubjectKind.POOL:
        found.add(Matcher(MatcherKind.POOL, subject.name))
    elif subject.kind is not SubjectKind.FLEET:
        found |= {Matcher(MatcherKind.HOST, host) for host in hosts_of(subject, view)}
        members += affected(decision, view)
    return found | {one for member in members for one in matchers_of(member.gpu)}


def _named(decision: Decision) -> tuple[set[str], set[str]]:
    """GPUs and hosts that the parameters name: where work runs, where it would go, and the host that is to go."""
    parameters = decision.parameters
    gpus, hosts = {rank.gpu for rank in ranks_in(parameters)}, {named_host(decision)} - {""}
    if isinstance(parameters, MigrateParameters):
        gpus |= {place.gpu for place in (*parameters.source, *parameters.target)}
    if isinstance(parameters, MigrateParameters | DefragmentParameters):
        hosts |= {host for piece in parameters.to_host for host in piece}
    return gpus, hosts

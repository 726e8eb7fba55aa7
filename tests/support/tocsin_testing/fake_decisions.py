"""The timeline and the journal in pages of the fake service, by plain means of their own."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from tocsin.actions.model.catalogue import ACTIONS
from tocsin.client.models import (
    Alternative,
    DecisionOut,
    DecisionStory,
    ExportForm,
    JournalPage,
    JournalQuery,
    Timeline,
    TimelineItem,
    TimelineMark,
    TimelineQuery,
    UndoOut,
)
from tocsin.client.wire import extended, to_json
from tocsin.domain.clock import SECOND, to_iso
from tocsin.domain.decision import DecisionState, parameters_of
from tocsin.domain.entry import Entry, EntryKind
from tocsin.domain.errors import Conflict, InputError
from tocsin.domain.finding import ActionKind
from tocsin.domain.parameters import encode
from tocsin_testing import fake_fleet as fleet

SETTLE_S = 300.0
RUNBOOKS = "https://docs.example/runbooks"
_DONE = {DecisionState.DONE, DecisionState.VERIFYING}


class FakeDecisions:
    """Part of `FakeService`."""

    _decisions: dict[str, DecisionOut]
    _journal: list[Entry]

    def decision(self, decision_id: str) -> DecisionOut:
        raise NotImplementedError

    def _record(self, kind: str, actor: str, payload: dict[str, object]) -> None:
        raise NotImplementedError

    def _item(self, one: DecisionOut) -> TimelineItem:
        inverse = ACTIONS[one.action].inverse
        action = one.action.value.replace("_", " ")
        by = next((o.id for o in self._decisions.values() if encode(o.parameters).get("undoes") == one.id), "")
        problem = "" if one.state in _DONE else f"{action} was not done: the decision is {one.state}"
        return extended(
            TimelineItem,
            one,
            updated_ms=one.outcome.at_ms if one.outcome else one.at_ms,
            inverse=inverse,
            undo_problem=problem if inverse else f"nothing undoes {action}",
            undone_by=by,
            asked_by=encode(one.parameters).get("asked_by", ""),
            alternatives=tuple(
                Alternative(action=kind, gpu_hours=hours, chosen=kind is one.action)
                for kind, hours in fleet.LOSSES.get(one.action, ())
            ),
        )

    def timeline(self, query: TimelineQuery, offset: int, limit: int) -> Timeline:
        every = list(self._decisions.values())
        found = [one for one in every if _fits(one, query)]
        actions = [one for one in every if one.action is not ActionKind.NOTIFY]
        return Timeline(
            total=len(found),
            offset=offset,
            items=[self._item(one) for one in found[offset : offset + limit]],
            marks=[
                TimelineMark(
                    id=one.id,
                    at=to_iso(one.at_ms),
                    action=one.action,
                    state=one.state,
                    severity=one.severity,
                    sentence=one.sentence,
                )
                for one in found[:400]
            ],
            states=dict(Counter(one.state for one in actions)),
            waiting=sum(one.approvable for one in actions),
            actions=sorted({one.action for one in every}, key=list(ActionKind).index),
            rules=sorted({one.rule for one in every}),
            pools=sorted({one.subject.pool for one in every} - {""}),
        )

    def story(self, decision_id: str) -> DecisionStory:
        item = self._item(self.decision(decision_id))
        told = [*_told_of(item), *(e for e in self._journal if e.payload.get("decision") == decision_id)]
        return DecisionStory(decision=item, entries=told, settle_s=SETTLE_S, runbooks_url=RUNBOOKS)

    def undo(self, decision_id: str, actor: str, reason: str, *, right: bool = False) -> UndoOut:
        item = self._item(self.decision(decision_id))
        if item.undo_problem or item.inverse is None:
            raise Conflict(f"decision {decision_id} cannot be undone: {item.undo_problem}")
        undoing = replace(
            self.decision(decision_id),
            id=f"{fleet.hash_of('undo' + decision_id):016x}",
            action=item.inverse,
            state=DecisionState.APPROVED,
            approved_by=actor,
            outcome=None,
            at_ms=fleet.NOW_MS,
            sentence=f"{ACTIONS[item.inverse].verb} {item.subject.host}; {actor} undoes what was done: {reason}.",
            parameters=parameters_of(item.inverse, {"undoes": decision_id, "asked_by": actor}),
        )
        self._decisions = {undoing.id: undoing, **self._decisions}
        self._record("decision", actor, {"id": undoing.id, "sentence": undoing.sentence})
        return UndoOut(undone=decision_id, by=self._item(undoing))

    def journal_page(self, query: JournalQuery, before: int | None, limit: int) -> JournalPage:
        _check(query)
        found = [e for e in reversed(self._journal) if (before is None or e.seq < before) and _told(e, query)]
        shown = found[:limit]
        sentences = {one.id: one.sentence for one in self._decisions.values()}
        return JournalPage(
            entries=shown,
            next_before=shown[-1].seq if len(found) > limit else None,
            reached=to_iso(shown[-1].at_ms) if len(found) > limit else None,
            head=len(self._journal),
            told={name: sentences[name] for e in shown if (name := str(e.payload.get("decision", ""))) in sentences},
            kinds=[kind.value for kind in EntryKind],
        )

    def export_journal(self, form: ExportForm, query: JournalQuery, after: int) -> Iterator[str]:
        _check(query)
        wanted = [entry for entry in self._journal if entry.seq > after and _told(entry, query)]
        if form == "cef":
            return (f"CEF:0|Tocsin|Tocsin|test|{e.kind}|{e.kind}|3|suser={e.actor}" for e in wanted)
        return (json.dumps(to_json(entry)) for entry in wanted)


def _check(query: JournalQuery) -> None:
    for kind in query.kinds:
        if kind not in set(EntryKind):
            raise InputError("kind", kind, "is no kind of entry", "use one that is")


def _fits(one: DecisionOut, query: TimelineQuery) -> bool:
    subject = one.subject
    wanted = query.wants(one.state, one.action, one.rule, subject.pool, one.approvable)
    return wanted and query.found_in((one.sentence, one.rule, subject.name, subject.host, one.id))


def _told(entry: Entry, query: JournalQuery) -> bool:
    early = query.start_ms is not None and entry.at_ms < query.start_ms
    late = query.end_ms is not None and entry.at_ms >= query.end_ms
    if early or late or (query.kinds and entry.kind not in query.kinds):
        return False
    if (query.actor and entry.actor != query.actor) or (query.people and entry.actor == "tocsin"):
        return False
    return query.text.strip().lower() in f"{json.dumps(entry.payload)} {entry.actor}".lower()


def _entry(seq: int, at_ms: int, kind: EntryKind, actor: str, payload: dict[str, object]) -> Entry:
    return Entry(
        seq=seq,
        epoch=1,
        at_ms=at_ms,
        kind=kind.value,
        actor=actor,
        payload=payload,
        simulated=False,
        hash=f"{seq:064x}",
        previous_hash=f"{seq - 1:064x}",
    )


def _told_of(item: TimelineItem) -> list[Entry]:
    """What the journal would say of a decision in this state."""
    rows: list[tuple[int, EntryKind, str, dict[str, object]]] = [(0, EntryKind.DECISION, "tocsin", {"id": item.id})]
    if item.approved_by and not item.asked_by:
        rows.append((60, EntryKind.APPROVAL, item.approved_by, {"decision": item.id}))
    if item.outcome or item.state is DecisionState.VERIFYING:
        before = {"gpu_temperature_celsius": 88.0, "gpu_power_watts": 402.0}
        rows.append((75, EntryKind.EXECUTION_STARTED, "tocsin", {"executor": "simulated", "before": before}))
        due = {"phase": "due", "detail": "throttle in the simulated fleet"}
        rows.append((76, EntryKind.VERIFICATION, "tocsin", due))
    if item.outcome:
        checked = {"phase": "checked", "seen": True, "effect": dict(item.outcome.effect)}
        rows.append((376, EntryKind.VERIFICATION, "tocsin", checked))
        ended = {"outcome": {"status": item.outcome.status.value, "detail": item.outcome.detail}}
        rows.append((376, EntryKind.OUTCOME, "tocsin", ended))
    return [
        _entry(100 + n, item.at_ms + seconds * SECOND, kind, actor, payload)
        for n, (seconds, kind, actor, payload) in enumerate(rows)
    ]

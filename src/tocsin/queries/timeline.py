"""Decisions and the journal over time, as the API shows them: filtered and in pages; the journal also as lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tocsin.actions.loop.operator import problem_of
from tocsin.actions.model.catalogue import ACTIONS
from tocsin.actions.model.controls import Controls
from tocsin.actions.model.ledger_entry import WAITING, DecisionStatus
from tocsin.client.models import (
    Alternative,
    DecisionStory,
    JournalPage,
    JournalQuery,
    Timeline,
    TimelineItem,
    TimelineMark,
    TimelineQuery,
    UndoOut,
)
from tocsin.client.wire import extended
from tocsin.domain.clock import to_iso
from tocsin.domain.decision import DecisionState, asked_by, undone_by
from tocsin.domain.entry import Entry, EntryKind
from tocsin.domain.errors import InputError
from tocsin.domain.finding import ActionKind
from tocsin.journal.page import Wanted
from tocsin.journal.port import JournalPast
from tocsin.queries.alike import Yes, of_one_cause, yes_to, yeses
from tocsin.queries.alike import others as others_alike
from tocsin.queries.live import LiveBrain
from tocsin.queries.views import decision_out, waiting


def journal_page(journal: JournalPast, query: JournalQuery, before: int | None, limit: int) -> JournalPage:
    """Entries that fit `query`, newest first. Raises InputError for an unknown kind."""
    wanted = Wanted(kinds_of(query.kinds), query.actor, query.people, query.text, query.start_ms, query.end_ms)
    found = journal.page(before, limit, wanted)
    return JournalPage(
        entries=list(found.entries),
        next_before=found.next_before,
        reached=None if found.next_before is None else _written(journal, found.entries, found.next_before),
        head=found.head,
        told=found.told,
        told_zh=found.told_zh,
        kinds=[kind.value for kind in EntryKind],
    )


def _written(journal: JournalPast, entries: Sequence[Entry], number: int) -> str | None:
    """When entry `number` was written, which is mostly the last of `entries`."""
    known = entries[-1:] if entries and entries[-1].seq == number else journal.numbered([number])
    return next((to_iso(one.at_ms) for one in known), None)


def kinds_of(names: Iterable[str]) -> frozenset[EntryKind]:
    """Kinds of entries by name. Raises InputError for one that is unknown."""
    known = {kind.value: kind for kind in EntryKind}
    for name in names:
        if name not in known:
            raise InputError("kind", name, "is no kind of entry", f"use one of {', '.join(known)}")
    return frozenset(known[name] for name in names)


MARKS = 400
"""Most marks on the axis of time (own choice: more cannot be told apart on a screen)."""
_OPEN = WAITING | {DecisionState.EXECUTING, DecisionState.VERIFYING}


def timeline(brain: LiveBrain, query: TimelineQuery, offset: int, limit: int) -> Timeline:
    """Decisions that fit `query`, newest first, from `offset` on."""
    statuses, controls = brain.statuses(), brain.actions.controls()
    found = [status for status in statuses if _fits(status, query)]
    found.sort(key=lambda status: (-status.decision.at_ms, status.decision.id))
    actions = [status for status in statuses if status.decision.action is not ActionKind.NOTIFY]
    others = _Others.among(brain, statuses)
    return Timeline(
        total=len(found),
        offset=offset,
        items=[_item(status, controls, others) for status in found[offset : offset + limit]],
        marks=[
            TimelineMark(
                id=one.decision.id,
                at=to_iso(one.decision.at_ms),
                action=one.decision.action,
                state=one.state,
                severity=one.decision.severity,
                sentence=one.decision.sentence,
                cause_zh=one.decision.parameters.context.cause_zh,
            )
            for one in found[:MARKS]
        ],
        states=dict(Counter(status.state for status in actions)),
        waiting=waiting(actions),
        actions=sorted({status.decision.action for status in statuses}, key=list(ActionKind).index),
        rules=sorted({status.decision.rule for status in statuses}),
        pools=sorted({status.decision.subject.pool for status in statuses} - {""}),
    )


def story(brain: LiveBrain, status: DecisionStatus) -> DecisionStory:
    """One decision with its entries of the journal."""
    return DecisionStory(
        decision=_item(status, brain.actions.controls(), _Others.among(brain, brain.statuses())),
        entries=list(brain.journal.numbered(status.steps)),
        settle_s=brain.settings.actions.settle_seconds,
        runbooks_url=brain.settings.notify.runbooks_url,
    )


def undone(brain: LiveBrain, identity: str, by: str) -> UndoOut:
    """The answer to an undoing of decision `identity` by decision `by`."""
    statuses = brain.statuses()
    status = next(one for one in statuses if one.decision.id == by)
    return UndoOut(undone=identity, by=_item(status, brain.actions.controls(), _Others.among(brain, statuses)))


def _fits(status: DecisionStatus, query: TimelineQuery) -> bool:
    decision = status.decision
    subject = decision.subject
    if not query.wants(status.state, decision.action, decision.rule, subject.pool, status.waits_for_person):
        return False
    return query.found_in((decision.sentence, decision.rule, subject.name, subject.host, decision.id))


@dataclass(frozen=True, slots=True)
class _Others:
    """What other decisions have to do with one: ids of those that undo it, by its key, as long as they wait or run; and
    how many wait for the same yes."""

    undone: Mapping[str, str]
    alike: Counter[Yes]

    @classmethod
    def among(cls, brain: LiveBrain, statuses: Sequence[DecisionStatus]) -> _Others:
        undone = {
            undoes: status.decision.id
            for status in statuses
            if status.state in _OPEN and (undoes := undone_by(status.decision.parameters))
        }
        return cls(undone, yeses(statuses, brain.incidents))


def alike(brain: LiveBrain, status: DecisionStatus) -> list[DecisionStatus]:
    """The others for the same action about the same cause that wait for a person as `status` does."""
    shared = of_one_cause(brain.incidents)
    if (yes := yes_to(status, shared)) is None:
        return []
    mine = status.decision.id
    return [one for one in brain.statuses(final=False) if one.decision.id != mine and yes_to(one, shared) == yes]


def _item(status: DecisionStatus, controls: Controls, others: _Others) -> TimelineItem:
    decision = status.decision
    rejected = controls.rejections.get(decision.id)
    reason, reason_zh = (status.reason, status.reason_zh) if status.outcome is None else ("", "")
    losses = sorted(decision.parameters.expected_losses.items(), key=lambda one: (one[1], one[0]))
    return extended(
        TimelineItem,
        decision_out(status),
        rejected_by=rejected.actor if rejected else "",
        updated_ms=status.updated_ms,
        reason=rejected.reason if rejected else reason,
        reason_zh="" if rejected else reason_zh,
        asked_by=asked_by(decision.parameters),
        inverse=ACTIONS[decision.action].inverse,
        undo_problem=problem_of(status, controls),
        undone_by=others.undone.get(decision.key, ""),
        alike=others_alike(status, others.alike),
        alternatives=tuple(
            Alternative(action=action, gpu_hours=loss, chosen=action is decision.action) for action, loss in losses
        ),
    )

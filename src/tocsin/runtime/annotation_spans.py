"""Entries of the journal as marks: executed actions, incidents, pauses, the breaker, models that come into service.

A beginning is a mark at its instant; its end is one over the whole span. The spans that are open are a fold of the
journal, so that a restart loses none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tocsin.domain.annotation import Annotation
from tocsin.domain.decision import Decision
from tocsin.domain.subject import Subject, SubjectKind
from tocsin.journal.chain import Entry
from tocsin.journal.kinds import EntryKind

MARKED = frozenset(
    {
        EntryKind.EXECUTION_STARTED,
        EntryKind.OUTCOME,
        EntryKind.INCIDENT_OPENED,
        EntryKind.INCIDENT_CLOSED,
        EntryKind.PAUSE,
        EntryKind.RESUME,
        EntryKind.BREAKER_TRIPPED,
        EntryKind.BREAKER_RESET,
        EntryKind.MODEL_IN_SERVICE,
    }
)
"""Kinds of entries that become marks."""

DecisionOf = Callable[[str], Decision | None]
"""A decision by its id; None where it is no longer listed."""
SubjectOf = Callable[[str], Subject | None]
"""The subject of an incident's root cause by the incident's id; None where it is not open."""


@dataclass(frozen=True, slots=True)
class _Open:
    """A span that has begun."""

    at_ms: int
    text: str
    subject: Subject | None = None
    simulated: bool = False


@dataclass(slots=True)
class SpanFold:
    """Turns entries, in the order of the journal, into marks."""

    decision_of: DecisionOf
    subject_of: SubjectOf
    open: dict[str, _Open] = field(default_factory=dict)

    def recall(self, entries: Iterable[Entry]) -> None:
        """Take up the spans that were open: `entries` are the ones that were made into marks before."""
        for entry in entries:
            self.mark(entry)

    def mark(self, entry: Entry) -> Annotation | None:
        """The mark of `entry`; None where there is nothing to show."""
        kind = EntryKind(entry.kind)
        if kind in (EntryKind.EXECUTION_STARTED, EntryKind.OUTCOME):
            return self._of_decision(entry)
        if kind in (EntryKind.INCIDENT_OPENED, EntryKind.PAUSE, EntryKind.BREAKER_TRIPPED):
            return self._begins(entry, kind)
        if kind in (EntryKind.INCIDENT_CLOSED, EntryKind.RESUME, EntryKind.BREAKER_RESET):
            return self._ends(entry, kind)
        return _mark(entry, f"Model {entry.payload.get('version', '')} came into service.")

    def _of_decision(self, entry: Entry) -> Annotation | None:
        decision = self.decision_of(str(entry.payload.get("decision", "")))
        sentence = "" if decision is None else decision.sentence
        action = str(entry.payload.get("action", "")) or ("" if decision is None else str(decision.action))
        outcome = entry.payload.get("outcome")
        text = f"Begun: {action}. {sentence}"
        if isinstance(outcome, dict):
            text = (
                f"{str(outcome.get('status', '')).capitalize()}: {action} by {outcome.get('executor', '')}. {sentence}"
            )
        return _mark(entry, text.strip(), None if decision is None else decision.subject, action=action)

    def _begins(self, entry: Entry, kind: EntryKind) -> Annotation:
        name, text, subject = str(kind), _told(entry, kind), None
        if kind is EntryKind.INCIDENT_OPENED:
            name = str(entry.payload.get("id", ""))
            subject = self.subject_of(name)
        self.open[name] = _Open(entry.at_ms, text, subject, entry.simulated)
        return _mark(entry, text, subject)

    def _ends(self, entry: Entry, kind: EntryKind) -> Annotation | None:
        name = {EntryKind.RESUME: str(EntryKind.PAUSE), EntryKind.BREAKER_RESET: str(EntryKind.BREAKER_TRIPPED)}.get(
            kind, str(entry.payload.get("id", ""))
        )
        begun = self.open.pop(name, None)
        if begun is None:
            return None
        text = f"{begun.text} Ended by {entry.actor}."
        return _mark(entry, text, begun.subject, begun=begun)


def _told(entry: Entry, kind: EntryKind) -> str:
    if kind is EntryKind.INCIDENT_OPENED:
        return str(entry.payload.get("sentence", ""))
    what = "Actions paused" if kind is EntryKind.PAUSE else "Breaker tripped"
    return f"{what} by {entry.actor}: {entry.payload.get('reason', '')}".rstrip(".") + "."


def _mark(
    entry: Entry, text: str, subject: Subject | None = None, *, action: str = "", begun: _Open | None = None
) -> Annotation:
    host = gpu = pool = ""
    if subject is not None:
        gpu = subject.name if subject.kind is SubjectKind.GPU else ""
        host = subject.name if subject.kind is SubjectKind.HOST else subject.host
        pool = subject.name if subject.kind is SubjectKind.POOL else subject.pool
    return Annotation(
        key=entry.hash[:16],
        kind=entry.kind,
        at_ms=entry.at_ms if begun is None else begun.at_ms,
        text=text,
        actor=entry.actor,
        end_ms=None if begun is None else entry.at_ms,
        host=host,
        gpu=gpu,
        pool=pool,
        action=action,
        simulated=entry.simulated or (begun is not None and begun.simulated),
    )

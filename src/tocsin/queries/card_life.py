"""What the journal has of causes that ended: which are resolved, and which came again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import TypeAdapter, ValidationError

from tocsin.domain.alert_level import AlertLevel
from tocsin.domain.clock import DAY
from tocsin.domain.entry import Entry, EntryKind
from tocsin.domain.finding import ActionKind, Category, Incident, Severity, Subject, SubjectKind
from tocsin.domain.place import Place
from tocsin.queries.card_words import CardCause
from tocsin.rules.symptoms import Symptom, symptom_of

REMEMBERED_MS = DAY
"""How long a cause that ended stays readable, and one that comes again counts as the same."""
MOST_ENDED = 1_000
"""Ended causes that are remembered, the newest."""


@dataclass(frozen=True, slots=True)
class CauseRecord:
    """What is kept of an incident for its card once it is over."""

    rule: str
    symptom: Symptom
    category: Category
    severity: Severity
    action: ActionKind
    level: AlertLevel
    subject: Subject
    opened_ms: int
    metric: str = ""
    place: Place | None = None
    gpus: int = 1
    hosts: tuple[str, ...] = ()
    simulated: bool = False
    id: str = ""
    ended_ms: int = 0

    @property
    def cause(self) -> str:
        """The same for a cause that comes again: the kind of symptom, and where it sits."""
        return f"{self.symptom}|{self.where}"

    @property
    def where(self) -> str:
        """The place as text, the subject where none is known."""
        return where_of(self.trouble)

    @property
    def gravity(self) -> tuple[int, int, bool]:
        """How bad it was, the worst the greatest; a GPU that is lost comes before what else is as bad."""
        return self.level.rank, self.severity.rank, self.symptom is Symptom.BUS

    @property
    def trouble(self) -> CardCause:
        """What its headline is made of."""
        return CardCause(
            self.symptom,
            self.category,
            self.severity,
            self.action,
            self.metric,
            self.subject,
            self.place,
            self.gpus,
        )


def place_key(subject: Subject) -> str:
    """A subject as a place: two processes of one GPU are in one."""
    return f"{subject.kind}:{subject.name}"


def where_of(trouble: CardCause) -> str:
    """The place of a trouble as text, its subject where none is known; versions that differ are one trouble for each
    component and group."""
    if trouble.symptom is Symptom.DRIFT:
        return trouble.subject.key
    return str(trouble.place) if trouble.place is not None else place_key(trouble.subject)


_RECORD = TypeAdapter(CauseRecord)
_RECORDS = TypeAdapter(dict[str, CauseRecord])
_HOSTS = 3
"""Host names that are kept of a cause."""


def gpus_of(incident: Incident) -> set[str]:
    """UUIDs of the GPUs that an incident names."""
    return {one.subject.name for one in incident.members if one.subject.kind is SubjectKind.GPU}


def record_of(incident: Incident) -> CauseRecord:
    """What is kept of `incident`."""
    root, symptom = incident.root, symptom_of(incident.root)
    hosts = sorted({one.subject.host for one in incident.members if one.subject.host})
    return CauseRecord(
        rule=root.rule,
        symptom=symptom,
        category=root.category,
        severity=root.severity,
        action=root.action,
        level=incident.alert_level,
        subject=root.subject if symptom is Symptom.DRIFT else replace(root.subject, detail=""),
        opened_ms=incident.opened_ms,
        metric=root.metric,
        place=incident.place,
        gpus=max(1, len(gpus_of(incident))),
        hosts=tuple(hosts[:_HOSTS]),
        simulated=root.simulated,
        id=incident.id,
    )


def record_payload(incident: Incident) -> dict[str, Any]:
    """The record as an entry of the journal has it."""
    dumped: dict[str, Any] = _RECORD.dump_python(record_of(incident), mode="json", exclude_defaults=True)
    return dumped


@dataclass
class CardLife:
    """A fold of the journal's entries about incidents; entries of older versions, without a record, pass it by.

    `ended` are by cause, the oldest first; `came_again` says of an open incident when the same cause had ended before.
    Both are replaced, never changed in place: other threads read them. It reads no clock: what is older than
    REMEMBERED_MS goes when the next cause ends.
    """

    ended: Mapping[str, CauseRecord] = field(default_factory=dict)
    came_again: Mapping[str, int] = field(default_factory=dict)
    _open: dict[str, CauseRecord] = field(default_factory=dict)

    def apply(self, entry: Entry) -> None:
        """Take one entry in, in the order of the journal."""
        name = str(entry.payload.get("id", ""))
        if entry.kind in (EntryKind.INCIDENT_OPENED, EntryKind.INCIDENT_UPDATED):
            record = read_record(entry.payload.get("card"))
            if record is not None:
                self._opened(replace(record, id=name), entry.at_ms)
        elif entry.kind == EntryKind.INCIDENT_CLOSED:
            self._closed(name, str(entry.payload.get("into", "")), entry.at_ms)

    def _opened(self, record: CauseRecord, at_ms: int) -> None:
        before = self.ended.get(record.cause)
        self._open[record.id] = record
        if before is None:
            return
        self.ended = {cause: one for cause, one in self.ended.items() if cause != record.cause}
        if at_ms - before.ended_ms <= REMEMBERED_MS:
            self.came_again = {**self.came_again, record.id: before.ended_ms}

    def _closed(self, name: str, into: str, at_ms: int) -> None:
        record = self._open.pop(name, None)
        again = self.came_again.get(name)
        if again is not None:
            left = {one: ended for one, ended in self.came_again.items() if one != name}
            # Part of another incident now: it is that one which came again.
            self.came_again = left | ({into: left.get(into, again)} if into in self._open else {})
        # What was only expected, and did not come, leaves nothing to be read.
        if record is None or into or record.symptom is Symptom.FORECAST:
            return
        kept = {cause: one for cause, one in self.ended.items() if at_ms - one.ended_ms <= REMEMBERED_MS}
        kept.pop(record.cause, None)
        kept[record.cause] = replace(record, ended_ms=at_ms)
        self.ended = dict(list(kept.items())[-MOST_ENDED:])

    def state(self) -> dict[str, Any]:
        """All of it as JSON, for a checkpoint of the journal."""
        return {
            "ended": _RECORDS.dump_python(dict(self.ended), mode="json"),
            "again": dict(self.came_again),
            "open": _RECORDS.dump_python(self._open, mode="json"),
        }

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> CardLife:
        """The fold whose `state` this was."""
        records = (_RECORDS.validate_python(state[name]) for name in ("ended", "open"))
        ended, held = records
        return cls(ended, dict(state["again"]), held)


def read_record(payload: object) -> CauseRecord | None:
    """The record of an entry; None where it has none, or one that this version cannot read."""
    try:
        return _RECORD.validate_python(payload)
    except ValidationError:
        return None

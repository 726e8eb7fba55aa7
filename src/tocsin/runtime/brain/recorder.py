"""What evaluations changed, on record: findings and incidents that opened, grew or ended."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import TypeAdapter

from tocsin.domain.entry import Entry, EntryKind
from tocsin.domain.finding import Finding, Incident, finding_id
from tocsin.domain.place import Place, PlaceKind
from tocsin.journal.port import Draft, LiveJournal
from tocsin.queries.card_life import CardLife, record_payload
from tocsin.rules.incidents import REST_MS, HeldIncident, key_of
from tocsin.rules.symptoms import Symptom, is_standing, symptom_of

_FINDING = TypeAdapter(Finding)
RECORDER_PART = "recorder"
"""Name of the recorder's state in a checkpoint of the journal."""
_RECORDED = (
    EntryKind.FINDING_OPENED,
    EntryKind.FINDING_CLEARED,
    EntryKind.INCIDENT_OPENED,
    EntryKind.INCIDENT_UPDATED,
    EntryKind.INCIDENT_CLOSED,
)


class OpenRecord:
    """What the journal has of the incidents that are open: their members, also those that have cleared meanwhile.

    A fold of its entries: `findings` by id are all that are open, and the cleared ones of open incidents; `over_ms`
    says when these cleared; `members` has the ids of each incident, and `places` its place. `resting` says when closed
    incidents ended that are the same if they come back; of those that stand the root is kept.
    """

    def __init__(self) -> None:
        self.findings: dict[str, Finding] = {}
        self.over_ms: dict[str, int] = {}
        self.members: dict[str, dict[str, None]] = {}
        self.places: dict[str, str] = {}
        self.resting: dict[str, int] = {}
        self._incident: dict[str, str] = {}

    def cleared(self, name: str, at_ms: int) -> bool:
        """Finding `name` holds no more; whether it is remembered, since its incident goes on."""
        if name in self._incident:
            self.over_ms[name] = at_ms
            return True
        self.findings.pop(name, None)
        return False

    def opened(self, finding: Finding) -> None:
        """A finding is new, or holds again."""
        self.findings[finding.id] = finding
        self.over_ms.pop(finding.id, None)

    def changed(self, incident: str, payload: Mapping[str, Any]) -> list[str]:
        """An incident opened or grew; returns the cleared findings that are forgotten.

        Entries of older versions do not name its members.
        """
        self.places[incident] = str(payload.get("place", ""))
        self.resting.pop(incident, None)
        known = self.members.setdefault(incident, {})
        left = [name for name in payload.get("left", ()) if known.pop(name, name) is None]
        for name in payload.get("joined", ()):
            known[name] = None
            self._incident[name] = incident
        return self._forget(incident, left)

    def closed(self, incident: str, at_ms: int, *, rests: bool, whole: bool = False) -> list[str]:
        """An incident is over, and `rests`, `whole` or its root alone, or is past or part of another; returns the
        cleared findings that are forgotten, with those of incidents that have rested out."""
        past = [name for name, since_ms in self.resting.items() if at_ms - since_ms > REST_MS]
        if rests:
            self.resting[incident] = at_ms
            left = [] if whole else [name for name in self.members.get(incident, {}) if name != incident]
            self.members[incident] = {name: None for name in self.members.get(incident, {}) if name not in left}
            self.members[incident][incident] = None
            return [*self._forget(incident, left), *self._end(past)]
        return self._end([incident, *past])

    def _end(self, incidents: Iterable[str]) -> list[str]:
        forgotten = []
        for incident in incidents:
            self.resting.pop(incident, None)
            self.places.pop(incident, None)
            forgotten += self._forget(incident, self.members.pop(incident, {}))
        return forgotten

    def _forget(self, incident: str, names: Iterable[str]) -> list[str]:
        mine = [name for name in names if self._incident.get(name) == incident]
        for name in mine:
            del self._incident[name]
        forgotten = [name for name in mine if self.over_ms.pop(name, None) is not None]
        for name in forgotten:
            self.findings.pop(name, None)
        return forgotten

    def held(self) -> Iterator[HeldIncident]:
        """The incidents of several findings or of heat, and those that rest, as they were left; one whose root is not
        on record is left out."""
        for incident, names in self.members.items():
            found = [self.findings[name] for name in names if name in self.findings]
            root = next((one for one in found if one.id == incident), None)
            if root is None:
                continue
            if len(found) < 2 and incident not in self.resting and symptom_of(root) is not Symptom.HEAT:
                continue
            kind, _, where = self.places[incident].partition(":")
            place = Place(PlaceKind(kind), where) if where and kind in set(PlaceKind) else None
            over_ms = {key_of(one): self.over_ms[one.id] for one in found if one.id in self.over_ms}
            opened_ms = min(one.started_ms for one in found)
            members, rests_ms = {key_of(one): one for one in found}, self.resting.get(incident)
            yield HeldIncident(key_of(root), members, place, opened_ms, over_ms, rests_ms)

    def as_json(self) -> dict[str, Any]:
        """For a checkpoint of the journal."""
        return {
            "findings": [finding_payload(one)["finding"] for one in self.findings.values()],
            "over": self.over_ms,
            "members": {name: list(ids) for name, ids in self.members.items()},
            "places": self.places,
            "resting": self.resting,
            "of": self._incident,
        }

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> OpenRecord:
        """The record whose JSON this was."""
        made = cls()
        made.findings = {one.id: one for one in map(_FINDING.validate_python, state["findings"])}
        for name, ids in state["members"].items():
            made.changed(name, {"joined": ids, "place": state["places"].get(name, "")})
        made.over_ms = dict(state["over"])
        # Checkpoints of older versions have neither. A finding that moves is for a while among the members of two.
        made.resting = dict(state.get("resting", {}))
        made._incident.update(state.get("of", {}))
        return made


def _rest_of(payload: Mapping[str, Any]) -> dict[str, bool]:
    return {name: bool(payload.get(name)) for name in ("rests", "whole")}


class Recorder:
    """Journals what an evaluation changed: findings and incidents that opened, grew or ended.

    The set of open ones is itself a fold of the journal, so that a restart neither repeats an opening nor loses an end.
    """

    def __init__(self, journal: LiveJournal) -> None:
        self._journal = journal
        self._findings: set[str] = set()
        self._since: dict[tuple[str, str], int] = {}
        self._names: dict[str, tuple[str, str]] = {}
        self._incidents: dict[str, int] = {}
        self._record = OpenRecord()
        self.cards = CardLife()
        self.findings_opened = 0
        self.incidents_opened = 0
        after, state = journal.folded(RECORDER_PART)
        if state is not None:
            self._restore(state)
        raised: dict[str, Any] = {}
        for entry in journal.entries(after=after, kinds=_RECORDED):
            self._fold(entry, raised)
        self._take_up(raised)

    def follow(self, entries: Iterable[Entry]) -> None:
        """Take in what another brain has recorded, while this one stands by."""
        raised: dict[str, Any] = {}
        for entry in entries:
            if entry.kind in _RECORDED:
                self._fold(entry, raised)
        self._take_up(raised)

    def _take_up(self, raised: Mapping[str, Any]) -> None:
        # Of what was cleared with its incident nothing is needed; a journal has a hundred times as many of those.
        for finding in map(_FINDING.validate_python, raised.values()):
            self._record.findings[finding.id] = finding
            if finding.id in self._findings:
                self._open(finding)

    def state(self) -> dict[str, Any]:
        """What is open, as JSON, for a checkpoint of the journal; to be asked by the thread that records."""
        return {
            "findings": sorted(self._findings),
            "since": sorted((rule, subject, at_ms) for (rule, subject), at_ms in self._since.items()),
            "names": sorted((name, rule, subject) for name, (rule, subject) in self._names.items()),
            "incidents": self._incidents,
            "open": self._record.as_json(),
            "cards": self.cards.state(),
        }

    def held(self) -> list[HeldIncident]:
        """The incidents that were open when the journal ended."""
        return list(self._record.held())

    def open_of(self, rules: Collection[str]) -> list[Finding]:
        """The findings of `rules` that are open, as they were recorded."""
        found = self._record.findings
        return [found[name] for name in sorted(self._findings & found.keys()) if found[name].rule in rules]

    def _restore(self, state: Mapping[str, Any]) -> None:
        self._findings = set(state["findings"])
        self._since = {(rule, subject): at_ms for rule, subject, at_ms in state["since"]}
        self._names = {name: (rule, subject) for name, rule, subject in state["names"]}
        self._incidents = dict(state["incidents"])
        # Checkpoints of older versions have none.
        self._record = OpenRecord.restored(state["open"]) if "open" in state else OpenRecord()
        self.cards = CardLife.restored(state["cards"]) if "cards" in state else CardLife()

    def _fold(self, entry: Entry, raised: dict[str, Any]) -> None:
        name = str(entry.payload.get("id", ""))
        self.cards.apply(entry)
        if entry.kind == EntryKind.FINDING_OPENED:
            self._findings.add(name)
            raised[name] = entry.payload["finding"]
            self._record.over_ms.pop(name, None)
        elif entry.kind == EntryKind.FINDING_CLEARED:
            self._findings.discard(name)
            if not self._record.cleared(name, entry.at_ms):
                raised.pop(name, None)
            rule, subject = self._names.pop(name, ("", ""))
            # One that follows on it may have opened before it cleared.
            if finding_id(rule, subject, self._since.get((rule, subject), 0)) == name:
                del self._since[rule, subject]
        elif entry.kind in (EntryKind.INCIDENT_OPENED, EntryKind.INCIDENT_UPDATED):
            self._incidents[name] = int(str(entry.payload.get("members", 1)))
            for one in self._record.changed(name, entry.payload):
                raised.pop(one, None)
        elif entry.kind == EntryKind.INCIDENT_CLOSED:
            self._incidents.pop(name, None)
            for one in self._record.closed(name, entry.at_ms, **_rest_of(entry.payload)):
                raised.pop(one, None)

    def _open(self, finding: Finding) -> None:
        key = (finding.rule, finding.subject.key)
        self._since[key] = finding.started_ms
        self._names[finding.id] = key

    def continued(self, findings: Iterable[Finding]) -> list[Finding]:
        """`findings` with the start that the journal has for them.

        Rules that are warmed up after a restart see less of the past than they had seen before; without this an open
        finding would get a new start, a new id and, for its decision, a new idempotency key.
        """
        return [
            replace(finding, started_ms=self._since.get((finding.rule, finding.subject.key), finding.started_ms))
            for finding in findings
        ]

    def record(
        self,
        active: Sequence[Finding],
        incidents: Sequence[Incident],
        *,
        keep_gone: bool = False,
        resting: Collection[str] = (),
    ) -> list[Finding]:
        """Journal the difference to the last call; returns the findings that are new.

        Incidents that end and are among `resting` keep their names for when they come back.
        With `keep_gone` nothing is closed yet: just after a start the rules may not have seen everything again.
        """
        opened = [finding for finding in active if finding.id not in self._findings]
        batch: list[Draft] = [(EntryKind.FINDING_OPENED, finding_payload(f), f.simulated) for f in opened]
        now = {finding.id for finding in active}
        gone = set() if keep_gone else self._findings - now
        batch += [(EntryKind.FINDING_CLEARED, {"id": name}, self._is_simulated(name)) for name in sorted(gone)]
        entries, new_incidents = self._incident_entries(incidents, keep_gone, resting)
        added = self._journal.append_many([*batch, *entries])
        # Only now: what could not be journalled is tried again with the next evaluation.
        self._findings = (self._findings | now) - gone
        for name in gone:
            self._since.pop(self._names.pop(name, ("", "")), None)
        for finding in opened:
            self._open(finding)
            self._record.opened(finding)
        for entry in added:
            self._take(entry)
        self.findings_opened += len(opened)
        self.incidents_opened += new_incidents
        return opened

    def _take(self, entry: Entry) -> None:
        """What an own entry changes of the record, as when it is read again."""
        name = str(entry.payload.get("id", ""))
        self.cards.apply(entry)
        if entry.kind == EntryKind.FINDING_CLEARED:
            self._record.cleared(name, entry.at_ms)
        elif entry.kind in (EntryKind.INCIDENT_OPENED, EntryKind.INCIDENT_UPDATED):
            self._incidents[name] = int(str(entry.payload["members"]))
            self._record.changed(name, entry.payload)
        elif entry.kind == EntryKind.INCIDENT_CLOSED:
            self._incidents.pop(name, None)
            self._record.closed(name, entry.at_ms, **_rest_of(entry.payload))

    def _incident_entries(
        self, incidents: Sequence[Incident], keep_gone: bool, resting: Collection[str]
    ) -> tuple[list[Draft], int]:
        entries: list[Draft] = []
        opened = 0
        for incident in incidents:
            known = self._incidents.get(incident.id)
            members = {finding.id: None for finding in (incident.root, *incident.members)}
            before = self._record.members.get(incident.id, {})
            joined = [name for name in members if name not in before]
            if known is not None and not joined:
                continue
            left = [name for name in before if name not in members]
            kind = EntryKind.INCIDENT_OPENED if known is None else EntryKind.INCIDENT_UPDATED
            opened += known is None
            payload = _incident_payload(incident) | {"joined": joined, "left": left}
            entries.append((kind, payload, incident.root.simulated))
        gone = set() if keep_gone else set(self._incidents) - {incident.id for incident in incidents}
        by_member = {member.id: incident.id for incident in incidents for member in incident.members}
        for name in sorted(gone):
            closed = self._rests_payload(name) if name in resting else self._closed_payload(name, by_member)
            entries.append((EntryKind.INCIDENT_CLOSED, closed, self._is_simulated(name)))
        return entries, opened

    def _is_simulated(self, name: str) -> bool:
        """Whether the finding of that id is simulated; an incident has the id of its root."""
        finding = self._record.findings.get(name)
        return finding is not None and finding.simulated

    def _rests_payload(self, name: str) -> dict[str, object]:
        """That an incident rests, whole where all that it was about may come back: of heat, not of what stands."""
        root = self._record.findings.get(name)
        whole = root is not None and not is_standing(root)
        return {"id": name, "rests": True, **({"whole": True} if whole else {})}

    def _closed_payload(self, name: str, by_member: Mapping[str, str]) -> dict[str, object]:
        """That an incident is over, or which open one its findings belong to now."""
        into = next((by_member[one] for one in self._record.members.get(name, ()) if one in by_member), "")
        return {"id": name, "into": into} if into else {"id": name}


def finding_payload(finding: Finding) -> dict[str, object]:
    """What the journal keeps of a finding that opens."""
    return {"id": finding.id, "finding": _FINDING.dump_python(finding, mode="json")}


def _incident_payload(incident: Incident) -> dict[str, object]:
    return {
        "id": incident.id,
        "root": incident.root.id,
        "members": len(incident.members),
        "subjects": incident.subjects,
        "sentence": incident.sentence,
        "sentence_zh": incident.sentence_zh,
        "place": str(incident.place or ""),
        "opened_ms": incident.opened_ms,
        "card": record_payload(incident),
    }

"""What evaluation changed, as journal entries: findings and incidents that opened, grew or ended.

The set of open ones is itself a fold of the journal, so that a restart neither repeats an opening nor loses an end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pydantic import TypeAdapter

from tocsin.domain.finding import Finding, Incident
from tocsin.journal.chain import Entry
from tocsin.journal.journal import Draft, Journal
from tocsin.journal.kinds import EntryKind

_FINDING = TypeAdapter(Finding)


class Recorder:
    """Keeps the journal in step with what is found."""

    def __init__(self, journal: Journal, entries: Iterable[Entry]) -> None:
        self._journal = journal
        self._findings: set[str] = set()
        self._incidents: dict[str, int] = {}
        self.findings_opened = 0
        self.incidents_opened = 0
        for entry in entries:
            self._fold(entry)

    def _fold(self, entry: Entry) -> None:
        name = str(entry.payload.get("id", ""))
        if entry.kind == EntryKind.FINDING_OPENED:
            self._findings.add(name)
        elif entry.kind == EntryKind.FINDING_CLEARED:
            self._findings.discard(name)
        elif entry.kind in (EntryKind.INCIDENT_OPENED, EntryKind.INCIDENT_UPDATED):
            self._incidents[name] = int(str(entry.payload.get("members", 1)))
        elif entry.kind == EntryKind.INCIDENT_CLOSED:
            self._incidents.pop(name, None)

    def record(self, active: Sequence[Finding], incidents: Sequence[Incident]) -> list[Finding]:
        """Journal the difference to the last call; returns the findings that are new."""
        opened = [finding for finding in active if finding.id not in self._findings]
        batch: list[Draft] = [(EntryKind.FINDING_OPENED, _finding_payload(f), f.simulated) for f in opened]
        self.findings_opened += len(opened)
        now = {finding.id for finding in active}
        batch += [(EntryKind.FINDING_CLEARED, {"id": gone}, False) for gone in sorted(self._findings - now)]
        self._findings = now
        batch += self._incident_entries(incidents)
        self._journal.append_many(batch)
        return opened

    def _incident_entries(self, incidents: Sequence[Incident]) -> list[Draft]:
        entries: list[Draft] = []
        now = {incident.id: incident for incident in incidents}
        for incident in incidents:
            known = self._incidents.get(incident.id)
            if known == len(incident.members):
                continue
            kind = EntryKind.INCIDENT_OPENED if known is None else EntryKind.INCIDENT_UPDATED
            self.incidents_opened += known is None
            entries.append((kind, _incident_payload(incident), incident.root.simulated))
        gone = sorted(set(self._incidents) - set(now))
        entries += [(EntryKind.INCIDENT_CLOSED, {"id": name}, False) for name in gone]
        self._incidents = {name: len(incident.members) for name, incident in now.items()}
        return entries


def _finding_payload(finding: Finding) -> dict[str, object]:
    return {"id": finding.id, "finding": _FINDING.dump_python(finding, mode="json")}


def _incident_payload(incident: Incident) -> dict[str, object]:
    return {
        "id": incident.id,
        "root": incident.root.id,
        "members": len(incident.members),
        "subjects": incident.subjects,
        "sentence": incident.sentence,
        "opened_ms": incident.opened_ms,
    }

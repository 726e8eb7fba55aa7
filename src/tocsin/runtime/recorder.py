"""What evaluation changed, as journal entries: findings and incidents that opened, grew or ended.

The set of open ones is itself a fold of the journal, so that a restart neither repeats an opening nor loses an end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

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
        self._since: dict[tuple[str, str], int] = {}
        self._names: dict[str, tuple[str, str]] = {}
        self._incidents: dict[str, int] = {}
        self.findings_opened = 0
        self.incidents_opened = 0
        for entry in entries:
            self._fold(entry)

    def _fold(self, entry: Entry) -> None:
        name = str(entry.payload.get("id", ""))
        if entry.kind == EntryKind.FINDING_OPENED:
            finding = _FINDING.validate_python(entry.payload["finding"])
            self._findings.add(name)
            self._open(finding)
        elif entry.kind == EntryKind.FINDING_CLEARED:
            self._findings.discard(name)
            self._since.pop(self._names.pop(name, ("", "")), None)
        elif entry.kind in (EntryKind.INCIDENT_OPENED, EntryKind.INCIDENT_UPDATED):
            self._incidents[name] = int(str(entry.payload.get("members", 1)))
        elif entry.kind == EntryKind.INCIDENT_CLOSED:
            self._incidents.pop(name, None)

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
        self, active: Sequence[Finding], incidents: Sequence[Incident], *, keep_gone: bool = False
    ) -> list[Finding]:
        """Journal the difference to the last call; returns the findings that are new.

        With `keep_gone` nothing is closed yet: just after a start the rules may not have seen everything again.
        """
        opened = [finding for finding in active if finding.id not in self._findings]
        batch: list[Draft] = [(EntryKind.FINDING_OPENED, _finding_payload(f), f.simulated) for f in opened]
        now = {finding.id for finding in active}
        gone = set() if keep_gone else self._findings - now
        batch += [(EntryKind.FINDING_CLEARED, {"id": name}, False) for name in sorted(gone)]
        entries, new_incidents = self._incident_entries(incidents, keep_gone)
        self._journal.append_many([*batch, *entries])
        # Only now: what could not be journalled is tried again with the next evaluation.
        self._findings = (self._findings | now) - gone
        for name in gone:
            self._since.pop(self._names.pop(name, ("", "")), None)
        for finding in opened:
            self._open(finding)
        self.findings_opened += len(opened)
        self.incidents_opened += new_incidents
        kept = self._incidents if keep_gone else {}
        self._incidents = {**kept, **{incident.id: len(incident.members) for incident in incidents}}
        return opened

    def _incident_entries(self, incidents: Sequence[Incident], keep_gone: bool) -> tuple[list[Draft], int]:
        entries: list[Draft] = []
        opened = 0
        for incident in incidents:
            known = self._incidents.get(incident.id)
            if known == len(incident.members):
                continue
            kind = EntryKind.INCIDENT_OPENED if known is None else EntryKind.INCIDENT_UPDATED
            opened += known is None
            entries.append((kind, _incident_payload(incident), incident.root.simulated))
        gone = set() if keep_gone else set(self._incidents) - {incident.id for incident in incidents}
        entries += [(EntryKind.INCIDENT_CLOSED, {"id": name}, False) for name in sorted(gone)]
        return entries, opened


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

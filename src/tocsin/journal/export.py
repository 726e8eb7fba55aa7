"""The journal for other systems: one line an entry."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from tocsin import __version__
from tocsin.domain.clock import to_iso
from tocsin.domain.entry import Entry, EntryKind
from tocsin.journal.port import JournalPast

# Journal entries as ArcSight Common Event Format, for SIEMs. Source: ArcSight, "Common Event Format: Event
# Interoperability Standard", revision 25 (2017): header fields escape backslash and pipe, extension values backslash,
# equals sign and line breaks; severity is 0 to 10.

MAX_MESSAGE = 1023
"""Longest ``msg`` of the standard, in characters; ``reason`` is 1023 as well."""


@dataclass(frozen=True, slots=True)
class Row:
    """How entries of one kind are shown: name of the event, severity 0 to 10, and ``act``.

    Where `graded`, the severity of the finding or decision takes the place of the row's.
    """

    name: str
    severity: int
    act: str
    graded: bool = False


KINDS: Mapping[EntryKind, Row] = {
    EntryKind.SERVICE_STARTED: Row("Service started", 3, "start"),
    EntryKind.SERVICE_STOPPED: Row("Service stopped", 4, "stop"),
    EntryKind.FINDING_OPENED: Row("Finding opened", 5, "find", graded=True),
    EntryKind.FINDING_CLEARED: Row("Finding cleared", 2, "clear"),
    EntryKind.INCIDENT_OPENED: Row("Incident opened", 6, "open"),
    EntryKind.INCIDENT_UPDATED: Row("Incident updated", 4, "update"),
    EntryKind.INCIDENT_CLOSED: Row("Incident closed", 2, "close"),
    EntryKind.PREDICTION: Row("Failure foretold", 5, "predict"),
    EntryKind.FORECAST_MUTED: Row("Forecast muted", 3, "mute"),
    EntryKind.FORECAST_HEARD: Row("Forecast heard again", 3, "hear"),
    EntryKind.DECISION: Row("Action decided", 5, "decide", graded=True),
    EntryKind.VERDICT: Row("Guards asked", 2, "judge"),
    EntryKind.APPROVAL: Row("Action approved by a person", 6, "approve"),
    EntryKind.REJECTION: Row("Action rejected by a person", 6, "reject"),
    EntryKind.EXECUTION_STARTED: Row("Action begun", 6, "execute", graded=True),
    EntryKind.EXECUTION_GOES_ON: Row("Action goes on", 3, "execute"),
    EntryKind.OUTCOME: Row("Action ended", 6, "execute", graded=True),
    EntryKind.VERIFICATION: Row("Effect looked for", 3, "verify"),
    EntryKind.NOTIFICATION: Row("Notification sent", 3, "notify"),
    EntryKind.PAUSE: Row("Actions paused", 7, "pause"),
    EntryKind.RESUME: Row("Actions resumed", 7, "resume"),
    EntryKind.BREAKER_TRIPPED: Row("Breaker tripped", 8, "trip"),
    EntryKind.BREAKER_RESET: Row("Breaker reset", 8, "reset"),
    EntryKind.HOLD_OFF: Row("Subject left alone for a while", 5, "hold off"),
    EntryKind.EFFECT_ENDED: Row("Effect of an action ended", 4, "end"),
    EntryKind.CAUSE_ACKNOWLEDGED: Row("Cause acknowledged by a person", 5, "acknowledge"),
    EntryKind.SNOOZED: Row("Cause or place snoozed", 5, "snooze"),
    EntryKind.MAINTENANCE_PLANNED: Row("Maintenance planned", 5, "plan"),
    EntryKind.SILENCE_ENDED: Row("Acknowledgement, snooze or maintenance ended by a person", 4, "end"),
    EntryKind.INJECTION: Row("Failure injected into a simulated GPU", 3, "inject"),
    EntryKind.IMPORT_DONE: Row("Telemetry imported", 3, "import"),
    EntryKind.MODEL_IN_SERVICE: Row("Model put into service", 5, "promote"),
    EntryKind.MANUAL_ACTION: Row("Action by a person's hand", 6, "act by hand"),
    EntryKind.RULE_EARNED_ACT: Row("Rule acts alone", 5, "earn"),
    EntryKind.RULE_FELL_BACK: Row("Rule waits for approval again", 5, "fall back"),
    EntryKind.VERSIONS_CHANGED: Row("Versions of hosts changed", 3, "change"),
    EntryKind.LOGIN: Row("Log-in", 3, "login"),
    EntryKind.LOGOUT: Row("Log-out", 2, "logout"),
    EntryKind.LOGIN_LOCKED: Row("Log-in locked after wrong passwords", 7, "lock"),
    EntryKind.READS: Row("Reads of the API", 2, "read"),
    EntryKind.CHECKPOINT: Row("State of the journal put on file", 1, "save"),
    EntryKind.ARCHIVED: Row("Old entries of the journal archived", 2, "archive"),
}
"""Every kind of entry; the severities are our own choice, words of people and the breaker highest."""

MAX_REMEMBERED = 10_000
"""Things that later entries may name; some 500 bytes each."""
_INTRODUCES = frozenset({EntryKind.DECISION, EntryKind.FINDING_OPENED, EntryKind.INCIDENT_OPENED, EntryKind.PREDICTION})
_KEPT = ("subject", "action", "rule", "severity", "sentence")
_OF_WORDS = {"info": 3, "warning": 6, "critical": 9}
"""Severity where the entry says how urgent its finding or decision is."""
_GOOD = frozenset({"succeeded", "restored", "allow", "delivered", "done"})
_BAD = frozenset({"failed", "goal_not_reached", "unverified", "deny", "rejected", "lost"})


class CefLines:
    """Turns entries, given in order, into lines.

    Later entries name a decision, a finding or an incident by its id alone: what the first one said of it is
    remembered, for the newest `MAX_REMEMBERED` of them.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[str, Mapping[str, object]] = OrderedDict()

    def line(self, entry: Entry) -> str:
        """`entry` as one line, without a line end."""
        row = KINDS[EntryKind(entry.kind)]
        fields = self._with_earlier(entry)
        severity = _OF_WORDS.get(_text(fields, "severity"), row.severity) if row.graded else row.severity
        header = ["Tocsin", "Tocsin", __version__, entry.kind, row.name, str(severity)]
        head = "|".join(["CEF:0", *map(escape_header, header)])
        body = " ".join(f"{key}={escape_value(value)}" for key, value in _extension(entry, row, fields) if value)
        return f"{head}|{body}"

    def note(self, entry: Entry) -> None:
        """Remember what `entry` says without making a line of it."""
        self._with_earlier(entry)

    def _with_earlier(self, entry: Entry) -> Mapping[str, object]:
        """The payload, with what earlier entries said of the same thing."""
        payload = dict(entry.payload)
        finding = payload.get("finding")
        if isinstance(finding, Mapping):
            payload = {**finding, **payload}
        name = _text(payload, "decision", "id")
        known = self._known.get(name, {})
        fields = {**known, **payload}
        if isinstance(known.get("subject"), Mapping):
            # Later entries have its key alone, without the host.
            fields["subject"] = known["subject"]
        if name and entry.kind in _INTRODUCES:
            self._known[name] = {key: payload[key] for key in _KEPT if key in payload}
            if len(self._known) > MAX_REMEMBERED:
                self._known.popitem(last=False)
        return fields


def escape_header(text: str) -> str:
    """`text` for a field of the header, which has one line."""
    return " ".join(text.splitlines()).replace("\\", "\\\\").replace("|", "\\|")


def escape_value(text: str) -> str:
    """`text` for a value of the extension."""
    return text.replace("\\", "\\\\").replace("=", "\\=").replace("\r", "\\r").replace("\n", "\\n")


def _extension(entry: Entry, row: Row, fields: Mapping[str, object]) -> list[tuple[str, str]]:
    subject = _subject(fields)
    return [
        ("rt", str(entry.at_ms)),
        ("externalId", str(entry.seq)),
        ("suser", entry.actor),
        ("act", row.act),
        ("cat", _text(fields, "action")),
        ("outcome", _outcome(entry.payload)),
        ("dhost", _host(fields, subject)),
        ("duser", _text(entry.payload, "user")),
        ("src", _text(entry.payload, "address")),
        ("reason", _reason(entry.payload)[:MAX_MESSAGE]),
        ("msg", _text(fields, "sentence")[:MAX_MESSAGE]),
        *_labelled("cs1", "chainHash", entry.hash),
        *_labelled("cs2", "previousHash", entry.previous_hash),
        *_labelled("cs3", "subject", subject),
        *_labelled("cs4", "rule", _text(fields, "rule")),
        *_labelled("cs5", "simulated", "true" if entry.simulated else ""),
        *_labelled("cs6", "reference", _text(entry.payload, "decision", "id", "key")),
        *_labelled("cn1", "epoch", str(entry.epoch)),
    ]


def _labelled(key: str, label: str, value: str) -> list[tuple[str, str]]:
    return [(f"{key}Label", label), (key, value)] if value else []


def _text(payload: Mapping[str, object], *names: str) -> str:
    """The first of `names` that has a text or a number; empty where none has."""
    for name in names:
        found = payload.get(name)
        if isinstance(found, str | int | float) and not isinstance(found, bool) and found != "":
            return str(found)
    return ""


def _subject(payload: Mapping[str, object]) -> str:
    """What the entry is about, as ``kind:name``."""
    found = payload.get("subject")
    if isinstance(found, Mapping):
        detail = _text(found, "detail")
        return f"{_text(found, 'kind')}:{_text(found, 'name')}" + (f":{detail}" if detail else "")
    gpu = _text(payload, "gpu")
    return str(found) if isinstance(found, str) else f"gpu:{gpu}" if gpu else ""


def _host(payload: Mapping[str, object], subject: str) -> str:
    found = payload.get("subject")
    if isinstance(found, Mapping) and _text(found, "host"):
        return _text(found, "host")
    kind, _, name = subject.partition(":")
    return _text(payload, "host") or (name if kind == "host" else "")


def _reason(payload: Mapping[str, object]) -> str:
    found = payload.get("outcome")
    return _text(found, "detail") if isinstance(found, Mapping) else _text(payload, "reason", "detail", "problem")


def _outcome(payload: Mapping[str, object]) -> str:
    found = payload.get("outcome")
    if isinstance(payload.get("seen"), bool):
        return "success" if payload["seen"] else "failure"
    word = _text(found, "status") if isinstance(found, Mapping) else _text(payload, "outcome", "overall", "status")
    return "success" if word in _GOOD else "failure" if word in _BAD else word


Format = Literal["jsonl", "cef"]


def as_jsonl(entry: Entry) -> str:
    """`entry` as one line of JSON with all that its hash covers, without a line end."""
    row = {
        "seq": entry.seq,
        "epoch": entry.epoch,
        "at": to_iso(entry.at_ms),
        "at_ms": entry.at_ms,
        "kind": entry.kind,
        "actor": entry.actor,
        "simulated": entry.simulated,
        "payload": entry.payload,
        "previous_hash": entry.previous_hash,
        "hash": entry.hash,
    }
    return json.dumps(row, ensure_ascii=False, allow_nan=False)


def export(
    journal: JournalPast,
    form: Format,
    *,
    since_ms: int | None = None,
    until_ms: int | None = None,
    after: int = 0,
    kinds: Collection[str] | None = None,
) -> Iterator[str]:
    """Lines of the entries in [`since_ms`, `until_ms`) with `seq` above `after`, in order.

    The journal's clock may step back, so all entries are looked at. Raises InputError where there is none.
    """
    cef = CefLines()
    # CEF also takes in the entries that are left out: later ones name what those were about.
    for entry in journal.entries(after=after if form == "jsonl" else 0, kinds=kinds if form == "jsonl" else None):
        early = since_ms is not None and entry.at_ms < since_ms
        late = until_ms is not None and entry.at_ms >= until_ms
        wanted = not early and not late and entry.seq > after and (not kinds or entry.kind in kinds)
        if form == "jsonl" and wanted:
            yield as_jsonl(entry)
        elif form == "cef" and wanted:
            yield cef.line(entry)
        elif form == "cef":
            cef.note(entry)

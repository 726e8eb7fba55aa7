"""Entries of the journal in plain words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape

from tocsin.client.models import JournalEntryOut
from tocsin.dashboard.format import plain_sentence, readable
from tocsin.dashboard.text import Text
from tocsin.dashboard.words import STRINGS

SERVICE = "tocsin"
"""Actor of what no person did."""
_LONGEST = 220
"""Most characters of a sentence in the table; the details have all of it."""


def in_words(entry: JournalEntryOut, told: Mapping[str, str], text: Text) -> str:
    """What `entry` says, as one sentence; `told` has the sentences of what it names by id alone."""
    payload = entry.payload
    key = f"entry.{entry.kind}"
    if entry.kind == "verification" and payload.get("phase") == "due":
        key = "entry.verification.due"
    if entry.kind == "verdict" and payload.get("state"):
        key = "entry.verdict.closed"
    if key not in STRINGS:
        return _short(f"{entry.kind} {_sentence(payload, told)}".strip())
    values = {
        "told": _short(_sentence(payload, told)) or "–",
        "who": entry.actor,
        "mode": text.name("mode", str(payload.get("mode", ""))),
        "members": payload.get("members", ""),
        "overall": text.name("ruling", str(payload.get("overall", ""))),
        "state": text.name("decision_state", str(payload.get("state", ""))),
        "executor": payload.get("executor", ""),
        "status": text.name("outcome", _status(payload)),
        "seen": text(_seen(payload)),
        "kind": payload.get("kind", ""),
        "subject": readable(str(payload.get("subject") or payload.get("gpu") or "")),
    }
    sentence = text(key, **values)
    reason = payload.get("reason")
    return f"{sentence} ({_short(str(reason))})" if reason else sentence


def _seen(payload: Mapping[str, object]) -> str:
    if payload.get("seen") is None:
        return "entry.blind"
    return "entry.seen" if payload["seen"] else "entry.unseen"


def _status(payload: Mapping[str, object]) -> str:
    outcome = payload.get("outcome")
    return str(outcome.get("status", "")) if isinstance(outcome, dict) else ""


def _sentence(payload: Mapping[str, object], told: Mapping[str, str]) -> str:
    """The sentence that the entry has itself, else that of what it names."""
    finding = payload.get("finding")
    own = payload.get("sentence") or (finding.get("sentence", "") if isinstance(finding, dict) else "")
    names = (str(payload.get(key, "")) for key in ("decision", "id"))
    return str(own) or next((told[name] for name in names if name in told), "")


def _short(sentence: str) -> str:
    plain = plain_sentence(sentence)
    return plain if len(plain) <= _LONGEST else f"{plain[:_LONGEST].rstrip()}…"


def details(entry: JournalEntryOut, text: Text) -> str:
    """All that the entry holds, and its place in the chain, as HTML."""
    payload = json.dumps(entry.payload, indent=2, ensure_ascii=False, sort_keys=True)
    chain = text("audit.hash", hash=entry.hash[:16], previous=entry.previous_hash[:16])
    return f'<pre class="tc-json">{escape(payload)}</pre><p class="tc-note">{escape(chain)}</p>'

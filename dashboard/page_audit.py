"""Page: the journal in plain words: what was done, by whom, and whether it is whole."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Hashable, Mapping, Sequence
from html import escape
from typing import BinaryIO, cast

import streamlit as st

from tocsin.client.models import ExportForm, FleetSummary, JournalPage, JournalQuery
from tocsin.dashboard import link, style
from tocsin.dashboard.access import api, chosen_cell, client_with, connect, current_token, lacking, show_problem
from tocsin.dashboard.frame import current_text
from tocsin.dashboard.text import STRINGS, Text, clock, plain_sentence, readable, recorded
from tocsin.domain.clock import DAY, HOUR, from_iso, to_iso
from tocsin.domain.decision import Ruling
from tocsin.domain.entry import Entry, EntryKind, Verification
from tocsin.domain.errors import TocsinError

# Entries of the journal in plain words.

SERVICE = "tocsin"
"""Actor of what no person did."""
_LONGEST = 220
"""Most characters of a sentence in the table; the details have all of it."""


def in_words(entry: Entry, told: Mapping[str, str], text: Text) -> str:
    """What `entry` says, as one sentence; `told` has the sentences of what it names by id alone."""
    payload = entry.payload
    key = f"entry.{entry.kind}"
    if entry.kind == "verification" and payload.get("phase") == "due":
        key = "entry.verification.due"
    if entry.kind == "verdict" and payload.get("state"):
        key = "entry.verdict.closed"
    if key not in STRINGS:
        return plain_sentence(f"{entry.kind} {_sentence(payload, told, text)}".strip(), _LONGEST)
    values = {
        "told": plain_sentence(_sentence(payload, told, text), _LONGEST) or "–",
        "who": entry.actor,
        "mode": text.name("mode", str(payload.get("mode", ""))),
        "members": payload.get("members", ""),
        "overall": text.name("ruling", str(payload.get("overall", ""))),
        "guards": _guards(payload, text),
        "state": text.name("decision_state", str(payload.get("state", ""))),
        "executor": payload.get("executor", ""),
        "status": text.name("outcome", _status(payload)),
        "seen": text(_seen(payload)),
        "kind": payload.get("kind", ""),
        "subject": readable(str(payload.get("subject") or payload.get("gpu") or "")),
    }
    sentence = text(key, **values)
    reason = recorded(payload, "reason", text)
    return f"{sentence} ({plain_sentence(reason, _LONGEST)})" if reason else sentence


def _guards(payload: Mapping[str, object], text: Text) -> str:
    """The guards that hold, in brackets."""
    names = ", ".join(text.name("guard", guard) for guard in holding(payload))
    return f" ({names})" if names else ""


def holding(payload: Mapping[str, object]) -> list[str]:
    """The guards that hold or deny by what an entry of verdicts says."""
    verdicts = payload.get("verdicts")
    told = verdicts if isinstance(verdicts, list) else []
    return [str(one.get("guard", "")) for one in told if isinstance(one, dict) and one.get("ruling") != Ruling.ALLOW]


Row = list[Entry]
"""Entries that say the same, newest first: one, or verdicts on one decision that the same guards hold."""


def folded(entries: Sequence[Entry], most: int) -> list[Row]:
    """The newest of `entries` in at most `most` rows, by the newest of each; none is left out between them."""
    rows: dict[Hashable, Row] = {}
    for entry in entries:
        key = _key(entry)
        if key not in rows and len(rows) == most:
            break
        rows.setdefault(key, []).append(entry)
    return list(rows.values())


def _key(entry: Entry) -> Hashable:
    if entry.kind != EntryKind.VERDICT or entry.payload.get("state"):
        return entry.seq
    return str(entry.payload.get("decision", "")), entry.payload.get("overall"), *holding(entry.payload)


def _seen(payload: Mapping[str, object]) -> str:
    if payload.get("seen") is None:
        return "entry.blind"
    return "entry.seen" if payload["seen"] else "entry.unseen"


def _status(payload: Mapping[str, object]) -> str:
    outcome = payload.get("outcome")
    return str(outcome.get("status", "")) if isinstance(outcome, dict) else ""


def _sentence(payload: Mapping[str, object], told: Mapping[str, str], text: Text) -> str:
    """The sentence that the entry has itself, else that of what it names."""
    finding, parameters = (_within(payload.get(name)) for name in ("finding", "parameters"))
    chinese = payload.get("sentence_zh") or finding.get("sentence_zh") or parameters.get("cause_zh") or ""
    own = text.said(str(payload.get("sentence") or finding.get("sentence", "")), str(chinese))
    names = (str(payload.get(key, "")) for key in ("decision", "id"))
    return own or next((told[name] for name in names if name in told), "")


def _within(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def details(row: Row, text: Text) -> str:
    """All that the newest entry holds, its place in the chain, and the numbers of the others, as HTML."""
    entry, *others = row
    payload = json.dumps(entry.payload, indent=2, ensure_ascii=False, sort_keys=True)
    notes = [text("audit.hash", hash=entry.hash[:16], previous=entry.previous_hash[:16])]
    if others:
        notes.append(text("audit.same", numbers=", ".join(f"#{one.seq}" for one in others)))
    said = "".join(f'<p class="tc-note">{escape(note)}</p>' for note in notes)
    return f'<pre class="tc-json">{escape(payload)}</pre>{said}'


PAGE = 20
"""Rows on one page: what fits a screen of 900 pixels."""
MOST_READ = 100
"""Entries that one page reads (own choice): some are folded into one row."""
QUICK_CHECK = 20_000
"""Longest journal that is checked without being asked for, in entries: about half a second (own choice)."""
_UNCHECKED = "chain_problem"
_MEMORY = 8 * 2**20
"""Bytes of an export that are held in memory; the rest goes to a temporary file."""
VIEWS: dict[str, tuple[str, ...]] = {
    "everything": (),
    "people": (),
    "actions": (
        "decision",
        "verdict",
        "approval",
        "rejection",
        "execution_started",
        "execution_goes_on",
        "outcome",
        "verification",
        "notification",
        "hold_off",
        "effect_ended",
        "cause_acknowledged",
        "snoozed",
        "maintenance_planned",
        "silence_ended",
        "manual_action",
    ),
    "findings": (
        "finding_opened",
        "finding_cleared",
        "incident_opened",
        "incident_updated",
        "incident_closed",
        "prediction",
    ),
    "service": (
        "service_started",
        "service_stopped",
        "pause",
        "resume",
        "breaker_tripped",
        "breaker_reset",
        "injection",
        "import_done",
        "model_in_service",
        "forecast_muted",
        "forecast_heard",
        "rule_earned_act",
        "rule_fell_back",
        "versions_changed",
        "login",
        "logout",
        "login_locked",
        "reads",
        "checkpoint",
        "archived",
    ),
}
"""Choices of the page, with the kinds of entries that each shows; none is any."""
SPANS: dict[str, int] = {"hour": HOUR, "day": DAY, "week": 7 * DAY, "ever": 0}
"""Spans of time by name, in milliseconds; 0 is all."""


def _query(summary: FleetSummary, known: tuple[str, ...], text: Text) -> JournalQuery:
    with st.container(horizontal=True, gap="small", vertical_alignment="bottom"):
        view = link.pick("view", text("page.audit"), list(VIEWS), "everything", lambda one: text(f"audit.{one}"))
        st.space("stretch")
        span = link.pick("since", text("audit.span"), list(SPANS), "ever", lambda one: text(f"audit.{one}"))
    with st.container(horizontal=True, gap="small", vertical_alignment="bottom"):
        words = _typed("q", text("audit.search"))
        actor = _typed("actor", text("audit.actor"))
        offered = [kind for kind in known if not VIEWS[view] or kind in VIEWS[view]]
        kinds = link.pick_many("kind", text("audit.kind"), offered)
    start_ms = from_iso(summary.now) - SPANS[span] if SPANS[span] else None
    return JournalQuery(tuple(kinds) or VIEWS[view], actor, view == "people", words, start_ms)


def _typed(name: str, label: str) -> str:
    st.session_state[name] = link.read(name)

    def changed() -> None:
        link.write(name, st.session_state[name])
        link.write("before", "")

    return st.text_input(
        label, key=name, placeholder=label, label_visibility="collapsed", max_chars=200, on_change=changed
    )


def _before() -> int | None:
    asked = link.read("before")
    return int(asked) if asked.isdecimal() and 0 < len(asked) < 19 and int(asked) > 0 else None


def _check() -> None:
    """Ask whether the chain holds and keep the answer for this session; that nobody answers is told once."""
    try:
        with connect() as client:
            st.session_state["chain"] = (client.verify_journal(), client.summary().now)
    except TocsinError as error:
        st.session_state.setdefault("chain", (None, ""))
        st.session_state[_UNCHECKED] = error


def _chain(head: int, closed: str, text: Text) -> None:
    """What is known of the chain, and ways to check and export it; `closed` says why whoever looks may not check."""
    if "chain" not in st.session_state and head <= QUICK_CHECK and not closed:
        _check()
    found: Verification | None
    found, at = st.session_state.get("chain", (None, ""))
    if (problem := st.session_state.pop(_UNCHECKED, None)) is not None:
        show_problem(problem, text)
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.html(chain_words(found, at, text))
        icon, wanted = ":material/link:", closed or None
        st.button(text("audit.check"), key="check", icon=icon, on_click=_check, disabled=bool(closed), help=wanted)
        for form in ("jsonl", "cef"):
            _download(form, text)


def chain_words(found: Verification | None, at: str, text: Text) -> str:
    """What is known of the chain, as a chip."""
    if found is None:
        return style.bar([style.chip("? " + text("audit.chain.unchecked"))])
    if found.ok:
        return style.bar([style.chip("✓ " + text("audit.chain.ok", n=found.events, at=clock(at)))])
    return style.bar([style.chip("✕ " + text("audit.chain.broken", problem=found.problem), "tc-alarm")])


def _download(form: ExportForm, text: Text) -> None:
    wanted: JournalQuery = st.session_state.get("export", JournalQuery())
    token, cell = current_token(), chosen_cell()
    st.download_button(
        text(f"audit.export.{form}"),
        data=lambda: exported(form, wanted, token, cell),
        file_name=f"tocsin-journal.{form}",
        mime="application/x-ndjson" if form == "jsonl" else "text/plain",
        key=f"export-{form}",
        icon=":material/download:",
        help=text("audit.export.note"),
        on_click="ignore",
    )


def exported(form: ExportForm, query: JournalQuery, token: str, cell: str = "") -> BinaryIO:
    """The journal as the API sends it to the holder of `token`, in a file that takes little memory.

    Streamlit asks for it outside of any run of the script, where nobody is logged in.
    """
    into = tempfile.SpooledTemporaryFile(max_size=_MEMORY)  # noqa: SIM115  # Streamlit reads it after this returns
    with client_with(token, cell) as client:
        for piece in client.export_journal(form, query):
            into.write(piece)
    into.seek(0)
    return cast("BinaryIO", into)


def _table(rows: Sequence[Row], page: JournalPage, text: Text) -> str:
    told = {name: text.said(sentence, page.told_zh.get(name, "")) for name, sentence in page.told.items()}
    cells = []
    for row in rows:
        entry, oldest = row[0], row[-1]
        words = in_words(entry, told, text)
        if entry is not oldest:
            words += " " + text("audit.times", n=len(row), at=clock(to_iso(oldest.at_ms)))
        label = escape(text("audit.entry", seq=entry.seq), quote=True)
        summary = f"<summary aria-label='{label}'>{escape(words)}</summary>"
        who = "" if entry.actor == SERVICE else f"<b>{escape(entry.actor)}</b>"
        simulated = style.chip(text("simulated"), "tc-sim tc-small") if entry.simulated else ""
        at = to_iso(entry.at_ms)
        when = f'<span class="tc-nowrap">{at[:10]} {at[11:19]}</span>'
        cells.append([str(entry.seq), when, who, f"<details>{summary}{details(row, text)}</details>", simulated])
    head = [text(f"column.{name}") for name in ("number", "when", "who", "what")] + [""]
    return f'<div class="tc-audit">{style.table(head, cells, numbers=[0])}</div>'


def _pages(page: JournalPage, text: Text) -> None:
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        to_newest, to_older = ("before", ""), ("before", str(page.next_before or ""))
        st.button(text("audit.newest"), key="newest", icon=":material/refresh:", on_click=link.write, args=to_newest)
        closed = page.next_before is None
        st.button(text("audit.older"), key="older", disabled=closed, on_click=link.write, args=to_older)
        if page.entries:
            first, last = page.entries[0].seq, page.entries[-1].seq
            st.html(style.note(text("audit.shown", first=first, last=last, head=page.head)))


def render() -> None:
    """Draw the page; it looks again when asked to."""
    text = current_text()
    with api(text, whole=True) as client:
        summary, newest = client.summary(), client.journal_page(limit=1)
        _chain(newest.head, lacking(client.me(), text, "admin"), text)
        query = _query(summary, tuple(newest.kinds), text)
        page = client.journal_page(query, _before(), MOST_READ)
    rows = folded(page.entries, PAGE)
    shown = sum(len(row) for row in rows)
    if shown < len(page.entries):
        entries = page.entries[:shown]
        page = page.model_copy(update={"entries": entries, "next_before": entries[-1].seq})
    st.session_state["export"] = JournalQuery(query.kinds, start_ms=query.start_ms)
    if page.entries:
        st.html(_table(rows, page, text))
    else:
        st.html(style.note(text("audit.none" if page.next_before is None else "audit.none_here")))
    _pages(page, text)


if __name__ == "__main__":
    render()

"""Page: the journal in plain words: what was done, by whom, and whether it is whole."""

from __future__ import annotations

import json
import tempfile
import zipfile
from collections import deque
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from itertools import chain
from typing import BinaryIO, cast

import streamlit as st

from tocsin.client.client import Client
from tocsin.client.models import ExportForm, FleetSummary, JournalPage, JournalQuery
from tocsin.client.models_cells import WholeJournal
from tocsin.client.whole_journal import ENDED, CellEntry, read_on, whole_journal
from tocsin.dashboard import cells, link, style, whole_answers
from tocsin.dashboard.access import api, chosen_cell, client_with, current_token, lacking, show_problem
from tocsin.dashboard.frame import current_text
from tocsin.dashboard.text import STRINGS, Text, clock, plain_sentence, readable, recorded
from tocsin.domain.clock import DAY, HOUR, MINUTE, SystemClock, from_iso, to_iso
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


Row = list[CellEntry]
"""Entries that say the same, newest first: one, or verdicts on one decision that the same guards hold."""


def folded(entries: Sequence[CellEntry], most: int) -> list[Row]:
    """The newest of `entries` in at most `most` rows, by the newest of each; none is left out between them."""
    rows: dict[Hashable, Row] = {}
    for entry in entries:
        key = _key(entry)
        if key not in rows and len(rows) == most:
            break
        rows.setdefault(key, []).append(entry)
    return list(rows.values())


def _key(one: CellEntry) -> Hashable:
    entry = one.entry
    if entry.kind != EntryKind.VERDICT or entry.payload.get("state"):
        return one.cell, entry.seq
    return one.cell, str(entry.payload.get("decision", "")), entry.payload.get("overall"), *holding(entry.payload)


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
    entry, *others = (one.entry for one in row)
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
"""Longest journal that is checked without being asked for, in entries: about half a second (own choice). Of several
cells all together."""
UNASKED_SECONDS = 5.0
"""A check that nobody asked for is left after so long (own choice): what a cell says of its length is its word."""
CHECK_SECONDS = 60.0
"""That of several cells is left after so long: whoever waits may choose one (own choice)."""
ALONE_SECONDS = 600.0
"""That of one cell is left after so long (own choice); `tocsin journal verify` has no such bound."""
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
    # Whole minutes: the same question for a while, so that a cell's last answer to it may stand in.
    start_ms = (from_iso(summary.now) - SPANS[span]) // MINUTE * MINUTE if SPANS[span] else None
    return JournalQuery(tuple(kinds) or VIEWS[view], actor, view == "people", words, start_ms)


def _typed(name: str, label: str) -> str:
    st.session_state[name] = link.read(name)

    def changed() -> None:
        link.write(name, st.session_state[name])
        link.write("before", "")

    return st.text_input(
        label, key=name, placeholder=label, label_visibility="collapsed", max_chars=200, on_change=changed
    )


def _before() -> dict[str, int]:
    """Below which number each cell is asked, as the URL has it; that of one cell alone has no name. What names no cell
    of the fleet is left out."""
    found, known = {}, set(cells.listed().names) if cells.spans() else {""}
    for one in link.read("before").split(","):
        name, _, number = one.rpartition(":")
        if name in known and number.isdecimal() and 0 < len(number) < 19 and int(number) > 0:
            found[name] = int(number)
    return found


def _written(before: Mapping[str, int]) -> str:
    """`before` for the URL."""
    return ",".join(f"{name}:{number}" if name else str(number) for name, number in sorted(before.items()))


Checked = Mapping[str, tuple[Verification, str]]
"""What was found of the chain by cell, and when; an empty name where one cell is shown."""


def _check(names: Sequence[str], seconds: float) -> None:
    """Ask whether the chain of each cell holds and keep the answers for this session; that one does not answer is told
    once."""
    # A kept answer, which a look may stand on while the brain is busy, is no check.
    with client_with(current_token(), chosen_cell()) as client:
        found, problems = verified(client, names, seconds)
    st.session_state["chain"] = {**st.session_state.get("chain", {}), **found}
    st.session_state[_UNCHECKED] = problems


def verified(client: Client, names: Sequence[str], seconds: float) -> tuple[Checked, Mapping[str, TocsinError]]:
    """What is found of the chains of the cells `names`, and why it is not; one that is not at its end after `seconds`
    stays as it was. They are asked in turn, so that none holds up another."""
    found: dict[str, tuple[Verification, str]] = {}
    problems: dict[str, TocsinError] = {}
    wall = SystemClock()
    until_s = wall.monotonic() + seconds
    left = deque((name, (client.at(name) if name else client).journal_slices()) for name in names)
    while left and wall.monotonic() <= until_s:
        name, slices = left.popleft()
        try:
            part = next(slices)
            if part.done or not part.ok:
                found[name] = part, client.summary().now
            else:
                left.append((name, slices))
        except TocsinError as error:
            problems[name] = error
    return found, problems


def _chain(answers: Mapping[str, JournalPage], told: WholeJournal | None, closed: str, text: Text) -> None:
    """What is known of each chain, and ways to check and export it; `closed` says why whoever looks may not check."""
    names = [one.cell for one in told.cells] if told is not None else [""]
    heads = sum(page.head for page in answers.values())
    if "chain" not in st.session_state and heads <= QUICK_CHECK and not closed:
        _check(sorted(answers), UNASKED_SECONDS)
    found: Checked = st.session_state.get("chain", {})
    problems: Mapping[str, TocsinError] = st.session_state.pop(_UNCHECKED, {})
    for name, problem in problems.items():
        if name:
            st.html(style.note(text("cells.also", cell=name, headline=str(problem))))
        else:
            show_problem(problem, text)
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        known = [(name, *found.get(name, (None, ""))) for name in names]
        st.html("".join(chain_words(one, at, text, name) for name, one, at in known))
        icon, wanted = ":material/link:", closed or None
        st.button(
            text("audit.check"),
            key="check",
            icon=icon,
            on_click=_check,
            args=(names, CHECK_SECONDS if any(names) else ALONE_SECONDS),
            disabled=bool(closed),
            help=wanted,
        )
        for form in ("jsonl", "cef"):
            _download(form, text, names)


def chain_words(found: Verification | None, at: str, text: Text, cell: str = "") -> str:
    """What is known of the chain, as a chip that names its cell where there are several."""

    def chip(sign: str, words: str, css: str = "") -> str:
        said = text("cells.also", cell=cell, headline=words) if cell else words
        return style.bar([style.chip(f"{sign} {said}", css)])

    if found is None:
        return chip("?", text("audit.chain.unchecked"))
    if found.ok:
        return chip("✓", text("audit.chain.ok", n=found.events, at=clock(at)))
    return chip("✕", text("audit.chain.broken", problem=found.problem), "tc-alarm")


def _download(form: ExportForm, text: Text, names: Sequence[str] = ("",)) -> None:
    wanted: JournalQuery = st.session_state.get("export", JournalQuery())
    token, cell = current_token(), chosen_cell()
    one = not any(names)
    st.download_button(
        text(f"audit.export.{form}"),
        data=lambda: exported(form, wanted, token, cell) if one else exported_all(form, wanted, token, names),
        file_name=f"tocsin-journal.{form}" if one else f"tocsin-journals-{form}.zip",
        mime=("application/x-ndjson" if form == "jsonl" else "text/plain") if one else "application/zip",
        key=f"export-{form}",
        icon=":material/download:",
        help=text("audit.export.note"),
        on_click="ignore",
    )


def exported(form: ExportForm, query: JournalQuery, token: str, cell: str = "") -> BinaryIO:
    """The journal as the API sends it to the holder of `token`, in a file that takes little memory.

    Streamlit asks for it outside of any run of the script, where nobody is logged in.
    """
    with _spooled() as into, client_with(token, cell) as client:
        for piece in client.export_journal(form, query):
            into.write(piece)
    return into


@contextmanager
def _spooled() -> Iterator[BinaryIO]:
    """A file that is left at its beginning for Streamlit to read, and closed where it was not filled."""
    into = cast("BinaryIO", tempfile.SpooledTemporaryFile(max_size=_MEMORY))  # noqa: SIM115  # it is read later
    try:
        yield into
        into.seek(0)
    except BaseException:
        into.close()
        raise


def exported_all(form: ExportForm, query: JournalQuery, token: str, names: Sequence[str]) -> BinaryIO:
    """The same of the cells `names`, a file of each in an archive: a chain is checked by itself. Cells that do not
    answer, or not to the end, are in a file `INCOMPLETE.txt` beside them; raises as the client does where none does."""
    problems: dict[str, TocsinError] = {}
    with (
        _spooled() as into,
        client_with(token) as client,
        zipfile.ZipFile(into, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        for name in names:
            try:
                _add(archive, f"tocsin-journal-{name}.{form}", client.at(name).export_journal(form, query))
            except TocsinError as problem:
                problems[name] = problem
        if problems and not archive.namelist():
            raise next(iter(problems.values()))
        if problems:
            archive.writestr("INCOMPLETE.txt", "".join(f"{name}: {why}\n" for name, why in problems.items()))
    return into


def _add(archive: zipfile.ZipFile, name: str, pieces: Iterator[bytes]) -> None:
    """A file of `pieces`; none where already the first cannot be had."""
    first = next(pieces, b"")
    with archive.open(name, "w", force_zip64=True) as member:
        for piece in chain((first,), pieces):
            member.write(piece)


def _table(rows: Sequence[Row], answers: Mapping[str, JournalPage], text: Text) -> str:
    told = {cell: _told(page, text) for cell, page in answers.items()}
    several = any(answers)
    parts = []
    for row in rows:
        cell, entry, oldest = row[0].cell, row[0].entry, row[-1].entry
        words = in_words(entry, told[cell], text)
        if entry is not oldest:
            words += " " + text("audit.times", n=len(row), at=clock(to_iso(oldest.at_ms)))
        label = escape(f"{cell} {text('audit.entry', seq=entry.seq)}".strip(), quote=True)
        summary = f"<summary aria-label='{label}'>{escape(words)}</summary>"
        who = "" if entry.actor == SERVICE else f"<b>{escape(entry.actor)}</b>"
        simulated = style.chip(text("simulated"), "tc-sim tc-small") if entry.simulated else ""
        at = to_iso(entry.at_ms)
        when = f'<span class="tc-nowrap">{at[:10]} {at[11:19]}</span>'
        what = f"<details>{summary}{details(row, text)}</details>"
        parts.append([str(entry.seq), *([escape(cell)] if several else []), when, who, what, simulated])
    head = [text(f"column.{name}") for name in ("number", "when", "who", "what")] + [""]
    if several:
        head.insert(1, text("cells.name"))
    return f'<div class="tc-audit">{style.table(head, parts, numbers=[0])}</div>'


def _told(page: JournalPage, text: Text) -> dict[str, str]:
    return {name: text.said(sentence, page.told_zh.get(name, "")) for name, sentence in page.told.items()}


def _pages(
    shown: Sequence[CellEntry], answers: Mapping[str, JournalPage], older: Mapping[str, int], text: Text
) -> None:
    """Ways to newer and older entries, and what is shown; `older` is what to ask each cell for next."""
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        to_newest, to_older = ("before", ""), ("before", _written(older))
        st.button(text("audit.newest"), key="newest", icon=":material/refresh:", on_click=link.write, args=to_newest)
        closed = _is_over(answers, older)
        st.button(text("audit.older"), key="older", disabled=closed, on_click=link.write, args=to_older)
        lines = {name: _shown(name, shown, page, text) for name, page in answers.items()}
        said = cells.each(lines, text) if any(answers) else lines.get("", [])
        if said:
            st.html("".join(map(style.note, said)))


def _is_over(answers: Mapping[str, JournalPage], older: Mapping[str, int]) -> bool:
    """Whether nothing older is in the journal of any cell that answered."""
    return all(older[name] == ENDED for name in answers)


def _shown(cell: str, shown: Sequence[CellEntry], page: JournalPage, text: Text) -> list[str]:
    numbers = [one.entry.seq for one in shown if one.cell == cell]
    return [text("audit.shown", first=numbers[0], last=numbers[-1], head=page.head)] if numbers else []


def render() -> None:
    """Draw the page; it looks again when asked to."""
    text = current_text()
    with api(text, whole=True) as client:
        summary = client.summary()
        newest, told = whole_answers.journal_of(client, JournalQuery(), {}, 1)
        _chain(newest, told, lacking(client.me(), text, "admin"), text)
        kinds = dict.fromkeys(kind for page in newest.values() for kind in page.kinds)
        query, before = _query(summary, tuple(kinds), text), _before()
        answers, told = whole_answers.journal_of(client, query, before, MOST_READ)
    read = whole_journal(answers, MOST_READ)
    rows = folded(read, PAGE)
    shown = read[: sum(map(len, rows))]
    older = read_on(answers, before, shown)
    st.session_state["export"] = JournalQuery(query.kinds, start_ms=query.start_ms)
    if partly := cells.partly(told, text):
        st.html(style.note(partly))
    if shown:
        st.html(_table(rows, answers, text))
    else:
        st.html(style.note(text("audit.none" if _is_over(answers, older) else "audit.none_here")))
    _pages(shown, answers, older, text)


if __name__ == "__main__":
    render()

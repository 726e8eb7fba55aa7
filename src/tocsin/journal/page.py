"""Reading backwards from the newest entry, with filters."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from tocsin.domain.entry import Entry, EntryKind
from tocsin.journal.archive_files import file_with
from tocsin.journal.files import COLUMNS, connect, first_here, from_row

MOST_LOOKED_AT = 50_000
"""Entries that one page looks at: a filter that nothing fits must not walk through years."""
MOST_INTRODUCTIONS = 5_000
"""Decisions, findings and incidents among which `told` looks for those that later entries name."""
SERVICE = "tocsin"
"""Actor of what no person did."""
INTRODUCE = (EntryKind.DECISION, EntryKind.FINDING_OPENED, EntryKind.INCIDENT_OPENED, EntryKind.PREDICTION)
"""Kinds of entries that later ones name by id."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which entries; what is empty bounds nothing. `people` are those that a person made, [`start_ms`, `end_ms`) a
    span of the journal's clock."""

    kinds: Collection[str] = ()
    actor: str = ""
    people: bool = False
    text: str = ""
    start_ms: int | None = None
    end_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """Entries, newest first; `next_before` is None once the first entry of the journal was looked at. `told` has the
    sentences of what they name by id, `told_zh` those in Chinese, as far as there are such."""

    entries: list[Entry]
    next_before: int | None
    head: int
    told: dict[str, str]
    told_zh: dict[str, str]


def read_page(path: Path, before: int | None, limit: int, wanted: Wanted) -> Page:
    """At most `limit` entries below number `before` (None: from the newest), of at most `MOST_LOOKED_AT` looked at.

    Raises InputError where `path` is no journal, and ArchiveMissing where entries of the page are not there.
    """
    head = _head(path)
    top = min(head + 1, before if before is not None else head + 1)
    floor = max(1, top - MOST_LOOKED_AT)
    found = _found(path, top, floor, limit, wanted)
    last = found[-1].seq if len(found) == limit else floor
    return Page(found, last if last > 1 else None, head, *_sentences(path, found, top))


def newest(path: Path, limit: int, wanted: Wanted) -> list[Entry]:
    """The newest `limit` entries that fit, of at most `MOST_LOOKED_AT` looked at, newest first.

    Raises InputError where `path` is no journal, and ArchiveMissing.
    """
    top = _head(path) + 1
    return _found(path, top, max(1, top - MOST_LOOKED_AT), limit, wanted)


def _head(path: Path) -> int:
    with closing(connect(path, write=False)) as db:
        return int(db.execute("SELECT coalesce(max(seq), 0) FROM entry").fetchone()[0])


def _found(path: Path, top: int, floor: int, limit: int, wanted: Wanted) -> list[Entry]:
    where, values = _where(wanted)
    query = f"SELECT {COLUMNS} FROM entry WHERE seq < ? AND seq >= ?{where} ORDER BY seq DESC LIMIT ?"
    found: list[Entry] = []
    for db, above, below in _backwards(path, top, floor):
        found += [from_row(row) for row in db.execute(query, (below, above, *values, limit - len(found)))]
        if len(found) == limit:
            break
    return found


def _backwards(path: Path, top: int, floor: int) -> Iterator[tuple[sqlite3.Connection, int, int]]:
    """The journal and then the files of its archive, newest first, each with the part of [`floor`, `top`) it has."""
    with closing(connect(path, write=False)) as db:
        # Before the first is asked for: what is archived meanwhile is still there while this is read.
        db.execute("BEGIN")
        first = first_here(db)
        yield db, max(floor, first), top
        db.execute("COMMIT")
    top = min(top, first)
    while floor < top:
        file = file_with(path, top - 1)
        with closing(connect(file.path, write=False)) as db:
            yield db, max(floor, file.first), top
        top = file.first


def number_before(path: Path, at_ms: int) -> int:
    """Number of the newest entry from before `at_ms`, 0 where there is none: what is newer alone is looked at.

    Raises InputError where `path` is no journal, and ArchiveMissing.
    """
    query = "SELECT seq FROM entry WHERE seq >= ? AND seq < ? AND at_ms < ? ORDER BY seq DESC LIMIT 1"
    for db, above, below in _backwards(path, _head(path) + 1, 1):
        row = db.execute(query, (above, below, at_ms)).fetchone()
        if row is not None:
            return int(row[0])
    return 0


def read_numbered(path: Path, numbers: Sequence[int]) -> Iterator[Entry]:
    """The entries of these numbers, in order. Raises InputError where `path` is no journal, and ArchiveMissing."""
    marks = ", ".join("?" * len(numbers))
    query = f"SELECT {COLUMNS} FROM entry WHERE seq IN ({marks}) AND seq >= ? AND seq < ?"
    rows: list[tuple[object, ...]] = []
    if numbers:
        for db, above, below in _backwards(path, max(numbers) + 1, max(1, min(numbers))):
            rows += db.execute(query, (*numbers, above, below)).fetchall()
    yield from sorted(map(from_row, rows), key=lambda entry: entry.seq)


def _where(wanted: Wanted) -> tuple[str, list[object]]:
    text = wanted.text.strip()
    clauses: tuple[tuple[object, str, Sequence[object]], ...] = (
        (wanted.kinds, f"kind IN ({', '.join('?' * len(wanted.kinds))})", sorted(wanted.kinds)),
        (wanted.actor, "actor = ?", [wanted.actor]),
        (wanted.people, "actor != ?", [SERVICE]),
        (text, "(payload LIKE ? ESCAPE '\\' OR actor LIKE ? ESCAPE '\\')", [_like(text), _like(text)]),
        (wanted.start_ms is not None, "at_ms >= ?", [wanted.start_ms]),
        (wanted.end_ms is not None, "at_ms < ?", [wanted.end_ms]),
    )
    asked = [(clause, values) for given, clause, values in clauses if given]
    return "".join(f" AND {clause}" for clause, _ in asked), [value for _, values in asked for value in values]


def _like(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return f"%{escaped}%"


def _sentences(path: Path, entries: Sequence[Entry], top: int) -> tuple[dict[str, str], dict[str, str]]:
    """Sentences of what `entries` name by id alone, as far as they were introduced lately; English and Chinese."""
    names = {str(entry.payload.get(key, "")) for entry in entries for key in ("decision", "id")} - {""}
    kinds, marks = ", ".join("?" * len(INTRODUCE)), ", ".join("?" * len(names))
    lately = f"SELECT payload FROM entry WHERE kind IN ({kinds}) AND seq < ? AND seq >= ? ORDER BY seq DESC LIMIT ?"
    query = (
        "SELECT json_extract(payload, '$.id'), "
        "coalesce(json_extract(payload, '$.sentence'), json_extract(payload, '$.finding.sentence')), "
        "coalesce(json_extract(payload, '$.sentence_zh'), json_extract(payload, '$.finding.sentence_zh'), "
        "json_extract(payload, '$.parameters.cause_zh')) "
        f"FROM ({lately}) WHERE json_extract(payload, '$.id') IN ({marks})"
    )
    found: dict[str, str] = {}
    chinese: dict[str, str] = {}
    left = MOST_INTRODUCTIONS
    for db, above, below in _backwards(path, top, max(1, top - MOST_LOOKED_AT)) if names else ():
        rows = db.execute(query, (*INTRODUCE, below, above, left, *sorted(names))).fetchall()
        found = {str(name): str(sentence) for name, sentence, _ in rows if sentence} | found
        chinese = {str(name): str(sentence) for name, _, sentence in rows if sentence} | chinese
        counted = db.execute(f"SELECT count(*) FROM ({lately})", (*INTRODUCE, below, above, left))
        left -= int(counted.fetchone()[0])
        if not left or found.keys() >= names:
            break
    return found, chinese

"""The journal of a cell in PostgreSQL, read."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterator, Sequence

from tocsin.domain.entry import Entry, Verification
from tocsin.journal.files import COLUMNS, Anchor, JournalBroken, Row, from_row
from tocsin.journal.page import INTRODUCE, MOST_LOOKED_AT, SERVICE, Page, Wanted
from tocsin.journal.postgres.connections import Ask, CellDatabase, DatabaseTrouble, NotThere
from tocsin.journal.postgres.packed import unpack
from tocsin.journal.postgres.schema import refuse
from tocsin.journal.verify import SLICE_ENTRIES, End, check

_PAGE = 1_000
_SEQ, _AT, _KIND, _ACTOR, _PAYLOAD = 0, 2, 3, 4, 6
"""Columns of a row."""


class PostgresPast:
    """The journal behind `database`; several may read beside the brain that writes.

    Entries up to `packed` stand there, later ones in the partitions: what was packed lately stands in both for a while.
    """

    def __init__(self, database: CellDatabase) -> None:
        self.database = database
        self._archived = 0

    @property
    def name(self) -> str:
        return self.database.name

    def see(self) -> None:
        """Raise InputError where there is no journal of this version, and Unavailable."""
        with self.steady() as ask:
            refuse(int(ask("SELECT version FROM version")[0][0]), self.database)

    def entries(
        self, after: int = 0, kinds: Collection[str] | None = None, limit: int | None = None
    ) -> Iterator[Entry]:
        return map(from_row, self.rows(after, limit, kinds))

    def rows(self, after: int, limit: int | None, kinds: Collection[str] | None = None) -> Iterator[Row]:
        """Rows of `COLUMNS` behind number `after`, in order, page by page: no read holds the database for long."""
        ended = limit == 0
        while not ended:
            size = _PAGE if limit is None else min(_PAGE, limit)
            with self.steady() as ask:
                rows, after, ended = _next(ask, after, kinds, size)
            yield from rows
            limit = None if limit is None else limit - len(rows)
            ended = ended or limit == 0

    def page(self, before: int | None, limit: int, wanted: Wanted) -> Page:
        with self.steady() as ask:
            head = _head(ask)
            top = min(head + 1, before if before is not None else head + 1)
            floor = max(1, top - MOST_LOOKED_AT)
            found = [from_row(row) for row in _backwards(ask, top, floor, limit, wanted)]
            last = found[-1].seq if len(found) == limit else floor
            told, chinese = _sentences(ask, found, max(1, top - MOST_LOOKED_AT), top)
        return Page(found, last if last > 1 else None, head, told, chinese)

    def newest(self, limit: int, wanted: Wanted) -> list[Entry]:
        with self.steady() as ask:
            top = _head(ask) + 1
            return [from_row(row) for row in _backwards(ask, top, max(1, top - MOST_LOOKED_AT), limit, wanted)]

    def numbered(self, numbers: Sequence[int]) -> Iterator[Entry]:
        if not numbers:
            return
        with self.steady() as ask:
            packed = _packed(ask)
            rows = ask(f"SELECT {COLUMNS} FROM entry WHERE seq = ANY(%s) AND seq > %s", (list(numbers), packed))
            old = {one for one in numbers if one <= packed}
            query = (
                "SELECT content FROM packed "
                "WHERE EXISTS (SELECT FROM unnest(%s::bigint[]) AS n WHERE n BETWEEN first AND last)"
            )
            for (content,) in ask(query, (sorted(old),)) if old else ():
                rows += [row for row in unpack(content) if row[_SEQ] in old]
        yield from map(from_row, sorted(rows, key=lambda row: int(row[_SEQ])))

    def number_before(self, at_ms: int) -> int:
        with self.steady() as ask:
            packed = _packed(ask)
            query = "SELECT seq FROM entry WHERE at_ms < %s AND seq > %s ORDER BY seq DESC LIMIT 1"
            for (seq,) in ask(query, (at_ms, packed)):
                return int(seq)
            for rows in _chunks_backwards(ask, packed + 1, 1):
                for row in reversed(rows):
                    if row[_AT] < at_ms:
                        return int(row[_SEQ])
        return 0

    def verify(self, key: bytes = b"", after: int = 0) -> Verification:
        return check(self, key, after, "", None)

    def verify_slice(
        self, key: bytes = b"", after: int = 0, previous: str = "", entries: int = SLICE_ENTRIES
    ) -> Verification:
        return check(self, key, after, previous, entries)

    def end_of(self, key: bytes) -> End:
        """Where the chain ends by the row that the transaction of each entry moves. Raises JournalBroken where `key`
        did not seal it."""
        with self.steady() as ask:
            anchor, seal = head_of(ask)
            if key and anchor.seq and not anchor.is_sealed_by(key, seal):
                how = "is sealed with another key" if seal else "is not sealed"
                remedy = "restore a backup, or take it as it is by tocsin journal seal"
                raise JournalBroken(f"the head of {self.name} {how}, the journal may have been rewritten: {remedy}")
            last = int(ask("SELECT coalesce(max(seq), 0) FROM entry")[0][0])
            if last > anchor.seq:
                which = f"entries {anchor.seq + 1} to {last} stand behind the end that was acknowledged"
                raise JournalBroken(f"{which}: they were added past Tocsin; restore a backup")
            return End(anchor, anchor.seq, bool(key))

    def archived(self) -> int:
        """Number of the newest entry that is packed; as it was last known where the database is away."""
        try:
            with self.steady() as ask:
                self._archived = _packed(ask)
        except DatabaseTrouble:
            # Metrics ask this: a page of them must not fail with the database.
            pass
        return self._archived

    def newest_of(self, kind: str, limit: int) -> list[tuple[int, str]]:
        """Numbers and payloads of the newest `limit` entries of `kind` that are not packed, newest first."""
        with self.steady() as ask:
            query = "SELECT seq, payload FROM entry WHERE kind = %s ORDER BY seq DESC LIMIT %s"
            return [(int(seq), str(payload)) for seq, payload in ask(query, (str(kind), limit))]

    @contextlib.contextmanager
    def steady(self) -> Iterator[Ask]:
        """One state of the journal. Raises InputError where there is none, and Unavailable."""
        try:
            with self.database.steady() as ask:
                yield ask
        except NotThere:
            refuse(0, self.database)


def head_of(ask: Ask) -> tuple[Anchor, str]:
    """The newest entry that was acknowledged, and its seal."""
    ((seq, own, seal),) = ask("SELECT seq, hash, seal FROM head")
    return Anchor(int(seq), str(own)), str(seal)


def _head(ask: Ask) -> int:
    return head_of(ask)[0].seq


def _packed(ask: Ask) -> int:
    """Number of the newest entry that is packed."""
    return int(ask("SELECT coalesce(max(last), 0) FROM packed")[0][0])


def _next(ask: Ask, after: int, kinds: Collection[str] | None, size: int) -> tuple[list[Row], int, bool]:
    """At most `size` rows behind `after`, the number behind which to go on, and whether there are no more."""
    for last, content in ask("SELECT last, content FROM packed WHERE last > %s ORDER BY last LIMIT 1", (after,)):
        rows = [row for row in unpack(content) if row[_SEQ] > after and (not kinds or row[_KIND] in kinds)]
        return rows[:size], rows[size - 1][_SEQ] if len(rows) > size else int(last), False
    clause, values = (" AND kind = ANY(%s)", [sorted(map(str, kinds))]) if kinds else ("", [])
    query = f"SELECT {COLUMNS} FROM entry WHERE seq > %s{clause} ORDER BY seq LIMIT %s"
    rows = ask(query, (after, *values, size))
    return rows, rows[-1][_SEQ] if rows else after, len(rows) < size


def _backwards(ask: Ask, top: int, floor: int, limit: int, wanted: Wanted) -> list[Row]:
    """At most `limit` rows of [`floor`, `top`) that fit, newest first."""
    packed = _packed(ask)
    clause, values = _where(wanted)
    query = f"SELECT {COLUMNS} FROM entry WHERE seq < %s AND seq >= %s{clause} ORDER BY seq DESC LIMIT %s"
    found = ask(query, (top, max(floor, packed + 1), *values, limit)) if packed + 1 < top else []
    if len(found) < limit and floor <= packed:
        for rows in _chunks_backwards(ask, min(top, packed + 1), floor):
            found += [row for row in reversed(rows) if floor <= row[_SEQ] < top and _fits(row, wanted)]
            if len(found) >= limit:
                break
    return found[:limit]


def _chunks_backwards(ask: Ask, top: int, floor: int) -> Iterator[list[Row]]:
    """The packed rows that have some of [`floor`, `top`), newest chunk first."""
    while floor < top:
        query = "SELECT first, content FROM packed WHERE first < %s AND last >= %s ORDER BY last DESC LIMIT 1"
        found = ask(query, (top, floor))
        if not found:
            return
        top = int(found[0][0])
        yield unpack(found[0][1])


def _where(wanted: Wanted) -> tuple[str, list[object]]:
    text = f"%{_escaped(wanted.text.strip())}%" if wanted.text.strip() else ""
    # In collation C, as in a file: only letters of ASCII are looked for in either case, and in half of the time.
    clauses: tuple[tuple[object, str, list[object]], ...] = (
        (wanted.kinds, "kind = ANY(%s)", [sorted(map(str, wanted.kinds))]),
        (wanted.actor, "actor = %s", [wanted.actor]),
        (wanted.people, "actor <> %s", [SERVICE]),
        (text, '(payload COLLATE "C" ILIKE %s OR actor COLLATE "C" ILIKE %s)', [text, text]),
        (wanted.start_ms is not None, "at_ms >= %s", [wanted.start_ms]),
        (wanted.end_ms is not None, "at_ms < %s", [wanted.end_ms]),
    )
    asked = [(clause, values) for given, clause, values in clauses if given]
    return "".join(f" AND {clause}" for clause, _ in asked), [value for _, values in asked for value in values]


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


def _fits(row: Row, wanted: Wanted) -> bool:
    """The same for a row that is packed."""
    text = wanted.text.strip().casefold()
    return (
        (not wanted.kinds or row[_KIND] in wanted.kinds)
        and (not wanted.actor or row[_ACTOR] == wanted.actor)
        and not (wanted.people and row[_ACTOR] == SERVICE)
        and (not text or text in row[_PAYLOAD].casefold() or text in row[_ACTOR].casefold())
        and (wanted.start_ms is None or row[_AT] >= wanted.start_ms)
        and (wanted.end_ms is None or row[_AT] < wanted.end_ms)
    )


def about_of(kind: str, payload: object) -> str:
    """The id by which later entries name what this one introduces; empty where it introduces nothing."""
    if kind not in INTRODUCE or not isinstance(payload, dict) or not isinstance(payload.get("id"), str):
        return ""
    return str(payload["id"])


def _sentences(ask: Ask, entries: Sequence[Entry], floor: int, top: int) -> tuple[dict[str, str], dict[str, str]]:
    """Sentences of what `entries` name by id alone, as far as they were introduced lately; English and Chinese."""
    names = sorted({str(entry.payload.get(key, "")) for entry in entries for key in ("decision", "id")} - {""})
    query = "SELECT payload FROM entry WHERE about = ANY(%s) AND seq < %s AND seq >= %s ORDER BY seq"
    payloads = [json.loads(text) for (text,) in ask(query, (names, top, floor))] if names else []
    if names and floor <= _packed(ask):
        kinds = Wanted(kinds=INTRODUCE)
        rows = _backwards(ask, top, floor, MOST_LOOKED_AT, kinds)
        payloads = [json.loads(row[_PAYLOAD]) for row in reversed(rows)]
    english: dict[str, str] = {}
    chinese: dict[str, str] = {}
    for payload in payloads:
        name = str(payload.get("id", ""))
        finding, parameters = payload.get("finding") or {}, payload.get("parameters") or {}
        said = payload.get("sentence") or finding.get("sentence")
        zh = payload.get("sentence_zh") or finding.get("sentence_zh") or parameters.get("cause_zh")
        if name in names:
            english |= {name: str(said)} if said else {}
            chinese |= {name: str(zh)} if zh else {}
    return english, chinese

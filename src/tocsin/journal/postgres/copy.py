"""Copying the journal of a cell into a file and back: either back end restores what either has backed up."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path

from tocsin.at_rest.database import connect
from tocsin.domain.atomic_file import make_private
from tocsin.domain.clock import DAY
from tocsin.domain.entry import GENESIS, Verification
from tocsin.domain.errors import Conflict, InputError
from tocsin.journal.files import COLUMNS, Anchor, JournalBroken, Row, from_row, migrate, read_rows
from tocsin.journal.postgres.connections import CellDatabase, Line
from tocsin.journal.postgres.journal import seal_head
from tocsin.journal.postgres.past import PostgresPast, about_of, head_of
from tocsin.journal.postgres.schema import prepare
from tocsin.journal.verify import verify

_BATCH = 2_000
_INSERT = (
    f"INSERT INTO entry ({COLUMNS}, about) SELECT * FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::text[], "
    "%s::text[], %s::smallint[], %s::text[], %s::text[], %s::text[], %s::text[])"
)


def backup(past: PostgresPast, target: Path, key: bytes = b"") -> None:
    """Copy the journal to the new file `target` with its anchor, also beside a writer.

    It is sealed with `key` where the head is: a copy makes nothing good that was added without the key. Raises
    InputError where the file exists, and JournalBroken where entries lack.
    """
    if target.exists():
        raise InputError("target", str(target), "exists", "name a new file")
    with past.database.steady() as ask:
        anchor, seal = head_of(ask)
    make_private(target)
    with closing(connect(target)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        migrate(db, 0)
        db.execute("BEGIN")
        rows = past.rows(0, anchor.seq)
        db.executemany(f"INSERT INTO entry ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
        db.execute("COMMIT")
        last = db.execute("SELECT seq, hash FROM entry ORDER BY seq DESC LIMIT 1").fetchone()
    if last is not None and last != (anchor.seq, anchor.hash):
        raise JournalBroken(f"{past.name} ends with entry {anchor.seq}, and the copy with entry {last[0]}")
    anchor.write(target, key if key and anchor.is_sealed_by(key, seal) else b"")


def restore(source: Path, database: CellDatabase, key: bytes = b"") -> None:
    """Put the backup `source` in place of the journal of the cell, whose schema stays as ``NAME_replaced``.

    Raises InputError where the backup's chain, or with a `key` its seal, does not hold, and Conflict where a brain is
    active, where the journal is whole and the backup does not continue it, or where an earlier ``NAME_replaced`` is
    still there.
    """
    result = verify(source, key)
    if not result.ok:
        raise InputError("source", str(source), result.problem, "use another backup")
    prepare(database)
    with closing(database.line()) as line:
        _refuse_active(line, database)
        old = PostgresPast(database)
        with database.steady() as ask:
            head = head_of(ask)[0]
        if old.verify(key).ok and not _continues(source, head):
            raise Conflict(f"{database.name} is whole and {source} does not continue it; rename its schema first")
        aside, fresh = f"{database.schema}_replaced", f"{database.schema}_restored"
        if line.ask("SELECT 1 FROM pg_namespace WHERE nspname = %s", (aside,)):
            raise Conflict(f"schema {aside} is left from an earlier restore; rename or drop it first")
        line.ask(f'DROP SCHEMA IF EXISTS "{fresh}" CASCADE')
        _fill(source, CellDatabase(database.url, fresh), key)
        _swap(line, database, fresh, aside)


def _refuse_active(line: Line, database: CellDatabase) -> None:
    for (holder,) in line.ask("SELECT holder FROM lease WHERE holder <> '' AND until > clock_timestamp()"):
        raise Conflict(f"{database.name} is in use by the brain {holder}; stop all brains of the cell first")


def _continues(source: Path, head: Anchor) -> bool:
    if not head.seq:
        return True
    found = next(read_rows(source, after=head.seq - 1, limit=1), None)
    return found is not None and found[-1] == head.hash


def _fill(source: Path, database: CellDatabase, key: bytes) -> None:
    """The tables of `database`, which do not exist yet, with what `source` has."""
    prepare(database)
    known: set[int] = set()
    with closing(database.line()) as line:
        rows, last = read_rows(source), None
        while batch := list(islice(rows, _BATCH)):
            # One instant of each day that is new: a month begins with one of them.
            days = {int(row[2]) // DAY: int(row[2]) for row in batch}
            for day in sorted(days.keys() - known):
                line.ask("SELECT make_month(%s)", (days[day],))
            known |= days.keys()
            line.ask(_INSERT, _columns(batch))
            last = batch[-1]
        if last is not None:
            anchor = Anchor(int(last[0]), str(last[-1]))
            seal = anchor.seal(key) if key else ""
            line.ask("UPDATE head SET seq = %s, hash = %s, seal = %s", (anchor.seq, anchor.hash, seal))
            line.ask("UPDATE lease SET epoch = (SELECT max(epoch) FROM entry)")
    database.close()


def _columns(rows: Sequence[Row]) -> list[list[object]]:
    columns: list[list[object]] = [list(column) for column in zip(*rows, strict=True)]
    return [*columns, [about_of(row[3], from_row(row).payload) for row in rows]]


def _swap(line: Line, database: CellDatabase, fresh: str, aside: str) -> None:
    """One name for the other, in one transaction, where no brain has become active meanwhile."""
    # An epoch that was ever given out is not given out again: its holder may only be asleep.
    line.ask(f"""
BEGIN;
LOCK TABLE "{database.schema}".lease IN ACCESS EXCLUSIVE MODE;
DO $$ BEGIN
    IF EXISTS (SELECT FROM "{database.schema}".lease WHERE holder <> '' AND until > clock_timestamp()) THEN
        RAISE EXCEPTION 'a brain has become active';
    END IF;
END $$;
UPDATE "{fresh}".lease SET epoch = greatest(epoch, (SELECT epoch FROM "{database.schema}".lease));
ALTER SCHEMA "{database.schema}" RENAME TO "{aside}";
ALTER SCHEMA "{fresh}" RENAME TO "{database.schema}";
COMMIT;
""")


def seal(database: CellDatabase, key: bytes) -> Verification:
    """Seal the head of the journal with `key` as it stands, where its chain holds; no brain may be active.

    Raises Conflict where one is.
    """
    past = PostgresPast(database)
    with closing(database.line()) as line:
        _refuse_active(line, database)
    result = past.verify()
    if result.ok:
        with database.steady() as ask:
            anchor = head_of(ask)[0]
        if anchor.hash != (result.hash or GENESIS):
            raise Conflict(f"{database.name} has moved meanwhile; stop all brains of the cell first")
        seal_head(database, anchor, key)
    return result

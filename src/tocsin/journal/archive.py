"""Archiving: the oldest entries of a journal go, a file at a time, out of its own file, and the chain is kept."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from tocsin.at_rest.database import connect_copy
from tocsin.domain.atomic_file import make_folder, make_private, sync_folder
from tocsin.journal.archive_files import ArchiveFile, file_of, folder_of
from tocsin.journal.files import COLUMNS, JournalBroken, migrate, read_rows
from tocsin.journal.journal import Journal
from tocsin.journal.verify import hash_at, problem_of_row

FILE_ENTRIES = 50_000
"""Entries of one file: some 40 MB, copied and checked in about 2 s of one core."""


def archive_next(journal: Journal, keep: int, entries: int = FILE_ENTRIES) -> ArchiveFile | None:
    """Archive the oldest `entries` where the newest `keep` stay; None where there are not as many yet.

    The entries from the newest checkpoint on stay as well: a start goes on from there.
    Others may read and append meanwhile. Raises JournalBroken where the chain does not hold: nothing is changed then.
    """
    journal.remove_archived()
    first = journal.first_here()
    last = first + entries - 1
    needed = journal.checkpoint.seq if journal.checkpoint else journal.head
    if journal.head - last < keep or last >= needed:
        return None
    file = file_of(journal.path, first, last)
    if not folder_of(journal.path).exists():
        make_folder(folder_of(journal.path))
        folder_of(journal.path).chmod(0o700)
    part = file.path.with_name(file.path.name + ".part")
    part.unlink(missing_ok=True)
    last_hash = _copy(journal.path, first, last, part)
    part.replace(file.path)
    sync_folder(file.path.parent)
    journal.retire(file, last_hash)
    return file


def _copy(journal: Path, first: int, last: int, part: Path) -> str:
    """Put the entries `first` to `last` into the new file `part`, durable on return; the hash of the last one."""
    make_private(part)
    # As the journal itself: entries that were encrypted are never written in the clear.
    with closing(connect_copy(part, journal)) as db:
        # Without a log beside it: a file that is never written again can be read where nothing can be written.
        db.execute("PRAGMA journal_mode = DELETE")
        db.execute("PRAGMA synchronous = FULL")
        migrate(db, 0)
        db.execute("BEGIN")
        count, previous = first - 1, hash_at(journal, first - 1) or ""
        for row in read_rows(journal, after=count, limit=last - count):
            if problem := problem_of_row(row, count, previous):
                raise JournalBroken(f"journal {journal} is not archived: {problem}; restore a backup")
            count, previous = row[0], row[-1]
            db.execute(f"INSERT INTO entry ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
        db.execute("COMMIT")
    return previous

"""Copying a journal away and back."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from tocsin.domain.errors import Conflict, InputError
from tocsin.journal.files import Anchor, connect, lock
from tocsin.journal.verify import verify


def backup(source: Path, target: Path) -> None:
    """Copy the journal `source` with its anchor to the new file `target`, also beside a writer."""
    if target.exists():
        raise InputError("target", str(target), "exists", "name a new file")
    with closing(connect(source, write=False)) as old, closing(sqlite3.connect(target)) as new:
        old.backup(new)
        last = new.execute("SELECT seq, hash FROM entry ORDER BY seq DESC LIMIT 1").fetchone()
    if last:
        Anchor(int(last[0]), str(last[1])).write(target)


def restore(source: Path, target: Path) -> None:
    """Put the backup `source` in place of the journal `target`.

    Raises InputError where the backup's chain does not hold, and Conflict where a brain uses `target` or where `target`
    is longer than the backup: entries that were acknowledged are never thrown away; move the file aside first.
    """
    result = verify(source)
    if not result.ok:
        raise InputError("source", str(source), result.problem, "use another backup")
    target.parent.mkdir(parents=True, exist_ok=True)
    with lock(target):
        if target.exists() and verify(target).ok and verify(target).events > result.events:
            raise Conflict(f"{target} is whole and has more entries than {source}; move it aside first")
        for suffix in ("-wal", "-shm", ".head"):
            target.with_name(target.name + suffix).unlink(missing_ok=True)
        target.unlink(missing_ok=True)
        backup(source, target)

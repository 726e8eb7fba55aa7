"""Backup and restore of the embedded store: the SQLite file, and the folder of segments beside it."""

from __future__ import annotations

import fcntl
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from tocsin.at_rest.database import connect, connect_copy
from tocsin.domain.atomic_file import atomic_file, make_folder, make_private, sync_folder
from tocsin.domain.errors import InputError
from tocsin.store.embedded import segments
from tocsin.store.embedded.database import MIGRATIONS, Database, locked
from tocsin.store.port import StoreUnavailable

_TRIES = 3
_SEGMENTED = 2
"""The first schema version that has segments."""


def folder_of(path: Path) -> Path:
    """The folder of segments of the store at `path`."""
    return path.with_name(path.name + ".segments")


def backup(database: Database, target: Path) -> None:
    """Copy the store to the new file `target`, and its segments to the folder beside that, while it is in use.

    Raises InputError where `target` exists, StoreUnavailable where the copy cannot be made.
    """
    for path in (target, folder_of(target)):
        if path.exists():
            raise InputError("target", str(path), "exists", "name a new file")
    for _ in range(_TRIES):
        try:
            make_private(target)
            with closing(connect_copy(target, database.path)) as fresh:
                with database.reading() as db:
                    db.backup(fresh)
                _copy_segments(fresh, folder_of(database.path), folder_of(target))
            sync_folder(target.absolute().parent)
            return
        except FileNotFoundError:
            # Upkeep replaced a segment after the list was copied.
            _discard(target)
        except (OSError, sqlite3.Error) as error:
            _discard(target)
            raise StoreUnavailable(f"backup {target}: {error}") from None
    raise StoreUnavailable(f"backup {target}: segments go away faster than they are copied")


def _discard(target: Path) -> None:
    target.unlink(missing_ok=True)
    shutil.rmtree(folder_of(target), ignore_errors=True)


def _copy_segments(db: sqlite3.Connection, source: Path, target: Path) -> None:
    """Copy every file that counts in `db`."""
    make_folder(target)
    if int(db.execute("PRAGMA user_version").fetchone()[0]) < _SEGMENTED:
        return
    query = "SELECT name, variants FROM segment WHERE retired_ms IS NULL AND problem IS NULL"
    for name, variants in db.execute(query):
        _copy(source / name, target / name)
        if variants:
            beside = segments.variants_of(source / name)
            _copy(beside, target / beside.name)


def _copy(source: Path, target: Path) -> None:
    with source.open("rb") as old, atomic_file(target) as new:
        shutil.copyfileobj(old, new, 2**20)


def restore(source: Path, target: Path) -> None:
    """Put the backup `source` in place of the store `target`, which must not be in use.

    Raises InputError where `source` is no whole store of this or an older version, Conflict where `target` is in use.
    """
    fresh = target.with_name(target.name + ".restored")
    _discard(fresh)
    try:
        with closing(connect(source, read_only=True)) as db:
            whole = db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
            version = int(db.execute("PRAGMA user_version").fetchone()[0])
            if not whole or not 0 < version <= len(MIGRATIONS):
                raise InputError("source", str(source), "is no whole store of this version", "use another backup")
            make_folder(target.absolute().parent)
            make_private(fresh)
            with closing(connect_copy(fresh, source)) as made:
                db.backup(made)
            _copy_segments(db, folder_of(source), folder_of(fresh))
    except sqlite3.DatabaseError as error:
        raise InputError("source", str(source), f"cannot be read: {error}", "use another backup") from None
    except FileNotFoundError as error:
        _discard(fresh)
        raise InputError(
            "source", str(source), f"lacks a file of its segments: {error}", "use another backup"
        ) from None
    except OSError as error:
        _discard(fresh)
        raise StoreUnavailable(f"store {target}: {error}") from None
    try:
        with locked(target, ".lock", fcntl.LOCK_EX):
            _put_in_place(fresh, target)
    except OSError as error:
        raise StoreUnavailable(f"store {target}: {error}; restore it again") from None


def _put_in_place(fresh: Path, target: Path) -> None:
    # Files that the new list does not name do no harm, names without files would: so the files come first.
    _merge_folders(folder_of(fresh), folder_of(target))
    for suffix in ("-wal", "-shm"):
        target.with_name(target.name + suffix).unlink(missing_ok=True)
    fresh.replace(target)
    sync_folder(target.absolute().parent)


def _merge_folders(source: Path, target: Path) -> None:
    make_folder(target)
    for path in source.iterdir():
        path.replace(target / path.name)
    sync_folder(target)
    source.rmdir()

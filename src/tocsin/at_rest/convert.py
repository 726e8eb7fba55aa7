"""Encrypting files that are there, or with another key: copied into a new file, compared, and put in its place.

Whoever calls is alone with the files. A process that is killed meanwhile leaves the old file or the new one.
"""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

from tocsin.at_rest import blob
from tocsin.at_rest.database import PAGE_BYTES, key_text, opened_raw
from tocsin.at_rest.keys import StateKey
from tocsin.domain.atomic_file import make_private, sync_folder, write_atomically
from tocsin.domain.errors import Conflict, InputError

_LOG = ("-wal", "-shm", "-journal")


def convert_database(path: Path, key: StateKey | None, page_bytes: int = PAGE_BYTES) -> None:
    """Write the SQLite file `path` anew, encrypted with `key`, plain where that is None.

    Raises InputError where the copy is not the same, Conflict where the file is in use, and sqlite3.Error: the old
    file stays then.
    """
    fresh = path.with_name(path.name + ".sealing")
    _discard(fresh)
    make_private(fresh)
    header = b"" if key is None else key.new_header(page_bytes)
    with closing(opened_raw(path)) as old:
        # What is in the log goes into the file; it fails where anybody else has the file open.
        mode = old.execute("PRAGMA journal_mode = DELETE").fetchone()[0]
        if mode != "delete":
            raise Conflict(f"{path} is in use; stop what uses it first")
        version = int(old.execute("PRAGMA main.user_version").fetchone()[0])
        text = "" if key is None else key_text(key, header)
        old.execute("ATTACH DATABASE ? AS fresh KEY ?", (str(fresh), text))
        old.execute(f"PRAGMA fresh.{'page_size' if key is None else 'cipher_page_size'} = {page_bytes}")
        old.execute("SELECT sqlcipher_export('fresh')")
        old.execute(f"PRAGMA fresh.user_version = {version}")
        problem = _difference(old)
        old.execute("DETACH DATABASE fresh")
    with fresh.open("rb") as file:
        start = file.read(len(header) or 1)
        os.fsync(file.fileno())
    if not problem and header and start != header:
        problem = "the copy does not begin as it should"
    if problem:
        _discard(fresh)
        raise InputError("file", str(path), f"was not converted: {problem}", "restore a backup of it first")
    for suffix in _LOG:
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    fresh.replace(path)
    sync_folder(path.absolute().parent)


def _difference(db: object) -> str:
    """How the database `fresh` differs from `main`; empty where it holds the same rows of the same tables."""
    execute = db.execute  # type: ignore[attr-defined]
    if (found := execute("PRAGMA fresh.integrity_check(1)").fetchone()[0]) != "ok":
        return str(found)
    shape = "SELECT type, name, tbl_name, sql FROM {}.sqlite_schema WHERE name NOT LIKE 'sqlite_stat%' ORDER BY 1, 2"
    tables = execute(shape.format("main")).fetchall()
    if tables != execute(shape.format("fresh")).fetchall():
        return "its tables are not the same"
    for kind, name, _, _ in tables:
        if kind != "table":
            continue
        rows = execute(f'SELECT (SELECT count(*) FROM main."{name}"), (SELECT count(*) FROM fresh."{name}")').fetchone()
        if rows[0] != rows[1]:
            return f"table {name} has {rows[0]} rows, its copy {rows[1]}"
    return ""


def convert_blob(path: Path, key: StateKey | None) -> None:
    """The same of a single file. Raises InputError, Unreadable and OSError."""
    data = blob.opened(path.read_bytes(), path)
    write_atomically(path, data if key is None else blob.closed(data, key))


def _discard(path: Path) -> None:
    for suffix in ("", *_LOG):
        path.with_name(path.name + suffix).unlink(missing_ok=True)

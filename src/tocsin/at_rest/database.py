"""The one door to SQLite files: plain by `sqlite3`, encrypted by SQLCipher, as the file's first bytes say."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from tocsin.at_rest.keys import RING, StateKey, header_of, is_header, page_bytes_of

if TYPE_CHECKING:
    from tocsin.at_rest.sqlcipher import Connection

PAGE_BYTES = 4096
PLAIN = b"SQLite format 3\0"


def connect(
    path: Path,
    *,
    read_only: bool = False,
    sealed: bool | None = None,
    page_bytes: int = PAGE_BYTES,
    isolation_level: str | None = None,
    timeout: float = 5.0,
) -> sqlite3.Connection:
    """Open the SQLite file `path`; the connection may be used from several threads, one at a time.

    A new file is encrypted where `sealed`, or where that is None and this process holds a key; its pages then have
    `page_bytes`. An encrypted file raises the errors of sqlite3. Raises InputError where a key is needed and lacks, and
    sqlite3.Error.
    """
    options: dict[str, Any] = {
        "isolation_level": isolation_level,
        "check_same_thread": False,
        "timeout": timeout,
        "uri": read_only,
    }
    name = f"{path.absolute().as_uri()}?mode=ro" if read_only else str(path)
    header = header_of(path)
    if not header and not read_only and sealed is not False and (key := RING.first()) is not None:
        return _sealed(name, key, key.new_header(page_bytes), options)
    if is_header(header):
        return _sealed(name, RING.of(header, path), header, options)
    db: sqlite3.Connection = sqlite3.connect(name, **options)
    return db


def connect_copy(path: Path, of: Path) -> sqlite3.Connection:
    """A new file for a copy of the database `of`: encrypted where that is, with pages of the same size, without which
    SQLite copies none. Raises as `connect`."""
    header = header_of(of)
    if not is_header(header):
        return connect(path, sealed=False)
    return connect(path, sealed=True, page_bytes=page_bytes_of(header))


def _sealed(name: str, key: StateKey, header: bytes, options: dict[str, Any]) -> sqlite3.Connection:
    from tocsin.at_rest import sqlcipher

    db = sqlcipher.connect(name, **options)
    db.execute(f'PRAGMA key = "{key_text(key, header)}"')
    db.execute(f"PRAGMA cipher_page_size = {page_bytes_of(header)}")
    db.execute("PRAGMA temp_store = MEMORY")
    return cast(sqlite3.Connection, db)


def key_text(key: StateKey, header: bytes) -> str:
    """The key of a file as SQLCipher takes it: raw, with the 16 bytes that begin the file in place of a salt."""
    return f"x'{key.of_file(header).hex()}{header.hex()}'"


def is_encrypted(path: Path) -> bool:
    """Whether the file at `path` is an encrypted one."""
    return is_header(header_of(path))


def opened_raw(path: Path) -> Connection:
    """The file `path` in SQLCipher whether it is encrypted or not: what copies one into the other needs that."""
    from tocsin.at_rest import sqlcipher

    header = header_of(path)
    db = sqlcipher.connect(str(path), isolation_level=None)
    if is_header(header):
        db.execute(f'PRAGMA key = "{key_text(RING.of(header, path), header)}"')
        db.execute(f"PRAGMA cipher_page_size = {page_bytes_of(header)}")
    return db

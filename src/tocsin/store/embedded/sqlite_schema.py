"""Tables of the embedded store and their migrations."""

from __future__ import annotations

import sqlite3

from tocsin.domain.errors import InputError

_WIDE = """
CREATE TABLE gpu (
    id INTEGER PRIMARY KEY, uuid TEXT NOT NULL UNIQUE, host TEXT NOT NULL, position INTEGER, model TEXT NOT NULL,
    serial TEXT NOT NULL, pci_bus_id TEXT NOT NULL, parent TEXT NOT NULL, mig_profile TEXT NOT NULL,
    pool TEXT NOT NULL, rack TEXT NOT NULL, labels TEXT NOT NULL, simulated INTEGER NOT NULL, last_ms INTEGER
) STRICT;
CREATE TABLE reading (gpu INTEGER NOT NULL, at_ms INTEGER NOT NULL, missing BLOB, extra TEXT);
CREATE UNIQUE INDEX reading_key ON reading (gpu, at_ms);
CREATE INDEX reading_time ON reading (at_ms);
CREATE TABLE metric (position INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE) STRICT;
CREATE TABLE event (
    id TEXT PRIMARY KEY, kind TEXT NOT NULL, gpu TEXT NOT NULL, host TEXT NOT NULL, at_ms INTEGER NOT NULL,
    code INTEGER NOT NULL, message TEXT NOT NULL, source TEXT NOT NULL, simulated INTEGER NOT NULL
) STRICT;
CREATE INDEX event_time ON event (at_ms);
CREATE TABLE finding (id TEXT PRIMARY KEY, at_ms INTEGER NOT NULL, body TEXT NOT NULL) STRICT;
CREATE INDEX finding_time ON finding (at_ms);
CREATE TABLE prediction (id TEXT PRIMARY KEY, at_ms INTEGER NOT NULL, gpu TEXT NOT NULL, body TEXT NOT NULL) STRICT;
CREATE INDEX prediction_time ON prediction (at_ms);
"""

# A chunk holds readings of one hour; a later one outranks an earlier one, so numbers are never used again. A segment
# is a file, as old as the `newest` chunk that went into it; once `retired_ms` is there, its rows are found in another
# one, and the file waits for its last reader.
_COLUMNS = """
CREATE TABLE chunk_names (id INTEGER PRIMARY KEY, body TEXT NOT NULL UNIQUE) STRICT;
CREATE TABLE chunk (
    id INTEGER PRIMARY KEY AUTOINCREMENT, bucket_ms INTEGER NOT NULL, first_ms INTEGER NOT NULL,
    last_ms INTEGER NOT NULL, first_gpu INTEGER NOT NULL, last_gpu INTEGER NOT NULL, height INTEGER NOT NULL,
    names INTEGER NOT NULL, keys BLOB NOT NULL, body BLOB NOT NULL, notes TEXT, extra BLOB
) STRICT;
CREATE INDEX chunk_span ON chunk (bucket_ms, last_ms, first_ms, first_gpu, last_gpu, height);
CREATE TABLE segment (
    id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, step_ms INTEGER NOT NULL,
    start_ms INTEGER NOT NULL, end_ms INTEGER NOT NULL, first_ms INTEGER NOT NULL, last_ms INTEGER NOT NULL,
    first_gpu INTEGER NOT NULL, last_gpu INTEGER NOT NULL, height INTEGER NOT NULL, variants INTEGER NOT NULL,
    size INTEGER NOT NULL, newest INTEGER NOT NULL, problem TEXT, retired_ms INTEGER
) STRICT;
CREATE INDEX segment_span ON segment (last_ms, first_ms);
CREATE INDEX gpu_last ON gpu (last_ms);
"""

_WEIGHT = """
ALTER TABLE event ADD COLUMN severity TEXT NOT NULL DEFAULT '';
ALTER TABLE event ADD COLUMN remedy TEXT NOT NULL DEFAULT '';
"""

MIGRATIONS: tuple[str, ...] = (_WIDE, _COLUMNS, _WEIGHT)
"""Script n brings schema version n to n + 1; the version is SQLite's ``user_version``."""


def prepare(db: sqlite3.Connection, path: str) -> None:
    """Bring the schema up to date. Raises InputError where the file is of a newer version."""
    version = int(db.execute("PRAGMA user_version").fetchone()[0])
    if version > len(MIGRATIONS):
        raise InputError("store.path", path, f"has schema version {version}", "use the version of Tocsin that wrote it")
    for number in range(version, len(MIGRATIONS)):
        db.execute("BEGIN IMMEDIATE")
        with db:
            # Another process may have been faster since the version was read.
            if int(db.execute("PRAGMA user_version").fetchone()[0]) == number:
                for statement in MIGRATIONS[number].split(";"):
                    db.execute(statement)
                db.execute(f"PRAGMA user_version = {number + 1}")

"""Tables of the embedded store, their migrations, and a column for every metric."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from tocsin.domain.errors import InputError
from tocsin.domain.metrics import METRICS

_CREATE = """
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

MIGRATIONS: tuple[str, ...] = (_CREATE,)
"""Script n brings schema version n to n + 1; the version is SQLite's ``user_version``."""


def prepare(db: sqlite3.Connection, path: str) -> None:
    """Bring the schema up to date and give every metric of the table a column.

    Raises InputError where the file is of a newer version.
    """
    version = int(db.execute("PRAGMA user_version").fetchone()[0])
    if version > len(MIGRATIONS):
        raise InputError("store.path", path, f"has schema version {version}", "use the version of Tocsin that wrote it")
    for number in range(version, len(MIGRATIONS)):
        db.executescript(f"BEGIN IMMEDIATE; {MIGRATIONS[number]} PRAGMA user_version = {number + 1}; COMMIT;")
    known = {str(name) for (name,) in db.execute("SELECT name FROM metric")}
    added = [name for name in METRICS if name not in known]
    if added:
        columns = "".join(f'ALTER TABLE reading ADD COLUMN "{name}" REAL; ' for name in added)
        rows = "".join(f"INSERT INTO metric (name) VALUES ('{name}'); " for name in added)
        db.executescript(f"BEGIN IMMEDIATE; {columns} {rows} COMMIT;")


@dataclass(frozen=True)
class Columns:
    """The metrics that have a column, in the order in which `missing` has a byte for each.

    A metric that has left the metric table keeps its column and its byte.
    """

    names: tuple[str, ...]

    @classmethod
    def of(cls, db: sqlite3.Connection) -> Columns:
        """The columns of an open store."""
        return cls(tuple(str(name) for (name,) in db.execute("SELECT name FROM metric ORDER BY position")))

    @property
    def quoted(self) -> str:
        """The column names as SQL."""
        return ", ".join(f'"{name}"' for name in self.names)

    @property
    def upsert(self) -> str:
        """Statement that writes one reading; an old value stays where the new write has none."""
        marks = ", ".join("?" * (len(self.names) + 4))
        merge = ", ".join(f'"{name}" = COALESCE(excluded."{name}", "{name}")' for name in self.names)
        return (
            f"INSERT INTO reading (gpu, at_ms, missing, extra, {self.quoted}) VALUES ({marks}) "
            f"ON CONFLICT (gpu, at_ms) DO UPDATE SET missing = merge_missing(missing, excluded.missing), "
            f"extra = merge_extra(extra, excluded.extra), {merge}"
        )

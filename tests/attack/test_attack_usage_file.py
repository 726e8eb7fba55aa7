"""Whoever wrote the file of usage: it keeps no brain from starting and nothing from being counted."""

from __future__ import annotations

import sqlite3
from array import array
from pathlib import Path

import pytest

from tocsin.accounting.meter import Row, RowKey
from tocsin.accounting.profile import SIZE, Profile
from tocsin.accounting.table import GROUPS, Place, UsageTable

ENDLESS = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c)"
HOLDER = "INSERT INTO holder (id, key, job, namespace, user, team, account) VALUES (1, 'slurm/1', '', '', '', '', '');"
DAMAGE = {
    "no tables": "DROP TABLE gpu_day; DROP TABLE holder",
    "no tables of version 2": "DROP TABLE holder; PRAGMA user_version = 2",
    "tables of version 3 as if of 1": "PRAGMA user_version = 1",
    "tables of no version": "PRAGMA user_version = 0",
    "a view that never ends": f"DROP TABLE gpu_day; CREATE VIEW gpu_day AS {ENDLESS} SELECT 5 AS day,"
    " 'h' || n AS host, 'g' AS gpu, 1 AS holder, '' AS pool, '' AS model, '' AS kind FROM c",
    "a trigger": "CREATE TRIGGER t AFTER INSERT ON cursor BEGIN DELETE FROM gpu_day; END",
    "other columns": "ALTER TABLE late ADD COLUMN more TEXT",
    "words in place of numbers": "DROP TABLE cursor; CREATE TABLE cursor (host TEXT NOT NULL, gpu TEXT NOT NULL,"
    " at_ms INTEGER NOT NULL, PRIMARY KEY (host, gpu)) WITHOUT ROWID; INSERT INTO cursor VALUES ('h', 'g', 'soon')",
    "no text": "INSERT INTO cursor VALUES (CAST(x'ff' AS TEXT), 'g', 5)",
    "an instant without end": "INSERT INTO cursor VALUES ('h', 'g', 9223372036854775807)",
    "a day before all": "INSERT INTO late VALUES ('h', -9223372036854775808)",
    "a day after all": "INSERT INTO closed_day VALUES"
    " (9223372036854775807, '', '', '', 1, 1, 1, 1, 1, 1, 1, 1, 1, x'')",
    "seconds without end": f"{HOLDER} INSERT INTO gpu_day VALUES"
    " (5, 'h', 'g', 1, '', '', '', 9e999, 1, 1, 1, 1, 1, 1, 1, x'')",
}


def count(table: UsageTable) -> None:
    table.add({RowKey(6, "h", "g", "slurm/2"): Row([1.0] * 6)}, {}, {("h", "g"): 7}, {("h", 6)}, lambda _key: Place())


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_file_that_is_not_what_tocsin_writes_is_put_aside(tmp_path: Path, damage: str) -> None:
    """Before: most of these kept the brain from starting, the view for ever; a far day ended all counting."""
    path = tmp_path / "u.db"
    UsageTable(path).close()
    with sqlite3.connect(path) as db:
        db.executescript(DAMAGE[damage])
    db.close()
    table = UsageTable(path)
    assert table.damaged
    assert path.with_name("u.db.damaged").exists()
    count(table)
    assert (table.cursors(), table.late(), table.first_day()) == ({("h", "g"): 7}, [("h", 6)], 6)
    table.close()
    again = UsageTable(path)
    assert not again.damaged
    assert len(again.groups(0, 9, GROUPS)) == 1


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_profile_of_no_numbers_is_empty(value: float) -> None:
    """Before: a question about right sizes failed, for everybody."""
    for place in range(SIZE):
        data = array("f", [1.0] * SIZE)
        data[place] = value
        found = Profile.from_bytes(data.tobytes())
        assert (found.seconds, found.gpus_max) == (0.0, 0)
    assert Profile.from_bytes(array("f", [1.0] * SIZE).tobytes()).seconds == 1.0

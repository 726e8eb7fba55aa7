"""The journal's laws: what was acknowledged stays, and no change goes unnoticed."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tocsin.domain.clock import ManualClock
from tocsin.domain.entry import EntryKind
from tocsin.domain.errors import Conflict, InputError
from tocsin.journal.backup import backup, restore
from tocsin.journal.files import Anchor, JournalBroken, read_entries
from tocsin.journal.journal import Journal
from tocsin.journal.verify import verify
from tocsin_testing.builders import T0

ENTRIES = 8
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
payloads = st.dictionaries(st.text(max_size=8), json_values, max_size=3)
tolerant = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


def filled(path: Path, entries: int = ENTRIES) -> None:
    journal = Journal.open(path, ManualClock(T0))
    for number in range(entries):
        journal.append(EntryKind.FINDING_OPENED, {"number": number}, actor="anna")
    journal.close()


def tampered(path: Path, *statements: str) -> None:
    """Change the file as somebody with full access to it would."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("DROP TRIGGER entry_no_update")
        db.execute("DROP TRIGGER entry_no_delete")
        for statement in statements:
            db.execute(statement)


@tolerant
@given(written=st.lists(st.tuples(st.sampled_from(EntryKind), payloads, st.booleans()), max_size=6))
def test_what_is_appended_is_read_back_and_verifies(
    written: list[tuple[EntryKind, dict[str, object], bool]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("journal") / "j.db"
    journal = Journal.open(path, ManualClock(T0))
    for kind, payload, simulated in written:
        journal.append(kind, payload, simulated=simulated)
    journal.close()
    read = [(entry.kind, entry.payload, entry.simulated) for entry in read_entries(path)]
    assert read == [(str(kind), payload, simulated) for kind, payload, simulated in written]
    assert verify(path).ok


@pytest.mark.parametrize("number", range(1, ENTRIES + 1))
@pytest.mark.parametrize(
    "change",
    [
        "UPDATE entry SET payload = '{}' WHERE seq = {n}",
        "UPDATE entry SET at_ms = at_ms + 1 WHERE seq = {n}",
        "UPDATE entry SET actor = 'eve' WHERE seq = {n}",
        "UPDATE entry SET kind = 'pause' WHERE seq = {n}",
        "UPDATE entry SET epoch = epoch + 1 WHERE seq = {n}",
        "UPDATE entry SET simulated = 1 WHERE seq = {n}",
        "UPDATE entry SET hash = upper(hash) WHERE seq = {n}",
        "DELETE FROM entry WHERE seq = {n}",
        "DELETE FROM entry WHERE seq >= {n}",
    ],
)
def test_every_change_of_an_entry_is_found(path: Path, number: int, change: str) -> None:
    filled(path)
    tampered(path, change.replace("{n}", str(number)))
    assert not verify(path).ok


@pytest.mark.parametrize("column", ["kind", "actor", "payload", "hash"])
def test_a_text_that_became_a_blob_is_found(path: Path, tmp_path: Path, column: str) -> None:
    """As a flipped byte of the file does, which the strict table itself would not let in."""
    filled(path)
    lax = tmp_path / "lax.db"
    with closing(sqlite3.connect(lax)) as db:
        db.execute("ATTACH ? AS journal", (str(path),))
        db.execute("CREATE TABLE entry AS SELECT * FROM journal.entry")
        db.execute(f"UPDATE entry SET {column} = CAST({column} AS BLOB) WHERE seq = 3")
        db.commit()
    shutil.copy(Anchor.path_of(path), Anchor.path_of(lax))
    assert verify(lax).problem == "entry 3 was edited"


def test_swapped_entries_are_found(path: Path) -> None:
    filled(path)
    swap = ("UPDATE entry SET seq = 100 WHERE seq = 3", "UPDATE entry SET seq = 3 WHERE seq = 4")
    tampered(path, *swap, "UPDATE entry SET seq = 4 WHERE seq = 100")
    assert not verify(path).ok


def test_a_rewritten_chain_does_not_match_the_anchor(path: Path, tmp_path: Path) -> None:
    filled(path)
    forged = tmp_path / "forged.db"
    journal = Journal.open(forged, ManualClock(T0 + 1))
    for number in range(ENTRIES):
        journal.append(EntryKind.FINDING_OPENED, {"number": number}, actor="anna")
    journal.close()
    shutil.copy(forged, path)
    result = verify(path)
    assert (result.ok, result.problem) == (False, f"entry {ENTRIES} is not the one that was acknowledged")


def test_a_lost_anchor_is_found(path: Path) -> None:
    filled(path)
    Anchor.path_of(path).unlink()
    assert verify(path).problem == "the anchor file is missing"


@tolerant
@given(position=st.integers(min_value=0), flip=st.integers(min_value=1, max_value=255))
def test_a_flipped_byte_never_changes_what_verifies(
    position: int, flip: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("journal") / "j.db"
    filled(path)
    before = list(read_entries(path))
    raw = bytearray(path.read_bytes())
    raw[position % len(raw)] ^= flip
    path.write_bytes(raw)
    if verify(path).ok:
        assert list(read_entries(path)) == before


def test_the_database_itself_refuses_changes(path: Path) -> None:
    filled(path)
    with closing(sqlite3.connect(path)) as db:
        for statement in ("UPDATE entry SET actor = 'eve'", "DELETE FROM entry"):
            with pytest.raises(sqlite3.IntegrityError, match="append-only"):
                db.execute(statement)


def test_nothing_is_appended_to_a_broken_journal(path: Path) -> None:
    filled(path)
    tampered(path, "DELETE FROM entry WHERE seq = 2")
    with pytest.raises(JournalBroken, match="entry 2 is missing"):
        Journal.open(path, ManualClock())


def test_there_is_one_writer_and_a_new_epoch_for_each(path: Path) -> None:
    journal = Journal.open(path, ManualClock())
    journal.append(EntryKind.PAUSE, {})
    with pytest.raises(Conflict, match="in use by another brain"):
        Journal.open(path, ManualClock())
    journal.close()
    again = Journal.open(path, ManualClock())
    assert (journal.epoch, again.epoch) == (1, 2)
    again.close()


def test_a_payload_that_is_no_json_leaves_the_journal_as_it_was(path: Path) -> None:
    journal = Journal.open(path, ManualClock())
    journal.append(EntryKind.PAUSE, {"reason": "x"})
    with pytest.raises(ValueError, match="not JSON compliant"):
        journal.append(EntryKind.PAUSE, {"value": float("nan")})
    assert journal.append(EntryKind.RESUME, {}).seq == 2
    journal.close()
    assert verify(path).events == 2


def test_a_newer_schema_is_refused(path: Path) -> None:
    filled(path)
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(InputError, match="schema version 99"):
        list(read_entries(path))


def test_backup_beside_a_writer_and_restore(path: Path, tmp_path: Path) -> None:
    journal = Journal.open(path, ManualClock(T0))
    for _ in range(3):
        journal.append(EntryKind.PAUSE, {})
    copy = tmp_path / "copy.db"
    backup(path, copy)
    with pytest.raises(InputError, match="exists"):
        backup(path, copy)
    with pytest.raises(Conflict):
        restore(copy, path)
    journal.append(EntryKind.RESUME, {})
    journal.close()
    with pytest.raises(Conflict, match="does not continue it"):
        restore(copy, path)
    Anchor.path_of(path).unlink()
    restore(copy, path)
    assert verify(path).events == 3
    aside = path.with_name("journal.db.replaced")
    assert len(list(read_entries(aside))) == 4, "what was replaced is still there"
    with pytest.raises(Conflict, match="earlier restore"):
        restore(copy, path)
    other = tmp_path / "elsewhere" / "journal.db"
    restore(copy, other)
    assert verify(other).events == 3


WRITER = """
import sys
from pathlib import Path
from tocsin.domain.clock import ManualClock
from tocsin.journal.journal import Journal
from tocsin.domain.entry import EntryKind
journal = Journal.open(Path(sys.argv[1]), ManualClock())
while True:
    print(journal.append_many([(EntryKind.FINDING_OPENED, {"n": n}, False) for n in range(3)])[-1].seq, flush=True)
"""


def test_kill_at_any_instant_loses_nothing_that_was_acknowledged(path: Path) -> None:
    for round_ in range(6):
        with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            acknowledged = [int(writer.stdout.readline()) for _ in range(3 + 7 * round_)]
            os.kill(writer.pid, signal.SIGKILL)
            acknowledged += [int(line) for line in writer.stdout.read().splitlines()]
        result = verify(path)
        assert result.ok, result.problem
        assert result.events >= acknowledged[-1]
        assert result.events % 3 == 0

"""What a key outside the folder and a witness hold against one who may write the journal's folder."""

from __future__ import annotations

import json
import shutil
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin.cli.main import cli
from tocsin.domain.clock import ManualClock
from tocsin.domain.entry import GENESIS, EntryKind, digest
from tocsin.domain.errors import InputError
from tocsin.journal import backup as journal_backup
from tocsin.journal.backup import backup, restore
from tocsin.journal.files import Anchor, JournalBroken, load_key
from tocsin.journal.journal import Journal, seal
from tocsin.journal.verify import verify
from tocsin.journal.witness import FileWitness, Seen
from tocsin_testing.builders import T0

ENTRIES = 8


class Site:
    """A journal that a brain wrote with a key, and its witness; an attacker has `folder` and all that is in it."""

    def __init__(self, root: Path) -> None:
        self.folder, self.elsewhere = root / "volume", root / "elsewhere"
        self.path, self.key_file = self.folder / "journal.db", self.elsewhere / "key"
        self.witness = self.elsewhere / "witness.json"
        self.elsewhere.mkdir()
        self.write(ENTRIES)
        self.config = root / "brain.toml"
        self.config.write_text(
            f'[journal]\npath = "{self.path}"\nkey_file = "{self.key_file}"\nwitness = "{self.witness}"\n'
        )

    def write(self, entries: int) -> None:
        with closing(Journal.open(self.path, ManualClock(T0), self.key_file)) as journal:
            written = [
                journal.append(EntryKind.HOLD_OFF, {"number": number}, actor="anna") for number in range(entries)
            ]
            first = next(journal.entries(limit=1)).hash
        FileWitness(self.witness).write(first, Seen(written[-1].epoch, written[-1].seq, written[-1].hash))

    def verify(self) -> bool:
        return verify(self.path, load_key(self.key_file)).ok

    def run(self, *words: str) -> Result:
        """The command; `return_value` is the exit code that `tocsin` ends with."""
        return CliRunner().invoke(cli, ["--config", str(self.config), "journal", *words], standalone_mode=False)


def rewritten(path: Path, change: Callable[[list[list[object]]], None]) -> None:
    """Change the rows, and compute every number and hash and the anchor anew, as who knows this code would."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("DROP TRIGGER entry_no_update")
        db.execute("DROP TRIGGER entry_no_delete")
        rows = [list(row) for row in db.execute("SELECT * FROM entry ORDER BY seq")]
        change(rows)
        db.execute("DELETE FROM entry")
        previous = GENESIS
        for number, row in enumerate(rows, 1):
            _, epoch, at_ms, kind, actor, simulated, payload, *_ = row
            own = digest(
                previous, number, int(str(epoch)), int(str(at_ms)), str(kind), str(actor), bool(simulated), str(payload)
            )
            values = (number, epoch, at_ms, kind, actor, simulated, payload, previous, own)
            db.execute("INSERT INTO entry VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", values)
            previous = own
    old = json.loads(Anchor.path_of(path).read_text())
    Anchor.path_of(path).write_text(json.dumps(old | {"seq": len(rows), "hash": previous}))


def _append(entries: int) -> Callable[[list[list[object]]], None]:
    def change(rows: list[list[object]]) -> None:
        rows.extend([0, 2, T0, "resume", "mallory", 0, "{}", "", ""] for _ in range(entries))

    return change


def _leave(path: Path) -> None:
    """The seal in the database as it is."""


def _drop(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("DROP TABLE seal")


def _renumber(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("UPDATE seal SET (seq, hash) = (SELECT seq, hash FROM entry ORDER BY seq DESC LIMIT 1)")


def _garble(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("UPDATE seal SET seal = 'none', hash = 'none'")


@settings(max_examples=20)
@given(entries=st.integers(1, 5), seal_too=st.sampled_from([_leave, _drop, _renumber, _garble]))
def test_entries_added_behind_the_sealed_end_are_found_at_start(entries: int, seal_too: Callable[[Path], None]) -> None:
    with TemporaryDirectory() as folder:
        site = Site(Path(folder))
        head = Anchor.path_of(site.path).read_text()
        rewritten(site.path, _append(entries))
        # Without the key no other head can be sealed: the one that the brain left stays.
        Anchor.path_of(site.path).write_text(head)
        seal_too(site.path)
        assert verify(site.path).ok, "the chain alone says nothing against entries that go on from its end"
        found = verify(site.path, load_key(site.key_file))
        assert (found.ok, found.events) == (False, ENTRIES)
        which = f"entry {ENTRIES + 1} is" if entries == 1 else f"entries {ENTRIES + 1} to {ENTRIES + entries} are"
        assert f"unsealed: {which} behind the sealed end" in found.problem
        with pytest.raises(JournalBroken, match="unsealed"):
            Journal.open(site.path, ManualClock(T0), site.key_file)
        assert site.run("verify").return_value == 1
        # A backup of it makes nothing good.
        assert site.run("backup", str(Path(folder) / "copy.db")).exit_code == 0
        assert not verify(Path(folder) / "copy.db", load_key(site.key_file)).ok
        # A person who has looked takes it as it is.
        assert site.run("seal").exit_code == 0
        with closing(Journal.open(site.path, ManualClock(T0), site.key_file)) as journal:
            assert journal.head == ENTRIES + entries


@settings(max_examples=10)
@given(ends=st.lists(st.integers(1, 4), min_size=1, max_size=5), lost=st.integers(0, 20))
def test_no_crash_and_no_power_loss_leaves_an_entry_behind_the_sealed_end(ends: list[int], lost: int) -> None:
    """The file of the anchor is written after the entries, and a power loss may bring an older one back."""
    with TemporaryDirectory() as folder:
        site = Site(Path(folder))
        heads = [Anchor.path_of(site.path).read_bytes()]
        for entries in ends:
            site.write(entries)
            heads.append(Anchor.path_of(site.path).read_bytes())
            Anchor.path_of(site.path).write_bytes(heads[-1 - lost % len(heads)])
            assert site.verify()


def test_a_journal_that_was_sealed_in_its_file_alone_goes_on(tmp_path: Path) -> None:
    """As versions before the seal in the database left it, and as one leaves it that goes between."""
    site = Site(tmp_path)
    _drop(site.path)
    assert site.verify()
    site.write(2)
    with closing(sqlite3.connect(site.path, isolation_level=None)) as db:
        (older,) = db.execute("SELECT seal FROM seal").fetchall()
        site.write(1)
        db.execute(
            "UPDATE seal SET seq = seq - 1, seal = ?, hash = (SELECT hash FROM entry WHERE seq = ?)",
            (*older, ENTRIES + 2),
        )
    assert site.verify()


def _edit(number: int) -> Callable[[list[list[object]]], None]:
    def change(rows: list[list[object]]) -> None:
        rows[number][4] = "mallory"

    return change


def _remove(number: int) -> Callable[[list[list[object]]], None]:
    def change(rows: list[list[object]]) -> None:
        del rows[number:]

    return change


@settings(max_examples=25)
@given(number=st.integers(1, ENTRIES - 1), change=st.sampled_from([_edit, _remove]))
def test_a_rewritten_journal_passes_without_a_key_and_fails_with_it(
    number: int, change: Callable[[int], Callable[[list[list[object]]], None]]
) -> None:
    with TemporaryDirectory() as folder:
        site = Site(Path(folder))
        assert site.verify()
        rewritten(site.path, change(number))
        assert verify(site.path).ok, "the chain alone says nothing against one who computes it anew"
        assert not site.verify()
        with pytest.raises(JournalBroken, match="may have been rewritten"):
            Journal.open(site.path, ManualClock(T0), site.key_file)
        assert site.run("verify").return_value == 1


@settings(max_examples=10)
@given(entries=st.integers(1, ENTRIES))
def test_an_older_pair_passes_the_key_and_fails_the_witness(entries: int) -> None:
    with TemporaryDirectory() as folder:
        site = Site(Path(folder))
        old = Path(folder) / "old"
        shutil.copytree(site.folder, old)
        assert site.run("verify", "--witness").return_value == 0
        site.write(entries)
        assert site.run("verify", "--witness").return_value == 0
        shutil.rmtree(site.folder)
        shutil.copytree(old, site.folder)
        assert site.verify()
        found = site.run("verify", "--witness", "--json")
        assert found.return_value == 1
        said = json.loads(found.output)
        assert said["verified"] is False
        assert "this journal ends before it" in said["problem"]


def test_the_key_is_made_once_for_its_owner_alone_and_a_journal_from_before_is_taken_as_it_is(tmp_path: Path) -> None:
    path, key_file = tmp_path / "volume" / "journal.db", tmp_path / "key"
    with closing(Journal.open(path, ManualClock(T0))) as journal:
        journal.append(EntryKind.PAUSE, {})
    with closing(Journal.open(path, ManualClock(T0), key_file)) as journal:
        journal.append(EntryKind.RESUME, {})
    key = load_key(key_file)
    assert stat.S_IMODE(key_file.stat().st_mode) == 0o600
    assert verify(path, key).ok
    with closing(Journal.open(path, ManualClock(T0), key_file)):
        assert load_key(key_file) == key
    # Without the setting it goes on, and the seal is gone with the first entry.
    with closing(Journal.open(path, ManualClock(T0))) as journal:
        journal.append(EntryKind.PAUSE, {})
    with pytest.raises(JournalBroken, match="is not sealed"):
        Journal.open(path, ManualClock(T0), key_file)
    assert seal(path, key).ok
    with closing(Journal.open(path, ManualClock(T0), key_file)) as journal:
        assert journal.head == 3


def test_backups_are_sealed_and_one_that_is_not_is_refused(tmp_path: Path) -> None:
    site = Site(tmp_path)
    plain, sealed = tmp_path / "plain.db", tmp_path / "sealed.db"
    backup(site.path, plain)
    assert site.run("backup", str(sealed)).exit_code == 0
    key = load_key(site.key_file)
    assert verify(sealed, key).ok
    with pytest.raises(InputError, match="is not sealed"):
        restore(plain, site.path, key)
    restored = site.run("restore", str(sealed))
    assert restored.exit_code == 0, restored.output
    assert site.verify()
    assert site.run("seal", str(plain)).exit_code == 0
    assert verify(plain, key).ok


@pytest.mark.parametrize("content", [b"", b"short", b"x" * 5_000])
def test_a_key_that_is_none_is_named_with_its_remedy(tmp_path: Path, content: bytes) -> None:
    key_file = tmp_path / "key"
    key_file.write_bytes(content)
    with pytest.raises(InputError, match="openssl rand"):
        Journal.open(tmp_path / "volume" / "journal.db", ManualClock(T0), key_file)


@pytest.mark.parametrize("keyed", [True, False])
def test_a_forged_last_number_hides_no_truncation(tmp_path: Path, keyed: bool) -> None:
    site = Site(tmp_path)
    with closing(sqlite3.connect(site.path)) as db, db:
        for (trigger,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            db.execute(f"DROP TRIGGER {trigger}")
        db.execute("DELETE FROM entry WHERE seq > 5")
        columns = "epoch, at_ms, kind, actor, simulated, payload, previous_hash, hash"
        db.execute(f"INSERT INTO entry (seq, {columns}) SELECT 9223372036854775807, {columns} FROM entry WHERE seq = 5")
    found = verify(site.path, load_key(site.key_file) if keyed else b"")
    assert not found.ok
    assert found.problem == "entry 6 is missing"


def test_a_backup_beside_a_writer_has_no_seal_of_what_it_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site, key = Site(tmp_path), load_key(tmp_path / "elsewhere" / "key")
    read = journal_backup._sealed_anchor

    def while_written(source: Path, sealed_with: bytes) -> Anchor | None:
        site.write(3)
        return read(source, sealed_with)

    copy = tmp_path / "copy.db"
    monkeypatch.setattr(journal_backup, "_sealed_anchor", while_written)
    backup(site.path, copy, key)
    assert verify(copy, key).ok

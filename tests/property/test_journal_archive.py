"""The archive's laws: whoever reads finds one journal, whatever stands where, and no change of it goes unnoticed."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin.domain.clock import ManualClock
from tocsin.domain.entry import Entry, EntryKind, Verification
from tocsin.domain.errors import InputError
from tocsin.journal import files as journal_files
from tocsin.journal import journal as journal_module
from tocsin.journal.archive import archive_next
from tocsin.journal.archive_files import ArchiveMissing, archive_of, folder_of
from tocsin.journal.backup import backup, restore
from tocsin.journal.export import export
from tocsin.journal.file_past import FilePast
from tocsin.journal.files import JournalBroken, read_entries
from tocsin.journal.journal import Journal
from tocsin.journal.page import Wanted, read_numbered, read_page
from tocsin.journal.verify import verify, verify_slice
from tocsin_testing.builders import T0

KINDS = (EntryKind.PAUSE, EntryKind.RESUME, EntryKind.DECISION)
FILE, KEEP = 7, 5
KEY = b"k" * 32


def drafted(number: int) -> tuple[EntryKind, dict[str, object], bool]:
    return KINDS[number % 3], {"id": f"d{number}", "sentence": f"number {number}"}, False


def filled(path: Path, entries: int) -> Journal:
    journal = Journal.open(path, ManualClock(T0))
    journal.append_many([drafted(number) for number in range(entries)])
    return journal


@pytest.fixture(scope="module")
def archived(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], list[Entry]]:
    """Puts a journal with an archive of several files at a path; the result is its entries as they were written."""
    made = tmp_path_factory.mktemp("archived") / "journal.db"
    with closing(filled(made, 40)) as journal:
        while archive_next(journal, KEEP, FILE) is not None:
            pass
    entries = list(read_entries(made))

    def put(path: Path) -> list[Entry]:
        shutil.copytree(made.parent, path.parent, dirs_exist_ok=True)
        return entries

    return put


Archived = Callable[[Path], list[Entry]]


def checked_in_slices(path: Path, entries: int) -> Verification:
    found = verify_slice(path, entries=entries)
    while found.ok and not found.done:
        found = verify_slice(path, after=found.events, previous=found.hash, entries=entries)
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


@settings(max_examples=15)
@given(
    steps=st.lists(st.sampled_from(["append", "archive", "reopen"]) | st.integers(1, 30), min_size=2, max_size=12),
    page=st.integers(1, 9),
    seed=st.integers(0, 99),
)
def test_a_reader_finds_what_it_would_find_without_an_archive(
    steps: list[str | int], page: int, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("archive") / "j.db"
    journal = filled(path, 3)
    written: list[Entry] = list(read_entries(path))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal_files, "_PAGE", page)
        for step in steps:
            journal.on_append = written.extend
            if step == "archive":
                archive_next(journal, KEEP, FILE)
            elif step == "reopen":
                journal.close()
                journal = Journal.open(path, ManualClock(T0))
            else:
                journal.append_many([drafted(len(written) + n) for n in range(step if isinstance(step, int) else 1)])
        journal.close()
        whole = list(read_entries(path))
        assert [(one.seq, one.hash) for one in whole] == [(one.seq, one.hash) for one in written]
        random = Random(seed)
        after, limit = random.randrange(len(whole) + 2), random.randrange(1, len(whole) + 2)
        kinds = random.sample(KINDS, random.randrange(1, 3))
        assert list(read_entries(path, after=after, limit=limit)) == whole[after : after + limit]
        of_kinds = [one for one in whole[after:] if one.kind in kinds]
        assert list(read_entries(path, after=after, kinds=kinds)) == of_kinds
        assert list(read_entries(path, after=after, kinds=kinds, limit=limit)) == of_kinds[:limit]
        assert read_page(path, after + 1, limit, Wanted()).entries == whole[:after][::-1][:limit]
        assert list(read_numbered(path, [1, after, limit])) == [e for e in whole if e.seq in {1, after, limit}]
        assert verify(path) == Verification(True, len(whole), head=len(whole), hash=whole[-1].hash)
        assert checked_in_slices(path, page) == verify(path)
        assert len(list(export(FilePast(path), "jsonl"))) == len(whole)


def test_entries_that_are_archived_while_somebody_reads_are_read_once(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_files, "_PAGE", 3)
    with closing(filled(path, 40)) as journal:
        reading = read_entries(path)
        seen = [next(reading).seq for _ in range(4)]
        assert archive_next(journal, KEEP, FILE) is not None
        seen += [next(reading).seq for _ in range(4)]
        while archive_next(journal, KEEP, FILE) is not None:
            pass
        seen += [entry.seq for entry in reading]
        assert seen == list(range(1, journal.head + 1))


def test_sentences_of_decisions_are_found_in_the_archive(path: Path) -> None:
    with closing(filled(path, 30)) as journal:
        journal.append(EntryKind.OUTCOME, {"decision": "d2"})
        archive_next(journal, KEEP, FILE)
        assert journal.first_here() > 3
        assert read_page(path, None, 1, Wanted(kinds=("outcome",))).told == {"d2": "number 2"}


def test_what_stays_is_kept_and_what_went_is_on_record(path: Path) -> None:
    with closing(filled(path, FILE + KEEP)) as journal:
        assert archive_next(journal, KEEP + 1, FILE) is None
        file = archive_next(journal, KEEP, FILE)
        assert file is not None
        assert archive_next(journal, KEEP, FILE) is None
        (said,) = read_entries(path, kinds=[EntryKind.ARCHIVED])
        last = next(read_entries(path, after=FILE - 1, limit=1))
        assert said.payload == {"first": 1, "last": FILE, "hash": last.hash, "file": file.path.name}
        assert (file.path.stat().st_mode & 0o777, folder_of(path).stat().st_mode & 0o077) == (0o600, 0)


def test_only_what_is_archived_may_go(path: Path, archived: Archived) -> None:
    archived(path)
    with closing(sqlite3.connect(path)) as db, pytest.raises(sqlite3.IntegrityError, match="append-only"):
        db.execute("DELETE FROM entry")


@pytest.mark.parametrize("number", range(1, 4 * FILE + 1, 3))
@pytest.mark.parametrize(
    "change",
    [
        "UPDATE entry SET payload = '{}' WHERE seq = {n}",
        "UPDATE entry SET actor = 'eve' WHERE seq = {n}",
        "DELETE FROM entry WHERE seq = {n}",
        "DELETE FROM entry WHERE seq >= {n}",
    ],
)
def test_every_change_of_the_archive_is_found(path: Path, number: int, change: str, archived: Archived) -> None:
    archived(path)
    file = archive_of(path)[(number - 1) // FILE]
    with closing(sqlite3.connect(file.path, isolation_level=None)) as db:
        db.execute("DROP TRIGGER entry_no_update")
        db.execute("DROP TRIGGER entry_no_delete")
        db.execute(change.replace("{n}", str(number)))
    assert not verify(path).ok
    found = checked_in_slices(path, 4)
    assert not found.ok
    assert found.problem == verify(path).problem


@pytest.mark.parametrize("which", range(4))
def test_a_file_that_is_gone_is_named_and_nothing_starts_without_it(path: Path, which: int, archived: Archived) -> None:
    archived(path)
    file = archive_of(path)[which]
    aside = file.path.rename(file.path.with_suffix(".away"))
    assert verify(path).problem.startswith(f"entry {file.first} is missing: ")
    with pytest.raises(ArchiveMissing, match=f"entry {file.first} is missing.*put the archive back"):
        list(read_entries(path))
    with pytest.raises(JournalBroken, match=r"put the archive back|put it back"):
        Journal.open(path, ManualClock(T0))
    aside.rename(file.path)
    Journal.open(path, ManualClock(T0)).close()


def test_a_start_from_a_checkpoint_looks_at_the_ends_of_the_archive(path: Path) -> None:
    with closing(filled(path, 40)) as journal:
        journal.save(30, {"part": {"of": 30}})
        while archive_next(journal, 1, FILE) is not None:
            pass
        assert journal.first_here() == 4 * FILE + 1, "entry 30 stays"
    with closing(Journal.open(path, ManualClock(T0))) as journal:
        assert journal.folded("part") == (30, {"of": 30})
    archive_of(path)[0].path.unlink()
    with pytest.raises(JournalBroken, match=r"000000000001-000000000007\.db of its archive is missing; put it back"):
        Journal.open(path, ManualClock(T0))


class Killed(BaseException):
    """As if the process had ended there."""


class Dying:
    """The writer's connection, until a process is killed before one of its statements."""

    def __init__(self, db: sqlite3.Connection, statements: int) -> None:
        self._db, self.left = db, statements

    def __getattr__(self, name: str) -> object:
        return getattr(self._db, name)

    def __enter__(self) -> None:
        self._db.__enter__()

    def __exit__(self, *error: object) -> None:
        self._db.__exit__(*error)  # type: ignore[arg-type]

    def _alive(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Killed

    def execute(self, *statement: object) -> sqlite3.Cursor:
        self._alive()
        return self._db.execute(*statement)  # type: ignore[arg-type]

    def executemany(self, *statement: object) -> sqlite3.Cursor:
        self._alive()
        return self._db.executemany(*statement)  # type: ignore[arg-type]


def test_a_kill_at_any_step_of_archiving_leaves_one_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "REMOVED_AT_ONCE", 3)
    killed, steps = True, 0
    while killed:
        path = tmp_path / f"{steps}.db"
        with closing(filled(path, 20)) as journal:
            before = [one.hash for one in read_entries(path)]
            journal._db = Dying(journal._db, steps)  # type: ignore[assignment]
            try:
                archive_next(journal, KEEP, FILE)
                killed = False
            except Killed:
                steps += 1
        assert verify(path).ok
        assert [one.hash for one in read_entries(path)][:20] == before
        with closing(Journal.open(path, ManualClock(T0))) as journal:
            while archive_next(journal, KEEP, FILE) is not None:
                pass
            assert journal.first_here() > journal.head - KEEP - FILE
        assert verify(path).ok
        assert [one.hash for one in read_entries(path)][:20] == before
    assert steps > 6


def test_a_broken_journal_is_not_archived(path: Path) -> None:
    with closing(filled(path, 40)) as journal:
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            db.execute("DROP TRIGGER entry_no_update")
            db.execute("UPDATE entry SET actor = 'eve' WHERE seq = 4")
        with pytest.raises(JournalBroken, match="is not archived: entry 4 was edited"):
            archive_next(journal, KEEP, FILE)
        assert (journal.first_here(), archive_of(path)) == (1, [])


def test_a_backup_has_the_archive_and_a_restore_brings_it(path: Path, tmp_path: Path, archived: Archived) -> None:
    before = archived(path)
    copy = tmp_path / "backup" / "copy.db"
    copy.parent.mkdir()
    backup(path, copy, KEY)
    with pytest.raises(InputError, match="exists"):
        backup(path, tmp_path / "backup" / "copy.db")
    assert list(read_entries(copy)) == before
    other = tmp_path / "elsewhere" / "journal.db"
    restore(copy, other)
    assert list(read_entries(other)) == before
    with closing(Journal.open(other, ManualClock(T0))) as journal:
        journal.append(EntryKind.PAUSE, {"reason": "later"})
    again = tmp_path / "again.db"
    backup(other, again)
    restore(again, path)
    assert len(list(read_entries(path))) == len(before) + 1
    assert list(read_entries(path.with_name("journal.db.replaced"))) == before
    assert verify(path).ok


def test_an_entry_that_changes_between_two_slices_is_found(path: Path, archived: Archived) -> None:
    archived(path)
    first = verify_slice(path, entries=10)
    assert (first.ok, first.done, first.events, first.head) == (True, False, 10, len(list(read_entries(path))))
    assert verify_slice(path, after=10, previous="0" * 64, entries=10).problem == (
        "entry 10 is not the one that was checked"
    )
    assert verify_slice(path, KEY, after=10, previous=first.hash, entries=10).problem.endswith("journal seal")

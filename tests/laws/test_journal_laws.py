"""The laws of `tocsin.journal.port`, over a file and over a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tocsin.domain.clock import DAY, SECOND, ManualClock
from tocsin.domain.entry import GENESIS, Entry, EntryKind, canonical, digest
from tocsin.domain.errors import Conflict, InputError, TocsinError
from tocsin.journal import archive as archives
from tocsin.journal import checkpoint as checkpoints
from tocsin.journal import verify as checks
from tocsin.journal.export import export
from tocsin.journal.files import JournalBroken
from tocsin.journal.journal import Journal
from tocsin.journal.page import Wanted
from tocsin.journal.port import LiveJournal
from tocsin.journal.postgres import journal as database_journal
from tocsin_testing.builders import T0
from tocsin_testing.journals import DatabaseHarness, FileHarness, Harness, leased

ODD = {
    "text": "温度 °C \u0000 \u2028 'quoted' 100% \\ back {} $1",
    "deep": [{"a": [1, 2.5, None, True]}, -(2**53), 1e-300],
    "": "an empty name",
}


@contextmanager
def written(j: Harness, clock: ManualClock, *, sealed: bool = False) -> Iterator[LiveJournal]:
    journal = j.opened(clock, sealed=sealed)
    try:
        yield journal
    finally:
        j.closed(journal)


def fill(j: Harness, count: int, *, sealed: bool = False, step_ms: int = SECOND) -> list[Entry]:
    """Decisions, what people said of them, and pauses; one every `step_ms`."""
    clock, entries = ManualClock(T0), list[Entry]()
    with written(j, clock, sealed=sealed) as journal:
        for n in range(count):
            if n % 3 == 0:
                payload = {"id": f"d{n}", "sentence": f"Drain node-{n} 100% of_it", "sentence_zh": f"排空 {n}"}
                entries.append(journal.append(EntryKind.DECISION, payload, simulated=n % 2 == 0))
            elif n % 3 == 1:
                entries.append(journal.append(EntryKind.APPROVAL, {"decision": f"d{n - 1}"}, actor="ann"))
            else:
                entries.append(journal.append(EntryKind.PAUSE, {"reason": "Power works"}, actor="bob"))
            clock.advance(step_ms)
    return entries


def test_entries_come_back_as_they_were_appended(j: Harness) -> None:
    clock = ManualClock(T0)
    with written(j, clock) as journal:
        first = journal.append(EntryKind.PAUSE, ODD, actor="Änne", simulated=True)
        more = journal.append_many([(EntryKind.RESUME, {}, False), (EntryKind.PAUSE, {"n": 1}, False)])
        assert journal.append_many([]) == []
        assert list(journal.entries()) == [first, *more]
        assert (journal.head, journal.leads) == (3, True)
    assert first.previous_hash == GENESIS
    assert first.hash == digest(GENESIS, 1, first.epoch, T0, "pause", "Änne", True, canonical(ODD))
    assert [entry.seq for entry in j.past().entries()] == [1, 2, 3]
    found = j.past().verify()
    assert (found.ok, found.events, found.head, found.problem) == (True, 3, 3, "")


def test_what_is_no_json_leaves_nothing(j: Harness) -> None:
    with written(j, ManualClock(T0)) as journal:
        journal.append(EntryKind.PAUSE, {})
        with pytest.raises(ValueError, match="JSON"):
            journal.append_many([(EntryKind.RESUME, {}, False), (EntryKind.PAUSE, {"n": float("nan")}, False)])
        journal.append(EntryKind.RESUME, {"n": 1})
        assert [entry.kind for entry in journal.entries()] == ["pause", "resume"]
    assert j.past().verify().ok


def test_an_opening_is_a_new_epoch_and_goes_on_where_the_last_ended(j: Harness) -> None:
    fill(j, 4)
    with written(j, ManualClock(T0 + DAY)) as journal:
        assert journal.head == 4
        entry = journal.append(EntryKind.RESUME, {})
    assert [one.epoch for one in j.past().entries()] == [1, 1, 1, 1, 2]
    assert entry.seq == 5
    assert j.past().verify().ok


def test_who_appends_tells_whoever_listens_once_it_is_on_disk(j: Harness) -> None:
    told: list[list[int]] = []

    def take(entries: Sequence[Entry]) -> None:
        assert j.past().verify().events == entries[-1].seq
        told.append([entry.seq for entry in entries])

    with written(j, ManualClock(T0)) as journal:
        journal.on_append = take
        journal.append(EntryKind.PAUSE, {})
        journal.append_many([(EntryKind.RESUME, {}, False), (EntryKind.PAUSE, {}, False)])
    assert told == [[1], [2, 3]]


def test_entries_by_number_kind_and_count(j: Harness) -> None:
    entries = fill(j, 20)
    past = j.past()
    assert list(past.entries(after=7)) == entries[7:]
    assert list(past.entries(after=5, limit=3)) == entries[5:8]
    assert list(past.entries(limit=0)) == []
    assert [one.seq for one in past.entries(kinds=[EntryKind.PAUSE, "approval"], limit=4)] == [2, 3, 5, 6]
    assert list(past.numbered([])) == []
    assert [one.seq for one in past.numbered([19, 3, 99, 7])] == [3, 7, 19]
    assert past.number_before(T0) == 0
    assert past.number_before(T0 + 5 * SECOND) == 5
    assert past.number_before(T0 + DAY) == 20


def test_the_clock_may_step_back_over_a_month(j: Harness) -> None:
    clock = ManualClock(T0)
    with written(j, clock) as journal:
        for step in (40 * DAY, -80 * DAY, 40 * DAY, 400 * DAY):
            journal.append(EntryKind.PAUSE, {"step": step})
            clock.set(clock.now_ms() + step)
        journal.append(EntryKind.RESUME, {})
        assert [one.seq for one in journal.entries()] == [1, 2, 3, 4, 5]
    assert j.past().verify().ok
    assert [one.seq for one in j.past().newest(2, Wanted())] == [5, 4]


@pytest.mark.parametrize(
    "wanted",
    [
        Wanted(),
        Wanted(kinds=("pause",)),
        Wanted(actor="ann"),
        Wanted(people=True),
        Wanted(text="POWER w"),
        Wanted(text="100% of_"),
        Wanted(text="100%_of"),
        Wanted(start_ms=T0 + 5 * SECOND, end_ms=T0 + 15 * SECOND),
    ],
    ids=str,
)
def test_the_pages_together_are_what_fits_once(j: Harness, wanted: Wanted) -> None:
    entries = fill(j, 24)
    text = wanted.text.casefold()
    fitting = [
        one.seq
        for one in reversed(entries)
        if (not wanted.kinds or one.kind in wanted.kinds)
        and (not wanted.actor or one.actor == wanted.actor)
        and not (wanted.people and one.actor == "tocsin")
        and text in canonical(one.payload).casefold()
        and (wanted.start_ms is None or one.at_ms >= wanted.start_ms)
        and (wanted.end_ms is None or one.at_ms < wanted.end_ms)
    ]
    seen, before = list[int](), None
    for _ in range(30):
        page = j.past().page(before, 5, wanted)
        assert page.head == 24
        seen += [one.seq for one in page.entries]
        before = page.next_before
        if before is None:
            break
    assert seen == fitting
    assert [one.seq for one in j.past().newest(3, wanted)] == fitting[:3]


def test_a_page_has_the_sentences_of_what_it_names(j: Harness) -> None:
    fill(j, 12)
    page = j.past().page(None, 3, Wanted(kinds=("approval",)))
    assert page.told == {f"d{n}": f"Drain node-{n} 100% of_it" for n in (3, 6, 9)}
    assert page.told_zh == {f"d{n}": f"排空 {n}" for n in (3, 6, 9)}


def test_a_checkpoint_is_there_at_the_next_start(j: Harness) -> None:
    fill(j, 5)
    with written(j, ManualClock(T0)) as journal:
        assert journal.folded("ledger") == (0, None)
        journal.save(5, {"ledger": ODD})
        assert journal.head == 6
    with written(j, ManualClock(T0)) as journal:
        assert journal.folded("ledger") == (5, ODD)
        assert journal.folded("another") == (0, None)


def test_a_checkpoint_of_another_version_is_not_used(j: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(j, 5)
    with monkeypatch.context() as patch, written(j, ManualClock(T0)) as journal:
        patch.setattr(checkpoints, "__version__", "0.0.1")
        journal.save(5, {"ledger": {}})
    with written(j, ManualClock(T0)) as journal:
        assert journal.folded("ledger") == (0, None)


def test_notes_stay_beside_the_journal(j: Harness) -> None:
    with written(j, ManualClock(T0)) as journal:
        assert journal.read_note("annotations") == ""
        journal.keep_note("annotations", '{"a": 1}')
        journal.keep_note("annotations", '{"a": "温"}')
    with written(j, ManualClock(T0)) as journal:
        assert journal.read_note("annotations") == '{"a": "温"}'


DAMAGES = {
    "edited": ("UPDATE entry SET payload = ? WHERE seq = 4", ("{}",), "entry 4 was edited"),
    "actor": ("UPDATE entry SET actor = ? WHERE seq = 4", ("eve",), "entry 4 was edited"),
    "removed": ("DELETE FROM entry WHERE seq = 4", (), "entry 4 is missing"),
    "first removed": ("DELETE FROM entry WHERE seq = 1", (), "entry 1 is missing"),
    "renumbered": ("UPDATE entry SET seq = 99 WHERE seq = 4", (), "entr"),
    "cut": ("DELETE FROM entry WHERE seq > 7", (), "7 entries|entry 8|cut short|7 are left"),
    "emptied": ("DELETE FROM entry", (), "entry|cut short"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_found_and_nothing_is_appended_to_it(j: Harness, name: str) -> None:
    fill(j, 9)
    statement, values, problem = DAMAGES[name]
    j.damage(statement, *values)
    found = j.past().verify()
    assert not found.ok
    assert any(one in found.problem for one in problem.split("|")), found.problem
    with pytest.raises(JournalBroken, match="nothing is appended"):
        j.opened(ManualClock(T0))


def forge(j: Harness, seq: int) -> None:
    """Another entry `seq` with its own hash, and the end of the journal with it."""
    before = next(iter(j.past().entries(after=seq - 2, limit=1)))
    old = next(iter(j.past().entries(after=seq - 1, limit=1)))
    own = digest(before.hash, seq, old.epoch, old.at_ms, old.kind, "eve", False, "{}")
    j.damage("UPDATE entry SET actor = ?, payload = ?, simulated = 0, hash = ? WHERE seq = ?", "eve", "{}", own, seq)
    j.move_head(seq, own)


def test_who_has_no_key_can_rewrite_nothing(j: Harness) -> None:
    fill(j, 6, sealed=True)
    key = j.key_file.read_bytes().strip()
    assert j.past().verify(key).ok
    forge(j, 6)
    assert j.past().verify().ok, "the chain alone says nothing of it"
    assert "not sealed" in j.past().verify(key).problem
    with pytest.raises(JournalBroken, match="not sealed"):
        j.opened(ManualClock(T0), sealed=True)


def test_a_key_of_its_own_is_made_once_and_another_one_is_refused(j: Harness) -> None:
    fill(j, 3)
    fill(j, 3, sealed=True)
    first = j.key_file.read_bytes()
    fill(j, 3, sealed=True)
    assert j.key_file.read_bytes() == first
    assert j.past().verify(first.strip()).events == 9
    assert "another key" in j.past().verify(b"k" * 32).problem


@pytest.mark.parametrize("sealed", [False, True])
def test_slices_make_the_whole(j: Harness, sealed: bool) -> None:
    fill(j, 11, sealed=sealed)
    key = j.key_file.read_bytes().strip() if sealed else b""
    at, slices = j.past().verify_slice(key, entries=4), 1
    while at.ok and not at.done:
        at, slices = j.past().verify_slice(key, after=at.events, previous=at.hash, entries=4), slices + 1
    assert (at.ok, at.events, slices) == (True, 11, 3)
    assert "not the one that was checked" in j.past().verify_slice(key, after=4, previous=GENESIS, entries=4).problem


def test_one_process_writes(j: Harness) -> None:
    with written(j, ManualClock(T0)) as journal:
        journal.append(EntryKind.PAUSE, {})
        if isinstance(j, DatabaseHarness):
            other = leased(j.database)
            assert not other.held()
            other.release()
        else:
            assert isinstance(j, FileHarness)
            with pytest.raises(Conflict, match="in use by another brain"):
                Journal.open(j.path, ManualClock(T0))
        journal.append(EntryKind.RESUME, {})
    assert j.past().verify().events == 2


def test_a_backup_while_it_is_written_is_a_whole_journal_that_can_be_put_back(j: Harness, tmp_path: Path) -> None:
    fill(j, 7, sealed=True)
    key = j.key_file.read_bytes().strip()
    with written(j, ManualClock(T0), sealed=True) as journal:
        journal.append(EntryKind.PAUSE, ODD)
        j.backup(tmp_path / "copy.db", key)
        journal.append(EntryKind.RESUME, {})
        with pytest.raises(TocsinError):
            j.restore(tmp_path / "copy.db", key)
    assert checks.verify(tmp_path / "copy.db", key).events == 8
    with pytest.raises(InputError, match="exists"):
        j.backup(tmp_path / "copy.db", key)
    with pytest.raises(Conflict, match="is whole and"):
        j.restore(tmp_path / "copy.db", key)
    j.damage("UPDATE entry SET payload = ? WHERE seq = 2", "{}")
    j.restore(tmp_path / "copy.db", key)
    with written(j, ManualClock(T0), sealed=True) as journal:
        assert (journal.head, list(journal.entries())[-1].payload) == (8, ODD)
        assert journal.append(EntryKind.RESUME, {}).seq == 9
    j.damage("UPDATE entry SET payload = ? WHERE seq = 2", "[]")
    with pytest.raises(Conflict, match="earlier restore"):
        j.restore(tmp_path / "copy.db", key)


def test_a_backup_of_a_damaged_journal_is_not_put_back(j: Harness, tmp_path: Path) -> None:
    fill(j, 5)
    j.damage("UPDATE entry SET payload = ? WHERE seq = 2", "{}")
    j.backup(tmp_path / "copy.db")
    with pytest.raises(InputError, match="entry 2 was edited"):
        j.restore(tmp_path / "copy.db")


def everything(j: Harness) -> tuple[object, ...]:
    """All that can be read of a journal, by number, by page and by lines."""
    past = j.past()
    pages = [
        past.page(before, 40, wanted).entries
        for before in (None, 70, 20)
        for wanted in (Wanted(), Wanted(text="power"))
    ]
    few = [
        list(past.entries(after=33, limit=9)),
        list(past.entries(kinds=["approval"])),
        list(past.numbered([1, 55, 90])),
    ]
    told = past.page(40, 30, Wanted(kinds=("approval",)))
    return list(past.entries()), pages, few, told.told, told.told_zh, past.number_before(T0 + DAY), past.verify().events


def test_what_is_archived_reads_as_before(j: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_journal, "CHUNK_ENTRIES", 10)
    monkeypatch.setattr(archives, "FILE_ENTRIES", 10)
    fill(j, 100, step_ms=DAY)
    before = everything(j)
    with written(j, ManualClock(T0 + 99 * DAY)) as journal:
        done = []
        while said := archived_once(journal, 35):
            done.append(said)
        assert done
        assert 50 <= journal.archived() < 80
        after = list(journal.entries())
        journal.append(EntryKind.RESUME, {})
    assert before[0] == after[:100]
    assert {entry.kind for entry in after[100:]} == {"archived"}
    again = everything(j)
    assert (again[2], again[3], again[4], again[5]) == (before[2], before[3], before[4], before[5])
    assert j.past().verify().ok
    with written(j, ManualClock(T0)) as journal:
        assert journal.head == len(after) + 1


def archived_once(journal: LiveJournal, keep: int) -> str:
    """What a brain does every five minutes, with small files."""
    if isinstance(journal, Journal):
        made = archives.archive_next(journal, keep, archives.FILE_ENTRIES)
        return "" if made is None else made.path.name
    return journal.archive(keep)


def test_an_export_has_every_entry_once(j: Harness) -> None:
    fill(j, 9)
    assert len(list(export(j.past(), "jsonl"))) == 9
    assert len(list(export(j.past(), "cef", kinds=["approval"]))) == 3


def test_a_journal_that_is_not_there_is_said_to_be_so(j: Harness) -> None:
    with pytest.raises(InputError, match="journal"):
        list(j.past().entries())
    assert not j.past().verify().ok

"""A start from a checkpoint comes to the state that a start from the first entry comes to."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from tocsin.actions.model.decision_log import LEDGER_KINDS, LEDGER_PART, DecisionLog, Ledger
from tocsin.config.settings import Settings
from tocsin.domain.clock import ManualClock
from tocsin.domain.entry import Entry, EntryKind
from tocsin.journal import checkpoint
from tocsin.journal.files import JournalBroken, read_entries
from tocsin.journal.journal import Journal
from tocsin.journal.verify import verify
from tocsin.runtime.brain import brain as brain_module
from tocsin.runtime.brain.assembly import open_brain
from tocsin.runtime.brain.recorder import RECORDER_PART, Recorder
from tocsin_testing.builders import T0
from tocsin_testing.compat import JOURNALS, unpack

CUTS = 12


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(tmp_path_factory.mktemp("compat"))


def folded(entries: list[Entry], ledger: Ledger) -> Ledger:
    for entry in entries:
        ledger.apply(entry)
    return ledger


def through_json(state: object) -> dict[str, object]:
    found: dict[str, object] = json.loads(json.dumps(state, allow_nan=False))
    return found


def plain(state: object) -> object:
    """`state` with what has no order in one."""
    if isinstance(state, dict):
        return {key: plain(value) for key, value in state.items()}
    if isinstance(state, list) and all(isinstance(each, str) for each in state):
        return sorted(state)
    return [plain(each) for each in state] if isinstance(state, list) else state


@pytest.mark.parametrize("name", JOURNALS)
def test_the_ledger_goes_on_from_any_entry_as_from_the_first(packed: Path, name: str) -> None:
    entries = list(read_entries(packed / name, kinds=LEDGER_KINDS))
    whole = folded(entries, Ledger())
    for cut in sorted(Random(name).sample(range(len(entries) + 1), min(CUTS, len(entries)))):
        first = folded(entries[:cut], Ledger())
        again = Ledger.restored(through_json(first.state()))
        assert plain(again.state()) == plain(first.state())
        assert list(again.records) == list(first.records)
        assert folded(entries[cut:], again).records == whole.records
        assert plain(again.state()) == plain(whole.state())


@pytest.mark.parametrize("name", JOURNALS)
def test_the_open_findings_go_on_from_any_entry_as_from_the_first(packed: Path, tmp_path: Path, name: str) -> None:
    path = Path(shutil.copytree((packed / name).parent, tmp_path / "state")) / Path(name).name
    with closing(Journal.open(path, ManualClock(T0))) as journal:
        whole = Recorder(journal).state()
        entries = list(journal.entries())

        class Part:
            """A journal up to an entry."""

            def __init__(self, after: int, state: object, until: int) -> None:
                self.folded = lambda _part: (after, state)
                self._until = until

            def entries(self, after: int = 0, kinds: tuple[str, ...] = ()) -> list[Entry]:
                return [entry for entry in entries if after < entry.seq <= self._until and entry.kind in kinds]

        for cut in sorted(Random(name).sample(range(len(entries) + 1), min(CUTS, len(entries)))):
            first = Recorder(Part(0, None, cut)).state()  # type: ignore[arg-type]
            again = Recorder(Part(cut, through_json(first), len(entries)))  # type: ignore[arg-type]
            assert through_json(again.state()) == through_json(whole)


def saved(folder: Path, before: int = 6, after: int = 3) -> Path:
    """A journal with a checkpoint in the middle."""
    path = folder / "journal.db"
    with closing(Journal.open(path, ManualClock(T0))) as journal:
        for number in range(before):
            journal.append(EntryKind.PAUSE, {"reason": str(number)})
        log = DecisionLog(journal)
        journal.save(journal.head, {LEDGER_PART: log.state(), RECORDER_PART: Recorder(journal).state()})
        for number in range(after):
            journal.append(EntryKind.PAUSE, {"reason": f"later {number}"})
    return path


def test_a_start_reads_only_what_follows_the_checkpoint(tmp_path: Path) -> None:
    path = saved(tmp_path)
    with closing(Journal.open(path, ManualClock(T0))) as journal:
        after, _ = journal.folded(LEDGER_PART)
        assert after == 6
        note = DecisionLog(journal).ledger.controls().paused
        assert note is not None
        assert note.reason == "later 2"
    assert verify(path).ok


def _forged(path: Path) -> None:
    where = checkpoint.path_of(path)
    where.write_bytes(where.read_bytes().replace(b'"reason": "5"', b'"reason": "X"'))


def _emptied(path: Path) -> None:
    checkpoint.path_of(path).write_bytes(b"")


def _removed(path: Path) -> None:
    checkpoint.path_of(path).unlink()


@pytest.mark.parametrize("change", [_forged, _emptied, _removed])
def test_a_changed_file_is_not_used(tmp_path: Path, change: Callable[[Path], None]) -> None:
    path = saved(tmp_path, after=0)
    change(path)
    with closing(Journal.open(path, ManualClock(T0))) as journal:
        assert journal.checkpoint is None
        note = DecisionLog(journal).ledger.controls().paused
        assert note is not None
        assert note.reason == "5"


def test_one_of_another_version_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path)
    monkeypatch.setattr(checkpoint, "__version__", "0.0.0")
    with closing(Journal.open(path, ManualClock(T0))) as journal:
        assert journal.checkpoint is None


@pytest.mark.parametrize("number", range(1, 11))
def test_an_edit_is_found_at_the_start_behind_the_checkpoint_and_by_verify_anywhere(
    tmp_path: Path, number: int
) -> None:
    path = saved(tmp_path)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("DROP TRIGGER entry_no_update")
        db.execute("UPDATE entry SET actor = 'mallory' WHERE seq = ?", (number,))
    assert not verify(path).ok
    if number > 6:
        with pytest.raises(JournalBroken, match=f"entry {number} was edited"):
            Journal.open(path, ManualClock(T0))
    else:
        Journal.open(path, ManualClock(T0)).close()


def test_a_brain_saves_one_every_so_many_entries_and_starts_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(brain_module, "CHECKPOINT_ENTRIES", 5)
    settings = Settings.model_validate(
        {
            "store": {"path": tmp_path / "store.db"},
            "journal": {"path": tmp_path / "journal.db"},
            "forecast": {"worker": False, "models": tmp_path / "models"},
        }
    )
    for number in range(6):
        running = open_brain(settings, ManualClock(T0))
        running.brain.tick()
        operator = running.brain.actions.operator
        (operator.resume if number % 2 else operator.pause)("ann")
        running.stop()
    found = list(read_entries(settings.journal.path, kinds=[EntryKind.CHECKPOINT]))
    assert len(found) == 3
    running = open_brain(settings, ManualClock(T0))
    assert running.brain.journal.folded(LEDGER_PART)[0] == found[-1].payload["seq"]
    assert running.brain.actions.controls().paused is None
    running.stop()
    assert verify(settings.journal.path).ok

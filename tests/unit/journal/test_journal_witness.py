"""A witness that is away, damaged, or knows another journal."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest
from pydantic import ValidationError

from tocsin.config.settings import JournalSettings
from tocsin.domain.clock import ManualClock
from tocsin.domain.entry import EntryKind
from tocsin.journal import witness as witness_module
from tocsin.journal.journal import Journal
from tocsin.journal.witness import (
    MOST_BYTES,
    MOST_JOURNALS,
    NO_WITNESS,
    FileWitness,
    Seen,
    Standing,
    WitnessAway,
    WitnessKeeper,
    in_words,
)
from tocsin_testing.builders import T0

PATIENCE = 30.0


class Slow:
    """A witness that answers once it is let."""

    name = "slow"
    pace_seconds: float = 0.0

    def __init__(self, seen: Mapping[str, Seen]) -> None:
        self.seen = dict(seen)
        self.answers = threading.Event()
        self.written = threading.Event()

    def read(self) -> Mapping[str, Seen]:
        self.answers.wait(PATIENCE)
        return self.seen

    def write(self, journal: str, seen: Seen) -> None:
        self.answers.wait(PATIENCE)
        self.seen[journal] = seen
        self.written.set()


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    (tmp_path / "volume").mkdir()
    with closing(Journal.open(tmp_path / "volume" / "journal.db", ManualClock(T0))) as found:
        found.append(EntryKind.SERVICE_STARTED, {})
        yield found


def test_one_that_is_away_stops_no_start_and_is_compared_when_it_answers(journal: Journal) -> None:
    witness = Slow({"f" * 64: Seen(7, 300, "a" * 64)})
    keeper = WitnessKeeper(journal, witness)
    said: list[str] = []
    heard = threading.Event()
    with closing(keeper):
        assert keeper.start(0.0) == ""
        keeper.listen(lambda reason: (said.append(reason), heard.set())[0])
        journal.on_append = keeper.appended
        journal.append(EntryKind.EXECUTION_STARTED, {})
        assert keeper.standing is Standing.UNASKED
        witness.answers.set()
        assert heard.wait(PATIENCE)
    assert "another journal is known, up to entry 300 of epoch 7" in said[0]
    assert said[0] == in_words([keeper])
    assert not witness.written.is_set(), "what it has seen stays until a person resumes"


def test_one_that_was_away_is_asked_again_until_it_answers(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(witness_module, "RETRY_SECONDS", 0.01)
    witness = Slow({"f" * 64: Seen(7, 300, "a" * 64)})
    witness.answers.set()
    read, asked = witness.read, list[int]()

    def away() -> Mapping[str, Seen]:
        asked.append(1)
        if len(asked) < 3:
            raise WitnessAway("no route to host")
        return read()

    witness.read = away  # type: ignore[method-assign]
    keeper = WitnessKeeper(journal, witness)
    heard = threading.Event()
    with closing(keeper):
        keeper.listen(lambda _reason: heard.set())
        assert keeper.start(PATIENCE) in {"", in_words([keeper])}, "nobody waits for one that is away"
        assert heard.wait(PATIENCE)
        assert keeper.standing is Standing.OLDER


@pytest.mark.parametrize(
    "kind",
    ["execution_started", "pause", "hold_off", "maintenance_planned", "breaker_tripped", "rejection"],
)
def test_what_must_not_be_lost_is_there_before_anything_rests_on_it(journal: Journal, kind: str) -> None:
    witness = Slow({})
    witness.answers.set()
    # Nothing that may wait is written again within the test.
    witness.pace_seconds = 600.0
    keeper = WitnessKeeper(journal, witness)
    with closing(keeper):
        assert keeper.start(PATIENCE) == ""
        journal.on_append = keeper.appended
        assert witness.written.wait(PATIENCE)
        journal.append(EntryKind(kind), {})
        assert [one.seq for one in witness.seen.values()] == [journal.head]


def test_one_that_goes_away_later_holds_an_entry_up_once_and_is_counted(tmp_path: Path, journal: Journal) -> None:
    place = tmp_path / "elsewhere" / "witness.json"
    place.parent.mkdir()
    failures: list[int] = []
    keeper = WitnessKeeper(journal, FileWitness(place), lambda: failures.append(1))
    with closing(keeper):
        assert keeper.start(PATIENCE) == ""
        journal.on_append = keeper.appended
        journal.append(EntryKind.PAUSE, {})
        assert (keeper.behind(), in_words([keeper])) == (0, "")
        place.unlink()
        place.parent.rmdir()
        journal.append(EntryKind.EXECUTION_STARTED, {})
        assert "is no folder: make it, or mount its volume" in in_words([keeper])
        journal.append(EntryKind.PAUSE, {})
        assert failures
        assert keeper.behind() == 2
        assert keeper.standing is Standing.CURRENT


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{",
        b'{"journals": []}',
        b'{"journals": {"a": 1}}',
        b'{"journals": {"a": {"epoch": 1, "seq": 1e400, "hash": ""}}}',
        b'{"journals": {"a": {"epoch": 1, "seq": ' + b"9" * 30 + b', "hash": ""}}}',
        b'{"journals": {"a": {"epoch": 1, "seq": -1, "hash": ""}}}',
        b'{"journals": ' + b"[" * 60_000,
        b" " * (MOST_BYTES + 1),
        b"\xff\xfe",
    ],
)
def test_a_damaged_one_says_what_to_do_and_is_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    place = tmp_path / "witness.json"
    place.write_bytes(content)
    for ask in (lambda: FileWitness(place).read(), lambda: FileWitness(place).write("a", Seen(1, 1, "b"))):
        with pytest.raises(WitnessAway, match=r"(?s)cannot be read.*remove it once you know"):
            ask()
    assert place.read_bytes() == content


def test_one_knows_so_many_journals_and_the_newest_of_them(tmp_path: Path) -> None:
    witness = FileWitness(tmp_path / "witness.json")
    for number in range(MOST_JOURNALS + 2):
        witness.write(f"{number:064}", Seen(1, number, "c" * 64))
    assert len(witness.read()) == MOST_JOURNALS
    assert f"{MOST_JOURNALS + 1:064}" in witness.read()


def test_it_must_lie_elsewhere(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="put it elsewhere"):
        JournalSettings(path=tmp_path / "journal.db", witness=tmp_path / "witness.json")


def test_a_site_without_one_is_told() -> None:
    assert in_words([]) == NO_WITNESS

"""Laws of a journal with a witness that answers: a restored one starts paused, every ordinary restart goes on."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin.domain.clock import ManualClock
from tocsin.domain.entry import EntryKind
from tocsin.journal.backup import backup
from tocsin.journal.journal import Journal
from tocsin.journal.verify import verify
from tocsin.journal.witness import AWAITED, FileWitness, Standing, WitnessKeeper
from tocsin_testing.builders import T0

PATIENCE = 30.0
ORDINARY = (EntryKind.FINDING_OPENED, EntryKind.VERDICT, EntryKind.OUTCOME)
AWAITED_KINDS = sorted(AWAITED)
runs = st.lists(st.lists(st.sampled_from([*ORDINARY, *AWAITED_KINDS]), min_size=1, max_size=4), min_size=1, max_size=4)
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""Nothing here is about what a disk keeps, and waiting for one took most of the time."""
few = settings(max_examples=25)


class Site:
    """A journal and the file of its witness, each in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.path, self.witness = folder / "volume" / "journal.db", folder / "elsewhere" / "witness.json"
        self.copies: list[Path] = []
        for path in (self.path, self.witness):
            path.parent.mkdir()

    def start(self) -> tuple[Journal, WitnessKeeper]:
        journal = Journal.open(self.path, ManualClock(T0))
        keeper = WitnessKeeper(journal, FileWitness(self.witness))
        keeper.start(PATIENCE)
        journal.on_append = keeper.appended
        return journal, keeper

    def run(self, kinds: Sequence[EntryKind]) -> Standing:
        """A process that writes these; killed at the end: neither journal nor witness is told of it."""
        journal, keeper = self.start()
        standing = keeper.standing
        for kind in (EntryKind.SERVICE_STARTED, *kinds):
            journal.append(kind, {"number": len(self.copies)})
            if kind in AWAITED:
                assert max(one.seq for one in FileWitness(self.witness).read().values()) == journal.head
            self.copies.append(self.path.with_name(f"copy{len(self.copies)}.db"))
            backup(self.path, self.copies[-1])
        journal.close()
        keeper.close()
        return standing

    def restore(self, copy: Path) -> None:
        for suffix in ("", "-wal", "-shm", ".head"):
            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
        shutil.copy(copy, self.path)
        shutil.copy(copy.with_name(copy.name + ".head"), self.path.with_name(self.path.name + ".head"))
        assert verify(self.path).ok


@few
@given(wanted=runs)
def test_a_restore_to_any_earlier_instant_is_found_and_a_person_takes_it_over(
    wanted: list[list[EntryKind]],
) -> None:
    with TemporaryDirectory(dir=MEMORY) as folder:
        site = Site(Path(folder))
        for kinds in wanted:
            assert site.run(kinds) is Standing.CURRENT
        for copy in site.copies[:-1]:
            site.restore(copy)
            for _ in range(2):
                journal, keeper = site.start()
                with closing(journal), closing(keeper):
                    assert keeper.standing is Standing.OLDER
                    journal.append(EntryKind.PAUSE, {"reason": keeper.reason()})
        with closing(Journal.open(site.path, ManualClock(T0))):
            pass
        journal, keeper = site.start()
        journal.append(EntryKind.RESUME, {}, actor="ann")
        assert keeper.standing is Standing.CURRENT
        journal.close()
        keeper.close()
        assert site.run([EntryKind.VERDICT]) is Standing.CURRENT


@few
@given(wanted=runs, lost=st.integers(0, 20))
def test_a_witness_that_lost_its_newest_words_stops_no_restart(wanted: list[list[EntryKind]], lost: int) -> None:
    """As a power loss leaves it, or an absence while the brain went on."""
    with TemporaryDirectory(dir=MEMORY) as folder:
        site = Site(Path(folder))
        words: list[bytes] = []
        for kinds in wanted:
            assert site.run(kinds) is Standing.CURRENT
            words.append(site.witness.read_bytes())
            site.witness.write_bytes(words[-1 - lost % len(words)])
        assert site.run([]) is Standing.CURRENT


def test_two_hundred_of_two_hundred_ordinary_restarts_go_on() -> None:
    found = []
    with TemporaryDirectory(dir=MEMORY) as folder:
        site = Site(Path(folder))
        for number in range(200):
            journal, keeper = site.start()
            found.append(keeper.standing)
            kinds = (*ORDINARY, *AWAITED_KINDS)
            journal.append(kinds[number % len(kinds)], {})
            if number % 2:
                keeper.close()
            journal.close()
            keeper.close()
    assert found == [Standing.CURRENT] * 200

"""The lease that is a lock on a file."""

from __future__ import annotations

import threading
from pathlib import Path

from tocsin.runtime.brain.lease import FileLease, Lease, looking


def test_one_holds_it_and_the_next_comes_in_a_new_epoch(tmp_path: Path) -> None:
    path = tmp_path / "brain" / "lease"
    first: Lease = FileLease(path, "a")
    second: Lease = FileLease(path, "b")
    assert (first.held(), first.holder()) == (False, "")
    first.tick()
    second.tick()
    assert (first.held(), second.held(), second.holder()) == (True, False, "a")
    first.tick()
    assert first.epoch == 0
    first.release()
    first.release()
    assert (first.held(), first.holder()) == (False, "")
    second.tick()
    assert (second.held(), second.epoch, first.holder()) == (True, 1, "b")
    second.release()


def test_a_damaged_file_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "lease"
    path.write_text("garbage")
    lease = FileLease(path, "a")
    lease.tick()
    assert (lease.held(), lease.epoch) == (True, 0)
    lease.release()


def test_who_gets_the_lease_turns_at_once(tmp_path: Path) -> None:
    """The loop turns every 15 s by itself: as long again as the lease."""
    path, wake = tmp_path / "lease", threading.Event()
    first, second = FileLease(path, "a"), FileLease(path, "b")
    first.tick()
    look = looking(second, wake)
    look()
    assert not wake.is_set()
    first.release()
    look()
    assert (second.held(), wake.is_set()) == (True, True)
    wake.clear()
    look()
    assert not wake.is_set(), "a lease that is held already wakes nobody"
    second.release()

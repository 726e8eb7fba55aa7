"""What an append costs, and what a power loss right after it leaves."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tocsin.domain.clock import ManualClock
from tocsin.domain.entry import EntryKind
from tocsin.journal.files import Anchor
from tocsin.journal.journal import Journal
from tocsin.journal.verify import verify
from tocsin_testing.builders import T0


def folder_syncs(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """One item for each folder that is synced from here on."""
    synced: list[bool] = []
    real = os.fsync

    def fsync(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            synced.append(True)
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    return synced


def test_only_the_first_anchor_syncs_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = folder_syncs(monkeypatch)
    journal = Journal.open(tmp_path / "journal.db", ManualClock(T0))
    assert len(synced) == 1
    for number in range(3):
        journal.append(EntryKind.PAUSE, {"reason": str(number)})
    journal.close()
    assert len(synced) == 1


def test_an_anchor_that_a_power_loss_brought_back_leaves_the_chain_whole(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = Journal.open(path, ManualClock(T0))
    journal.append(EntryKind.PAUSE, {})
    before = Anchor.path_of(path).read_bytes()
    journal.append(EntryKind.RESUME, {})
    journal.close()
    Anchor.path_of(path).write_bytes(before)
    assert verify(path).ok
    assert verify(path).events == 2

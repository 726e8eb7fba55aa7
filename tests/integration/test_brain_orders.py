"""The board of orders of a brain that was put together from settings."""

from __future__ import annotations

from pathlib import Path

from tocsin.config.settings import Settings
from tocsin.domain.clock import MINUTE, ManualClock
from tocsin.runtime.assembly import open_brain
from tocsin_testing.builders import T0


def settings_in(folder: Path) -> Settings:
    return Settings.model_validate(
        {
            "store": {"path": folder / "store.db"},
            "journal": {"path": folder / "journal.db"},
            "forecast": {"worker": False},
            "actions": {"executors": ["node", "journal_only"]},
        }
    )


def test_a_brain_with_a_new_journal_is_followed_after_the_old_one(tmp_path: Path) -> None:
    clock, epochs = ManualClock(T0), []
    for folder in ("first", "first", "second"):
        running = open_brain(settings_in(tmp_path / folder), clock)
        epochs.append(running.brain.desk.board.epoch)
        running.stop()
        clock.advance(MINUTE)
    assert epochs == [T0, T0 + MINUTE, T0 + 2 * MINUTE]


def test_the_board_sees_the_nodes_that_the_managers_see(tmp_path: Path) -> None:
    running = open_brain(settings_in(tmp_path), ManualClock(T0))
    managers, board = running.brain.managers, running.brain.desk.board
    assert board.nodes() == {}
    assert board.nodes == managers.nodes
    running.stop()

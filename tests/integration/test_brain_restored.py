"""A brain whose journal was restored from a copy: paused, with a reason, until a person resumes."""

from __future__ import annotations

import shutil
from pathlib import Path

from tocsin.config.settings import Settings
from tocsin.domain.clock import ManualClock
from tocsin.journal.backup import backup
from tocsin.queries.service import BrainService
from tocsin.runtime.brain.assembly import RunningBrain, open_brain
from tocsin_testing.builders import T0


def site(folder: Path) -> Settings:
    (folder / "elsewhere").mkdir(exist_ok=True)
    return Settings.model_validate(
        {
            "store": {"path": folder / "brain" / "store.db"},
            "journal": {
                "path": folder / "brain" / "journal.db",
                "witness": folder / "elsewhere" / "witness.json",
                "witness_seconds": 30,
            },
            "forecast": {"worker": False, "models": folder / "models"},
            "actions": {"mode": "propose"},
        }
    )


def restored(settings: Settings, copy: Path) -> None:
    for old in settings.journal.path.parent.glob("journal.db*"):
        if old.suffix != ".lock":
            old.unlink()
    shutil.copy(copy, settings.journal.path)
    shutil.copy(f"{copy}.head", f"{settings.journal.path}.head")


def started(settings: Settings) -> RunningBrain:
    running = open_brain(settings, ManualClock(T0))
    running.brain.tick()
    return running


def test_it_starts_paused_says_why_and_goes_on_once_a_person_resumes(tmp_path: Path) -> None:
    settings = site(tmp_path)
    copy = tmp_path / "copy.db"
    first = started(settings)
    backup(settings.journal.path, copy)
    first.brain.actions.operator.pause("ann", "work on the racks")
    first.brain.actions.operator.resume("ann")
    first.stop()
    for _ in range(2):
        ordinary = started(settings)
        assert ordinary.brain.actions.controls().paused is None
        assert BrainService(ordinary.brain).summary().journal_witness == ""
        assert ordinary.brain.metrics.value("tocsin_journal_witnesses") == 1
        ordinary.stop()

    restored(settings, copy)
    for _ in range(2):
        old = started(settings)
        paused = old.brain.actions.controls().paused
        assert paused is not None
        assert paused.actor == "tocsin"
        assert "was seen, and this journal ends before it" in paused.reason
        assert "resume" in paused.reason
        summary = BrainService(old.brain).summary()
        assert summary.journal_witness == paused.reason
        assert old.brain.metrics.value("tocsin_journal_witnesses") == 0
        old.stop()
    old = started(settings)
    old.brain.actions.operator.resume("ben")
    assert BrainService(old.brain).summary().journal_witness == ""
    old.stop()
    again = started(settings)
    assert again.brain.actions.controls().paused is None
    again.stop()


def test_an_empty_journal_where_one_was_known_starts_paused(tmp_path: Path) -> None:
    settings = site(tmp_path)
    started(settings).stop()
    for old in settings.journal.path.parent.glob("journal.db*"):
        old.unlink()
    running = started(settings)
    paused = running.brain.actions.controls().paused
    assert paused is not None
    assert "another journal is known" in paused.reason
    running.stop()

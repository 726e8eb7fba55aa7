"""A brain whose journal was restored from a copy: paused, with a reason, until a person resumes. What a restored store
says makes nothing run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from tocsin.config.settings import Settings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import SECOND, ManualClock
from tocsin.domain.decision import DecisionState
from tocsin.domain.entry import EntryKind
from tocsin.journal.backup import backup
from tocsin.queries.service import BrainService
from tocsin.runtime.brain.assembly import RunningBrain, open_brain
from tocsin_testing.builders import T0, gpu, reading


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


def test_ordinary_restarts_go_on_unpaused(tmp_path: Path) -> None:
    """Of a whole brain that acts: stopped and started again, every third time while the witness is away. Those by
    kill -9 are in tests/e2e/test_brain_kill.py."""
    acting = ActingSite(tmp_path)
    acting.live([COOL])
    unpaused = 0
    for number in range(RESTARTS):
        away = tmp_path / "away"
        if number % 3 == 2:
            (tmp_path / "elsewhere").rename(away)
        running = acting.open()
        acting.evaluate(running, HOT if number % 2 else COOL)
        unpaused += running.brain.actions.controls().paused is None
        if away.exists():
            away.rename(tmp_path / "elsewhere")
        running.stop()
    print(f"restarts: {RESTARTS}, a third of them while the witness was away; {unpaused} went on unpaused")
    assert unpaused == RESTARTS


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


RULES = """
[[rules]]
name = "hot"
severity = "critical"
category = "thermal"
action = "throttle"
mode = "act"
alert = "{where}: {value}"
all = [{kind = "threshold", metric = "gpu_temperature_celsius", above = 85}]
"""
HOT, COOL = 95.0, 40.0
STEP_SECONDS = 5
RESTARTS = int(os.environ.get("TOCSIN_RESTARTS", "12"))
CONFIRMATIONS = 3
warmths = st.lists(st.sampled_from([HOT, COOL]), min_size=2, max_size=8)


class ActingSite:
    """A brain that throttles one GPU once three evaluations have seen it hot; a copy of its files after each."""

    def __init__(self, folder: Path) -> None:
        (folder / "rules.toml").write_text(RULES)
        self.folder = folder
        self.clock = ManualClock(T0)
        ready = site(folder).model_dump()
        ready["rules"] |= {"path": folder / "rules.toml", "evaluate_seconds": float(STEP_SECONDS)}
        ready["actions"] |= {
            "mode": "act",
            "earn_waived": ["*"],
            "managed_pools": ["default"],
            "confirmations": CONFIRMATIONS,
            "boot_grace_seconds": 0.0,
            "cooldown_seconds": 0.0,
        }
        ready["actions"]["limits"] |= {"max_concurrent_ratio": 1.0, "min_available_ratio": 0.0, "attempts_per_day": 100}
        self.settings = Settings.model_validate(ready)
        self.copies: list[Path] = []

    def open(self) -> RunningBrain:
        return open_brain(self.settings, self.clock)

    def live(self, seen: list[float]) -> None:
        """The first brain: a GPU as hot as that, one reading and one evaluation after the other."""
        running = self.open()
        running.brain.actions.operator.resume("ann")
        for value in seen:
            self.evaluate(running, value)
            copy = self.folder / f"copy{len(self.copies)}"
            copy.mkdir()
            backup(self.settings.journal.path, copy / "journal.db")
            self._copy_store(self.settings.store.path.parent, copy)
            self.copies.append(copy)
        running.stop()

    def evaluate(self, running: RunningBrain, value: float | None) -> None:
        """With a reading, or without one where `value` is None."""
        self.clock.advance(STEP_SECONDS * SECOND)
        if value is not None:
            one = reading(gpu(), self.clock.now_ms(), temperature_celsius=value)
            running.brain.accept(Batch(readings=[one]))
        running.brain.tick()

    def restore_store(self, copy: Path) -> None:
        for old in self.settings.store.path.parent.glob("store.db*"):
            shutil.rmtree(old) if old.is_dir() else old.unlink()
        self._copy_store(copy, self.settings.store.path.parent)

    @staticmethod
    def _copy_store(source: Path, target: Path) -> None:
        for found in source.glob("store.db*"):
            shutil.copytree(found, target / found.name) if found.is_dir() else shutil.copy(found, target / found.name)

    @staticmethod
    def executions(running: RunningBrain) -> int:
        """Executions that this brain began."""
        epoch = running.brain.journal.epoch
        begun = running.brain.journal.entries(kinds=[EntryKind.EXECUTION_STARTED])
        return sum(entry.epoch == epoch for entry in begun)


@examples(max_examples=8)
@given(seen=warmths, which=st.integers(0, 7), with_store=st.booleans())
def test_a_journal_of_any_earlier_instant_starts_paused_and_does_nothing(
    seen: list[float], which: int, with_store: bool
) -> None:
    with TemporaryDirectory() as folder:
        acting = ActingSite(Path(folder))
        acting.live(seen)
        copy = acting.copies[which % len(acting.copies)]
        restored(acting.settings, copy / "journal.db")
        if with_store:
            acting.restore_store(copy)
        running = acting.open()
        paused = running.brain.actions.controls().paused
        assert paused is not None
        assert "it was restored or cut" in paused.reason
        for _ in range(CONFIRMATIONS + 1):
            acting.evaluate(running, HOT)
        assert acting.executions(running) == 0
        running.stop()


@examples(max_examples=8)
@given(seen=warmths, which=st.integers(0, 7))
def test_a_store_of_any_earlier_instant_makes_nothing_run_until_the_gpu_is_read_again(
    seen: list[float], which: int
) -> None:
    with old_store([*seen, COOL], which) as (acting, running):
        for value in [None] * (CONFIRMATIONS + 1) + [COOL]:
            acting.evaluate(running, value)
        assert acting.executions(running) == 0


def test_a_heat_that_ended_before_it_was_throttled_is_not_throttled_by_an_old_store() -> None:
    """The case that a journal cannot tell: the decision has expired there, and may be made anew."""
    with old_store([COOL, HOT, COOL], 1) as (acting, running):
        for _ in range(CONFIRMATIONS + 1):
            acting.evaluate(running, None)
        assert [status.decision.action for status in running.brain.statuses() if status.state is DecisionState.HELD]
        assert acting.executions(running) == 0
        # What is read hot now is throttled at once.
        acting.evaluate(running, HOT)
        assert acting.executions(running) == 1


@contextmanager
def old_store(seen: list[float], which: int) -> Iterator[tuple[ActingSite, RunningBrain]]:
    """A brain that starts on an older store a moment later: its readings are as young as those of an ordinary start."""
    with TemporaryDirectory() as folder:
        acting = ActingSite(Path(folder))
        acting.live(seen)
        acting.restore_store(acting.copies[which % len(acting.copies)])
        running = acting.open()
        assert running.brain.actions.controls().paused is None
        yield acting, running
        running.stop()

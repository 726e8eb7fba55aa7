"""A brain that takes over goes on from what the one on standby in its process has seen and counted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tocsin.domain.batch import Batch
from tocsin.domain.clock import MINUTE, SECOND, ManualClock
from tocsin.domain.decision import Ruling
from tocsin.domain.finding import ActionKind
from tocsin.domain.reading import Owner, Reading
from tocsin.journal.journal import Journal
from tocsin.runtime.brain import rule_keeper
from tocsin.runtime.brain.assembly import RunningBrain, open_brain
from tocsin.runtime.brain.brain import Handover
from tocsin.runtime.brain.succession import Borrowed, SharedJournal
from tocsin.store.embedded.store import SqliteStore
from tocsin.store.port import StoreUnavailable
from tocsin_testing.builders import T0, gpu, reading
from tocsin_testing.started_brain import settings_in


class Held:
    """A lease that this brain has."""

    epoch = 1

    def held(self) -> bool:
        return True

    def holder(self) -> str:
        return "this one"


class Site:
    """Turns of one process over one store."""

    def __init__(self, folder: Path) -> None:
        self.settings, self.clock = settings_in(folder), ManualClock(T0)
        self.running: RunningBrain | None = None

    def turn(self, seen: Handover | None = None) -> RunningBrain:
        journal = Journal.open(self.settings.journal.path, self.clock)
        place = SharedJournal(journal, Borrowed(Held()), handover=seen)  # type: ignore[arg-type]
        try:
            self.running = open_brain(self.settings, self.clock, place=place)
        except StoreUnavailable:
            journal.close()
            raise
        return self.running

    def end(self) -> Handover:
        assert self.running is not None
        self.running.stop()
        handover, self.running = self.running.brain.handover(), None
        return handover

    def read(self, temperature: float = 60.0) -> Reading:
        made = reading(gpu(1), self.clock.now_ms(), utilization_ratio=0.9, temperature_celsius=temperature)
        return replace(made, owners=(Owner(1, slurm_job="7"),))

    def minutes(self, count: int, **more: float) -> None:
        assert self.running is not None
        for _ in range(count):
            self.clock.advance(MINUTE)
            self.running.brain.accept(Batch([self.read(**more)]))
            self.running.brain.tick()

    def used(self) -> float:
        assert self.running is not None
        self.running.brain.usage.look()
        return sum(one.row.seconds[0] for one in self.running.brain.usage.table.groups(0, 10**6, ["job"]))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    if made.running is not None:
        made.running.stop()


def nothing_is_read(patch: pytest.MonkeyPatch) -> None:
    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("the store is asked for readings")

    for name in ("latest", "readings"):
        patch.setattr(SqliteStore, name, never)
    patch.setattr(rule_keeper, "warm_up", never)


def test_rules_and_usage_go_on_without_a_reading_of_the_store(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.turn()
    site.minutes(3)
    site.minutes(1, temperature=90.0)
    seen = site.end()
    site.clock.advance(20 * SECOND)
    with monkeypatch.context() as patch:
        nothing_is_read(patch)
        second = site.turn(seen)
        assert [one.uuid for one in second.brain.gpus] == [gpu(1).uuid]
    site.clock.advance(20 * SECOND)
    site.minutes(1, temperature=90.0)
    assert "temperature_high" in {one.rule for one in second.brain.active}, "it was hot before the takeover, too"
    assert site.used() == 280, "from the first reading to the last, and once"


def held_back(site: Site) -> bool:
    """Whether the guard `boot_grace` holds what its brain would do."""
    assert site.running is not None
    status = next(one for one in site.running.brain.actions.statuses() if one.decision.action != ActionKind.NOTIFY)
    (verdict,) = (one for one in status.verdicts if one.guard == "boot_grace")
    return verdict.ruling is Ruling.HOLD


@pytest.mark.parametrize(("minutes", "held"), [(1, True), (10, False)])
def test_who_has_watched_long_enough_on_standby_acts_at_once(site: Site, minutes: int, held: bool) -> None:
    site.turn()
    site.minutes(minutes)
    seen = site.end()
    site.clock.advance(20 * SECOND)
    site.turn(seen)
    site.minutes(2, temperature=90.0)
    assert held_back(site) is held


def test_who_was_blind_before_it_took_over_watches_first(site: Site) -> None:
    site.turn()
    site.minutes(10)
    seen = site.end()
    site.clock.advance(15 * MINUTE)
    site.turn(seen)
    site.minutes(2, temperature=90.0)
    assert held_back(site)


def test_who_was_blind_on_standby_has_watched_since_it_sees_again(site: Site) -> None:
    """Stopped, or cut off from the store, and back again shortly before it takes over."""
    running = site.turn()
    site.minutes(10)
    site.clock.advance(15 * MINUTE)
    running.brain.tick()
    site.minutes(1)
    seen = site.end()
    site.clock.advance(20 * SECOND)
    site.turn(seen)
    site.minutes(2, temperature=90.0)
    assert held_back(site)


def test_where_it_saw_nothing_for_long_the_store_is_asked(site: Site) -> None:
    site.turn()
    site.minutes(3)
    seen = site.end()
    store = SqliteStore(site.settings.store.path)
    for _ in range(15):
        site.clock.advance(MINUTE)
        store.write(Batch([site.read()]))
    store.close()
    newest = site.clock.now_ms()
    second = site.turn(seen)
    assert [one.at_ms for one in second.brain.memory.latest()] == [newest]
    site.minutes(1)
    assert site.used() == 18 * 60, "what was written meanwhile is counted"


def test_a_start_that_fails_leaves_the_file_of_usage_to_the_next(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: Any) -> Any:
        raise StoreUnavailable("it does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(SqliteStore, "events", away)
        with pytest.raises(StoreUnavailable):
            site.turn()
    assert not site.turn().brain.usage.table.kept_elsewhere

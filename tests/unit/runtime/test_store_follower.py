"""Agents that push to the store and not to the brain are seen, and nothing counts twice."""

from __future__ import annotations

import pytest

from tocsin.domain.batch import Batch
from tocsin.domain.clock import MINUTE, SECOND, ManualClock
from tocsin.domain.reading import Reading
from tocsin.runtime.brain.fleet_memory import FleetMemory
from tocsin.runtime.brain.store_follower import FRUITLESS, REST_SECONDS, StoreFollower
from tocsin.store.memory import MemoryStore
from tocsin.store.port import StoreUnavailable
from tocsin.telemetry.metrics import OwnMetrics
from tocsin_testing.builders import T0, gpu, xid

FRESH_MS = 2 * MINUTE


class Site:
    def __init__(self) -> None:
        self.clock = ManualClock(T0)
        self.store = MemoryStore()
        self.memory = FleetMemory()
        self.metrics = OwnMetrics()
        self.looks = 0
        self.refuses = False
        latest = self.store.latest

        def counted(since_ms: int) -> list[Reading]:
            self.looks += 1
            return latest(since_ms)

        self.store.latest = counted  # type: ignore[method-assign]
        self.follower = StoreFollower(
            self.store,
            self.memory.latest,
            self.memory.has_event,
            self.take,
            self.clock,
            FRESH_MS,
            self.metrics,
            every_seconds=10.0,
        )

    def take(self, batch: Batch) -> Batch:
        kept = Batch() if self.refuses else batch
        self.memory.put(kept)
        return kept

    def push(self, ahead_ms: int = 0, *names: str) -> Batch:
        values = dict.fromkeys(names or ("gpu_power_watts",), 1.0)
        batch = Batch(readings=[Reading(gpu(0), T0 + ahead_ms, values)], events=[xid(79, at_ms=T0)])
        self.store.write(batch)
        return batch


@pytest.fixture
def site() -> Site:
    return Site()


def test_what_is_new_in_the_store_is_taken_over_once(site: Site) -> None:
    site.push()
    for _ in range(3):
        site.follower.look()
    taken = site.memory.take()
    assert [reading.at_ms for reading in taken.readings] == [T0]
    assert [event.code for event in taken.events] == [79]
    site.follower.look()
    assert site.memory.take().events == ()
    assert site.memory.count == 1


def test_what_came_both_ways_counts_once(site: Site) -> None:
    site.memory.put(site.push())
    assert len(site.memory.take().events) == 1
    site.follower.look()
    assert site.memory.count == 1
    site.memory.put(site.push())
    assert site.memory.take().events == ()
    assert len(site.memory.latest()) == 1


def test_the_rest_of_an_instant_is_taken_over_when_it_is_there(site: Site) -> None:
    site.push()
    site.follower.look()
    site.push(0, "gpu_power_watts", "gpu_temperature_celsius")
    site.follower.look()
    assert len(site.memory.latest()[0].values) == 2


def test_what_is_too_old_to_be_fresh_is_left_where_it_is(site: Site) -> None:
    site.push()
    site.clock.advance(FRESH_MS + 1)
    site.follower.look()
    assert site.memory.latest() == ()


def test_where_agents_push_to_the_brain_the_store_is_asked_seldom(site: Site) -> None:
    for _ in range(FRUITLESS + 50):
        site.follower.look()
        site.clock.advance(1)
    assert site.looks == FRUITLESS
    site.clock.advance(round(REST_SECONDS * SECOND))
    site.store.write(Batch(readings=[Reading(gpu(1), site.clock.now_ms(), {"gpu_power_watts": 1.0})]))
    before = site.looks
    for _ in range(3):
        site.follower.look()
    assert site.looks == before + 3
    assert [reading.gpu.uuid for reading in site.memory.latest()] == [gpu(1).uuid]


def test_a_store_that_is_away_is_said_and_followed_again(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.push()

    def away(_since_ms: int) -> list[Reading]:
        raise StoreUnavailable("no server")

    with monkeypatch.context() as patch:
        patch.setattr(site.store, "latest", away)
        site.follower.look()
    assert site.memory.latest() == ()
    site.clock.advance(10 * SECOND)
    site.follower.look()
    assert len(site.memory.latest()) == 1


def test_what_is_refused_is_not_asked_about_again(site: Site) -> None:
    site.refuses = True
    site.push()
    for _ in range(FRUITLESS + 5):
        site.follower.look()
    assert site.looks == FRUITLESS, "a store with nothing for the brain is asked seldom"
    assert site.memory.take().events == ()

"""Hours of usage read from a store: budgets, late readings, silence, samples of large fleets."""

from __future__ import annotations

import pytest

from tocsin.domain.batch import Batch
from tocsin.domain.clock import HOUR, MINUTE, ManualClock
from tocsin.domain.reading import Gpu
from tocsin.queries import cost_hours
from tocsin.queries.cost_hours import CostHours
from tocsin.store.memory import MemoryStore
from tocsin_testing.builders import T0, gpu, reading

START = T0 // HOUR * HOUR
NODE = [gpu(n) for n in range(4)]


class Counting(MemoryStore):
    """Counts what is asked for."""

    asked = 0

    def columns(self, *args: object, **more: object):  # type: ignore[no-untyped-def]
        self.asked += 1
        return super().columns(*args, **more)  # type: ignore[arg-type]


def filled(hours: int, *, silent: dict[int, set[int]] | None = None, gpus: list[Gpu] = NODE) -> Counting:
    """Busy GPUs, one reading in five minutes; GPU by number is silent in the hours given."""
    store = Counting()
    for hour in range(hours):
        for minute in range(0, 60, 5):
            at = START + hour * HOUR + minute * MINUTE
            busy = {"utilization_ratio": 0.9, "processes": 1, "memory_used_ratio": 0.5, "power_watts": 400}
            members = [one for n, one in enumerate(gpus) if hour not in (silent or {}).get(n, set())]
            store.write(Batch(readings=[reading(one, at, **busy) for one in members]))
    return store


def hours_over(store: Counting, now_ms: int) -> tuple[CostHours, ManualClock, ManualClock]:
    clock, wall = ManualClock(now_ms), ManualClock(T0)
    return CostHours(store, clock, wall), clock, wall


def test_finished_hours_are_read_once() -> None:
    store = filled(5)
    found, _, _ = hours_over(store, START + 5 * HOUR)
    pages = found.pages(START, START + 5 * HOUR, NODE, 10.0)
    assert (len(pages.hours), pages.empty, pages.wanted, pages.read) == (5, 0, 5, 5)
    assert sum(one.usage.busy for one in pages.hours) == pytest.approx(20.0)
    assert sum(one.usage.kwh for one in pages.hours) == pytest.approx(20 * 0.4)
    asked = store.asked
    found.pages(START, START + 5 * HOUR, NODE, 10.0)
    assert store.asked == asked


def test_the_newest_hour_is_read_again_as_it_goes_on() -> None:
    store = filled(2)
    found, clock, wall = hours_over(store, START + HOUR + 31 * MINUTE)
    first = found.pages(START, START + 2 * HOUR, NODE, 10.0)
    assert [one.usage.busy for one in first.hours] == pytest.approx([4.0, 2.0])
    clock.advance(30 * MINUTE)
    wall.advance(31_000)
    second = found.pages(START, START + 2 * HOUR, NODE, 10.0)
    assert [one.usage.busy for one in second.hours] == pytest.approx([4.0, 4.0])


def test_a_budget_bounds_the_reading_and_the_next_look_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    store = filled(6)
    found, _, wall = hours_over(store, START + 6 * HOUR)
    read = found._hour
    monkeypatch.setattr(found, "_hour", lambda *args: (wall.advance(1000), read(*args))[1])
    first = found.pages(START, START + 6 * HOUR, NODE, 1.5)
    assert (first.read, first.wanted) == (2, 6)
    assert first.hours[-1].at_ms == START + 5 * HOUR
    assert found.pages(START, START + 6 * HOUR, NODE, 60.0).read == 6


def test_hours_without_readings_are_empty_and_not_idle() -> None:
    found, _, _ = hours_over(filled(1), START + 3 * HOUR)
    pages = found.pages(START - 2 * HOUR, START + 3 * HOUR, NODE, 10.0)
    assert (len(pages.hours), pages.empty, pages.wanted) == (1, 4, 5)
    assert pages.hours[0].usage.idle == 0.0


def test_a_gpu_that_falls_silent_for_hours_is_missing_in_them() -> None:
    found, _, _ = hours_over(filled(5, silent={1: {2, 3}, 2: {0, 1}}), START + 5 * HOUR)
    pages = found.pages(START, START + 5 * HOUR, NODE, 10.0)
    assert [one.usage.missing for one in pages.hours] == pytest.approx([0.0, 0.0, 1.0, 1.0, 0.0])
    assert [one.usage.busy for one in pages.hours] == pytest.approx([3.0, 3.0, 3.0, 3.0, 4.0])
    assert [one.usage.unmetered for one in pages.hours] == pytest.approx([0.0, 0.0, 1.0, 1.0, 0.0])


@pytest.mark.parametrize("rows", [cost_hours.ROWS, 10])
def test_a_gpu_is_expected_from_its_first_reading_on(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    monkeypatch.setattr(cost_hours, "ROWS", rows)
    store, begun = Counting(), {0: 30, 1: 75, 2: 30}
    for minute in range(30, 180):
        at = START + minute * MINUTE
        there = [n for n, first in begun.items() if first <= minute and not (n == 2 and 105 <= minute < 135)]
        store.write(Batch(readings=[reading(NODE[n], at, utilization_ratio=0.9) for n in there]))
    found = hours_over(store, START + 3 * HOUR)[0].pages(START, START + 3 * HOUR, NODE[:3], 10.0)
    assert [one.usage.missing for one in found.hours] == pytest.approx([0.0, 0.25, 0.25]), "the third, away for 30 min"
    assert [one.usage.busy for one in found.hours] == pytest.approx([1.0, 2.5, 2.75])


def test_of_a_large_fleet_a_part_of_each_cell_is_read_and_comes_to_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Counting()
    for second in range(0, 7200, 30):
        at = START + second * 1000
        store.write(Batch(readings=[reading(one, at, utilization_ratio=0.9, power_watts=300) for one in NODE]))
    whole = hours_over(store, START + 2 * HOUR)[0].pages(START, START + 2 * HOUR, NODE, 10.0)
    monkeypatch.setattr(cost_hours, "ROWS", 100)
    part = hours_over(store, START + 2 * HOUR)[0].pages(START, START + 2 * HOUR, NODE, 10.0)
    assert {one.sampled for one in whole.hours} == {False}
    assert {one.sampled for one in part.hours} == {True}
    for one, other in zip(whole.hours, part.hours, strict=True):
        assert one.usage.busy == pytest.approx(other.usage.busy) == pytest.approx(4.0)
        assert one.usage.kwh == pytest.approx(other.usage.kwh)

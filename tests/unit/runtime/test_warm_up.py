"""What a start reads of the past: enough to go on by, and little of a large fleet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator

import pytest

from tocsin.domain.batch import Batch
from tocsin.domain.clock import HOUR, MINUTE, SECOND
from tocsin.domain.reading import Reading
from tocsin.rules.engine import Inputs
from tocsin.runtime.brain.past_reader import SAMPLE_SPAN_MS
from tocsin.runtime.brain.warm_up import OFTEN_MS, PAST_MS, WHOLE_MS, warm_up
from tocsin.store.memory import MemoryStore
from tocsin_testing.builders import T0, gpu, reading

SAMPLES = (OFTEN_MS - WHOLE_MS) // SAMPLE_SPAN_MS
FLEET = [gpu(n, host=f"node-{n}") for n in range(6)]


class CountingStore(MemoryStore):
    """Tells how many readings were made."""

    made = 0

    def readings(self, start_ms: int, end_ms: int, gpus: Collection[str] | None = None) -> Iterator[Reading]:
        for one in super().readings(start_ms, end_ms, gpus):
            self.made += 1
            yield one


def kept(every_ms: int, back_ms: int, phase: Callable[[int], int] = lambda _: 0) -> CountingStore:
    """A store with readings of all, `every_ms` for `back_ms`, each host at its own phase."""
    store = CountingStore()
    found = [
        reading(which, at_ms, temperature_celsius=40.0)
        for n, which in enumerate(FLEET)
        for at_ms in range(T0 - back_ms + phase(n), T0 + 1, every_ms)
    ]
    store.write(Batch(found))
    return store


def gone_through(store: MemoryStore, repaired: dict[str, int] | None = None) -> list[Inputs]:
    return list(warm_up(store, {one.uuid for one in store.gpus()}, T0, 10 * SECOND, repaired or {}))


@pytest.mark.parametrize("seconds", [5, 10, 15, 30, 60])
def test_every_gpu_is_there_once_a_sample_however_often_it_is_read(seconds: int) -> None:
    store = kept(seconds * SECOND, OFTEN_MS, lambda n: (n * 7919) % seconds * SECOND)
    before = [one for one in gone_through(store) if one.now_ms < T0 - WHOLE_MS]
    spans = Counter((one.gpu.uuid, (one.at_ms - T0) // SAMPLE_SPAN_MS) for each in before for one in each.readings)
    assert len(spans) == len(FLEET) * SAMPLES
    assert set(spans.values()) == {1}


def test_hosts_that_are_read_seldom_are_there_beside_one_that_is_read_often() -> None:
    store = kept(MINUTE, OFTEN_MS, lambda n: 25 * SECOND + n * SECOND)
    often = gpu(77, host="node-77")
    store.write(Batch([reading(often, at_ms) for at_ms in range(T0 - OFTEN_MS, T0 + 1, 5 * SECOND)]))
    before = [one for one in gone_through(store) if one.now_ms < T0 - WHOLE_MS]
    counted = Counter(reading.gpu.uuid for one in before for reading in one.readings)
    assert len(counted) == len(FLEET) + 1
    assert set(counted.values()) == {SAMPLES}


def test_the_last_minutes_are_gone_through_whole_at_the_pace_of_evaluations() -> None:
    last = [one for one in gone_through(kept(10 * SECOND, OFTEN_MS)) if one.now_ms >= T0 - WHOLE_MS]
    assert [one.now_ms for one in last] == list(range(T0 - WHOLE_MS, T0 + 1, 10 * SECOND))
    assert all(len(one.readings) == len(FLEET) for one in last)


def test_it_goes_from_old_to_new_and_a_day_back() -> None:
    found = gone_through(kept(MINUTE, PAST_MS, lambda n: n * 9 * SECOND))
    instants = [one.now_ms for one in found]
    assert instants == sorted(instants)
    assert instants[0] <= T0 - PAST_MS + 2 * MINUTE
    assert len({at_ms // (2 * HOUR) for at_ms in instants}) >= 12


def test_little_is_read_of_agents_that_read_often() -> None:
    store = kept(SECOND, OFTEN_MS)
    gone_through(store)
    all_of_it = len(FLEET) * OFTEN_MS // SECOND
    assert store.made < all_of_it / 5


@pytest.mark.parametrize(("back_ms", "within_ms"), [(5 * HOUR + 17 * MINUTE, 2 * MINUTE), (7 * MINUTE, 10 * SECOND)])
def test_a_sample_lies_just_before_each_repair_which_is_done_from_then_on(back_ms: int, within_ms: int) -> None:
    at_ms = T0 - back_ms + 45 * SECOND
    found = gone_through(kept(10 * SECOND, PAST_MS), {"gpu:GPU-00000000": at_ms})
    before = [one for one in found if at_ms - within_ms < one.now_ms <= at_ms]
    assert before
    assert before[-1].repairs == {}
    assert all(one.repairs == {"gpu:GPU-00000000": at_ms} for one in found if one.now_ms > at_ms)


def test_a_store_without_readings_gives_nothing() -> None:
    assert gone_through(MemoryStore()) == []


def test_a_sample_that_a_repair_lies_in_is_gone_through_in_two_parts() -> None:
    early, late = gpu(1, host="node-1"), gpu(2, host="node-2")
    repair_ms = T0 - 10 * MINUTE + 40 * SECOND
    store = CountingStore()
    store.write(
        Batch(
            [
                *(reading(early, at_ms + 10 * SECOND) for at_ms in range(T0 - OFTEN_MS, T0, MINUTE)),
                *(reading(late, at_ms + 58 * SECOND) for at_ms in range(T0 - OFTEN_MS, T0, MINUTE)),
            ]
        )
    )
    found = gone_through(store, {"gpu:GPU-00000001": repair_ms})
    assert {one.now_ms for one in found if one.now_ms <= repair_ms} >= {repair_ms - 30 * SECOND}
    for one in found:
        assert bool(one.repairs) is (one.now_ms > repair_ms)
        assert len({each.at_ms > repair_ms for each in one.readings}) == 1

"""The onset of a thermal fault: the first reading in which hardware slows a GPU for heat; from findings as well."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tocsin.domain.batch import Batch
from tocsin.domain.clock import DAY, HOUR, MINUTE, SECOND
from tocsin.domain.event import Event, EventKind
from tocsin.domain.reading import Gpu, Reading
from tocsin.forecaster.features.feed import Condenser
from tocsin.forecaster.features.heat import HeatWatch, heat_of, slowed_at, stored_onsets
from tocsin.forecaster.features.onsets import GAP_MS, Onset, SlowSpan, onsets_of
from tocsin.forecaster.features.plan import FeaturePlan
from tocsin.forecaster.features.walk import Span, StepData, Walk, examples_from, metrics_of
from tocsin.offline.train import before_abrupt
from tocsin.sim.fleet import SimulatedFleet
from tocsin.sim.spec import FleetSpec
from tocsin.store.memory import MemoryStore
from tocsin_testing.builders import T0, gpu, reading, xid
from tocsin_testing.law_words import finding

A, B = gpu(0), gpu(1)
PLAN = FeaturePlan()
BIT, CAPPED = 0x40, 0x04


def spans(readings: Sequence[Reading], *, at_once: int = 10_000) -> dict[str, list[SlowSpan]]:
    """What a watch finds that is given so many readings at once."""
    watch, condenser = HeatWatch(), Condenser(PLAN, metrics_of(PLAN))
    for first in range(0, len(readings), at_once):
        watch.take(condenser.columns(readings[first : first + at_once]))
    return {uuid: list(found) for uuid, found in watch.heat().items()}


def bits(*slow: bool | None, every_ms: int = MINUTE, which: Gpu = A) -> list[Reading]:
    """A reading at each `every_ms` from `T0` on, in which hardware slows the GPU or not; None where it was lost."""
    return [
        reading(which, T0 + place * every_ms, clocks_event_reasons_bitmask=float(BIT | CAPPED if hot else CAPPED))
        for place, hot in enumerate(slow)
        if hot is not None
    ]


def counted(*seconds: float | None, every_ms: int = MINUTE, which: Gpu = A) -> list[Reading]:
    """The same with the counter of hardware slowdown."""
    return [
        reading(which, T0 + place * every_ms, hw_thermal_slowdown_seconds_total=value)
        for place, value in enumerate(seconds)
        if value is not None
    ]


@pytest.mark.parametrize("at_once", [1, 2, 10_000])
def test_the_first_reading_with_the_bit_is_the_onset(at_once: int) -> None:
    found = spans(bits(False, False, True, True, False), at_once=at_once)
    assert found == {A.uuid: [SlowSpan(T0 + 2 * MINUTE, T0 + 3 * MINUTE)]}
    assert onsets_of((), heat=found) == [Onset(A.uuid, T0 + 2 * MINUTE, "thermal", T0 + 3 * MINUTE + DAY)]


def test_a_gpu_that_only_says_whether_it_is_slowed_is_believed() -> None:
    told = [reading(A, T0 + n * MINUTE, clocks_hw_thermal_slowdown=float(n == 1)) for n in range(3)]
    assert spans(told) == {A.uuid: [SlowSpan(T0 + MINUTE, T0 + MINUTE)]}


def test_what_the_driver_holds_back_for_heat_or_power_is_no_onset() -> None:
    others = [
        reading(
            A,
            T0 + n * MINUTE,
            clocks_event_reasons_bitmask=float(0x20 | 0x80 | 0x08),
            sw_thermal_slowdown_seconds_total=60.0 * n,
            thermal_violation_seconds_total=60.0 * n,
            hw_power_brake_seconds_total=60.0 * n,
            hw_thermal_slowdown_seconds_total=7_000.0,
        )
        for n in range(60)
    ]
    assert spans(others) == {}


@pytest.mark.parametrize("at_once", [1, 3, 10_000])
def test_the_counter_tells_of_more_than_a_second_within_five_minutes(at_once: int) -> None:
    flicker = counted(50.0, 50.0, 50.4, 50.8, 51.2, 51.2)
    assert spans(flicker, at_once=at_once) == {A.uuid: [SlowSpan(T0 + 4 * MINUTE, T0 + 4 * MINUTE)]}
    blips = counted(*(50.0 + 0.1 * n for n in range(60)))
    assert spans(blips, at_once=at_once) == {}, "half a second in five minutes is none"


def test_what_was_counted_before_the_first_reading_and_a_counter_that_starts_again() -> None:
    assert spans(counted(9_000.0, 9_000.0)) == {}
    again = counted(9_000.0, 9_000.0, 0.0, 0.0, 30.0)
    assert spans(again) == {A.uuid: [SlowSpan(T0 + 4 * MINUTE, T0 + 4 * MINUTE)]}
    assert spans(counted(9_000.0, 12.0)) == {A.uuid: [SlowSpan(T0 + MINUTE, T0 + MINUTE)]}, (
        "slowed since its driver began"
    )


def test_growth_is_seen_across_lost_readings() -> None:
    assert spans(counted(5.0, None, None, None, 5.0, None, 65.0)) == {
        A.uuid: [SlowSpan(T0 + 6 * MINUTE, T0 + 6 * MINUTE)]
    }
    lost = spans(bits(False, True, None, None, True, False))
    assert lost == {A.uuid: [SlowSpan(T0 + MINUTE, T0 + 4 * MINUTE)]}
    without = [*bits(False, True), reading(A, T0 + 90 * SECOND, temperature_celsius=91.0), *bits(None, None, True)]
    assert spans(without) == {A.uuid: [SlowSpan(T0 + MINUTE, T0 + 2 * MINUTE)]}


def test_a_gpu_that_stays_slow_for_days_is_one_onset_and_one_that_comes_and_goes_too() -> None:
    hours = 5 * 24
    assert len(onsets_of((), heat=spans(bits(*[True] * hours, every_ms=HOUR)))) == 1
    comes_and_goes = spans(bits(*[n % 20 == 0 for n in range(hours)], every_ms=HOUR))
    assert onsets_of((), heat=comes_and_goes) == [Onset(A.uuid, T0, "thermal", T0 + 100 * HOUR + DAY)]


def test_days_of_which_nothing_was_read_do_not_make_it_cool() -> None:
    slow = [*bits(True), *bits(*[None] * 72, True, every_ms=HOUR)]
    assert spans(slow) == {A.uuid: [SlowSpan(T0, T0 + 3 * DAY)]}
    cool = [*bits(True, False), *bits(*[None] * 72, True, every_ms=HOUR)]
    assert [one.at_ms for one in onsets_of((), heat=spans(cool))] == [T0, T0 + 3 * DAY]


@pytest.mark.parametrize(("cool_hours", "onsets"), [(23, 1), (25, 2)])
def test_repaired_and_slow_again_is_another_after_a_quiet_day(cool_hours: int, onsets: int) -> None:
    found = spans(bits(True, *[False] * (cool_hours - 1), True, every_ms=HOUR))
    assert len(onsets_of([Event(EventKind.GPU_FOUND, A.uuid, A.host, T0 + HOUR)], heat=found)) == onsets


def test_a_repair_ends_heat_that_is_over_and_none_that_goes_on() -> None:
    back = Event(EventKind.GPU_FOUND, A.uuid, A.host, T0 + 2 * HOUR)
    over, on = {A.uuid: [SlowSpan(T0, T0 + HOUR)]}, {A.uuid: [SlowSpan(T0, T0 + 3 * HOUR)]}
    assert onsets_of([back], heat=over) == [Onset(A.uuid, T0, "thermal", T0 + 2 * HOUR)]
    assert onsets_of([back], heat=on) == [Onset(A.uuid, T0, "thermal", T0 + 3 * HOUR + DAY)]


def test_heat_and_an_error_of_one_day_are_one_fault_named_by_what_came_first() -> None:
    heat = {A.uuid: [SlowSpan(T0, T0 + 5 * HOUR)]}
    within = onsets_of([xid(79, A, T0 + HOUR)], heat=heat)
    assert within == [Onset(A.uuid, T0, "thermal", T0 + 5 * HOUR + DAY)]
    before = onsets_of([xid(79, A, T0 - HOUR), xid(48, B, T0)], heat=heat)
    assert [(one.device, one.fault_class) for one in before] == [(A.uuid, "bus"), (B.uuid, "memory")]
    after = onsets_of([xid(79, A, T0 + 4 * DAY)], heat=heat)
    assert [one.fault_class for one in after] == ["thermal", "bus"]


def test_readings_that_come_late_or_twice_change_nothing() -> None:
    whole = bits(False, True, False, False)
    watch, condenser = HeatWatch(), Condenser(PLAN, metrics_of(PLAN))
    for some in (whole, whole[:2], bits(True)):
        watch.take(condenser.columns(some))
    assert watch.heat() == spans(whole)


# In a walk, as models learn from it.


def test_a_mig_instance_has_no_onset_of_heat() -> None:
    part = gpu(7, parent=A.uuid)
    rows = [*bits(False, True, every_ms=10 * MINUTE), *bits(False, True, every_ms=10 * MINUTE, which=part)]
    walk = Walk(PLAN, [A, part], Span(T0, T0 + HOUR))
    columns = Condenser(PLAN, metrics_of(PLAN)).columns(rows)
    walk.take(int(columns.at_ms.max() - 1) // PLAN.step_ms, StepData(columns))
    assert [one.device for one in walk.onsets()] == [A.uuid]


SIM_START = 20_089 * DAY
SPAN = Span(SIM_START, SIM_START + 2 * DAY)


def lived(kind: str, batches: list[Batch]) -> SimulatedFleet:
    """Two days of 16 GPUs, of which number 3 has a fault of `kind` from 12 h on, and no other any."""
    fleet = SimulatedFleet(FleetSpec(16, 5, SIM_START, 10 * MINUTE, 0.0))
    while fleet.now_ms < SPAN.end_ms:
        if fleet.now_ms == SIM_START + 12 * HOUR:
            fleet.inject(kind, "3")
        batches.append(fleet.step())
    return fleet


@pytest.mark.parametrize("stored", [False, True])
def test_a_walk_over_a_fault_of_cooling_has_its_onset_and_labels_before_it(stored: bool) -> None:
    batches: list[Batch] = []
    fleet = lived("thermal_drift", batches)
    store = MemoryStore()
    for batch in batches:
        store.write(batch)
    (truth,) = fleet.hard_faults
    found = examples_from(store if stored else iter(batches), fleet.gpus, SPAN)
    mine = found.device == found.devices.index(truth.gpu)
    before = mine & (found.at_ms < truth.onset_ms)
    assert before.sum() >= 12
    assert set(found.event_ms[before].tolist()) == {truth.onset_ms}
    assert set(found.event_class[before].tolist()) == {"thermal"}
    assert found.label(48 * HOUR)[0][before].all()
    assert not (mine & ~before).any(), "a GPU that is slowed is nothing to learn from for three days"
    assert set(found.event_class[~mine].tolist()) == {""}


def test_heat_without_a_precursor_is_not_learned_from_on_any_gpu_that_it_reaches() -> None:
    batches: list[Batch] = []
    fleet = lived("fan_failure", batches)
    found = examples_from(iter(batches), fleet.gpus, SPAN)
    hosts = {one.uuid: one.host for one in fleet.gpus}
    hot = {found.devices[device] for device in found.device[found.event_class == "thermal"].tolist()}
    assert len(hot) > 1
    assert {hosts[uuid] for uuid in hot} == {fleet.gpus[3].host}
    (truth,) = fleet.hard_faults
    assert hot <= truth.own, "all that share the heat have it"
    left = before_abrupt(found, fleet.faults, fleet.hard_faults)
    np.testing.assert_array_equal(left, found.event_class == "thermal")


# From the findings of a service.


def slowed(which: Gpu, started_ms: int, last_ms: int, rule: str = "thermal_slowdown") -> Batch:
    return Batch(findings=[finding(which, started_ms, last_ms, rule=rule)])


def test_findings_of_hardware_slowdown_are_heat() -> None:
    store = MemoryStore()
    for said in (
        slowed(A, T0, T0),
        slowed(A, T0, T0 + HOUR),
        slowed(A, T0 + 2 * DAY, T0 + 2 * DAY),
        slowed(B, T0, T0, "thermal_slowdown_by_driver"),
    ):
        store.write(said)
    found = store.findings(T0, T0 + 3 * DAY)
    assert heat_of(found) == {A.uuid: [SlowSpan(T0, T0 + HOUR), SlowSpan(T0 + 2 * DAY, T0 + 2 * DAY)]}
    assert [one.at_ms for one in stored_onsets(store, T0, T0 + 3 * DAY)] == [T0, T0 + 2 * DAY]


def test_what_goes_on_from_before_is_no_onset() -> None:
    store = MemoryStore()
    store.write(slowed(A, T0 - HOUR, T0 - MINUTE))
    store.write(slowed(A, T0 + MINUTE, T0 + 2 * MINUTE))
    assert [one.at_ms for one in stored_onsets(store, T0, T0 + HOUR)] == [T0 - HOUR]


def test_a_gpu_counts_as_slowed_for_three_days_from_the_onset_and_one_from_the_last_time() -> None:
    store = MemoryStore()
    store.write(slowed(A, T0, T0 + HOUR))
    store.write(slowed(B, T0, T0 + 60 * HOUR))
    assert slowed_at(store, T0 - 1) == frozenset()
    assert slowed_at(store, T0 + 2 * HOUR) == {A.uuid}, "nothing is known yet of what comes"
    assert slowed_at(store, T0 + GAP_MS - 1) == {A.uuid, B.uuid}
    assert slowed_at(store, T0 + GAP_MS) == {B.uuid}
    assert slowed_at(store, T0 + 84 * HOUR) == frozenset()

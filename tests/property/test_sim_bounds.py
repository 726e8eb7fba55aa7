"""Whatever fails, readings stay in bounds, counters grow, and the same seed tells the same story."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tocsin.domain.batch import Batch
from tocsin.domain.clock import HOUR, MINUTE, SECOND
from tocsin.domain.errors import Conflict, InputError
from tocsin.domain.event import EventKind
from tocsin.domain.finding import ActionKind
from tocsin.domain.metrics import MetricKind, spec_of
from tocsin.domain.reading import sanitise
from tocsin.sim.faults import fault_kinds
from tocsin.sim.fleet import SimulatedFleet
from tocsin.sim.spec import FleetSpec
from tocsin_testing.builders import T0

GPU = st.integers(0, 63)
INJECT = st.tuples(st.just("inject"), st.sampled_from(sorted(fault_kinds())), GPU)
APPLY = st.tuples(st.just("apply"), st.sampled_from(sorted(set(ActionKind) - {"scale_out", "scale_in"})), GPU)
STEP = st.tuples(st.just("step"), st.sampled_from([SECOND, MINUTE, 10 * MINUTE, 5 * HOUR]), GPU)
STORY = st.lists(st.one_of(INJECT, APPLY, STEP, STEP), min_size=1, max_size=12)
QUICK = settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])


def tell(simulated: SimulatedFleet, story: list[tuple[str, object, int]]) -> list[Batch]:
    """Play `story`; an injection that the fleet refuses is left out."""
    batches = []
    for verb, what, gpu in story:
        if verb == "step":
            batches.append(simulated.step(int(str(what))))
        elif verb == "apply":
            simulated.apply(ActionKind(str(what)), str(gpu))
        else:
            try:
                simulated.inject(str(what), str(gpu))
            except (InputError, Conflict):
                continue
    batches.append(simulated.step())
    return batches


def make(seed: int, scale: float = 500.0) -> SimulatedFleet:
    return SimulatedFleet(FleetSpec(64, seed, T0, MINUTE, scale))


@QUICK
@given(seed=st.integers(-(2**63), 2**63), story=STORY)
def test_every_value_is_in_bounds(seed: int, story: list[tuple[str, object, int]]) -> None:
    for batch in tell(make(seed), story):
        for reading in batch.readings:
            assert sanitise(reading)[1] == []
            assert not set(reading.values) & set(reading.missing)


@QUICK
@given(seed=st.integers(0, 2**32), story=STORY)
def test_counters_fall_only_at_a_reset_and_then_to_zero_or_what_grew_since(
    seed: int, story: list[tuple[str, object, int]]
) -> None:
    before: dict[tuple[str, str], float] = {}
    for batch in tell(make(seed), story):
        reset = {event.gpu for event in batch.events if event.kind is EventKind.DRIVER_RELOAD}
        for reading in batch.readings:
            for name, value in reading.values.items():
                spec = spec_of(name)
                assert spec is not None
                if spec.kind is not MetricKind.COUNTER:
                    continue
                key = (reading.gpu.uuid, name)
                assert value >= before.get(key, 0.0) or reading.gpu.uuid in reset, name
                before[key] = value


@QUICK
@given(seed=st.integers(0, 2**32), story=STORY)
def test_the_same_seed_and_story_give_identical_batches(seed: int, story: list[tuple[str, object, int]]) -> None:
    one, other = make(seed), make(seed)
    first = tell(one, story)
    assert one.pools() == one.pools()
    assert one.faults == one.faults
    assert first == tell(other, story)
    assert one.faults == other.faults


@settings(max_examples=10)
@given(seed=st.integers(0, 2**32), kind=st.sampled_from(sorted(fault_kinds())), gpu=st.integers(0, 7))
def test_a_fault_changes_nothing_on_other_hosts(seed: int, kind: str, gpu: int) -> None:
    calm, struck = make(seed, 0.0), make(seed, 0.0)
    try:
        struck.inject(kind, str(gpu))
    except InputError:
        return
    for _ in range(50):
        undisturbed, disturbed = calm.step(), struck.step()
        assert undisturbed.readings[8:] == disturbed.readings[8:]


@pytest.mark.smoke
def test_seeds_differ() -> None:
    assert make(1).step() != make(2).step()

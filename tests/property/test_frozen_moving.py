"""A series that moves is never taken for frozen, whatever its clock does; one that stands still under power is."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin.collector.frozen import ACTIVITY, ENERGY, LIVE, POWER, FrozenValues
from tocsin.domain.batch import Batch
from tocsin.domain.clock import HOUR, SECOND
from tocsin.domain.reading import Missing, Reading
from tocsin.telemetry.metrics import OwnMetrics
from tocsin_testing.builders import T0, gpu


@dataclass(frozen=True)
class Step:
    """What happens from one reading to the next."""

    seconds: int
    clock_ms: int
    watts: float
    busy: bool
    without: str


STEPS = st.lists(
    st.builds(
        Step,
        seconds=st.sampled_from([1, 5, 10, 10, 10, 60, 600]),
        clock_ms=st.sampled_from([0] * 12 + [-HOUR, HOUR, -10 * SECOND, 10 * SECOND]),
        watts=st.floats(0, 700),
        busy=st.booleans(),
        without=st.sampled_from(["", "", "", POWER, ENERGY, *LIVE]),
    ),
    min_size=5,
    max_size=80,
)


def values_at(step: Step, number: int, joules: float) -> dict[str, float]:
    """Power and energy differ from reading to reading; the rest may stand still, as it does for hours on a real GPU."""
    values = {
        POWER: step.watts + number / 1024,
        ENERGY: joules,
        "gpu_temperature_celsius": 40.0,
        "gpu_sm_clock_hertz": 1.98e9,
        "gpu_utilization_ratio": float(step.busy),
        **dict.fromkeys(ACTIVITY, 0.5 if step.busy else 0.0),
    }
    values.pop(step.without, None)
    return values


@settings(max_examples=150)
@given(steps=STEPS)
def test_a_moving_series_is_never_marked(steps: list[Step]) -> None:
    own = OwnMetrics()
    companion = FrozenValues(own)
    now_ms, joules = T0, 1e6
    used: set[int] = set()
    for number, step in enumerate(steps):
        now_ms += step.seconds * SECOND + step.clock_ms
        while now_ms in used:  # as the agent dates its readings
            now_ms += 1
        used.add(now_ms)
        joules += (step.watts + 0.01) * step.seconds
        batch = Batch(readings=(Reading(gpu(0), now_ms, values_at(step, number, joules)),))
        assert companion.enrich(batch, now_ms) is batch
    assert own.value("tocsin_frozen_values_total") == 0


@settings(max_examples=60)
@given(
    watts=st.floats(6, 1000),
    interval=st.sampled_from([1, 5, 10, 30, 60]),
    moved=st.lists(st.floats(0, 700), max_size=10),
    rest=st.dictionaries(st.sampled_from(LIVE[2:]), st.floats(0, 1), max_size=6),
)
def test_a_series_that_stands_still_under_power_is_always_marked(
    watts: float, interval: int, moved: list[float], rest: dict[str, float]
) -> None:
    companion = FrozenValues(OwnMetrics())
    now_ms, joules = T0, 1e6
    for number, power in enumerate(moved):
        now_ms += interval * SECOND
        joules += 1 + power * interval
        values = {**rest, POWER: power + number / 1024, ENERGY: joules}
        companion.enrich(Batch(readings=(Reading(gpu(0), now_ms, values),)), now_ms)
    stuck = {**rest, POWER: watts, ENERGY: joules + 1}
    for _ in range(2 + max(5, 120 // interval)):
        now_ms += interval * SECOND
        (reading,) = companion.enrich(Batch(readings=(Reading(gpu(0), now_ms, stuck),)), now_ms).readings
    assert reading.values == {}
    assert set(reading.missing) == set(stuck)
    assert set(reading.missing.values()) == {Missing.FROZEN}

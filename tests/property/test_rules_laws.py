"""Laws of the engine, whatever the fleet does."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin.domain.clock import DAY, MINUTE
from tocsin.domain.event import Event, EventKind
from tocsin.domain.finding import ActionKind, Category, Finding, Subject, SubjectKind
from tocsin.domain.pool import PoolState
from tocsin.domain.prediction import Prediction, PredictionStatus
from tocsin.domain.reading import Missing, Reading
from tocsin.rules.engine import Evaluation, Inputs, RuleEngine
from tocsin.rules.load import load_rules
from tocsin.rules.xid import xid
from tocsin_testing.builders import T0, gpu

RULES = load_rules()

FLEET = [gpu(n, host=f"node-{n // 2}", pool=f"p{n % 2}", rack=f"r{n // 4}") for n in range(6)]

VALUES = {
    "gpu_temperature_celsius": st.sampled_from([40.0, 83.0, 90.0]),
    "gpu_temperature_slowdown_celsius": st.sampled_from([89.0, 95.0]),
    "gpu_memory_used_ratio": st.sampled_from([0.1, 0.95]),
    "gpu_utilization_ratio": st.sampled_from([0.0, 1.0]),
    "gpu_power_watts": st.sampled_from([80.0, 300.0]),
    "gpu_pcie_replay_total": st.integers(0, 500).map(float),
    "gpu_recovery_action": st.sampled_from([0.0, 1.0, 5.0]),
    'gpu_nvlink_recovery_errors_total{link="0"}': st.integers(0, 3).map(float),
    'gpu_nvlink_recovery_errors_total{link="1"}': st.integers(0, 3).map(float),
    'gpu_allocator_external_fragmentation_ratio{pid="7"}': st.sampled_from([0.1, 0.6]),
}

readings = st.fixed_dictionaries({}, optional=VALUES)
events = st.tuples(
    st.sampled_from([EventKind.XID, EventKind.XID, EventKind.GPU_LOST, EventKind.DRIVER_RELOAD]),
    st.integers(0, len(FLEET) - 1),
    st.sampled_from([13, 31, 45, 48, 63, 79, 94, 119, 145, 149, 154, 999]),
    st.integers(-300, 30),
)

TEMPERATURE = "gpu_temperature_celsius"
predictions = st.tuples(
    st.sampled_from([f"time_to_threshold:{TEMPERATURE}", "hardware_fault", "memory_leak"]),
    st.integers(0, len(FLEET) - 1),
    st.sampled_from([*PredictionStatus]),
    st.integers(-5, 240),
)


@dataclass(frozen=True)
class Tick:
    """One step: how long after the one before, a reading for some GPUs, events (kind, GPU, code, seconds), and
    predictions (target, GPU, status, minutes until then)."""

    minutes: int
    values: dict[int, dict[str, float]]
    happened: list[tuple[EventKind, int, int, int]]
    pending: int
    said: list[tuple[str, int, PredictionStatus, int]]


ticks = st.builds(
    Tick,
    minutes=st.sampled_from([1, 1, 1, 5, 10, 60, -3, -90]),
    values=st.dictionaries(st.integers(0, len(FLEET) - 1), readings, max_size=len(FLEET)),
    happened=st.lists(events, max_size=4),
    pending=st.integers(0, 3),
    said=st.lists(predictions, max_size=4),
)
histories = st.lists(ticks, min_size=1, max_size=10)


def inputs_of(history: list[Tick]) -> list[Inputs]:
    now = T0
    made = []
    newest: dict[tuple[str, int], Prediction] = {}
    for tick in history:
        now += tick.minutes * MINUTE
        found = [
            Reading(FLEET[n], now, values, {"gpu_fan_speed_ratio": Missing.UNSUPPORTED})
            for n, values in tick.values.items()
        ]
        seen = [
            Event(kind, FLEET[n].uuid, FLEET[n].host, now + 1000 * seconds, code)
            for kind, n, code, seconds in tick.happened
        ]
        newest.update(((target, n), _said(now, target, n, *rest)) for target, n, *rest in tick.said)
        pools = [PoolState("p0", tick.pending), PoolState("p1", None, elastic=True)]
        made.append(Inputs(now, found, seen, list(newest.values()), pools))
    return made


def _said(now_ms: int, target: str, n: int, status: PredictionStatus, minutes: int) -> Prediction:
    subject, at_ms = (
        Subject(SubjectKind.GPU, FLEET[n].uuid, host=FLEET[n].host, pool=FLEET[n].pool),
        now_ms - n * MINUTE,
    )
    eta = at_ms + minutes * MINUTE if status is PredictionStatus.CROSSING else None
    metric, limit = (TEMPERATURE, 87.0) if TEMPERATURE in target else ("", None)
    return Prediction(
        subject, target, at_ms, DAY, status, "m", "1", "s", metric, limit, None, max(minutes, 0) / 240, eta
    )


def run(steps: list[Inputs]) -> list[Evaluation]:
    engine = RuleEngine(RULES)
    return [engine.step(step) for step in steps]


def visible(evaluations: list[Evaluation]) -> list[tuple[list[Finding], list[Finding], list[Finding]]]:
    return [(one.active, one.opened, one.cleared) for one in evaluations]


@settings(max_examples=25)
@given(histories, st.randoms(use_true_random=False))
def test_the_order_of_gpus_events_and_pools_does_not_matter(history: list[Tick], chance: random.Random) -> None:
    steps = inputs_of(history)
    mixed = [
        Inputs(
            step.now_ms,
            chance.sample(list(step.readings), len(step.readings)),
            chance.sample(list(step.events), len(step.events)),
            chance.sample(list(step.predictions), len(step.predictions)),
            chance.sample(list(step.pools), len(step.pools)),
        )
        for step in steps
    ]
    assert visible(run(steps)) == visible(run(mixed))


@settings(max_examples=25)
@given(histories)
def test_doubled_readings_and_events_change_nothing(history: list[Tick]) -> None:
    steps = inputs_of(history)
    doubled = []
    past: list[Event] = []
    for step in steps:
        doubled.append(
            replace(
                step,
                readings=[*step.readings, *step.readings],
                events=[*past, *step.events, *step.events],
                predictions=[*step.predictions, *step.predictions],
            )
        )
        past += step.events
    assert visible(run(steps)) == visible(run(doubled))


@settings(max_examples=25)
@given(histories)
def test_the_books_balance(history: list[Tick]) -> None:
    active: dict[str, Finding] = {}
    for found in run(inputs_of(history)):
        for finding in found.cleared:
            assert active.pop(finding.id).rule == finding.rule
        for finding in found.opened:
            assert finding.id not in active
            active[finding.id] = finding
        assert {finding.id for finding in found.active} == set(active)
        assert all(finding.started_ms <= finding.last_ms for finding in found.active)


@settings(max_examples=25)
@given(histories, st.integers(0, 9))
def test_a_restart_in_between_changes_nothing(history: list[Tick], cut: int) -> None:
    steps = inputs_of(history)
    cut = min(cut, len(steps) - 1)
    straight = run(steps)
    engine = RuleEngine(RULES)
    engine.warm(steps[:cut])
    assert visible([engine.step(step) for step in steps[cut:]]) == visible(straight[cut:])


@settings(max_examples=25)
@given(histories)
def test_a_programs_fault_condemns_no_gpu(history: list[Tick]) -> None:
    for found in run(inputs_of(history)):
        for finding in found.opened:
            if finding.category is Category.APPLICATION:
                assert finding.action is ActionKind.NOTIFY
            if (
                finding.metric == "gpu_xid_last_code"
                and finding.value is not None
                and xid(int(finding.value)).application
            ):
                assert finding.category is Category.APPLICATION


@settings(max_examples=20)
@given(histories)
def test_the_same_step_again_opens_and_clears_nothing(history: list[Tick]) -> None:
    engine = RuleEngine(RULES)
    for step in inputs_of(history):
        first = engine.step(step)
        again = engine.step(step)
        assert (again.opened, again.cleared) == ([], [])
        assert [finding.id for finding in again.active] == [finding.id for finding in first.active]


@settings(max_examples=60, deadline=None)
@given(histories, st.integers(1, 3))
def test_what_is_taken_in_ahead_of_a_step_changes_nothing(history: list[Tick], size: int) -> None:
    steps, engine, found = inputs_of(history), RuleEngine(RULES), []
    for step in steps:
        for first in range(0, len(step.readings), size):
            engine.load_ahead(step.now_ms, step.readings[first : first + size])
        for first in range(0, len(step.predictions), size):
            engine.foretell_ahead(step.predictions[first : first + size])
        found.append(engine.step(step))
    assert visible(found) == visible(run(steps))
    assert [one.dropped for one in found] == [one.dropped for one in run(steps)]

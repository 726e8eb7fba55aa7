"""Walking through a past: the same rows as a live builder gives, from batches and from a store."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from tocsin.domain.batch import Batch
from tocsin.domain.clock import DAY, HOUR, MINUTE
from tocsin.domain.errors import InputError
from tocsin.domain.event import Event, EventKind
from tocsin.domain.metrics import variant
from tocsin.domain.reading import Owner, Reading
from tocsin.forecaster.features import feed
from tocsin.forecaster.features.builder import FeatureBuilder, restore, save
from tocsin.forecaster.features.examples import NEVER, Examples
from tocsin.forecaster.features.feed import Condenser, StoreFeed, jobs_of
from tocsin.forecaster.features.onsets import Onset
from tocsin.forecaster.features.plan import SEQUENCE, FeatureKind, FeaturePlan
from tocsin.forecaster.features.planes import taken_up
from tocsin.forecaster.features.walk import Rules, Span, examples_from, examples_now
from tocsin.sim.fleet import SimulatedFleet
from tocsin.sim.spec import FleetSpec
from tocsin.store.memory import MemoryStore
from tocsin.store.port import Columns
from tocsin_testing.feature_data import METRICS, START, STEP, columns, event, fleet, warm

PLAN = FeaturePlan()
FLEET = fleet()
EVENTS = [
    event(EventKind.XID, FLEET[0], 60, 79),
    event(EventKind.GPU_FOUND, FLEET[0], 66),
    event(EventKind.XID, FLEET[5], 200.5, 48),
    event(EventKind.XID, FLEET[6], 100, 31),
]
SPAN = Span(START, START + 240 * STEP, 2 * HOUR)


def frozen_columns(first: int, last: int) -> Columns:
    """As `columns`, GPU 3 frozen from step 150 to 180."""
    whole = columns(FLEET, first, last)
    held = whole.values.copy()
    still = columns(FLEET, 149, 150).values[3]
    mine = (whole.gpu == 3) & (whole.at_ms > START + 150 * STEP) & (whole.at_ms <= START + 180 * STEP)
    held[mine] = still
    return dataclasses.replace(whole, values=held)


def batches(first: int = 0, last: int = 240) -> list[Batch]:
    whole = frozen_columns(first, last)
    found = []
    for at_ms in np.unique(whole.at_ms):
        readings = []
        for row in np.flatnonzero(whole.at_ms == at_ms):
            values = {name: float(value) for name, value in zip(METRICS, whole.values[row], strict=True)}
            readings.append(Reading(FLEET[whole.gpu[row]], int(at_ms), values))
        events = [one for one in EVENTS if at_ms - STEP < one.at_ms <= at_ms]
        found.append(Batch(readings=readings, events=events))
    return found


def store() -> MemoryStore:
    kept = MemoryStore()
    for batch in batches():
        kept.write(batch)
    return kept


def same(one: Examples, other: Examples) -> None:
    for field in dataclasses.fields(one):
        if field.name != "sequences":
            np.testing.assert_array_equal(getattr(one, field.name), getattr(other, field.name), err_msg=field.name)


@pytest.fixture(scope="module")
def walked() -> Examples:
    return examples_from(iter(batches()), FLEET, SPAN, PLAN)


def test_rows_of_a_walk(walked: Examples) -> None:
    assert walked.names == FeatureBuilder(PLAN).names
    assert (walked.seen_ms <= walked.at_ms).all()
    assert set(np.unique(walked.at_ms)) <= set(SPAN.instants())
    assert walked.devices == tuple(one.uuid for one in FLEET)
    assert walked.groups == ("node-0", "node-1")
    np.testing.assert_array_equal(walked.group, walked.device // 4)
    assert (walked.history_ms >= 0).all()


def test_labels_of_a_walk(walked: Examples) -> None:
    mine = walked.device == 0
    before = mine & (walked.at_ms < START + 60 * STEP)
    assert (walked.event_ms[before] == START + 60 * STEP).all()
    assert set(walked.event_class[before]) == {"bus"}
    # Three days behind the onset are more than what is left.
    assert not (mine & (walked.at_ms >= START + 60 * STEP)).any()
    assert (walked.event_ms[walked.device == 6] == NEVER).all()
    happened, known = walked.label(48 * HOUR)
    assert happened.any()
    assert not known[(walked.device == 6) & (walked.at_ms > START + 10 * STEP)].any()


def test_onsets_and_rules_may_be_given() -> None:
    rules = Rules(gap_ms=0, group_of=lambda one: one.rack)
    given = [Onset(FLEET[7].uuid, START + 70 * STEP, "thermal")]
    found = examples_from(iter(batches()), FLEET, SPAN, PLAN, given, rules)
    assert set(found.event_class) == {"", "thermal"}
    assert found.groups == ("rack-0",)


def test_a_store_gives_the_same_rows_as_batches(walked: Examples) -> None:
    found = examples_from(store(), FLEET, SPAN, PLAN)
    same(found, walked)
    assert found.sequences is not None
    assert walked.sequences is not None
    rows = np.arange(0, len(found), 7)
    np.testing.assert_array_equal(found.sequences.take(rows), walked.sequences.take(rows))


@pytest.mark.parametrize("step", [12, 96, 144, 152, 153, 156, 180, 192, 240])
def test_a_walk_sees_what_the_live_builder_sees(walked: Examples, step: int) -> None:
    builder = FeatureBuilder(PLAN, FLEET)
    now = START + step * STEP
    builder.update(frozen_columns(0, step), [one for one in EVENTS if one.at_ms <= now])
    table, past = builder.table(now), builder.sequences(now)
    rows = np.flatnonzero(walked.at_ms == now)
    assert rows.size or step % 12
    live = examples_now(builder, now)
    assert live.groups == walked.groups
    np.testing.assert_array_equal(live.features, table.values)
    assert live.sequences is not None
    some = np.arange(0, len(live), 3)
    np.testing.assert_array_equal(live.sequences.take(some), past[live.device[some]])
    assert (live.until_ms == now).all()
    assert not live.label(HOUR)[1].any()
    np.testing.assert_array_equal(walked.features[rows], table.values[walked.device[rows]])
    assert walked.sequences is not None
    np.testing.assert_array_equal(walked.sequences.take(rows), past[walked.device[rows]])


def test_what_froze_is_seen_until_it_is_known_to_be_frozen(walked: Examples) -> None:
    assert walked.sequences is not None
    heat = SEQUENCE.index("temperature")
    rows = np.flatnonzero((walked.device == 3) & (walked.at_ms == START + 156 * STEP))
    assert np.isnan(walked.sequences.take(rows)[0, -6:, heat]).all()
    early = examples_from(iter(batches()), FLEET, Span(START + 140 * STEP, START + 160 * STEP, STEP), PLAN)
    assert early.sequences is not None
    rows = np.flatnonzero((early.device == 3) & (early.at_ms == START + 151 * STEP))
    assert np.isfinite(early.sequences.take(rows)[0, -6:, heat]).all()


def test_a_simulated_fault_is_labelled_and_leaves_its_marks() -> None:
    fleet_ = SimulatedFleet(FleetSpec(gpus=8, interval_ms=STEP, start_ms=START, fault_rate_scale=0.0))
    sick = fleet_.gpus[2].uuid

    def steps() -> Iterator[Batch]:
        for step in range(60):
            if step == 40:
                fleet_.inject("fallen_off_bus", sick)
            yield fleet_.step()

    found = examples_from(steps(), fleet_.gpus, Span(START, START + 60 * STEP, STEP), PLAN)
    at_risk = found.event_ms != NEVER
    assert {found.devices[device] for device in found.device[at_risk]} == {sick}
    assert set(found.event_class[at_risk]) == {"bus"}
    last = np.flatnonzero(at_risk)[-1]
    others = (found.at_ms == found.at_ms[last]) & ~at_risk
    assert found.column("pcie_replay.1h")[last] > 2 * found.column("pcie_replay.1h")[others].max()


def test_decisions_off_the_grid_are_refused() -> None:
    with pytest.raises(InputError, match="off the grid"):
        examples_from(iter(batches()), FLEET, Span(START, START + DAY, HOUR + 1), PLAN)


def test_nothing_to_walk_through() -> None:
    found = examples_from(iter(()), FLEET, SPAN, PLAN)
    assert len(found) == 0


def test_a_warm_builder_goes_on_where_it_stood() -> None:
    kept, middle, end = store(), START + 100 * STEP, START + 240 * STEP
    builder = FeatureBuilder(PLAN, FLEET)
    fed = warm(builder, kept, middle)
    fed.until(middle + 1)
    fed.until(end)
    assert builder.late == 0
    whole = FeatureBuilder(PLAN, FLEET)
    warm(whole, kept, end)
    np.testing.assert_array_equal(builder.table(end).values, whole.table(end).values)


def test_sequences_are_not_to_be_had_once_more_was_fed() -> None:
    builder = FeatureBuilder(PLAN, FLEET)
    builder.update(frozen_columns(0, 12))
    live = examples_now(builder, START + 12 * STEP)
    builder.update(frozen_columns(12, 13))
    assert live.sequences is not None
    with pytest.raises(InputError, match="fed since"):
        live.sequences.take(np.arange(1))


@pytest.mark.parametrize("most", [1, 7, 40])
def test_what_is_read_in_pieces_is_what_is_read_at_once(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, middle, end = store(), START + 100 * STEP, START + 240 * STEP
    asked: list[int] = []
    whole, pieces = FeatureBuilder(PLAN, FLEET), FeatureBuilder(PLAN, FLEET)
    warm(whole, kept, middle, latest=kept.latest).until(end)
    monkeypatch.setattr(feed, "MOST_ROWS", most)
    monkeypatch.setattr(feed, "LEAST_INTERVAL_MS", 1)
    real = kept.columns

    def counted(metrics: Sequence[str], start_ms: int, end_ms: int, gpus: Collection[str] | None = None) -> Columns:
        found = real(metrics, start_ms, end_ms, gpus)
        asked.append(len(found.at_ms) if metrics else 0)
        return found

    monkeypatch.setattr(kept, "columns", counted)
    warm(pieces, kept, middle, latest=kept.latest).until(end)
    # Rows of one instant are not parted.
    assert max(asked) < most + len(FLEET)
    assert pieces.late == 0
    np.testing.assert_array_equal(pieces.table(end).values, whole.table(end).values)
    np.testing.assert_array_equal(pieces.sequences(end), whole.sequences(end))
    assert pieces.parts.roster.jobs == whole.parts.roster.jobs


def test_a_restored_builder_is_fed_from_where_it_stood() -> None:
    kept, middle, end = store(), START + 100 * STEP, START + 150 * STEP
    first = FeatureBuilder(PLAN, FLEET)
    warm(first, kept, middle)
    second = restore(PLAN, save(first))
    StoreFeed(second, kept, second.newest_ms + 1).until(end)
    assert second.late == 0
    whole = FeatureBuilder(PLAN, FLEET)
    warm(whole, kept, end)
    np.testing.assert_array_equal(second.table(end).values, whole.table(end).values)


def test_a_late_event_is_still_seen() -> None:
    kept = store()
    builder = FeatureBuilder(PLAN, FLEET)
    fed = warm(builder, kept, START + 100 * STEP)
    late = event(EventKind.XID, FLEET[2], 98, 79)
    kept.write(Batch(events=[late]))
    fed.until(START + 101 * STEP)
    assert np.expm1(builder.table(START + 101 * STEP).column("event.bus.count")[2]) == pytest.approx(1.0)


@pytest.mark.parametrize("at_once", [1, 2, 1000])
def test_what_processes_tell_comes_with_the_newest_readings(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "AT_ONCE", at_once)
    kept = MemoryStore()
    for number, gpu in enumerate(FLEET[:3]):
        values = {"gpu_power_watts": 100.0}
        for pid, ratio in (("7", 0.2), ("8", 0.6 + number / 10)):
            values[variant("gpu_allocator_external_fragmentation_ratio", "pid", pid)] = ratio
        owner = Owner(pid=7, slurm_job=f"471{number}")
        kept.write(Batch(readings=[Reading(gpu, START, values, owners=(owner,))]))
    builder = FeatureBuilder(PLAN, FLEET[:3])
    warm(builder, kept, START, latest=kept.latest)
    assert builder.table(START).column("fragmentation.1h").tolist() == pytest.approx([0.6, 0.7, 0.8])
    assert builder.parts.roster.jobs == {gpu.uuid: f"Slurm job 471{n}" for n, gpu in enumerate(FLEET[:3])}


def test_readings_become_columns_in_the_order_of_time() -> None:
    rows = Condenser(PLAN).columns(
        [
            Reading(FLEET[1], START + 5, {"gpu_power_watts": 2.0, "gpu_processes": 1.0}),
            Reading(FLEET[0], START + 5, {"gpu_power_watts": 1.0}),
            Reading(FLEET[1], START, {}),
        ]
    )
    assert rows.at_ms.tolist() == [START, START + 5, START + 5]
    assert [rows.gpus[place] for place in rows.gpu] == [FLEET[1].uuid, FLEET[0].uuid, FLEET[1].uuid]
    power = rows.values[:, PLAN.metrics.index("gpu_power_watts")]
    np.testing.assert_array_equal(power, [np.nan, 1.0, 2.0])


def test_a_process_alone_is_no_job() -> None:
    lone = Reading(FLEET[0], START, {}, owners=(Owner(pid=1, process="python"),))
    assert jobs_of([lone]) == {}


def test_a_saved_builder_goes_on_as_if_nothing_had_been() -> None:
    first = FeatureBuilder(PLAN, FLEET, installed_ms={FLEET[0].uuid: START - DAY})
    first.update(frozen_columns(0, 160), EVENTS[:2])
    first.assign({FLEET[0].uuid: "job 1", FLEET[1].uuid: "job 1"})
    second = restore(PLAN, save(first))
    for builder in (first, second):
        builder.update(frozen_columns(160, 220), [*EVENTS[:2], EVENTS[2]])
    now = START + 220 * STEP
    np.testing.assert_array_equal(first.table(now).values, second.table(now).values)
    np.testing.assert_array_equal(first.sequences(now), second.sequences(now))
    assert second.late == first.late


def test_a_state_of_another_plan_is_refused() -> None:
    state = save(FeatureBuilder(PLAN, FLEET))
    assert all(array.dtype.kind in "fiub" for array in state.values())
    with pytest.raises(InputError, match="another version or plan"):
        restore(FeaturePlan(windows_ms=(HOUR, DAY)), state)
    with pytest.raises(InputError, match="not the state"):
        restore(PLAN, {})
    state["sum"] = state["sum"][:, :1]
    with pytest.raises(InputError, match="has shape"):
        restore(PLAN, state)


def test_a_state_with_steps_of_another_time_is_refused() -> None:
    builder = FeatureBuilder(PLAN, FLEET)
    builder.update(columns(FLEET, 0, 72))
    state = save(builder)
    for step in state["fine"].tolist():
        state |= {name.replace(f".{step}.", f".{step + 999}."): state[name] for name in [*state] if f".{step}." in name}
    with pytest.raises(InputError, match="has steps not in"):
        restore(PLAN, {**state, "fine": state["fine"] + 999})


def dense(builder: FeatureBuilder) -> dict[str, np.ndarray[Any, Any]]:
    """What version 1 of `save` gave of `builder`: every step whole, those of the coarse grid as means."""
    state, rings = save(builder), builder.parts.rings
    about = json.loads(state["about"].tobytes()) | {"version": 1}
    channels, gpus = state["sum"].shape
    means = slice(PLAN.count(FeatureKind.COUNTER), channels - PLAN.count(FeatureKind.PEAK))
    grids = {"fine": (rings.fine, "fine_here", np.bool_), "coarse": (rings.coarse, "coarse_steps", np.uint8)}
    found = {name: state[name] for name in state if "." not in name and name not in grids}
    for name, (length, counts, kind) in grids.items():
        found[name] = np.zeros((length, channels, gpus), np.float32)
        found[counts] = np.zeros((length, channels, gpus), kind)
        for number, plane in taken_up(state, name, channels, gpus).items():
            values, steps = plane.take(channels, np.arange(gpus))
            if name == "coarse":
                values[means] /= np.maximum(steps[means], 1)
            found[name][number % length], found[counts][number % length] = values, steps
    return found | {"about": np.frombuffer(json.dumps(about).encode(), np.uint8)}


def test_a_state_of_the_version_before_is_gone_on_from() -> None:
    first = FeatureBuilder(PLAN, FLEET)
    first.update(columns(FLEET, 0, 500), EVENTS[:2])
    second = restore(PLAN, dense(first))
    late = [*EVENTS[:2], event(EventKind.XID, FLEET[4], 100, 48), event(EventKind.XID, FLEET[1], 499, 48)]
    for builder in (first, second):
        builder.update(columns(FLEET, 500, 560), late)
    now = START + 560 * STEP
    np.testing.assert_allclose(first.table(now).values, second.table(now).values, rtol=1e-5)
    np.testing.assert_array_equal(first.sequences(now), second.sequences(now))


@pytest.mark.parametrize("name", ["fine", "fine_here", "coarse", "coarse_steps"])
def test_a_damaged_state_of_the_version_before_is_refused(name: str) -> None:
    builder = FeatureBuilder(PLAN, FLEET)
    builder.update(columns(FLEET, 0, 72))
    state = dense(builder)
    with pytest.raises(InputError, match="not of shape"):
        restore(PLAN, state | {name: state[name][1:]})
    del state[name]
    with pytest.raises(InputError, match="not of shape"):
        restore(PLAN, state)


def test_sequences_of_some_are_those_of_all() -> None:
    builder = FeatureBuilder(PLAN, FLEET)
    builder.update(columns(FLEET, 0, 72))
    last = builder.closed(START + 72 * STEP)
    some = np.array([5, 2, 5])
    np.testing.assert_array_equal(builder.window(last, 96, some), builder.window(last, 96)[some])


def test_long_coarse_steps_have_the_mean_of_all_their_steps() -> None:
    plan = FeaturePlan(step_ms=MINUTE, windows_ms=(HOUR, 3 * DAY))
    builder = FeatureBuilder(plan, FLEET[:1])
    for minute in range(60 * 24 * 3 + 600):
        at_ms = np.array([START + minute * MINUTE])
        values = np.array([[60.0, minute % 7]])
        metrics = ("gpu_temperature_celsius", "gpu_power_watts")
        builder.update(Columns((FLEET[0].uuid,), metrics, np.zeros(1, np.int32), at_ms, values))
    table = builder.table(builder.newest_ms)
    assert table.column("temperature.level")[0] == 60.0
    assert table.column("temperature.3d")[0] == pytest.approx(0.0, abs=1e-4)


def test_an_event_of_an_unknown_gpu_makes_it_known() -> None:
    builder = FeatureBuilder(PLAN)
    lone = Event(EventKind.XID, "GPU-x", "node-9", START, 79, "", "test")
    builder.update(None, [lone])
    table = builder.table(START)
    assert table.gpus == ("GPU-x",)
    assert table.history_ms.tolist() == [-1]
    assert np.expm1(table.column("event.bus.count")[0]) == pytest.approx(1.0)

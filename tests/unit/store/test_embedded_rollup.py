"""Old readings by the minute and by ten: what is kept, when, and that nothing is there twice or missing."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from tocsin.config.settings import StoreSettings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import DAY, HOUR, MINUTE, SECOND
from tocsin.domain.finding import ActionKind, Category, Finding, Severity, Subject, SubjectKind
from tocsin.domain.metrics import METRICS, MetricKind, variant
from tocsin.domain.prediction import Prediction, PredictionStatus
from tocsin.domain.reading import Missing, Owner, Reading
from tocsin.store.embedded.rollup import RollupRule, fold, rule_of
from tocsin.store.embedded.store import SqliteStore
from tocsin.store.memory import MemoryStore
from tocsin.store.upkeep import Retention, Upkeep, look_after
from tocsin_testing.builders import gpu, reading, xid

DAY0 = 1_795_000_000_000 // DAY * DAY
KEEP = Retention(7 * DAY, 90 * DAY, 730 * DAY)
POWER, ENERGY, BITS = "gpu_power_watts", "gpu_energy_joules_total", "gpu_clocks_event_reasons_bitmask"
STATE, LINK = "gpu_performance_state", variant("gpu_nvlink_crc_flit_errors_total", "link", "1")
PID = variant("gpu_process_memory_used_bytes", "pid", "77")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    opened = SqliteStore(tmp_path / "store.db")
    opened.init()
    yield opened
    opened.close()


def settle(store: SqliteStore, now_ms: int) -> Upkeep:
    """Two rounds: a day that is still being written to waits for the second."""
    store.maintain(now_ms, KEEP)
    return store.maintain(now_ms, KEEP)


def everything(store: SqliteStore) -> list[Reading]:
    return list(store.readings(0, DAY0 + 1_000 * DAY))


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        (POWER, RollupRule.MEAN),
        (ENERGY, RollupRule.LAST),
        (BITS, RollupRule.BITS),
        (STATE, RollupRule.LAST),
        ("gpu_row_remap_pending", RollupRule.LAST),
        (LINK, RollupRule.LAST),
        (PID, RollupRule.MEAN),
        ("a name that no table has", RollupRule.LAST),
    ],
)
def test_what_becomes_of_a_metric_follows_from_the_table(name: str, rule: RollupRule) -> None:
    assert rule_of(name) is rule


def test_no_counter_is_ever_averaged() -> None:
    assert {rule_of(s.name) for s in METRICS.values() if s.kind is MetricKind.COUNTER} == {RollupRule.LAST}


def random_readings(count: int) -> list[Reading]:
    chance = random.Random(5)
    made = []
    for number in range(count):
        at = DAY0 + number * 10 * SECOND
        for which in range(2):
            values = {
                POWER: round(chance.uniform(60, 700), 3),
                ENERGY: 1e6 + number,
                BITS: float(chance.choice([0, 1, 4, 8, 2**40])),
                STATE: float(chance.choice([0, 2, 8])),
                LINK: float(number // 7),
            }
            kept = {name: value for name, value in values.items() if chance.random() > 0.3}
            missing = {name: Missing.TIMED_OUT for name in values if name not in kept and chance.random() > 0.5}
            made.append(Reading(gpu(which), at, kept, missing))
    return made


def expected(readings: list[Reading], step: int) -> dict[tuple[int, str], dict[str, float]]:
    """The roll-up once more, plainly: windows, and of each metric what its rule says."""
    windows: dict[tuple[int, str], list[Reading]] = defaultdict(list)
    for one in readings:
        windows[one.at_ms // step * step, one.gpu.uuid].append(one)
    found = {}
    for key, some in windows.items():
        rolled = {}
        for name in {name for one in some for name in one.values}:
            values = [one.values[name] for one in some if name in one.values]
            if name == POWER:
                rolled[name] = round(math.fsum(values) / len(values), 3)
            elif name == BITS:
                bits = 0
                for value in values:
                    bits |= int(value)
                rolled[name] = float(bits)
            else:
                rolled[name] = values[-1]
        found[key] = rolled
    return found


@pytest.mark.parametrize(("age", "step"), [(8 * DAY, MINUTE), (100 * DAY, 10 * MINUTE)])
def test_windows_are_what_a_plain_computation_gives(store: SqliteStore, age: int, step: int) -> None:
    raw = random_readings(700)
    store.write(Batch(readings=raw))
    store.maintain(DAY0 + 3 * HOUR, KEEP)
    settle(store, DAY0 + DAY + age)
    rolled = expected(raw, step)
    found = {(r.at_ms, r.gpu.uuid): dict(r.values) for r in everything(store)}
    assert found.keys() == rolled.keys()
    for key, values in rolled.items():
        assert found[key].keys() == values.keys()
        assert found[key] == pytest.approx(values, abs=2e-3, rel=1e-12)


def test_ten_minutes_of_minutes_are_the_mean_of_their_readings(store: SqliteStore) -> None:
    times = [0, 10, 20, 30, 70, 130]
    store.write(Batch(readings=[reading(at_ms=DAY0 + t * SECOND, power_watts=t) for t in times]))
    settle(store, DAY0 + 9 * DAY)
    assert [r.values[POWER] for r in everything(store)] == [15.0, 70.0, 130.0]
    settle(store, DAY0 + 100 * DAY)
    assert [(r.at_ms, r.values[POWER]) for r in everything(store)] == [(DAY0, round(sum(times) / 6, 3))]
    low, high = store.extremes("GPU-00000000", [POWER, ENERGY], DAY0, DAY0 + DAY)
    np.testing.assert_array_equal(low.values, [[0.0, np.nan]])
    np.testing.assert_array_equal(high.values, [[130.0, np.nan]])


def test_what_does_not_change_stays_as_it_is_bit_for_bit(store: SqliteStore) -> None:
    values = {"gpu_memory_used_ratio": 0.1, POWER: 123.456, "gpu_memory_total_bytes": 85899345920.0}
    store.write(Batch(readings=[Reading(gpu(), DAY0 + n * 10 * SECOND, values) for n in range(90)]))
    for age in (9 * DAY, 100 * DAY):
        settle(store, DAY0 + age)
        assert all(dict(r.values) == values for r in everything(store))


def test_reasons_and_owners_of_a_window_are_the_last(store: SqliteStore) -> None:
    owners = (Owner(7, "python"),)
    some = [
        replace(reading(at_ms=DAY0, power_watts=1, missing={STATE: Missing.DENIED}), owners=(Owner(5),)),
        replace(reading(at_ms=DAY0 + 1, missing={POWER: Missing.LOST, STATE: Missing.NOT_DUE}), owners=owners),
        reading(at_ms=DAY0 + 2, energy_joules_total=3),
    ]
    store.write(Batch(readings=some))
    settle(store, DAY0 + 9 * DAY)
    (one,) = everything(store)
    assert (dict(one.values), dict(one.missing), one.owners) == (
        {POWER: 1.0, ENERGY: 3.0},
        {STATE: Missing.NOT_DUE},
        owners,
    )


def test_a_range_over_all_ages_is_seamless(store: SqliteStore) -> None:
    """120 days of half-hourly pairs: every window of every age once, in order, and nothing between."""
    batch = [
        reading(at_ms=DAY0 + half * 30 * MINUTE + more, power_watts=half)
        for half in range(120 * 48)
        for more in (0, 20 * SECOND)
    ]
    store.write(Batch(readings=batch))
    now = DAY0 + 120 * DAY
    settle(store, now)
    found = store.series("GPU-00000000", [POWER], DAY0, now)
    raw_from, minute_from = now - 7 * DAY, now - 90 * DAY
    older = found.at_ms[found.at_ms < minute_from]
    middle = found.at_ms[(found.at_ms >= minute_from) & (found.at_ms < raw_from)]
    assert (np.diff(found.at_ms) > 0).all()
    assert older.tolist() == list(range(DAY0, minute_from, 30 * MINUTE))
    assert middle.tolist() == list(range(minute_from, raw_from, 30 * MINUTE))
    assert len(found.at_ms) == 113 * 48 + 2 * 7 * 48
    assert found.values[:, 0].tolist() == [n // 2 + 113 * 48 if n >= 0 else n + 113 * 48 for n in range(-113 * 48, 672)]
    assert len(everything(store)) == len(found.at_ms)


def test_the_newest_reading_of_a_gpu_that_is_long_gone_is_found(store: SqliteStore) -> None:
    store.write(Batch(readings=[reading(at_ms=DAY0 + 65 * SECOND, power_watts=5)]))
    store.write(Batch(readings=[reading(gpu(1), DAY0 + 9 * DAY, power_watts=6)]))
    settle(store, DAY0 + 9 * DAY)
    assert [(r.at_ms, r.values[POWER]) for r in store.latest(0)] == [(DAY0 + MINUTE, 5.0), (DAY0 + 9 * DAY, 6.0)]
    assert store.latest_columns([POWER], 0).values.tolist() == [[5.0], [6.0]]


def test_readings_that_come_after_the_roll_up_fill_in_and_change_nothing(store: SqliteStore) -> None:
    store.write(Batch(readings=[reading(at_ms=DAY0 + 1, power_watts=5)]))
    settle(store, DAY0 + 9 * DAY)
    late = [
        reading(at_ms=DAY0 + 2, power_watts=50, temperature_celsius=40),
        reading(at_ms=DAY0 + MINUTE + 5, power_watts=7),
        reading(gpu(1), DAY0 + 3, power_watts=9),
    ]
    for _ in range(2):
        store.write(Batch(readings=late))
        settle(store, DAY0 + 9 * DAY)
        assert [(r.gpu.uuid[-1], r.at_ms - DAY0, dict(r.values)) for r in everything(store)] == [
            ("0", 0, {POWER: 5.0, "gpu_temperature_celsius": 40.0}),
            ("1", 0, {POWER: 9.0}),
            ("0", MINUTE, {POWER: 7.0}),
        ]


def test_a_past_that_is_brought_in_is_rolled_up_when_no_more_of_it_comes(store: SqliteStore) -> None:
    for second in range(6):
        store.write(Batch(readings=[reading(at_ms=DAY0 + second * SECOND, power_watts=second)]))
        assert store.maintain(DAY0 + 30 * DAY, KEEP).rolled == 0
    assert store.maintain(DAY0 + 30 * DAY, KEEP).rolled == 1
    assert [r.values[POWER] for r in everything(store)] == [2.5]


def test_what_is_older_than_all_ages_goes(store: SqliteStore) -> None:
    subject = Subject(SubjectKind.GPU, "GPU-00000000", "node-1")
    told = Prediction(
        subject=subject,
        target="t",
        at_ms=DAY0,
        horizon_ms=1,
        status=PredictionStatus.CROSSING,
        model="m",
        model_version="1",
        sentence="s",
    )
    found = Finding("hot", subject, Severity.WARNING, Category.THERMAL, ActionKind.NOTIFY, DAY0, DAY0, "it is hot")
    batch = Batch([reading(at_ms=DAY0)], [xid(79, at_ms=DAY0)], [found], [told])
    store.write(batch)
    settle(store, DAY0 + 90 * DAY + 1)
    assert (len(store.predictions(0, 2**60)), len(store.events(0, 2**60)), len(store.findings(0, 2**60))) == (0, 1, 1)
    assert len(everything(store)) == 1
    assert settle(store, DAY0 + 730 * DAY + DAY).removed == 0
    assert (everything(store), store.events(0, 2**60), store.findings(0, 2**60), store.gpus()) == ([], [], [], [])
    store.maintain(DAY0 + 732 * DAY, KEEP)
    assert list(store.path.with_name("store.db.segments").iterdir()) == []


def test_any_store_is_looked_after(store: SqliteStore) -> None:
    settings = StoreSettings(raw_days=1, minute_days=2, ten_minute_days=3)
    memory = MemoryStore()
    for one in (store, memory):
        one.write(Batch(readings=[reading(at_ms=DAY0), reading(at_ms=DAY0 + DAY)]))
    assert look_after(memory, settings, DAY0 + DAY + 1) == Upkeep(removed=1)
    assert look_after(store, settings, DAY0 + 9 * DAY).removed == 2


@pytest.mark.parametrize(
    ("age", "step"), [(0, 0), (7 * DAY - 1, 0), (7 * DAY, MINUTE), (90 * DAY, 10 * MINUTE), (-DAY, 0)]
)
def test_windows_by_age(age: int, step: int) -> None:
    assert Retention.of(StoreSettings()).step_of(age) == step


def test_ages_that_do_not_rise_are_one_clear_error() -> None:
    with pytest.raises(ValidationError, match="raw_days must not exceed minute_days"):
        StoreSettings(raw_days=100)
    assert StoreSettings(raw_days=1, minute_days=1, ten_minute_days=1).minute_days == 1


def test_a_mean_whose_sum_no_float_holds_stays_among_its_values() -> None:
    column = np.array([1.7e308, 1.6e308])
    (mean,) = fold(RollupRule.MEAN, column, np.array([0]), np.ones(2))
    assert 1.6e308 <= mean <= 1.7e308

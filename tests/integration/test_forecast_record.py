"""The record of forecasts in a running brain: judged by what the store has, and the same after a restart."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tocsin.config.settings import ForecastSettings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import HOUR, MINUTE, ManualClock
from tocsin.domain.finding import Subject, SubjectKind
from tocsin.domain.prediction import Prediction, PredictionStatus
from tocsin.domain.reading import Gpu, Reading
from tocsin.forecaster.capacity.capacity import PoolPast
from tocsin.forecaster.lifecycle.model_registry import ModelRegistry
from tocsin.forecaster.live.risk_inputs import SeenGpus
from tocsin.forecaster.live.worker import ForecastFailed, ForecastWorker
from tocsin.forecaster.trend.protocol import GpuHistory
from tocsin.journal.journal import Journal
from tocsin.runtime.brain.expectations import Expectations, ModelWatch
from tocsin.runtime.brain.forecasts import FleetForecasts
from tocsin.store.memory import MemoryStore
from tocsin.store.port import Columns, StoreUnavailable
from tocsin.telemetry.metrics import OwnMetrics
from tocsin_testing.builders import T0, gpu, xid
from tocsin_testing.law_words import finding

GPUS = [gpu(n) for n in range(12)]
METRIC = "gpu_memory_used_ratio"


def claims(at_ms: int) -> list[Prediction]:
    return [
        Prediction(
            subject=Subject(SubjectKind.GPU, one.uuid, one.host),
            target="own",
            at_ms=at_ms,
            horizon_ms=HOUR,
            status=PredictionStatus.CROSSING,
            model="guess",
            model_version="1",
            sentence="",
            metric=METRIC,
            threshold=0.9,
            value=0.88,
            probability=0.8,
            eta_ms=at_ms + 30 * MINUTE,
        )
        for one in GPUS
    ]


def forecasts(store: MemoryStore) -> FleetForecasts:
    settings = ForecastSettings(worker=False)
    return FleetForecasts(store, ForecastWorker(settings, only=[]), settings)


def test_claims_that_fail_mute_their_kind_and_a_restart_knows_it() -> None:
    store = MemoryStore()
    for minute in range(120):
        at_ms = T0 + minute * MINUTE
        store.write(Batch(readings=[Reading(one, at_ms, {METRIC: 0.88}) for one in GPUS]))
    running = forecasts(store)
    running.put(claims(T0), "guess")
    assert all(one.warns for one in running.current(T0))
    assert running.settle(T0 + 30 * MINUTE) == [], "no window is over"
    (muted,) = running.settle(T0 + HOUR + MINUTE)
    assert (muted.settled, muted.right, muted.muted) == (12, 0, True)
    running.put(claims(T0 + 70 * MINUTE), "guess")
    assert not any(one.warns for one in running.current(T0 + 70 * MINUTE))
    again = forecasts(store)
    again.recall(T0 + 80 * MINUTE, [(muted.kind, False)])
    again.catch_up(T0 + 80 * MINUTE)
    assert again.settle(T0 + 80 * MINUTE) == [], "it was muted before"
    (known,) = [one for one in again.kinds(T0 + 80 * MINUTE) if one.model == "guess"]
    assert (known.settled, known.muted) == (12, True)
    assert not any(one.warns for one in again.current(T0 + 80 * MINUTE))


class CountingStore(MemoryStore):
    """Counts the reads of columns, and fails them while it is `down`."""

    reads = 0
    down = False

    def columns(
        self, metrics: Sequence[str], start_ms: int, end_ms: int, gpus: Collection[str] | None = None
    ) -> Columns:
        self.reads += 1
        assert end_ms - start_ms <= 2 * HOUR, "no more is read than windows that lie together"
        if self.down:
            raise StoreUnavailable("down")
        return super().columns(metrics, start_ms, end_ms, gpus)


def test_a_start_judges_nothing_and_the_past_is_judged_once_afterwards() -> None:
    store = CountingStore()
    for hour in range(48):
        store.write(Batch(predictions=claims(T0 + hour * HOUR)))
    again = forecasts(store)
    now_ms = T0 + 49 * HOUR
    again.recall(now_ms)
    assert store.reads == 0
    again.catch_up(now_ms)
    assert 0 < store.reads <= 48, "many GPUs in one request"
    (known,), before = [one for one in again.kinds(now_ms) if one.model == "guess"], store.reads
    assert known.open == 0
    again.settle(now_ms)
    assert store.reads == before


def test_a_warning_that_heat_follows_is_right_and_one_behind_it_is_not() -> None:
    store = MemoryStore()
    running = forecasts(store)
    fault = {"target": "hardware_fault", "metric": "", "status": PredictionStatus.LIKELY, "horizon_ms": 6 * HOUR}
    running.put([replace(one, **fault) for one in claims(T0)[:3]], "guess")
    first, second, third = GPUS[:3]
    slow = [finding(one, T0 + at, T0 + at, rule="thermal_slowdown") for one, at in ((first, HOUR), (second, 7 * HOUR))]
    held = [finding(third, T0 + at, T0 + at, rule="thermal_slowdown") for at in (-HOUR, HOUR)]
    seen = [Reading(one, T0 + 6 * HOUR, {}) for one in GPUS[:3]]
    store.write(Batch(readings=seen, findings=[*slow, *held]))
    running.settle(T0 + 8 * HOUR)
    (known,) = [one for one in running.kinds(T0 + 8 * HOUR) if one.model == "guess"]
    assert (known.settled, known.right) == (3, 1), "one came too late, and one had begun before"


def test_cases_wait_while_the_store_is_unavailable() -> None:
    store = CountingStore()
    for minute in range(70):
        at_ms = T0 + minute * MINUTE
        store.write(Batch(readings=[Reading(one, at_ms, {METRIC: 0.88}) for one in GPUS]))
    running = forecasts(store)
    running.put(claims(T0), "guess")
    store.down = True
    assert running.settle(T0 + 65 * MINUTE) == []
    store.down = False
    (muted,) = running.settle(T0 + 66 * MINUTE)
    assert muted.settled == len(GPUS)


def lived(store: MemoryStore, hours: int) -> FleetForecasts:
    """A brain that has claimed the same of every GPU each hour, of which two in three came, and judged it."""
    running = forecasts(store)
    for hour in range(hours):
        at_ms = T0 + hour * HOUR
        full = [Reading(one, at_ms + 20 * MINUTE, {METRIC: 0.95}) for n, one in enumerate(GPUS) if (n + hour) % 3]
        store.write(Batch(readings=[*full, *(Reading(one, at_ms + 55 * MINUTE, {METRIC: 0.88}) for one in GPUS)]))
        running.put(claims(at_ms), "guess")
        running.settle(at_ms + HOUR)
    return running


def stated(of: FleetForecasts, at_ms: int) -> set[float | None]:
    of.put(claims(at_ms), "guess")
    return {one.probability for one in of.current(at_ms) if one.model == "guess"}


def test_a_restart_over_more_cases_than_may_wait_gives_the_record_of_the_brain_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tocsin.forecaster.live.recalibration.MOST_DUE", 2 * len(GPUS))
    store, hours = CountingStore(), 60
    now_ms = T0 + hours * HOUR
    running = lived(store, hours)
    again = forecasts(store)
    again.recall(now_ms)
    again.catch_up(now_ms)
    assert again.unjudged == running.unjudged == 0
    assert again.kinds(now_ms) == running.kinds(now_ms)
    (known,) = [one for one in again.kinds(now_ms) if one.model == "guess"]
    assert (known.settled, known.right, known.week) == (hours * len(GPUS), hours * len(GPUS) * 2 // 3, known.settled)
    assert stated(again, now_ms) == stated(running, now_ms)


def test_the_past_is_judged_in_several_turns_and_each_case_once_whatever_is_said_or_fails_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tocsin.runtime.brain.forecasts.MOST_CAUGHT_UP", 50)
    monkeypatch.setattr("tocsin.runtime.brain.forecasts.LOCKED", 7)
    store, hours = CountingStore(), 24
    now_ms = T0 + hours * HOUR
    running = lived(store, hours)
    again = forecasts(store)
    again.recall(now_ms)
    for one in (running, again):
        one.put(claims(now_ms), "guess")
    store.write(Batch(readings=[Reading(one, now_ms + 55 * MINUTE, {METRIC: 0.88}) for one in GPUS]))
    settled = []
    for turn in range(12):
        store.down = turn == 2
        again.catch_up(now_ms + HOUR)
        again.settle(now_ms + HOUR)
        settled += [one.settled for one in again.kinds(now_ms) if one.model == "guess"]
    running.settle(now_ms + HOUR)
    assert settled[1] == settled[2] > 0, "the store was down"
    assert max(late - early for early, late in itertools.pairwise(settled)) <= 50 + 7
    known, expected = ([replace(one, stated=None) for one in of.kinds(now_ms + HOUR)] for of in (again, running))
    assert known == expected, "but for what was stated by half a record"
    assert settled[-1] == (hours + 1) * len(GPUS)


def test_a_host_that_dies_with_its_agent_proves_no_warning_wrong_and_no_neighbour_healthy(tmp_path: Path) -> None:
    store, ahead = MemoryStore(), 48 * HOUR
    alive, silent = GPUS[:4], GPUS[4:8]
    for at_ms in range(T0, T0 + ahead + 1, HOUR):
        seen = alive if at_ms > T0 + 6 * HOUR else [*alive, *silent]
        store.write(Batch(readings=[Reading(one, at_ms, {METRIC: 0.5}) for one in seen]))
    store.write(Batch(events=[xid(79, alive[0], T0 + HOUR)]))
    quiet = [
        replace(one, target="hardware_fault", status=PredictionStatus.UNLIKELY, metric="", threshold=None, eta_ms=None)
        for one in claims(T0)[:8]
    ]
    warned = [replace(one, status=PredictionStatus.LIKELY) for one in (quiet[0], quiet[4])]
    running = forecasts(store)
    running.put([replace(one, horizon_ms=ahead) for one in (*warned, *quiet[1:4], *quiet[5:])], "guess")
    journal, metrics = Journal.open(tmp_path / "journal.db", ManualClock(T0)), OwnMetrics()
    models = ModelWatch(ModelRegistry(tmp_path / "models"), store, journal, metrics)
    expected = Expectations(running, models, store, journal, metrics, ManualClock(T0))
    expected.forecast(SeenGpus(()), (), (), T0 + ahead)
    journal.close()
    (known,) = [one for one in running.kinds(T0 + ahead) if one.target == "hardware_fault"]
    assert (known.settled, known.right, known.observed) == (1, 1, 0.25), "of four GPUs that were seen one failed"
    assert metrics.value("tocsin_forecasts_unsettled_total") == len(silent)


def test_gpus_of_a_host_are_read_together(monkeypatch: pytest.MonkeyPatch) -> None:
    store, fleet = MemoryStore(), [Gpu(f"GPU-{n * 7919 % 64:02d}", f"node-{n // 8}") for n in range(64)]
    asked: list[set[str]] = []
    real = store.columns

    def columns(metrics: Sequence[str], start_ms: int, end_ms: int, gpus: Collection[str] | None = None) -> Columns:
        asked.append({one.host for one in fleet if one.uuid in (gpus or ())})
        return real(metrics, start_ms, end_ms, gpus)

    monkeypatch.setattr(store, "columns", columns)
    monkeypatch.setattr("tocsin.runtime.brain.forecasts.CHUNK", 16)
    forecasts(store).run(sorted(fleet, key=lambda one: one.uuid), T0)
    assert [len(hosts) for hosts in asked] == [2] * 4


class Turns(ForecastWorker):
    """A worker that says of each GPU what `says` has, and counts whom and how often it is asked."""

    def __init__(self, says: dict[str, float]) -> None:
        super().__init__(ForecastSettings(worker=False), only=[])
        self.says, self.asked, self.risks, self.fails = says, list[set[str]](), 0, False
        self.lacks: dict[str, Callable[[int], str]] = {}
        self.pools: list[set[str]] = []

    def submit(self, history: Sequence[GpuHistory], now_ms: int) -> Future[list[Prediction]]:
        self.asked.append({one.gpu.uuid for one in history})
        made = {one.subject.name: one for one in claims(now_ms)}
        quiet = {"status": PredictionStatus.NO_CROSSING, "eta_ms": None}
        said = [replace(made[u], probability=self.says.get(u, 0.02), **quiet) for u in self.asked[-1]]
        return _done([self._lacking(one) if one.subject.name in self.lacks else one for one in said])

    def _lacking(self, said: Prediction) -> Prediction:
        reason = self.lacks[said.subject.name](len(self.asked))
        return replace(said, status=PredictionStatus.NOT_ENOUGH_DATA, probability=None, reason=reason)

    def submit_pools(self, pools: Sequence[PoolPast], now_ms: int) -> Future[list[Prediction]]:
        self.pools.append({one.pool for one in pools})
        if self.fails:
            raise ForecastFailed("no")
        return _done([replace(claims(now_ms)[0], subject=Subject(SubjectKind.POOL, one.pool)) for one in pools])

    def submit_risk(self, seen: SeenGpus, now_ms: int) -> Future[list[Prediction]]:
        self.risks += 1
        if self.fails:
            raise ForecastFailed("no")
        return _done([replace(claims(now_ms)[0], target="hardware_fault", status=PredictionStatus.UNLIKELY, metric="")])


def _done(made: list[Prediction]) -> Future[list[Prediction]]:
    future: Future[list[Prediction]] = Future()
    future.set_result(made)
    return future


def test_what_nothing_is_expected_of_has_one_turn_in_six() -> None:
    worker = Turns({GPUS[0].uuid: 0.4})
    running = FleetForecasts(MemoryStore(), worker, ForecastSettings(worker=False))
    every = {one.uuid for one in GPUS}
    for turn in range(13):
        running.run(GPUS, T0 + turn * 5 * MINUTE)
        assert {one.subject.name for one in running.current(T0 + turn * 5 * MINUTE)} == every, "none is outdated"
    assert worker.asked[0] == every
    assert all(GPUS[0].uuid in asked for asked in worker.asked), "something may come of it"
    for uuid in every - {GPUS[0].uuid}:
        assert sum(uuid in asked for asked in worker.asked[1:]) == 2


def test_what_lacks_the_same_as_before_has_one_turn_in_six_and_what_comes_nearer_has_each() -> None:
    worker = Turns({GPUS[0].uuid: 0.4})
    stuck, nearer = (one.uuid for one in GPUS[1:3])
    worker.lacks = {stuck: lambda turn: "has not held", nearer: lambda turn: f"grew {turn} %"}
    running = FleetForecasts(MemoryStore(), worker, ForecastSettings(worker=False))
    for turn in range(14):
        running.run(GPUS, T0 + turn * 5 * MINUTE)
    assert all(nearer in asked for asked in worker.asked)
    assert all(stuck in asked for asked in worker.asked[:2]), "a second look shows that nothing has come of more data"
    assert sum(stuck in asked for asked in worker.asked[2:]) == 2


def test_the_risk_has_one_turn_in_six_and_each_after_an_event_a_repair_or_a_failure() -> None:
    store, worker = MemoryStore(), Turns({})
    running = FleetForecasts(store, worker, ForecastSettings(worker=False))
    repaired: dict[str, int] = {}

    def turns(count: int, first: int) -> int:
        before = worker.risks
        for turn in range(first, first + count):
            running.run_risk(SeenGpus((), frozenset(), dict(repaired)), T0 + turn * 5 * MINUTE)
            running.run(GPUS, T0 + turn * 5 * MINUTE)
        return worker.risks - before

    assert turns(12, 0) == 2
    store.write(Batch(events=[xid(79, GPUS[0], T0 + 56 * MINUTE)]))
    assert turns(1, 12) == 1
    assert turns(2, 13) == 0
    repaired[GPUS[0].uuid] = T0 + 66 * MINUTE
    assert turns(1, 15) == 1
    assert turns(5, 16) == 0
    worker.fails = True
    assert turns(3, 21) == 3


def test_pools_have_one_turn_in_six_and_the_next_where_one_is_new_or_it_failed() -> None:
    worker = Turns({})
    running = FleetForecasts(MemoryStore(), worker, ForecastSettings(worker=False))
    at = iter(range(100))

    def turns(count: int, *names: str) -> int:
        before = len(worker.pools)
        past = [PoolPast(name, np.empty(0, np.int64), np.empty(0), np.empty(0)) for name in names]
        for turn in itertools.islice(at, count):
            now_ms = T0 + turn * 5 * MINUTE
            running.run(GPUS, now_ms)
            running.run_pools(past, now_ms)
            said = {one.subject.name for one in running.current(now_ms) if one.subject.kind is SubjectKind.POOL}
            assert worker.fails or said == set(names), "none is outdated"
        return len(worker.pools) - before

    assert turns(13, "a", "b") == 3
    assert turns(1, "a", "b", "c") == 1
    assert turns(5, "a", "b", "c") == 0
    worker.fails = True
    assert turns(3, "a", "b", "c") == 3


def test_a_crossing_that_is_not_said_again_is_gone_after_two_turns_and_what_is_said_rarely_stays() -> None:
    running = FleetForecasts(MemoryStore(), Turns({}), ForecastSettings(worker=False))
    crossing, other = claims(T0)[:2]
    quiet = replace(other, status=PredictionStatus.NO_CROSSING, eta_ms=None)
    pool = replace(crossing, subject=Subject(SubjectKind.POOL, "a"))
    running.put([crossing, quiet, pool], crossing.model)

    def told(minutes: int) -> set[str]:
        return {one.id for one in running.current(T0 + minutes * MINUTE)}

    assert told(11) == {crossing.id, quiet.id, pool.id}
    assert told(12) == told(36) == {quiet.id, pool.id}
    assert told(37) == set()

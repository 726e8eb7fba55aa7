"""Live forecasts on a Ray cluster of two nodes: the numbers of the worker process, through deaths of actors."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import ray
from ray.cluster_utils import Cluster

from tocsin.config.settings import ForecastEngine, ForecastSettings
from tocsin.domain.clock import HOUR, ManualClock
from tocsin.domain.errors import Unavailable
from tocsin.forecaster.features.examples import Examples
from tocsin.forecaster.hazard.artefact import ModelCard
from tocsin.forecaster.hazard.registry import build
from tocsin.forecaster.lifecycle.model_registry import ModelVersion
from tocsin.forecaster.live import ray_models, worker_process
from tocsin.forecaster.live.ray_models import RayModels, Shards
from tocsin.forecaster.live.worker import ForecastFailed, ForecastWorker
from tocsin.forecaster.live.worker_process import Models
from tocsin.forecaster.trend.protocol import GpuHistory
from tocsin_testing.announced import fleet as announced
from tocsin_testing.builders import T0, gpu
from tocsin_testing.chaos import until
from tocsin_testing.histories import TEMPERATURE, history, noise


def past_of(n: int) -> list[GpuHistory]:
    ramp = 60 + np.arange(240) / 40
    return [history({TEMPERATURE: ramp + noise(240, 0.5, i)}, which=gpu(i)) for i in range(n)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    made.add_node(num_cpus=1)
    yield made
    made.shutdown()  # type: ignore[no-untyped-call]


def on(cluster: Any, shards: int = 2, **more: Any) -> ForecastSettings:
    return ForecastSettings(engine=ForecastEngine.RAY, ray_address=cluster.address, ray_shards=shards, **more)


def actors() -> list[int]:
    """Process ids of the shards: Ray names a worker process after the actor in it."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                line = (folder / "cmdline").read_bytes()
            except OSError:
                continue  # it has ended since
            if line.startswith(b"ray::Shard"):
                found.append(int(folder.name))
    return found


@pytest.fixture(scope="class")
def worker(cluster: Any) -> Iterator[ForecastWorker]:
    made = ForecastWorker(on(cluster), ["threshold"])
    yield made
    made.close()


class TestWorkerProcess:
    """One worker process with two actors, which take half a minute to start; the last test ends them."""

    def test_two_nodes_answer_as_one_process_does(self, worker: ForecastWorker) -> None:
        past = past_of(150)
        expected = ForecastWorker(ForecastSettings(worker=False), ["threshold"]).submit(past, T0).result()
        assert worker.shards == 2
        assert worker.submit(past, T0).result(120) == expected
        assert len(actors()) == 2

    def test_a_shard_that_is_killed_costs_no_answer(self, worker: ForecastWorker) -> None:
        past = past_of(70)
        before = worker.submit(past, T0).result(120)
        os.kill(actors()[0], signal.SIGKILL)
        assert worker.submit(past, T0).result(120) == before
        assert worker.deaths == 0

    def test_a_model_that_raises_is_one_named_error(self, worker: ForecastWorker) -> None:
        (good,) = past_of(1)
        with pytest.raises(ForecastFailed, match="AttributeError"):
            worker.submit([GpuHistory(good.gpu, None)], T0).result(120)  # type: ignore[arg-type]
        assert worker.submit([good], T0).result(120)
        assert worker.deaths == 0

    def test_no_actor_is_left_when_the_brain_closes(self, worker: ForecastWorker) -> None:
        assert worker.submit(past_of(1), T0).result(120)
        assert actors()
        worker.close()
        until(lambda: not actors(), "the actors to end with their worker process")


def test_the_cells_of_a_cluster_answer_at_once_and_end_alone(cluster: Any) -> None:
    pasts = [past_of(150), past_of(40)[::-1]]
    alone = [ForecastWorker(ForecastSettings(worker=False), ["threshold"]).submit(one, T0).result() for one in pasts]
    cells = [ForecastWorker(on(cluster, shards=1), ["threshold"]) for _ in pasts]
    try:
        asked = [cell.submit(past, T0) for cell, past in zip(cells, pasts, strict=True)]
        assert [one.result(120) for one in asked] == alone
        assert len(actors()) == 2
        cells[0].close()
        until(lambda: len(actors()) == 1, "the actor of one cell to end with it")
        assert cells[1].submit(pasts[1], T0).result(120) == alone[1]
    finally:
        for cell in cells:
            cell.close()
    until(lambda: not actors(), "the actors to end with their worker processes")


# In this process, which is then the client of the cluster.


@pytest.fixture
def models(cluster: Any) -> Iterator[RayModels]:
    made = RayModels(on(cluster), ["threshold"])
    yield made
    ray.shutdown()


def card_of(rows: Examples) -> ModelCard:
    return ModelCard(
        name="risk", version="a", family="hazard", horizons_ms=(HOUR,), features=rows.names, provenance="a test",
        data_hash="d", code_version="c", created_ms=T0, trained_from_ms=T0, trained_to_ms=T0, rows=len(rows), onsets=1,
    )  # fmt: skip


def test_the_risk_of_many_rows_is_that_of_one_process(models: RayModels, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_process, "SCORED", 400)
    rows = announced(devices=64, days=20)
    scorer = build("hazard")
    scorer.fit(rows)
    version = ModelVersion("a", scorer, card_of(rows), None)
    here = Models(ForecastSettings(), ["threshold"]).score(version, rows)
    assert len(rows) > 2 * 400
    np.testing.assert_array_equal(models.score(version, rows), here)
    np.testing.assert_allclose(here, scorer.score(rows), rtol=1e-4)


def test_no_queue_grows_in_the_cluster(models: RayModels, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers come in the order of the parts, and no actor holds more than its calls."""
    held: list[int] = []
    wait = ray.wait

    def seen(calls: list[Any], **how: Any) -> Any:
        held.append(len(calls))
        return wait(calls, **how)

    monkeypatch.setattr(ray, "wait", seen)
    rows = [announced(devices=2, days=5, seed=n) for n in range(15)]
    # Stands for a scorer, of parts that are known on every node.
    scorer = SimpleNamespace(score=attrgetter("features"))
    answers = models.shards.spread(lambda shard, part: shard.score.remote(scorer, part), rows)
    for answer, one in zip(answers, rows, strict=True):
        np.testing.assert_array_equal(answer, one.features)
    assert max(held) == 2 * ray_models.AT_ONE_ACTOR


def test_a_shard_that_hangs_is_left_by_the_next_forecast(cluster: Any) -> None:
    models = RayModels(on(cluster, every_seconds=3.0), ["threshold"])
    before = models.predict(past_of(3), T0)
    stuck = actors()
    for pid in stuck:
        os.kill(pid, signal.SIGSTOP)
    with pytest.raises(Unavailable, match=r"not all answers within 3 s \(forecast.every_seconds\)"):
        models.predict(past_of(3), T0)
    for pid in stuck:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    assert models.predict(past_of(3), T0) == before
    ray.shutdown()


def test_all_parts_have_the_time_of_one_forecast(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, waited = ManualClock(T0), list[float]()

    def wait(refs: list[int], num_returns: int, timeout: float) -> tuple[list[int], list[int]]:
        waited.append(timeout)
        clock.advance(2_000)
        return (refs[:num_returns], refs[num_returns:]) if timeout else ([], refs)

    monkeypatch.setattr(ray, "wait", wait)
    monkeypatch.setattr(ray, "get", lambda ref: ref)
    shards = Shards(ForecastSettings(every_seconds=3), clock=clock)
    shards._actors = [object()]
    assert shards._spread(lambda _, part: part, [1]) == [1]
    waited.clear()
    with pytest.raises(Unavailable, match="not all answers within 3 s"):
        shards._spread(lambda _, part: part, [1, 2, 3])
    assert waited == [3.0, 1.0, 0.0]


def test_a_cluster_without_room_says_so(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_models, "START_SECONDS", 3.0)
    with pytest.raises(Unavailable, match=r"has no room for 3 actors .*lower forecast.ray_shards"):
        RayModels(on(cluster, shards=3), ["threshold"]).predict(past_of(1), T0)
    assert not ray.is_initialized()


def test_another_release_on_the_nodes_is_refused(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_models, "__version__", "9.9")
    with pytest.raises(Unavailable, match=r"its nodes run Tocsin \S+, this brain 9.9; install that"):
        RayModels(on(cluster), ["threshold"]).predict(past_of(1), T0)


def test_a_cluster_that_is_not_there_costs_a_forecast_alone() -> None:
    settings = ForecastSettings(engine=ForecastEngine.RAY, ray_address="127.0.0.1:1")
    worker = ForecastWorker(settings, ["threshold"])
    for _ in range(2):
        with pytest.raises(Unavailable, match=r"Ray at 127\.0\.0\.1:1: "):
            worker.submit(past_of(1), T0).result(60)
    assert worker.deaths == 0
    worker.close()


def test_ray_without_a_worker_process_is_refused() -> None:
    with pytest.raises(ValueError, match="set worker = true"):
        ForecastSettings(engine=ForecastEngine.RAY, worker=False)

"""The worker: same answers as in the caller's process, errors that are named, and a death that is survived."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tocsin.config.settings import ForecastSettings, StoreKind, StoreSettings
from tocsin.domain.errors import InputError, Unavailable
from tocsin.forecaster.live.risk_inputs import RiskInputs, SeenGpus
from tocsin.forecaster.live.worker import ForecastFailed, ForecastWorker
from tocsin.forecaster.trend.protocol import GpuHistory
from tocsin_testing.builders import T0, gpu
from tocsin_testing.histories import TEMPERATURE, history, noise


def fleet(n: int = 3) -> list[GpuHistory]:
    ramp = 60 + np.arange(240) / 40
    return [history({TEMPERATURE: ramp + noise(240, 0.5, i)}, which=gpu(i)) for i in range(n)]


@pytest.fixture
def worker() -> Iterator[ForecastWorker]:
    made = ForecastWorker(ForecastSettings())
    yield made
    made.close()


def here() -> ForecastWorker:
    return ForecastWorker(ForecastSettings(worker=False))


def only_child() -> int:
    (child,) = multiprocessing.active_children()
    assert child.pid is not None
    return child.pid


def test_a_process_answers_as_the_caller_would_and_ends_with_close(worker: ForecastWorker) -> None:
    past = fleet(40)
    expected = here().submit(past, T0).result()
    assert worker.submit(past, T0).result(60) == expected
    assert only_child() != os.getpid()
    nice = os.getpriority(os.PRIO_PROCESS, only_child())
    assert nice > os.getpriority(os.PRIO_PROCESS, 0), "it gives way to the brain"
    worker.close()
    assert multiprocessing.active_children() == []
    worker.close()
    with pytest.raises(Unavailable, match="closed"):
        worker.submit(past, T0)


def until_it_dies(worker: ForecastWorker) -> None:
    """The pool may notice only at the next request, or already while that is handed over."""
    while not worker.deaths:
        worker.submit(fleet(), T0).result(60)
    raise Unavailable("the worker died and was replaced unseen")


def test_a_death_is_counted_and_survived(worker: ForecastWorker) -> None:
    before = worker.submit(fleet(), T0).result(60)
    os.kill(only_child(), signal.SIGKILL)
    with pytest.raises(Unavailable, match="died"):
        until_it_dies(worker)
    assert worker.deaths == 1
    assert worker.submit(fleet(), T0).result(60) == before
    assert worker.deaths == 1


def test_an_empty_fleet_has_no_predictions(worker: ForecastWorker) -> None:
    assert worker.submit([], T0).result(60) == []
    assert here().submit([], T0).result() == []


def test_the_metrics_are_those_of_all_models() -> None:
    worker = here()
    assert TEMPERATURE in worker.metrics
    assert len(set(worker.metrics)) == len(worker.metrics)


@pytest.mark.parametrize("in_process", [True, False])
def test_a_model_that_raises_is_one_named_error(in_process: bool) -> None:
    worker = ForecastWorker(ForecastSettings(worker=not in_process))
    (good,) = fleet(1)
    broken = GpuHistory(good.gpu, None)  # type: ignore[arg-type]
    with pytest.raises(ForecastFailed, match="AttributeError"):
        worker.submit([broken], T0).result(60)
    assert worker.submit([good], T0).result(60)
    assert worker.deaths == 0
    worker.close()


def test_a_damaged_model_is_named_and_takes_nothing_else_down(tmp_path: Path) -> None:
    (tmp_path / "service.json").write_text("torn")
    place = RiskInputs(StoreSettings(kind=StoreKind.SQLITE, path=tmp_path / "store.db"), tmp_path)
    worker = ForecastWorker(ForecastSettings(), place=place)
    with pytest.raises(InputError, match="unreadable"):
        worker.submit_risk(SeenGpus([gpu()]), T0).result(60)
    assert worker.submit(fleet(1), T0).result(60)
    assert worker.deaths == 0
    worker.close()

"""Training and backtests on Ray, with two workers that are started for it: the numbers are those of one process."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tocsin.domain.clock import HOUR
from tocsin.domain.errors import InputError, Unavailable
from tocsin.forecaster.evaluation.engine import Engine, Local, engine
from tocsin.forecaster.evaluation.forward import Forward, forward
from tocsin.forecaster.evaluation.report import to_json
from tocsin.forecaster.lifecycle.trial import TrialRecipe, hold
from tocsin.forecaster.live.reasons import group_of
from tocsin_testing.announced import fleet


@pytest.fixture(scope="module")
def workers() -> Iterator[Engine]:
    with pytest.MonkeyPatch.context() as patch:
        # A cluster of somebody else's, which it must not join.
        patch.setenv("RAY_ADDRESS", "127.0.0.1:1")
        with engine("ray") as running:
            yield running


def test_answers_come_in_the_order_of_the_items(workers: Engine) -> None:
    names = [f"channel{n}.24h" for n in range(7)]
    assert workers.map(group_of, names) == Local().map(group_of, names) == [f"channel{n}" for n in range(7)]


def test_a_trial_comes_to_the_same(workers: Engine) -> None:
    examples = fleet(devices=64, days=40)
    recipe = TrialRecipe(draws=30, folds=2)
    here, there = hold(examples, recipe), hold(examples, recipe, engine=workers)
    np.testing.assert_allclose(there.scores, here.scores, rtol=1e-9)
    assert there.because == here.because


def test_a_backtest_comes_to_the_same(workers: Engine) -> None:
    examples = fleet(devices=64, days=40)
    wanted = Forward(models=("hazard", "rules"), horizon_ms=48 * HOUR, folds=2, draws=5)
    here, there = forward(examples, wanted), forward(examples, wanted, engine=workers)
    assert to_json(there) == to_json(here)


def test_an_engine_that_is_none_is_named() -> None:
    with pytest.raises(InputError, match="use one of local, ray"), engine("spark"):
        pass


def test_a_cluster_that_is_not_there_is_one_line() -> None:
    with pytest.raises(Unavailable, match=r"Ray at 127\.0\.0\.1:1: "), engine("ray", "127.0.0.1:1"):
        pass

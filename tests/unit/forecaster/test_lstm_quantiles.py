"""The quantile head on series that rise at a pace the past shows, and the smoothing that it is compared with."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.numpy import load, save

from tocsin.domain.clock import HOUR
from tocsin.domain.errors import Conflict, InputError
from tocsin.forecaster.deep.quantiles import SHARES, LstmQuantiles, Windows, build, ordered, pinball, start
from tocsin.forecaster.hazard.scorer import NotEnoughData, State
from tocsin.forecaster.trend.smoothing import quantiles
from tocsin_benchmarks.quantiles import protocol as benchmark
from tocsin_benchmarks.quantiles.series import AHEAD, METRICS, PAST, TARGETS, windows

SMALL = {"targets": ["a", "b"], "ahead": [2, 8], "hidden": 16, "patch": 4, "epochs": 15, "dropout": 0.0}


def ramps(n: int = 400, seed: int = 0) -> tuple[Windows, np.ndarray]:
    """`a` rises at a pace of its own, with noise of 0.1; `b` is noise of 1 around 5; a tenth is missing."""
    rng = np.random.default_rng(seed)
    pace = rng.uniform(0.0, 1.0, n)
    steps = np.arange(-23, 9)
    a = rng.normal(50, 20, n)[:, None] + pace[:, None] * steps + rng.normal(0, 0.1, (n, 32))
    values = np.stack([a, rng.normal(5, 1, (n, 32))], axis=2).astype(np.float32)
    past, ahead = values[:, :24].copy(), values[:, [25, 31]].transpose(0, 2, 1).copy()
    past[rng.random(past.shape) < 0.1] = np.nan
    return Windows(("a", "b"), past, np.arange(n) * HOUR, (np.arange(n) % 40).astype(np.int32)), ahead


@pytest.fixture(scope="module")
def fitted() -> LstmQuantiles:
    model = build(**SMALL)
    model.fit(*ramps())
    return model


def test_it_sees_the_pace(fitted: LstmQuantiles) -> None:
    asked, truth = ramps(seed=1)
    found = fitted.forecast(asked)
    assert found.shape == (400, 2, 2, 3)
    change = np.nanmean(np.abs(truth[:, 0, 1] - found[:, 0, 1, 1]))
    persistence = np.nanmean(np.abs(truth[:, 0, 1] - asked.past[:, -1, 0]))
    assert change < 0.3 * persistence


def test_quantiles_hold_their_share_and_never_cross(fitted: LstmQuantiles) -> None:
    asked, truth = ramps(seed=1)
    found = fitted.forecast(asked)
    assert (np.diff(found, axis=-1) > 0).all()
    for target in (0, 1):
        inside = (truth[:, target] >= found[:, target, :, 0]) & (truth[:, target] <= found[:, target, :, 2])
        assert 0.65 < inside.mean() < 0.95


def test_a_target_never_seen_gets_no_forecast_and_changes_no_other(fitted: LstmQuantiles) -> None:
    asked, _ = ramps(n=5, seed=1)
    past = asked.past.copy()
    past[2, :, 0] = np.nan
    found = fitted.forecast(Windows(asked.metrics, past, asked.at_ms, asked.device))
    assert np.isnan(found[2, 0]).all()
    assert np.isfinite(found[2, 1]).all()
    assert found[[0, 1, 3, 4]] == pytest.approx(fitted.forecast(asked)[[0, 1, 3, 4]], rel=1e-5)


def test_the_same_seed_gives_the_same_forecast(fitted: LstmQuantiles) -> None:
    again = build(**SMALL)
    torch.manual_seed(4)
    before = torch.get_rng_state()
    again.fit(*ramps())
    assert torch.equal(torch.get_rng_state(), before)
    asked, _ = ramps(seed=1)
    assert np.array_equal(again.forecast(asked), fitted.forecast(asked))


def test_saved_and_loaded_it_forecasts_alike(fitted: LstmQuantiles) -> None:
    state = fitted.state()
    arrays = load(save({name: np.ascontiguousarray(value) for name, value in state.arrays.items()}))
    other = build(**SMALL)
    other.restore(State(state.settings, arrays))
    asked, _ = ramps(seed=1)
    assert np.array_equal(other.forecast(asked), fitted.forecast(asked))
    with pytest.raises(InputError, match="made for 2 targets and 2 horizons"):
        build(**{**SMALL, "ahead": [2]}).restore(state)


def test_refusals_are_in_words() -> None:
    asked, truth = ramps(n=100)
    with pytest.raises(NotEnoughData, match="lstm-quantiles: 100 windows of known outcome, 200 needed"):
        build(**SMALL).fit(asked, truth)
    with pytest.raises(InputError, match="a target is not among the metrics"):
        build(**{**SMALL, "targets": ["c"]}).fit(asked, truth[:, :1])
    with pytest.raises(InputError, match="no such setting"):
        build(**SMALL, depth=2)
    with pytest.raises(Conflict, match="not fitted yet"):
        build(**SMALL).forecast(asked)


def test_the_pinball_loss_is_least_at_the_quantiles() -> None:
    values = torch.from_numpy(np.random.default_rng(0).normal(size=5000))
    grid = torch.linspace(-2, 2, 401, dtype=torch.float64)
    loss = torch.stack([pinball(at.expand(5000, 3), values).mean(dim=0) for at in grid])
    assert grid[loss.argmin(dim=0)].numpy() == pytest.approx(np.quantile(values, SHARES), abs=0.02)


def test_the_start_is_the_quantiles_of_what_is_known() -> None:
    scaled = torch.from_numpy(np.random.default_rng(0).normal(size=(4000, 2, 3)).astype(np.float32))
    scaled[::3, 0, 0] = float("nan")
    found = ordered(start(scaled)[None]).view(2, 3, 3).numpy()
    assert found == pytest.approx(np.moveaxis(np.nanquantile(scaled.numpy(), SHARES, axis=0), 0, -1), abs=1e-3)


def test_smoothing_gives_normal_quantiles_along_a_ramp() -> None:
    rng = np.random.default_rng(0)
    values = 20 + 0.5 * np.arange(100) + rng.normal(0, 1.0, 100)
    for select in (False, True):
        found = quantiles(values, (1, 10), SHARES, select)
        assert found is not None
        assert found[:, 1] == pytest.approx([70, 74.5], abs=1.5)
        assert (found[:, 2] - found[:, 0])[0] == pytest.approx(2 * 1.2816, rel=0.3)
        assert (np.diff(found, axis=1) > 0).all()
    still = quantiles(np.full(20, 3.0), (1, 5), SHARES)
    assert still is not None
    assert (still == 3.0).all()


def test_windows_hold_what_was_known_and_what_came() -> None:
    instants = PAST + max(AHEAD) + 10
    values = np.zeros((2, instants, len(METRICS)), np.float32)
    values[:] = np.arange(instants)[:, None]
    values[1, :100, 0] = np.nan
    found, truth = windows(values, start_ms=7, every=10)
    assert found.device.tolist() == [0, 0, 1, 1]
    assert found.past[1, [0, -1], 0].tolist() == [10.0, PAST + 9.0]
    assert truth[1, 2].tolist() == [PAST + 9.0 + k for k in AHEAD]
    assert np.isnan(truth[2, 0]).all()
    assert np.isfinite(truth[2, 1]).all()


def test_the_comparison_names_every_model_and_where_smoothing_wins() -> None:
    plan = benchmark.Plan(train_gpus=12, test_gpus=6, days=3, every=9, asked=5, epochs=1)
    section = benchmark.compare_with_ets(plan, seed=3, draws=20)
    assert set(section.models) == {"lstm", "ets", "ets (chosen)", "persistence"}
    assert section.models["persistence"]["pinball, memory"].value == 1.0
    assert section.population["windows"] == 5
    assert len(section.tables) == 2 * len(TARGETS)
    assert len(section.notes) == 4
    losses = {row[0]: row[1:] for table in section.tables[:3] for row in table.rows if table.title.endswith("memory")}
    beaten = [a >= b for a, b in zip(losses["lstm"], losses["ets"], strict=True)]
    assert any("memory" in note for note in section.notes if " ets " in note) is any(beaten)

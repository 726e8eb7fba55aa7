"""Parts of the LSTM scorer: what is known of a row, the likelihood, the choice of rows, patches, torch's state."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from tocsin.domain.clock import HOUR
from tocsin.domain.errors import InputError, Unavailable
from tocsin.forecaster.deep.inputs import align, even
from tocsin.forecaster.deep.network import past_of, pick, settled
from tocsin.forecaster.deep.survival import (
    IntervalOutcome,
    base_logits,
    log_likelihood,
    log_odds,
    outcome,
    probabilities,
)
from tocsin.forecaster.deep.training import FitRecipe, choose, course, train
from tocsin.forecaster.features.examples import NEVER, Examples, HeldSequences, Ints
from tocsin.forecaster.hazard.rows import prepare

HORIZONS = (1 * HOUR, 6 * HOUR, 24 * HOUR)


def rows(*ahead: tuple[float | None, float]) -> Examples:
    """A row each of (hours to the onset, hours watched), at instant 0."""
    n = len(ahead)
    zero = np.zeros(n, np.int64)
    return Examples(
        devices=tuple(f"d{i}" for i in range(n)),
        device=np.arange(n, dtype=np.int32),
        groups=("g",),
        group=np.zeros(n, np.int32),
        at_ms=zero,
        names=(),
        features=np.zeros((n, 0), np.float32),
        seen_ms=zero,
        history_ms=zero,
        event_ms=np.array([NEVER if event is None else round(event * HOUR) for event, _ in ahead]),
        until_ms=np.array([round(until * HOUR) for _, until in ahead]),
        event_class=np.full(n, ""),
        weight=np.ones(n),
    )


def test_what_is_known_of_each_row() -> None:
    found = outcome(rows((0.5, 90), (6, 90), (None, 90), (None, 7), (None, 0.5), (40, 50), (-3, 90)), HORIZONS)
    assert found.onset.tolist() == [0, 1, -1, -1, -1, -1, -1]
    assert found.known.tolist() == [3, 3, 3, 2, 0, 3, 3]
    assert found.usable.tolist() == [True, True, True, True, False, True, True]


def test_past_the_end_of_all_observation_an_onset_says_no_more_than_its_absence() -> None:
    found = outcome(rows((0.5, 8), (7, 8), (None, 8)), HORIZONS)
    assert found.onset.tolist() == [0, -1, -1]
    assert found.known.tolist() == [2, 2, 2]


def brute(hazard: list[float], onset: int, known: int, ratio: float) -> float:
    """Likelihood of one row from the definition."""

    def chance(k: int) -> float:
        return hazard[k] * math.prod(1 - h for h in hazard[:k])

    none = math.prod(1 - h for h in hazard[:known])
    total = sum(chance(k) for k in range(known)) + ratio * none
    return (chance(onset) if onset >= 0 else ratio * none) / total


@pytest.mark.parametrize("ratio", [1.0, 0.05])
@pytest.mark.parametrize(("onset", "known"), [(-1, 3), (-1, 1), (0, 3), (2, 3), (1, 2)])
def test_the_likelihood_is_that_of_the_definition(onset: int, known: int, ratio: float) -> None:
    hazard = [0.1, 0.3, 0.05]
    logits = torch.tensor([[math.log(h / (1 - h)) for h in hazard]])
    found = log_likelihood(logits, torch.tensor([onset]), torch.tensor([known]), math.log(ratio))
    assert math.exp(float(found)) == pytest.approx(brute(hazard, onset, known, ratio), rel=1e-5)


def test_the_likelihood_of_a_thinned_sample_is_greatest_at_the_chances_of_the_whole() -> None:
    """Of 1,000 rows 20 and 30 had an onset in two intervals; a tenth of the quiet ones is kept."""
    onset = torch.tensor([0] * 20 + [1] * 30 + [-1] * 95)
    logits = torch.zeros(2, requires_grad=True)
    optimiser = torch.optim.LBFGS([logits], max_iter=200, tolerance_grad=1e-9, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimiser.zero_grad()
        every = logits.expand(onset.numel(), 2)
        value = -log_likelihood(every, onset, torch.full_like(onset, 2), math.log(0.1)).mean()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimiser.step(loss)  # type: ignore[no-untyped-call]
    assert torch.sigmoid(logits).tolist() == pytest.approx([20 / 1000, 30 / 980], rel=0.01)


def test_probabilities_are_those_of_the_hazards_and_never_fall() -> None:
    hazard = np.array([[0.1, 0.3, 0.05], [1e-9, 1e-9, 1e-9], [0.999, 0.5, 0.9]])
    found = probabilities(torch.tensor(np.log(hazard / (1 - hazard)))).numpy()
    assert found == pytest.approx(1 - np.cumprod(1 - hazard, axis=1), rel=1e-6, abs=1e-15)
    assert (np.diff(found, axis=1) >= 0).all()
    odds = log_odds(torch.tensor(np.log(hazard / (1 - hazard))), 1).numpy()
    assert odds == pytest.approx(np.log(found[:, 1] / (1 - found[:, 1])), abs=1e-6)


def test_base_rates_count_rows_at_risk_by_weight() -> None:
    found = IntervalOutcome(np.array([0, 1, -1, -1, -1]), np.array([2, 2, 2, 2, 1]))
    shares = 1 / (1 + np.exp(-base_logits(found, np.array([1.0, 1.0, 4.0, 2.0, 2.0]), 2)))
    assert shares == pytest.approx([1 / 10, 1 / 7])


def test_rows_are_drawn_by_weight_and_stand_for_all() -> None:
    happened = np.arange(5000) % 50 == 0
    weight = np.where(happened, 1.0, np.where(np.arange(5000) % 2 == 0, 1.0, 9.0))
    choice = choose(happened, weight, 1100, seed=3)
    assert choice.rows.size == pytest.approx(1100, abs=1)
    assert np.array_equal(choice.rows, np.unique(choice.rows))
    assert happened[choice.rows].sum() == 100
    heavy = weight[choice.rows] == 9.0
    assert heavy.sum() == pytest.approx(900, abs=30)
    assert choice.weight.sum() == pytest.approx(weight.sum(), rel=0.01)
    again = choose(happened, weight, 1100, seed=3)
    assert np.array_equal(choice.rows, again.rows)


def test_few_rows_are_all_taken_as_they_are() -> None:
    choice = choose(np.array([True, False, False]), np.array([1.0, 5.0, 0.0]), 10, seed=0)
    assert choice.rows.tolist() == [0, 1]
    assert choice.weight.tolist() == [1.0, 5.0]


def test_an_epoch_repeats_onsets_and_says_by_how_much_quiet_rows_are_rarer() -> None:
    happened = np.arange(110) < 10
    weight = np.where(happened, 1.0, 7.0)
    way = course(happened, weight, np.arange(110), balance=0.25)
    assert np.bincount(way.order)[[0, 50]].tolist() == [3, 1]
    assert way.log_ratio == pytest.approx(math.log((1 / 7) / 3))
    assert way.weight == pytest.approx(np.ones(110))


def test_patches_know_what_was_seen_and_how_long_ago() -> None:
    z = torch.full((1, 6, 2), float("nan"))
    z[0, 1, 0] = 3.0
    past = past_of(z, 2)
    assert past.value[0, :, 0].tolist() == [0.0, 3.0, 0.0, 0.0, 0.0, 0.0]
    assert past.seen[0, :, 0].tolist() == [0.5, 0.0, 0.0]
    wanted = [0.0, math.log(2) / math.log(4), math.log(3) / math.log(4)]
    assert past.since[0, :, 0].tolist() == pytest.approx(wanted)
    assert past.since[0, :, 1].tolist() == [1.0, 1.0, 1.0]


def test_channels_and_steps_are_found_by_name_and_from_the_newest() -> None:
    values = np.arange(2 * 3 * 2, dtype=np.float32).reshape(2, 3, 2)
    held = HeldSequences(("a", "b"), values)
    found = align(held, np.array([1]), ("b", "gone", "a"), 4)
    assert np.isnan(found[0, 0]).all()
    assert np.isnan(found[0, :, 1]).all()
    assert np.array_equal(found[0, 1:, [0, 2]].T, values[1][:, ::-1])
    assert np.array_equal(align(held, np.array([0]), ("b",), 2)[0, :, 0], values[0, 1:, 1])
    assert np.isnan(align(None, np.array([0, 1]), ("b",), 2)).all()


def test_windows_are_evened_as_features_are() -> None:
    rng = np.random.default_rng(0)
    x = rng.lognormal(2.0, 3.0, (400, 3)).astype(np.float32)
    x[rng.random(x.shape) < 0.1] = np.nan
    how = prepare(x)
    found = even(torch.from_numpy(x).view(20, 20, 3), how).view(400, 3).nan_to_num(0.0).numpy()
    assert found == pytest.approx(how.apply(x)[:, :3], abs=1e-4)


def test_torch_is_left_as_it_was() -> None:
    def world() -> tuple[object, ...]:
        flags = (torch.get_num_threads(), torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled())
        return (*flags, torch.get_rng_state().sum().item(), torch.backends.cudnn.deterministic)

    def work() -> None:
        with settled(torch.device("cpu"), 1, seed=5):
            assert torch.are_deterministic_algorithms_enabled()
            torch.rand(3)
            raise RuntimeError("inside")

    before = world()
    with pytest.raises(RuntimeError, match="inside"):
        work()
    assert world() == before


def test_devices_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert pick("auto").type == "cpu"
    with pytest.raises(InputError, match="use one of auto, cpu, cuda"):
        pick("tpu")
    with pytest.raises(Unavailable, match="torch sees no CUDA device"):
        pick("cuda")


def test_an_epoch_may_be_cut_short_so_that_early_stopping_looks_often() -> None:
    recipe = FitRecipe(epochs=1, patience=1, batch=10, learning_rate=0.1, weight_decay=0.0)
    assert recipe.batches(1000) == 100
    assert replace(recipe, longest=30).batches(1000) == 30
    assert replace(recipe, longest=300).batches(1000) == 100
    assert recipe.batch_of(5) == 10
    assert replace(recipe, batch=256).batch_of(800) == 50


def test_training_keeps_the_best_weights_of_the_watched_rows() -> None:
    """One weight is pulled to 1 by the rows that teach and to 0.2 by those that watch."""
    model = torch.nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(0.0)
    wanted = torch.tensor([1.0] * 40 + [0.2] * 10)

    def loss(rows: Ints) -> tuple[torch.Tensor, float]:
        return (model.weight[0, 0] - wanted[torch.from_numpy(rows)]).square().sum(), float(rows.size)

    recipe = FitRecipe(epochs=60, patience=4, batch=40, learning_rate=0.01, weight_decay=0.0)
    progress = train(model, loss, np.arange(40), np.arange(40, 50), recipe, seed=0)
    assert len(progress.watched) == progress.best + 1 + recipe.patience
    assert progress.best == int(np.argmin(progress.watched))
    assert float(model.weight.detach()) == pytest.approx(0.2, abs=0.05)

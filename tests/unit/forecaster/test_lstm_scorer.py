"""The LSTM scorer on devices that fail after a ramp."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.numpy import load, save
from sklearn.metrics import roc_auc_score

from tocsin.domain.clock import HOUR
from tocsin.domain.errors import Conflict, InputError
from tocsin.forecaster.deep.scorer_lstm import LstmScorer, build
from tocsin.forecaster.features.examples import NEVER, Examples, HeldSequences
from tocsin.forecaster.hazard.scorer import NotEnoughData, State
from tocsin_testing.failing_devices import CHANNELS, failing_devices

SMALL = {"hidden": 16, "epochs": 12, "dropout": 0.0}


@pytest.fixture(scope="module")
def fitted() -> LstmScorer:
    scorer = build(**SMALL)
    scorer.fit(failing_devices(seed=0))
    return scorer


def sequences(examples: Examples) -> np.ndarray:
    assert examples.sequences is not None
    return examples.sequences.take(np.arange(len(examples)))


def with_sequences(examples: Examples, values: np.ndarray, channels: tuple[str, ...] = CHANNELS) -> Examples:
    return replace(examples, sequences=HeldSequences(channels, values.astype(np.float32)))


def auc(scorer: LstmScorer, examples: Examples) -> float:
    happened, known = examples.label(48 * HOUR)
    return float(roc_auc_score(happened[known], scorer.score(examples)[known, -1]))


def test_it_learns_the_ramp(fitted: LstmScorer) -> None:
    assert auc(fitted, failing_devices(seed=1)) > 0.97


def test_probabilities_are_honest_on_the_whole(fitted: LstmScorer) -> None:
    learned = failing_devices(seed=0)
    mean = fitted.score(learned).mean(axis=0)
    for at, horizon_ms in ((2, 24 * HOUR), (3, 48 * HOUR)):
        assert mean[at] == pytest.approx(learned.label(horizon_ms)[0].mean(), rel=0.2)


def test_probabilities_beat_the_base_rate_on_unseen_devices(fitted: LstmScorer) -> None:
    unseen = failing_devices(devices=90, seed=2)
    happened = unseen.label(48 * HOUR)[0]
    brier = float(np.mean((fitted.score(unseen)[:, -1] - happened) ** 2))
    assert brier < 0.5 * happened.mean() * (1 - happened.mean())


def test_weights_undo_thinning() -> None:
    scorer = build(**SMALL)
    examples = failing_devices(seed=0, weight=10.0)
    scorer.fit(examples)
    true_share = np.average(examples.label(48 * HOUR)[0], weights=examples.weight)
    found = np.average(scorer.score(examples)[:, -1], weights=examples.weight)
    assert found == pytest.approx(true_share, rel=0.5)


def test_the_same_seed_gives_the_same_scores_and_another_does_not(fitted: LstmScorer) -> None:
    unseen = failing_devices(seed=1)
    again, other = build(**SMALL), build(**SMALL, seed=1)
    torch.manual_seed(99)
    again.fit(failing_devices(seed=0))
    other.fit(failing_devices(seed=0))
    assert np.array_equal(again.score(unseen), fitted.score(unseen))
    assert not np.array_equal(other.score(unseen), fitted.score(unseen))


def test_a_row_is_scored_alike_alone_and_in_company_with_gaps(fitted: LstmScorer) -> None:
    unseen = failing_devices(seed=1)
    values = sequences(unseen).copy()
    values[1:40] = np.nan
    gone = with_sequences(unseen, values)
    assert fitted.score(gone)[0] == pytest.approx(fitted.score(unseen)[0], rel=1e-4)
    assert fitted.score(gone)[50:] == pytest.approx(fitted.score(unseen)[50:], rel=1e-4)
    assert fitted.score(unseen.take(np.array([7])))[0] == pytest.approx(fitted.score(unseen)[7], rel=1e-4)
    assert np.isfinite(fitted.score(gone)).all()


def test_channels_go_by_name(fitted: LstmScorer) -> None:
    unseen = failing_devices(seed=1)
    values = sequences(unseen)
    turned = with_sequences(unseen, values[:, :, [2, 0, 1]], ("noise", "heat", "load"))
    assert np.array_equal(fitted.score(turned), fitted.score(unseen))
    more = with_sequences(unseen, np.dstack([values, np.full(values.shape[:2], 1e9)]), (*CHANNELS, "new"))
    assert np.array_equal(fitted.score(more), fitted.score(unseen))
    without = with_sequences(unseen, values[:, :, 1:], CHANNELS[1:])
    hidden = values.copy()
    hidden[:, :, 0] = np.nan
    assert np.array_equal(fitted.score(without), fitted.score(with_sequences(unseen, hidden)))
    assert np.array_equal(
        fitted.score(replace(unseen, sequences=None)), fitted.score(with_sequences(unseen, values * np.nan))
    )


def test_longer_and_shorter_pasts_are_taken_from_the_newest(fitted: LstmScorer) -> None:
    unseen = failing_devices(seed=1)
    values = sequences(unseen)
    longer = with_sequences(unseen, np.concatenate([values * 0 - 1e6, values], axis=1))
    assert np.array_equal(fitted.score(longer), fitted.score(unseen))
    assert auc(fitted, with_sequences(unseen, values[:, 12:])) > 0.9


def test_infinities_count_as_extremes_and_inputs_stay_as_they_are(fitted: LstmScorer) -> None:
    unseen = failing_devices(seed=1)
    values = sequences(unseen).copy()
    values[0, 3, 0], values[1, 3, 0] = np.inf, -np.inf
    wild = with_sequences(unseen, values)
    copy = sequences(wild).copy()
    assert np.isfinite(fitted.score(wild)).all()
    assert np.array_equal(sequences(wild), copy, equal_nan=True)


def test_features_alone_will_do() -> None:
    examples = failing_devices(seed=0)
    close = (examples.event_ms < NEVER) & (examples.event_ms - examples.at_ms < 48 * HOUR)
    features = examples.features.copy()
    features[:, 0] += 3 * close
    scorer = build(**SMALL)
    scorer.fit(replace(examples, features=features, sequences=None))
    found = scorer.score(replace(examples, features=features))
    assert roc_auc_score(close, found[:, -1]) > 0.95


def test_several_networks_are_averaged() -> None:
    scorer = build(**{**SMALL, "epochs": 4}, members=3)
    scorer.fit(failing_devices(seed=0))
    assert len(scorer.progress) == 3
    found = scorer.score(failing_devices(seed=1))
    assert (np.diff(found, axis=1) >= 0).all()
    assert auc(scorer, failing_devices(seed=1)) > 0.9


def test_one_faulty_device_leaves_nothing_to_stop_by() -> None:
    examples = failing_devices(seed=0)
    alone = np.isin(examples.device, np.unique(examples.device[examples.event_ms == NEVER])) | (examples.device == 0)
    scorer = build(**{**SMALL, "epochs": 4}, min_onsets=1)
    scorer.fit(examples.take(alone))
    assert scorer.progress[0].watched == ()
    assert scorer.progress[0].best == 1


def test_saved_and_loaded_it_answers_alike(fitted: LstmScorer) -> None:
    state = fitted.state()
    arrays = load(save({name: np.ascontiguousarray(value) for name, value in state.arrays.items()}))
    other = build(**SMALL)
    other.restore(State(state.settings, arrays))
    unseen = failing_devices(seed=1)
    assert np.array_equal(other.score(unseen), fitted.score(unseen))
    assert other.state().settings == state.settings


def test_a_strange_state_is_refused(fitted: LstmScorer) -> None:
    state = fitted.state()
    with pytest.raises(InputError, match="not a state of lstm"):
        build().restore(State({**state.settings, "family": "hazard"}, state.arrays))
    fewer = {name: value for name, value in state.arrays.items() if not name.endswith("own.bias")}
    with pytest.raises(InputError, match="the weights are not those of this network"):
        build().restore(State(state.settings, fewer))


def test_too_little_past_is_refused_in_words() -> None:
    quiet = failing_devices(seed=0)
    quiet = quiet.take(quiet.event_ms == NEVER)
    with pytest.raises(NotEnoughData, match=r"lstm: 0 onsets in \d+ rows of known label, 3 onsets needed"):
        build().fit(quiet)
    flat = failing_devices(seed=0)
    flat = replace(flat, names=(), features=flat.features[:, :0], sequences=None)
    with pytest.raises(NotEnoughData, match=r"lstm: no feature and no channel of \d+ rows varies"):
        build().fit(flat)
    with pytest.raises(Conflict, match="lstm: not fitted yet"):
        build().score(flat)


def test_a_short_history_gets_no_score(fitted: LstmScorer) -> None:
    scorer = build(**SMALL, min_history_ms=10 * HOUR)
    state = fitted.state()
    scorer.restore(state)
    unseen = failing_devices(seed=1)
    history = unseen.history_ms.copy()
    history[:3] = 9 * HOUR
    found = scorer.score(replace(unseen, history_ms=history))
    assert np.isnan(found[:3]).all()
    assert np.isfinite(found[3:]).all()


@pytest.mark.parametrize(
    ("setting", "words"),
    [({"hidden": 0}, "below 1"), ({"balance": 1.0}, "not a share"), ({"depth": 3}, "no such setting")],
)
def test_settings_are_checked(setting: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        build(**setting)


def test_attributions_add_up_and_name_the_ramp(fitted: LstmScorer) -> None:
    unseen = failing_devices(seed=1)
    worst = np.argsort(-fitted.score(unseen)[:, -1])[:12]
    found = fitted.attributions(unseen, worst)
    whole = found.sequence.sum(axis=(1, 2)) + found.static.sum(axis=1)
    assert np.abs(found.score - found.typical - whole).max() < 0.01 * np.abs(found.score - found.typical).max()
    assert 1 / (1 + np.exp(-found.score)) == pytest.approx(fitted.score(unseen)[worst, -1], rel=1e-3)
    shares = dict(zip(found.channels, found.sequence.sum(axis=1).T, strict=True))
    assert (set(shares), found.features) == (set(CHANNELS), ("age", "repairs"))
    assert max(shares, key=lambda name: float(shares[name].mean())) == "heat"
    assert shares["heat"].mean() > 0.8 * (found.score - found.typical).mean()
    time = found.sequence.sum(axis=2)
    assert time.shape == (12, 24)
    assert time[:, 12:].sum() > time[:, :12].sum()
    assert time.sum() + found.static.sum() == pytest.approx((found.score - found.typical).sum(), rel=0.01)


def test_attributions_of_the_first_horizon_are_another_matter(fitted: LstmScorer) -> None:
    unseen = failing_devices(seed=1)
    rows = np.arange(5)
    first, last = fitted.attributions(unseen, rows, horizon=0), fitted.attributions(unseen, rows)
    assert 1 / (1 + np.exp(-first.score)) == pytest.approx(fitted.score(unseen)[rows, 0], rel=1e-3)
    assert (first.score < last.score).all()

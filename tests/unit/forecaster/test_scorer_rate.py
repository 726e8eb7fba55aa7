"""A stated rate as a scorer: its order is kept, its probability fits what happened, also beyond what was seen."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tocsin.domain.clock import DAY, HOUR
from tocsin.forecaster.features.examples import NEVER, Examples
from tocsin.forecaster.hazard import registry
from tocsin.forecaster.hazard.artefact import ModelCard, load, save
from tocsin.forecaster.hazard.scorer import NotEnoughData

HORIZONS = (24 * HOUR, 48 * HOUR)


def _examples(rows: int = 20_000, seed: int = 0, shift: float = 0.0) -> Examples:
    """Onsets at the stated rate per day."""
    rng = np.random.default_rng(seed)
    log_rate = rng.normal(-4.0 + shift, 1.0, rows)
    at_ms = np.sort(rng.integers(0, 300, rows)) * DAY
    wait_ms = (rng.exponential(1.0, rows) / np.exp(log_rate) * DAY).astype(np.int64) + 1
    device = rng.integers(0, 500, rows).astype(np.int32)
    return Examples(
        devices=tuple(str(one) for one in range(500)),
        device=device,
        groups=("all",),
        group=np.zeros(rows, np.int32),
        at_ms=at_ms,
        names=("log_rate", "noise"),
        features=np.stack([log_rate, rng.normal(size=rows)], axis=1).astype(np.float32),
        seen_ms=at_ms,
        history_ms=at_ms,
        event_ms=np.where(wait_ms < 10 * DAY, at_ms + wait_ms, NEVER),
        until_ms=np.full(rows, 320 * DAY),
        event_class=np.full(rows, ""),
        weight=np.ones(rows),
    )


def test_it_states_what_happens_and_keeps_the_order() -> None:
    train, test = _examples(), _examples(seed=1)
    scorer = registry.build("rate", horizons_ms=HORIZONS)
    scorer.fit(train)
    score = scorer.score(test)
    assert (np.diff(score, axis=1) >= 0).all()
    assert (np.diff(score[np.argsort(test.column("log_rate"), kind="stable"), 1]) >= 0).all()
    label, _ = test.label(HORIZONS[1])
    assert score[:, 1].mean() == pytest.approx(label.mean(), rel=0.1)


def test_a_rate_beyond_what_was_seen_is_believed() -> None:
    scorer = registry.build("rate", horizons_ms=HORIZONS)
    scorer.fit(_examples())
    worse = _examples(seed=2, shift=2.0)
    label, _ = worse.label(HORIZONS[1])
    assert scorer.score(worse)[:, 1].mean() == pytest.approx(label.mean(), rel=0.2)
    high = replace(worse, features=np.tile(np.float32([[5.0, 0.0]]), (len(worse), 1)))
    higher = replace(worse, features=np.tile(np.float32([[6.0, 0.0]]), (len(worse), 1)))
    assert (scorer.score(higher)[:, 0] >= scorer.score(high)[:, 0]).all()


def test_only_the_rate_is_looked_at_and_a_missing_one_is_the_mean() -> None:
    train = _examples()
    scorer = registry.build("rate", horizons_ms=HORIZONS)
    scorer.fit(train)
    other = replace(train, features=np.stack([train.features[:, 0], 9 * train.features[:, 1]], axis=1))
    np.testing.assert_array_equal(scorer.score(train), scorer.score(other))
    without = replace(train, names=("another", "noise"))
    score = scorer.score(without)[:, 1]
    assert np.ptp(score) == 0
    nearest = np.argmin(np.abs(train.column("log_rate") - train.column("log_rate").mean()))
    assert score[0] == pytest.approx(scorer.score(train)[nearest, 1], rel=0.01)


def test_state_and_back() -> None:
    train = _examples()
    scorer = registry.build("rate", horizons_ms=HORIZONS)
    scorer.fit(train)
    again = registry.build("rate", horizons_ms=HORIZONS)
    again.restore(scorer.state())
    np.testing.assert_array_equal(again.score(train), scorer.score(train))


def test_another_name_of_the_rate_and_too_few_onsets() -> None:
    train = _examples()
    named = replace(train, names=("noise", "log_rate"))
    scorer = registry.build("rate", horizons_ms=HORIZONS, rate="noise")
    scorer.fit(named)
    assert np.corrcoef(scorer.score(named)[:, 1], named.column("noise"))[0, 1] > 0.5
    quiet = replace(train, event_ms=np.full(len(train), NEVER))
    with pytest.raises(NotEnoughData, match="0 onsets"):
        scorer.fit(quiet)


def _erring() -> Examples:
    """A rate that is ten times too low where the other feature is high."""
    whole = _examples(60_000, seed=5)
    high = whole.column("noise") > 0.5
    features = whole.features.copy()
    features[high, 0] -= np.log(10.0)
    return replace(whole, features=features)


def test_what_the_rate_misses_is_learned_where_there_are_many_onsets(tmp_path: Path) -> None:
    train = _erring()
    label, _ = train.label(HORIZONS[1])
    plain = registry.build("rate", horizons_ms=HORIZONS)
    mended = registry.build("rate", horizons_ms=HORIZONS, correct=("noise",), folds=2, l2_regularization=10.0)
    for one in (plain, mended):
        one.fit(train)
    high = train.column("noise") > 0.6
    assert plain.score(train)[high, 1].mean() < 0.7 * label[high].mean()
    assert mended.score(train)[high, 1].mean() == pytest.approx(label[high].mean(), rel=0.1)
    card = ModelCard(
        name="rate", version="1", family="rate", horizons_ms=HORIZONS, features=train.names, provenance="made up",
        data_hash="", code_version="", created_ms=0, trained_from_ms=0, trained_to_ms=1, rows=1, onsets=1,
    )  # fmt: skip
    save(tmp_path / "model", mended, card)
    again, _ = load(tmp_path / "model")
    np.testing.assert_array_equal(again.score(train), mended.score(train))


def test_few_onsets_correct_nothing() -> None:
    train = _erring().take(np.arange(2_000))
    plain = registry.build("rate", horizons_ms=HORIZONS)
    careful = registry.build("rate", horizons_ms=HORIZONS, correct=("noise",), correct_from=10_000)
    for one in (plain, careful):
        one.fit(train)
    np.testing.assert_array_equal(careful.score(train), plain.score(train))

"""Trials, training and drift on made-up fleets whose faults announce themselves, or do not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tocsin.domain.clock import DAY, HOUR
from tocsin.domain.errors import Conflict, InputError
from tocsin.domain.finding import Subject, SubjectKind
from tocsin.domain.prediction import Prediction, PredictionStatus
from tocsin.forecaster.features.examples import HORIZONS_MS, NEVER, HeldSequences
from tocsin.forecaster.features.onsets import Onset
from tocsin.forecaster.hazard.scorer import NotEnoughData
from tocsin.forecaster.lifecycle.drift import FeatureReference, Maturing, feature_shift
from tocsin.forecaster.lifecycle.model_registry import ModelRegistry
from tocsin.forecaster.lifecycle.train import data_hash, joined, put_before, train
from tocsin.forecaster.lifecycle.trial import INCUMBENT, RULES, TrialRecipe, hold
from tocsin_testing.announced import START, fleet

QUICK = TrialRecipe(draws=60, folds=2)


def test_a_challenger_that_knows_more_beats_the_rules() -> None:
    trial = hold(fleet(), QUICK)
    assert trial.wins
    assert trial.because[0].startswith("hazard beats rules: average precision +0.")
    section = trial.result.sections[0]
    assert set(section.models) >= {"hazard", RULES, "always healthy"}
    assert section.models["hazard"]["roc_auc"].value > 0.85
    assert len(trial.judged) == trial.scores.size


def test_faults_without_a_sign_win_nothing() -> None:
    trial = hold(fleet(0.0), QUICK)
    assert not trial.wins
    assert "does not beat rules" in trial.because[0]


def test_the_model_in_service_is_beaten_only_by_more_than_noise(tmp_path: Path) -> None:
    registry = ModelRegistry(tmp_path)
    registry.add(train(fleet(first=0), QUICK, "old", START, "a test").model)
    registry.promote("old", 1, "ann")
    serving = registry.load("old")
    later = fleet(4.0, devices=200, seed=9, first=80)
    trial = hold(later, QUICK, serving)
    assert f"hazard does not beat {INCUMBENT}" in trial.because[1], "it is of the same kind"
    assert not trial.wins
    blind = train(fleet(0.0, first=0), QUICK, "blind", START, "a test")
    registry.add(blind.model)
    assert hold(later, QUICK, registry.load("blind")).wins


def test_an_incumbent_that_has_seen_it_all_is_not_compared() -> None:
    examples = fleet()
    old = train(examples, QUICK, "old", START, "a test").model
    trial = hold(examples, QUICK, old)
    assert trial.wins
    assert "onsets after it are too few to compare with it" in trial.because[-1]


def test_training_leaves_a_card_that_says_where_from(tmp_path: Path) -> None:
    examples = fleet()
    made = train(examples, QUICK, "v1", START + DAY, "60 days of a test")
    ModelRegistry(tmp_path).add(made.model)
    card = ModelRegistry(tmp_path).card("v1")
    assert card.data_hash == data_hash(examples)
    assert card.provenance == "60 days of a test"
    assert (card.trained_from_ms, card.trained_to_ms) == (int(examples.at_ms.min()), int(examples.at_ms.max()))
    assert card.rows == len(examples)
    assert card.notes[:-1] == made.trial.because
    assert card.notes[-1].startswith("classes of faults (memory 100%)")
    assert len(card.report_digest) == 64
    again = train(examples, QUICK, "v1", START + DAY, "60 days of a test")
    assert again.model.card == made.model.card, "the same data, seed and program, the same card"
    loaded = ModelRegistry(tmp_path).load("v1")
    np.testing.assert_array_equal(loaded.scorer.score(examples), made.model.scorer.score(examples))
    assert loaded.reference is not None
    assert loaded.cases is not None
    assert loaded.kinds is not None
    other = replace(examples, features=examples.features + np.float32(1e-3))
    assert data_hash(other) != card.data_hash


def test_what_is_learned_beside_comes_before_at_the_rate_of_the_rest() -> None:
    examples = fleet()
    horizon_ms = HORIZONS_MS[-1]
    struck = examples.label(horizon_ms)[0]
    kept = examples.take(np.sort(np.concatenate([np.flatnonzero(struck), np.flatnonzero(~struck)[:50]])))
    beside = put_before(kept, examples, horizon_ms)
    assert beside.at_ms.max() + horizon_ms < examples.at_ms.min()
    onset, known = beside.label(horizon_ms)
    np.testing.assert_array_equal(onset, kept.label(horizon_ms)[0])
    theirs, theirs_known = examples.label(horizon_ms)
    rates = [float(w[o].sum() / w[k].sum()) for w, o, k in (
        (beside.weight, onset, known), (examples.weight, theirs, theirs_known),
    )]  # fmt: skip
    assert rates[0] == pytest.approx(rates[1])
    alone, both = (train(examples, QUICK, "v1", START + DAY, "a test", also=one) for one in (None, beside))
    assert both.trial.because == alone.trial.because
    assert both.model.card.rows == len(examples) + len(kept)
    assert both.model.card.data_hash != alone.model.card.data_hash


def test_too_few_onsets_are_refused_in_words() -> None:
    examples = fleet()
    none = replace(examples, event_ms=np.full(len(examples), NEVER), event_class=np.full(len(examples), ""))
    with pytest.raises(NotEnoughData, match="has enough onsets"):
        hold(none, QUICK)


def test_fleets_are_joined_without_mixing_their_devices() -> None:
    one, other = fleet(devices=16, days=10), fleet(devices=16, days=10)
    both = joined([one, other])
    assert len(both) == len(one) + len(other)
    assert len(both.devices) == 32
    assert (np.diff(both.at_ms) >= 0).all()
    assert both.label(2 * DAY)[0].sum() == 2 * one.label(2 * DAY)[0].sum()
    assert both.sequences is None
    shown = [
        replace(part, sequences=HeldSequences(("a",), np.full((len(part), 4, 1), n, np.float32)))
        for n, part in enumerate([one, other])
    ]
    whole = joined(shown)
    assert whole.sequences is not None
    first = np.array([whole.devices[d].startswith("1:") for d in whole.device])
    np.testing.assert_array_equal(whole.sequences.take(np.arange(len(whole)))[:, 0, 0], first.astype(np.float32))
    with pytest.raises(InputError, match="not those of the other parts"):
        joined([one, replace(other, names=("a", "b", "c"))])


class TestDrift:
    def test_nothing_has_shifted_on_the_training_rows(self) -> None:
        examples = fleet()
        assert feature_shift(FeatureReference.of(examples), examples).share == 0.0

    def test_a_feature_that_moved_is_named(self) -> None:
        examples = fleet()
        moved = examples.features.copy()
        moved[:, 1] += 3.0
        shift = feature_shift(FeatureReference.of(examples), replace(examples, features=moved))
        assert shift.worst[0][0] == "pcie_replay.24h"
        assert shift.share == pytest.approx(1 / 3)
        assert shift.alarm
        assert not feature_shift(
            FeatureReference.of(examples), replace(examples, features=moved).take(np.arange(20))
        ).alarm

    def test_a_feature_that_went_missing_has_shifted(self) -> None:
        examples = fleet()
        gone = examples.features.copy()
        gone[:, 2] = np.nan
        assert (
            feature_shift(FeatureReference.of(examples), replace(examples, features=gone)).worst[0][0]
            == "nvlink_crc.24h"
        )

    def test_gpus_with_a_shorter_past_than_any_in_training_are_not_judged(self, tmp_path: Path) -> None:
        examples = fleet()
        FeatureReference.of(examples).save(tmp_path / "r")
        young = replace(examples, history_ms=examples.history_ms - 1)
        assert feature_shift(FeatureReference.load(tmp_path / "r"), young).gpus < len(examples)
        assert feature_shift(FeatureReference.load(tmp_path / "r"), examples).gpus == len(examples)

    def test_a_reference_comes_back_from_its_file(self, tmp_path: Path) -> None:
        made = FeatureReference.of(fleet())
        made.save(tmp_path / "r")
        back = FeatureReference.load(tmp_path / "r")
        assert back.names == made.names
        np.testing.assert_array_equal(back.share, made.share)
        (tmp_path / "r").write_bytes(b"torn")
        with pytest.raises(InputError, match="not a reference"):
            FeatureReference.load(tmp_path / "r")

    def test_what_came_due_is_compared_with_what_was_said(self) -> None:
        said = [said_of(f"G{n}", START + hour * HOUR, 0.25) for n in range(8) for hour in (0, 1, 2, 49)]
        onsets = [Onset("G0", START + 30 * HOUR), Onset("G1", START + 48 * HOUR), Onset("G2", START - 1)]
        maturing = Maturing()
        maturing.take(said[::-1])
        maturing.take(said_of("G0", START + hour * HOUR, 0.25) for hour in (3, 51))
        found = maturing.matured(onsets, START + 50 * HOUR)
        assert (found.predictions, found.expected, found.happened) == (8, 2.0, 2), "one per GPU, and none undecided"
        assert found.error == 0.0
        assert Maturing().matured(onsets, START).error is None
        maturing.forget(START + HOUR)
        assert maturing.matured(onsets, START + 50 * HOUR).predictions == 0, "what is forgotten does not count"


def said_of(name: str, at_ms: int, chance: float) -> Prediction:
    return Prediction(
        Subject(SubjectKind.GPU, name), "hardware_fault", at_ms, 48 * HOUR, PredictionStatus.UNLIKELY, "m", "1", "s",
        probability=chance,
    )  # fmt: skip


def test_promotion_twice_is_a_conflict(tmp_path: Path) -> None:
    registry = ModelRegistry(tmp_path)
    registry.add(train(fleet(), QUICK, "v", START, "a test").model)
    registry.promote("v", 1, "ann")
    with pytest.raises(Conflict):
        registry.promote("v", 2, "ann")

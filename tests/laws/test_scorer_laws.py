"""Laws that every family of scorers keeps."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from tocsin.domain.clock import DAY, HOUR
from tocsin.domain.errors import Conflict, InputError
from tocsin.forecaster.features.examples import NEVER, Examples, HeldSequences
from tocsin.forecaster.hazard.artefact import ModelCard, load, save
from tocsin.forecaster.hazard.physics import GROUPS, falls, is_rising
from tocsin.forecaster.hazard.registry import build, names
from tocsin.forecaster.hazard.scorer import NotEnoughData, Scorer, State, short_history
from tocsin.forecaster.hazard.scorer_calibrated import quiet
from tocsin.forecaster.lifecycle.drift import BINS, FeatureReference
from tocsin.forecaster.lifecycle.gate import judge
from tocsin.forecaster.lifecycle.model_registry import MODEL, REFERENCE, shipped
from tocsin_testing.builders import T0
from tocsin_testing.scored import SMALL, fleet, frozen, healthy

HORIZONS = (1 * HOUR, 6 * HOUR, 24 * HOUR, 48 * HOUR)
PAST = frozen(fleet(seed=1))
LATER = frozen(fleet(devices=60, seed=2))
UNTAUGHT = ("isolation", "reconstruction", "rules")
"""Families that need no onset."""

FITTED: dict[str, Scorer] = {}


def made(name: str, **settings: object) -> Scorer:
    return build(name, **{**SMALL.get(name, {}), **settings})


@pytest.fixture(params=names())
def family(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def scorer(family: str) -> Scorer:
    """One fitted to `PAST`; only read."""
    if family not in FITTED:
        FITTED[family] = made(family)
        FITTED[family].fit(PAST)
    return FITTED[family]


def with_feature(examples: Examples, name: str, values: np.ndarray) -> Examples:
    """`examples` with one more feature, the first of all."""
    features = np.column_stack([values.astype(np.float32), examples.features])
    return replace(examples, names=(name, *examples.names), features=features)


def without_feature(examples: Examples, name: str) -> Examples:
    keep = [i for i, one in enumerate(examples.names) if one != name]
    chosen = tuple(examples.names[i] for i in keep)
    return replace(examples, names=chosen, features=examples.features[:, keep])


def changed(examples: Examples, name: str, value: float) -> Examples:
    features = examples.features.copy()
    features[:, examples.names.index(name)] = value
    return replace(examples, features=features)


def test_all_families_are_found() -> None:
    wanted = {"rules", "hazard", "boosting", "isolation", "reconstruction", "ensemble", "calibrated", "lstm"}
    assert wanted <= set(names())


def test_name_and_horizons_are_as_asked_for(family: str) -> None:
    one = made(family, horizons_ms=[HOUR, 7 * HOUR], min_history_ms=5 * HOUR)
    assert (one.name, one.horizons_ms, one.min_history_ms) == (family, (HOUR, 7 * HOUR), 5 * HOUR)


def test_a_setting_that_is_not_there_is_refused(family: str) -> None:
    with pytest.raises(InputError, match="no such setting"):
        build(family, wings=2)


def test_same_examples_and_seed_give_the_same_scores(family: str, scorer: Scorer) -> None:
    again = made(family)
    again.fit(PAST)
    assert np.array_equal(again.score(LATER), scorer.score(LATER), equal_nan=True)


def test_a_second_fit_forgets_the_first(family: str, scorer: Scorer) -> None:
    again = made(family)
    again.fit(LATER)
    again.fit(PAST)
    assert np.array_equal(again.score(LATER), scorer.score(LATER), equal_nan=True)


def test_inputs_stay_as_they_were(scorer: Scorer) -> None:
    given = fleet(devices=20, seed=3)
    scorer.score(given)
    same = fleet(devices=20, seed=3)
    for one in fields(Examples):
        if isinstance(getattr(same, one.name), np.ndarray):
            numbers = getattr(same, one.name).dtype.kind == "f"
            assert np.array_equal(getattr(given, one.name), getattr(same, one.name), equal_nan=numbers), one.name


def test_scores_are_probabilities_that_never_fall_along_the_horizons(scorer: Scorer) -> None:
    score = scorer.score(LATER)
    assert score.shape == (len(LATER), len(HORIZONS))
    assert score.dtype == np.float64
    assert np.isfinite(score).all()
    assert (score >= 0).all()
    assert (score <= 1).all()
    assert (np.diff(score, axis=1) >= 0).all()


def test_scores_tell_failing_devices_from_others(scorer: Scorer) -> None:
    onset, known = LATER.label(HORIZONS[-1])
    score = scorer.score(LATER)[:, -1]
    failing, others = score[known & onset], score[known & ~onset]
    assert (failing[:, None] > others[None, :]).mean() + (failing[:, None] == others[None, :]).mean() / 2 > 0.6


def test_the_mean_probability_is_near_the_rate(family: str, scorer: Scorer) -> None:
    early = LATER.at_ms + HORIZONS[-1] <= LATER.until_ms.max()
    onset, known = LATER.label(HORIZONS[-1])
    rate = onset[known & early].mean()
    assert scorer.score(LATER)[known & early, -1].mean() == pytest.approx(rate, rel=0.5)


def test_a_row_scores_alike_alone_and_in_company(scorer: Scorer) -> None:
    rows = np.array([0, 700, 1500, 2000])
    together = scorer.score(LATER)[rows]
    alone = np.concatenate([scorer.score(LATER.take(np.array([row]))) for row in rows])
    assert alone == pytest.approx(together, rel=1e-4, abs=1e-9)


def test_no_rows_give_no_scores(scorer: Scorer) -> None:
    assert scorer.score(LATER.take(np.zeros(0, np.int64))).shape == (0, len(HORIZONS))


def test_gaps_are_normal(scorer: Scorer) -> None:
    gaps = LATER.features.copy()
    gaps[np.random.default_rng(0).random(gaps.shape) < 0.5] = np.nan
    gaps[::7] = np.nan
    assert np.isfinite(scorer.score(replace(LATER, features=gaps))).all()


def test_a_missing_feature_counts_as_missing_values(scorer: Scorer) -> None:
    gone = scorer.score(without_feature(LATER, "heat"))
    assert np.array_equal(gone, scorer.score(changed(LATER, "heat", np.nan)))


def test_all_features_may_be_gone(scorer: Scorer) -> None:
    bare = replace(LATER, names=(), features=np.zeros((len(LATER), 0), np.float32))
    assert np.isfinite(scorer.score(bare)).all()


def test_a_new_feature_and_another_order_change_nothing(scorer: Scorer) -> None:
    wild = np.random.default_rng(1).normal(0, 1e6, len(LATER))
    more = with_feature(LATER, "new", wild)
    turned = replace(more, names=more.names[::-1], features=more.features[:, ::-1])
    assert np.array_equal(scorer.score(turned), scorer.score(LATER))


@pytest.mark.parametrize("value", [np.inf, -np.inf, 3e38, -3e38])
def test_wild_values_give_scores_all_the_same(scorer: Scorer, value: float) -> None:
    score = scorer.score(changed(LATER, "errors", value))
    assert np.isfinite(score).all()
    assert (np.diff(score, axis=1) >= 0).all()


def test_rows_with_a_short_past_get_no_score(family: str) -> None:
    strict = made(family, min_history_ms=30 * HOUR)
    strict.fit(PAST)
    score = strict.score(LATER)
    short = LATER.history_ms < 30 * HOUR
    assert short.any()
    assert np.isnan(score[short]).all()
    assert np.isfinite(score[~short]).all()
    assert (
        str(short_history(strict.name, 6 * HOUR, strict.min_history_ms)) == f"{family}: 6.0 h of history, 30.0 h needed"
    )


def test_a_fit_on_nothing_is_refused(family: str) -> None:
    nothing = PAST.take(np.zeros(0, np.int64))
    if family == "rules":
        made(family).fit(nothing)
        return
    with pytest.raises(NotEnoughData):
        made(family).fit(nothing)


def test_a_fit_without_onsets_is_refused_by_who_needs_them(family: str) -> None:
    none = replace(PAST, event_ms=np.full(len(PAST), NEVER), until_ms=np.full(len(PAST), PAST.until_ms.max()))
    one = made(family)
    if family in UNTAUGHT:
        one.fit(none)
        score = one.score(LATER)
        assert np.isfinite(score).all()
        assert score[:, -1].mean() < 0.01
    else:
        with pytest.raises(NotEnoughData):
            one.fit(none)


def test_nothing_is_scored_before_a_fit(family: str) -> None:
    if family == "rules":
        assert np.isfinite(made(family).score(LATER)).all()
        return
    with pytest.raises(Conflict, match="not fitted"):
        made(family).score(LATER)


def test_a_constant_healthy_past_gives_no_alarm(scorer: Scorer) -> None:
    """The alarm is the conformal one at a hundredth of quiet rows, on devices that the scorer never saw."""
    onset, known = LATER.label(HORIZONS[-1])
    calm = known & ~onset
    for k in range(len(HORIZONS)):
        limit = quiet(scorer.score(LATER)[calm, k], LATER.weight[calm]).threshold(0.01)
        assert (scorer.score(healthy())[:, k] <= limit).all()


def test_constant_features_can_be_learned_from(family: str) -> None:
    flat = replace(PAST, features=np.ones_like(PAST.features), sequences=None)
    one = made(family)
    if family == "lstm":
        with pytest.raises(NotEnoughData, match="varies"):
            one.fit(flat)
        return
    one.fit(flat)
    score = one.score(flat)
    assert np.isfinite(score).all()
    assert np.ptp(score, axis=0).max() < 1e-9


def test_a_state_of_another_family_or_version_is_refused(family: str, scorer: Scorer) -> None:
    state = scorer.state()
    for word in ("family", "version"):
        with pytest.raises(InputError, match="not a state of"):
            made(family).restore(State({**state.settings, word: "other"}, state.arrays, state.estimators))


def test_saved_and_loaded_it_scores_alike(family: str, scorer: Scorer, tmp_path: Path) -> None:
    card = ModelCard(
        name="test", version="1", family=family, horizons_ms=HORIZONS, features=PAST.names, provenance="made up",
        data_hash="0" * 64, code_version="1", created_ms=T0, trained_from_ms=T0, trained_to_ms=T0, rows=len(PAST),
        onsets=1,
    )  # fmt: skip
    save(tmp_path / "model", scorer, card)
    again, same = load(tmp_path / "model")
    assert same == card
    assert type(again) is type(scorer)
    assert np.array_equal(again.score(LATER), scorer.score(LATER))
    save(tmp_path / "copy", again, card)
    files = sorted(path.name for path in (tmp_path / "model").iterdir())
    assert files == sorted(path.name for path in (tmp_path / "copy").iterdir())
    assert not any(path.suffix in {".pkl", ".pickle", ".joblib", ".pt"} for path in (tmp_path / "model").iterdir())


def test_sequences_may_be_gone(scorer: Scorer) -> None:
    assert np.isfinite(scorer.score(replace(LATER, sequences=None))).all()
    blank = HeldSequences(("other",), np.full((len(LATER), 4, 1), np.nan, np.float32))
    assert np.isfinite(scorer.score(replace(LATER, sequences=blank))).all()


HARMS = ("temperature.vs_host", "thermal_slowdown.24h", "ecc_corrected.24h", "ecc_uncorrected.24h",
         "remap_correctable.7d", "pcie_replay.surge", "nvlink_recovery.24h", "power_brake.24h")  # fmt: skip
"""A feature of each kind of harm."""
HEARD = ("hazard", "boosting", "rules", "rate", "ensemble", "calibrated")
"""Families of which more harm never lowers the hazard."""


def perverse(examples: Examples, seed: int) -> Examples:
    """`examples` with features of harm that, by ill luck, were higher on the devices that did not fail."""
    rng = np.random.default_rng(seed)
    onset, known = examples.label(HORIZONS[-1])
    for name in HARMS:
        values = rng.exponential(1.0, len(examples)) + 4.0 * (known & ~onset)
        examples = with_feature(examples, name, values)
    return examples


def test_more_of_what_can_only_do_harm_never_lowers_the_hazard(family: str) -> None:
    learned, asked = perverse(PAST, 5), perverse(LATER, 6)
    small = {name: SMALL[name] for name in ("hazard", "boosting")}
    # The ensemble as it is by default: what its members promise, it promises.
    one = build(family, of=small) if family == "ensemble" else made(family)
    one.fit(learned)
    found = falls(one, asked)
    # A family that cannot promise it is stopped at the gate, whatever its scores are.
    record = judge(asked, one.score(asked)[:, -1], HORIZONS[-1], data="made up", simulated=True, scorer=one, draws=20)
    assert (family in HEARD) <= (found == ())
    assert not (found and record.passed)
    assert all(any(group in line for line in record.because) for group in found)


def test_there_is_a_feature_of_each_kind_of_harm() -> None:
    kinds = [group for group, patterns in GROUPS.items() if any(is_rising(name, patterns) for name in HARMS)]
    assert kinds == list(GROUPS)


def test_no_harm_lowers_the_hazard_of_the_shipped_model() -> None:
    place = shipped()
    assert place is not None
    scorer, card = load(place / MODEL)
    assert all(any(is_rising(name, patterns) for name in card.features) for patterns in GROUPS.values())
    rows = as_in_training(FeatureReference.load(place / REFERENCE), 800)
    assert falls(scorer, rows) == ()
    # The same model upside down: the rows are such that a hazard that falls is seen to.
    state = scorer.state()
    turned = {name: -array if name.endswith("coefficients") else array for name, array in state.arrays.items()}
    scorer.restore(State(state.settings, turned, state.estimators))
    assert {"heat above peers", "corrected errors", "replays"} <= set(falls(scorer, rows))


def as_in_training(reference: FeatureReference, rows: int) -> Examples:
    """Rows whose features are spread, and as often missing, as where the model learned, with a longer upper tail."""
    rng = np.random.default_rng(8)
    chance = rng.random((rows, len(reference.names)))
    levels = np.linspace(0, 1, BINS + 1)[1:-1]
    columns = zip(chance.T, reference.edges, strict=True)
    values = np.column_stack([np.interp(drawn, levels, edges) for drawn, edges in columns])
    values += (chance > levels[-1]) * rng.exponential(1.0 + np.abs(values))
    values[rng.random(values.shape) < reference.share[:, -1]] = np.nan
    like = LATER.take(np.flatnonzero(LATER.history_ms > DAY)[:rows])
    assert len(like) == rows
    return replace(like, names=reference.names, features=values.astype(np.float32), sequences=None)


def test_free_fits_would_have_learned_that_heat_is_healthy() -> None:
    learned, asked = perverse(PAST, 5), perverse(LATER, 6)
    for family in ("hazard", "boosting"):
        free = made(family, rising=())
        free.fit(learned)
        assert "heat above peers" in falls(free, asked), family

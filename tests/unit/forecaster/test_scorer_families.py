"""What each family of scorers does beyond the laws."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest

from tocsin.domain.clock import DAY, HOUR
from tocsin.domain.errors import Conflict, InputError, Unavailable
from tocsin.forecaster.features.examples import Examples
from tocsin.forecaster.features.plan import FeaturePlan
from tocsin.forecaster.features.table import names_of
from tocsin.forecaster.hazard import registry
from tocsin.forecaster.hazard.calibration import log_odds
from tocsin.forecaster.hazard.scorer import NotEnoughData
from tocsin.forecaster.hazard.scorer_boosting import BoostingScorer
from tocsin.forecaster.hazard.scorer_boosting import build as boosting
from tocsin.forecaster.hazard.scorer_calibrated import Calibrated, fit_with_calibration
from tocsin.forecaster.hazard.scorer_ensemble import Ensemble, EnsembleSettings
from tocsin.forecaster.hazard.scorer_ensemble import build as ensemble
from tocsin.forecaster.hazard.scorer_hazard import build as hazard
from tocsin.forecaster.hazard.scorer_isolation import IsolationScorer
from tocsin.forecaster.hazard.scorer_isolation import build as forest
from tocsin.forecaster.hazard.scorer_reconstruction import build as reconstruction
from tocsin.forecaster.hazard.scorer_rules import RulesScorer, shipped_terms
from tocsin.forecaster.hazard.scorer_rules import build as rules
from tocsin_testing.scored import SMALL, fleet, healthy

PAST = fleet(seed=1)
LATER = fleet(devices=80, seed=2)
STIFF = {"strengths": [0.01]}
MEMBERS = {"hazard": STIFF, "isolation": {"trees": 60}}


def quick_boosting(**settings: object) -> BoostingScorer:
    return boosting(**{**SMALL["boosting"], **settings})


def isolation() -> IsolationScorer:
    return forest(trees=60)


def single(**values: float) -> Examples:
    """One healthy row with other values."""
    row = healthy().take(np.array([5]))
    features = row.features.copy()
    for name, value in values.items():
        features[0, row.names.index(name)] = value
    return replace(row, features=features)


def test_an_unknown_family_is_refused() -> None:
    with pytest.raises(InputError, match=r"no scorer has this name; .*known are boosting, calibrated"):
        registry.build("oracle")


def test_a_family_whose_library_is_missing_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    for name in [one for one in sys.modules if one.startswith("tocsin.forecaster.deep.")]:
        monkeypatch.delitem(sys.modules, name)
    assert "lstm" in registry.names()
    with pytest.raises(Unavailable, match=r"scorer lstm needs torch, which is not installed: .* with the extra deep"):
        registry.build("lstm")


@pytest.mark.parametrize("build", [hazard, quick_boosting])
def test_weights_of_a_thinned_history_give_the_probabilities_of_the_whole(build: type) -> None:
    """Every tenth quiet row with ten times the weight: a rate near that of the whole, not ten times higher."""
    onset, _ = PAST.label(2 * DAY)
    kept = onset | (np.arange(len(PAST)) % 10 == 0)
    thinned = replace(PAST, weight=np.where(onset, 1.0, 10.0)).take(kept)
    whole, part = build(horizons_ms=[2 * DAY]), build(horizons_ms=[2 * DAY])
    whole.fit(PAST)
    part.fit(thinned)
    assert part.score(LATER).mean() == pytest.approx(whole.score(LATER).mean(), rel=0.25)


def test_too_few_onsets_are_refused_with_their_number() -> None:
    with pytest.raises(NotEnoughData, match=r"^hazard: 0 onsets in \d+ rows of known label, 3 onsets needed$"):
        hazard().fit(PAST.take(PAST.device == PAST.device[np.argmax(PAST.until_ms)]))
    with pytest.raises(NotEnoughData, match="500 onsets needed"):
        hazard(min_onsets=500).fit(PAST)


def test_the_hazard_says_what_each_feature_adds() -> None:
    scorer = hazard(**STIFF)
    scorer.fit(PAST)
    hot = single(heat=75.0, errors=30.0)
    parts = dict(zip(scorer.features, scorer.attributions(hot)[0], strict=True))
    assert min(parts["heat"], parts["errors"]) > max(abs(parts[name]) for name in ("age", "load", "noise", "constant"))
    rise = scorer.risk(hot)[0] - scorer.risk(single())[0]
    usual = scorer.attributions(single())[0]
    assert sum(parts.values()) - usual.sum() == pytest.approx(rise)


@pytest.mark.parametrize("settings", [{"strengths": []}, {"strengths": [0.0]}, {"balance": 1.0}])
def test_settings_of_the_hazard_are_checked(settings: dict[str, object]) -> None:
    with pytest.raises(InputError):
        hazard(**settings)


def test_boosting_keeps_a_direction_that_is_asked_for() -> None:
    scorer = quick_boosting(rising=["heat"], falling=["age"])
    scorer.fit(PAST)
    for name, sign, low, high in (("heat", 1, 40, 90), ("age", -1, 0, 1000)):
        risks = [scorer.risk(single(**{name: value}))[0] for value in np.linspace(low, high, 40)]
        assert (sign * np.diff(risks) >= 0).all()
        assert np.ptp(risks) > 0 or name == "age"


def test_boosting_learns_from_a_column_that_a_whole_fold_lacks() -> None:
    features = PAST.features.copy()
    features[PAST.device != 7, 4] = np.nan
    scorer = quick_boosting()
    scorer.fit(replace(PAST, features=features))
    assert np.isfinite(scorer.score(LATER)).all()


def test_more_bags_are_more_models() -> None:
    scorer = quick_boosting(bags=2, max_iter=3)
    scorer.fit(PAST)
    assert sum(name.startswith("tree") for name in scorer.state().estimators) == 4
    with pytest.raises(InputError, match="not a share below 1"):
        boosting(balance=1)


@pytest.mark.parametrize("build", [isolation, reconstruction])
def test_the_unseen_needs_no_label_and_finds_what_is_unlike(build: type) -> None:
    calm = fleet(seed=3, failing=0.0)
    scorer = build()
    scorer.fit(calm)
    odd, usual = single(heat=90.0, errors=50.0), single()
    assert scorer.strangeness(odd)[0] > 0.99
    assert scorer.strangeness(usual)[0] < 0.9
    rate = scorer.score(calm)[:, -1].mean()
    assert rate == pytest.approx(2 * 0.0004, rel=0.3), "the prior of two days is kept on average"
    assert 5 * rate < scorer.score(odd)[0, -1] < 1


def test_too_few_quiet_rows_are_refused() -> None:
    with pytest.raises(NotEnoughData, match=r"^isolation: 0 rows without an onset, 20 needed$"):
        isolation().fit(PAST.take(np.zeros(0, np.int64)))


def test_reconstruction_tells_a_fault_of_one_from_a_change_of_all() -> None:
    """Eight GPUs of a host: when all get hotter together each looks less strange than the one that does so alone."""
    scorer = reconstruction()
    scorer.fit(fleet(seed=3, failing=0.0))
    eight = healthy().take(np.zeros(8, np.int64))
    one, every = eight.features.copy(), eight.features.copy()
    one[3, 0] += 15
    every[:, 0] += 15
    alone = scorer.risk(replace(eight, features=one))
    together = scorer.risk(replace(eight, features=every))
    assert alone[3] > together[3] > alone[0]


def test_shipped_terms_name_features_that_are_built() -> None:
    there = set(names_of(FeaturePlan()))
    assert [pattern for pattern, *_ in shipped_terms() if pattern not in there] == []
    assert len({pattern for pattern, *_ in shipped_terms()}) == len(shipped_terms())


def test_rules_without_a_fit_use_the_prior_and_the_weights() -> None:
    scorer = rules()
    names = ("memory_failure.1h", "frozen_now", "event.bus.hours")
    rows = healthy().take(np.arange(4))
    signs = np.array([[0, 0, np.nan], [1, 0, np.nan], [0, 1, 8.0], [1, 1, 0.5]], np.float32)
    rows = replace(rows, names=names, features=signs)
    score = scorer.score(rows)[:, -1]
    assert score[0] == pytest.approx(2 * 0.0004, rel=0.01)
    assert score[0] < score[2] < score[1] < score[3]
    held = scorer.holding(rows)[3]
    assert {term[0] for term, holds in zip(shipped_terms(), held, strict=True) if holds} == set(names)


def test_rules_learn_the_rate_of_each_number_of_points() -> None:
    scorer = rules(**SMALL["rules"])
    scorer.fit(PAST)
    calm, hot, both = (scorer.score(one)[0, -1] for one in (single(), single(heat=75), single(heat=75, errors=9)))
    assert calm < hot <= both
    with pytest.raises(InputError, match="limit, weight"):
        RulesScorer(replace(scorer.settings, terms=(("heat", ">", 1.0, 1.0),)))


def test_calibration_uses_a_later_slice_of_devices_of_its_own() -> None:
    scorer = fit_with_calibration(hazard(**STIFF), PAST, method="platt", disjoint=True, seed=1)
    assert isinstance(scorer, Calibrated)
    assert np.isfinite(scorer.score(LATER)).all()
    state = scorer.state()
    again = registry.build("calibrated", **state.settings["build"])  # type: ignore[arg-type]
    again.restore(state)
    assert np.array_equal(again.score(LATER), scorer.score(LATER))


def test_calibration_mends_a_scorer_that_is_too_sure() -> None:
    scorer = fit_with_calibration(rules(**SMALL["rules"], prior_per_day=0.4, min_onsets=10**6), PAST)
    raw, mended = scorer.inner.score(LATER)[:, -1], scorer.score(LATER)[:, -1]
    onset, known = LATER.label(2 * DAY)
    rows = known & (LATER.at_ms + 2 * DAY <= LATER.until_ms.max())
    rate = onset[rows].mean()
    assert abs(mended[rows].mean() - rate) < 0.25 * abs(raw[rows].mean() - rate)


def test_the_conformal_threshold_of_a_calibrated_scorer_holds_on_new_devices() -> None:
    scorer = fit_with_calibration(hazard(**STIFF), PAST, disjoint=True, share=0.5)
    calm = fleet(devices=100, seed=9, failing=0.0)
    limit = scorer.quiet_scores(2 * DAY).threshold(0.05)
    assert (scorer.score(calm)[:, -1] > limit).mean() <= 0.075
    with pytest.raises(InputError, match="not a horizon"):
        scorer.quiet_scores(HOUR * 3)
    with pytest.raises(Conflict):
        Calibrated(hazard(), scorer.settings).quiet_scores(2 * DAY)


@pytest.mark.parametrize("settings", [{"method": "magic"}, {"share": 1.0}, {"scorer": "oracle"}])
def test_settings_of_a_calibrated_scorer_are_checked(settings: dict[str, object]) -> None:
    with pytest.raises(InputError):
        registry.build("calibrated", **settings)


def test_after_a_refit_the_inner_scorer_knows_everything() -> None:
    once = fit_with_calibration(hazard(**STIFF), PAST)
    twice = fit_with_calibration(hazard(**STIFF), PAST, refit=True)
    everything = hazard(**STIFF)
    everything.fit(PAST)
    assert np.array_equal(twice.inner.score(LATER), everything.score(LATER))
    assert not np.array_equal(once.inner.score(LATER), everything.score(LATER))


def test_an_ensemble_of_fitted_members_takes_ranks_from_new_devices() -> None:
    members = [hazard(**STIFF), reconstruction()]
    for member in members:
        member.fit(PAST)
    made = Ensemble(members, EnsembleSettings(members=("hazard", "reconstruction"), weights=(3.0, 1.0)))
    made.combine(fleet(devices=80, seed=5))
    onset, known = LATER.label(2 * DAY)
    score = made.score(LATER)[:, -1]
    assert score[known & onset].mean() > 3 * score[known & ~onset].mean()


def test_a_mean_of_log_odds_is_that_of_the_members() -> None:
    members = [hazard(**STIFF), reconstruction()]
    for member in members:
        member.fit(PAST)
    settings = EnsembleSettings(members=("hazard", "reconstruction"), weights=(3.0, 1.0), mean="odds")
    made = Ensemble(members, settings)
    made.combine(fleet(devices=80, seed=5))
    first, second = (log_odds(member.score(LATER)[:, -1]) for member in members)
    expected = (3 * first + second) / 4
    there = np.isfinite(expected)
    slope, intercept = np.polyfit(expected[there], log_odds(made.score(LATER)[there, -1]), 1)
    assert slope > 0
    np.testing.assert_allclose(log_odds(made.score(LATER)[there, -1]), intercept + slope * expected[there], atol=1e-6)
    again = ensemble(members=["hazard", "reconstruction"], of={"hazard": STIFF}, weights=[3.0, 1.0], mean="odds")
    again.restore(made.state())
    np.testing.assert_array_equal(again.score(LATER), made.score(LATER))


def test_a_member_that_refuses_a_row_is_left_out_of_it() -> None:
    made = ensemble(members=["hazard", "rules"], of={"hazard": STIFF, "rules": {"min_history_ms": 60 * HOUR}})
    made.fit(PAST)
    score = made.score(LATER)
    assert np.isnan(made.members[1].score(LATER)).any()
    assert np.isfinite(score).all()


@pytest.mark.parametrize(
    "settings", [{"members": []}, {"members": ["hazard", "hazard"]}, {"weights": [1.0]}, {"mean": "odd"}]
)
def test_settings_of_an_ensemble_are_checked(settings: dict[str, object]) -> None:
    with pytest.raises(InputError):
        ensemble(**settings)


def test_members_with_other_horizons_are_refused() -> None:
    with pytest.raises(InputError, match="hazard has others"):
        ensemble(members=["hazard"], of={"hazard": {"horizons_ms": [HOUR]}})
    with pytest.raises(InputError, match="hazard has others"):
        registry.build("calibrated", of={"horizons_ms": [HOUR]})

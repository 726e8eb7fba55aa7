"""What each kind of statement is worth by its own record: calibrated, muted, and heard again."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from tocsin.domain.alert_level import AlertLevel
from tocsin.domain.clock import DAY, HOUR
from tocsin.domain.finding import Subject, SubjectKind
from tocsin.domain.prediction import HARDWARE_FAULT, Prediction, PredictionStatus
from tocsin.forecaster.live.recalibration import EDGES, KindPrior, Recalibration, crossed, shipped_priors
from tocsin.forecaster.trend.statements import BEYOND, BEYOND_ZH, crossing
from tocsin_testing.builders import T0

KIND = "time_to_threshold:gpu_memory_used_ratio by threshold"


def said(number: int, at_ms: int = T0, probability: float | None = 0.75, **more: object) -> Prediction:
    fields: dict[str, object] = {
        "subject": Subject(SubjectKind.GPU, f"GPU-{number}", f"node-{number}"),
        "target": "time_to_threshold:gpu_memory_used_ratio",
        "at_ms": at_ms,
        "horizon_ms": 2 * HOUR,
        "status": PredictionStatus.CROSSING,
        "model": "threshold",
        "model_version": "1",
        "sentence": "",
        "metric": "gpu_memory_used_ratio",
        "threshold": 0.9,
        "value": 0.6,
        "probability": probability,
        "eta_ms": at_ms + HOUR,
        **more,
    }
    return Prediction(**fields)  # type: ignore[arg-type]


def told(kinds: Recalibration, count: int, right: int, at_ms: int = T0) -> None:
    """`count` claims, of which the first `right` come true, and their windows pass."""
    made = kinds.restated([said(n, at_ms) for n in range(count)])
    kinds.follow(made)
    due = kinds.take_due(at_ms + 2 * HOUR, count)
    kinds.settle([(one, number < right) for number, one in enumerate(due)])
    kinds.judge(at_ms + 2 * HOUR)


def prior_at(stated: float, claims: int, right: int) -> KindPrior:
    """Claims of simulated fleets that all stated the same."""
    cases, came = ([count * (low <= stated < high) for low, high in pairwise(EDGES)] for count in (claims, right))
    return KindPrior(tuple(cases), tuple(came), claims, right)


def test_a_kind_that_is_usually_wrong_mutes_itself_and_says_so_in_one_line() -> None:
    kinds = Recalibration(0.5, {})
    told(kinds, 47, 2)
    (one,) = kinds.restated([said(99, T0 + 3 * HOUR)])
    assert one.muted
    assert (one.alert_level, one.warns) == (AlertLevel.NOTE, False)
    (figures,) = kinds.figures(T0 + 3 * HOUR)
    assert (figures.kind, figures.settled, figures.right) == (KIND, 47, 2)
    assert figures.line == "memory forecast (threshold): 2 of 47 right this week, muted"


def test_what_is_muted_is_judged_on_and_comes_back_by_itself() -> None:
    kinds = Recalibration(0.5, {})
    told(kinds, 20, 1)
    assert kinds.figures(T0)[0].muted
    told(kinds, 40, 38, T0 + DAY)
    assert not kinds.figures(T0 + DAY)[0].muted, "its claims hold again, though nobody heard them"
    assert not kinds.restated([said(1, T0 + 2 * DAY)])[0].muted


def test_an_old_record_weighs_no_longer_than_a_week() -> None:
    kinds = Recalibration(0.5, {})
    told(kinds, 20, 1)
    kinds.judge(T0 + 9 * DAY)
    assert kinds.figures(T0 + 9 * DAY)[0].week == 0


def test_stated_probabilities_move_to_what_was_observed_and_keep_their_order() -> None:
    kinds = Recalibration(0.0, {})
    rng = np.random.default_rng(5)
    for step in range(40):
        at_ms = T0 + step * 3 * HOUR
        made = [said(n, at_ms, float(rng.uniform(0.0, 1.0))) for n in range(20)]
        kinds.follow(kinds.restated(made))
        due = kinds.take_due(at_ms + 2 * HOUR, 100)
        kinds.settle([(one, bool(rng.uniform() < (one.raw or 0.0) ** 3)) for one in due])
    later = kinds.restated([said(0, T0 + 6 * DAY, p) for p in (0.05, 0.3, 0.5, 0.7, 0.95)])
    chances = [one.probability or 0.0 for one in later]
    assert chances == sorted(chances)
    assert chances[2] == pytest.approx(0.5**3, abs=0.1)
    assert [one.raw for one in later] == [0.05, 0.3, 0.5, 0.7, 0.95]


def test_a_case_is_one_window_of_one_subject_and_counts_when_it_is_over() -> None:
    kinds = Recalibration(0.5, {})
    kinds.follow([said(1), said(1, T0 + HOUR), said(2)])
    assert kinds.take_due(T0 + 2 * HOUR - 1, 9) == [], "whatever came by now"
    assert [one.subject.name for one in kinds.take_due(T0 + 2 * HOUR, 9)] == ["GPU-1", "GPU-2"]
    assert kinds.take_due(T0 + 9 * HOUR, 9) == []


def test_a_prior_speaks_until_there_is_a_record_and_a_weak_one_says_so() -> None:
    kinds = Recalibration(0.5, {KIND: prior_at(0.75, 40, 2)})
    (one,) = kinds.restated([said(1)])
    assert one.muted
    assert one.probability is not None
    assert one.probability < 0.4
    assert kinds.figures(T0)[0].line.endswith("no record here yet, 2 of 40 right in simulated fleets, muted")
    fresh = Recalibration(0.5, {})
    assert fresh.restated([said(1)])[0].probability == 0.75
    assert fresh.figures(T0)[0].line.endswith("no record yet")
    told(kinds, 60, 58)
    assert not kinds.figures(T0)[0].muted, "its own record outweighs what was seen elsewhere"


def test_a_model_without_probabilities_states_its_record() -> None:
    kinds = Recalibration(0.5, {})
    told(kinds, 20, 16)
    (one,) = kinds.restated([said(50, T0 + 3 * HOUR, None)])
    assert one.probability == pytest.approx(17 / 22)


def test_what_claims_nothing_is_never_muted_and_pools_are_left_alone() -> None:
    kinds = Recalibration(0.5, {})
    told(kinds, 20, 0)
    calm = said(3, T0 + 3 * HOUR, 0.1, status=PredictionStatus.NO_CROSSING, eta_ms=None)
    assert not kinds.restated([calm])[0].muted
    pool = replace(said(3), subject=Subject(SubjectKind.POOL, "train"))
    assert kinds.restated([pool]) == [pool]


def test_a_crossing_counts_within_its_window_in_its_direction() -> None:
    at_ms = [T0, T0 + HOUR, T0 + 3 * HOUR]
    assert crossed(said(1), at_ms, np.array([0.6, 0.9, 0.5]))
    assert not crossed(said(1), at_ms, np.array([0.95, 0.8, 0.95])), "before, and after the window"
    falls = said(1, threshold=5.0, value=40.0)
    assert crossed(falls, at_ms, np.array([40.0, 5.0, 40.0]))


def test_a_prior_moves_what_is_said_first_and_less_than_the_models_word_where_it_saw_little() -> None:
    (much,) = Recalibration(0.0, {KIND: prior_at(0.75, 400, 40)}).restated([said(1)])
    (little,) = Recalibration(0.0, {KIND: prior_at(0.75, 2, 0)}).restated([said(1)])
    assert much.probability == pytest.approx(0.1, abs=0.05), "a little nearer to even: this fleet may differ"
    assert little.probability == pytest.approx(0.75 * 3 / 5, abs=0.07)  # and a little less of its word holds


def test_a_model_that_says_too_much_where_much_is_known_is_believed_less_where_nothing_is() -> None:
    loud = said(1, T0, 0.35, status=PredictionStatus.NO_CROSSING, eta_ms=None)
    (heard,) = Recalibration(0.0, {KIND: prior_at(0.75, 200, 160)}).restated([loud])
    (doubted,) = Recalibration(0.0, {KIND: prior_at(0.75, 200, 0)}).restated([loud])
    assert heard.probability == pytest.approx(0.35, abs=0.03)
    assert (doubted.probability or 0.0) < 0.35 / 5


EVERYWHERE = KindPrior((0.0,) * 5 + (40.0,) * 6, (0.0,) * 5 + (32.0,) * 6, 240.0, 192.0)
"""Claims of every range, of which four in five came."""


def stated(kinds: Recalibration, probability: float) -> float:
    (one,) = kinds.restated([said(999, T0 + 3 * HOUR, probability)])
    assert one.probability is not None
    return one.probability


def test_claims_that_fail_in_one_range_lower_what_is_stated_in_all() -> None:
    kinds = Recalibration(0.0, {KIND: EVERYWHERE})
    before = stated(kinds, 0.55)
    assert 0.5 < before < 0.8, "nobody knows yet whether this fleet is as those were"
    told(kinds, 4, 0)
    assert stated(kinds, 0.55) < before - 0.15
    assert stated(kinds, 0.95) < before - 0.15


def test_claims_that_come_make_what_simulated_fleets_say_certain() -> None:
    kinds = Recalibration(0.0, {KIND: EVERYWHERE})
    before = stated(kinds, 0.95)
    told(kinds, 40, 32)
    assert before < stated(kinds, 0.95) < 0.85


def test_what_is_hardly_expected_is_not_moved_by_claims() -> None:
    kinds = Recalibration(0.0, {KIND: replace(EVERYWHERE, claims=200.0, right=160.0)})
    calm = said(9, T0 + 3 * HOUR, 0.01, status=PredictionStatus.NO_CROSSING, eta_ms=None)
    (before,) = kinds.restated([calm])
    told(kinds, 40, 0)
    (after,) = kinds.restated([calm])
    assert after.probability == pytest.approx(before.probability, abs=0.001)


def test_a_model_that_claims_below_one_half_states_no_less_above_it() -> None:
    cases, came = [0.0] * len(EDGES[1:]), [0.0] * len(EDGES[1:])
    cases[5:7], came[5:7] = [40.0, 3.0], [32.0, 1.0]
    kinds = Recalibration(0.0, {KIND: KindPrior(tuple(cases), tuple(came), 30.0, 23.0)})
    assert stated(kinds, 0.55) < 0.5, "claims may begin at one half: what was said below tells nothing of them"
    high, low = (one.probability for one in kinds.restated([said(1, T0, 0.55), said(2, T0, 0.45)]))
    assert low is not None
    assert high is not None
    assert high >= low > 0.65, "whichever is said first"
    claims = Recalibration(0.0, {KIND: KindPrior(tuple(cases), tuple(came), 43.0, 33.0)})
    assert stated(claims, 0.55) == pytest.approx(high), "where all that is known are claims nothing is to be learnt"


@pytest.mark.parametrize(("right", "ends"), [(8, False), (38, True)])
def test_an_interval_ends_only_where_enough_comes_at_all(right: int, ends: bool) -> None:
    blank = said(1, coverage=0.8, eta_ms=None, sentence="node-1 GPU 1: memory")
    made = crossing(blank, T0 + HOUR, T0 + HOUR // 2, T0 + 2 * HOUR)
    kinds = Recalibration(0.0, {KIND: prior_at(0.75, 40, right)})
    told(kinds, 40, right)
    (one,) = kinds.restated([made])
    assert (one.eta_high_ms is not None) is ends
    assert (one.sentence == made.sentence) is ends
    assert (BEYOND in one.sentence, BEYOND_ZH in one.sentence_zh) == (not ends, not ends)
    assert one.eta_low_ms == made.eta_low_ms


def test_a_kind_that_simulated_fleets_praise_is_muted_by_the_third_wrong_claim() -> None:
    kinds = Recalibration(0.5, {KIND: prior_at(0.75, 50, 40)})
    heard = []
    for number in range(3):
        kinds.follow([said(number)])
        kinds.settle([(one, False) for one in kinds.take_due(T0 + 2 * HOUR, 1)])
        kinds.judge(T0 + 2 * HOUR)
        heard.append(not kinds.figures(T0 + 2 * HOUR)[0].muted)
    assert heard == [True, True, False]


def test_what_is_said_of_a_shift_and_of_longer_is_calibrated_apart() -> None:
    kinds = Recalibration(0.0, {})
    for hours, came in ((2, False), (24, True)):
        told_of = [said(n, T0, 0.3, horizon_ms=hours * HOUR) for n in range(40)]
        kinds.follow(told_of)
        kinds.settle([(one, came) for one in kinds.take_due(T0 + hours * HOUR, 99)])
    near, far = kinds.restated([said(1, T0 + 2 * DAY, 0.3, horizon_ms=hours * HOUR) for hours in (8, 9)])
    assert (near.probability or 0.0) < 0.1 < 0.9 < (far.probability or 0.0)


def test_the_shipped_priors_can_be_read() -> None:
    assert {"memory_leak by filling", "out_of_memory by filling", "fragmentation by filling"} <= shipped_priors().keys()
    for kind, prior in shipped_priors().items():
        assert " by " in kind
        assert len(prior.cases) == len(prior.came) == len(EDGES) - 1
        assert 0 <= prior.right <= prior.claims
        assert all(0 <= came <= cases + 1e-9 for came, cases in zip(prior.came, prior.cases, strict=True))


def test_one_host_with_many_gpus_does_not_outvote_a_fleet() -> None:
    kinds = Recalibration(0.5, {})
    crowd = [said(n, subject=Subject(SubjectKind.GPU, f"GPU-{n}", "node-many")) for n in range(100, 164)]
    kinds.follow([*crowd, *(said(n) for n in range(20))])
    kinds.settle([(one, one.subject.host != "node-many") for one in kinds.take_due(T0 + 2 * HOUR, 99)])
    assert kinds.judge(T0 + 2 * HOUR) == []
    assert kinds.figures(T0 + 2 * HOUR)[0].precision > 0.8


def test_simulated_gpus_mute_no_real_ones() -> None:
    kinds = Recalibration(0.5, {})
    kinds.follow([said(n, simulated=True) for n in range(20)])
    kinds.settle([(one, False) for one in kinds.take_due(T0 + 2 * HOUR, 99)])
    (muted,) = kinds.judge(T0 + 2 * HOUR)
    assert muted.simulated_gpus
    real, made_up = kinds.restated([said(1, T0 + 3 * HOUR), said(2, T0 + 3 * HOUR, simulated=True)])
    assert (real.muted, made_up.muted) == (False, True)


def test_a_kind_that_its_prior_mutes_is_news_once() -> None:
    kinds = Recalibration(0.5, {KIND: prior_at(0.75, 40, 2)})
    kinds.restated([said(1)])
    assert [one.muted for one in kinds.judge(T0)] == [True]
    assert kinds.judge(T0) == []


def test_what_was_muted_before_a_restart_must_come_above_the_floor_again() -> None:
    kinds = Recalibration(0.5, {})
    kinds.restore([(KIND, False)])
    assert kinds.restated([said(1)])[0].muted
    assert kinds.judge(T0) == [], "0.5 is not above the floor by enough"


def test_cases_come_due_in_order_and_wait_when_put_back() -> None:
    kinds = Recalibration(0.5, {})
    kinds.follow([said(1, horizon_ms=4 * HOUR), said(2), said(2, T0 + 2 * HOUR)])
    due = kinds.take_due(T0 + 4 * HOUR, 2)
    assert [(one.subject.name, one.at_ms) for one in due] == [("GPU-2", T0), ("GPU-1", T0)]
    kinds.put_back(due)
    assert kinds.take_due(T0 + 4 * HOUR, 9)[:2] == due


def test_faults_without_a_sign_are_learnt_from_what_was_not_warned_of() -> None:
    kinds = Recalibration(0.5, {})
    quiet = replace(
        said(0, T0), target=HARDWARE_FAULT, metric="", status=PredictionStatus.UNLIKELY, model="hazard", threshold=None
    )
    for turn in range(20):
        made = [
            replace(quiet, subject=replace(quiet.subject, name=f"GPU-{n}", host=f"node-{n}"), at_ms=T0 + turn * DAY)
            for n in range(10)
        ]
        made = [replace(one, probability=0.4, raw=0.01) for one in made]
        kinds.follow(made)
        due = kinds.take_due(made[0].at_ms + made[0].horizon_ms, 100)
        kinds.settle([(one, number == 0) for number, one in enumerate(due)])
    ((key, chance),) = kinds.unforeseen(HARDWARE_FAULT).items()
    assert key == ("hazard", "1", False)
    assert 0.04 < chance < 0.1 - 0.01, "of 10 GPUs one failed each day; the model's own word was 0.01"
    assert kinds.unforeseen("another target") == {}


@pytest.mark.parametrize(("drops", "left", "lost"), [(True, ["GPU-3", "GPU-4"], 3), (False, ["GPU-0", "GPU-1"], 0)])
def test_of_what_waits_too_long_the_oldest_is_lost_and_counted_unless_it_is_the_past(
    monkeypatch: pytest.MonkeyPatch, drops: bool, left: list[str], lost: int
) -> None:
    monkeypatch.setattr("tocsin.forecaster.live.recalibration.MOST_DUE", 2)
    kinds = Recalibration(0.5, {})
    kinds.follow([said(n) for n in range(5)])
    due = kinds.take_due(T0 + 2 * HOUR, 2, drops=drops)
    assert ([one.subject.name for one in due], kinds.unjudged) == (left, lost)


def test_a_kind_of_which_nothing_is_known_any_more_is_heard_again() -> None:
    kinds = Recalibration(0.5, {})
    kinds.settle([(said(n), False) for n in range(6)])
    kinds.judge(T0 + DAY)
    assert kinds.figures(T0 + DAY)[0].muted
    kinds.judge(T0 + 9 * DAY)
    assert not kinds.figures(T0 + 9 * DAY)[0].muted, "its wrong claims are more than a week old"

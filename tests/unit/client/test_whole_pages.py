"""Usage, cost, versions and scoreboards of several cells, as those of one fleet."""

from __future__ import annotations

import pytest

from tocsin.client.models import ActionScore, HazardScore, KindScore, PredictionScore, ReliabilityBin, RuleScore
from tocsin.client.models_usage import RightSizeOut, UsageOut
from tocsin.client.whole_cost import bare_kwh, whole_cost
from tocsin.client.whole_cost import currencies as cost_currencies
from tocsin.client.whole_drift import whole_drift
from tocsin.client.whole_hazards import whole_hazard
from tocsin.client.whole_score import whole_records, whole_scoreboard
from tocsin.client.whole_usage import currencies, whole_right_size, whole_usage
from tocsin.domain.clock import DAY, HOUR
from tocsin.domain.finding import ActionKind
from tocsin.domain.interval import wilson
from tocsin.domain.usage import Prices
from tocsin.domain.versions import Standing
from tocsin_testing import fake_ahead, fake_drift, fake_usage
from tocsin_testing.builders import T0
from tocsin_testing.fake_service import FakeService


def usage(limit: int = 50, **more: object) -> UsageOut:
    first = fake_usage.start_of(T0) // DAY
    made = fake_usage.usage(T0, first, first + 1, ["namespace"], limit, simulated=False)
    return made.model_copy(update=more)


# ---------------------------------------------------------------------- usage


def test_groups_of_one_name_are_one_row_and_money_of_one_currency_is_added() -> None:
    one = usage()
    found = whole_usage({"west": one, "east": one}, 50)
    assert found.groups == one.groups
    assert [row.group for row in found.rows] == [row.group for row in one.rows]
    assert [row.gpu_hours for row in found.rows] == [pytest.approx(2 * row.gpu_hours) for row in one.rows]
    assert one.total.cost is not None
    assert (found.currency, found.total.cost) == ("EUR", pytest.approx(2 * one.total.cost))
    assert found.total.gpu_hours == pytest.approx(sum(row.gpu_hours for row in found.rows))


def test_what_is_cut_off_and_what_cells_have_in_their_rest_is_one_row() -> None:
    one, short = usage(), usage(limit=1)
    assert short.rows[-1].rest
    found = whole_usage({"east": one, "west": short}, 2)
    assert [row.rest for row in found.rows] == [False, False, True]
    assert sum(row.gpu_hours for row in found.rows) == pytest.approx(2 * one.total.gpu_hours)
    # Of what west hides nobody knows whether east shows it.
    assert found.groups == one.groups + short.groups - 1


def test_money_of_several_currencies_is_not_added() -> None:
    one = usage()
    answers = {"east": one, "west": one.model_copy(update={"currency": "USD"})}
    found = whole_usage(answers, 50)
    assert currencies(answers) == ["EUR", "USD"]
    assert (found.currency, found.total.cost, found.total.energy_cost) == ("", None, None)
    assert {row.cost for row in found.rows} == {None}
    assert found.total.gpu_hours == pytest.approx(2 * one.total.gpu_hours)
    # A cell that has set a currency, and no price, spoils no sum.
    free = one.model_copy(update={"currency": "USD", "total": one.total.model_copy(
        update={"cost": None, "energy_cost": None}), "rows": []})  # fmt: skip
    assert whole_usage({"east": one, "west": free}, 50).total.cost == one.total.cost


def test_days_are_those_of_the_cell_that_began_first_and_all_have_counted_to() -> None:
    early, late = "2026-11-15T00:00:00.000Z", "2026-11-17T00:00:00.000Z"
    found = whole_usage(
        {"a": usage(first="2026-11-10", counted=late), "b": usage(first=None, counted=early, late=2)}, 50
    )
    assert (found.first, found.counted, found.late) == ("2026-11-10", early, 2)


def right_size() -> RightSizeOut:
    first = fake_usage.start_of(T0) // DAY
    return fake_usage.right_size(T0, first, first + 1, 50, simulated=False)


def test_jobs_of_one_name_stay_two_the_most_freed_first() -> None:
    one = right_size()
    best = one.rows[0]
    better = best.model_copy(update={"options": [best.options[0].model_copy(update={"freed": 1e6})]})
    found = whole_right_size({"east": one, "west": one.model_copy(update={"rows": [better]})}, 2)
    assert [row.job for row in found.rows] == [f"west/{best.job}", f"east/{best.job}"]
    assert (found.jobs, found.fitting) == (2 * one.jobs, 2 * one.fitting)


# ---------------------------------------------------------------------- cost

SPAN = (T0 // HOUR * HOUR - 6 * HOUR, T0 // HOUR * HOUR)
DEAR = Prices(currency="EUR", gpu_hour={"A100": 9.0}, gpu_hour_default=9.0, kwh=0.3, pue=1.2)


def test_hours_and_models_of_one_price_are_added() -> None:
    one = fake_ahead.cost(*SPAN, simulated=False)
    found = whole_cost({"west": one, "east": one})
    assert found.usage.gpu_hours == pytest.approx(2 * one.usage.gpu_hours)
    assert [hour.at_ms for hour in found.hours] == [hour.at_ms for hour in one.hours]
    assert found.hours[0].busy == pytest.approx(2 * one.hours[0].busy)
    assert [(group.pool, group.model, group.gpu_hour) for group in found.groups] == [
        (group.pool, group.model, group.gpu_hour) for group in one.groups
    ]
    assert one.money.energy is not None
    assert found.money.energy == pytest.approx(2 * one.money.energy)
    assert (found.money.kwh_price, found.money.pue) == (one.money.kwh_price, one.money.pue)
    assert (found.lost.faults, found.lost.early_total) == (2 * one.lost.faults, 2 * one.lost.early_total)
    assert (found.hours_wanted, found.hours_read, found.hours_empty) == (6, 6, 1)


def test_other_prices_are_other_rows_and_no_figure_is_made_of_two() -> None:
    one = fake_ahead.cost(*SPAN, simulated=False)
    other = fake_ahead.cost(*SPAN, simulated=False, prices=DEAR)
    found = whole_cost({"east": one, "west": other})
    assert len(found.groups) == len(one.groups) + len(other.groups)
    assert {group.gpu_hour for group in found.groups} == {group.gpu_hour for group in (*one.groups, *other.groups)}
    assert found.money.kwh_price is None
    assert one.money.energy is not None
    assert other.money.energy is not None
    assert found.money.energy == pytest.approx(one.money.energy + other.money.energy)
    silent = fake_ahead.cost(*SPAN, simulated=False, prices=Prices())
    assert bare_kwh({"east": one, "west": silent}) == pytest.approx(one.usage.kwh)


def test_costs_of_several_currencies_are_none() -> None:
    one = fake_ahead.cost(*SPAN, simulated=False)
    other = fake_ahead.cost(*SPAN, simulated=False, prices=Prices(currency="CHF", gpu_hour_default=3.0))
    answers = {"east": one, "west": other}
    found = whole_cost(answers)
    assert cost_currencies(answers) == sorted([one.money.currency, "CHF"])
    assert (found.money.currency, found.money.free, found.money.energy) == ("", None, None)
    assert {(group.gpu_hour, group.idle_cost) for group in found.groups} == {(None, None)}


def test_hours_lost_are_those_that_each_cell_assumes() -> None:
    one = fake_ahead.cost(*SPAN, simulated=False)
    other = one.model_copy(update={"lost": one.lost.model_copy(update={"at_work": 6, "hours_each": 10.0})})
    found = whole_cost({"east": one, "west": other}).lost
    assert found.at_work * found.hours_each == pytest.approx(2 * 2.25 + 6 * 10.0)


def test_an_hour_is_empty_where_no_cell_has_it_and_read_where_all_have() -> None:
    one = fake_ahead.cost(*SPAN, simulated=False)
    slow = one.model_copy(update={"hours": one.hours[:2], "hours_read": 2, "hours_empty": 0})
    found = whole_cost({"east": one, "west": slow})
    assert (found.hours_read, found.hours_empty, len(found.hours)) == (2, 0, 5)


# ---------------------------------------------------------------------- versions


def test_a_group_of_two_cells_is_one_and_is_judged_over_both() -> None:
    one = fake_drift.drift(T0, "", [])
    found = whole_drift({"east": one, "west": one})
    assert [(group.pool, group.hosts) for group in found.groups] == [
        (group.pool, 2 * group.hosts) for group in one.groups
    ]
    lab = next(group for group in found.groups if group.pool == "lab")
    driver = next(each for each in lab.components if each.component == "driver")
    # Two hosts in each cell are too few to say anything, four are not.
    assert (driver.standing, driver.told) == (Standing.MIXED, 4)
    assert found.drifting == one.drifting
    cuda = next(each for each in found.groups[0].components if each.component == "cuda_driver")
    assert cuda.because == "driver"


def test_what_is_equal_in_each_cell_may_differ_between_them() -> None:
    one = fake_drift.drift(T0, "inference", ["driver"])
    (group,) = one.groups
    (driver,) = group.components
    old = driver.versions[0].model_copy(update={"version": fake_drift.OLD, "names": ["old-1"], "hosts": 1, "ago": 1})
    few = driver.model_copy(update={"versions": [old], "told": 1})
    other = one.model_copy(update={"groups": [group.model_copy(update={"hosts": 3, "components": [few]})]})
    found = whole_drift({"east": one, "west": other})
    (told,) = found.groups[0].components
    assert (one.drifting, found.drifting) == (0, 1)
    assert [(each.version, each.hosts, each.odd) for each in told.versions] == [
        (fake_drift.NEW, 8, False), (fake_drift.OLD, 1, True)
    ]  # fmt: skip
    nobody = one.model_copy(update={"groups": [group.model_copy(update={"hosts": 3, "components": []})]})
    (untold,) = whole_drift({"east": one, "west": nobody}).groups[0].components
    assert untold.untold == {"": 3}


# ---------------------------------------------------------------------- scoreboard


def test_rules_and_models_of_one_name_are_one_row() -> None:
    one = FakeService().scoreboard()
    found = whole_scoreboard({"west": one, "east": one})
    assert found.decisions == 2 * one.decisions
    assert [(rule.rule, rule.confirmed) for rule in found.rules] == [
        (rule.rule, 2 * rule.confirmed) for rule in one.rules
    ]
    assert found.held_by == {guard: 2 * count for guard, count in one.held_by.items()}
    assert (found.predictions.hits, len(found.predictions.lead_s)) == (2 * 38, 2 * 38)
    assert [each.model for each in found.crossings] == [each.model for each in one.crossings]
    assert [each.onsets for each in found.hazards] == [2 * each.onsets for each in one.hazards]


def board(**more: object) -> object:
    return (
        FakeService()
        .scoreboard()
        .model_copy(
            update={"rules": [], "crossings": [], "hazards": [], "actions": [], "predictions": PredictionScore()} | more
        )
    )


def test_an_effect_is_the_mean_over_all_that_was_measured() -> None:
    def action(tried: int, effects: dict[str, float], measured: dict[str, int]) -> ActionScore:
        return ActionScore(action=ActionKind.DRAIN, tried=tried, worked=tried, effects=effects, measured=measured)

    found = whole_scoreboard(
        {
            "a": board(actions=[action(9, {"cooler": -20.0, "old": 1.0, "mine": 3.0}, {"cooler": 9, "mine": 1})]),
            "b": board(actions=[action(1, {"cooler": -10.0, "old": 5.0}, {"cooler": 1, "old": 1})]),
        }  # type: ignore[dict-item]
    ).actions
    assert [(one.tried, one.worked) for one in found] == [(10, 10)]
    assert found[0].effects == {"cooler": pytest.approx(-19.0), "mine": 3.0}
    assert found[0].measured == {"cooler": 10, "mine": 1}


def test_a_record_of_a_kind_and_of_a_rule_stays_each_cells() -> None:
    kinds = [KindScore(kind="hazard/x", settled=4, sentence="right in 3 of 4")]
    found = whole_scoreboard({"a": board(kinds=kinds), "b": board(kinds=kinds)})  # type: ignore[dict-item]
    assert [one.sentence for one in found.kinds] == ["in cell a: right in 3 of 4", "in cell b: right in 3 of 4"]
    records = FakeService().rule_records()
    assert [one.rule for one in whole_records({"b": records, "a": records})] == [
        *(f"a/{one.rule}" for one in records), *(f"b/{one.rule}" for one in records)
    ]  # fmt: skip
    rules = [RuleScore(rule="r", action=ActionKind.DRAIN, decisions=1, would_have_acted=1, pending=1)]
    assert len(whole_scoreboard({"a": board(rules=rules), "b": board(rules=rules)}).rules) == 1  # type: ignore[dict-item]


def hazard(days: float, bins: list[ReliabilityBin], **more: object) -> HazardScore:
    given: dict[str, object] = {"predictions": 10, "gpu_days": days, "reliability": bins, "onsets": 4}
    return HazardScore(model="h", target="fault", horizon_s=DAY / 1000, **(given | more))  # type: ignore[arg-type]


def bin_(days: float, stated: float, observed: float) -> ReliabilityBin:
    return ReliabilityBin(low=0.1, high=0.2, gpu_days=days, stated=stated, observed=observed, predictions=5)


def test_shares_follow_from_counts_and_times_and_what_does_not_follow_is_none() -> None:
    found = whole_hazard(
        [
            hazard(100.0, [bin_(100.0, 0.1, 0.2)], onset_recall=0.75, base_rate=0.1, recall=0.5, precision=0.25,
                   brier=0.1, false_alarms=1, alarms=4, roc_auc=0.9, auprc=0.5, approved=3, rejected=0),
            hazard(300.0, [bin_(300.0, 0.2, 0.1)], onset_recall=0.25, base_rate=0.2, recall=1.0, precision=0.6,
                   brier=0.3, false_alarms=3, alarms=6, roc_auc=0.7, auprc=0.4, approved=0, rejected=1),
        ]
    )  # fmt: skip
    assert (found.predictions, found.onsets, found.onset_recall) == (20, 8, 0.5)
    assert (found.onset_recall_low, found.onset_recall_high) == wilson(0.5, 8)
    assert found.false_alarms_per_1000_gpu_days == 10.0
    assert found.base_rate == pytest.approx((10 + 60) / 400)
    assert found.recall == pytest.approx((5 + 60) / (10 + 60))
    assert found.precision == pytest.approx((5 + 60) / (20 + 100))
    assert found.brier == pytest.approx(0.25)
    assert found.operator_precision == 0.75
    (bin_of_both,) = found.reliability
    assert bin_of_both.stated == pytest.approx(0.175)
    assert bin_of_both.observed == pytest.approx(0.125)
    assert (bin_of_both.observed_low, bin_of_both.observed_high) == wilson(bin_of_both.observed, 400)
    assert found.calibration_error == pytest.approx(0.05)
    assert (found.roc_auc, found.auprc) == (None, None)


def test_a_cell_without_scores_adds_its_open_cases_alone() -> None:
    full = hazard(100.0, [bin_(100.0, 0.1, 0.2)], roc_auc=0.9, precision=0.5, recall=0.5, base_rate=0.1)
    early = HazardScore(model="h", target="fault", horizon_s=DAY / 1000, pending=7)
    found = whole_hazard([early, full])
    assert (found.pending, found.roc_auc, found.precision, found.gpu_days) == (7, 0.9, 0.5, 100.0)


def test_warned_time_without_a_hit_makes_the_precision_unknown() -> None:
    wrong = hazard(100.0, [], precision=0.0, recall=0.0, base_rate=0.1)
    found = whole_hazard([wrong, hazard(100.0, [bin_(100.0, 0.1, 0.2)], precision=0.5, recall=0.5, base_rate=0.1)])
    assert (found.precision, found.calibration_error) == (None, None)
    assert found.recall == pytest.approx(0.25)

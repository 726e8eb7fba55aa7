"""Growth over what is usual for a GPU, and a link beside the others of its GPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tocsin.domain.errors import InputError
from tocsin.domain.reading import Gpu
from tocsin.rules.load import load_rules
from tocsin_testing.builders import gpu
from tocsin_testing.rule_runs import Run, Values, rule

HOURS = 60
STEP = 30
"""Minutes between two readings."""
CORRECTED = "ecc_corrected_volatile_total"
GROWTH = 'all = [{ kind = "growth", metrics = ["gpu_ecc_corrected_volatile_total"], times = 6 }]'
FLEET = tuple(gpu(index) for index in range(4))
ONE = FLEET[0]


class Counting:
    """Errors of each GPU, at a rate an hour that may change."""

    def __init__(self, conditions: str = GROWTH) -> None:
        self.run = Run(rule(conditions))
        self.total = dict.fromkeys(FLEET, 0.0)
        self.minute = 0

    def pass_hours(self, hours: float, per_hour: Callable[[float], float], *, read: bool = True) -> None:
        """`per_hour` of the hours that have passed is the rate of the first GPU; the others count one an hour."""
        for step in range(round(hours * HOURS / STEP)):
            self.minute += STEP
            for one in FLEET:
                self.total[one] += (per_hour(step * STEP / HOURS) if one is ONE else 1.0) * STEP / HOURS
            values: dict[Gpu, Values] = {one: {CORRECTED: self.total[one]} for one in FLEET if read or one is not ONE}
            self.run.step(self.minute, values)


def test_what_grows_and_goes_on_for_a_day_is_said() -> None:
    counting = Counting()
    counting.pass_hours(72, lambda _: 1.0)
    assert counting.run.opened == []
    counting.pass_hours(20, lambda _: 12.0)
    assert counting.run.opened == [], "not in each third of a day yet"
    counting.pass_hours(8, lambda _: 12.0)
    (finding,) = counting.run.opened
    assert finding.subject.name == ONE.uuid
    assert finding.value == pytest.approx(12 * 24, rel=0.1)
    assert "usually up to 2" in finding.evidence[0].text


def test_a_bad_spell_of_hours_says_nothing_however_bad() -> None:
    counting = Counting()
    counting.pass_hours(72, lambda _: 1.0)
    counting.pass_hours(8, lambda _: 500.0)
    counting.pass_hours(48, lambda _: 1.0)
    assert counting.run.opened == []


def test_nothing_is_said_before_a_day_was_seen_to_compare_with() -> None:
    counting = Counting()
    counting.pass_hours(24, lambda hour: 1.0 + 40.0 * hour)
    counting.pass_hours(18, lambda _: 1000.0)
    assert counting.run.opened == []


def test_a_gpu_that_always_counts_much_is_not_told() -> None:
    counting = Counting()
    counting.pass_hours(144, lambda _: 60.0)
    assert counting.run.opened == []


def test_a_counter_that_begins_anew_is_counted_from_zero() -> None:
    counting = Counting()
    counting.total[ONE] = 10_000.0
    counting.pass_hours(72, lambda _: 1.0)
    counting.total[ONE] = 0.0
    counting.pass_hours(26, lambda _: 12.0)
    (finding,) = counting.run.opened
    assert finding.value == pytest.approx(12 * 24, rel=0.1)


def test_what_was_counted_while_nobody_looked_is_no_growth() -> None:
    counting = Counting()
    counting.pass_hours(72, lambda _: 1.0)
    counting.pass_hours(6, lambda _: 500.0, read=False)
    counting.pass_hours(23, lambda _: 12.0)
    assert counting.run.opened == [], "a gap within the day leaves it unknown"
    counting.pass_hours(8, lambda _: 12.0)
    assert len(counting.run.opened) == 1


def test_two_counters_must_grow_together() -> None:
    names = ("nvlink_crc_flit_errors_total", "nvlink_crc_data_errors_total")
    both = ", ".join(f'"gpu_{name}"' for name in names)

    def play(data_per_hour: float) -> Run:
        run, total = Run(rule(f'all = [{{ kind = "growth", metrics = [{both}], times = 3 }}]')), [0.0, 0.0]
        for step in range(96 * HOURS // STEP):
            grown = step >= 60 * HOURS // STEP
            total[0] += (12.0 if grown else 1.0) * STEP / HOURS
            total[1] += (data_per_hour if grown else 1.0) * STEP / HOURS
            run.step(step * STEP, dict(zip(names, total, strict=True)))
        return run

    assert play(1.0).opened == []
    (finding,) = play(8.0).opened
    assert finding.metric == "gpu_nvlink_crc_data_errors_total", "the one that has grown least speaks"


@pytest.mark.parametrize("metric", ["gpu_temperature_celsius", "gpu_nvlink_symbol_errors_total{link}"])
def test_growth_is_of_counters_of_a_whole_gpu(metric: str) -> None:
    with pytest.raises(InputError) as refused:
        rule(f'all = [{{ kind = "growth", metrics = ["{metric}"], times = 3 }}]')
    assert "metrics[0]" in refused.value.field


def _links(*errors: float) -> Values:
    return {f'nvlink_symbol_errors_total{{link="{link}"}}': total for link, total in enumerate(errors)}


BESIDE = (
    'all = [{ kind = "rate", metric = "gpu_nvlink_symbol_errors_total{link}", over = "24h", at_least = 100, '
    "beside = 100 }]"
)


def test_one_link_beside_the_others_of_its_gpu() -> None:
    run = Run(rule(BESIDE))
    run.step(0, {ONE: _links(0, 0, 0), FLEET[1]: _links(0, 0, 0)})
    run.step(60, {ONE: _links(890, 10, 8), FLEET[1]: _links(90_000, 90_000, 90_000)})
    assert run.active == [], "ninety times, and a GPU whose links all count"
    run.step(120, {ONE: _links(1000, 10, 8), FLEET[1]: _links(90_000, 90_000, 90_000)})
    (finding,) = run.opened
    assert (finding.subject.name, finding.subject.detail) == (ONE.uuid, "0")


def test_a_link_with_one_other_is_beside_nothing() -> None:
    run = Run(rule(BESIDE))
    run.step(0, {ONE: _links(0, 0)})
    run.step(60, {ONE: _links(5000, 1)})
    assert run.active == []


def test_beside_needs_variants() -> None:
    with pytest.raises(InputError) as refused:
        rule('all = [{ kind = "rate", metric = "gpu_pcie_replay_total", over = "24h", at_least = 100, beside = 100 }]')
    assert "beside" in refused.value.field


def test_the_shipped_signs_of_links_and_memory_foretell() -> None:
    names = {"pcie_crc_errors", "nvlink_symbol_errors_one_link", "nvlink_crc_grows", "memory_errors_grow"}
    assert names <= set(load_rules().foretelling)

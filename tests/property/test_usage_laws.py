"""Accounts of usage add up, missing data are missing, and money follows from the prices that are set."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin.domain.clock import HOUR, MINUTE
from tocsin.domain.usage import Prices, Usage, money, total
from tocsin.forecaster.diagnosis.account import CELL_MS, METRICS, Account, account, joined, silent
from tocsin.store.port import Columns
from tocsin_testing.builders import T0, gpu

START = T0 // HOUR * HOUR
GPUS = [
    gpu(n, host=f"node-{n // 3}", model="H100" if n < 3 else "A100", pool="train" if n % 2 else "serve")
    for n in range(6)
]
CELLS = 4

values = st.one_of(st.none(), st.sampled_from([0.0, 0.01, 0.5]), st.floats(0, 1))
rows = st.tuples(
    st.integers(0, len(GPUS) - 1),
    st.integers(0, CELLS * CELL_MS - 1),
    st.tuples(values, values, values, st.one_of(st.none(), st.floats(0, 700)), values, st.floats(0, 1e9) | st.none()),
)
usages = st.builds(Usage, **{one.name: st.floats(0, 1e6) for one in fields(Usage)})


def columns(found: list[tuple[int, int, tuple[float | None, ...]]]) -> Columns:
    """Rows as a store gives them: one for each GPU and instant, by instant, then UUID."""
    last = {(at, number): row for number, at, row in found}
    order = sorted(last)
    uuids = tuple(one.uuid for one in GPUS)
    return Columns(
        uuids,
        METRICS,
        np.array([number for _, number in order], np.int32),
        np.array([START + at for at, _ in order], np.int64),
        np.array([[np.nan if v is None else v for v in last[key]] for key in order], np.float64).reshape(-1, 6),
    )


def made(found: Columns, expected: set[str], first: int = 0, last: int = CELLS) -> Account:
    return account(found, GPUS, expected, START + first * CELL_MS, START + last * CELL_MS)


def close(one: Account, other: Account) -> None:
    assert one.seen == other.seen
    assert one.spots == other.spots
    assert one.groups.keys() == other.groups.keys()
    for name, usage in one.groups.items():
        for field in fields(Usage):
            assert getattr(usage, field.name) == pytest.approx(getattr(other.groups[name], field.name))


@settings(max_examples=60)
@given(st.lists(rows, max_size=40), st.integers(1, CELLS - 1))
def test_periods_add_up(found: list, cut: int) -> None:
    table, everyone = columns(found), {one.uuid for one in GPUS}
    close(joined([made(table, everyone, 0, cut), made(table, everyone, cut)]), made(table, everyone))


@settings(max_examples=60)
@given(st.lists(rows, max_size=40))
def test_every_gpu_hour_is_in_exactly_one_use(found: list) -> None:
    everyone = {one.uuid for one in GPUS}
    usage = total(made(columns(found), everyone).groups.values())
    assert usage.gpu_hours == pytest.approx(len(GPUS) * CELLS * CELL_MS / HOUR)
    read = {(number, at // CELL_MS) for number, at, _ in found}
    assert usage.missing == pytest.approx((len(GPUS) * CELLS - len(read)) * CELL_MS / HOUR)
    assert usage.unmetered >= usage.missing - 1e-9
    assert usage.idle_kwh <= usage.kwh + 1e-12


@settings(max_examples=60)
@given(st.lists(rows, min_size=1, max_size=30))
def test_a_reading_without_power_adds_no_energy_and_is_unmetered(found: list) -> None:
    bare = [(number, at, (*row[:3], None, row[4], None)) for number, at, row in found]
    usage = total(made(columns(bare), set()).groups.values())
    assert usage.kwh == 0.0
    assert usage.unmetered == pytest.approx(usage.gpu_hours)


@settings(max_examples=60)
@given(st.floats(1, 700), st.lists(st.floats(0, 1e9), min_size=1, max_size=4))
def test_a_counter_tells_its_energy_whatever_the_power_readings_say(watts: float, powers: list[float]) -> None:
    at = [n * CELL_MS // 5 for n in range(len(powers) + 1)]
    row = (0.9, 1.0, 0.5)
    joules = [1e6 + watts * one / 1000 for one in at]
    found = [
        (0, one, (*row, power % 700, None, energy)) for one, power, energy in zip(at, [*powers, 1], joules, strict=True)
    ]
    usage = total(made(columns(found), set(), 0, 1).groups.values())
    assert usage.kwh == pytest.approx(watts * CELL_MS / 1000 / 3.6e6, rel=1e-6)


def test_a_counter_that_starts_anew_gives_way_to_the_power() -> None:
    found = [(0, 0, (0.9, 1.0, 0.5, 300.0, None, 5e6)), (0, 5 * MINUTE, (0.9, 1.0, 0.5, 500.0, None, 10.0))]
    usage = total(made(columns(found), set(), 0, 1).groups.values())
    assert usage.kwh == pytest.approx(400 * CELL_MS / 1000 / 3.6e6)


@settings(max_examples=80)
@given(st.lists(usages, max_size=6), st.lists(usages, max_size=6))
def test_usage_adds_like_numbers(some: list[Usage], others: list[Usage]) -> None:
    both, apart = total([*some, *others]), total(some) + total(others)
    for field in fields(Usage):
        assert getattr(both, field.name) == pytest.approx(getattr(apart, field.name))
    assert both.gpu_hours == pytest.approx(sum(one.gpu_hours for one in [*some, *others]))


@settings(max_examples=80)
@given(usages, usages, st.floats(0, 50), st.floats(1, 3), st.floats(0, 2))
def test_money_is_linear_in_use_and_leaves_out_what_has_no_price(
    one: Usage, other: Usage, price: float, pue: float, kwh: float
) -> None:
    prices = Prices("EUR", {"H100": price}, None, kwh, pue)
    mine = ("train", "NVIDIA H100 80GB HBM3")
    alone = money({mine: one}, prices)
    with_other = money({mine: one, ("train", "NVIDIA L4"): other}, prices)
    twice = money({mine: one + one}, prices)
    assert alone.held_idle == pytest.approx(price * one.held_idle)
    assert with_other.held_idle == alone.held_idle
    assert with_other.unpriced == pytest.approx(other.gpu_hours)
    assert twice.stranded == pytest.approx(2 * price * one.stranded)
    assert with_other.energy == pytest.approx((one.kwh + other.kwh) * pue * kwh)


@given(usages)
def test_without_prices_there_is_no_money_and_never_a_zero(one: Usage) -> None:
    found = money({("a", "b"): one}, Prices())
    assert [getattr(found, field.name) for field in fields(found) if field.name != "unpriced"] == [None] * 6
    assert found.unpriced == one.gpu_hours


def test_the_longest_name_that_fits_has_the_price() -> None:
    prices = Prices(gpu_hour={"A100": 1.0, "a100-sxm4-80gb": 2.0}, gpu_hour_default=0.5)
    assert prices.of_model("NVIDIA A100-SXM4-80GB") == 2.0
    assert prices.of_model("NVIDIA A100-PCIE-40GB") == 1.0
    assert prices.of_model("NVIDIA L4") == 0.5


@settings(max_examples=60)
@given(st.lists(st.frozensets(st.sampled_from(["a", "b", "c"])), min_size=1, max_size=8))
def test_a_silent_gpu_is_missing_between_its_readings_alone(seen: list[frozenset[str]]) -> None:
    groups = {"a": ("p", "m"), "b": ("p", "m"), "c": ("q", "m")}
    found = silent({n * HOUR: one for n, one in enumerate(seen)}, groups, {"c"})
    for hour, counts in found.items():
        place = hour // HOUR
        expected = 0
        for uuid in groups:
            before = any(uuid in one for one in seen[:place])
            after = uuid == "c" or any(uuid in one for one in seen[place + 1 :])
            expected += uuid not in seen[place] and before and after
        assert counts.total() == expected > 0


def test_a_gpu_without_a_reading_is_no_part_of_its_node() -> None:
    empty = (0.0, 0.0, 0.0, 60.0, None, None)
    usage = total(made(columns([(n, 0, empty) for n in range(2)]), set(), 0, 1).groups.values())
    assert (usage.free, usage.stranded) == (0.5, 0.0)
    usage = total(
        made(
            columns([(0, 0, empty), (1, 0, empty), (2, 0, (0.9, 1.0, 0.5, 300.0, None, None))]), set(), 0, 1
        ).groups.values()
    )
    assert (usage.free, usage.stranded) == (0.0, 0.5)

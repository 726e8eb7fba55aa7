"""Faults that no sign foretells: what a fleet's own past says of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.domain.clock import DAY
from tocsin.forecaster.live.unforeseen import DOUBT, HALF_LIFE_MS, REBASE, Unforeseen, beside
from tocsin_testing.builders import T0


def known(cases: int, came: int, hosts: int = 10, expected: float = 0.0) -> Unforeseen:
    made = Unforeseen()
    for number in range(cases):
        made.settle(f"node-{number % hosts}", expected, number < came, T0)
    return made


def test_nothing_is_said_where_nothing_is_known() -> None:
    assert Unforeseen().chance(T0) == 0.0
    assert known(500, 0).chance(T0) == 0.0


def test_it_is_the_share_that_came_beyond_the_models_word() -> None:
    assert known(1000, 30).chance(T0) == pytest.approx(30 / (1000 + DOUBT))
    assert known(1000, 30, expected=0.01).chance(T0) == pytest.approx(20 / (1000 + DOUBT))
    assert known(1000, 30, expected=0.05).chance(T0) == 0.0, "a model that expects more already"


def test_what_is_long_ago_counts_less() -> None:
    made = known(1000, 30)
    later = T0 + HALF_LIFE_MS
    assert made.chance(later) == pytest.approx(15 / (500 + DOUBT))
    for number in range(500):
        made.settle(f"node-{number % 10}", 0.0, False, later)
    assert made.chance(later) == pytest.approx(15 / (1000 + DOUBT))


def test_years_change_nothing_of_what_is_said() -> None:
    made, twin = known(1000, 30), known(1000, 30)
    twin.since_ms = T0 - 30 * HALF_LIFE_MS
    twin.hosts = {host: [each * 2.0**30 for each in one] for host, one in twin.hosts.items()}
    assert REBASE < 2.0**30
    assert twin.chance(T0 + DAY) == pytest.approx(made.chance(T0 + DAY))


def test_one_host_speaks_for_no_fleet() -> None:
    made = known(100, 0, hosts=10)
    for _ in range(1000):
        made.settle("liar", 0.0, True, T0)
    assert made.chance(T0) == pytest.approx(10 / (110 + DOUBT)), "as much as any other host"


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_both_together_are_never_less_likely_than_either(chance: float, unforeseen: float, share: float) -> None:
    together = beside(chance, unforeseen, share)
    assert max(chance, 1 - (1 - unforeseen) ** share) - 1e-9 <= together <= 1
    assert beside(chance, unforeseen) >= together - 1e-9

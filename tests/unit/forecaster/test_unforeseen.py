"""Faults that no sign foretells: what a fleet's own past says of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.domain.clock import DAY, HOUR
from tocsin.domain.finding import Subject, SubjectKind
from tocsin.domain.prediction import Prediction, PredictionStatus
from tocsin.forecaster.live.unforeseen import DOUBT, HALF_LIFE_MS, MOST_HOSTS, Unforeseen, beside
from tocsin_testing.builders import T0


def known(cases: int, came: int, hosts: int = 10, expected: float = 0.0) -> Unforeseen:
    made = Unforeseen()
    for number in range(cases):
        made.settle(f"node-{number % hosts}", expected, number < came, T0)
    return made


def close(share: float) -> object:
    return pytest.approx(share, rel=0.05)


def test_nothing_is_said_where_nothing_is_known() -> None:
    assert Unforeseen().chance() == 0.0
    assert known(500, 0).chance() == 0.0


@pytest.mark.parametrize("hosts", [1, 4, 5, 100])
def test_it_is_the_share_that_came_beyond_the_models_word(hosts: int) -> None:
    assert known(1000, 30, hosts).chance() == close(30 / (1000 + DOUBT))
    assert known(1000, 30, hosts, expected=0.01).chance() == close(20 / (1000 + DOUBT))
    assert known(1000, 30, hosts, expected=0.05).chance() == 0.0, "a model that expects more already"


def test_what_is_long_ago_counts_less() -> None:
    made = known(1000, 30)
    later = T0 + HALF_LIFE_MS
    for number in range(500):
        made.settle(f"node-{number % 10}", 0.0, False, later)
    assert made.chance() == close(15 / (1000 + DOUBT))


def test_a_fleet_of_some_hosts_learns_over_years_and_forgets_those_that_left() -> None:
    made = Unforeseen()
    for day in range(0, 800, 2):
        for number in range(40):
            host = f"node-{number % 5}" if day > 400 else f"old-{number % 5}"
            made.settle(host, 0.0, number % 20 == day % 20, T0 + day * DAY)
    assert made.chance() == close(0.05 * 400 / 500)
    assert set(made.hosts) == {f"node-{number}" for number in range(5)}


def test_one_host_speaks_for_no_fleet() -> None:
    made = known(100, 0)
    for _ in range(1000):
        made.settle("liar", 0.0, True, T0)
    assert made.chance() == close(220 / (320 + DOUBT)), "a fifth of all cases, however many it has"


@pytest.mark.parametrize("wrong_ms", [0, -(10**13), 10**15, 9 * 10**15])
def test_a_clock_that_is_wrong_for_a_while_breaks_nothing(wrong_ms: int) -> None:
    made = known(1000, 30)
    made.settle("node-1", 0.0, False, wrong_ms)
    assert 0.0 <= made.chance() < 0.03
    made.settle("node-1", 0.0, True, T0 + DAY)
    assert 0.0 <= made.chance() < 0.03


def test_names_of_hosts_are_bounded() -> None:
    made = Unforeseen()
    for number in range(MOST_HOSTS + 10):
        made.settle(f"n{number}", 0.0, False, T0)
    assert len(made.hosts) == MOST_HOSTS


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_both_together_are_never_less_likely_than_either(chance: float, unforeseen: float, share: float) -> None:
    together = beside(chance, unforeseen, share)
    assert max(chance, 1 - (1 - unforeseen) ** share) - 1e-9 <= together <= 1
    assert beside(chance, unforeseen) >= together - 1e-9


@given(st.floats(0, 0.99), st.floats(0, 0.9))
def test_the_models_own_word_is_kept_beside_it(chance: float, unforeseen: float) -> None:
    own = ((6 * HOUR, chance / 4), (48 * HOUR, chance))
    curve = tuple((ahead, beside(p, unforeseen, ahead / (48 * HOUR))) for ahead, p in own)
    subject = Subject(SubjectKind.GPU, "GPU-1", "node-1")
    said = Prediction(
        subject,
        "hardware_fault",
        T0,
        48 * HOUR,
        PredictionStatus.UNLIKELY,
        "m",
        "1",
        "s",
        curve=curve,
        probability=curve[-1][1],
        raw=chance,
    )
    assert said.own_probability == chance
    for (ahead, found), (wanted_ahead, wanted) in zip(said.own_curve, own, strict=True):
        assert (ahead, found) == (wanted_ahead, pytest.approx(wanted, abs=1e-9))

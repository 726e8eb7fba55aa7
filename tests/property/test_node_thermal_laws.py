"""Laws of the thermal controller over any course of temperature, power and gaps."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin.actions.node.thermal import ThermalController, ThermalSettings
from tocsin.domain.power import Heat, PowerLimits

SPELL = st.tuples(st.floats(40, 105), st.one_of(st.none(), st.floats(0, 800)), st.integers(1, 400))
LIMITS = st.tuples(st.integers(300, 700), st.integers(100, 300))


def course(spells: list[tuple[float, float | None, int]], found: PowerLimits) -> list[tuple[float, int]]:
    controller = ThermalController(found, ThermalSettings())
    now, limits = 0.0, [(0.0, controller.limit_mw)]
    for celsius, watts, seconds in spells:
        for _ in range(seconds):
            now += 1.0
            limits.append((now, controller.sample(now, Heat(celsius, watts, slowdown_c=89.0))))
    return limits


@settings(max_examples=60, deadline=None)
@given(st.lists(SPELL, min_size=1, max_size=12), LIMITS)
def test_it_stays_between_floor_and_what_was_found_and_never_swings(
    spells: list[tuple[float, float | None, int]], watts: tuple[int, int]
) -> None:
    prior, least = watts[0] * 1000, watts[1] * 1000
    found = PowerLimits(prior, prior, 700_000, least, 700_000)
    limits = course(spells, found)
    floor = min(prior, max(least, 420_000))
    assert all(floor <= limit <= prior for _, limit in limits)
    changes = [(at, b - a) for (_, a), (at, b) in pairwise(limits) if a != b]
    turned = sum((a > 0) is not (b > 0) for (_, a), (_, b) in pairwise(changes))
    assert turned <= 2
    assert all(later - earlier >= 20.0 for (earlier, _), (later, _) in pairwise(changes))


@settings(max_examples=30, deadline=None)
@given(st.floats(0, 800), st.integers(1, 600))
def test_a_gpu_that_is_not_hot_is_never_touched(watts: float, seconds: int) -> None:
    found = PowerLimits(700_000, 700_000, 700_000, 200_000, 700_000)
    assert {limit for _, limit in course([(81.9, watts, seconds)], found)} == {700_000}

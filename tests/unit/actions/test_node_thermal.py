"""The thermal controller step by step."""

from __future__ import annotations

import pytest

from tocsin.actions.node.thermal import ThermalController, ThermalPhase, ThermalSettings
from tocsin.domain.errors import InputError
from tocsin.domain.power import Heat, PowerLimits

FOUND = PowerLimits(700_000, 700_000, 700_000, 200_000, 700_000)
HOT, COOL, BETWEEN = 84.0, 74.0, 80.0
"""Margins of 3, 13 and 7 below a slowdown at 89 C."""


def heat(celsius: float, watts: float | None = 690.0) -> Heat:
    return Heat(celsius, watts, slowdown_c=89.0)


class Run:
    def __init__(self, found: PowerLimits = FOUND, **settings: float) -> None:
        self.controller = ThermalController(found, ThermalSettings(**settings))  # type: ignore[arg-type]
        self.now = 0.0

    def feed(self, celsius: float, seconds: int, watts: float | None = 690.0) -> int:
        for _ in range(seconds):
            self.now += 1.0
            self.controller.sample(self.now, heat(celsius, watts))
        return self.controller.limit_mw


def test_it_waits_for_three_samples_and_then_takes_one_step_from_what_is_drawn() -> None:
    run = Run()
    assert run.feed(HOT, 2) == 700_000
    assert run.controller.phase is ThermalPhase.ARMED
    assert run.feed(HOT, 1) == 690_000 - 52_500
    assert run.controller.phase is ThermalPhase.ENGAGED


def test_a_single_cooler_sample_starts_the_count_anew() -> None:
    run = Run()
    run.feed(HOT, 2)
    run.feed(BETWEEN, 1)
    assert run.feed(HOT, 2) == 700_000


def test_steps_are_twenty_seconds_apart_in_air_and_end_at_the_floor() -> None:
    run = Run()
    first = run.feed(HOT, 3)
    assert run.feed(HOT, 19) == first
    assert run.feed(HOT, 1) == first - 52_500
    assert run.feed(HOT, 500) == 420_000 == run.controller.floor_mw
    assert run.controller.phase is ThermalPhase.EXHAUSTED


def test_the_gpus_own_least_limit_is_a_floor_too() -> None:
    run = Run(PowerLimits(700_000, 700_000, 700_000, 500_000, 700_000))
    assert run.feed(HOT, 1000) == 500_000


def test_a_limit_that_was_already_below_the_floor_is_left() -> None:
    run = Run(PowerLimits(400_000, 400_000, 700_000, 200_000, 700_000))
    assert run.feed(HOT, 1000, watts=390.0) == 400_000


def test_without_power_the_step_is_taken_from_the_limit() -> None:
    assert Run().feed(HOT, 3, watts=None) == 700_000 - 52_500


def test_it_gives_back_one_step_after_five_minutes_cool_under_load() -> None:
    run = Run()
    low = run.feed(HOT, 3)
    assert run.feed(COOL, 300, watts=630.0) == low
    assert run.feed(COOL, 2, watts=630.0) == min(700_000, low + 52_500)


def test_an_idle_gpu_gives_nothing_back() -> None:
    run = Run()
    low = run.feed(HOT, 3)
    assert run.feed(COOL, 3000, watts=90.0) == low


def test_a_second_engagement_is_for_good() -> None:
    run = Run()
    run.feed(HOT, 3)
    assert run.feed(COOL, 400, watts=630.0) == 690_000
    low = run.feed(HOT, 3)
    assert low < 690_000
    assert run.feed(COOL, 3000, watts=630.0) == low


def test_a_gpu_that_does_not_tell_its_margin_changes_nothing() -> None:
    controller = ThermalController(FOUND, ThermalSettings())
    for second in range(100):
        assert controller.sample(float(second), Heat(95.0, 690.0)) == 700_000


@pytest.mark.parametrize(
    ("seen", "margin"),
    [
        (Heat(80.0, slowdown_c=89.0), 7.0),
        (Heat(80.0, margin_c=4.0), 4.0),
        (Heat(80.0, margin_c=9.0, slowdown_c=89.0), 7.0),
        (Heat(80.0), None),
    ],
)
def test_the_margin_is_the_drivers_or_that_to_slowdown(seen: Heat, margin: float | None) -> None:
    assert seen.margin == margin


def test_thresholds_that_would_swing_are_refused() -> None:
    with pytest.raises(InputError, match=r"release_margin_c = 4\.0"):
        ThermalSettings(release_margin_c=4.0)

"""Hundreds of GPUs whose cooling gets worse: the bars that the thermal controller has to clear."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tocsin.actions.node.thermal import ThermalSettings
from tocsin.offline.rehearsal import Rehearsal, rehearse, turns
from tocsin.telemetry.log import configure_logging

CASES = int(os.environ.get("TOCSIN_CASES", "250"))
"""A thousand by hand: `TOCSIN_CASES=1000`."""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Rehearsal:
    configure_logging("error", "console")
    return rehearse(CASES, 1, 1.5, ThermalSettings(), tmp_path_factory.mktemp("limits"))


def test_nearly_all_stay_below_the_slowdown_threshold(found: Rehearsal) -> None:
    controller, nothing, _ = found.arms
    assert controller.kept_below_slowdown >= 0.99
    assert controller.kept_below_slowdown > nothing.kept_below_slowdown
    assert controller.slowed_minutes < nothing.slowed_minutes


def test_it_costs_little_throughput_and_far_less_than_a_fixed_cap(found: Rehearsal) -> None:
    controller, _, fixed = found.arms
    assert controller.throughput_lost_median is not None
    assert fixed.throughput_lost_median is not None
    assert controller.throughput_lost_median < 0.08
    assert controller.throughput_lost_median < fixed.throughput_lost_median / 2


def test_every_limit_is_as_it_was_and_none_swings(found: Rehearsal) -> None:
    assert found.engaged > CASES / 4, "the cases have to be about something"
    assert found.restored == CASES
    assert found.swinging == 0
    assert max(found.turns) <= 2


def test_the_same_seed_gives_the_same_result(tmp_path: Path) -> None:
    configure_logging("error", "console")
    first, second = (rehearse(40, 3, 0.3, ThermalSettings(), tmp_path / name) for name in "ab")
    assert first == second


@pytest.mark.parametrize(
    ("limits", "wanted"), [([700.0], 0), ([700.0, 650.0, 600.0], 0), ([700.0, 650.0, 700.0, 700.0, 650.0], 2)]
)
def test_turns_are_changes_of_direction(limits: list[float], wanted: int) -> None:
    assert turns(limits) == wanted

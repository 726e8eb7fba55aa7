"""Laws of the thermal controller over any course of temperature, power and gaps."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin.actions.node.thermal import ThermalController, ThermalSettings
from tocsin.domain.finding import ActionKind
from tocsin.domain.power import Heat, PowerLimits
from tocsin_testing.node_world import Node

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


@settings(max_examples=60)
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


@settings(max_examples=30)
@given(st.floats(0, 800), st.integers(1, 600))
def test_a_gpu_that_is_not_hot_is_never_touched(watts: float, seconds: int) -> None:
    found = PowerLimits(700_000, 700_000, 700_000, 200_000, 700_000)
    assert {limit for _, limit in course([(81.9, watts, seconds)], found)} == {700_000}


CAP = st.one_of(st.none(), st.integers(250, 720))


@settings(max_examples=60)
@given(st.lists(st.tuples(SPELL, CAP), min_size=1, max_size=12))
def test_a_cap_changes_none_of_that_and_is_never_exceeded(
    spells: list[tuple[tuple[float, float | None, int], int | None]],
) -> None:
    controller = ThermalController(PowerLimits(700_000, 700_000, 700_000, 200_000, 700_000), ThermalSettings())
    now, limits = 0.0, [(0.0, controller.limit_mw)]
    for (celsius, watts, seconds), cap in spells:
        controller.cap_mw = None if cap is None else cap * 1000
        for _ in range(seconds):
            now += 1.0
            drawn = None if watts is None else min(watts, (cap or 1000))
            before = controller.limit_mw
            wanted = controller.sample(now, Heat(celsius, drawn, slowdown_c=89.0))
            assert wanted <= before or cap is None or cap * 1000 >= before, "it is not given back under a lower cap"
            assert wanted >= before or controller.cap_mw is None or wanted < max(controller.cap_mw, 420_001)
            limits.append((now, wanted))
    assert all(420_000 <= limit <= 700_000 for _, limit in limits)
    changes = [(at, b - a) for (_, a), (at, b) in pairwise(limits) if a != b]
    assert sum((a > 0) is not (b > 0) for (_, a), (_, b) in pairwise(changes)) <= 2
    assert all(later - earlier >= 20.0 for (earlier, _), (later, _) in pairwise(changes))


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(250, 720), st.integers(60, 95)), min_size=1, max_size=25))
def test_of_two_orders_the_lower_limit_holds_and_the_prior_one_comes_back(turns: list[tuple[int, int, int]]) -> None:
    with TemporaryDirectory() as folder:
        node = Node(Path(folder) / "limits")
        node.power.limit_mw["GPU-a"] = 690_000
        caps: list[int] = []
        for place, (what, watts, celsius) in enumerate(turns):
            node.power.celsius["GPU-a"] = float(celsius)
            if what == 0:
                node.worker.receive([node.order(key=f"cap {place}", power_limit_watts=str(watts))])
                caps = caps or [watts]
            elif what == 1:
                node.worker.receive([node.order(key=f"heat {place}")])
            elif what == 2:
                node.worker.receive([node.order(ActionKind.RESTORE, key=f"end {place}", of="cap")])
                caps = []
            elif what == 3:
                node.worker.receive([node.order(ActionKind.RESTORE, key=f"end {place}", of="heat")])
            else:
                node.restart()
                caps = []
            node.seconds(25)
            assert node.watts <= min([690, *caps])
            assert node.watts == 690 or node.markers
        node.restart()
        assert (node.watts, node.markers) == (690, [])

"""Allocator ratios and FGD worked by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.domain import fragmentation as fleet
from tocsin.domain import fragmentation as frag
from tocsin.domain.fragmentation import FreeNode, TaskClass
from tocsin.rules.fleet import fleet_fragmentation as of_counts

GIB = 2.0**30


@pytest.mark.parametrize(
    ("ratio", "part", "whole", "expected"),
    [
        (frag.cache_slack, 30 * GIB, 40 * GIB, 0.25),
        (frag.cache_slack, 40 * GIB, 40 * GIB, 0.0),
        (frag.cache_slack, 0.0, 40 * GIB, 1.0),
        (frag.cache_slack, 0.0, 0.0, 0.0),
        (frag.split_fragmentation, 6 * GIB, 40 * GIB, 0.15),
        (frag.split_fragmentation, 0.0, 0.0, 0.0),
        (frag.internal_fragmentation, 7.5 * GIB, 8 * GIB, 0.0625),
        (frag.internal_fragmentation, 0.0, 0.0, 0.0),
    ],
)
def test_ratios_of_an_allocator(ratio: object, part: float, whole: float, expected: float) -> None:
    assert callable(ratio)
    assert ratio(part, whole) == expected


@pytest.mark.parametrize("ratio", [frag.cache_slack, frag.split_fragmentation, frag.internal_fragmentation])
@pytest.mark.parametrize(("part", "whole"), [(2.0, 1.0), (-1.0, 1.0), (float("nan"), 1.0)])
def test_impossible_sizes_are_refused(ratio: object, part: float, whole: float) -> None:
    assert callable(ratio)
    with pytest.raises(ValueError, match="must lie between"):
        ratio(part, whole)


PLACEMENTS = {
    "1g": (1, 1, (0, 1, 2, 3, 4, 5, 6), 7),
    "1g+me": (1, 1, (0, 1, 2, 3, 4, 5, 6), 1),
    "1g.double": (2, 1, (0, 2, 4, 6), 4),
    "2g": (2, 2, (0, 2, 4), 3),
    "3g": (4, 3, (0, 4), 2),
    "4g": (4, 4, (0,), 1),
    "7g": (8, 7, (0,), 1),
}
"""The placement table of A100 and H100: memory slices, compute slices, starts, most instances."""


@pytest.mark.parametrize("name", sorted(PLACEMENTS))
def test_every_row_of_the_placement_table(name: str) -> None:
    memory, compute, starts, most = PLACEMENTS[name]
    profile = frag.SEVEN_SLICE.profiles[name]
    assert frag.SEVEN_SLICE.profiles.keys() == PLACEMENTS.keys()
    assert (profile.memory_slices, profile.compute_slices, profile.starts, profile.max_count) == PLACEMENTS[name]
    assert frag.mig_capacity(())[name] == frag.mig_ideal(())[name] == most
    for start in starts:
        free, left = frag.free_slices([(name, start)])
        assert free == set(range(8)) - set(range(start, start + memory))
        assert left == 7 - compute
    for start in set(range(8)) - set(starts):
        with pytest.raises(ValueError, match="no placement"):
            frag.free_slices([(name, start)])


MIX = (TaskClass(0.5, 0.25), TaskClass(1, 0.5), TaskClass(4, 0.25))

FGD = [
    # Two whole GPUs: halves and single GPUs fit, four do not.
    (FreeNode((1.0, 1.0)), 0.25 * 2, 0.0),
    # Four whole GPUs serve everything.
    (FreeNode((1.0, 1.0, 1.0, 1.0)), 0.0, 0.0),
    # A remainder of 0.6 serves halves alone; the whole GPU serves both smaller classes.
    (FreeNode((0.6, 1.0)), 0.5 * 0.6 + 0.25 * 1.6, 0.0),
    # 0.4 serves nobody.
    (FreeNode((0.4, 1.0)), 0.25 * 0.4 + 0.5 * 0.4 + 0.25 * 1.4, 0.4),
    (FreeNode((0.4,)), 0.4, 0.4),
    # A cordoned node and a full one.
    (FreeNode((1.0, 1.0), usable=False), 2.0, 2.0),
    (FreeNode((0.0, 0.0)), 0.0, 0.0),
    (FreeNode(()), 0.0, 0.0),
]


@pytest.mark.parametrize(("node", "expected", "useless"), FGD)
def test_expected_fragmentation_of_a_node(node: FreeNode, expected: float, useless: float) -> None:
    assert fleet.expected_unusable(node, MIX) == pytest.approx(expected)
    assert fleet.unusable_for_all(node, MIX) == pytest.approx(useless)


def test_a_node_without_cpus_strands_its_gpus() -> None:
    mix = (TaskClass(1, 0.5, cpus=8), TaskClass(2, 0.5, cpus=4))
    poor = FreeNode((1.0, 1.0, 1.0), cpus=6)
    assert fleet.unusable(poor, mix[0]) == 3.0
    assert fleet.unusable(poor, mix[1]) == 0.0
    assert fleet.expected_unusable(poor, mix) == 1.5
    assert fleet.unusable_for_all(poor, mix) == 0.0
    assert fleet.unusable_for_all(FreeNode((1.0, 1.0), cpus=2), mix) == 2.0
    assert fleet.unusable_for_all(FreeNode((1.0, 1.0), cpus=None), mix) == 0.0


def test_a_class_that_needs_no_gpu_uses_none() -> None:
    assert fleet.unusable(FreeNode((1.0, 0.5)), TaskClass(0)) == 1.5
    assert fleet.unusable_for_all(FreeNode((1.0,)), (TaskClass(0),)) == 1.0


@pytest.mark.parametrize(
    ("free", "gpus", "found"),
    [(0, 8, 0), (7, 8, 7), (8, 8, 0), (3, 4, 3), (4, 4, 0), (5, 16, 5), (9, 16, 0), (0, 0, 0)],
)
def test_free_gpus_are_stranded_where_they_are_too_few_for_a_whole_node(free: int, gpus: int, found: int) -> None:
    assert fleet.stranded(free, gpus) == found


def test_a_gpu_that_is_free_in_part_makes_no_whole_one() -> None:
    found = fleet.fleet_fragmentation([FreeNode((1.0, 0.5)), FreeNode((1.0, 1.0))], MIX)
    assert found.stranded == 1.0


def test_a_fleet_is_the_sum_of_its_nodes() -> None:
    found = fleet.fleet_fragmentation([node for node, _, _ in FGD], MIX)
    assert found.free == pytest.approx(11.4)
    assert found.fragmented == pytest.approx(sum(expected for _, expected, _ in FGD))
    assert found.unusable == pytest.approx(2.8)
    assert found.ratio == pytest.approx(found.fragmented / 11.4)
    assert fleet.fleet_fragmentation([], MIX).ratio == 0.0
    assert fleet.fleet_fragmentation([FreeNode((1.0,))], ()) == fleet.FleetFragmentation(1.0, 0.0, 0.0, 0.0)


def test_the_gradient_prefers_the_remainder_that_serves_nobody_else() -> None:
    half = TaskClass(0.5)
    broken, whole = FreeNode((0.5, 1.0)), FreeNode((1.0, 1.0))
    assert fleet.gain_of_placing(broken, half, MIX) > fleet.gain_of_placing(whole, half, MIX)
    assert fleet.gain_of_placing(broken, half, MIX) == pytest.approx(0.5 * 0.5 + 0.25 * 0.5)
    with pytest.raises(ValueError, match="does not fit"):
        fleet.gain_of_placing(FreeNode((0.4,)), half, MIX)


@pytest.mark.parametrize("gpus", [-1.0, 1.5])
def test_tasks_that_cannot_be(gpus: float) -> None:
    with pytest.raises(ValueError, match="a task takes"):
        TaskClass(gpus)


def test_the_mix_that_jobs_show() -> None:
    assert fleet.mix_of_sizes([8, 1, 1, 2, 0]) == (TaskClass(1, 0.5), TaskClass(2, 0.25), TaskClass(8, 0.25))
    assert fleet.mix_of_sizes([]) == ()


tasks = st.builds(TaskClass, st.integers(0, 8).map(float), st.floats(0.01, 10))


@given(st.lists(st.integers(0, 8), max_size=12), st.lists(tasks, min_size=1, max_size=5))
def test_whole_gpus_counted_by_host_are_the_same_measure(free: list[int], mix: list[TaskClass]) -> None:
    slow = fleet.fleet_fragmentation([FreeNode((1.0,) * count + (0.0,) * (8 - count)) for count in free], mix)
    fast = of_counts(np.array(free, dtype=np.int64), np.full(len(free), 8, dtype=np.int64), mix)
    assert (fast.free, fast.unusable, fast.stranded) == (slow.free, slow.unusable, slow.stranded)
    assert fast.fragmented == pytest.approx(slow.fragmented)
    assert 0 <= fast.unusable <= fast.fragmented + 1e-9
    assert fast.fragmented <= fast.free + 1e-9


def test_without_a_mix_one_job_of_the_reference_size_is_meant() -> None:
    free, sizes = np.array([8, 3, 1]), np.array([8, 8, 8])
    assert of_counts(free, sizes, ()) == fleet.FleetFragmentation(12, 4.0, 4, 4)
    assert of_counts(np.array([2, 4]), np.array([4, 4]), ()) == fleet.FleetFragmentation(6, 2.0, 2, 2)
    assert of_counts(np.array([], dtype=np.int64), np.array([], dtype=np.int64), ()).ratio == 0.0

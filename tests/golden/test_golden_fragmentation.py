"""Fragmentation against vectors read from real A100 and H100 boards, and worked by hand."""

from __future__ import annotations

import pytest

from tocsin.domain import fragmentation as frag

NAMES = ("1g", "1g.double", "2g", "3g", "4g", "7g")
CAPACITY = [
    ((), (7, 4, 3, 2, 1, 1)),
    ((("4g", 0),), (3, 2, 1, 1, 0, 0)),
    ((("4g", 0), ("2g", 4)), (1, 1, 0, 0, 0, 0)),
    ((("4g", 0), ("2g", 4), ("1g", 6)), (0, 0, 0, 0, 0, 0)),
    ((("3g", 4),), (4, 2, 2, 1, 1, 0)),
    ((("3g", 0),), (3, 2, 1, 1, 0, 0)),
    ((("1g", 6),), (6, 3, 3, 1, 1, 0)),
    ((("1g", 0),), (6, 3, 2, 1, 0, 0)),
    ((("3g", 0), ("3g", 4)), (0, 0, 0, 0, 0, 0)),
]


@pytest.mark.parametrize(("layout", "expected"), CAPACITY)
def test_capacity_is_what_the_driver_answers(layout: tuple[frag.Placement, ...], expected: tuple[int, ...]) -> None:
    found = frag.mig_capacity(layout)
    assert tuple(found[name] for name in NAMES) == expected
    assert found["1g+me"] == min(1, found["1g"]), "the media engines are there once, and fit where a 1g fits"


def test_media_engines_are_given_once() -> None:
    layout = (("1g+me", 0),)
    assert frag.mig_capacity(layout) == frag.mig_capacity((("1g", 0),)) | {"1g+me": 0}
    assert frag.mig_fragmentation_by_profile(layout)["1g+me"] == 0, "taken is not fragmented"
    with pytest.raises(ValueError, match=r"at most 1 of 1g\+me"):
        frag.free_slices([("1g+me", 0), ("1g+me", 1)])


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        ((("3g", 4),), {}),
        ((("1g", 6),), {}),
        ((("3g", 0),), {"1g": 0.25, "2g": 0.5, "4g": 1.0}),
        ((("1g", 0),), {"2g": 1 / 3, "4g": 1.0}),
    ],
)
def test_index_by_profile(layout: tuple[frag.Placement, ...], expected: dict[str, float]) -> None:
    found = {name: value for name, value in frag.mig_fragmentation_by_profile(layout).items() if value > 0}
    assert found == pytest.approx(expected)


def test_index_of_a_gpu_weighs_profiles_by_demand() -> None:
    layout = (("3g", 0),)
    assert frag.mig_fragmentation(layout, {"1g": 3, "2g": 1}) == pytest.approx((3 * 0.25 + 0.5) / 4)
    assert frag.mig_fragmentation(layout, {"3g": 1}) == 0
    assert frag.mig_fragmentation(layout, {}) == 0


def test_index_of_a_fleet_weighs_gpus_by_free_slices() -> None:
    demand = {"4g": 1.0}
    assert frag.mig_fleet_fragmentation([(("3g", 0),), ()], demand) == pytest.approx(4 / 12)
    assert frag.mig_fleet_fragmentation([], demand) == 0


def test_a30_has_its_own_template() -> None:
    assert frag.mig_capacity((), frag.FOUR_SLICE) == {"1g": 4, "1g+me": 1, "2g": 2, "2g+me": 1, "4g": 1}
    assert frag.mig_capacity((("1g", 1),), frag.FOUR_SLICE) == {"1g": 3, "1g+me": 1, "2g": 1, "2g+me": 1, "4g": 0}


def test_repack_finds_the_harmless_places() -> None:
    assert frag.repack(["1g"], {"4g": 1.0, "2g": 1.0}) == (("1g", 6),)
    assert frag.repack(["3g"], {"4g": 1.0}) == (("3g", 4),)
    with pytest.raises(ValueError, match="does not fit"):
        frag.repack(["7g", "1g"], {"1g": 1.0})


@pytest.mark.parametrize(
    ("layout", "problem"),
    [((("3g", 1),), "no placement"), ((("9g", 0),), "no placement"), ((("3g", 0), ("1g", 2)), "overlaps")],
)
def test_impossible_layouts_are_refused(layout: tuple[frag.Placement, ...], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        frag.mig_capacity(layout)


def test_allocator_indices() -> None:
    assert frag.external_fragmentation(3.0, 4.0) == 0.25
    assert frag.external_fragmentation(0.0, 0.0) == 0
    with pytest.raises(ValueError, match="largest free block"):
        frag.external_fragmentation(5.0, 4.0)


def test_gang_indices() -> None:
    assert frag.gang_fragmentation([8, 4, 4], 8) == 0.5
    assert frag.gang_fragmentation([8, 4, 4], 4) == 0
    assert frag.gang_fragmentation([], 8) == 0
    assert frag.largest_job_fragmentation([6, 2]) == 0.25
    with pytest.raises(ValueError, match="gang"):
        frag.gang_fragmentation([1], 0)

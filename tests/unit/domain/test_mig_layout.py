"""MIG layouts by the numbers that a driver gives."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin.domain.fragmentation import FOUR_SLICE, SEVEN_SLICE, MigTemplate, Placement, free_slices, mig_capacity
from tocsin.domain.mig_layout import by_profile, layouts, profile_of, template_of

TEMPLATES = {"seven": SEVEN_SLICE, "four": FOUR_SLICE}


def counts(layout: list[Placement]) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, _ in layout:
        found[name] = found.get(name, 0) + 1
    return found


@st.composite
def real(draw: st.DrawFn) -> tuple[list[Placement], MigTemplate]:
    """A layout that some sequence of creations and removals can lead to."""
    template = draw(st.sampled_from(list(TEMPLATES.values())))
    layout: list[Placement] = []
    for name in draw(st.lists(st.sampled_from(sorted(template.profiles)), max_size=7)):
        start = draw(st.sampled_from(template.profiles[name].starts))
        try:
            free_slices([*layout, (name, start)], template)
        except ValueError:
            continue
        layout.append((name, start))
    return layout, template


@settings(max_examples=150)
@given(real())
def test_the_layout_that_is_found_has_the_same_instances_and_can_take_the_same(
    known: tuple[list[Placement], MigTemplate],
) -> None:
    layout, template = known
    able = mig_capacity(layout, template)
    found = layouts(counts(layout), able, template)
    assert found.layout is not None
    assert found.count >= 1
    assert counts(list(found.layout)) == counts(layout)
    assert mig_capacity(found.layout, template) == able


def test_numbers_that_contradict_each_other_have_no_layout() -> None:
    assert layouts({"7g": 1}, {"1g": 3}).layout is None
    assert layouts({"9g": 1}, {}).count == 0
    assert layouts({"3g": 3}, {}).count == 0


def test_without_the_remaining_capacity_there_are_several() -> None:
    assert layouts({"3g": 1}, {}).count == 2
    assert layouts({"3g": 1}, {"4g": 0}).layout == (("3g", 0),)
    assert layouts({"3g": 1}, {"4g": 1}).layout == (("3g", 4),)


@pytest.mark.parametrize(
    ("name", "slice_gb", "profile"),
    [
        ("1g.10gb", 10, "1g"),
        ("1g.20gb", 10, "1g.double"),
        ("MIG 1g.10gb+me", 10, "1g+me"),
        ("3g.40gb", 10, "3g"),
        ("2g", None, "2g"),
        ("5g.50gb", 10, ""),
        ("NVIDIA", None, ""),
    ],
)
def test_names_of_the_driver(name: str, slice_gb: int | None, profile: str) -> None:
    assert profile_of(name, slice_gb) == profile


def test_numbers_by_the_drivers_names() -> None:
    told = {"1g.10gb": 4.0, "1g.20gb": 2.0, "1g.10gb+me": 1.0, "3g.40gb": 1.0, "bogus": 7.0}
    assert by_profile(told) == {"1g": 4, "1g.double": 2, "1g+me": 1, "3g": 1}


def test_an_a30_has_four_slices() -> None:
    assert template_of("NVIDIA A30") is FOUR_SLICE
    assert template_of("NVIDIA A100-SXM4-80GB") is SEVEN_SLICE
    assert template_of("NVIDIA H100 80GB HBM3") is SEVEN_SLICE

"""Where the MIG instances of a GPU may begin, told by how many there are and by what the driver says still fits.

No counter says at which slice an instance begins. Counts and remaining capacity together leave few layouts, and those
that are left can take the same further instances.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from tocsin.domain.fragmentation import FOUR_SLICE, SEVEN_SLICE, MigTemplate, Placement, fits_together, mig_capacity
from tocsin.domain.metrics import split_variant

_NAME = re.compile(r"^(?:MIG )?(\d+)g(?:\.(\d+)gb)?(\+me)?(?![.\w])")
"""The driver's name: compute slices, memory, media engines; what else stands behind takes no slice."""
_A30 = re.compile(r"\bA30\b")
_Numbers = tuple[tuple[str, float], ...]
INSTANCES, CAPACITY = "gpu_mig_instances", "gpu_mig_remaining_capacity"
_MOST = 64
"""Layouts of one GPU that are looked at: all instances of one template lead to fewer."""


@dataclass(frozen=True, slots=True)
class PossibleLayouts:
    """`layout` is one that agrees with all that is known, None where none does; `count` is how many do."""

    layout: tuple[Placement, ...] | None
    count: int


@lru_cache(maxsize=256)
def template_of(model: str) -> MigTemplate:
    """The slices of a GPU by its model's name; what is not an A30 is taken to have seven."""
    return FOUR_SLICE if _A30.search(model) else SEVEN_SLICE


def profile_of(name: str, slice_gb: int | None, template: MigTemplate = SEVEN_SLICE) -> str:
    """The template's profile for the driver's `name`, such as ``1g.10gb+me``; empty where it has none.

    `slice_gb` is the memory of one slice as names count it: one compute slice with twice as much is ``1g.double``. None
    where it is not known.
    """
    match = _NAME.match(name)
    if match is None:
        return ""
    compute, memory, media = match.groups()
    double = compute == "1" and memory is not None and slice_gb is not None and int(memory) >= 2 * slice_gb
    short = "1g.double" if double else f"{compute}g{media or ''}"
    return short if short in template.profiles else ""


def by_profile(named: Mapping[str, float], template: MigTemplate = SEVEN_SLICE) -> dict[str, int]:
    """Numbers by the driver's names as numbers by profile of `template`; of two names of one profile the larger."""
    sizes = [int(found[2]) for name in named if (found := _NAME.match(name)) and found[1] == "1" and found[2]]
    slice_gb = min(sizes, default=None)
    result: dict[str, int] = {}
    for name, value in named.items():
        short = profile_of(name, slice_gb, template)
        if short:
            result[short] = max(result.get(short, 0), round(value))
    return result


def layouts(
    counts: Mapping[str, int], capacity: Mapping[str, int], template: MigTemplate = SEVEN_SLICE
) -> PossibleLayouts:
    """The layouts with `counts` instances by profile whose remaining capacity is `capacity`, as far as that is known.

    The one that is given begins its instances as late as possible, as the driver's own choice does.
    """
    wanted = tuple(sorted((name, number) for name, number in counts.items() if number > 0))
    known = tuple(sorted((name, number) for name, number in capacity.items() if name in template.profiles))
    return _layouts(wanted, known, template is FOUR_SLICE)


def by_label(values: Mapping[str, float], metric: str) -> dict[str, float]:
    """The variants of `metric` among the `values` of a reading, by the value of their label."""
    return {label: values[key] for label, key in _labels(tuple(values), metric)}


@lru_cache(maxsize=4096)
def _labels(keys: tuple[str, ...], metric: str) -> tuple[tuple[str, str], ...]:
    """Labels and keys of the variants of `metric` among `keys`; readings of a GPU have the same ones mostly."""
    begin = f"{metric}{{"
    return tuple((split_variant(key)[2], key) for key in keys if key.startswith(begin))


def deduced(
    values: Mapping[str, float], template: MigTemplate, counts: Mapping[str, int] | None = None
) -> PossibleLayouts:
    """The layout that the `values` of a GPU's reading leave, None where they leave several that differ in what fits.

    `counts` are its instances by profile; None takes those of `values`. No layout agrees where nothing is known.
    """
    held = None if counts is None else tuple(counts.items())
    instances, capacity = (tuple(by_label(values, metric).items()) for metric in (INSTANCES, CAPACITY))
    return _deduced(instances, capacity, held, template is FOUR_SLICE)


@lru_cache(maxsize=1024)
def _deduced(instances: _Numbers, fits: _Numbers, counts: _Numbers | None, four: bool) -> PossibleLayouts:
    template = FOUR_SLICE if four else SEVEN_SLICE
    held = by_profile(dict(instances), template) if counts is None else {name: round(one) for name, one in counts}
    capacity = by_profile(dict(fits), template)
    if not held and not capacity:
        return PossibleLayouts(None, 0)
    found = layouts(held, capacity, template)
    # Layouts of the same numbers differ in what still fits: without the driver's word, one of several is a guess.
    return found if capacity or found.count == 1 else PossibleLayouts(None, found.count)


@lru_cache(maxsize=4096)
def _layouts(counts: tuple[tuple[str, int], ...], capacity: tuple[tuple[str, int], ...], four: bool) -> PossibleLayouts:
    template = FOUR_SLICE if four else SEVEN_SLICE
    if any(name not in template.profiles for name, _ in counts):
        return PossibleLayouts(None, 0)
    profiles = [name for name, number in counts for _ in range(number)]
    profiles.sort(key=lambda name: -template.profiles[name].memory_slices)
    found = []
    for layout in _placed(tuple(profiles), (), template):
        able = mig_capacity(layout, template)
        if all(able[name] == number for name, number in capacity):
            found.append(layout)
            if len(found) == _MOST:
                break
    return PossibleLayouts(found[0] if found else None, len(found))


def _placed(
    profiles: tuple[str, ...], layout: tuple[Placement, ...], template: MigTemplate
) -> Iterator[tuple[Placement, ...]]:
    """Every way to place `profiles` beside `layout`, late starts first; instances of one profile keep their order."""
    if not profiles:
        yield tuple(sorted(layout, key=lambda one: one[1]))
        return
    name, rest = profiles[0], profiles[1:]
    before = [start for other, start in layout if other == name]
    for start in reversed(template.profiles[name].starts):
        if before and start >= before[-1]:
            continue
        grown = (*layout, (name, start))
        if fits_together(grown, template):
            yield from _placed(rest, grown, template)

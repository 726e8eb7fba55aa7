"""Where MIG instances lie, from what agents read of them."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tocsin.actions.planning.state import TEMPLATES
from tocsin.domain import mig_layout
from tocsin.domain.fragmentation import FOUR_SLICE, Placement, free_slices
from tocsin.domain.grouping import grouped
from tocsin.domain.mig_layout import CAPACITY, INSTANCES, deduced
from tocsin.domain.reading import MIG_START, Reading

_PROFILE = re.compile(r"(?P<slices>\d)g\.(?P<memory>\d+)gb(?P<media>\+me)?")
"""A driver's name of a profile, such as ``3g.40gb``."""
_DOUBLE = 1.5
"""Slices of memory from which on an instance of one compute slice is the one with two; names round to whole GB."""
_PARTS = "gpu_mig_instance_memory_used_ratio"
_RATIO, _MODE = "gpu_mig_fragmentation_ratio", "gpu_mig_mode"


@dataclass(frozen=True, slots=True)
class MigLayout:
    """The placement of each instance of a GPU in MIG mode, by the instance's UUID; None where `reason` says why not.

    `guessed` are instances of which it is not known which of several places each has; one that is in no reading is
    called by the GPU and a number. `count` is how many layouts agree with what is known.
    """

    placed: Mapping[str, Placement] | None
    reason: str = ""
    guessed: frozenset[str] = field(default_factory=frozenset)
    count: int = 1


class _Unclear(Exception):
    """Why a layout is unknown."""


def template_of(model: str) -> str:
    """The name of the slices that a GPU of `model` has in MIG mode."""
    return "four" if mig_layout.template_of(model) is FOUR_SLICE else "seven"


def layouts_of(readings: Iterable[Reading]) -> dict[str, MigLayout]:
    """The layout of each physical GPU in MIG mode, by its UUID.

    An instance tells its first slice in a label of its reading (`MIG_START`). Where one does not, the layout is worked
    out from how many there are and from what still fits, as far as that leaves one, or several into which the same
    fits. Compute instances that share one GPU instance cannot be planned for.
    """
    newest = {one.gpu.uuid: one for one in readings}
    parts = grouped((one.gpu.parent, one) for one in newest.values() if one.gpu.is_mig)
    return {
        uuid: _layout(one, parts.get(uuid, ()))
        for uuid, one in newest.items()
        if not one.gpu.is_mig and is_divided(one, parts.get(uuid, ()))
    }


def is_divided(whole: Reading, parts: Sequence[Reading]) -> bool:
    """Whether a GPU is in MIG mode."""
    return bool(parts) or _RATIO in whole.values or whole.values.get(_MODE) == 1.0


def _layout(whole: Reading, parts: Sequence[Reading]) -> MigLayout:
    try:
        profiles = _profiles(whole, parts)
        if parts and all(one.gpu.labels.get(MIG_START, "").isdecimal() for one in parts):
            return MigLayout(_placements(whole, parts, profiles))
        if not parts and _is_bare(whole):
            return MigLayout({})
        return _worked_out(whole, profiles)
    except _Unclear as unclear:
        return MigLayout(None, str(unclear), count=0)


def _is_bare(whole: Reading) -> bool:
    """Whether a GPU whose fragmentation is known has no instance that anything tells of."""
    known = any(name.startswith((_PARTS, INSTANCES, CAPACITY)) for name in whole.values)
    return _RATIO in whole.values and not known


def _profiles(whole: Reading, parts: Sequence[Reading]) -> dict[str, str]:
    found = {one.gpu.uuid: profile_of(one, whole) for one in parts}
    unknown = sorted(uuid for uuid, profile in found.items() if not profile)
    if unknown:
        raise _Unclear(f"its MIG instance {unknown[0]} has a shape that is not known")
    return found


def _placements(whole: Reading, parts: Sequence[Reading], profiles: Mapping[str, str]) -> dict[str, Placement]:
    made = {one.gpu.uuid: (profiles[one.gpu.uuid], int(one.gpu.labels[MIG_START])) for one in parts}
    try:
        free_slices(made.values(), TEMPLATES[template_of(whole.gpu.model)])
    except ValueError as error:
        raise _Unclear(f"its MIG instances report contradictory placements: {error}") from None
    return made


def _worked_out(whole: Reading, profiles: Mapping[str, str]) -> MigLayout:
    template = TEMPLATES[template_of(whole.gpu.model)]
    found = deduced(whole.values, template, Counter(profiles.values()) if profiles else None)
    if found.layout is None:
        several = "several layouts of its MIG instances agree with what is known"
        return MigLayout(
            None, several if found.count else "the placement of its MIG instances is unknown", count=found.count
        )
    names: dict[str, list[str]] = defaultdict(list)
    for uuid, profile in sorted(profiles.items()):
        names[profile].append(uuid)
    placed = {
        (names[profile].pop(0) if profiles else _unread(whole.gpu.uuid, number)): (profile, start)
        for number, (profile, start) in enumerate(found.layout)
    }
    alike = Counter(profile for profile, _ in found.layout)
    sure = {name for name, (profile, _) in placed.items() if profiles and found.count == alike[profile] == 1}
    return MigLayout(placed, guessed=frozenset(placed.keys() - sure), count=found.count)


def _unread(gpu: str, number: int) -> str:
    return f"{gpu}/instance-{number}"


def is_unread(instance: str, gpu: str) -> bool:
    """Whether an instance in the layout of `gpu` is in no reading."""
    return instance.startswith(f"{gpu}/instance-")


def profile_of(part: Reading, whole: Reading) -> str:
    """The profile of an instance as planners name it (``1g``, ``1g.double``, ``3g``); empty where it is not known."""
    named = _PROFILE.match(part.gpu.mig_profile)
    template = TEMPLATES[template_of(whole.gpu.model)]
    if named is None:
        return ""
    name = f"{named['slices']}g"
    total = whole.values.get("gpu_memory_total_bytes")
    if name == "1g" and total:
        slices = int(named["memory"]) * 2**30 / (total / template.memory_slices)
        name = "1g.double" if slices >= _DOUBLE else "1g+me" if named["media"] else name
    return name if name in template.profiles else ""


def running_demand(layouts: Iterable[Mapping[str, Placement]]) -> dict[str, float]:
    """The share of each profile among the instances that there are: what comes is taken to be like it."""
    counts = Counter(name for layout in layouts for name, _ in layout.values())
    total = sum(counts.values())
    return {name: count / total for name, count in sorted(counts.items())}

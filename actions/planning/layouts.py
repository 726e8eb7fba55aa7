"""Where MIG instances lie, from what agents read of them."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from tocsin.actions.planning.state import TEMPLATES
from tocsin.domain.fragmentation import Placement
from tocsin.domain.identity import MIG_START
from tocsin.domain.reading import Reading

_PROFILE = re.compile(r"(?P<slices>\d)g\.(?P<memory>\d+)gb(?P<media>\+me)?")
"""A driver's name of a profile, such as ``3g.40gb``."""
_DOUBLE = 1.5
"""Slices of memory from which on an instance of one compute slice is the one with two; names round to whole GB."""
_PARTS = "gpu_mig_instance_memory_used_ratio"
_MODE = "gpu_mig_fragmentation_ratio"


def template_of(model: str) -> str:
    """The name of the slices that a GPU of `model` has in MIG mode."""
    return "four" if "A30" in model else "seven"


def layouts_of(readings: Iterable[Reading]) -> dict[str, dict[str, Placement]]:
    """The placement of each instance by its UUID, by physical GPU in MIG mode; GPUs of which not all is known lack.

    An instance tells its first slice in a label of its reading (`MIG_START`). Compute instances that share one GPU
    instance cannot be planned for.
    """
    newest = {one.gpu.uuid: one for one in readings}
    parts: dict[str, list[Reading]] = defaultdict(list)
    for one in newest.values():
        if one.gpu.is_mig:
            parts[one.gpu.parent].append(one)
    found: dict[str, dict[str, Placement]] = {}
    for uuid, one in newest.items():
        if not one.gpu.is_mig and is_divided(one, parts.get(uuid, ())):
            layout = _layout(one, parts.get(uuid, ()))
            if layout is not None:
                found[uuid] = layout
    return found


def is_divided(whole: Reading, parts: Sequence[Reading]) -> bool:
    """Whether a GPU is in MIG mode."""
    return bool(parts) or _MODE in whole.values


def _layout(whole: Reading, parts: Sequence[Reading]) -> dict[str, Placement] | None:
    """None where an instance does not tell where it is, or is one of a shape that is not known."""
    if not parts and any(name.startswith(_PARTS) for name in whole.values):
        return None
    made: dict[str, Placement] = {}
    for one in parts:
        start, profile = one.gpu.labels.get(MIG_START, ""), profile_of(one, whole)
        if not start.isdecimal() or not profile:
            return None
        made[one.gpu.uuid] = (profile, int(start))
    return made if len({start for _, start in made.values()}) == len(made) else None


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

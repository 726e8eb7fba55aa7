"""MIG: the layout of a GPU, what still fits, and what the layout rules out; and vGPU instances."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tocsin.collector.nvml.answers import LASTING, Answers, reason_of
from tocsin.collector.nvml.library import Code, Nvml, NvmlFailure, attempt, coded, text
from tocsin.domain.fragmentation import MigProfile, MigTemplate, mig_fragmentation
from tocsin.domain.metrics import variant
from tocsin.domain.missing import Missing

_PROFILES = 0x12
"""``NVML_GPU_INSTANCE_PROFILE_COUNT`` of the newest header; an older driver knows fewer."""
_PREFIX = "MIG "
_CAPACITY = "nvmlDeviceGetGpuInstanceRemainingCapacity"
_EXTRA = re.compile(r"[+-].*$")
"""What a profile has beside its slices: media engines, graphics."""


@dataclass(frozen=True, slots=True)
class Profile:
    """One kind of GPU instance as the driver describes it: `number` is its id on this product."""

    number: int
    name: str
    compute_slices: int
    most: int
    places: tuple[tuple[int, int], ...]

    @property
    def shape(self) -> str:
        """The name without extras: profiles of one shape take the same slices."""
        return _EXTRA.sub("", self.name)


class Layout:
    """What still fits on a GPU in MIG mode, by profile, and how broken up it is.

    `instances` are the ids of its GPU instances. Profiles and places are looked up once. Places need privilege: without
    it the metrics are denied.
    """

    def __init__(self, library: Nvml, handle: Any, instances: Sequence[int]) -> None:
        self._library = library
        self._handle = handle
        self._instances = tuple(dict.fromkeys(instances))
        self._profiles: tuple[Profile, ...] | None = None
        self._refused: dict[str, Missing] = {}

    def read(self, answers: Answers) -> None:
        """Add the remaining capacity by profile, and the fragmentation."""
        if self._profiles is None:
            self._profiles = self._look_up()
        self._capacity(self._profiles, answers)
        self._fragmentation(self._profiles, answers)

    def _look_up(self) -> tuple[Profile, ...]:
        found: dict[int, Profile] = {}
        for constant in range(_PROFILES):
            info = attempt(self._library, "nvmlDeviceGetGpuInstanceProfileInfo", self._handle, constant)
            if info is None or info.id in found:
                continue
            places = attempt(self._library, "nvmlDeviceGetGpuInstancePossiblePlacements", self._handle, info.id) or ()
            name = text(getattr(info, "name", "")).removeprefix(_PREFIX)
            if not name:
                name = f"{info.sliceCount}g.{round(info.memorySizeMB / 1024)}gb"
            places = tuple((int(start), int(size)) for start, size in places)
            found[info.id] = Profile(info.id, name, info.sliceCount, info.instanceCount, places)
        return tuple(found.values())

    def _capacity(self, profiles: Sequence[Profile], answers: Answers) -> None:
        metric = "gpu_mig_remaining_capacity"
        if metric in self._refused or not profiles:
            answers.fail(metric, self._refused.get(metric, Missing.UNSUPPORTED))
            return
        for profile in profiles:
            code, count = coded(partial(self._library.call, _CAPACITY, self._handle, profile.number))()
            if not code:
                answers.add(variant(metric, "profile", profile.name), count)
                continue
            reason = reason_of(code)
            answers.fail(variant(metric, "profile", profile.name), reason)
            if code in LASTING and reason is Missing.DENIED:
                self._refused[metric] = reason
                return

    def _fragmentation(self, profiles: Sequence[Profile], answers: Answers) -> None:
        """The share of instances ruled out, every profile weighing the same: what is asked for is not known here."""
        metric = "gpu_mig_fragmentation_ratio"
        known = {profile.number: profile for profile in profiles if profile.places}
        if not known:
            answers.fail(metric, Missing.DENIED if profiles else Missing.UNSUPPORTED)
            return
        layout = []
        for instance in self._instances:
            place = self._place(instance, metric, answers)
            if place is None:
                return
            number, start = place
            if number not in known:
                answers.fail(metric, Missing.BLANK)
                return
            layout.append((known[number].shape, start))
        template = _template(tuple(known.values()))
        try:
            answers.add(metric, mig_fragmentation(layout, dict.fromkeys(template.profiles, 1.0), template))
        except ValueError:
            # Instances were made or destroyed since they were listed.
            answers.fail(metric, Missing.BLANK)

    def _place(self, instance: int, metric: str, answers: Answers) -> tuple[int, int] | None:
        try:
            handle = self._library.call("nvmlDeviceGetGpuInstanceById", self._handle, instance)
            info = self._library.call("nvmlGpuInstanceGetInfo", handle)
        except NvmlFailure as failure:
            answers.fail(metric, reason_of(failure.code))
            return None
        return int(info.profileId), int(info.placement.start)


def _template(profiles: Sequence[Profile]) -> MigTemplate:
    ends = [start + size for profile in profiles for start, size in profile.places]
    made: dict[str, MigProfile] = {}
    for profile in profiles:
        known = made.get(profile.shape)
        if known is None or known.max_count < profile.most:
            starts = tuple(sorted(start for start, _ in profile.places))
            size = profile.places[0][1]
            made[profile.shape] = MigProfile(profile.shape, size, profile.compute_slices, starts, profile.most)
    return MigTemplate(max(ends), max(profile.compute_slices for profile in profiles), made)


class Vgpus:
    """Active vGPU instances of a GPU: how many of each type, and how much of its memory each uses."""

    def __init__(self, library: Nvml, handle: Any) -> None:
        self._library = library
        self._handle = handle
        self._refused: Missing | None = None

    def read(self, answers: Answers) -> None:
        """Add the instances by type, and memory by instance."""
        metric = "gpu_vgpu_instances"
        if self._refused is not None:
            answers.fail(metric, self._refused)
            return
        code, active = coded(partial(self._library.call, "nvmlDeviceGetActiveVgpus", self._handle))()
        if code and code != Code.NOT_FOUND:
            reason = reason_of(code)
            answers.fail(metric, reason)
            if code in LASTING:
                self._refused = reason
            return
        types: Counter[str] = Counter()
        for instance in active or ():
            kind = attempt(self._library, "nvmlVgpuInstanceGetType", instance)
            name = "" if kind is None else text(attempt(self._library, "nvmlVgpuTypeGetName", kind))
            types[name or "unknown"] += 1
            self._memory(instance, kind, answers)
        if not types:
            answers.add(metric, 0)
        for name, count in types.items():
            answers.add(variant(metric, "profile", name), count)

    def _memory(self, instance: Any, kind: Any, answers: Answers) -> None:
        uuid = text(attempt(self._library, "nvmlVgpuInstanceGetUUID", instance))
        if not uuid or kind is None:
            return
        key = variant("gpu_mig_instance_memory_used_ratio", "instance", uuid)
        used = attempt(self._library, "nvmlVgpuInstanceGetFbUsage", instance)
        size = attempt(self._library, "nvmlVgpuTypeGetFramebufferSize", kind)
        answers.add(key, used / size if used is not None and size else None)

"""How one GPU is read: what is due when, what stands meanwhile, and the parts that take more than a row of a table."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import truediv
from typing import Any, Protocol

from tocsin.collector.nvml.answers import (
    BLANK_FROM,
    LASTING,
    PERCENT,
    Answers,
    divisor,
    link_up,
    metric_of,
    reason_of,
    scaled,
    unpack_ber,
    usable,
)
from tocsin.collector.nvml.library import Code, FieldReplies, Nvml, NvmlFailure, attempt, coded, text
from tocsin.collector.nvml.probes import (
    BYTE_FIELDS,
    LINK_FIELDS,
    LINK_METRICS,
    CallProbe,
    FieldProbe,
    Tier,
    calls_of,
    fields_of,
    link_calls,
    link_fields,
)
from tocsin.domain.fragmentation import MigProfile, MigTemplate, mig_fragmentation
from tocsin.domain.metrics import variant
from tocsin.domain.reading import Missing

# Asking one NVML handle for fields and calls, again and again, at the least cost.

_SIZE_RETRIES = 3
"""Lists can grow between the two calls in which nvidia-ml-py reads them."""

Bound = Callable[[], tuple[int, Any]]


class FieldQuery:
    """A batch of fields of one handle. Those that this GPU does not have leave the batch for good.

    `dropped` has their reasons by key, `latency_us` the longest answer of the last batch in microseconds, None where
    none came.
    """

    def __init__(self, library: Nvml, handle: Any, probes: Iterable[FieldProbe]) -> None:
        self._library = library
        self._handle = handle
        self._probes: list[FieldProbe] = []
        self._ask: Callable[[], tuple[int, FieldReplies | None]] | None = None
        self._keys: tuple[str, ...] = ()
        self._divisors: tuple[float, ...] = ()
        self._plain = True
        self.dropped: dict[str, Missing] = {}
        self.latency_us: int | None = None
        self._set(list(probes))

    def _set(self, probes: list[FieldProbe]) -> None:
        self._probes = probes
        self._ask = None
        self._keys = tuple(probe.key for probe in probes)
        self._divisors = tuple(divisor(probe.scale) for probe in probes)
        self._plain = len(set(self._keys)) == len(probes) and not any(p.packed or p.state for p in probes)

    def leave_out(self, keys: Iterable[str]) -> None:
        """Ask for `keys` no more, without a reason."""
        unwanted = set(keys)
        self._set([probe for probe in self._probes if probe.key not in unwanted])

    def read(self, answers: Answers) -> None:
        """Ask for all. Raises GpuLost, and NvmlFailure where the library is gone."""
        self.latency_us = None
        if not self._probes:
            return
        try:
            if (ask := self._ask) is None:
                wanted = [(probe.field, probe.scope) for probe in self._probes]
                ask = self._ask = self._library.batch(self._handle, wanted)
            code, replies = ask()
        except NvmlFailure as failure:
            code, replies = failure.code, None
        if replies is None:
            self._all_failed(code, answers)
            return
        codes, values, self.latency_us = replies
        if self._plain and not any(codes) and usable(values):
            answers.values.update(zip(self._keys, map(truediv, values, self._divisors), strict=True))
        else:
            self._one_by_one(codes, values, answers)

    def _all_failed(self, code: int, answers: Answers) -> None:
        reason = reason_of(code)
        answers.blame(self._keys, reason)
        if code in LASTING:
            self.dropped.update(dict.fromkeys(self._keys, reason))
            self._set([])

    def _one_by_one(self, codes: Sequence[int], values: Sequence[float], answers: Answers) -> None:
        lasting: set[int] = set()
        summed: dict[str, float] = {}
        broken: set[str] = set()
        for place, (probe, code, value) in enumerate(zip(self._probes, codes, values, strict=True)):
            if code != Code.SUCCESS:
                reason = reason_of(code)
                answers.fail(probe.key, reason)
                if code in LASTING:
                    lasting.add(place)
                    self.dropped[probe.key] = reason
                else:
                    broken.add(probe.key)
            elif not value < BLANK_FROM:
                answers.fail(probe.key, Missing.BLANK)
                broken.add(probe.key)
            elif probe.packed:
                answers.add(probe.key, unpack_ber(value))
            elif probe.state:
                answers.add(probe.key, link_up(value))
            else:
                summed[probe.key] = summed.get(probe.key, 0.0) + value / divisor(probe.scale)
        # A sum that lacks a part would look like a counter that started again.
        answers.values.update((key, value) for key, value in summed.items() if key not in broken)
        if lasting:
            self._set([probe for place, probe in enumerate(self._probes) if place not in lasting])


class _BoundCall:
    """One call, and what makes it once it was made."""

    __slots__ = ("bound", "probe", "single")

    def __init__(self, probe: CallProbe) -> None:
        self.probe = probe
        self.single = len(probe.metrics) == 1
        self.bound: Bound | None = None


class Calls:
    """Calls of one handle, in order; one that this GPU does not have is not made again, its reason is in `dropped`."""

    def __init__(self, library: Nvml, handle: Any, probes: Iterable[CallProbe]) -> None:
        self._library = library
        self._handle = handle
        self._rows = [_BoundCall(probe) for probe in probes]
        self.dropped: dict[str, Missing] = {}

    def read(self, answers: Answers) -> None:
        """Make each call one of whose metrics has no value yet. Raises GpuLost and NvmlFailure."""
        values = answers.values
        lasting: list[_BoundCall] = []
        for row in self._rows:
            metrics = row.probe.metrics
            if metrics[0] in values and (row.single or all(metric in values for metric in metrics)):
                continue
            code, reply = self._asked(row)
            if code:
                reason = reason_of(code)
                wanted = [metric for metric in metrics if metric not in values]
                answers.blame(wanted, reason)
                if code in LASTING:
                    lasting.append(row)
                    self._drop(wanted, reason)
                continue
            try:
                given = row.probe.read(reply)
            except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError):
                # A driver that answers in another shape must not cost the metrics beside it.
                answers.blame([metric for metric in metrics if metric not in values], Missing.BLANK)
            else:
                for key, value in given.items():
                    if key not in values:
                        answers.add(key, value)
        if lasting:
            self._rows = [row for row in self._rows if row not in lasting]

    def _drop(self, keys: Sequence[str], reason: Missing) -> None:
        for key in keys:
            if self.dropped.get(key, Missing.UNSUPPORTED) is Missing.UNSUPPORTED:
                self.dropped[key] = reason

    def _asked(self, row: _BoundCall) -> tuple[int, Any]:
        if (bound := row.bound) is None:
            try:
                bound = self._library.bind(row.probe.function, self._handle, *row.probe.arguments)
            except NvmlFailure as failure:
                return failure.code, None
            row.bound = bound
        return ask(bound)


def ask(bound: Bound) -> tuple[int, Any]:
    """The code and answer of one call; a list that grew while it was read is read again."""
    for _ in range(1 + _SIZE_RETRIES):
        code, reply = bound()
        if code != Code.INSUFFICIENT_SIZE:
            break
    return code, reply


class AnswerPart(Protocol):
    """Something of a handle that takes more than one question to know."""

    def read(self, answers: Answers) -> None:
        """Add to `answers`. Raises GpuLost and NvmlFailure."""


class Tiered:
    """What is read of one handle at one cadence: fields, calls, then parts; `values` and `missing` are the last."""

    def __init__(
        self,
        library: Nvml,
        handle: Any,
        fields: Iterable[FieldProbe] = (),
        calls: Iterable[CallProbe] = (),
        parts: Sequence[AnswerPart] = (),
    ) -> None:
        self.fields = FieldQuery(library, handle, fields)
        self.calls = Calls(library, handle, calls)
        self._parts = parts
        self._clean = False
        self.values: dict[str, float] = {}
        self.missing: dict[str, Missing] = {}

    def read(self) -> None:
        """Ask for everything once more. Raises GpuLost, and NvmlFailure where the library is gone."""
        answers = Answers()
        self.fields.read(answers)
        self.calls.read(answers)
        for part in self._parts:
            part.read(answers)
        before, self.values = self.values, answers.values
        clean = not answers.failed
        if clean and self._clean and before.keys() == answers.values.keys():
            return
        self._clean = clean
        for dropped in (self.fields.dropped, self.calls.dropped):
            for key, reason in dropped.items():
                answers.fail(key, reason)
        self.missing = answers.missing()


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


class MigCapacity:
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
            if not (name := text(getattr(info, "name", "")).removeprefix(_PREFIX)):
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
            if (place := self._place(instance, metric, answers)) is None:
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
        if (known := made.get(profile.shape)) is None or known.max_count < profile.most:
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


_LISTS = (
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetGraphicsRunningProcesses",
    "nvmlDeviceGetMPSComputeRunningProcesses",
)
_UTILIZATION = "nvmlDeviceGetProcessUtilization"
_FULL = 100


class Processes:
    """Compute, graphics and MPS processes of one handle, each counted once.

    A process whose memory the driver does not tell is blank. The count needs every list that the GPU has: one that
    fails leaves it unknown, for a GPU that looks free may be reset. `utilization` adds the mean SM utilisation of each
    since the reading before, which no MIG instance and no MIG-enabled GPU has.
    """

    def __init__(self, library: Nvml, handle: Any, *, utilization: bool) -> None:
        self._library = library
        self._handle = handle
        self._lists = list(_LISTS)
        self._refused: Missing | None = None
        self._utilization: Missing | None = None if utilization else Missing.UNSUPPORTED
        self._last_seen = 0

    def read(self, answers: Answers) -> None:
        listed, unknown = self._listed()
        if unknown is None:
            answers.add("gpu_processes", len(listed))
        else:
            answers.fail("gpu_processes", unknown)
            if not listed:
                answers.fail("gpu_process_memory_used_bytes", unknown)
        for pid, used in listed.items():
            answers.add(variant("gpu_process_memory_used_bytes", "pid", str(pid)), used)
        self._read_utilization(listed if unknown is None else None, answers)

    def _listed(self) -> tuple[dict[int, int | None], Missing | None]:
        """Memory by process, and why there may be more of them."""
        found: dict[int, int | None] = {}
        unknown = self._refused
        for function in self._lists:
            code, reply = ask(coded(partial(self._library.call, function, self._handle)))
            if code:
                unknown = self._list_failed(function, code) or unknown
                continue
            if any(not process.pid for process in reply):
                # Drivers of R535 fill a longer structure: from the second entry on memory is read as the process.
                unknown = Missing.BLANK
                continue
            for process in reply:
                known, used = found.get(process.pid), process.usedGpuMemory
                found[process.pid] = used if known is None or (used is not None and used > known) else known
        return found, unknown

    def _list_failed(self, function: str, code: int) -> Missing | None:
        reason = reason_of(code)
        if code in LASTING:
            self._lists = [name for name in self._lists if name != function]
        if reason is Missing.UNSUPPORTED and function != _LISTS[0]:
            # No graphics or no MPS here: there is nothing to count.
            return None
        if code in LASTING:
            self._refused = reason
        return reason

    def _read_utilization(self, listed: dict[int, int | None] | None, answers: Answers) -> None:
        metric = "gpu_process_sm_utilization_ratio"
        if self._utilization is not None:
            answers.fail(metric, self._utilization)
            return
        code, samples = ask(coded(partial(self._library.call, _UTILIZATION, self._handle, self._last_seen)))
        if code == Code.NOT_FOUND:
            # Nothing ran since the samples of the reading before.
            return
        if code:
            reason = reason_of(code)
            answers.fail(metric, reason)
            if code in LASTING:
                self._utilization = reason
            return
        by_pid: dict[int, list[int]] = {}
        for sample in samples:
            self._last_seen = max(self._last_seen, sample.timeStamp)
            if sample.smUtil <= _FULL and (listed is None or sample.pid in listed):
                by_pid.setdefault(sample.pid, []).append(sample.smUtil)
        for pid, used in by_pid.items():
            answers.add(variant(metric, "pid", str(pid)), scaled(sum(used) / len(used), PERCENT))


_STAGGER = 8
"""GPUs of one node take turns with their slow questions, so that no reading has them all."""
_MOST_LINKS = 36
_LINKS_MAX = "gpu_nvlink_links_max"


class Without(AnswerPart):
    """Metrics that a GPU cannot have."""

    def __init__(self, metrics: Iterable[str]) -> None:
        self._metrics = tuple(metrics)

    def read(self, answers: Answers) -> None:
        answers.blame(self._metrics, Missing.UNSUPPORTED)


class TierCache:
    """What of one handle is not read every time: each tier at its period, with the last values in between.

    `values` and `reasons` are those of all tiers, static ones among them. `turn` spreads the second reading over the
    period; after that a tier is due one period after it was read, or at once where the clock went back.

    Whatever was read last stands whole: values and reasons are replaced together once every part of a due tier has
    answered, so that a reading never mixes two states of one tier, and a GPU that is lost half-way leaves no half.
    """

    def __init__(self, static: Tiered | None, tiers: Sequence[tuple[Tier, Tiered]], turn: int) -> None:
        self._tiers = tiers
        self._held = [*([] if static is None else [static]), *(asked for _, asked in tiers)]
        self._turn = (turn % _STAGGER + 1) / _STAGGER
        self._due: dict[Tier, int] = {}
        self._read_ms: int | None = None
        self.values: dict[str, float] = {}
        self.reasons: dict[str, Missing] = {}

    def hurry(self) -> None:
        self._due = dict.fromkeys(self._due, 0)

    def refresh(self, at_ms: int) -> frozenset[Tier]:
        """Read what is due; which tiers were. Raises GpuLost and NvmlFailure."""
        went_back = self._read_ms is not None and at_ms < self._read_ms
        self._read_ms = at_ms
        fresh: set[Tier] = set()
        for tier, asked in self._tiers:
            due = self._due.get(tier)
            if due is None or at_ms >= due or went_back:
                asked.read()
                fresh.add(tier)
                self._due[tier] = at_ms + int(tier.value * (self._turn if due is None else 1.0))
        if fresh:
            self.values = {key: value for asked in self._held for key, value in asked.values.items()}
            self.reasons = {key: reason for asked in self._held for key, reason in asked.missing.items()}
        return frozenset(fresh)


class ReadPlan:
    """How one GPU is read: `cache`, `fast`, which was just read to see what the GPU has, and keys of bytes by link.

    Raises GpuLost, and NvmlFailure where the library is gone.
    """

    def __init__(self, library: Nvml, handle: Any, turn: int, instances: Sequence[int]) -> None:
        mode = attempt(library, "nvmlDeviceGetMigMode", handle)
        mig = bool(mode) and mode[0] == 1
        static = Tiered(library, handle, fields_of(Tier.STATIC), calls_of(Tier.STATIC))
        static.read()
        links = _links(library, handle, static)
        parts: list[AnswerPart] = [Vgpus(library, handle)]
        if mig:
            parts.append(MigCapacity(library, handle, instances))
        if not links:
            parts.append(Without(LINK_METRICS))
        slow = Tiered(
            library,
            handle,
            (*fields_of(Tier.SLOW), *link_fields(LINK_FIELDS, links)),
            (*calls_of(Tier.SLOW), *link_calls(links)),
            parts,
        )
        processes = Tiered(library, handle, parts=[Processes(library, handle, utilization=not mig)])
        self.cache = TierCache(static, [(Tier.SLOW, slow), (Tier.PROCESSES, processes)], turn)
        by_link = link_fields(BYTE_FIELDS, links)
        self.by_link = tuple(probe.key for probe in by_link)
        self.fast = Tiered(library, handle, (*fields_of(Tier.FAST), *by_link), calls_of(Tier.FAST))
        self.fast.read()
        # Where the driver has a sum over all links, bytes by link are not asked for.
        idle = [key for key in self.by_link if metric_of(key) in self.fast.values]
        self.fast.fields.leave_out(idle)
        self.fast.values = {key: value for key, value in self.fast.values.items() if key not in idle}


def _links(library: Nvml, handle: Any, static: Tiered) -> int:
    if not (links := int(static.values.get(_LINKS_MAX, 0))):
        while links < _MOST_LINKS and attempt(library, "nvmlDeviceGetNvLinkState", handle, links) is not None:
            links += 1
        if links:
            static.values[_LINKS_MAX] = float(links)
            static.missing.pop(_LINKS_MAX, None)
    return links

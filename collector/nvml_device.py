"""One GPU as NVML shows it, with its MIG instances."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tocsin.collector.nvml_answers import Answers, Asker, GpuLost
from tocsin.collector.nvml_library import Code, Nvml, NvmlFailure
from tocsin.collector.nvml_probes import (
    CALLS,
    FIELDS,
    INSTANCE_CALLS,
    LINK_CALLS,
    LINK_FIELDS,
    LINK_METRICS,
    PROBED,
    RATES,
    CallProbe,
    FieldProbe,
    LinkCall,
    is_static,
    metric_of,
)
from tocsin.domain.clock import SECOND
from tocsin.domain.identity import Gpu, normalise_pci_bus_id
from tocsin.domain.metrics import variant
from tocsin.domain.missing import Missing
from tocsin.domain.reading import Reading

_PROFILE = re.compile(r"MIG (\S+)\s*$")
_STATIC_FIELDS = tuple(probe for probe in FIELDS if is_static(probe.key))
_FIELDS = tuple(probe for probe in FIELDS if not is_static(probe.key))
_STATIC_CALLS = tuple(probe for probe in CALLS if all(map(is_static, probe.metrics)))
_CALLS = tuple(probe for probe in CALLS if probe not in _STATIC_CALLS)
_COUNTERS = frozenset(counter for counters in RATES.values() for counter in counters)


@dataclass(frozen=True, slots=True)
class Place:
    """What the operator says of this node's GPUs."""

    host: str
    pool: str = "default"
    rack: str = ""
    labels: Mapping[str, str] | None = None

    def gpu(self, uuid: str, **known: Any) -> Gpu:
        """A GPU here."""
        return Gpu(uuid, self.host, pool=self.pool, rack=self.rack, labels=dict(self.labels or {}), **known)


@dataclass(frozen=True, slots=True)
class Counters:
    """Counters behind the rates, as last read."""

    at_ms: int
    sums: Mapping[str, float]


class Device:
    """Reads one GPU. Static values are read once; a new enumeration makes a new `Device`.

    `before` hands the rates' counters over from the enumeration before.
    """

    def __init__(
        self, library: Nvml, handle: Any, gpu: Gpu, instances: Sequence[Instance], before: Counters | None
    ) -> None:
        self.gpu = gpu
        self.instances = tuple(instances)
        self.handle = handle
        self.counters = before
        self._asker = Asker(library, handle)
        self._static: Answers | None = None
        self._link_fields: tuple[FieldProbe, ...] = ()
        self._link_calls: tuple[CallProbe, ...] = ()

    def read(self, at_ms: int) -> list[Reading]:
        """The GPU's reading, then one of each of its MIG instances.

        A GPU that is lost has only reasons. Raises NvmlFailure where the library itself is gone.
        """
        try:
            answers = self._read(at_ms)
            instances = [instance.read(at_ms) for instance in self.instances]
        except GpuLost:
            return self.absent(at_ms, Missing.LOST)
        self._add_instances(answers, instances)
        return [Reading(self.gpu, at_ms, answers.values, answers.missing()), *instances]

    def absent(self, at_ms: int, reason: Missing) -> list[Reading]:
        """Readings without any value, for one reason."""
        own = Reading(self.gpu, at_ms, {}, dict.fromkeys(PROBED, reason))
        return [own, *(instance.absent(at_ms, reason) for instance in self.instances)]

    def _read(self, at_ms: int) -> Answers:
        if self._static is None:
            self._static = self._read_static()
        answers = Answers()
        self._asker.fields((*_FIELDS, *self._link_fields), answers)
        self._asker.calls((*_CALLS, *self._link_calls), answers)
        self._rate(answers, at_ms)
        if not self._link_fields:
            for metric in LINK_METRICS:
                answers.fail(metric, Missing.UNSUPPORTED)
        for key, value in self._static.values.items():
            answers.add(key, value)
        for key, reason in self._static.missing().items():
            answers.fail(key, reason)
        return answers

    def _read_static(self) -> Answers:
        answers = Answers()
        self._asker.fields(_STATIC_FIELDS, answers)
        self._asker.calls(_STATIC_CALLS, answers)
        links = range(int(answers.values.get("gpu_nvlink_links_max", 0)))
        self._link_fields = tuple(
            FieldProbe(variant(row.metric, "link", str(link)), row.field, row.scale, link, row.packed)
            for row in LINK_FIELDS
            for link in links
        )
        self._link_calls = tuple(_link_call(row, link) for row in LINK_CALLS for link in links)
        return answers

    def _rate(self, answers: Answers, at_ms: int) -> None:
        sums: dict[str, float] = {}
        for key, value in answers.values.items():
            name = metric_of(key)
            if name in _COUNTERS:
                sums[name] = sums.get(name, 0.0) + value
        before, self.counters = self.counters, Counters(at_ms, sums)
        missing = answers.missing()
        for rate, counters in RATES.items():
            lacking = [missing.get(name, Missing.UNSUPPORTED) for name in counters if name not in sums]
            if lacking:
                answers.fail(rate, lacking[0])
            elif before is None or at_ms <= before.at_ms or any(name not in before.sums for name in counters):
                answers.fail(rate, Missing.NOT_DUE)
            else:
                grown = sum(sums[name] - before.sums[name] for name in counters)
                # A counter that shrank wrapped or started again: no rate can be told for this step.
                answers.add(rate, grown * SECOND / (at_ms - before.at_ms) if grown >= 0 else None)

    def _add_instances(self, answers: Answers, instances: Sequence[Reading]) -> None:
        for profile, count in Counter(reading.gpu.mig_profile for reading in instances).items():
            answers.add(variant("gpu_mig_instances", "profile", profile), count)
        for reading in instances:
            key = variant("gpu_mig_instance_memory_used_ratio", "instance", reading.gpu.uuid)
            used = reading.values.get("gpu_memory_used_ratio")
            if used is None:
                answers.fail(key, reading.missing.get("gpu_memory_used_ratio", Missing.BLANK))
            else:
                answers.add(key, used)


def _link_call(row: LinkCall, link: int) -> CallProbe:
    key = variant(row.metric, "link", str(link))
    return CallProbe(row.function, (link, *row.arguments), (key,), lambda answer: {key: answer})


class Instance:
    """One MIG instance of a GPU."""

    def __init__(self, library: Nvml, handle: Any, gpu: Gpu) -> None:
        self.gpu = gpu
        self._asker = Asker(library, handle)

    def read(self, at_ms: int) -> Reading:
        """What the instance's own handle answers. Raises GpuLost and NvmlFailure."""
        answers = Answers()
        self._asker.calls(INSTANCE_CALLS, answers)
        return Reading(self.gpu, at_ms, answers.values, answers.missing())

    def absent(self, at_ms: int, reason: Missing) -> Reading:
        """A reading without any value."""
        names = [metric for call in INSTANCE_CALLS for metric in call.metrics]
        return Reading(self.gpu, at_ms, {}, dict.fromkeys(names, reason))


def open_device(library: Nvml, index: int, place: Place, counters: Mapping[str, Counters]) -> Device:
    """The GPU at `index`, with its MIG instances. Raises NvmlFailure where its handle or UUID cannot be had."""
    handle = library.call("nvmlDeviceGetHandleByIndex", index)
    uuid = _text(library.call("nvmlDeviceGetUUID", handle))
    gpu = place.gpu(
        uuid,
        index=index,
        model=_text(_try(library, "nvmlDeviceGetName", handle)),
        serial=_text(_try(library, "nvmlDeviceGetSerial", handle)),
        pci_bus_id=normalise_pci_bus_id(_text(getattr(_try(library, "nvmlDeviceGetPciInfo", handle), "busId", ""))),
    )
    return Device(library, handle, gpu, _instances(library, handle, gpu, place), counters.get(uuid))


def _instances(library: Nvml, handle: Any, parent: Gpu, place: Place) -> list[Instance]:
    mode = _try(library, "nvmlDeviceGetMigMode", handle)
    if not mode or mode[0] != 1:
        return []
    found: list[Instance] = []
    for number in range(_try(library, "nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
        instance = _try(library, "nvmlDeviceGetMigDeviceHandleByIndex", handle, number)
        uuid = _text(_try(library, "nvmlDeviceGetUUID", instance)) if instance is not None else ""
        if uuid:
            gpu = place.gpu(
                uuid,
                index=parent.index,
                model=parent.model,
                serial=parent.serial,
                pci_bus_id=parent.pci_bus_id,
                parent=parent.uuid,
                mig_profile=_profile(library, instance),
            )
            found.append(Instance(library, instance, gpu))
    return found


def _profile(library: Nvml, instance: Any) -> str:
    named = _PROFILE.search(_text(_try(library, "nvmlDeviceGetName", instance)))
    if named is not None:
        return named.group(1)
    attributes = _try(library, "nvmlDeviceGetAttributes_v2", instance)
    if attributes is None:
        return ""
    return f"{attributes.gpuInstanceSliceCount}g.{round(attributes.memorySizeMB / 1024)}gb"


def _try(library: Nvml, function: str, *arguments: Any) -> Any:
    """The answer of an attribute's call; None where this GPU does not have it."""
    try:
        return library.call(function, *arguments)
    except NvmlFailure as failure:
        if failure.code in (Code.UNINITIALIZED, Code.GPU_IS_LOST):
            raise
        return None


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return "" if value is None else str(value)

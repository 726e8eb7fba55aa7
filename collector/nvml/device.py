"""The GPUs as NVML shows them: which there are, and each with its MIG instances."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tocsin.collector.nvml.answers import REGISTERED, GpuLost, metric_of, nvlink_domain
from tocsin.collector.nvml.gpm import GpmActivity
from tocsin.collector.nvml.library import MOST_GPUS, MOST_INSTANCES, Code, Nvml, NvmlFailure, attempt, text
from tocsin.collector.nvml.probes import (
    GPM,
    INSTANCE_CALLS,
    INSTANCE_GPM,
    PROBED,
    PROCESS_METRICS,
    RATES,
    THROUGHPUT,
    Tier,
)
from tocsin.collector.nvml.tiers import Processes, ReadPlan, TierCache, Tiered
from tocsin.collector.source import NodeIdentity
from tocsin.domain.clock import SECOND
from tocsin.domain.metrics import variant
from tocsin.domain.reading import MIG_START, NVLINK_DOMAIN, Gpu, Missing, Reading, normalise_pci_bus_id
from tocsin.domain.versions import COMPONENTS, clean
from tocsin.telemetry.log import logger
from tocsin.telemetry.metrics import OwnMetrics

_log = logger("nvml")

DRIVER_GPUS = Path("/proc/driver/nvidia/gpus")
"""One folder per GPU, named by its PCI address, with a file ``information`` of lines ``Name: value``."""

_LINE = re.compile(r"^(Model|GPU UUID|Bus Location):\s*(.*?)\s*$", re.MULTILINE)
_PROFILE = re.compile(r"MIG (\S+)\s*$")
_MICROSECONDS = 1e6
_LATENCY = "gpu_driver_latency_seconds"
_INSTANCE_RATIO = "gpu_mig_instance_memory_used_ratio"
_FABRIC_STATE = "gpu_fabric_state"
_MOST_CUDA = 1_000_000
"""CUDA's version comes as 1000 major + 10 minor (``nvmlSystemGetCudaDriverVersion_v2``)."""


@dataclass(frozen=True, slots=True)
class RateCounters:
    """Counters behind the rates, as last read at `at_ms` on a scale that nobody sets."""

    at_ms: int
    sums: Mapping[str, float]


class Rates:
    """Keeps the counters of the reading before. `by_link` are keys of counters that come link by link."""

    def __init__(self, by_link: Iterable[str], before: RateCounters | None) -> None:
        self.last = before
        keys = tuple(by_link)
        names = dict.fromkeys(name for counters in RATES.values() for name in counters)
        self._parts = {name: tuple(key for key in keys if metric_of(key) == name) for name in names}

    def read(self, values: dict[str, float], at_ms: int, reasons: Mapping[str, Missing]) -> dict[str, Missing]:
        """Put the rates of the counters in `values` beside them; gives the reasons of those that cannot be told.

        `reasons` are those of the counters. A rate that is there already, measured in another way, stays where the
        counters do not tell.
        """
        sums = self._sums(values)
        before, self.last = self.last, RateCounters(at_ms, sums)
        failed: dict[str, Missing] = {}
        for rate, counters in RATES.items():
            if lacking := [name for name in counters if name not in sums]:
                failed[rate] = reasons.get(lacking[0], Missing.UNSUPPORTED)
            elif before is None or at_ms <= before.at_ms or any(name not in before.sums for name in counters):
                failed[rate] = Missing.NOT_DUE
            elif (grown := sum(sums[name] - before.sums[name] for name in counters)) < 0:
                # A counter that shrank wrapped or started again: no rate can be told for this step.
                failed[rate] = Missing.BLANK
            else:
                values[rate] = grown * SECOND / (at_ms - before.at_ms)
        return {rate: reason for rate, reason in failed.items() if rate not in values}

    def _sums(self, values: Mapping[str, float]) -> dict[str, float]:
        sums: dict[str, float] = {}
        for name, keys in self._parts.items():
            if name in values:
                sums[name] = values[name]
            elif keys and all(key in values for key in keys):
                sums[name] = sum(values[key] for key in keys)
        return sums


@dataclass(frozen=True, slots=True)
class DeviceSample:
    """One GPU at one instant: its own values and reasons, and the readings of its MIG instances."""

    values: dict[str, float]
    missing: dict[str, Missing]
    instances: Sequence[Reading]


class NvmlDevice:
    """Reads one GPU: what is due at its cadence, and with it the last values of what is not.

    A value of a slow tier stands for its period and is then read anew, so none in a reading is older than its period
    and one interval. Static values, and what the GPU does not have, are kept until the next enumeration, which makes a
    new `NvmlDevice`; `before`, of the enumeration before, hands over the rates' counters and its samples of activity.
    """

    def __init__(
        self, library: Nvml, handle: Any, gpu: Gpu, instances: Sequence[MigInstance], before: NvmlDevice | None = None
    ) -> None:
        self.gpu = gpu
        self.instances = tuple(instances)
        self.handle = handle
        self._library = library
        self._plan: ReadPlan | None = None
        self._rates = Rates((), None if before is None else before.counters)
        same = before is not None and library.key(before.handle) == library.key(handle)
        self._activity: GpmActivity = before._activity if before and same else GpmActivity(library, handle, GPM, None)
        self._throughput: Tiered | None = None
        self._seen_reasons: tuple[object, ...] = ()
        self._missing: dict[str, Missing] = {}
        self._fabric_state: float | None = None

    @property
    def activities(self) -> list[GpmActivity]:
        """The samples that hold memory of the library: the GPU's, then its instances'."""
        return [self._activity, *(instance.activity for instance in self.instances)]

    @property
    def counters(self) -> RateCounters | None:
        return self._rates.last

    def read(self, at_ms: int, steady_ms: int) -> DeviceSample | None:
        """What the GPU says at `at_ms`; None where it is lost. Raises NvmlFailure where the library itself is gone.

        `steady_ms` is the same instant on a scale that nobody sets: rates are growth over its milliseconds.
        """
        try:
            return self._read(at_ms, steady_ms)
        except (GpuLost, NvmlFailure) as failure:
            if isinstance(failure, NvmlFailure) and failure.code != Code.GPU_IS_LOST:
                raise
            return None

    def absent(self, at_ms: int, reason: Missing) -> list[Reading]:
        own = Reading(self.gpu, at_ms, {}, dict.fromkeys(PROBED, reason))
        return [own, *(instance.absent(at_ms, reason) for instance in self.instances)]

    def hurry(self) -> None:
        """Read the slow tiers with the next reading: something happened to the GPU."""
        if self._plan is not None:
            self._plan.cache.hurry()

    def _read(self, at_ms: int, steady_ms: int) -> DeviceSample:
        if (plan := self._plan) is None:
            plan = self._plan = self._first()
        else:
            plan.fast.read()
        fast = plan.fast
        fresh = plan.cache.refresh(at_ms)
        values = {**plan.cache.values, **fast.values}
        self._learn_domain(values.get(_FABRIC_STATE))
        if fast.fields.latency_us is not None:
            values[_LATENCY] = fast.fields.latency_us / _MICROSECONDS
        values.update(self._activity.read(steady_ms))
        unrated = self._rates.read(values, steady_ms, fast.missing)
        missing = self._reasons(plan, values, unrated, bool(fresh))
        self._fall_back(values, missing, Tier.SLOW in fresh)
        instances = [instance.read(at_ms, steady_ms) for instance in self.instances]
        self._add_instances(values, missing, instances)
        return DeviceSample(values, missing, instances)

    def _learn_domain(self, state: float | None) -> None:
        """Ask for the NVLink domain whenever the registration with the fabric has ended anew; keep it meanwhile."""
        if state == self._fabric_state:
            return
        self._fabric_state = state
        if state != REGISTERED:
            return
        answer = attempt(self._library, "nvmlDeviceGetGpuFabricInfoV", self.handle)
        try:
            domain = "" if answer is None else nvlink_domain(answer)
        except (TypeError, ValueError, AttributeError):
            # A driver that answers in another shape must not cost the values.
            return
        labels = {name: value for name, value in self.gpu.labels.items() if name != NVLINK_DOMAIN}
        self.gpu = replace(self.gpu, labels=labels | ({NVLINK_DOMAIN: domain} if domain else {}))

    def _first(self) -> ReadPlan:
        numbers = [instance.number for instance in self.instances if instance.number is not None]
        plan = ReadPlan(self._library, self.handle, self.gpu.index or 0, numbers)
        self._rates = Rates(plan.by_link, self._rates.last)
        return plan

    def _reasons(
        self, plan: ReadPlan, values: Mapping[str, float], unrated: dict[str, Missing], fresh: bool
    ) -> dict[str, Missing]:
        seen = (plan.fast.missing, self._activity.missing, unrated, tuple(values))
        if fresh or seen != self._seen_reasons:
            idle = self._activity.missing
            merged = {**plan.cache.reasons, **plan.fast.missing, **idle, **unrated}
            # What GPM can tell from the next reading on is not unsupported for want of a counter.
            merged.update((key, reason) for key, reason in idle.items() if reason is Missing.NOT_DUE)
            if _LATENCY not in values:
                merged[_LATENCY] = Missing.UNSUPPORTED
            self._missing = {key: reason for key, reason in merged.items() if key not in values}
            self._seen_reasons = seen
        return dict(self._missing)

    def _fall_back(self, values: dict[str, float], missing: dict[str, Missing], fresh: bool) -> None:
        """Measure what neither counters nor GPM tell; the measurement stands for a slow period."""
        if fresh:
            wanted = [row for row in THROUGHPUT if missing.get(row.metrics[0]) is Missing.UNSUPPORTED]
            self._throughput = Tiered(self._library, self.handle, calls=wanted) if wanted else None
            if self._throughput is not None:
                self._throughput.read()
        if self._throughput is not None:
            for key, value in self._throughput.values.items():
                if key not in values:
                    values[key] = value
                    missing.pop(key, None)

    def _add_instances(
        self, values: dict[str, float], missing: dict[str, Missing], instances: Sequence[Reading]
    ) -> None:
        for profile, count in Counter(reading.gpu.mig_profile for reading in instances).items():
            values[variant("gpu_mig_instances", "profile", profile)] = float(count)
        for reading in instances:
            key = variant(_INSTANCE_RATIO, "instance", reading.gpu.uuid)
            if (used := reading.values.get("gpu_memory_used_ratio")) is None:
                missing[key] = reading.missing.get("gpu_memory_used_ratio", Missing.BLANK)
            else:
                values[key] = used


class MigInstance:
    """One MIG instance of a GPU; `number` is the id of its GPU instance on `parent`, None where it is not told."""

    def __init__(self, library: Nvml, handle: Any, gpu: Gpu, parent: Any, number: int | None) -> None:
        self.gpu = gpu
        self.activity = GpmActivity(library, parent, INSTANCE_GPM, number)
        self.number = number
        self._fast = Tiered(library, handle, calls=INSTANCE_CALLS)
        processes = Tiered(library, handle, parts=[Processes(library, handle, utilization=False)])
        self._cache = TierCache(None, [(Tier.PROCESSES, processes)], gpu.index or 0)

    def read(self, at_ms: int, steady_ms: int) -> Reading:
        """What the instance's own handle answers, and its share of the GPU's counters. Raises GpuLost, NvmlFailure."""
        self._cache.refresh(at_ms)
        self._fast.read()
        values = {**self._cache.values, **self._fast.values}
        missing = {**self._cache.reasons, **self._fast.missing}
        if self.number is not None:
            values.update(self.activity.read(steady_ms))
            missing.update(self.activity.missing)
        return Reading(self.gpu, at_ms, values, missing)

    def absent(self, at_ms: int, reason: Missing) -> Reading:
        names = [metric for call in INSTANCE_CALLS for metric in call.metrics]
        names += [*PROCESS_METRICS, *(metric_of(key) for key, _ in INSTANCE_GPM.values())]
        return Reading(self.gpu, at_ms, {}, dict.fromkeys(names, reason))


class PlausibleCounts:
    """Bounds what the driver says of how many there are; what is beyond is logged once and always counted."""

    def __init__(self, own: OwnMetrics | None = None) -> None:
        self._own = own
        self._logged: set[str] = set()

    def gpus(self, answered: int) -> tuple[int, bool]:
        """How many GPUs there may be, and whether `answered` is no count that a node can have."""
        return self._bounded("gpu", answered, MOST_GPUS)

    def instances(self, answered: int) -> int:
        """How many MIG instances one GPU may have."""
        return self._bounded("mig", answered, MOST_INSTANCES)[0]

    def _bounded(self, what: str, answered: int, most: int) -> tuple[int, bool]:
        if 0 <= answered <= most:
            return answered, False
        if self._own is not None:
            self._own.count("tocsin_nvml_implausible_counts_total", what=what)
        if what not in self._logged:
            self._logged.add(what)
            text = "the driver gives a count that cannot be: what is there is looked for one by one (said once)"
            _log.warning(text, what=what, answered=answered, most=most)
        return most, True


def open_device(
    library: Nvml, index: int, node: NodeIdentity, before: Mapping[str, NvmlDevice], counts: PlausibleCounts
) -> NvmlDevice:
    """The GPU at `index`, with its MIG instances; `before` has the devices of the enumeration before, by UUID.

    Raises NvmlFailure where its handle or UUID cannot be had.
    """
    handle = library.call("nvmlDeviceGetHandleByIndex", index)
    uuid = text(library.call("nvmlDeviceGetUUID", handle))
    gpu = node.gpu(
        uuid,
        index=index,
        model=text(attempt(library, "nvmlDeviceGetName", handle)),
        serial=text(attempt(library, "nvmlDeviceGetSerial", handle)),
        pci_bus_id=normalise_pci_bus_id(text(getattr(attempt(library, "nvmlDeviceGetPciInfo", handle), "busId", ""))),
    )
    gpu = replace(gpu, labels={**_versions(library, handle), **gpu.labels})
    return NvmlDevice(library, handle, gpu, _instances(library, handle, gpu, node, counts), before.get(uuid))


_VERSIONS = {
    "vbios": "nvmlDeviceGetVbiosVersion",
    "inforom": "nvmlDeviceGetInforomImageVersion",
    "gsp_firmware": "nvmlDeviceGetGspFirmwareVersion",
}


def _versions(library: Nvml, handle: Any) -> dict[str, str]:
    """Versions of the driver and of the GPU's own firmware, as labels; those that it does not tell are left out."""
    told = {key: text(attempt(library, call, handle)) for key, call in _VERSIONS.items()}
    told["driver"] = text(attempt(library, "nvmlSystemGetDriverVersion"))
    number = attempt(library, "nvmlSystemGetCudaDriverVersion_v2")
    if isinstance(number, int) and 0 < number < _MOST_CUDA:
        told["cuda_driver"] = f"{number // 1_000}.{number % 1_000 // 10}"
    return {COMPONENTS[key].label: found for key, said in told.items() if (found := clean(said))}


def _instances(
    library: Nvml, handle: Any, parent: Gpu, node: NodeIdentity, counts: PlausibleCounts
) -> list[MigInstance]:
    if not (mode := attempt(library, "nvmlDeviceGetMigMode", handle)) or mode[0] != 1:
        return []
    found: list[MigInstance] = []
    for number in range(counts.instances(attempt(library, "nvmlDeviceGetMaxMigDeviceCount", handle) or 0)):
        instance = attempt(library, "nvmlDeviceGetMigDeviceHandleByIndex", handle, number)
        uuid = text(attempt(library, "nvmlDeviceGetUUID", instance)) if instance is not None else ""
        if uuid:
            gpu = node.gpu(
                uuid,
                index=parent.index,
                model=parent.model,
                serial=parent.serial,
                pci_bus_id=parent.pci_bus_id,
                parent=parent.uuid,
                mig_profile=_profile(library, instance),
            )
            number_on_gpu = attempt(library, "nvmlDeviceGetGpuInstanceId", instance)
            found.append(
                MigInstance(library, instance, _placed(library, gpu, handle, number_on_gpu), handle, number_on_gpu)
            )
    return found


def _placed(library: Nvml, gpu: Gpu, parent: Any, number: int | None) -> Gpu:
    """The instance with the label that tells where on its GPU it begins, as far as that may be asked."""
    handle = attempt(library, "nvmlDeviceGetGpuInstanceById", parent, number) if number is not None else None
    info = attempt(library, "nvmlGpuInstanceGetInfo", handle) if handle is not None else None
    labels = {} if info is None else {MIG_START: str(int(info.placement.start))}
    return replace(gpu, labels={**gpu.labels, **labels})


def _profile(library: Nvml, instance: Any) -> str:
    if (named := _PROFILE.search(text(attempt(library, "nvmlDeviceGetName", instance)))) is not None:
        return named.group(1)
    if (attributes := attempt(library, "nvmlDeviceGetAttributes_v2", instance)) is None:
        return ""
    return f"{attributes.gpuInstanceSliceCount}g.{round(attributes.memorySizeMB / 1024)}gb"


@dataclass(frozen=True, slots=True, order=True)
class DriverGpu:
    """One GPU as the driver's files name it; an empty `uuid` where the driver does not know it itself."""

    pci_bus_id: str
    uuid: str
    model: str


def driver_gpus(folder: Path = DRIVER_GPUS) -> list[DriverGpu]:
    """The GPUs by PCI address, which is NVML's order too; empty where there are no such files."""
    found: list[DriverGpu] = []
    try:
        paths = sorted(folder.glob("*/information"))
    except OSError:
        return []
    for path in paths:
        try:
            lines = dict(_LINE.findall(path.read_text(errors="replace")))
        except OSError:
            continue
        uuid = lines.get("GPU UUID", "")
        bus = normalise_pci_bus_id(lines.get("Bus Location") or path.parent.name)
        found.append(DriverGpu(bus, "" if "?" in uuid else uuid, lines.get("Model", "")))
    return sorted(found)


def name_closed(indices: Collection[int], opened: Collection[str], gpus: list[DriverGpu]) -> dict[int, DriverGpu]:
    """Which of `gpus` stands at each of NVML's `indices` that did not open; `opened` are the UUIDs of those that did.

    An index is left out where it cannot be told.
    """
    candidates = [gpu for gpu in gpus if gpu.uuid not in opened]
    return dict(zip(sorted(indices), candidates, strict=True)) if len(candidates) == len(indices) else {}

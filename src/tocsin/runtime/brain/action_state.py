"""The state that decisions and guards look at, from what the brain has: its GPUs and the errors of their hardware."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from tocsin.actions.model.ranks import JobOnGpu
from tocsin.actions.model.view import GpuView
from tocsin.actions.planning.facts import NodeState
from tocsin.domain.device_fault import BROKEN
from tocsin.domain.event import Event, EventKind
from tocsin.domain.finding import Category, Finding, healthy_gpus
from tocsin.domain.reading import Gpu, Reading
from tocsin.rules.xid import xid
from tocsin.runtime.brain.counting import LimitWeight

Recalled = Callable[[str], bool]
"""Whether nothing newer than what the store had at the start has come of a GPU."""

Counts = Callable[[Gpu], tuple[LimitWeight, Gpu]]
"""What a GPU is to the limits, and how they see it."""


def gpu_views(
    readings: Sequence[Reading],
    findings: Iterable[Finding],
    nodes: Mapping[str, NodeState],
    workloads: Mapping[str, JobOnGpu],
    *,
    recalled: Recalled,
    counts: Counts,
) -> dict[str, GpuView]:
    """Each GPU as decisions see it, by UUID."""
    healthy = healthy_gpus(readings, findings)

    def view(reading: Reading) -> GpuView:
        weight, gpu = counts(reading.gpu)
        work = workloads[gpu.uuid]
        return GpuView(
            gpu=gpu,
            # A store may have been restored: what it has may be long over, however young it says that it is.
            last_reading_ms=None if recalled(gpu.uuid) else reading.at_ms,
            healthy=healthy[gpu.uuid],
            under_action=gpu.host in nodes and not nodes[gpu.host].schedulable,
            values=reading.values,
            job=work.job,
            job_known=work.known,
            counted=weight.counted,
            surplus=weight.surplus,
        )

    return {reading.gpu.uuid: view(reading) for reading in readings}


def errors_of(events: Iterable[Event]) -> dict[str, tuple[int, ...]]:
    """Instants of the XIDs and like faults of each GPU that no program is to blame for, and at which it was lost, by
    UUID."""
    found: dict[str, list[int]] = defaultdict(list)
    for event in events:
        own = event.kind is EventKind.XID and xid(event.code).category is not Category.APPLICATION
        own = own or (event.kind is EventKind.DEVICE_FAULT and event.code in BROKEN)
        if own or event.kind is EventKind.GPU_LOST:
            found[event.gpu].append(event.at_ms)
    return {uuid: tuple(sorted(at_ms)) for uuid, at_ms in found.items()}

"""Reading GPUs through the program nvidia-smi, for nodes where no NVML library can be loaded.

A fallback: two processes per reading, no event set, no activity counters, of NVLink whether a link is up. One
`nvidia-smi -q -x` tells all of all GPUs; where that fails, as it does when one GPU is lost, the CSV query still tells
of the others.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tocsin.collector.nvidia_smi.cells import METRICS_READ, Cells
from tocsin.collector.nvidia_smi.formats import (
    SmiError,
    SmiGpu,
    SmiInstance,
    count_instances,
    csv_fields,
    parse_csv,
    parse_links,
    parse_xml,
    refused_field,
)
from tocsin.collector.smi_program import Program, SmiAnswer
from tocsin.collector.source import NodeIdentity
from tocsin.collector.transitions import Transitions
from tocsin.domain.batch import Batch
from tocsin.domain.errors import Unavailable
from tocsin.domain.metrics import variant
from tocsin.domain.reading import Gpu, Missing, Reading, normalise_pci_bus_id
from tocsin.domain.versions import COMPONENTS
from tocsin.telemetry.log import logger

_log = logger("nvidia_smi")

DEADLINE_SECONDS = 30.0
"""Without persistence mode the driver starts each GPU anew for every call, which takes seconds per GPU."""
_NO_DRIVER = (9, 12)
"""Exit statuses (nvidia-smi(1)): the driver is not loaded, the NVML library is not found."""
_LOST_BUS = re.compile(r"GPU\d*:?\s*([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d):\s*GPU is lost")
_LISTED = re.compile(
    r"^GPU (?P<index>\d+): .*\(UUID: (?P<uuid>GPU-[^)]+)\)|"
    r"^\s+MIG (?P<profile>\S+)\s+Device\s+(?P<device>\d+): \(UUID: (?P<mig>MIG-[^)]+)\)"
)


class DriverGone(Unavailable):
    """nvidia-smi runs and finds no driver or no library of it: no GPU answers."""


class NvidiaSmiSource:
    """A source over nvidia-smi. Raises Unavailable where the program, its library or the driver is missing."""

    name = "nvidia_smi"

    def __init__(self, program: Program, node: NodeIdentity, deadline_seconds: float = DEADLINE_SECONDS) -> None:
        self._program = program
        self._node = node
        self._deadline = deadline_seconds
        self._refused: set[str] = set()
        self._gpus: dict[str, Gpu] = {}
        self._instances: dict[str, list[Gpu]] = {}
        self._transitions = Transitions(self.name)
        self._told: str = ""
        self._has_links = True
        if (listed := self._ask()) is None:
            raise Unavailable(
                f"nvidia-smi did not answer within {deadline_seconds:g} s; see whether it hangs by itself"
            )
        self._take(listed)

    def gpus(self) -> list[Gpu]:
        return [gpu for uuid, own in self._gpus.items() for gpu in (own, *self._instances.get(uuid, ()))]

    def read(self, now_ms: int) -> Batch:
        try:
            found = self._ask()
        except Unavailable as error:
            return self._absent(now_ms, self._lost_by(error), str(error))
        if found is None:
            return self._absent(now_ms, frozenset(), "nvidia-smi has not ended in time")
        self._told = ""
        self._take(found)
        self._add_links(found)
        by_gpu = [self._readings(gpu, now_ms) for gpu in found]
        events = self._transitions.note([readings[0] for readings in by_gpu], now_ms)
        return Batch(tuple(reading for readings in by_gpu for reading in readings), tuple(events))

    def close(self) -> None:
        self._program.close()

    def _ask(self) -> list[SmiGpu] | None:
        """All GPUs, by XML or else by CSV; None where the program hangs."""
        if (answer := self._run("-q", "-x")) is None:
            return None
        if answer.status == 0:
            try:
                return parse_xml(answer.out)
            except SmiError as error:
                self._tell(f"its XML is not used: {error}")
        else:
            self._tell(f"-q -x ended with status {answer.status}, its CSV is used")
        return self._ask_csv()

    def _ask_csv(self) -> list[SmiGpu] | None:
        answer = self._query()
        while answer is not None:
            refused = refused_field(answer.out + answer.err)
            if refused is None or refused in self._refused:
                break
            self._refused.add(refused)
            answer = self._query()
        if answer is None:
            return None
        if answer.status != 0:
            raise Unavailable(_why(answer))
        try:
            return parse_csv(answer.out)
        except SmiError as error:
            raise Unavailable(f"nvidia-smi's answer cannot be used: {error}") from None

    def _query(self) -> SmiAnswer | None:
        return self._run(f"--query-gpu={','.join(csv_fields(self._refused))}", "--format=csv")

    def _run(self, *arguments: str) -> SmiAnswer | None:
        try:
            answer = self._program.run(arguments, self._deadline)
        except OSError as error:
            raise Unavailable(
                f"nvidia-smi cannot be run ({error.strerror}); install the NVIDIA driver's tools, or name the program "
                "in setting agent.nvidia_smi_command"
            ) from None
        if answer is not None and answer.status in _NO_DRIVER:
            raise DriverGone(_why(answer))
        return answer

    def _add_links(self, found: Sequence[SmiGpu]) -> None:
        """Add whether each NVLink is up; where the first answer has no link, nobody asks again."""
        if not self._has_links:
            return
        try:
            answer = self._run("nvlink", "-s")
        except Unavailable:
            return
        if answer is None:
            return
        links = parse_links(answer.out)
        self._has_links = any(links.values())
        for gpu in found:
            for number, up in links.get(gpu.uuid, {}).items():
                gpu.cells.add(variant("gpu_nvlink_up", "link", str(number)), float(up))

    def _take(self, found: Sequence[SmiGpu]) -> None:
        before = self._gpus
        self._gpus = {gpu.uuid: self._gpu(gpu) for gpu in found}
        with_instances = {gpu.uuid: len(gpu.instances) for gpu in found if gpu.instances}
        if with_instances == {uuid: len(gpus) for uuid, gpus in self._instances.items()} and before:
            return
        self._instances = self._list_instances() if with_instances else {}

    def _gpu(self, gpu: SmiGpu) -> Gpu:
        index = gpu.index if gpu.index >= 0 else None
        known = self._node.gpu(gpu.uuid, index=index, model=gpu.model, serial=gpu.serial, pci_bus_id=gpu.pci_bus_id)
        labels = {COMPONENTS[key].label: version for key, version in gpu.versions.items()}
        return replace(known, labels={**labels, **known.labels}) if labels else known

    def _list_instances(self) -> dict[str, list[Gpu]]:
        """MIG instances by UUID of their GPU, in order: the XML does not tell their UUIDs, ``nvidia-smi -L`` does."""
        answer = self._run("-L")
        found: dict[str, list[Gpu]] = {}
        parent: Gpu | None = None
        for line in answer.out.splitlines() if answer is not None else ():
            if (match := _LISTED.match(line)) is None:
                continue
            if match["uuid"]:
                parent = self._gpus.get(match["uuid"])
            elif parent is not None:
                known: Mapping[str, object] = {
                    "index": parent.index,
                    "model": parent.model,
                    "serial": parent.serial,
                    "pci_bus_id": parent.pci_bus_id,
                    "parent": parent.uuid,
                    "mig_profile": match["profile"],
                }
                found.setdefault(parent.uuid, []).append(self._node.gpu(match["mig"], **known))
        return found

    def _readings(self, gpu: SmiGpu, now_ms: int) -> list[Reading]:
        """One of the GPU, one of each of its instances. What a lost GPU still answers comes from a cache: not used."""
        own = self._gpus[gpu.uuid]
        instances = list(zip(self._instances.get(gpu.uuid, ()), gpu.instances, strict=False))
        if gpu.cells.lost:
            return [self._lost(each, now_ms, Missing.LOST) for each in (own, *(mig for mig, _ in instances))]
        count_instances([mig.mig_profile for mig, _ in instances], gpu.cells)
        for mig, seen in instances:
            _add_instance(gpu.cells, mig, seen)
        return [
            Reading(own, now_ms, gpu.cells.values, gpu.cells.missing),
            *(Reading(mig, now_ms, seen.cells.values, seen.cells.missing) for mig, seen in instances),
        ]

    def _lost_by(self, error: Unavailable) -> frozenset[str]:
        """UUIDs of the GPUs that `error` says are lost: all without a driver, else those that it names.

        ``Unable to determine the device handle for GPU 0000:1B:00.0: GPU is lost`` ends every query of nvidia-smi.
        """
        if isinstance(error, DriverGone):
            return frozenset(self._gpus)
        named = {normalise_pci_bus_id(match) for match in _LOST_BUS.findall(str(error))}
        return frozenset(uuid for uuid, gpu in self._gpus.items() if gpu.pci_bus_id and gpu.pci_bus_id in named)

    def _absent(self, now_ms: int, lost: frozenset[str], problem: str) -> Batch:
        """Readings without values: lost for those of `lost`; of the others nothing is known but that no answer came."""
        self._tell(problem)
        readings = [
            self._lost(gpu, now_ms, Missing.LOST if (gpu.parent or gpu.uuid) in lost else Missing.TIMED_OUT)
            for gpu in self.gpus()
        ]
        gpus = [reading for reading in readings if not reading.gpu.is_mig]
        return Batch(tuple(readings), tuple(self._transitions.note(gpus, now_ms)) if lost else ())

    def _lost(self, gpu: Gpu, now_ms: int, reason: Missing) -> Reading:
        names = [key for key in METRICS_READ if not gpu.is_mig or key.startswith("gpu_memory_")]
        return Reading(gpu, now_ms, {}, dict.fromkeys(names, reason))

    def _tell(self, problem: str) -> None:
        if problem != self._told:
            self._told = problem
            _log.warning("nvidia-smi", problem=problem)


def _add_instance(cells: Cells, mig: Gpu, seen: SmiInstance) -> None:
    used = seen.cells.values.get("gpu_memory_used_ratio")
    cells.add(
        variant("gpu_mig_instance_memory_used_ratio", "instance", mig.uuid), Missing.BLANK if used is None else used
    )


def _why(answer: SmiAnswer) -> str:
    words = " ".join((answer.out + " " + answer.err).split())[:200] or "it printed nothing"
    if answer.status == 12:
        return f"nvidia-smi finds no libnvidia-ml.so: {words}"
    if answer.status == 9:
        return f"nvidia-smi finds no driver: load it with `modprobe nvidia` and see `dmesg` where that fails ({words})"
    return f"nvidia-smi ended with status {answer.status}: {words}"

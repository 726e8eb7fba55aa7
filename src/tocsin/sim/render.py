"""From columns to readings.

GPUs of one model and MIG mode share their metric names and missing reasons; each such group is cut from the matrix of
all columns in one step. What is named after a process or an MIG instance is added per GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tocsin.domain.fragmentation import Placement, mig_capacity, mig_fragmentation
from tocsin.domain.metrics import METRICS, split_variant, variant
from tocsin.domain.missing import Missing
from tocsin.domain.reading import Reading
from tocsin.sim import mig
from tocsin.sim.arrays import Floats, Ints
from tocsin.sim.inventory import Inventory
from tocsin.sim.jobs import Owners
from tocsin.sim.load import Demand
from tocsin.sim.memory import Memory
from tocsin.sim.models import GpuModel
from tocsin.sim.state import State

GPU_METRICS = frozenset(name for name, spec in METRICS.items() if spec.entity == "gpu")
LOST = {name: Missing.LOST for name in METRICS if name in GPU_METRICS}
_ALLOCATOR = (
    "gpu_allocator_reserved_bytes",
    "gpu_allocator_allocated_bytes",
    "gpu_allocator_largest_free_block_bytes",
    "gpu_allocator_external_fragmentation_ratio",
    "gpu_allocator_retries_total",
    "gpu_allocator_ooms_total",
)
_ALLOCATOR_MISSING = dict.fromkeys(_ALLOCATOR, Missing.UNSUPPORTED)
_NOT_OF_EVERY_READING = frozenset(
    {
        *_ALLOCATOR,
        "gpu_process_memory_used_bytes",
        "gpu_process_sm_utilization_ratio",
        "gpu_mig_fragmentation_ratio",
        "gpu_mig_instances",
        "gpu_mig_remaining_capacity",
        "gpu_mig_instance_memory_used_ratio",
        "gpu_xid_events_total",
    }
)
"""Metrics that come and go with processes, instances and events."""


@dataclass(frozen=True)
class _Group:
    members: Ints
    rows: Ints
    names: tuple[str, ...]
    missing: Mapping[str, Missing]


def _wanted(name: str, model: GpuModel, lacking: frozenset[str]) -> bool:
    metric, label, value = split_variant(name)
    if metric in lacking:
        return False
    return label != "link" or int(value) < model.nvlink_links


class Renderer:
    """Makes the readings of one fleet; keeps what repeats from step to step."""

    def __init__(self, inventory: Inventory, names: tuple[str, ...]) -> None:
        self._inventory = inventory
        self._names = names
        modelled = {split_variant(name)[0] for name in names} | _NOT_OF_EVERY_READING
        self._not_modelled = [name for name in METRICS if name in GPU_METRICS and name not in modelled]
        self._groups = self._grouped()
        self._owners = Owners(inventory)
        self._keys: dict[int, tuple[int, tuple[str, ...]]] = {}
        self._instances: dict[int, tuple[tuple[Placement, ...], dict[str, float], tuple[str, ...]]] = {}

    def _grouped(self) -> list[_Group]:
        kinds: dict[tuple[str, bool, bool], list[int]] = {}
        for number, model in enumerate(self._inventory.model_of):
            inferring = bool(self._inventory.inference[number])
            kinds.setdefault((model.name, bool(self._inventory.mig[number]), inferring), []).append(number)
        groups = []
        for (_, mig_on, inferring), members in kinds.items():
            model = self._inventory.model_of[members[0]]
            lacking = model.unsupported(mig_on=mig_on)
            rows = [row for row, name in enumerate(self._names) if _wanted(name, model, lacking)]
            missing = dict.fromkeys(self._not_modelled, Missing.UNSUPPORTED)
            missing |= {name: Missing.UNSUPPORTED for name in METRICS if name in lacking}
            if inferring or mig_on:
                missing |= _ALLOCATOR_MISSING
            groups.append(_Group(np.array(members), np.array(rows), tuple(self._names[row] for row in rows), missing))
        return groups

    def readings(
        self, columns: Mapping[str, Floats], state: State, load: Demand, memory: Memory, stale: list[Reading]
    ) -> list[Reading]:
        """One reading of each GPU, in the fleet's order; `stale` are those of the step before, or none."""
        matrix = np.array([columns[name] for name in self._names])
        found: list[Reading | None] = [None] * len(self._inventory)
        at_ms = state.now_ms
        gpus, owners = self._inventory.gpus, self._owners.now(state, load)
        for group in self._groups:
            rows = matrix[np.ix_(group.rows, group.members)].T.tolist()
            for number, row in zip(group.members.tolist(), rows, strict=True):
                values = dict(zip(group.names, row, strict=True))
                found[number] = Reading(gpus[number], at_ms, values, group.missing, owners[number])
        readings = [reading for reading in found if reading is not None]
        self._add_processes(readings, load, memory, state)
        self._add_instances(readings, state, memory)
        self._add_events(readings, state)
        for number in np.flatnonzero(state.lost).tolist():
            readings[number] = Reading(gpus[number], at_ms, {}, LOST)
        if stale:
            for number in np.flatnonzero(state.frozen & ~state.lost).tolist():
                old = stale[number]
                readings[number] = Reading(gpus[number], at_ms, old.values, old.missing, old.owners)
        return readings

    def _process_keys(self, number: int, pid: int) -> tuple[str, ...]:
        known = self._keys.get(number)
        if known is None or known[0] != pid:
            names: tuple[str, ...] = ("gpu_process_memory_used_bytes",)
            if not self._inventory.mig[number]:
                names += ("gpu_process_sm_utilization_ratio",)
                names += () if self._inventory.inference[number] else _ALLOCATOR
            known = (pid, tuple(variant(name, "pid", str(pid)) for name in names))
            self._keys[number] = known
        return known[1]

    def _add_processes(self, readings: list[Reading], load: Demand, memory: Memory, state: State) -> None:
        utilisation = np.round(np.where(state.effects.hang, 0.0, load.sm), 2)
        columns = np.array(
            [
                memory.used,
                utilisation,
                memory.allocator_reserved,
                memory.allocator_allocated,
                memory.allocator_largest_free,
                memory.allocator_fragmentation,
                state.retries,
                state.ooms,
            ]
        )
        busy = np.flatnonzero(load.busy)
        pids = load.pid.tolist()
        for number, row in zip(busy.tolist(), columns[:, busy].T.tolist(), strict=True):
            keys = self._process_keys(number, pids[number])
            _mutable(readings[number]).update(zip(keys, row, strict=False))

    def _layout(self, number: int, layout: tuple[Placement, ...]) -> tuple[dict[str, float], tuple[str, ...]]:
        known = self._instances.get(number)
        if known is None or known[0] != layout:
            values = {"gpu_mig_fragmentation_ratio": mig_fragmentation(layout, mig.DEMAND)}
            counts = dict.fromkeys(mig.NAMES_80GB, 0)
            for name, _ in layout:
                counts[name] += 1
            capacity = mig_capacity(layout)
            for name, profile in mig.NAMES_80GB.items():
                values[variant("gpu_mig_instances", "profile", profile)] = float(counts[name])
                values[variant("gpu_mig_remaining_capacity", "profile", profile)] = float(capacity[name])
            uuid = self._inventory.gpus[number].uuid
            instance = "gpu_mig_instance_memory_used_ratio"
            keys = tuple(variant(instance, "instance", mig.instance_id(uuid, placement)) for placement in layout)
            known = (layout, values, keys)
            self._instances[number] = known
        return known[1], known[2]

    def _add_instances(self, readings: list[Reading], state: State, memory: Memory) -> None:
        for number in np.flatnonzero(self._inventory.mig).tolist():
            values, keys = self._layout(number, state.layouts[number])
            target = _mutable(readings[number])
            target.update(values)
            target.update(zip(keys, memory.instances[number], strict=True))

    def _add_events(self, readings: list[Reading], state: State) -> None:
        for number, counts in enumerate(state.xid_counts):
            if counts:
                named = {variant("gpu_xid_events_total", "xid", str(code)): float(n) for code, n in counts.items()}
                _mutable(readings[number]).update(named)


def _mutable(reading: Reading) -> dict[str, float]:
    """The values of a reading that is still being made: always the dict that `readings` put there."""
    values = reading.values
    assert isinstance(values, dict)
    return values

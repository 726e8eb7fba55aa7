"""A step's metrics straight as columns: what the readings hold, without making the readings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tocsin.domain.fragmentation import mig_fragmentation
from tocsin.domain.metrics import split_variant
from tocsin.sim import mig
from tocsin.sim.arrays import Bools, Floats
from tocsin.sim.inventory import Inventory
from tocsin.sim.load import Demand
from tocsin.sim.memory import Memory
from tocsin.sim.state import State

OF_PROCESS = (
    "gpu_allocator_reserved_bytes",
    "gpu_allocator_allocated_bytes",
    "gpu_allocator_largest_free_block_bytes",
    "gpu_allocator_external_fragmentation_ratio",
    "gpu_allocator_retries_total",
    "gpu_allocator_ooms_total",
)
"""Given under their plain names: a simulated GPU has one process."""
OF_INSTANCE = "gpu_mig_instance_memory_used_ratio"
"""Given under its plain name: that of the fullest instance."""
OF_LAYOUT = "gpu_mig_fragmentation_ratio"


@dataclass(frozen=True, slots=True)
class Moment:
    """All that a step has to show."""

    columns: Mapping[str, Floats]
    load: Demand
    memory: Memory


class TableMaker:
    """Rows of one step for chosen metrics, float64[gpus, metrics] in the fleet's order; NaN where a reading would have
    no value."""

    def __init__(self, inventory: Inventory, metrics: Sequence[str]) -> None:
        self.metrics = tuple(metrics)
        self._inventory = inventory
        self._has = np.column_stack([_has(inventory, name) for name in metrics]) if metrics else np.empty((0, 0), bool)
        self._before: Floats | None = None
        self._layouts: dict[object, float] = {}

    def rows(self, moment: Moment, state: State) -> Floats:
        """The values now; a frozen GPU repeats those of the step before."""
        made = np.full((len(self._inventory), len(self.metrics)), np.nan)
        for place, name in enumerate(self.metrics):
            found = moment.columns.get(name)
            made[:, place] = self._own(name, moment, state) if found is None else found
        made[~self._has] = np.nan
        made[state.lost] = np.nan
        if self._before is not None:
            stuck = state.frozen & ~state.lost
            made[stuck] = self._before[stuck]
        self._before = made
        return made

    def _own(self, name: str, moment: Moment, state: State) -> Floats:
        memory, busy = moment.memory, moment.load.busy
        if name in OF_PROCESS:
            made = (
                memory.allocator_reserved,
                memory.allocator_allocated,
                memory.allocator_largest_free,
                memory.allocator_fragmentation,
                state.retries,
                state.ooms,
            )
            return np.where(busy, made[OF_PROCESS.index(name)], np.nan)
        if name == OF_INSTANCE:
            return np.array([max(shares, default=np.nan) for shares in memory.instances])
        if name == OF_LAYOUT:
            return np.array([self._fragmentation(state, gpu) for gpu in range(len(self._inventory))])
        return np.full(len(self._inventory), np.nan)

    def _fragmentation(self, state: State, gpu: int) -> float:
        layout = state.layouts[gpu]
        if not self._inventory.mig[gpu]:
            return float("nan")
        if layout not in self._layouts:
            self._layouts[layout] = mig_fragmentation(layout, mig.DEMAND)
        return self._layouts[layout]


def _has(inventory: Inventory, name: str) -> Bools:
    """Which GPUs have the metric at all."""
    metric, label, value = split_variant(name)
    blind = inventory.inference | inventory.mig
    if metric in OF_PROCESS:
        return np.asarray(~blind)
    found = []
    for gpu, model in enumerate(inventory.model_of):
        lacks = metric in model.unsupported(mig_on=bool(inventory.mig[gpu]))
        found.append(not lacks and (label != "link" or int(value) < model.nvlink_links))
    return np.array(found, dtype=np.bool_)

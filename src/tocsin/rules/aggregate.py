"""Columns of the pool and fleet sheets, computed from the GPUs in each step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tocsin.domain.fragmentation_fleet import FleetFragmentation, Task
from tocsin.domain.pool import PoolState
from tocsin.rules.fleet import fleet_fragmentation, group_means, idle, stranded_ratio
from tocsin.rules.roster import Roster
from tocsin.rules.sheet import FLEET_SHEET, GPU_SHEET, POOL_SHEET, Sheet
from tocsin.rules.table import Floats, Ints, Vector

_POOL_INPUTS = ("gpu_utilization_ratio", "gpu_graphics_engine_active_ratio")
_FLEET_INPUTS = (*_POOL_INPUTS, "gpu_processes", "gpu_memory_used_ratio")


class Aggregates:
    """Keeps the pool and fleet sheets.

    `elastic` says for each pool whether its state allows scaling on load alone. A pool's utilisation is the mean over
    its whole GPUs with a reading that is not stale, unknown where that is less than half of them.
    """

    def __init__(self, roster: Roster, stale: Vector, sheets: Mapping[str, Sheet]) -> None:
        self._roster = roster
        self._stale = stale
        self._gpu = sheets[GPU_SHEET]
        self._pool = sheets[POOL_SHEET]
        self._fleet = sheets[FLEET_SHEET]
        self.fleet: FleetFragmentation | None = None
        """Free GPUs and what of them is no use; None where no rule looks at the fleet or no utilisation is known."""
        self.elastic = self._pool.table.vector(np.bool_, False)
        self._fleet.table.row("fleet")
        self._fleet.table.settle()

    @staticmethod
    def inputs(pool: Sequence[str], fleet: Sequence[str]) -> tuple[str, ...]:
        """GPU metrics that the pool and fleet metrics in use are computed from."""
        if fleet:
            return _FLEET_INPUTS
        return _POOL_INPUTS if pool else ()

    def compute(self, now_ms: int, pools: Sequence[PoolState], mix: Sequence[Task] = ()) -> None:
        """Write the columns of both sheets; pools that have neither a GPU nor a state leave."""
        if self._pool.names:
            self._compute_pools(now_ms, pools)
        if self._fleet.names:
            self._compute_fleet(mix)

    def release(self) -> None:
        """Give back the pools that leave."""
        self._pool.table.release()

    def _utilization(self) -> Floats:
        names = self._gpu.names
        busy = self._gpu.values.v[names.index("gpu_utilization_ratio")]
        engine = self._gpu.values.v[names.index("gpu_graphics_engine_active_ratio")]
        return np.asarray(np.where(np.isnan(busy), engine, busy), dtype=np.float64)

    def _compute_pools(self, now_ms: int, pools: Sequence[PoolState]) -> None:
        table = self._pool.table
        for state in pools:
            table.row(state.name)
        table.settle()
        count = len(table)
        groups = np.where(self._roster.physical.v, self._roster.pool.v, -1)
        members = np.bincount(groups[groups >= 0], minlength=count)
        for i, name in enumerate(self._pool.names):
            if name == "pool_utilization_ratio":
                self._pool.values.v[i] = group_means(self._utilization(), groups, members, count)
            elif name == "pool_pending_gpus":
                self._pool.values.v[i] = np.nan
                for state in pools:
                    if state.pending_gpus is not None:
                        self._pool.values.v[i, table.rows[state.name]] = state.pending_gpus
        self.elastic.v[:] = False
        for state in pools:
            self.elastic.v[table.rows[state.name]] = state.elastic
        self._date_pools(now_ms, [table.rows[state.name] for state in pools], members)

    def _date_pools(self, now_ms: int, listed: Sequence[int], members: Ints) -> None:
        """A pool is as new as its newest reading; one without a GPU, as its scheduler's word, which is of now."""
        table = self._pool.table
        updated = np.flatnonzero(self._roster.table.updated.v & self._roster.physical.v)
        if updated.size:
            owner = self._roster.pool.v[updated]
            np.maximum.at(table.at.v, owner, self._roster.table.at.v[updated])
            table.updated.v[owner] = True
        for row in np.flatnonzero(members == 0).tolist():
            if row in listed:
                table.at.v[row] = now_ms
                table.updated.v[row] = True
            elif table.keys[row] is not None:
                table.leave(np.array([row], dtype=np.int64))

    def _compute_fleet(self, mix: Sequence[Task]) -> None:
        table = self._fleet.table
        updated = self._roster.table.updated.v & self._roster.physical.v
        if not updated.any():
            return
        table.at.v[0] = max(int(table.at.v[0]), int(self._roster.table.at.v[updated].max()))
        table.updated.v[0] = True
        found = self._free_by_host()
        self.fleet = None if found is None else fleet_fragmentation(*found, mix)
        values = {} if found is None or self.fleet is None else _fleet_values(*found, self.fleet)
        for i, name in enumerate(self._fleet.names):
            self._fleet.values.v[i, 0] = values.get(name, np.nan)

    def _free_by_host(self) -> tuple[Ints, Ints] | None:
        """Free GPUs and all GPUs of each host, both of shape (hosts,); None where no GPU's utilisation is known."""
        column = {name: self._gpu.values.v[self._gpu.names.index(name)] for name in _FLEET_INPUTS}
        known = self._roster.physical.v & ~self._stale.v
        utilization = self._utilization()
        if not (known & ~np.isnan(utilization)).any():
            return None
        free = known & idle(utilization, column["gpu_processes"], column["gpu_memory_used_ratio"])
        hosts = self._roster.host.v
        named = hosts >= 0
        count = int(hosts.max(initial=-1)) + 1
        free_by_host = np.bincount(hosts[free & named], minlength=count)
        sizes = np.bincount(hosts[self._roster.physical.v & named], minlength=count)
        return free_by_host, sizes


def _fleet_values(free: Ints, sizes: Ints, fleet: FleetFragmentation) -> dict[str, float]:
    return {
        "fleet_fragmentation_ratio": stranded_ratio(free, sizes),
        "fleet_free_gpus": fleet.free,
        "fleet_fragmented_gpus": fleet.fragmented,
        "fleet_fgd_ratio": fleet.ratio,
        "fleet_stranded_gpus": fleet.stranded,
    }

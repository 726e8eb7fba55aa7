"""What the GPUs of a fleet did in cells of 15 minutes: pure, over what a store has, and additive over cells.

A cell is judged by its means, with the same limits as the diagnosis of idle GPUs. A GPU without a reading in a cell
counts there as missing, never as idle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tocsin.domain.clock import HOUR, MINUTE, SECOND
from tocsin.domain.reading import Gpu
from tocsin.domain.usage import Group, Usage
from tocsin.forecaster.diagnosis.window import (
    IDLE_UTILIZATION,
    Floats,
    Mask,
    WindowMeans,
    free,
    held_idle,
    means,
    stranded_by_host,
)
from tocsin.store.port import Columns

CELL_MS = 15 * MINUTE
UTILIZATION, ENGINE, POWER, ENERGY = (
    "gpu_utilization_ratio",
    "gpu_graphics_engine_active_ratio",
    "gpu_power_watts",
    "gpu_energy_joules_total",
)
METRICS = (UTILIZATION, "gpu_processes", "gpu_memory_used_ratio", POWER, ENGINE, ENERGY)
"""What a store is asked for."""
_JOULES_PER_KWH = 3.6e6

Instants = npt.NDArray[np.int64]
Spots = Counter[tuple[int, int]]
"""Hosts by how many of their whole GPUs are free, and how many they have."""


@dataclass(frozen=True, slots=True)
class Account:
    """A span of whole cells: usage by pool and model, the UUIDs that were read in it, and of each cell that has any
    reading the free GPUs by host."""

    groups: Mapping[Group, Usage] = field(default_factory=dict)
    seen: frozenset[str] = frozenset()
    spots: tuple[Spots, ...] = ()


def account(columns: Columns, gpus: Sequence[Gpu], expected: Collection[str], start_ms: int, end_ms: int) -> Account:
    """Account for [`start_ms`, `end_ms`), which must begin and end with a cell.

    `columns` holds `METRICS`, in this order; rows outside are left out. Counted are whole GPUs of `gpus`, no MIG
    instances: where one is in `expected` (UUIDs) also in cells without a reading of it, as missing.
    """
    whole = [gpu for gpu in gpus if not gpu.is_mig]
    counted = np.array([gpu.uuid in expected for gpu in whole], dtype=np.bool_)
    groups: dict[Group, Usage] = {}
    seen: set[str] = set()
    spots = []
    for begin in range(start_ms, end_ms, CELL_MS):
        part = _cut(columns, begin, begin + CELL_MS)
        found = _with_engine(means(part, whole))
        read = found.readings > 0
        if read.any():
            spots.append(_spots(whole, free(found)))
        seen.update(gpu.uuid for gpu, there in zip(whole, read.tolist(), strict=True) if there)
        _add(groups, whole, _cell(found, watts(part, found), read, counted))
    return Account(groups, frozenset(seen), tuple(spots))


def joined(parts: Sequence[Account]) -> Account:
    """One account of several that do not overlap."""
    groups: dict[Group, Usage] = {}
    for part in parts:
        for group, usage in part.groups.items():
            groups[group] = groups.get(group, Usage()) + usage
    seen = frozenset[str]().union(*(part.seen for part in parts))
    return Account(groups, seen, tuple(one for part in parts for one in part.spots))


def _cut(columns: Columns, start_ms: int, end_ms: int) -> Columns:
    first, last = np.searchsorted(columns.at_ms, [start_ms, end_ms])
    rows = slice(int(first), int(last))
    return Columns(columns.gpus, columns.metrics, columns.gpu[rows], columns.at_ms[rows], columns.values[rows])


def _with_engine(found: WindowMeans) -> WindowMeans:
    """`found` with the engine's activity where there is no utilisation, as on a GPU in MIG mode."""
    values = found.values.copy()
    column, other = found.metrics.index(UTILIZATION), found.metrics.index(ENGINE)
    values[:, column] = np.where(np.isfinite(values[:, column]), values[:, column], values[:, other])
    return WindowMeans(found.gpus, found.metrics, values, found.readings)


def _cell(found: WindowMeans, watt: Floats, read: Mask, counted: Mask) -> dict[str, Floats]:
    """Columns of `Usage` for one cell, float64[g] each."""
    use = found.of(UTILIZATION)
    held, empty = held_idle(found), free(found)
    lost = read & ~np.isfinite(found.values).any(axis=1)
    apart = np.zeros(len(found.gpus), dtype=np.bool_)
    place = {gpu.uuid: row for row, gpu in enumerate(found.gpus)}
    # What has no reading is no part of its node here, as in usage.
    there = [gpu for gpu, here in zip(found.gpus, read.tolist(), strict=True) if here]
    for members in stranded_by_host(there, empty[read]).values():
        apart[[place[gpu.uuid] for gpu in members]] = True
    busy = np.asarray(use >= IDLE_UTILIZATION, dtype=np.bool_)
    told = busy | held | empty
    hours = CELL_MS / HOUR

    def spent(which: Mask) -> Floats:
        return np.where(which, hours, 0.0)

    kwh = np.nan_to_num(watt) * (CELL_MS / SECOND) / _JOULES_PER_KWH
    absent = counted & ~read
    return {
        "busy": spent(busy),
        "held_idle": spent(held),
        "stranded": spent(apart),
        "free": spent(empty & ~apart),
        "unknown": spent(read & ~told & ~lost),
        "dark": spent(lost),
        "missing": spent(absent),
        "kwh": kwh,
        "idle_kwh": np.where(held | empty, kwh, 0.0),
        "unmetered": spent((read & ~np.isfinite(watt)) | absent),
    }


def watts(columns: Columns, found: WindowMeans) -> Floats:
    """float64[g]: the mean power of each GPU of `found` over the rows of one cell, NaN where it is not known.

    From the energy counter where it has two values and never falls (it starts anew with the driver), else the mean of
    the power readings.
    """
    place = {gpu.uuid: row for row, gpu in enumerate(found.gpus)}
    wanted = np.array([place.get(uuid, -1) for uuid in columns.gpus], dtype=np.int64)
    gpu = wanted[columns.gpu] if columns.gpus else np.empty(0, np.int64)
    joules = columns.values[:, columns.metrics.index(ENERGY)]
    usable = (gpu >= 0) & np.isfinite(joules)
    gpu, at_ms, joules = gpu[usable], columns.at_ms[usable], joules[usable]
    order = np.lexsort((at_ms, gpu))
    gpu, at_ms, joules = gpu[order], at_ms[order], joules[order]
    same = gpu[1:] == gpu[:-1]
    rise, span = np.diff(joules), np.diff(at_ms) / SECOND
    size = len(found.gpus)
    owner = gpu[1:][same]
    gained = np.bincount(owner, weights=rise[same], minlength=size)
    seconds = np.bincount(owner, weights=span[same], minlength=size)
    fell = np.bincount(owner, weights=(rise[same] < 0).astype(np.float64), minlength=size) > 0
    counter = np.divide(gained, seconds, out=np.full(size, np.nan), where=(seconds > 0) & ~fell)
    return np.where(np.isfinite(counter), counter, found.of(POWER))


def _add(groups: dict[Group, Usage], gpus: Sequence[Gpu], cell: Mapping[str, Floats]) -> None:
    if not gpus:
        return
    names = [(gpu.pool, gpu.model) for gpu in gpus]
    order = {name: number for number, name in enumerate(sorted(set(names)))}
    group = np.array([order[name] for name in names])
    sums = {name: np.bincount(group, weights=values, minlength=len(order)) for name, values in cell.items()}
    for name, number in order.items():
        usage = Usage(**{key: float(values[number]) for key, values in sums.items()})
        if usage.gpu_hours:
            groups[name] = groups.get(name, Usage()) + usage


def _spots(gpus: Sequence[Gpu], is_free: Mask) -> Spots:
    sizes = Counter(gpu.host for gpu in gpus)
    open_ = Counter(gpu.host for gpu, yes in zip(gpus, is_free.tolist(), strict=True) if yes)
    return Counter((open_[host], size) for host, size in sizes.items())


def silent(
    seen: Mapping[int, frozenset[str]], groups: Mapping[str, Group], present: Collection[str]
) -> dict[int, Counter[Group]]:
    """By hour of `seen`: GPUs by group that were read before it and after it, or are `present`, and not in it."""
    hours, uuids = sorted(seen), sorted(groups)
    if not hours or not uuids:
        return {}
    there = np.array([[uuid in seen[hour] for uuid in uuids] for hour in hours], dtype=np.bool_)
    before = np.logical_or.accumulate(there, axis=0)
    after = np.logical_or.accumulate(there[::-1], axis=0)[::-1] | np.array([uuid in present for uuid in uuids])
    gap = ~there & before & after
    return {
        hour: Counter(groups[uuids[place]] for place in np.flatnonzero(gap[row]).tolist())
        for row, hour in enumerate(hours)
        if gap[row].any()
    }

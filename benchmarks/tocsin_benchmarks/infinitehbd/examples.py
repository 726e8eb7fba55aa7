"""The table of nodes at decision instants, 00:00 of each day of the trace, from histories of faults alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tocsin.domain.clock import DAY, HOUR
from tocsin.domain.errors import InputError
from tocsin.forecaster.features.examples import NEVER, Examples, Floats, Ints, Mask
from tocsin_benchmarks.infinitehbd.data import Cluster
from tocsin_benchmarks.tally import Tally

HORIZON_MS = 48 * HOUR
WEEK = 7
WEEKDAY_ONSETS = 10.0
"""Weight of the prior of a weekday's ratio, in onsets."""


@dataclass(frozen=True, slots=True)
class Target:
    """Which faults are foreseen, and how the rate of a node falls with the days since its repairs: `quiet` for a node
    without a fault, and for each span of days a height that falls by 1/e over it. Only the shape counts; how a rate
    reads as a probability is fitted.

    `sums` adds up all past faults, otherwise the newest alone counts; `gpu` adds what a GPU fault brings beside that.
    The shapes were read off the first 120 days.
    """

    name: str
    gpu_only: bool
    quiet: float
    heights: tuple[tuple[float, float], ...]
    sums: bool
    gpu: tuple[float, float] | None = None


ANY = Target("any fault", False, 0.003, ((1.0, 0.1), (10.0, 0.025), (60.0, 0.002)), False)
GPU = Target("GPU faults", True, 0.05, ((30.0, 1.0),), True, (30.0, 1.0))


@dataclass(frozen=True, slots=True)
class _Rows:
    node: Ints
    at_ms: Ints


def examples(cluster: Cluster, target: Target, from_ms: int, to_ms: int, nodes: Mask, teachers: Mask) -> Examples:
    """Rows of `nodes` in service at each day t with from <= t and t + 48 h <= to. Weekdays are learned from `teachers`;
    both are bool[nodes]. Raises InputError without a row."""
    rows = _in_service(cluster, from_ms, to_ms, nodes)
    if rows.node.size == 0:
        raise InputError(
            "instants", 0, "no node is in service at an instant of known label", "give traces of more days"
        )
    columns = {**_log_rate(cluster, target, rows, teachers), **_history(cluster, rows)}
    wanted = cluster.is_gpu if target.gpu_only else np.ones_like(cluster.is_gpu)
    start_ms = cluster.start_ms[wanted]
    found = Tally(cluster.node[wanted], start_ms).next(rows.node, rows.at_ms)
    event_ms = np.append(start_ms, NEVER)[found]
    kind = np.append(cluster.kind[wanted], "")[found]
    told = event_ms <= to_ms
    return Examples(
        devices=cluster.nodes,
        device=rows.node.astype(np.int32),
        groups=cluster.nodes,
        group=rows.node.astype(np.int32),
        at_ms=rows.at_ms,
        names=tuple(columns),
        features=np.stack(list(columns.values()), axis=1).astype(np.float32),
        seen_ms=rows.at_ms,
        history_ms=rows.at_ms,
        event_ms=np.where(told, event_ms, NEVER),
        until_ms=np.full(rows.at_ms.size, to_ms, dtype=np.int64),
        event_class=np.where(told, kind, ""),
        weight=np.ones(rows.at_ms.size),
    )


def _in_service(cluster: Cluster, from_ms: int, to_ms: int, nodes: Mask) -> _Rows:
    days = np.arange(max(1, -(-from_ms // DAY)), (to_ms - HORIZON_MS) // DAY + 1, dtype=np.int64)
    chosen = np.flatnonzero(nodes)
    at_ms, node = np.repeat(days * DAY, chosen.size), np.tile(chosen, days.size)
    newest = Tally(cluster.node, cluster.start_ms).newest(node, at_ms)
    serves = np.append(cluster.end_ms, 0)[newest] <= at_ms
    return _Rows(node[serves], at_ms[serves])


def _log_rate(cluster: Cluster, target: Target, rows: _Rows, teachers: Mask) -> dict[str, Floats]:
    ended = cluster.end_ms < NEVER
    repairs = Tally(cluster.node[ended], cluster.end_ms[ended])
    rate = np.full(rows.node.size, target.quiet)
    for days, height in target.heights:
        rate += height * _faded(repairs, rows, days, target.sums)
    if target.gpu is not None:
        of = ended & cluster.is_gpu
        rate += target.gpu[1] * _faded(Tally(cluster.node[of], cluster.end_ms[of]), rows, target.gpu[0], target.sums)
    weekday = _weekday(cluster, teachers)[rows.at_ms // DAY]
    return {"log_rate": np.log(rate) + weekday, "weekday": weekday}


def _faded(repairs: Tally, rows: _Rows, days: float, sums: bool) -> Floats:
    if sums:
        return repairs.decayed(rows.node, rows.at_ms, days)
    return np.exp(-np.nan_to_num(repairs.days_since(rows.node, rows.at_ms), nan=np.inf) / days)


def _weekday(cluster: Cluster, teachers: Mask) -> Floats:
    """float64[days]: log ratio of the onsets of the two days from each day on to those of all days, by weekday, counted
    up to its start and shrunk."""
    days = cluster.until_ms // DAY + 1
    onsets = np.bincount(cluster.start_ms[teachers[cluster.node]] // DAY, minlength=days)
    had, seen, ratios = np.zeros(WEEK), np.zeros(WEEK), np.zeros((days, WEEK))
    for day in range(days):
        mean = had.sum() / max(seen.sum(), 1.0)
        ratios[day] = (had + WEEKDAY_ONSETS) / (seen * mean + WEEKDAY_ONSETS)
        had[day % WEEK] += onsets[day]
        seen[day % WEEK] += 1
    every = np.arange(days)
    logs: Floats = np.log((ratios[every, every % WEEK] + ratios[every, (every + 1) % WEEK]) / 2)
    return logs


def _history(cluster: Cluster, rows: _Rows) -> dict[str, Floats]:
    """What else is known of a node and the cluster, for the models that learn."""
    faults, gpus = (
        Tally(cluster.node, cluster.start_ms),
        Tally(cluster.node[cluster.is_gpu], cluster.start_ms[cluster.is_gpu]),
    )
    ended = np.flatnonzero(cluster.end_ms < NEVER)
    repairs = Tally(cluster.node[ended], cluster.end_ms[ended])
    newest = repairs.newest(rows.node, rows.at_ms)
    lasted = np.append((cluster.end_ms[ended] - cluster.start_ms[ended]) / DAY, np.nan)[newest]
    everywhere = Tally(np.zeros_like(cluster.node), cluster.start_ms)
    whole = np.zeros_like(rows.node)
    return {
        "repair_days": repairs.days_since(rows.node, rows.at_ms),
        "gpu_fault_days": gpus.days_since(rows.node, rows.at_ms),
        "repair_lasted_days": lasted,
        "faults": faults.count(rows.node, rows.at_ms).astype(np.float64),
        "gpu_faults": gpus.count(rows.node, rows.at_ms).astype(np.float64),
        "faults_30": faults.decayed(rows.node, rows.at_ms, 30.0),
        "same_class": _same_class(cluster, rows),
        "cluster_4": everywhere.decayed(whole, rows.at_ms, 4.0),
        "cluster_16": everywhere.decayed(whole, rows.at_ms, 16.0),
    }


def _same_class(cluster: Cluster, rows: _Rows) -> Floats:
    """Faults of the node before, of the class of its newest one; 0 without a fault."""
    _, kind = np.unique(cluster.kind, return_inverse=True)
    kinds = int(kind.max(initial=0)) + 1
    newest = Tally(cluster.node, cluster.start_ms).newest(rows.node, rows.at_ms)
    had = newest >= 0
    mine = np.append(kind, 0)[newest]
    counts = Tally(cluster.node * kinds + kind, cluster.start_ms).count(rows.node * kinds + mine, rows.at_ms)
    return np.where(had, counts - 1, 0).astype(np.float64)

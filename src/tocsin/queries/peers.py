"""How the peers of a GPU do: the band in which four of five of them lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from tocsin.actions.model.ranks import work_on
from tocsin.actions.planning.facts import NodeState
from tocsin.client.models import PeerBand, PeerGroup
from tocsin.domain.clock import DAY, to_iso
from tocsin.domain.reading import Reading
from tocsin.store.port import Columns, Store

MOST_PEERS = 32
"""Peers whose past is read; of a larger group every n-th, so that a fleet of one model costs no more than a rack."""
MOST_PEERS_LONG = 8
"""The same where more than a day is asked for."""
PERCENTILES = (10.0, 50.0, 90.0)
"""The middle 80 %, as the intervals of predictions have it."""

Table = npt.NDArray[np.float64]


def group_of(reading: Reading, latest: Sequence[Reading], nodes: Mapping[str, NodeState], by: PeerGroup) -> list[str]:
    """UUIDs of the peers of `reading` among the newest readings, in their order, without itself."""
    mine = reading.gpu

    def job_of(one: Reading) -> str:
        return work_on(one.gpu.host, one.owners, nodes.get(one.gpu.host)).job if one.owners else ""

    job = job_of(reading)

    def is_peer(other: Reading) -> bool:
        gpu = other.gpu
        if gpu.is_mig != mine.is_mig:
            return False
        if by is PeerGroup.NODE:
            return gpu.host == mine.host
        if by is PeerGroup.MODEL:
            return (gpu.model, gpu.pool) == (mine.model, mine.pool)
        return bool(job) and job_of(other) == job

    return [other.gpu.uuid for other in latest if other.gpu.uuid != mine.uuid and is_peer(other)]


def peer_band(
    store: Store,
    reading: Reading,
    latest: Sequence[Reading],
    nodes: Mapping[str, NodeState],
    by: PeerGroup,
    metrics: Sequence[str],
    start_ms: int,
    end_ms: int,
    points: int,
) -> PeerBand:
    """The band of the peers over [`start_ms`, `end_ms`) in `points` equal spans. Raises StoreUnavailable."""
    group = group_of(reading, latest, nodes, by)
    most = MOST_PEERS if end_ms - start_ms <= DAY else MOST_PEERS_LONG
    chosen = group[:: -(-len(group) // most)] if group else []
    edges = np.linspace(start_ms, end_ms, points + 1)
    middles = [to_iso(int(at)) for at in (edges[:-1] + edges[1:]) / 2]
    band = PeerBand(gpu=reading.gpu.uuid, by=by, peers=len(chosen), group=len(group), at=middles if chosen else [])
    if not chosen:
        return band
    columns = store.columns(metrics, start_ms, end_ms, chosen)
    found = {name: _percentiles(columns, place, edges) for place, name in enumerate(metrics)}
    parts = [{name: _listed(rows[n]) for name, rows in found.items()} for n in range(len(PERCENTILES))]
    return band.model_copy(update=dict(zip(("low", "middle", "high"), parts, strict=True)))


def _percentiles(columns: Columns, place: int, edges: Table) -> Table:
    """float64[3, spans]: percentiles over GPUs of each GPU's mean in each span; NaN where none has a value."""
    values, spans = columns.values[:, place], len(edges) - 1
    there = ~np.isnan(values)
    span = np.clip(np.searchsorted(edges, columns.at_ms, side="right") - 1, 0, spans - 1)
    cell = columns.gpu.astype(np.int64) * spans + span
    cells = len(columns.gpus) * spans
    counts = np.bincount(cell[there], minlength=cells)
    sums = np.bincount(cell[there], weights=values[there], minlength=cells)
    means = np.full(cells, np.nan)
    np.divide(sums, counts, out=means, where=counts > 0)
    table = means.reshape(len(columns.gpus), spans)
    result = np.full((len(PERCENTILES), spans), np.nan)
    known = ~np.isnan(table).all(axis=0) if len(table) else np.zeros(spans, dtype=bool)
    if known.any():
        result[:, known] = np.nanpercentile(table[:, known], PERCENTILES, axis=0)
    return result


def _listed(row: Table) -> list[float | None]:
    return [None if np.isnan(value) else float(value) for value in row]

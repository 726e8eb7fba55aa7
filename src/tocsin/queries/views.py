"""GPU and fleet as the API shows them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from tocsin.actions.model.controls import Controls
from tocsin.actions.model.ledger_entry import DecisionStatus
from tocsin.actions.model.ranks import work_on
from tocsin.actions.planning.facts import NodeState
from tocsin.client.control import BreakerOut, ControlState
from tocsin.client.models import (
    DecisionOut,
    FindingOut,
    GpuState,
    GpuSummary,
    IncidentOut,
    KindScore,
    PeerBand,
    PeerGroup,
    SeriesResponse,
)
from tocsin.client.wire import extended
from tocsin.domain.clock import DAY, SECOND, optional_iso, to_iso
from tocsin.domain.finding import Finding, Incident, Severity
from tocsin.domain.prediction import Prediction, most_urgent
from tocsin.domain.reading import Reading
from tocsin.domain.sign_record import SignRecord
from tocsin.forecaster.live.recalibration import KindFigures
from tocsin.store.port import Columns, Series, Store


def incident_out(incident: Incident) -> IncidentOut:
    """An incident with its members."""
    members = tuple(extended(FindingOut, member) for member in incident.members)
    root = extended(FindingOut, incident.root)
    return extended(IncidentOut, incident, root=root, members=members, level=incident.alert_level)


def kind_score(one: KindFigures) -> KindScore:
    """The record of a kind of forecast."""
    return KindScore(
        kind=one.kind,
        settled=one.settled,
        right=one.right,
        week=one.week,
        week_right=one.week_right,
        open=one.open,
        precision=one.precision,
        stated=one.stated,
        observed=one.observed,
        muted=one.muted,
        sentence=one.line,
    )


def sign_score(one: SignRecord) -> KindScore:
    """The record of a rule that foretells."""
    return KindScore(
        kind=one.kind,
        settled=one.settled,
        right=one.right,
        open=one.open,
        precision=one.precision,
        muted=one.muted,
        sentence=one.line,
    )


def control_out(controls: Controls, limit: int) -> ControlState:
    """Pause and breaker; `limit` is the number of root causes that trips it."""
    paused, breaker = controls.paused, controls.breaker
    return ControlState(
        paused=paused is not None,
        paused_by=paused.actor if paused else "",
        paused_reason=paused.reason if paused else "",
        breaker=BreakerOut(
            tripped=breaker is not None,
            root_causes=len(breaker.causes) if breaker else 0,
            limit=limit,
            since=optional_iso(breaker.at_ms) if breaker else None,
            reason=breaker.reason if breaker else "",
        ),
    )


def gpu_state(reading: Reading, findings: Sequence[Finding], now_ms: int, fresh_ms: int) -> GpuState:
    """The worst of what is known of a GPU."""
    if reading.is_lost:
        return GpuState.LOST
    severities = {finding.severity for finding in findings}
    if Severity.CRITICAL in severities:
        return GpuState.CRITICAL
    if now_ms - reading.at_ms > fresh_ms:
        return GpuState.STALE
    return GpuState.WARNING if Severity.WARNING in severities else GpuState.OK


def worst(findings: Sequence[Finding]) -> Finding | None:
    """The most severe finding, the oldest of these."""
    return min(findings, key=lambda f: (-f.severity.rank, f.started_ms, f.id), default=None)


def gpu_summary(
    reading: Reading, findings: Sequence[Finding], predictions: Sequence[Prediction], now_ms: int, fresh_ms: int
) -> GpuSummary:
    """One GPU in a line."""
    gpu, values = reading.gpu, reading.values
    bad, next_ = worst(findings), most_urgent(one for one in predictions if one.is_ahead and not one.muted)
    return GpuSummary(
        uuid=gpu.uuid,
        host=gpu.host,
        index=gpu.index,
        model=gpu.model,
        pool=gpu.pool,
        rack=gpu.rack,
        parent=gpu.parent,
        mig_profile=gpu.mig_profile,
        simulated=gpu.simulated,
        state=gpu_state(reading, findings, now_ms, fresh_ms),
        last_reading=to_iso(reading.at_ms),
        last_reading_age_s=max(0.0, (now_ms - reading.at_ms) / SECOND),
        temperature_celsius=values.get("gpu_temperature_celsius"),
        utilization_ratio=values.get("gpu_utilization_ratio"),
        memory_used_ratio=values.get("gpu_memory_used_ratio"),
        power_watts=values.get("gpu_power_watts"),
        findings=len(findings),
        severity=bad.severity if bad else None,
        finding=bad.sentence if bad else "",
        prediction=next_.sentence if next_ else "",
        probability=next_.probability if next_ else None,
        eta=optional_iso(next_.eta_ms) if next_ else None,
        eta_low=optional_iso(next_.eta_low_ms) if next_ else None,
        eta_high=optional_iso(next_.eta_high_ms) if next_ else None,
    )


def waiting(statuses: Iterable[DecisionStatus]) -> int:
    """How many decisions wait for a person: what a yes would start. The one count of page, API, CLI and metrics."""
    return sum(status.waits_for_person for status in statuses)


def decisions_out(statuses: Iterable[DecisionStatus], limit: int) -> list[DecisionOut]:
    """At most `limit`, newest first; those that wait for a person before all: what `waiting` counts is listed too,
    however much came after it."""
    order = sorted(statuses, key=lambda one: (not one.waits_for_person, -one.decision.at_ms, one.decision.id))
    return [decision_out(one) for one in order[:limit]]


def decision_out(status: DecisionStatus) -> DecisionOut:
    """A decision as it stands."""
    return extended(
        DecisionOut,
        status.decision,
        id=status.decision.id,
        state=status.state,
        overall=status.overall,
        verdicts=status.verdicts,
        approvable=status.waits_for_person,
        approved_by=status.approved_by,
        outcome=status.outcome,
    )


def series_out(series: Series, start_ms: int, end_ms: int, max_points: int) -> SeriesResponse:
    """A series thinned to `max_points` instants at most; of each bucket the instants of least and most value stay."""
    keep = _thin(series, max_points)
    at = series.at_ms[keep]
    columns = {
        name: [None if np.isnan(value) else float(value) for value in series.values[keep, i]]
        for i, name in enumerate(series.metrics)
    }
    return SeriesResponse(
        gpu=series.gpu,
        start=to_iso(start_ms),
        end=to_iso(end_ms),
        at=[to_iso(int(moment)) for moment in at],
        metrics=columns,
        points=len(series.at_ms),
    )


def _thin(series: Series, max_points: int) -> list[int]:
    total = len(series.at_ms)
    if total <= max_points:
        return list(range(total))
    per_bucket = 2 * max(1, len(series.metrics))
    buckets = np.array_split(np.arange(total), max(1, max_points // per_bucket))
    keep: set[int] = set()
    for bucket in buckets:
        for column in series.values[bucket].T:
            finite = np.flatnonzero(~np.isnan(column))
            if finite.size:
                keep.add(int(bucket[finite[column[finite].argmin()]]))
                keep.add(int(bucket[finite[column[finite].argmax()]]))
    return sorted(keep)[:max_points]


def mean(values: Sequence[float | None]) -> float | None:
    """Mean of what is there."""
    present = [value for value in values if value is not None]
    return sum(present) / len(present) if present else None


# How the peers of a GPU do: the band in which four of five of them lie.

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

"""GPU and fleet as the API shows them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tocsin.actions.model.controls import Controls
from tocsin.actions.model.ledger_entry import DecisionStatus
from tocsin.client.control import BreakerOut, ControlState
from tocsin.client.models import (
    DecisionOut,
    FindingOut,
    GpuState,
    GpuSummary,
    IncidentOut,
    JournalEntryOut,
    SeriesResponse,
)
from tocsin.client.wire import extended
from tocsin.domain.clock import SECOND, optional_iso, to_iso
from tocsin.domain.decision import DecisionState, Mode
from tocsin.domain.finding import Finding, Incident, Severity
from tocsin.domain.parameters import encode
from tocsin.domain.prediction import Prediction
from tocsin.domain.reading import Reading
from tocsin.journal.entry import Entry
from tocsin.store.port import Series

# Domain objects as the API shows them.


def finding_out(finding: Finding, *, active: bool = True) -> FindingOut:
    """A finding."""
    return extended(FindingOut, finding, active=active)


def incident_out(incident: Incident) -> IncidentOut:
    """An incident with its members."""
    members = tuple(finding_out(member) for member in incident.members)
    return extended(IncidentOut, incident, root=finding_out(incident.root), members=members)


def entry_out(entry: Entry) -> JournalEntryOut:
    """An entry of the journal."""
    return JournalEntryOut.model_validate(
        {
            "seq": entry.seq,
            "epoch": entry.epoch,
            "at": to_iso(entry.at_ms),
            "kind": entry.kind,
            "actor": entry.actor,
            "payload": dict(entry.payload),
            "simulated": entry.simulated,
            "hash": entry.hash,
            "previous_hash": entry.previous_hash,
        }
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


def most_urgent(predictions: Sequence[Prediction]) -> Prediction | None:
    """The crossing still to come that comes first."""
    crossing = [p for p in predictions if p.is_ahead]
    return min(crossing, key=lambda p: (p.eta_ms or 0, p.target), default=None)


def gpu_summary(
    reading: Reading, findings: Sequence[Finding], predictions: Sequence[Prediction], now_ms: int, fresh_ms: int
) -> GpuSummary:
    """One GPU in a line."""
    gpu, values = reading.gpu, reading.values
    bad, next_ = worst(findings), most_urgent(predictions)
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


def approvable(status: DecisionStatus) -> bool:
    """Whether a person may approve or reject it now."""
    return status.state is DecisionState.HELD and status.decision.mode is Mode.PROPOSE


def decision_out(status: DecisionStatus) -> DecisionOut:
    """A decision as it stands."""
    decision = status.decision
    return DecisionOut(
        id=decision.id,
        rule=decision.rule,
        subject=decision.subject,
        action=decision.action,
        mode=decision.mode,
        severity=decision.severity,
        category=decision.category,
        at=to_iso(decision.at_ms),
        expires=to_iso(decision.expires_ms),
        sentence=decision.sentence,
        findings=list(decision.findings),
        incident=decision.incident,
        parameters=encode(decision.parameters),
        simulated=decision.simulated,
        state=status.state,
        overall=status.overall,
        verdicts=list(status.verdicts),
        approvable=approvable(status),
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
        block = series.values[bucket]
        for column in block.T:
            finite = np.flatnonzero(~np.isnan(column))
            if finite.size:
                keep.add(int(bucket[finite[column[finite].argmin()]]))
                keep.add(int(bucket[finite[column[finite].argmax()]]))
    return sorted(keep)[:max_points]


def mean(values: Sequence[float | None]) -> float | None:
    """Mean of what is there."""
    present = [value for value in values if value is not None]
    return sum(present) / len(present) if present else None

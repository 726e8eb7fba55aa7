"""Domain objects as the API shows them."""

from __future__ import annotations

from dataclasses import asdict

from tocsin.actions.model.controls import Controls
from tocsin.client.models import (
    BreakerOut,
    ControlState,
    DiagnosisOut,
    EventOut,
    EvidenceOut,
    FindingOut,
    IncidentOut,
    JournalEntryOut,
    PredictionOut,
    SubjectOut,
)
from tocsin.client.wire import OwnerOut
from tocsin.domain.clock import SECOND, to_iso
from tocsin.domain.diagnosis import Diagnosis
from tocsin.domain.event import Event
from tocsin.domain.finding import Evidence, Finding, Incident
from tocsin.domain.owner import Owner
from tocsin.domain.prediction import Prediction
from tocsin.domain.subject import Subject
from tocsin.journal.chain import Entry


def instant(at_ms: int | None) -> str | None:
    """RFC 3339 text of an instant; None stays None."""
    return None if at_ms is None else to_iso(at_ms)


def subject_out(subject: Subject) -> SubjectOut:
    """A subject."""
    return SubjectOut(kind=subject.kind, name=subject.name, host=subject.host, pool=subject.pool, detail=subject.detail)


def evidence_out(evidence: Evidence) -> EvidenceOut:
    """One piece of evidence."""
    return EvidenceOut(name=evidence.name, text=evidence.text, at=to_iso(evidence.at_ms), value=evidence.value)


def owner_out(owner: Owner) -> OwnerOut:
    """An owner."""
    return OwnerOut(label=owner.label, **asdict(owner))


def event_out(event: Event) -> EventOut:
    """An event."""
    return EventOut(
        id=event.id,
        kind=event.kind,
        gpu=event.gpu,
        host=event.host,
        at=to_iso(event.at_ms),
        code=event.code,
        message=event.message,
        source=event.source,
        simulated=event.simulated,
        severity=event.severity,
        remedy=event.remedy,
    )


def finding_out(finding: Finding, *, active: bool = True) -> FindingOut:
    """A finding."""
    return FindingOut(
        id=finding.id,
        rule=finding.rule,
        subject=subject_out(finding.subject),
        severity=finding.severity,
        category=finding.category,
        action=finding.action,
        started=to_iso(finding.started_ms),
        last=to_iso(finding.last_ms),
        active=active,
        sentence=finding.sentence,
        metric=finding.metric,
        value=finding.value,
        threshold=finding.threshold,
        evidence=[evidence_out(piece) for piece in finding.evidence],
        owners=[owner_out(owner) for owner in finding.owners],
        simulated=finding.simulated,
    )


def incident_out(incident: Incident) -> IncidentOut:
    """An incident with its members."""
    return IncidentOut(
        id=incident.id,
        root=finding_out(incident.root),
        members=[finding_out(member) for member in incident.members],
        subjects=incident.subjects,
        opened=to_iso(incident.opened_ms),
        last=to_iso(incident.last_ms),
        sentence=incident.sentence,
    )


def prediction_out(prediction: Prediction) -> PredictionOut:
    """A prediction."""
    return PredictionOut(
        id=prediction.id,
        subject=subject_out(prediction.subject),
        target=prediction.target,
        at=to_iso(prediction.at_ms),
        horizon_s=prediction.horizon_ms / SECOND,
        status=prediction.status,
        model=prediction.model,
        model_version=prediction.model_version,
        sentence=prediction.sentence,
        metric=prediction.metric,
        threshold=prediction.threshold,
        value=prediction.value,
        probability=prediction.probability,
        eta=instant(prediction.eta_ms),
        eta_low=instant(prediction.eta_low_ms),
        eta_high=instant(prediction.eta_high_ms),
        coverage=prediction.coverage,
        reason=prediction.reason,
        evidence=[evidence_out(piece) for piece in prediction.evidence],
        simulated=prediction.simulated,
        curve=[(ahead_ms / SECOND, chance) for ahead_ms, chance in prediction.curve],
        sentence_zh=prediction.sentence_zh,
        classes=list(prediction.classes),
    )


def diagnosis_out(diagnosis: Diagnosis) -> DiagnosisOut:
    """A diagnosis."""
    return DiagnosisOut(
        kind=diagnosis.kind,
        verdict=diagnosis.verdict,
        name=diagnosis.name,
        hosts=list(diagnosis.hosts),
        gpus=list(diagnosis.gpus),
        at=to_iso(diagnosis.at_ms),
        window_s=diagnosis.window_ms / SECOND,
        score=diagnosis.score,
        sentence=diagnosis.sentence,
        sentence_zh=diagnosis.sentence_zh,
        remedy=diagnosis.remedy,
        evidence=[evidence_out(piece) for piece in diagnosis.evidence],
        simulated=diagnosis.simulated,
    )


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
            since=instant(breaker.at_ms) if breaker else None,
            reason=breaker.reason if breaker else "",
        ),
    )

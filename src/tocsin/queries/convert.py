"""Domain objects as the API shows them."""

from __future__ import annotations

from tocsin.actions.model.controls import Controls
from tocsin.client.control import BreakerOut, ControlState
from tocsin.client.models import FindingOut, IncidentOut, JournalEntryOut
from tocsin.client.wire import extended
from tocsin.domain.clock import optional_iso, to_iso
from tocsin.domain.finding import Finding, Incident
from tocsin.journal.chain import Entry


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

"""The first look at the fake fleet: its map, what needs attention, a GPU's peers; made of what `fake_fleet` says."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tocsin.client.models import (
    Attention,
    AttentionItem,
    DecisionOut,
    FindingOut,
    FleetMap,
    GpuState,
    GpuSummary,
    IncidentOut,
    PeerBand,
    PeerGroup,
)
from tocsin.client.models_cards import Card, CardAction, CardEvidence, Cards, CardState, CardTouches
from tocsin.domain.clock import optional_iso, to_iso
from tocsin.domain.finding import Severity, SubjectKind
from tocsin.domain.prediction import Prediction, PredictionStatus
from tocsin_testing import fake_fleet as fleet

_STATES = {Severity.INFO: GpuState.OK, Severity.WARNING: GpuState.WARNING, Severity.CRITICAL: GpuState.CRITICAL}
_LOSS = 36.0
"""GPU-hours that the fake fleet loses with a job."""
_SHARES = ((997, GpuState.LOST), (331, GpuState.CRITICAL), (97, GpuState.WARNING), (211, GpuState.STALE))
"""Every n-th GPU of a large fleet is in such a state."""


def background(host: int, index: int) -> GpuState:
    """State of a GPU of a large fleet that `fake_fleet` says nothing about."""
    number = host * fleet.PER_HOST + index
    return next((state for every, state in _SHARES if number % every == every // 2), GpuState.OK)


def map_of(gpus: Sequence[GpuSummary]) -> FleetMap:
    """The same in columns."""
    hosts = list(dict.fromkeys((gpu.host, gpu.rack) for gpu in gpus))
    place = {host: n for n, (host, _) in enumerate(hosts)}
    pools = {gpu.host: gpu.pool for gpu in reversed(gpus)}
    models = list(dict.fromkeys(gpu.model for gpu in gpus))
    return FleetMap(
        hosts=[host for host, _ in hosts],
        racks=[rack for _, rack in hosts],
        pools=[pools[host] for host, _ in hosts],
        models=models,
        uuid=[gpu.uuid for gpu in gpus],
        host=[place[gpu.host] for gpu in gpus],
        model=[models.index(gpu.model) for gpu in gpus],
        index=[gpu.index for gpu in gpus],
        state=[gpu.state.rank for gpu in gpus],
        temperature=[gpu.temperature_celsius for gpu in gpus],
        utilization=[gpu.utilization_ratio for gpu in gpus],
        memory=[gpu.memory_used_ratio for gpu in gpus],
        power=[gpu.power_watts for gpu in gpus],
        risk=[gpu.probability for gpu in gpus],
    )


def _of_finding(found: FindingOut, ahead: Prediction | None, gpu: GpuSummary | None) -> AttentionItem:
    state = gpu.state if gpu is not None and gpu.state is GpuState.LOST else _STATES[found.severity]
    return _item(gpu if found.subject.kind is SubjectKind.GPU else None, ahead).model_copy(
        update={
            "subject": found.subject,
            "state": state,
            "severity": found.severity,
            "sentence": found.sentence,
            "since": to_iso(found.started_ms),
            "cost_gpu_hours": _LOSS if state is GpuState.LOST else _cost(ahead),
        }
    )


def _cost(ahead: Prediction | None) -> float | None:
    return None if ahead is None or ahead.probability is None else ahead.probability * _LOSS


def _item(gpu: GpuSummary | None, ahead: Prediction | None) -> AttentionItem:
    return AttentionItem(
        subject=ahead.subject if ahead else fleet.POOL_SUBJECT,
        index=gpu.index if gpu else None,
        state=GpuState.OK,
        prediction=ahead.sentence if ahead else "",
        probability=ahead.probability if ahead else None,
        eta=optional_iso(ahead.eta_ms) if ahead else None,
        eta_low=optional_iso(ahead.eta_low_ms) if ahead else None,
        eta_high=optional_iso(ahead.eta_high_ms) if ahead else None,
        gpus=8,
        cost_gpu_hours=_cost(ahead),
    )


def attention_of(gpus: Sequence[GpuSummary], findings: Sequence[FindingOut], limit: int) -> Attention:
    """Findings with their GPU's prediction, predictions without a finding, and GPUs of a bad state without either."""
    by_uuid = {gpu.uuid: gpu for gpu in gpus}
    ahead = {p.subject.name: p for p in fleet.PREDICTIONS if p.status is PredictionStatus.CROSSING}
    known = {f.subject.name for f in findings}
    items = [_of_finding(f, ahead.get(f.subject.name), by_uuid.get(f.subject.name)) for f in findings]
    items += [_item(by_uuid.get(name), p) for name, p in ahead.items() if name not in known and name in by_uuid]
    for gpu in gpus:
        if gpu.state is not GpuState.OK and gpu.uuid not in known and gpu.uuid not in ahead:
            host, index = (int(part, 16) for part in (gpu.uuid[4:12], gpu.uuid[-12:]))
            subject = fleet.subject((host, index))
            items.append(AttentionItem(subject=subject, index=index, state=gpu.state, since=gpu.last_reading))
    items.sort(key=lambda item: (-item.state.rank, -(item.cost_gpu_hours or 0.0), item.subject.name))
    return Attention(total=len(items), items=items[:limit])


def peers_of(
    where: tuple[int, int], by: PeerGroup, metrics: Sequence[str], start_ms: int, end_ms: int, points: int
) -> PeerBand:
    """The band of the GPUs of the same host, whatever is asked for."""
    peers = [(where[0], index) for index in range(fleet.PER_HOST) if index != where[1]]
    edges = np.linspace(start_ms, min(end_ms, fleet.NOW_MS), points + 1)
    at = [int(moment) for moment in (edges[:-1] + edges[1:]) / 2]
    known = [name for name in metrics if name in fleet.METRICS]
    tables = {
        name: np.percentile([[fleet.METRICS[name](*peer, moment) for moment in at] for peer in peers], (10, 50, 90), 0)
        for name in known
    }
    low, middle, high = ({name: list(map(float, rows[n])) for name, rows in tables.items()} for n in range(3))
    return PeerBand(
        gpu=fleet.uuid(*where),
        by=by,
        peers=len(peers),
        group=len(peers),
        at=[to_iso(moment) for moment in at],
        low=low,
        middle=middle,
        high=high,
    )


def cards_of(incidents: Sequence[IncidentOut], decisions: Sequence[DecisionOut]) -> Cards:
    """A card for each incident, with the decision about the same subject that waits for a person."""
    made = []
    for one in incidents:
        mine = [each for each in decisions if each.subject == one.root.subject and each.approvable]
        where = (
            f"{one.root.subject.host} GPU {int(one.root.subject.name[-12:], 16)}"
            if one.root.subject.kind is SubjectKind.GPU
            else f"{one.root.subject.kind} {one.root.subject.name}"
        )
        made.append(
            Card(
                id=one.id,
                headline=f"{where}: {one.root.rule.replace('-', ' ')}",
                headline_zh=f"{where}: 故障",
                state=CardState.OPEN,
                health=_STATES[one.root.severity],
                level=one.alert_level,
                since=to_iso(one.opened_ms),
                place=one.root.subject.key,
                subject=one.root.subject,
                index=int(one.root.subject.name[-12:], 16) if one.root.subject.kind is SubjectKind.GPU else None,
                touches=CardTouches(gpus=1, hosts=1, gpu_names=[where]),
                confidence="measured",
                waiting_gpu_hours=_LOSS if one.root.severity is Severity.CRITICAL else None,
                next="Waits for your approval until 05:00 UTC" if mine else "Nothing: watch only",
                next_zh="等待批准，截止 05:00 UTC" if mine else "无动作，仅观察",
                action=CardAction(kind=mine[0].action, sentence=mine[0].sentence, decision=mine[0].id, can_approve=True)
                if mine
                else None,
                obstacle="" if mine else "No action is known for this: a person should look.",
                evidence=[CardEvidence(kind="finding", text=one.sentence, name=one.root.rule)],
                simulated=one.root.simulated,
            )
        )
    made.sort(key=lambda card: -card.health.rank)
    return Cards(total=len(made), items=made, waiting=sum(each.approvable for each in decisions))

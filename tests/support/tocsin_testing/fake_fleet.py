"""What the fake API service serves: 64 simulated GPUs on 8 hosts at one instant, always the same."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from tocsin.client.models import (
    DecisionOut,
    FindingOut,
    GpuState,
    GpuSummary,
)
from tocsin.domain.clock import HOUR, MINUTE, SECOND, optional_iso, to_iso
from tocsin.domain.decision import DecisionState, Mode, Outcome, OutcomeStatus, Ruling, Verdict
from tocsin.domain.diagnosis import Diagnosis, DiagnosisKind, DiagnosisVerdict
from tocsin.domain.event import Event, EventKind
from tocsin.domain.finding import ActionKind, Category, Evidence, Finding, Severity, Subject, SubjectKind
from tocsin.domain.phrase import Phrase
from tocsin.domain.prediction import Prediction, PredictionStatus
from tocsin_testing.builders import T0

HOSTS, PER_HOST = 8, 8
NOW_MS = T0
HOT, DYING, LOST, LEAKING, STALE, SPLIT = (2, 5), (4, 1), (5, 2), (1, 6), (6, 7), (3, 3)
"""Host and index of the GPUs that have something to tell."""
LOST_MS = NOW_MS - 31 * MINUTE


def uuid(host: int, index: int) -> str:
    return f"GPU-{host:08x}-0000-4000-8000-{index:012x}"


def host_name(host: int) -> str:
    return f"gpu-node-{host + 1:02d}"


def subject(where: tuple[int, int]) -> Subject:
    host, index = where
    return Subject(kind=SubjectKind.GPU, name=uuid(host, index), host=host_name(host), pool=pool(host))


def pool(host: int) -> str:
    return "training" if host < 5 else "inference"


def wave(host: int, index: int, at_ms: int) -> float:
    """A repeatable number in 0 to 1 that looks like load."""
    hours = at_ms / HOUR
    return 0.5 + 0.3 * math.sin(hours * 1.7 + host) + 0.2 * math.sin(hours * 11 + 3 * index + host * host)


def temperature(host: int, index: int, at_ms: int) -> float:
    base = 46 + 22 * wave(host, index, at_ms)
    if (host, index) == HOT:
        hours_ago = (NOW_MS - at_ms) / HOUR
        return 86.4 - 2.6 * max(0.0, hours_ago) + 0.4 * math.sin(at_ms / MINUTE)
    return base


def utilization(host: int, index: int, at_ms: int) -> float:
    return min(1.0, max(0.0, (0.35 if host >= 5 else 0.55) + 0.45 * wave(host, index, at_ms)))


def memory(host: int, index: int, at_ms: int) -> float:
    if (host, index) == LEAKING:
        return max(0.2, 0.93 - 0.06 * (NOW_MS - at_ms) / HOUR)
    return 0.35 + 0.1 * (index % 4) + 0.1 * wave(host, index, at_ms)


def power(host: int, index: int, at_ms: int) -> float:
    return 90 + 300 * utilization(host, index, at_ms)


METRICS: dict[str, Callable[[int, int, int], float]] = {
    "gpu_temperature_celsius": temperature,
    "gpu_utilization_ratio": utilization,
    "gpu_memory_used_ratio": memory,
    "gpu_power_watts": power,
    "gpu_memory_temperature_celsius": lambda h, i, at: temperature(h, i, at) + 9,
    "gpu_sm_clock_hertz": lambda h, i, at: 1.41e9 - 2e8 * (temperature(h, i, at) > 85),
    "gpu_clocks_hw_thermal_slowdown": lambda h, i, at: float(temperature(h, i, at) > 82),
    "gpu_clocks_sw_power_cap": lambda h, i, at: float(utilization(h, i, at) > 0.93),
    "gpu_ecc_corrected_volatile_total": lambda h, i, at: 12.0 + (at - T0 + 6 * HOUR) // (20 * MINUTE),
}


def _finding(
    where: tuple[int, int],
    rule: str,
    severity: Severity,
    category: Category,
    action: ActionKind,
    sentence: str,
    **more: object,
) -> FindingOut:
    started = NOW_MS - (len(rule) % 7 + 3) * 6 * MINUTE
    return FindingOut(
        rule=rule,
        subject=subject(where),
        severity=severity,
        category=category,
        action=action,
        started_ms=started,
        last_ms=NOW_MS - 15 * SECOND,
        sentence=sentence,
        simulated=True,
        **more,  # type: ignore[arg-type]
    )


def hash_of(text: str) -> int:
    """A hash that is the same in every process."""
    value = 1469598103934665603
    for byte in text.encode():
        value = (value ^ byte) * 1099511628211 % 2**63
    return value


FINDINGS = [
    _finding(
        LOST, "xid-fatal", Severity.CRITICAL, Category.HARDWARE, ActionKind.DRAIN,
        "XID 79: the GPU has fallen off the bus; its work is lost and the node needs a reboot",
        evidence=(Evidence(name="xid", text="XID 79", at_ms=NOW_MS - 31 * MINUTE, value=79),),
    ),
    _finding(
        HOT, "temperature-high", Severity.CRITICAL, Category.THERMAL, ActionKind.PLACE_ELSEWHERE,
        "Core temperature 86.4 C for 12 min, above 85 C",
        metric="gpu_temperature_celsius", value=86.4, threshold=85.0,
    ),
    _finding(
        DYING, "row-remap-pending", Severity.WARNING, Category.HARDWARE, ActionKind.RESET_GPU,
        "A row remapping is pending: reset the GPU once its work is done",
        metric="gpu_row_remap_pending", value=1.0, threshold=0.0,
    ),
    _finding(
        LEAKING, "memory-high", Severity.WARNING, Category.MEMORY, ActionKind.NOTIFY,
        "93 % of memory in use for 18 min, above 90 %",
        metric="gpu_memory_used_ratio", value=0.93, threshold=0.9,
    ),
    _finding(
        SPLIT, "mig-fragmentation", Severity.WARNING, Category.FRAGMENTATION, ActionKind.DEFRAGMENT,
        "MIG fragmentation 0.43 for 14 min, above 0.30: no 3g.40gb fits although half of the GPU is free",
        metric="gpu_mig_fragmentation_ratio", value=0.43, threshold=0.3,
    ),
]  # fmt: skip

POOL_SUBJECT = Subject(kind=SubjectKind.POOL, name="inference", pool="inference")
POOL_FINDING = replace(
    FINDINGS[0],
    rule="pool-underused",
    subject=POOL_SUBJECT,
    severity=Severity.INFO,
    category=Category.CAPACITY,
    action=ActionKind.SCALE_IN,
    sentence="pool inference: mean utilization 26.9 % over 15 min, below 30 %, and no work waits",
    evidence=(),
)
"""A finding that has no cell on the map."""


def _prediction(
    where: tuple[int, int],
    target: str,
    metric: str,
    hours: float,
    p: float,
    value: float,
    threshold: float,
    sentence: str,
) -> Prediction:
    at_ms = NOW_MS - 4 * MINUTE
    return Prediction(
        subject=subject(where),
        target=target,
        at_ms=at_ms,
        horizon_ms=48 * HOUR,
        status=PredictionStatus.CROSSING,
        model="holt",
        model_version="1",
        sentence=sentence,
        metric=metric,
        value=value,
        threshold=threshold,
        probability=p,
        eta_ms=at_ms + int(hours * HOUR),
        eta_low_ms=at_ms + int(0.6 * hours * HOUR),
        eta_high_ms=at_ms + int(1.7 * hours * HOUR),
        coverage=0.8,
        evidence=(
            Evidence(name=metric, text=f"{metric} rises steadily for 4 h", at_ms=at_ms, value=value),
            Evidence(
                name="past cases",
                text="situations like this one ended in a fault before: 6, after 3 h at the median",
                at_ms=at_ms,
                value=6,
            ),
        ),
        simulated=True,
    )


PREDICTIONS = [
    _prediction(
        HOT, "temperature >= 93 C", "gpu_temperature_celsius", 2.6, 0.91, 86.4, 93.0,
        "Reaches 93 C, the slowdown threshold, in about 2.6 h",
    ),
    _prediction(
        LEAKING, "memory >= 98 %", "gpu_memory_used_ratio", 5.1, 0.74, 0.93, 0.98,
        "Memory reaches 98 % in about 5.1 h",
    ),
    _prediction(
        (0, 4), "temperature >= 85 C", "gpu_temperature_celsius", 21.0, 0.22, 66.0, 85.0,
        "May reach 85 C in about 21 h",
    ),
    Prediction(
        subject=subject((7, 0)),
        target="row-remap spares exhausted",
        at_ms=NOW_MS - 4 * MINUTE,
        horizon_ms=48 * HOUR,
        status=PredictionStatus.NOT_ENOUGH_DATA,
        model="holt",
        model_version="1",
        sentence="Not enough data: 14 min of history, 60 min are needed",
        reason="14 min of history, 60 min are needed",
        simulated=True,
    ),
]  # fmt: skip

DIAGNOSES = [
    Diagnosis(
        kind=DiagnosisKind.SLOW_JOB,
        verdict=DiagnosisVerdict.BETWEEN_GPUS,
        name="Slurm job 4711",
        hosts=(host_name(0),),
        gpus=tuple(uuid(0, n) for n in range(8)),
        at_ms=NOW_MS,
        window_ms=15 * MINUTE,
        score=0.82,
        sentence="Slurm job 4711 on 8 GPUs is limited by communication between the GPUs.",
        sentence_zh="Slurm job 4711(8 块 GPU)受限于GPU 之间的通信。",
        remedy="overlap communication with work",
        simulated=True,
    ),
    Diagnosis(
        kind=DiagnosisKind.MEMORY,
        verdict=DiagnosisVerdict.LEAK,
        name=f"{host_name(1)} GPU 3",
        hosts=(host_name(1),),
        gpus=(uuid(1, 3),),
        at_ms=NOW_MS,
        window_ms=HOUR,
        score=0.3,
        sentence="gpu-node-02 GPU 3: memory grows without a plateau and, if it goes on, is full at 07:10 UTC.",
        sentence_zh="gpu-node-02 GPU 3:显存持续增长,没有平台期;照此速度将在 2026-11-21 07:10 UTC 耗尽。",
        simulated=True,
    ),
]

GUARDS = [
    "mode", "pause", "fresh_data", "still_live", "not_done", "evidence", "boot_grace", "cooldown", "maintenance",
    "managed", "opt_out", "hold_off", "max_concurrent", "max_share", "max_per_host", "max_per_rack", "capacity",
    "attempts", "breaker", "approval", "time_box",
]  # fmt: skip


def _verdicts(holds: dict[str, tuple[str, int | None]], denies: dict[str, str] | None = None) -> tuple[Verdict, ...]:
    found = []
    for guard in GUARDS:
        if guard in (denies or {}):
            found.append(Verdict(guard=guard, ruling=Ruling.DENY, reason=(denies or {})[guard]))
        elif guard in holds:
            reason, until = holds[guard]
            found.append(Verdict(guard, Ruling.HOLD, reason, until, said=Phrase(reason)))
        else:
            found.append(Verdict(guard=guard, ruling=Ruling.ALLOW))
    return tuple(found)


def _named(finding: Finding) -> str:
    """The same at every instant, unlike its id: screens with the ids of decisions are on record."""
    uuid = finding.subject.name
    return f"{abs(hash_of(finding.rule + str((int(uuid[4:12], 16), int(uuid[-12:], 16))))):016x}"


def _decision(
    finding: FindingOut,
    action: ActionKind,
    minutes: int,
    sentence: str,
    holds: dict[str, tuple[str, int | None]],
    **more: object,
) -> DecisionOut:
    at_ms = NOW_MS - minutes * MINUTE
    fields: dict[str, object] = {
        "id": f"{hash_of(_named(finding) + action):016x}",
        "rule": finding.rule,
        "subject": finding.subject,
        "action": action,
        "mode": Mode.PROPOSE,
        "severity": finding.severity,
        "category": finding.category,
        "at_ms": at_ms,
        "expires_ms": at_ms + HOUR,
        "key": "",
        "sentence": sentence,
        "findings": (finding.id,),
        "incident": finding.id,
        "simulated": True,
        "state": DecisionState.HELD,
        "overall": Ruling.HOLD if holds else Ruling.ALLOW,
        "verdicts": _verdicts(holds),
        "approvable": "approval" in holds,
    }
    return DecisionOut(**{**fields, **more})  # type: ignore[arg-type]


def decisions() -> list[DecisionOut]:
    """Newest first."""
    lost, hot, dying, _, split = FINDINGS
    person = "waits for a person"
    expired = {
        "state": DecisionState.EXPIRED,
        "overall": Ruling.DENY,
        "verdicts": _verdicts({}, {"time_box": f"its time box ended at {to_iso(NOW_MS)}"}),
    }
    return [
        _decision(
            hot,
            ActionKind.PLACE_ELSEWHERE,
            3,
            "Place new work elsewhere than on gpu-node-03 GPU 5: 86.4 C and rising",
            {"approval": (person, None)},
        ),
        _decision(
            lost,
            ActionKind.DRAIN,
            29,
            "Drain gpu-node-06: GPU 2 has fallen off the bus (XID 79)",
            {
                "capacity": ("pool inference would keep 16 of 24 GPUs in service, at least 20 (80%)", None),
                "approval": (person, None),
            },
        ),
        _decision(
            dying,
            ActionKind.RESET_GPU,
            34,
            "Reset gpu-node-05 GPU 1 to finish a row remapping",
            {
                "maintenance": ("outside the maintenance windows", NOW_MS + 5 * HOUR),
                "cooldown": ("reset 22 min ago, rest of 30 min", NOW_MS + 8 * MINUTE),
            },
        ),
        _decision(split, ActionKind.DEFRAGMENT, 47, "Defragment the MIG layout of gpu-node-04 GPU 3", {}, **expired),
        _decision(
            hot,
            ActionKind.NOTIFY,
            58,
            "Tell people about gpu-node-03 GPU 5: 85.2 C",
            {},
            state=DecisionState.DONE,
        ),
        _decision(
            hot,
            ActionKind.THROTTLE,
            95,
            "Throttle gpu-node-03 GPU 5: 88.0 C, above 85 C",
            {},
            state=DecisionState.DONE,
            approved_by="ann",
            outcome=Outcome(
                decision="",
                status=OutcomeStatus.SUCCEEDED,
                executor="simulated",
                at_ms=NOW_MS - 88 * MINUTE,
                detail="throttle in the simulated fleet; its effect is seen",
                effect={
                    "gpu_temperature_celsius_change": -6.2,
                    "gpu_power_watts_change": -96.0,
                    "celsius_bought_per_watt": 0.0646,
                },
            ),
        ),
        _decision(
            dying,
            ActionKind.CHECKPOINT,
            3,
            "Checkpoint the work on gpu-node-05 GPU 1: a hardware fault is likely within 48 h",
            {},
            state=DecisionState.VERIFYING,
            approved_by="bob",
        ),
    ]


LOSSES = {
    ActionKind.CHECKPOINT: (
        (ActionKind.CHECKPOINT, 1.62),
        (ActionKind.MIGRATE, 3.4),
        (ActionKind.NOTIFY, 5.1),
    )
}
"""Expected losses in GPU-hours that were weighed, by the action that was chosen."""


EVENTS = [
    Event(
        kind=kind,
        gpu=uuid(*where),
        host=host_name(where[0]),
        at_ms=NOW_MS - minutes * MINUTE,
        code=code,
        message=message,
        source="simulated",
        simulated=True,
    )
    for where, kind, code, minutes, message in [
        (HOT, EventKind.XID, 13, 140, "Graphics exception: an application's own fault"),
        (LOST, EventKind.XID, 79, 31, "GPU has fallen off the bus"),
        (LOST, EventKind.GPU_LOST, 0, 31, "no longer enumerated"),
        (DYING, EventKind.XID, 63, 95, "row remapper: new row marked for remapping"),
    ]
]


def _state(where: tuple[int, int]) -> GpuState:
    if where == LOST:
        return GpuState.LOST
    if where == STALE:
        return GpuState.STALE
    severities = [f.severity for f in FINDINGS if f.subject == subject(where)]
    return GpuState(max(severities, key=lambda s: s.rank)) if severities else GpuState.OK


def gpu_summary(host: int, index: int, *, simulated: bool = True) -> GpuSummary:
    """GPU `index` of `host` now."""
    where = (host, index)
    findings = [f for f in FINDINGS if f.subject == subject(where)]
    crossing = [p for p in PREDICTIONS if p.subject == subject(where) and p.status is PredictionStatus.CROSSING]
    age = 31 * 60.0 if where == LOST else 610.0 if where == STALE else 8.0
    gone = where == LOST
    return GpuSummary(
        uuid=uuid(host, index),
        host=host_name(host),
        index=index,
        model="NVIDIA A100-SXM4-80GB" if host < 5 else "NVIDIA H100 80GB HBM3",
        pool=pool(host),
        rack=f"rack-{host // 4 + 1}",
        simulated=simulated,
        state=_state(where),
        last_reading=to_iso(NOW_MS - int(age * SECOND)),
        last_reading_age_s=age,
        temperature_celsius=None if gone else round(temperature(host, index, NOW_MS), 1),
        utilization_ratio=None if gone else round(utilization(host, index, NOW_MS), 3),
        memory_used_ratio=None if gone else round(memory(host, index, NOW_MS), 3),
        power_watts=None if gone else round(power(host, index, NOW_MS), 1),
        findings=len(findings),
        severity=findings[0].severity if findings else None,
        finding=findings[0].sentence if findings else "",
        prediction=crossing[0].sentence if crossing else "",
        probability=crossing[0].probability if crossing else None,
        eta=optional_iso(crossing[0].eta_ms) if crossing else None,
        eta_low=optional_iso(crossing[0].eta_low_ms) if crossing else None,
        eta_high=optional_iso(crossing[0].eta_high_ms) if crossing else None,
    )

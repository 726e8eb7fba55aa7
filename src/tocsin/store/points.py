"""Events, findings, predictions and GPU attributes as points: a measurement with tags, fields and an instant.

Tags name what a point is (they make it unique together with the instant), fields carry what may change. An optional
number that is None is named in field ``absent``: a second write merges fields, and an old number would shine through.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from tocsin.domain.event import Event, EventKind
from tocsin.domain.finding import ActionKind, Category, Evidence, Finding, Severity
from tocsin.domain.identity import Gpu
from tocsin.domain.owner import Owner, owners_text, read_owners
from tocsin.domain.prediction import Prediction, PredictionStatus
from tocsin.domain.subject import Subject, SubjectKind

FieldValue = float | int | bool | str

GPU = "gpu"
MISSING = "gpu_missing"
INFO = "gpu_info"
OWNER = "gpu_owner"
EVENT = "gpu_event"
FINDING = "gpu_finding"
PREDICTION = "gpu_prediction"

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Point:
    """One point; tags with an empty value are left out on the wire."""

    measurement: str
    tags: Mapping[str, str]
    fields: Mapping[str, FieldValue]
    at_ms: int


class PointError(ValueError):
    """A point that does not hold what its measurement needs; the text says which tag or field."""


def _need(point: Point, name: str, convert: Callable[[str], _T]) -> _T:
    raw = point.tags.get(name, point.fields.get(name))
    if raw is None:
        raise PointError(f"{point.measurement} needs {name}")
    try:
        return convert(str(raw))
    except ValueError:
        raise PointError(f"{name} = {raw!r} is not usable in {point.measurement}") from None


def _text(point: Point, name: str) -> str:
    return str(point.fields.get(name, ""))


def _number(point: Point, name: str) -> float | None:
    raw = point.fields.get(name)
    if raw is None or name in _text(point, "absent").split(","):
        return None
    if isinstance(raw, str) or not math.isfinite(raw):
        raise PointError(f"{name} = {raw!r} is no number")
    return float(raw)


def _instant(point: Point, name: str) -> int | None:
    number = _number(point, name)
    return None if number is None else int(point.fields[name])


def _flag(point: Point, name: str) -> bool:
    raw = point.fields.get(name, False)
    if isinstance(raw, str):
        raise PointError(f"{name} = {raw!r} is not true or false")
    return bool(raw)


def _optional(numbers: Mapping[str, float | int | None]) -> dict[str, FieldValue]:
    """The numbers that are there, and field ``absent`` with the names of the others.

    Instants are integers and all else floats, whatever type the caller's number has: InfluxDB gives a field one type
    for good, and refuses the other.
    """
    there: dict[str, FieldValue] = {
        name: int(number) if name.endswith("_ms") else float(number)
        for name, number in numbers.items()
        if number is not None and math.isfinite(number)
    }
    there["absent"] = ",".join(name for name in numbers if name not in there)
    return there


def evidence_json(evidence: tuple[Evidence, ...]) -> str:
    """JSON list of ``[name, text, at_ms, value]``."""
    return json.dumps([[e.name, e.text, e.at_ms, e.value] for e in evidence], ensure_ascii=False, separators=(",", ":"))


def read_evidence(text: str) -> tuple[Evidence, ...]:
    """Inverse of `evidence_json`; raises PointError."""
    try:
        rows = json.loads(text or "[]")
        return tuple(Evidence(str(n), str(t), int(a), None if v is None else float(v)) for n, t, a, v in rows)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise PointError(f"evidence is not a list of [name, text, at_ms, value]: {error}") from None


def _subject_tags(subject: Subject) -> dict[str, str]:
    return {"subject_kind": subject.kind.value, "subject": subject.name, "subject_detail": subject.detail}


def _read_subject(point: Point) -> Subject:
    return Subject(
        kind=_need(point, "subject_kind", SubjectKind),
        name=point.tags.get("subject", ""),
        host=_text(point, "subject_host"),
        pool=_text(point, "subject_pool"),
        detail=point.tags.get("subject_detail", ""),
    )


def event_point(event: Event) -> Point:
    """`event` as a point; kind, GPU, host and code are tags, so that two codes of one instant stay two points."""
    tags = {"kind": event.kind.value, "gpu_uuid": event.gpu, "host": event.host, "code": str(event.code)}
    fields: dict[str, FieldValue] = {
        "code": int(event.code),
        "message": event.message,
        "source": event.source,
        "simulated": event.simulated,
        "severity": event.severity.value if event.severity is not None else "",
        "remedy": event.remedy,
    }
    return Point(EVENT, tags, fields, event.at_ms)


def read_event(point: Point) -> Event:
    """Inverse of `event_point`; raises PointError."""
    return Event(
        kind=_need(point, "kind", EventKind),
        gpu=point.tags.get("gpu_uuid", ""),
        host=point.tags.get("host", ""),
        at_ms=point.at_ms,
        code=_need(point, "code", int),
        message=_text(point, "message"),
        source=_text(point, "source"),
        simulated=_flag(point, "simulated"),
        severity=_need(point, "severity", Severity) if _text(point, "severity") else None,
        remedy=_text(point, "remedy"),
    )


def finding_point(finding: Finding) -> Point:
    """`finding` as a point at its start; rule and subject are tags."""
    fields: dict[str, FieldValue] = {
        "severity": finding.severity.value,
        "category": finding.category.value,
        "action": finding.action.value,
        "last_ms": int(finding.last_ms),
        "sentence": finding.sentence,
        "metric": finding.metric,
        "evidence": evidence_json(finding.evidence),
        "owners": owners_text(finding.owners),
        "simulated": finding.simulated,
        "subject_host": finding.subject.host,
        "subject_pool": finding.subject.pool,
        **_optional({"value": finding.value, "threshold": finding.threshold}),
    }
    return Point(FINDING, {"rule": finding.rule, **_subject_tags(finding.subject)}, fields, finding.started_ms)


def read_finding(point: Point) -> Finding:
    """Inverse of `finding_point`; raises PointError."""
    return Finding(
        rule=point.tags.get("rule", ""),
        subject=_read_subject(point),
        severity=_need(point, "severity", Severity),
        category=_need(point, "category", Category),
        action=_need(point, "action", ActionKind),
        started_ms=point.at_ms,
        last_ms=_need(point, "last_ms", int),
        sentence=_text(point, "sentence"),
        metric=_text(point, "metric"),
        value=_number(point, "value"),
        threshold=_number(point, "threshold"),
        evidence=read_evidence(_text(point, "evidence")),
        simulated=_flag(point, "simulated"),
        owners=owners_of(point),
    )


def prediction_point(prediction: Prediction) -> Point:
    """`prediction` as a point at the instant when it was made; model, target and subject are tags."""
    p = prediction
    fields: dict[str, FieldValue] = {
        "horizon_ms": int(p.horizon_ms),
        "status": p.status.value,
        "model_version": p.model_version,
        "sentence": p.sentence,
        "metric": p.metric,
        "reason": p.reason,
        "evidence": evidence_json(p.evidence),
        "simulated": p.simulated,
        "subject_host": p.subject.host,
        "subject_pool": p.subject.pool,
        "curve": json.dumps(p.curve) if p.curve else "",
        "sentence_zh": p.sentence_zh,
        "classes": json.dumps(p.classes) if p.classes else "",
    }
    numbers = ("threshold", "value", "probability", "eta_ms", "eta_low_ms", "eta_high_ms", "coverage")
    fields |= _optional({name: getattr(p, name) for name in numbers})
    return Point(PREDICTION, {"model": p.model, "target": p.target, **_subject_tags(p.subject)}, fields, p.at_ms)


def read_prediction(point: Point) -> Prediction:
    """Inverse of `prediction_point`; raises PointError."""
    return Prediction(
        subject=_read_subject(point),
        target=point.tags.get("target", ""),
        at_ms=point.at_ms,
        horizon_ms=_need(point, "horizon_ms", int),
        status=_need(point, "status", PredictionStatus),
        model=point.tags.get("model", ""),
        model_version=_text(point, "model_version"),
        sentence=_text(point, "sentence"),
        metric=_text(point, "metric"),
        threshold=_number(point, "threshold"),
        value=_number(point, "value"),
        probability=_number(point, "probability"),
        eta_ms=_instant(point, "eta_ms"),
        eta_low_ms=_instant(point, "eta_low_ms"),
        eta_high_ms=_instant(point, "eta_high_ms"),
        coverage=_number(point, "coverage"),
        reason=_text(point, "reason"),
        evidence=read_evidence(_text(point, "evidence")),
        simulated=_flag(point, "simulated"),
        curve=tuple((int(ahead), chance) for ahead, chance in _pairs(point, "curve")),
        sentence_zh=_text(point, "sentence_zh"),
        classes=tuple((str(name), chance) for name, chance in _pairs(point, "classes")),
    )


def _pairs(point: Point, name: str) -> list[tuple[int | str, float]]:
    """What stands beside each probability."""
    text = _text(point, name)
    try:
        return [(what, float(chance)) for what, chance in json.loads(text or "[]")]
    except (TypeError, ValueError) as error:
        raise PointError(f"{name} {text[:60]!r}: {error}") from None


def gpu_tags(gpu: Gpu) -> dict[str, str]:
    """Tags that identify `gpu`: its own UUID, or its parent's with ``mig_uuid``, and the host."""
    if gpu.parent:
        return {"gpu_uuid": gpu.parent, "host": gpu.host, "mig_uuid": gpu.uuid}
    return {"gpu_uuid": gpu.uuid, "host": gpu.host}


def gpu_of_tags(tags: Mapping[str, str]) -> Gpu:
    """The bare GPU that `tags` identify; raises PointError without a UUID."""
    uuid = tags.get("gpu_uuid", "")
    mig = tags.get("mig_uuid", "")
    if not uuid:
        raise PointError("tag gpu_uuid is missing")
    return Gpu(uuid=mig or uuid, host=tags.get("host", ""), parent=uuid if mig else "")


def info_point(gpu: Gpu, at_ms: int) -> Point:
    """The attributes of `gpu` as a point. `index` is -1 where it is unknown."""
    fields: dict[str, FieldValue] = {
        "index": -1 if gpu.index is None else gpu.index,
        "model": gpu.model,
        "serial": gpu.serial,
        "pci_bus_id": gpu.pci_bus_id,
        "mig_profile": gpu.mig_profile,
        "pool": gpu.pool,
        "rack": gpu.rack,
        "labels": json.dumps(dict(gpu.labels), ensure_ascii=False, separators=(",", ":")),
        "simulated": gpu.simulated,
    }
    return Point(INFO, gpu_tags(gpu), fields, at_ms)


def owner_point(gpu: Gpu, owners: tuple[Owner, ...], at_ms: int) -> Point:
    """The processes on `gpu` as a point."""
    return Point(OWNER, gpu_tags(gpu), {"owners": owners_text(owners)}, at_ms)


def owners_of(point: Point) -> tuple[Owner, ...]:
    """The owners that field ``owners`` lists; raises PointError."""
    try:
        return read_owners(_text(point, "owners"))
    except ValueError as error:
        raise PointError(f"owners is not usable in {point.measurement}: {error}") from None


def read_labels(text: str) -> dict[str, str]:
    """JSON object of strings; raises PointError."""
    try:
        labels = json.loads(text or "{}")
    except ValueError:
        labels = None
    if not isinstance(labels, dict):
        raise PointError("labels is no JSON object")
    return {str(key): str(value) for key, value in labels.items()}


def read_info(point: Point) -> Gpu:
    """Inverse of `info_point`; raises PointError."""
    bare = gpu_of_tags(point.tags)
    index = _need(point, "index", int) if "index" in point.fields else -1
    return Gpu(
        uuid=bare.uuid,
        host=bare.host,
        index=None if index < 0 else index,
        model=_text(point, "model"),
        serial=_text(point, "serial"),
        pci_bus_id=_text(point, "pci_bus_id"),
        parent=bare.parent,
        mig_profile=_text(point, "mig_profile"),
        pool=str(point.fields.get("pool", "default")),
        rack=_text(point, "rack"),
        labels=read_labels(_text(point, "labels")),
        simulated=_flag(point, "simulated"),
    )

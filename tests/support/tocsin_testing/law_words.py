"""What the laws of stores write: makers of domain objects an hour ago."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from tocsin.domain.batch import Batch
from tocsin.domain.clock import DAY, HOUR, SystemClock
from tocsin.domain.finding import ActionKind, Category, Evidence, Finding, Severity, Subject, SubjectKind
from tocsin.domain.prediction import Prediction, PredictionStatus
from tocsin.domain.reading import Gpu, Reading
from tocsin_testing.stores import Harness

T = SystemClock().now_ms() // 1_000 * 1_000 - HOUR
"""An hour ago: servers drop what lies outside their retention or too far ahead."""

TEMPERATURE = "gpu_temperature_celsius"
POWER = "gpu_power_watts"
CRC = "gpu_nvlink_crc_flit_errors_total"
FULL = Gpu(
    "GPU-1", "node-1", 3, "NVIDIA A100", "1234", "00000000:3b:00.0", pool="train", rack="r1", labels={"a b": "c,d=e"}
)
MIG = Gpu("MIG-1", "node-1", index=0, model="NVIDIA A100", parent="GPU-00000000", mig_profile="1g.10gb")


def put(h: Harness, *readings: Reading, **more: Any) -> None:
    """Write, and wait until it can be read."""
    h.store.write(Batch(readings=readings, **more))
    h.settle()


def everything(h: Harness) -> list[Reading]:
    """All readings."""
    return list(h.store.readings(T - DAY, T + HOUR))


def times(h: Harness, start_ms: int = T - DAY, end_ms: int = T + HOUR) -> list[tuple[int, str]]:
    """Instants, from `T`, and UUIDs of all readings."""
    return [(r.at_ms - T, r.gpu.uuid) for r in h.store.readings(start_ms, end_ms)]


def attributes(which: Gpu) -> dict[str, object]:
    """All of a GPU, which itself compares by UUID."""
    return asdict(which)


def subject(which: Gpu) -> Subject:
    """A GPU as a subject."""
    return Subject(SubjectKind.GPU, which.uuid, which.host, "default")


def finding(which: Gpu, started_ms: int, last_ms: int, **more: Any) -> Finding:
    """A thermal finding whose texts need escapes."""
    made = Finding(
        rule="hot",
        subject=subject(which),
        severity=Severity.WARNING,
        category=Category.THERMAL,
        action=ActionKind.NOTIFY,
        started_ms=started_ms,
        last_ms=last_ms,
        sentence='it is "hot",\nvery = hot, Füllstand 90 % \\',
        metric=TEMPERATURE,
        value=91.5,
        threshold=85.0,
        evidence=(Evidence("a", 'says "so",\nand = again', started_ms, 1.5), Evidence("c", "d", started_ms)),
    )
    return replace(made, **more)


def prediction(which: Gpu, at_ms: int, **more: Any) -> Prediction:
    """A crossing in an hour."""
    made = Prediction(
        subject=subject(which),
        target="temperature above 85",
        at_ms=at_ms,
        horizon_ms=2 * DAY,
        status=PredictionStatus.CROSSING,
        model="trend",
        model_version="1",
        sentence="in an hour",
        metric=TEMPERATURE,
        probability=0.75,
        eta_ms=at_ms + HOUR,
        eta_low_ms=at_ms + 1,
        coverage=0.8,
        curve=((HOUR, 0.25), (2 * DAY, 0.75)),
        sentence_zh="一小时内",
    )
    return replace(made, **more)

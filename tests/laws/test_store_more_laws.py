"""Further laws of every store: reasons, variants, precision, identity, and what is left after a restart or a prune."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from tocsin.domain.batch import Batch
from tocsin.domain.clock import DAY, HOUR, MINUTE, SystemClock
from tocsin.domain.event import Event, EventKind
from tocsin.domain.finding import ActionKind, Category, Evidence, Finding, Severity
from tocsin.domain.identity import Gpu
from tocsin.domain.metrics import variant
from tocsin.domain.missing import Missing
from tocsin.domain.prediction import Prediction, PredictionStatus
from tocsin.domain.reading import Reading
from tocsin.domain.subject import Subject, SubjectKind
from tocsin_testing.builders import gpu, reading, xid
from tocsin_testing.stores import HARNESSES, Harness

T = SystemClock().now_ms() // 1_000 * 1_000 - HOUR
"""An hour ago: servers drop what lies outside their retention or too far ahead."""

TEMPERATURE = "gpu_temperature_celsius"
POWER = "gpu_power_watts"
CRC = "gpu_nvlink_crc_flit_errors_total"
MIG = Gpu("MIG-1", "node-1", index=0, model="NVIDIA A100", parent="GPU-00000000", mig_profile="1g.10gb")

SERVERS = {"victoriametrics", "influxdb"}


@pytest.fixture(
    params=[pytest.param(name, marks=[pytest.mark.server] if name in SERVERS else []) for name in HARNESSES]
)
def h(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Harness]:
    with HARNESSES[request.param](tmp_path) as harness:
        yield harness


def put(h: Harness, *readings: Reading, **more: object) -> None:
    h.store.write(Batch(readings=readings, **more))  # type: ignore[arg-type]
    h.settle()


def everything(h: Harness) -> list[Reading]:
    return list(h.store.readings(T - DAY, T + HOUR))


def subject(which: Gpu) -> Subject:
    return Subject(SubjectKind.GPU, which.uuid, which.host, "default")


def finding(which: Gpu, started_ms: int, last_ms: int, **more: object) -> Finding:
    made = Finding(
        rule="hot",
        subject=subject(which),
        severity=Severity.WARNING,
        category=Category.THERMAL,
        action=ActionKind.NOTIFY,
        started_ms=started_ms,
        last_ms=last_ms,
        sentence='it is "hot",\nvery = hot \\',
        metric=TEMPERATURE,
        value=91.5,
        threshold=85.0,
        evidence=(Evidence("a", "b", started_ms, 1.5), Evidence("c", "d", started_ms)),
    )
    return replace(made, **more)  # type: ignore[arg-type]


def prediction(which: Gpu, at_ms: int, **more: object) -> Prediction:
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
    )
    return replace(made, **more)  # type: ignore[arg-type]


# ---------------------------------------------------------------------- readings


@pytest.mark.parametrize("reason", Missing)
def test_every_reason_survives(h: Harness, reason: Missing) -> None:
    put(h, Reading(gpu(0), T, {}, {TEMPERATURE: reason}))
    (found,) = everything(h)
    assert (dict(found.values), dict(found.missing)) == ({}, {TEMPERATURE: reason})


@pytest.mark.parametrize("value_first", [True, False])
def test_a_value_outranks_a_reason_whatever_came_first(h: Harness, value_first: bool) -> None:
    both = [reading(gpu(0), T, temperature_celsius=40), Reading(gpu(0), T, {}, {TEMPERATURE: Missing.TIMED_OUT})]
    for one in both if value_first else reversed(both):
        put(h, one)
    (found,) = everything(h)
    assert (dict(found.values), dict(found.missing)) == ({TEMPERATURE: 40.0}, {})


def test_one_batch_may_hold_an_instant_twice(h: Harness) -> None:
    put(h, reading(gpu(0), T, temperature_celsius=40), reading(gpu(0), T, power_watts=300))
    (found,) = everything(h)
    assert dict(found.values) == {TEMPERATURE: 40.0, POWER: 300.0}


def test_absent_is_nan_in_a_series_and_never_zero(h: Harness) -> None:
    put(
        h,
        reading(gpu(0), T, temperature_celsius=40),
        reading(gpu(0), T + 1, {TEMPERATURE: Missing.BLANK}, power_watts=0),
        reading(gpu(0), T + 2, temperature_celsius=42, power_watts=10),
    )
    found = h.store.series("GPU-00000000", [POWER, TEMPERATURE, "gpu_energy_joules_total"], T, T + 3)
    assert found.metrics == (POWER, TEMPERATURE, "gpu_energy_joules_total")
    assert (found.at_ms.dtype, found.values.dtype, found.values.shape) == (np.int64, np.float64, (3, 3))
    expected = [[math.nan, 40, math.nan], [0, math.nan, math.nan], [10, 42, math.nan]]
    np.testing.assert_array_equal(found.values, expected)
    assert all(TEMPERATURE not in r.values for r in everything(h) if r.at_ms == T + 1)


def test_variants_keep_their_labels(h: Harness) -> None:
    odd = 'a b,c=d"e'
    values = {variant(CRC, "link", str(n)): float(n) for n in range(3)} | {variant(CRC, "link", odd): 7.0}
    reasons = {
        variant(CRC, "link", "9"): Missing.LOST,
        variant("gpu_process_memory_used_bytes", "pid", "12"): Missing.DENIED,
    }
    put(h, Reading(gpu(0), T, {**values, TEMPERATURE: 40.0}, reasons))
    (found,) = everything(h)
    assert dict(found.values) == {**values, TEMPERATURE: 40.0}
    assert dict(found.missing) == reasons
    series = h.store.series("GPU-00000000", [variant(CRC, "link", "2"), TEMPERATURE, CRC], T, T + 1)
    np.testing.assert_array_equal(series.values, [[2.0, 40.0, math.nan]])


def test_variants_of_two_writes_merge(h: Harness) -> None:
    put(h, Reading(gpu(0), T, {variant(CRC, "link", "0"): 1.0}))
    put(h, Reading(gpu(0), T, {variant(CRC, "link", "1"): 2.0}, {variant(CRC, "link", "0"): Missing.LOST}))
    (found,) = everything(h)
    assert dict(found.values) == {variant(CRC, "link", "0"): 1.0, variant(CRC, "link", "1"): 2.0}
    assert dict(found.missing) == {}


def test_latest_is_the_newest_of_each_gpu(h: Harness) -> None:
    put(h, reading(gpu(0), T, power_watts=1), reading(gpu(0), T + HOUR // 2, temperature_celsius=41))
    put(h, reading(gpu(2), T - HOUR, temperature_celsius=20), reading(gpu(1), T + 5, temperature_celsius=30))
    assert [(r.gpu.uuid[-1], r.at_ms - T, dict(r.values)) for r in h.store.latest(T - 2 * HOUR)] == [
        ("0", HOUR // 2, {TEMPERATURE: 41.0}),
        ("1", 5, {TEMPERATURE: 30.0}),
        ("2", -HOUR, {TEMPERATURE: 20.0}),
    ]
    assert [r.gpu.uuid[-1] for r in h.store.latest(T + 5)] == ["0", "1"]
    assert [r.gpu.uuid[-1] for r in h.store.latest(T + 6)] == ["0"]


def test_floats_come_back(h: Harness) -> None:
    counters = [2.0**53, 2.0**53 + 2, 1.8446744073709552e19, 123456789012345.0]
    put(h, *(reading(gpu(n), T, energy_joules_total=value) for n, value in enumerate(counters)))
    put(h, *(reading(gpu(10 + n), T, utilization_ratio=value) for n, value in enumerate([1 / 3, 1e-9, 0.1])))
    found = [next(iter(r.values.values())) for r in everything(h)]
    if h.exact:
        assert found == [*counters, 1 / 3, 1e-9, 0.1]
    else:
        assert found == pytest.approx([*counters, 1 / 3, 1e-9, 0.1], rel=1e-9)


# ---------------------------------------------------------------------- identity

FULL = Gpu(
    "GPU-1", "node-1", 3, "NVIDIA A100", "1234", "00000000:3b:00.0", pool="train", rack="r1", labels={"a": "b c"}
)


def attributes(which: Gpu) -> dict[str, object]:
    return asdict(which)


def test_attributes_come_back_with_every_reading(h: Harness) -> None:
    simulated = replace(gpu(2), simulated=True)
    put(h, reading(FULL, T, temperature_celsius=40), reading(simulated, T, temperature_celsius=40))
    assert [attributes(g) for g in h.store.gpus()] == [attributes(simulated), attributes(FULL)]
    assert [attributes(r.gpu) for r in everything(h)] == [attributes(simulated), attributes(FULL)]
    assert [attributes(r.gpu) for r in h.store.latest(T)] == [attributes(simulated), attributes(FULL)]


def test_changed_attributes_hold_from_the_newest_reading(h: Harness) -> None:
    moved = replace(FULL, pool="serve", index=4)
    put(h, reading(FULL, T, temperature_celsius=40))
    put(h, reading(moved, T + 2, temperature_celsius=40))
    assert [attributes(g) for g in h.store.gpus()] == [attributes(moved)]
    put(h, reading(FULL, T + 1, temperature_celsius=40))
    assert [attributes(g) for g in h.store.gpus()] == [attributes(moved)]


# ---------------------------------------------------------------------- events, findings, predictions


def test_events_come_back_once(h: Harness) -> None:
    lost = Event(EventKind.GPU_LOST, "", "node-1", T, 0, 'line one\nline "two" \\', "kmsg", True)
    written = [xid(48, gpu(0), T), xid(63, gpu(0), T), xid(48, gpu(1), T + 1), lost]
    for _ in range(2):
        h.store.write(Batch(events=written))
    h.settle()
    found = h.store.events(T, T + 2)
    assert sorted(found, key=lambda e: e.id) == sorted(written, key=lambda e: e.id)
    assert [e.at_ms for e in found] == [T, T, T, T + 1]
    assert {e.code for e in h.store.events(T, T + 2, "GPU-00000000")} == {48, 63}
    assert h.store.events(T, T + 2, "") == [lost]


def test_a_finding_is_kept_once_and_its_last_state_wins(h: Harness) -> None:
    first = finding(gpu(0), T, T)
    last = replace(first, last_ms=T + MINUTE, value=None, severity=Severity.CRITICAL, evidence=())
    other = finding(gpu(1), T - HOUR, T + 5, simulated=True, subject=Subject(SubjectKind.POOL, "p", detail="12"))
    for one in (first, other, last):
        h.store.write(Batch(findings=[one]))
    h.settle()
    assert h.store.findings(T, T + HOUR) == [other, last]
    assert h.store.findings(T + 6, T + HOUR) == [last]
    assert h.store.findings(T, T + 5) == []


def test_predictions_come_back_once(h: Harness) -> None:
    written = [
        prediction(gpu(0), T),
        prediction(gpu(1), T + 1, status=PredictionStatus.NOT_ENOUGH_DATA, probability=None, eta_ms=None, reason="few"),
        prediction(gpu(0), T + 2, evidence=(Evidence("n", "t", T, 0.25),), value=1.0, threshold=85.0),
    ]
    for _ in range(2):
        h.store.write(Batch(predictions=written))
    h.settle()
    assert h.store.predictions(T, T + 3) == written
    assert h.store.predictions(T, T + 2, "GPU-00000000") == written[:1]


# ---------------------------------------------------------------------- keeping


def test_prune_removes_what_is_older(h: Harness) -> None:
    put(h, *(reading(gpu(n), T + n, temperature_celsius=40) for n in range(3)), events=[xid(48, gpu(0), T)])
    removed = h.store.prune(T + 1)
    assert h.store.events(0, T + 10) == ([] if h.prunes or removed else h.store.events(0, T + 10))
    if not h.prunes:
        return
    assert removed == 2
    assert [r.at_ms for r in everything(h)] == [T + 1, T + 2]
    assert [g.uuid[-1] for g in h.store.gpus()] == ["1", "2"]
    assert [r.gpu.uuid[-1] for r in h.store.latest(0)] == ["1", "2"]


def test_what_was_written_outlives_the_object(h: Harness) -> None:
    if h.reopen is None:
        pytest.skip("a store in memory ends with its process")
    put(h, reading(FULL, T, temperature_celsius=40), events=[xid(48, gpu(0), T)], findings=[finding(gpu(0), T, T)])
    h.store.close()
    h.store.close()
    again = h.reopen()
    try:
        assert [attributes(r.gpu) for r in again.readings(T, T + 1)] == [attributes(FULL)]
        assert (len(again.events(T, T + 1)), len(again.findings(T, T + 1))) == (1, 1)
    finally:
        again.close()

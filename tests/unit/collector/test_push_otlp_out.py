"""OTLP out: names, and what becomes of points that a receiver does not take. Read back by the brain's own reader."""

from __future__ import annotations

from itertools import pairwise

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.collector.push import otlp
from tocsin.collector.push.fleet import PushedFleet
from tocsin.collector.push.hardware_names import HARDWARE
from tocsin.collector.push.otlp_out import OtlpExporter, encode
from tocsin.collector.push.samples import Tally
from tocsin.config.otlp import OtlpSettings
from tocsin.config.promql import PromqlSettings
from tocsin.domain.clock import SECOND, ManualClock
from tocsin.domain.metrics import METRICS
from tocsin.domain.reading import Gpu, Missing, Reading
from tocsin.telemetry.metrics import OwnMetrics
from tocsin_testing.builders import T0

H100 = Gpu("GPU-0", "n1", index=0, model="NVIDIA H100")
MIG = Gpu("MIG-1", "n1", model="NVIDIA H100", parent="GPU-0", mig_profile="1g.10gb")
FLEET = PushedFleet(PromqlSettings(), OwnMetrics(), lambda _: (None, False), 120_000, 256)
NAMES = sorted(
    name
    for name, spec in METRICS.items()
    if spec.entity == "gpu" and not spec.label and spec.minimum <= 0 and spec.maximum >= 1 and "free_bytes" not in name
)


def names(reading: Reading) -> set[str]:
    return {series.name for series in otlp.read(encode([reading])[0], Tally())}


def test_the_name_is_opentelemetrys_then_dcgms_then_our_own() -> None:
    values = {"gpu_power_watts": 300.0, "gpu_temperature_celsius": 50.0, "gpu_fan_speed_ratio": 0.5}
    assert names(Reading(H100, T0, values | {"gpu_sm_clock_hertz": 1e9})) >= {"hw_power", "DCGM_FI_DEV_SM_CLOCK"}
    assert names(Reading(MIG, T0, values)) == set(values)
    own = next(name for name in NAMES if not METRICS[name].dcgm_names and not name.startswith(("gpu_mem", "gpu_util")))
    assert names(Reading(H100, T0, {own: 1.0})) == {own}


@given(st.dictionaries(st.sampled_from(NAMES), st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=1, max_size=20))
def test_what_is_sent_reads_back_as_it_was(values: dict[str, float]) -> None:
    for gpu in (H100, MIG):
        tally = Tally()
        body, points = encode([Reading(gpu, T0, values)])
        taken = FLEET.take(otlp.read(body, tally), "fleet", lambda _host, _gpus: "", T0)
        states = taken.outcomes["other"]
        assert (points, tally.rejected, taken.rejected) == (len(values) + states, 0, 0)
        assert states in (0, 4), "hw.status alone is not read"
        (found,) = taken.batch.readings
        assert (found.gpu.uuid, found.gpu.host, found.gpu.parent, found.at_ms) == (gpu.uuid, "n1", gpu.parent, T0)
        assert found.values == pytest.approx(values)


def points(reading: Reading, name: str) -> list[tuple[dict[str, str], float]]:
    """Attributes and value of each point of one metric."""
    found = [one for one in otlp.read(encode([reading])[0], Tally()) if one.name == name]
    return [(dict(one.labels), one.samples[0][1]) for one in found]


def test_a_temperature_is_that_of_a_sensor_whose_parent_is_the_gpu() -> None:
    ((labels, value),) = points(Reading(H100, T0, {"gpu_temperature_celsius": 50.0}), "hw_temperature")
    assert value == 50
    wanted = {"hw_id": "GPU-0/temperature/gpu", "hw_parent": "GPU-0", "hw_type": "temperature"}
    assert labels.items() >= (wanted | {"hw_sensor_location": "gpu", "host_name": "n1"}).items()


def test_errors_are_told_apart_by_their_type() -> None:
    values = {"gpu_ecc_corrected_volatile_total": 5.0, "gpu_ecc_uncorrected_volatile_total": 1.0}
    found = points(Reading(H100, T0, values), "hw_errors")
    assert {labels["error_type"]: value for labels, value in found} == {"corrected": 5, "uncorrected": 1}
    assert {(labels["hw_id"], labels["hw_type"]) for labels, _ in found} == {("GPU-0", "gpu")}


@pytest.mark.parametrize(
    ("values", "state"),
    [
        ({"gpu_row_remap_pending": 0.0}, "ok"),
        ({"gpu_row_remap_pending": 1.0, "gpu_row_remap_failure": 0.0}, "degraded"),
        ({"gpu_ecc_sram_threshold_exceeded": 1.0, "gpu_clocks_hw_power_brake": 1.0}, "predicted_failure"),
        ({"gpu_row_remap_failure": 1.0, "gpu_row_remap_pending": 1.0}, "failed"),
        ({"gpu_temperature_celsius": 50.0}, None),
        ({}, None),
    ],
)
def test_the_state_is_the_gravest_that_was_read_and_none_where_nothing_tells(
    values: dict[str, float], state: str | None
) -> None:
    found = points(Reading(H100, T0, values), "hw_status")
    assert [labels["hw_state"] for labels, value in found if value] == ([] if state is None else [state])
    assert len(found) == (0 if state is None else 4)
    assert points(Reading(MIG, T0, values), "hw_status") == []


def test_a_gpu_that_answers_nothing_has_failed_and_is_told_of() -> None:
    lost = Reading(H100, T0, {}, {"gpu_temperature_celsius": Missing.LOST})
    assert [labels["hw_state"] for labels, value in points(lost, "hw_status") if value] == ["failed"]
    made = Sender()
    made.exporter.put([lost])
    assert made.exporter.send()
    assert made.points("sent") == 4
    made.exporter.close()


def test_every_name_of_the_table_is_read_back_under_its_own_row() -> None:
    values = dict.fromkeys(HARDWARE, 1.0)
    taken = FLEET.take(otlp.read(encode([Reading(H100, T0, values)])[0], Tally()), "fleet", lambda _host, _gpus: "", T0)
    (found,) = taken.batch.readings
    assert (found.gpu.uuid, found.gpu.model, dict(found.values)) == ("GPU-0", "NVIDIA H100", values)


class Receiver:
    def __init__(self) -> None:
        self.status, self.headers, self.body = 200, dict[str, str](), b""
        self.requests: list[httpx2.Request] = []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        if self.status == 0:
            raise httpx2.ConnectError("away")
        return httpx2.Response(self.status, headers=self.headers, content=self.body)


class Sender:
    def __init__(self) -> None:
        self.receiver, self.clock, self.own = Receiver(), ManualClock(T0), OwnMetrics()
        wanted = OtlpSettings.model_validate({"url": "http://c:4318/v1/metrics", "headers": {"X-Key": "k"}})
        self.exporter = OtlpExporter(wanted, self.clock, self.own, httpx2.MockTransport(self.receiver))

    def put(self, value: float = 50) -> None:
        self.exporter.put([Reading(H100, self.clock.now_ms(), {"gpu_temperature_celsius": value})])

    def points(self, outcome: str) -> float:
        return self.own.value("tocsin_otlp_points_total", outcome=outcome)


def test_one_request_an_interval_has_the_newest() -> None:
    made = Sender()
    made.put(50)
    made.put(51)
    assert made.exporter.send()
    assert not made.exporter.send()
    (request,) = made.receiver.requests
    assert request.headers["X-Key"] == "k"
    assert [one.samples[0][1] for one in otlp.read(request.content, Tally())] == [51]
    assert (made.points("sent"), made.points("lost")) == (1, 0)
    made.clock.advance(20 * SECOND)
    assert not made.exporter.send()
    made.exporter.close()


def test_a_receiver_that_is_away_is_asked_less_and_less_and_what_it_missed_is_counted() -> None:
    made = Sender()
    made.receiver.status = 0
    asked = []
    for second in range(200):
        made.put(second)
        if made.exporter.send():
            asked.append(second)
        made.clock.advance(SECOND)
    gaps = [later - before for before, later in pairwise(asked)]
    assert gaps == [15, 30, 60]
    assert made.points("lost") == 199
    made.receiver.status = 200
    made.clock.advance(400 * SECOND)
    assert made.exporter.send()
    assert made.points("sent") == 1
    made.exporter.close()


def test_the_time_that_a_receiver_asks_for_is_kept() -> None:
    made = Sender()
    made.receiver.status, made.receiver.headers = 503, {"Retry-After": "120"}
    made.put()
    assert made.exporter.send()
    made.clock.advance(119 * SECOND)
    assert not made.exporter.send()
    made.clock.advance(2 * SECOND)
    assert made.exporter.send()
    made.exporter.close()


def test_what_is_refused_is_counted_and_not_sent_again() -> None:
    made = Sender()
    made.receiver.status = 400
    made.put()
    assert made.exporter.send()
    made.clock.advance(20 * SECOND)
    assert not made.exporter.send()
    made.receiver.status, made.receiver.body = 200, otlp.answer(Tally(samples=1, rejected=1, problem="no"))
    made.put()
    assert made.exporter.send()
    assert (made.points("refused"), made.points("sent")) == (2, 0)
    made.exporter.close()

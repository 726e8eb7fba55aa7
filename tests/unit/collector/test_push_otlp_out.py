"""OTLP out: names, and what becomes of points that a receiver does not take. Read back by the brain's own reader."""

from __future__ import annotations

from itertools import pairwise

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.collector.push import otlp
from tocsin.collector.push.fleet import PushedFleet
from tocsin.collector.push.otlp_out import OtlpExporter, encode
from tocsin.collector.push.samples import Tally
from tocsin.config.otlp import OtlpSettings
from tocsin.config.promql import PromqlSettings
from tocsin.domain.clock import SECOND, ManualClock
from tocsin.domain.metrics import METRICS
from tocsin.domain.reading import Gpu, Reading
from tocsin.telemetry.metrics import OwnMetrics
from tocsin_testing.builders import T0

H100 = Gpu("GPU-0", "n1", index=0, model="NVIDIA H100")
MIG = Gpu("MIG-1", "n1", model="NVIDIA H100", parent="GPU-0", mig_profile="1g.10gb")
FLEET = PushedFleet(PromqlSettings(), OwnMetrics(), lambda _: (None, False), 120_000)
NAMES = sorted(
    name
    for name, spec in METRICS.items()
    if spec.entity == "gpu" and not spec.label and spec.minimum <= 0 and spec.maximum >= 1 and "free_bytes" not in name
)


def names(reading: Reading) -> set[str]:
    return {series.name for series in otlp.read(encode([reading])[0], Tally())}


def test_the_name_is_opentelemetrys_then_dcgms_then_our_own() -> None:
    values = {"gpu_power_watts": 300.0, "gpu_temperature_celsius": 50.0, "gpu_fan_speed_ratio": 0.5}
    assert names(Reading(H100, T0, values)) >= {"hw_power", "DCGM_FI_DEV_GPU_TEMP"}
    assert names(Reading(MIG, T0, values)) == set(values)
    own = next(name for name in NAMES if not METRICS[name].dcgm_names and not name.startswith(("gpu_mem", "gpu_util")))
    assert names(Reading(H100, T0, {own: 1.0})) == {own}


@given(st.dictionaries(st.sampled_from(NAMES), st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=1, max_size=20))
def test_what_is_sent_reads_back_as_it_was(values: dict[str, float]) -> None:
    for gpu in (H100, MIG):
        tally = Tally()
        body, points = encode([Reading(gpu, T0, values)])
        taken = FLEET.take(otlp.read(body, tally), lambda _host, _gpus: "", T0)
        assert (points, tally.rejected, taken.rejected) == (len(values), 0, 0)
        (found,) = taken.batch.readings
        assert (found.gpu.uuid, found.gpu.host, found.gpu.parent, found.at_ms) == (gpu.uuid, "n1", gpu.parent, T0)
        assert found.values == pytest.approx(values)


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

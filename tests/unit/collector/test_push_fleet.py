"""Errors out of pushed series, which come in parts, late and twice."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tocsin.collector.push import fleet as module
from tocsin.collector.push.fleet import SETTLE_MS, PushedFleet, Taken
from tocsin.collector.push.samples import PushedSeries
from tocsin.config.promql import PromqlSettings
from tocsin.domain.clock import MINUTE, SECOND
from tocsin.telemetry.metrics import OwnMetrics
from tocsin_testing.builders import T0

XID, COUNT, SXID = "DCGM_FI_DEV_XID_ERRORS", "DCGM_EXP_XID_ERRORS_COUNT", "DCGM_FI_DEV_NVSWITCH_FATAL_ERRORS"


def one(name: str, at_ms: int, value: float, **more: str) -> PushedSeries:
    labels = {"UUID": "GPU-0", "gpu": "0", "Hostname": "n1", "job": "dcgm", "instance": "n1:9400", **more}
    return PushedSeries(name, labels, [(at_ms, value)])


class Pushed:
    def __init__(self) -> None:
        self.own = OwnMetrics()
        self.fleet = PushedFleet(PromqlSettings(), self.own, lambda _: (None, False), 120_000, 256)

    def take(self, *series: PushedSeries, refuse: Iterable[str] = ()) -> Taken:
        wrong = set(refuse)
        return self.fleet.take(series, "fleet", lambda host, _gpus: "no" if host in wrong else "", T0 + 10 * MINUTE)

    def codes(self, *series: PushedSeries) -> list[int | None]:
        return [event.code for event in self.take(*series).batch.events]


def settled() -> tuple[Pushed, int]:
    """A fleet that has known a GPU without an error for longer than it takes to settle, and the instant after."""
    pushed = Pushed()
    for at_ms in range(T0, T0 + SETTLE_MS + 1, 15 * SECOND):
        assert pushed.codes(one(XID, at_ms, 0)) == []
    return pushed, T0 + SETTLE_MS + 15 * SECOND


def test_a_code_that_comes_is_an_error_once() -> None:
    pushed, at_ms = settled()
    assert pushed.codes(one(XID, at_ms, 79)) == [79]
    assert pushed.codes(one(XID, at_ms, 79)) == []
    assert pushed.codes(one(XID, at_ms + 15 * SECOND, 79)) == []


def test_what_a_gpu_shows_first_may_be_old_whatever_part_of_it_comes_first() -> None:
    pushed = Pushed()
    assert pushed.codes(one(XID, T0, 79)) == []
    assert pushed.codes(one(COUNT, T0, 3, xid="79", window_size_in_ms="300000")) == []
    assert pushed.codes(one(COUNT, T0 + 15 * SECOND, 3, xid="79", window_size_in_ms="300000")) == []
    later = T0 + SETTLE_MS + SECOND
    assert pushed.codes(one(COUNT, later, 3, xid="79", window_size_in_ms="300000")) == []
    assert pushed.codes(one(COUNT, later + SECOND, 4, xid="79", window_size_in_ms="300000")) == [79]


def test_parts_that_come_late_are_kept_and_make_no_error() -> None:
    pushed, at_ms = settled()
    assert pushed.codes(one(XID, at_ms, 79)) == [79]
    late = pushed.take(one(XID, at_ms - 5 * SECOND, 0), one("DCGM_FI_DEV_GPU_TEMP", at_ms - 5 * SECOND, 60))
    assert [reading.values["gpu_temperature_celsius"] for reading in late.batch.readings] == [60]
    assert pushed.codes(one(XID, at_ms + SECOND, 79)) == []


def test_several_scrapes_of_one_body_are_taken_in_their_order() -> None:
    pushed, at_ms = settled()
    both = pushed.take(one(XID, at_ms + SECOND, 31), one(XID, at_ms, 79))
    assert [event.code for event in both.batch.events] == [79, 31]
    assert [reading.at_ms for reading in both.batch.readings] == [at_ms, at_ms + SECOND]


def test_an_exporter_that_started_anew_proves_nothing() -> None:
    pushed, at_ms = settled()
    start = "process_start_time_seconds"
    pushed.take(one(start, at_ms, 1000.0))
    pushed.take(one(start, at_ms + SECOND, 2000.0))
    assert pushed.codes(one(XID, at_ms + SECOND, 79)) == []
    assert pushed.own.value("tocsin_dcgm_unsettled_errors_total", kind="xid", reason="exporter_restart") == 1


def test_other_processes_of_the_host_are_no_exporter_that_started_anew() -> None:
    pushed, at_ms = settled()
    for now in range(at_ms, at_ms + 5 * SECOND, SECOND):
        own = one("process_start_time_seconds", now, 1000.0)
        other = one("process_start_time_seconds", now, 3000.0, job="node", instance="n1:9100")
        pushed.take(own, other, one(XID, now, 0))
    assert pushed.codes(one(XID, at_ms + 5 * SECOND, 79)) == [79]


def test_an_exporter_in_another_s_place_proves_nothing() -> None:
    pushed, at_ms = settled()
    start, there = "process_start_time_seconds", {"instance": "10.0.0.9:9400"}
    pushed.take(one(start, at_ms, 1000.0))
    pushed.take(one(XID, at_ms + SECOND, 0, **there), one(start, at_ms + SECOND, 2000.0, **there))
    assert pushed.codes(one(XID, at_ms + 2 * SECOND, 79, **there)) == []


def test_nothing_is_remembered_of_what_the_sender_may_not_say() -> None:
    pushed, at_ms = settled()
    taken = pushed.take(one(XID, at_ms, 79), refuse=["n1"])
    assert (taken.batch.readings, taken.rejected, taken.problem) == ([], 1, "no")
    assert pushed.codes(one(XID, at_ms, 79)) == [79]


def test_codes_of_switches_are_events_of_the_host() -> None:
    pushed = Pushed()
    assert pushed.codes(one(SXID, T0, 0, nvswitch="2")) == []
    (event,) = pushed.take(one(SXID, T0 + SECOND, 20034, nvswitch="2")).batch.events
    assert (event.host, event.gpu, event.code) == ("n1", "", 20034)


def test_hardware_names_of_opentelemetry() -> None:
    labels = {"hw_id": "GPU-0", "hw_type": "gpu", "host_name": "n1", "hw_model": "H100"}
    rows = {"hw_gpu_memory_limit": 80e9, "hw_gpu_memory_usage": 20e9, "hw_power": 300.0, "hw_status": 1.0}
    pushed = Pushed()
    taken = pushed.take(
        *(PushedSeries(name, labels, [(T0, value)]) for name, value in rows.items()),
        PushedSeries("hw_gpu_utilization", labels, [(T0, 0.5)]),
        PushedSeries("hw_gpu_utilization", {**labels, "hw_gpu_task": "encoder"}, [(T0, 0.25)]),
        PushedSeries("hw_power", {**labels, "hw_type": "fan"}, [(T0, 9.0)]),
        PushedSeries("up", {"job": "x"}, [(T0, 1.0)]),
    )
    (reading,) = taken.batch.readings
    assert reading.values == {
        "gpu_memory_total_bytes": 80e9,
        "gpu_memory_used_bytes": 20e9,
        "gpu_power_watts": 300.0,
        "gpu_utilization_ratio": 0.5,
        "gpu_encoder_utilization_ratio": 0.25,
    }
    assert (reading.gpu.host, reading.gpu.model) == ("n1", "H100")
    assert (taken.rejected, taken.outcomes) == (0, {"used": 5, "other": 3})


def test_made_up_names_and_labels_fill_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_LABEL_COST", 1_000_000)
    fleet = Pushed().fleet
    sizes = []
    for body in range(8):
        made_up = [one(XID, T0 + body, 0, UUID=f"GPU-x{body}-{n}") for n in range(3_000)]
        named = [one(f"m_{body}_{n}", T0, 0) for n in range(3_000)]
        fleet.take([one(XID, T0 + body, 0), *made_up, *named], "fleet", lambda _host, _gpus: "", T0 + MINUTE)
        sizes.append(sum(len(kept.heads) for kept in fleet._labelled.values()))
    assert max(sizes) < 4_000
    assert len(fleet._hosts["n1"].gpus) == 256
    assert "GPU-0" in fleet._hosts["n1"].gpus

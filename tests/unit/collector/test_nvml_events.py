"""The thread that waits for the driver's events: what it dates, counts and survives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tocsin.collector.nvml import events as nvml_events
from tocsin.collector.nvml.library import XID_EVENTS, Code, DeviceEvent, EventType
from tocsin.collector.nvml.source import ENUMERATE_MS, NvmlSource
from tocsin.collector.source import NodeIdentity
from tocsin.domain.clock import ManualClock
from tocsin.domain.event import EventKind
from tocsin.domain.reading import Missing
from tocsin.telemetry.metrics import OwnMetrics
from tocsin_testing.builders import T0
from tocsin_testing.nvml_replay import RecordedNvml, devices, dump

PLACE = NodeIdentity("node-1")


@pytest.fixture(autouse=True)
def quick_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits in the driver and pauses after failures, short enough for tests."""
    monkeypatch.setattr(nvml_events, "WAIT_MS", 10)
    monkeypatch.setattr(nvml_events, "FIRST_PAUSE_SECONDS", 0.01)


class Watched:
    """A source over three recorded GPUs on a clock of its own."""

    def __init__(self) -> None:
        self.clock = ManualClock(T0)
        self.own = OwnMetrics()
        self.library = RecordedNvml(devices("h100-healthy"))
        self.source = NvmlSource(self.library, PLACE, 10.0, clock=self.clock, own=self.own)

    def xids(self, at_ms: int) -> list[tuple[int, int]]:
        """Code and instant of the XIDs of one reading."""
        return [(e.code, e.at_ms) for e in self.source.read(at_ms).events if e.kind is EventKind.XID]

    def values(self, at_ms: int, gpu: int) -> dict[str, float]:
        """Values of one GPU at one reading."""
        return dict(self.source.read(at_ms).readings[gpu].values)


@pytest.fixture
def watched() -> Iterator[Watched]:
    made = Watched()
    yield made
    made.source.close()


def recorded_xids() -> list[int]:
    recorded: Any = dump("h100-events")
    return [entry["eventData"] for entry in recorded if entry.get("eventType") == XID_EVENTS]


def test_an_xid_is_dated_when_the_wait_comes_back_not_when_it_is_read(watched: Watched) -> None:
    assert watched.library.registered == {0, 1, 2}
    assert watched.values(T0, 2)["gpu_xid_last_code"] == 0
    for code in recorded_xids():
        watched.clock.advance(700)
        watched.library.xid(2, code)
    batch = watched.source.read(T0 + 10_000)
    assert [(e.code, e.at_ms) for e in batch.events] == [
        (48, T0 + 700),
        (63, T0 + 1400),
        (94, T0 + 2100),
        (79, T0 + 2800),
    ]
    assert {(e.kind, e.gpu, e.host) for e in batch.events} == {(EventKind.XID, batch.readings[2].gpu.uuid, "node-1")}
    assert batch.readings[2].values["gpu_xid_last_code"] == 79
    assert watched.source.read(T0 + 20_000).events == (), "each event comes once"


def test_xids_are_counted_by_code_and_gpu(watched: Watched) -> None:
    for code in (79, 48, 79):
        watched.clock.advance(1)
        watched.library.xid(2, code)
    values = watched.values(T0 + 10_000, 2)
    assert values['gpu_xid_events_total{xid="79"}'] == 2
    assert values['gpu_xid_events_total{xid="48"}'] == 1
    assert 'gpu_xid_events_total{xid="48"}' not in watched.values(T0 + 20_000, 0)


def test_the_same_xid_within_a_millisecond_is_one_event_and_counted_twice(watched: Watched) -> None:
    watched.library.happen(*[DeviceEvent(0, XID_EVENTS, 13)] * 2)
    assert watched.xids(T0) == [(13, T0)]
    assert watched.values(T0 + 1, 0)['gpu_xid_events_total{xid="13"}'] == 2


def test_an_instance_is_named_and_the_gpu_is_meant(watched: Watched) -> None:
    watched.library.happen(DeviceEvent(1, XID_EVENTS, 94, instance=3))
    (event,) = watched.source.read(T0).events
    assert event.gpu == watched.source.gpus()[1].uuid
    assert event.message.endswith("on GPU instance 3")


def test_a_storm_is_spread_over_readings_and_its_excess_is_counted(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvml_events, "MAX_WAITING", 300)
    watched.library.happen(*(DeviceEvent(0, XID_EVENTS, code) for code in range(1, 401)))
    sizes = [len(watched.xids(T0 + step)) for step in range(3)]
    assert sizes == [256, 44, 0]
    assert watched.own.value("tocsin_dropped_total", what="event", reason="storm") == 100
    assert watched.values(T0 + 10, 0)['gpu_xid_events_total{xid="400"}'] == 1, "counted although dropped"


def test_a_wait_that_fails_is_no_failure_of_any_gpu(watched: Watched) -> None:
    watched.source.read(T0)
    watched.library.happen(Code.UNKNOWN, DeviceEvent(1, XID_EVENTS, 31))
    batch = watched.source.read(T0 + 10_000)
    assert all(reading.values for reading in batch.readings)
    assert [(e.kind, e.code) for e in batch.events] == [(EventKind.XID, 31)], "waiting went on"
    assert watched.library.calls.count("nvmlEventSetCreate") == 2, "on a fresh event set"
    assert watched.library.calls.count("nvmlEventSetFree") == 1, "the one before is given back"
    assert watched.library.registered == {0, 1, 2}


def test_ears_that_the_driver_closed_are_opened_with_the_next_listing(watched: Watched) -> None:
    watched.source.read(T0)
    watched.library.waits.append(Code.UNINITIALIZED)
    watched.library.longest_wait = 0.0
    for step in range(100_000):
        if watched.source._watch._set is None:
            break
        watched.source.read(T0 + step)
    watched.library.longest_wait = 10.0
    watched.source.read(T0 + ENUMERATE_MS)
    watched.library.xid(2, 79)
    assert [code for code, _ in watched.xids(T0 + ENUMERATE_MS + 1)] == [79]
    assert watched.library.opening == 1


def test_a_wait_that_fails_for_a_lost_gpu_keeps_the_ears_on_the_others(watched: Watched) -> None:
    watched.library.failures[0, "nvmlDeviceRegisterEvents"] = Code.GPU_IS_LOST
    watched.library.happen(Code.GPU_IS_LOST, DeviceEvent(2, XID_EVENTS, 13))
    batch = watched.source.read(T0)
    assert [e.code for e in batch.events] == [13]
    assert batch.readings[0].missing["gpu_xid_last_code"] is Missing.LOST


def test_events_go_on_after_the_driver_was_reloaded(watched: Watched) -> None:
    watched.source.read(T0)
    watched.library.xid(0, 43)
    watched.library.opened = False
    batch = watched.source.read(T0 + 10_000)
    assert [e.kind for e in batch.events] == [EventKind.DRIVER_RELOAD, EventKind.XID], "what was heard before is kept"
    watched.library.xid(0, 45)
    assert [code for code, _ in watched.xids(T0 + 20_000)] == [45]
    assert watched.values(T0 + 30_000, 0)['gpu_xid_events_total{xid="43"}'] == 1, "counts outlive the library"


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (EventType.ECC_STORM, "ecc_storm"),
        (EventType.DRAM_RETIREMENT, "dram_retirement"),
        (EventType.DRAM_RETIREMENT_FAILURE, "dram_retirement_failure"),
        (EventType.GPU_UNAVAILABLE, "gpu_unavailable"),
        (0x40000, "other"),
    ],
)
def test_other_events_are_counted_and_make_slow_values_due(watched: Watched, kind: int, name: str) -> None:
    watched.source.read(T0)
    watched.source.read(T0 + 1_000)
    watched.library.calls.clear()
    watched.source.read(T0 + 2_000)
    assert "nvmlDeviceGetCurrPcieLinkWidth" not in watched.library.calls, "not due"
    watched.library.happen(DeviceEvent(1, kind, 0))
    batch = watched.source.read(T0 + 3_000)
    assert batch.readings[1].values[f'gpu_driver_events_total{{kind="{name}"}}'] == 1
    assert not batch.events
    assert watched.library.calls.count("nvmlDeviceGetCurrPcieLinkWidth") == 1, "of that GPU alone"


def test_an_announced_verdict_is_dated_by_its_announcement(watched: Watched) -> None:
    entries = watched.library.devices[0]["nvmlDeviceGetFieldValues"]["value"]
    entries["NVML_FI_DEV_GET_GPU_RECOVERY_ACTION"] = {"nvmlReturn": 0, "valueType": 1, "value": 0}
    watched.source.read(T0)
    watched.clock.advance(4_000)
    watched.library.happen(DeviceEvent(0, EventType.RECOVERY_ACTION, 0))
    entries["NVML_FI_DEV_GET_GPU_RECOVERY_ACTION"]["value"] = 1
    (event,) = watched.source.read(T0 + 10_000).events
    assert (event.kind, event.code, event.at_ms) == (EventKind.RECOVERY_ACTION, 1, T0 + 4_000)


def test_only_events_that_the_gpu_has_are_asked_for() -> None:
    library = RecordedNvml(devices("h100-healthy"))
    library.devices[0]["nvmlDeviceGetSupportedEventTypes"] = {"value": 0xFFFF}
    library.failures[1, "nvmlDeviceGetSupportedEventTypes"] = Code.NOT_SUPPORTED
    source = NvmlSource(library, PLACE)
    assert library.kinds == {0: sum(EventType), 1: XID_EVENTS, 2: XID_EVENTS}
    source.close()


def test_closing_ends_the_thread_and_frees_the_set() -> None:
    made = Watched()
    made.source.close()
    thread = made.source._watch._thread
    assert thread is not None
    thread.join(10)
    assert not thread.is_alive()
    assert made.library.calls.count("nvmlEventSetFree") == 1


def test_a_driver_that_does_not_block_is_not_asked_in_a_tight_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml_events, "WAIT_MS", 60_000)
    library = RecordedNvml(devices("h100-healthy"))
    library.longest_wait = 0.0
    source = NvmlSource(library, PLACE)
    for step in range(20):
        source.read(T0 + step)
    assert library._waits_begun <= 2
    source.close()

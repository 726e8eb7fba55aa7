"""Drivers that go, GPUs that are lost, hang and return, and XIDs, met through ctypes on the mock library."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pynvml
import pytest

from tocsin.collector.nvml.library import PynvmlLibrary
from tocsin.collector.nvml.source import NvmlSource
from tocsin.collector.source import NodeIdentity
from tocsin.domain.batch import Batch
from tocsin.domain.errors import Unavailable
from tocsin.domain.event import Event, EventKind
from tocsin.domain.reading import Missing, Reading
from tocsin_testing.builders import T0
from tocsin_testing.mock_gpus import h100
from tocsin_testing.mock_nvml import MockFleet

MINUTE = 60_000
Open = Callable[..., NvmlSource]


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[MockFleet]:
    with MockFleet(tmp_path, [h100(n) for n in range(3)]).loaded() as loaded:
        yield loaded


@pytest.fixture
def open_source(fleet: MockFleet) -> Iterator[Open]:
    with ExitStack() as stack:

        def make(deadline: float = 10.0) -> NvmlSource:
            source = NvmlSource(PynvmlLibrary(), NodeIdentity("node-1"), deadline)
            stack.callback(source.close)
            stack.callback(fleet.heal)
            return source

        yield make


def by_index(batch: Batch) -> dict[int, Reading]:
    return {reading.gpu.index or 0: reading for reading in batch.readings}


def of_kind(batch: Batch, kind: EventKind) -> list[Event]:
    return [event for event in batch.events if event.kind is kind]


def works(reading: Reading) -> bool:
    return reading.values.get("gpu_temperature_celsius", 0) > 50 and len(reading.values) > 80


def lost(reading: Reading) -> bool:
    return not reading.values and set(reading.missing.values()) == {Missing.LOST}


def test_without_a_library_the_remedy_names_the_driver() -> None:
    program = (
        "from tocsin.collector.nvml.source import NvmlSource\n"
        "from tocsin.collector.source import NodeIdentity\n"
        "from tocsin.collector.nvml.library import PynvmlLibrary\n"
        "from tocsin.domain.errors import Unavailable\n"
        "try: NvmlSource(PynvmlLibrary(), NodeIdentity('node-1'))\n"
        "except Unavailable as problem: print(problem)\n"
        "else: print('a driver is here')\n"
    )
    environment = {key: value for key, value in os.environ.items() if key != "LD_LIBRARY_PATH"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    if done.stdout == "a driver is here\n":
        pytest.skip("this machine has NVIDIA's driver")
    assert "libnvidia-ml.so.1 was not found; install the NVIDIA driver" in done.stdout


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("DRIVER_NOT_LOADED", "the NVIDIA kernel driver is not loaded"),
        ("LIB_RM_VERSION_MISMATCH", "restart the agent"),
        ("NO_PERMISSION", "/dev/nvidia"),
        ("UNKNOWN", "nvidia-smi"),
    ],
)
def test_a_library_that_does_not_open_says_why(fleet: MockFleet, open_source: Open, code: str, said: str) -> None:
    fleet.system.fail("nvmlInitWithFlags", code)
    fleet.apply()
    with pytest.raises(Unavailable, match=said):
        open_source()


def test_a_lost_gpu_costs_itself_alone(fleet: MockFleet, open_source: Open) -> None:
    source = open_source()
    source.read(T0)
    fleet.gpus[1].lose()
    fleet.gpus[1].fail("nvmlDeviceGetMaxClockInfo", "OK")
    fleet.apply()
    batch = source.read(T0 + MINUTE)
    readings = by_index(batch)
    assert lost(readings[1]), "what it still answers from a cache is not to be trusted"
    assert works(readings[0])
    assert works(readings[2])
    assert [event.gpu for event in of_kind(batch, EventKind.GPU_LOST)] == [fleet.gpus[1].uuid]
    assert of_kind(source.read(T0 + 2 * MINUTE), EventKind.GPU_LOST) == [], "a loss is one event"


def test_a_gpu_that_returns_is_read_again(fleet: MockFleet, open_source: Open) -> None:
    source = open_source()
    fleet.gpus[1].lose()
    fleet.apply()
    source.read(T0)
    fleet.heal()
    batch = source.read(T0 + MINUTE)
    assert works(by_index(batch)[1])
    assert [event.gpu for event in of_kind(batch, EventKind.GPU_FOUND)] == [fleet.gpus[1].uuid]


def test_a_gpu_that_is_lost_in_the_middle_of_a_reading_has_no_values(fleet: MockFleet, open_source: Open) -> None:
    source = open_source()
    source.read(T0)
    fleet.gpus[2].fail("nvmlDeviceGetPerformanceState", "GPU_IS_LOST")
    fleet.apply()
    readings = by_index(source.read(T0 + MINUTE))
    assert lost(readings[2])
    assert works(readings[0])


def test_a_gpu_that_the_driver_no_longer_lists_is_told_and_a_new_one_found(fleet: MockFleet, open_source: Open) -> None:
    source = open_source()
    source.read(T0)
    gone = fleet.gpus.pop(0)
    fleet.apply()
    batch = source.read(T0 + MINUTE)
    assert gone.uuid in {event.gpu for event in of_kind(batch, EventKind.GPU_LOST)}
    assert {r.gpu.uuid for r in batch.readings if works(r)} == {gpu.uuid for gpu in fleet.gpus.values()}
    fleet.gpus[5] = h100(5)
    fleet.apply()
    batch = source.read(T0 + 2 * MINUTE)
    assert [event.gpu for event in of_kind(batch, EventKind.GPU_FOUND)] == [fleet.gpus[5].uuid]
    assert fleet.gpus[5].uuid in {reading.gpu.uuid for reading in batch.readings if works(reading)}


def test_a_gpu_whose_reset_is_owed_says_so(fleet: MockFleet, open_source: Open) -> None:
    source = open_source()
    fleet.gpus[0].fail("*", "RESET_REQUIRED")
    for function in ("HandleByIndex_v2", "UUID", "Name", "Serial", "PciInfo_v3"):
        fleet.gpus[0].fail(f"nvmlDeviceGet{function}", "OK")
    fleet.apply()
    readings = by_index(source.read(T0))
    assert set(readings[0].missing.values()) >= {Missing.RESET_REQUIRED}
    assert "gpu_temperature_celsius" not in readings[0].values
    assert works(readings[1])


def test_one_gpu_hangs_and_the_others_are_read(fleet: MockFleet, open_source: Open) -> None:
    source = open_source(deadline=1.0)
    source.read(T0)
    fleet.gpus[1].hang()
    fleet.apply()
    readings = by_index(source.read(T0 + MINUTE))
    assert set(readings[1].missing.values()) == {Missing.TIMED_OUT}
    assert works(readings[0])
    assert works(readings[2])
    assert fleet.waiting == 1


def test_a_gpu_that_still_hangs_gets_no_second_call_and_is_read_again_after(
    fleet: MockFleet, open_source: Open
) -> None:
    source = open_source(deadline=1.0)
    source.read(T0)
    fleet.gpus[1].hang("nvmlDeviceGetFieldValues")
    fleet.apply()
    source.read(T0 + MINUTE)
    before = fleet.calls("nvmlDeviceGetFieldValues", gpu=1)
    source.read(T0 + 2 * MINUTE)
    assert fleet.calls("nvmlDeviceGetFieldValues", gpu=1) == before
    assert fleet.waiting == 1
    fleet.heal()
    at_ms = T0 + 3 * MINUTE
    while not works(by_index(source.read(at_ms))[1]) or fleet.waiting:
        at_ms += MINUTE
        assert at_ms < T0 + 2_000 * MINUTE


def test_a_reloaded_driver_is_opened_again_with_new_handles(fleet: MockFleet, open_source: Open) -> None:
    source = open_source()
    source.read(T0)
    fleet.reload()
    batch = source.read(T0 + MINUTE)
    assert all(works(reading) for reading in batch.readings)
    assert len(of_kind(batch, EventKind.DRIVER_RELOAD)) == 1
    assert fleet.opens == 2
    assert fleet.stale_handles == 0, "the real library may crash on a handle from before"


def test_a_driver_that_stays_away_is_tried_with_pauses_and_never_raises(fleet: MockFleet, open_source: Open) -> None:
    source = open_source()
    source.read(T0)
    fleet.system.fail("nvmlInitWithFlags", "DRIVER_NOT_LOADED")
    fleet.reload()
    for second in range(30):
        assert all(lost(reading) for reading in source.read(T0 + 1_000 * second).readings)
    assert fleet.calls("nvmlInitWithFlags") < 12, "1, 2, 4 ... seconds between attempts"
    fleet.heal()
    at_ms = T0 + 30_000
    while not all(works(reading) for reading in source.read(at_ms).readings):
        at_ms += 1_000
        assert at_ms < T0 + 120_000
    assert fleet.stale_handles == 0


def test_a_driver_that_was_replaced_asks_for_a_new_process(fleet: MockFleet, open_source: Open) -> None:
    source = open_source()
    source.read(T0)
    fleet.system.fail("*", "LIB_RM_VERSION_MISMATCH")
    fleet.apply()
    with pytest.raises(Unavailable, match="restart the agent"):
        source.read(T0 + MINUTE)


def counted(batch: Batch, index: int) -> dict[str, float]:
    values = by_index(batch)[index].values
    return {key: value for key, value in values.items() if key.startswith("gpu_xid_events_total")}


def heard(source: NvmlSource, counts: dict[int, int], from_ms: int) -> tuple[list[tuple[str, int]], Batch]:
    """Reads until each GPU has counted so many XIDs, for which another thread waits; all events and the last batch."""
    seen: list[tuple[str, int]] = []
    for step in range(5_000):
        batch = source.read(from_ms + step)
        assert all(works(reading) for reading in batch.readings)
        seen += [(event.gpu, event.code) for event in of_kind(batch, EventKind.XID)]
        if all(sum(counted(batch, index).values()) >= count for index, count in counts.items()):
            last = source.read(from_ms + step + 1)
            return seen + [(event.gpu, event.code) for event in of_kind(last, EventKind.XID)], last
    raise AssertionError(f"XIDs that came: {seen}")


def test_xids_come_through_the_event_set_and_are_counted(fleet: MockFleet, open_source: Open) -> None:
    source = open_source()
    assert of_kind(source.read(T0), EventKind.XID) == []
    fleet.event(1, 79)
    fleet.event(2, 63)
    seen, batch = heard(source, {1: 1, 2: 1}, T0 + MINUTE)
    assert seen == [(fleet.gpus[1].uuid, 79), (fleet.gpus[2].uuid, 63)]
    assert by_index(batch)[1].values["gpu_xid_last_code"] == 79
    assert by_index(batch)[0].values["gpu_xid_last_code"] == 0
    fleet.event(1, 79)
    again, batch = heard(source, {1: 2}, T0 + 2 * MINUTE)
    assert again == [(fleet.gpus[1].uuid, 79)], "a repeat is seen: the event set does not latch"
    assert counted(batch, 1) == {'gpu_xid_events_total{xid="79"}': 2}
    assert of_kind(source.read(T0 + 3 * MINUTE), EventKind.XID) == [], "an XID is one event"


def test_a_storm_of_xids_does_not_hold_up_the_readings_and_all_are_counted(fleet: MockFleet, open_source: Open) -> None:
    source = open_source()
    source.read(T0)
    for number in range(600):
        fleet.add_event(0, 1 + number % 90)
    fleet.apply()
    seen, batch = heard(source, {0: 600}, T0 + MINUTE)
    assert {code for _, code in seen} == set(range(1, 91)), "the same XID within a millisecond is one event"
    assert sum(counted(batch, 0).values()) == 600


def test_xids_are_heard_again_after_a_reload(fleet: MockFleet, open_source: Open) -> None:
    source = open_source()
    source.read(T0)
    fleet.event(0, 31)
    heard(source, {0: 1}, T0 + MINUTE)
    fleet.reload()
    source.read(T0 + 2 * MINUTE)
    fleet.event(0, 48)
    seen, batch = heard(source, {0: 2}, T0 + 3 * MINUTE)
    assert seen == [(fleet.gpus[0].uuid, 48)]
    assert counted(batch, 0) == {'gpu_xid_events_total{xid="31"}': 1, 'gpu_xid_events_total{xid="48"}': 1}


def test_a_gpu_that_knows_no_events_says_so(fleet: MockFleet, open_source: Open) -> None:
    fleet.gpus[0].set("nvmlDeviceGetSupportedEventTypes", to=0)
    fleet.apply()
    readings = by_index(open_source().read(T0))
    assert readings[0].missing["gpu_xid_last_code"] is Missing.UNSUPPORTED
    assert readings[1].values["gpu_xid_last_code"] == 0


def test_everything_is_given_back_at_the_end(fleet: MockFleet, open_source: Open) -> None:
    source = open_source()
    source.read(T0)
    source.close()
    assert (fleet.opens, fleet.closes) == (1, 1)
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlDeviceGetCount()

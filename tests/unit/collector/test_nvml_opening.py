"""Opening and closing the library: late, in vain, on request, and never under a call that hangs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tocsin.collector.nvml import events as nvml_events
from tocsin.collector.nvml import opening as nvml_listing
from tocsin.collector.nvml.device import DriverGpu
from tocsin.collector.nvml.library import Code, NvmlFailure, PynvmlLibrary
from tocsin.collector.nvml.source import ENUMERATE_MS, FIRST_RETRY_MS, NvmlSource
from tocsin.collector.release import MOST_SECONDS, ReleaseFile
from tocsin.collector.source import NodeIdentity
from tocsin.domain.batch import Batch
from tocsin.domain.clock import HOUR, SECOND, ManualClock
from tocsin.domain.errors import Unavailable
from tocsin.domain.event import EventKind
from tocsin.domain.reading import Missing
from tocsin.telemetry.metrics import OwnMetrics
from tocsin_testing.builders import T0
from tocsin_testing.mock_gpus import h100
from tocsin_testing.mock_nvml import MockFleet
from tocsin_testing.nvml_replay import RecordedNvml, devices

PLACE = NodeIdentity("node-1")
COUNT = "nvmlDeviceGetCount"


@pytest.fixture(autouse=True)
def quick_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing a source waits for its event thread, which waits in the driver."""
    monkeypatch.setattr(nvml_events, "WAIT_MS", 10)


@pytest.fixture
def library() -> RecordedNvml:
    return RecordedNvml(devices("h100-healthy"))


@pytest.fixture
def source(library: RecordedNvml) -> Iterator[NvmlSource]:
    made = NvmlSource(library, PLACE, 10.0)
    made.read(T0)
    yield made
    made.close()


def reasons(batch: Batch) -> list[set[Missing]]:
    """Of GPUs without any value the reasons, of others nothing."""
    return [set() if reading.values else set(reading.missing.values()) for reading in batch.readings]


def answering(code: int) -> Callable[[], int]:
    def fail() -> int:
        raise NvmlFailure(code)

    return fail


def test_a_library_that_takes_its_time_to_open_says_nothing_of_any_gpu(
    library: RecordedNvml, source: NvmlSource
) -> None:
    library.failures[1, "*"] = Code.GPU_IS_LOST
    assert [e.kind for e in source.read(T0 + 1_000).events] == [EventKind.GPU_LOST]
    library.hung_calls[COUNT] = gate = threading.Event()
    source.deadline_seconds = 0.3
    batch = source.read(T0 + ENUMERATE_MS)
    assert reasons(batch) == [{Missing.TIMED_OUT}] * 3
    assert batch.events == (), "nobody knows that these GPUs are lost"
    del library.hung_calls[COUNT], library.failures[1, "*"]
    source.deadline_seconds = 10.0
    gate.set()
    back = next(b for step in range(1, 100) if (b := source.read(T0 + ENUMERATE_MS + 60_000 * step)).readings[0].values)
    assert reasons(back) == [set()] * 3
    assert [e.kind for e in back.events] == [EventKind.GPU_FOUND], "no driver was reloaded"


def test_openings_that_lead_nowhere_are_closed_again(tmp_path: Path) -> None:
    fleet = MockFleet(tmp_path, [h100(0)])
    with fleet.loaded():
        source = NvmlSource(PynvmlLibrary(), PLACE)
        source.read(T0)
        fleet.system.fail("nvmlDeviceGetCount_v2", "DRIVER_NOT_LOADED")
        fleet.apply()
        for step in range(1, 8):
            assert reasons(source.read(T0 + 60_000 * step)) == [{Missing.LOST}]
        assert fleet.opens >= 7
        assert fleet.opens - fleet.closes <= 1, "openings are counted: one too many and the driver is never let go of"
        fleet.heal()
        assert reasons(source.read(T0 + HOUR)) == [set()]
        source.close()
        assert fleet.opens == fleet.closes


def test_a_start_in_vain_leaves_nothing_open(tmp_path: Path) -> None:
    fleet = MockFleet(tmp_path, [h100(0)])
    fleet.system.fail("nvmlDeviceGetCount_v2", "NO_PERMISSION")
    fleet.apply()
    with fleet.loaded():
        with pytest.raises(Unavailable, match="/dev/nvidiactl"):
            NvmlSource(PynvmlLibrary(), PLACE)
        assert (fleet.opens, fleet.closes) == (1, 1)


def test_a_gpu_that_cannot_be_opened_afresh_costs_itself_alone(library: RecordedNvml, source: NvmlSource) -> None:
    library.hung[1] = gate = threading.Event()
    source.deadline_seconds = 0.5
    assert reasons(source.read(T0 + 5_000)) == [set(), {Missing.TIMED_OUT}, set()]
    del library.hung[1]
    library.closed_indices[1] = Code.UNKNOWN
    source.deadline_seconds = 10.0
    batch = source.read(T0 + 5_000 + FIRST_RETRY_MS)
    assert sum(bool(reading.values) for reading in batch.readings) == 2
    assert library.opening == 1
    assert EventKind.DRIVER_RELOAD not in {e.kind for e in batch.events}
    gate.set()


def test_a_count_that_fails_costs_nothing(library: RecordedNvml, source: NvmlSource) -> None:
    library._of_library[COUNT] = answering(Code.UNKNOWN)
    assert reasons(source.read(T0 + 1_000)) == [set()] * 3
    assert library.opening == 1


def test_a_gpu_that_did_not_come_back_with_the_driver_is_told(library: RecordedNvml, source: NvmlSource) -> None:
    gone = source.gpus()[2].uuid
    library.opened = False
    library.devices.pop()
    batch = source.read(T0 + 1_000)
    assert len(batch.readings) == 2
    assert [(e.kind, e.gpu) for e in batch.events] == [(EventKind.DRIVER_RELOAD, ""), (EventKind.GPU_LOST, gone)]


def test_a_gpu_that_only_a_new_opening_shows_is_found(library: RecordedNvml, tmp_path: Path) -> None:
    seen = {1: 2, 2: 3}
    library._of_library[COUNT] = lambda: seen[library.opening]
    (tmp_path / "0000:1a:00.0").mkdir()
    source = NvmlSource(library, PLACE, 10.0, driver_files=tmp_path)
    source.read(T0)
    source.read(T0 + ENUMERATE_MS)
    (tmp_path / "0000:1b:00.0").mkdir()
    assert source.read(T0 + 2 * ENUMERATE_MS).events == ()
    assert library.opening == 1, "a driver whose GPUs stay the same is left alone"
    batch = source.read(T0 + 3 * ENUMERATE_MS)
    assert [e.kind for e in batch.events] == [EventKind.GPU_FOUND]
    assert reasons(batch) == [set()] * 3
    source.read(T0 + 4 * ENUMERATE_MS)
    assert library.opening == 2
    source.close()


def test_the_drivers_files_are_read_by_a_thread_that_can_be_left_behind(
    library: RecordedNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers: list[threading.Thread] = []

    def told(_folder: Path) -> list[DriverGpu]:
        readers.append(threading.current_thread())
        return []

    monkeypatch.setattr(nvml_listing, "driver_gpus", told)
    library.closed_indices[2] = Code.GPU_IS_LOST
    source = NvmlSource(library, PLACE, 10.0)
    source.close()
    assert len(readers) == 1
    assert threading.main_thread() not in readers


def test_event_sets_are_freed_by_a_thread_that_can_be_left_behind(library: RecordedNvml) -> None:
    source = NvmlSource(library, PLACE, 0.3)
    source.read(T0)
    library.hung_calls["nvmlEventSetFree"] = gate = threading.Event()
    source.close()
    assert source.stuck_readers == 1
    gate.set()


def test_rates_do_not_follow_a_clock_that_is_set(library: RecordedNvml) -> None:
    entries = library.devices[0]["nvmlDeviceGetFieldValues"]["value"]
    clock = ManualClock(T0)
    source = NvmlSource(library, PLACE, 10.0, clock=clock)
    rates = []
    for step, set_ms in enumerate([0, 0, HOUR, -2 * HOUR]):
        clock.advance(10_000)
        clock.set(clock.now_ms() + set_ms)
        entries["NVML_FI_DEV_PCIE_COUNT_TX_BYTES"] = {"nvmlReturn": 0, "valueType": 3, "value": 50_000 * step}
        values = source.read(clock.now_ms()).readings[0].values
        rates.append(values.get("gpu_pcie_transmit_bytes_per_second"))
    assert rates == [None, 5_000, 5_000, 5_000]
    source.close()


class Released:
    """A source over two GPUs of the mock library, and whether it is asked to let go of them."""

    def __init__(self, folder: Path) -> None:
        self.fleet = MockFleet(folder, [h100(0), h100(1)])
        self.own = OwnMetrics()
        self.asked = False
        self.at_ms = T0

    def open(self) -> NvmlSource:
        return NvmlSource(PynvmlLibrary(), PLACE, 1.0, own=self.own, released=lambda: self.asked)

    @property
    def shown(self) -> float:
        return self.own.value("tocsin_nvml_released")


def test_the_gpus_are_let_go_of_on_request(tmp_path: Path) -> None:
    made = Released(tmp_path)
    with made.fleet.loaded():
        source = made.open()
        assert reasons(source.read(T0)) == [set()] * 2
        made.asked = True
        for step in (1, 2, 3):
            batch = source.read(T0 + step * SECOND)
            assert reasons(batch) == [{Missing.NOT_DUE}] * 2
            assert batch.events == ()
            assert (made.fleet.opens, made.fleet.closes, made.shown) == (1, 1, 1)
        made.asked = False
        batch = source.read(T0 + 4 * SECOND)
        assert reasons(batch) == [set()] * 2
        assert batch.events == ()
        assert (made.fleet.opens, made.fleet.stale_handles, made.shown) == (2, 0, 0)
        source.close()


def test_handles_that_cannot_be_let_go_of_are_not_said_to_be(tmp_path: Path) -> None:
    made = Released(tmp_path)
    with made.fleet.loaded():
        source = made.open()
        source.read(T0)
        made.fleet.gpus[1].hang()
        made.fleet.apply()
        source.read(T0 + SECOND)
        made.asked = True
        source.read(T0 + 2 * SECOND)
        assert (made.fleet.closes, made.shown) == (0, 0), "closing under a call that hangs could wedge the GPU"
        made.fleet.heal()
        assert any(source.read(T0 + step * SECOND) and made.shown for step in range(3, 500))
        assert made.fleet.closes == 1
        source.close()


def test_a_request_is_a_file_and_does_not_hold_for_ever(tmp_path: Path) -> None:
    clock = ManualClock(T0)
    file = tmp_path / "release"
    asked = ReleaseFile(str(file), clock)
    assert not asked()
    file.touch()
    assert asked()
    clock.advance(int(MOST_SECONDS * SECOND) - 1)
    assert asked()
    clock.advance(1)
    assert not asked(), "one that was forgotten must not leave a node unwatched"
    file.unlink()
    assert not asked()
    file.touch()
    assert asked()
    assert not ReleaseFile("", clock)()
    assert not ReleaseFile(str(tmp_path / ("x" * 300)), clock)(), "what cannot be looked at asks for nothing"

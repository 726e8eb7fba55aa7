"""A driver that hangs while the library or a GPU is opened, or counts what cannot be: the rest is read in time."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin.collector.nvml import events as nvml_events
from tocsin.collector.nvml import source as nvml_source
from tocsin.collector.nvml.device import DriverGpu, PlausibleCounts
from tocsin.collector.nvml.library import MOST_GPUS, MOST_INSTANCES, Code, NvmlFailure
from tocsin.collector.nvml.source import FIRST_RETRY_MS, NvmlSource
from tocsin.collector.source import NodeIdentity, Settles
from tocsin.domain.batch import Batch
from tocsin.domain.clock import SECOND
from tocsin.domain.reading import Missing
from tocsin.telemetry.metrics import OwnMetrics
from tocsin_testing.builders import T0
from tocsin_testing.nvml_replay import RecordedNvml, devices

PLACE = NodeIdentity("node-1")
COUNT = "nvmlDeviceGetCount"
INFORMATION = "Model: \t\t NVIDIA H100 80GB HBM3\nGPU UUID: \t {uuid}\nBus Location: \t {bus}\n"


@pytest.fixture(autouse=True)
def quick_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml_events, "WAIT_MS", 10)
    monkeypatch.setattr(nvml_source, "START_SECONDS", 0.3)
    monkeypatch.setattr(nvml_source, "LEAST_SECONDS", 0.3)


@pytest.fixture
def library() -> RecordedNvml:
    return RecordedNvml(devices("h100-healthy"))


def files(folder: Path, *uuids: str) -> Path:
    """The driver's files of GPUs in order of their PCI addresses; an empty UUID is one that the driver has lost."""
    for place, uuid in enumerate(uuids):
        bus = f"0000:{0x1A + place:02x}:00.0"
        (folder / bus).mkdir(parents=True)
        (folder / bus / "information").write_text(INFORMATION.format(uuid=uuid or "GPU-????????", bus=bus))
    return folder


def told(batch: Batch) -> dict[str, set[Missing]]:
    """By GPU the reasons of one without any value; none of one that has values."""
    return {r.gpu.uuid: set() if r.values else set(r.missing.values()) for r in batch.readings}


def eventually(source: NvmlSource, condition: Callable[[Batch], bool]) -> list[Batch]:
    """Readings until one of them fulfils `condition`."""
    batches: list[Batch] = []
    for step in range(1, 500):
        batches.append(source.read(T0 + step * SECOND))
        if condition(batches[-1]):
            return batches
        threading.Event().wait(0.01)
    raise AssertionError("no such reading")


@settings(max_examples=6)
@given(st.sets(st.integers(0, 2)))
def test_whatever_gpus_hang_while_they_are_opened_each_has_a_reading_and_the_others_have_values(hung: set[int]) -> None:
    library = RecordedNvml(devices("h100-healthy"))
    gate = threading.Event()
    library.hung = dict.fromkeys(hung, gate)
    source = NvmlSource(library, PLACE, 0.3)
    try:
        batch = source.read(T0)
        assert len(batch.readings) == 3
        reasons = {r.gpu.index: told(Batch(readings=(r,)))[r.gpu.uuid] for r in batch.readings}
        assert reasons == {index: {Missing.TIMED_OUT} if index in hung else set() for index in range(3)}
        assert batch.events == ()
        assert source.stuck_readers == len(hung)
    finally:
        gate.set()
        source.close()


def test_a_gpu_that_opens_late_is_neither_found_nor_lost(library: RecordedNvml) -> None:
    library.hung[1] = gate = threading.Event()
    source = NvmlSource(library, PLACE, 0.3)
    assert told(source.read(T0))["GPU-unknown-node-1-1"] == {Missing.TIMED_OUT}
    gate.set()
    batches = eventually(source, lambda batch: all(reading.values for reading in batch.readings))
    assert len(batches[-1].readings) == 3
    assert not [event for batch in batches for event in batch.events]
    assert library.opening == 1, "nothing was opened twice"
    assert source.stuck_readers == 0
    source.close()


def test_a_gpu_that_never_opens_is_tried_again_on_another_thread(library: RecordedNvml) -> None:
    library.hung[1] = gate = threading.Event()
    source = NvmlSource(library, PLACE, 0.3)
    source.read(T0)
    del library.hung[1]
    assert not source.read(T0 + 10 * SECOND).readings[-1].values
    source.read(T0 + FIRST_RETRY_MS)
    assert sum(bool(reading.values) for reading in source.read(T0 + FIRST_RETRY_MS + SECOND).readings) == 3
    assert source.stuck_readers == 1, "the call that hangs is still told of"
    gate.set()
    source.close()


def test_a_library_that_hangs_is_heard_of_by_the_gpus_of_the_drivers_files(
    library: RecordedNvml, tmp_path: Path
) -> None:
    library.hung_calls[COUNT] = gate = threading.Event()
    uuids = [str(device["nvmlDeviceGetUUID"]["value"]) for device in library.devices]
    source = NvmlSource(library, PLACE, 0.3, driver_files=files(tmp_path, uuids[0], "", uuids[2]))
    expected = [uuids[0], "GPU-unknown-node-1-1", uuids[2]]
    assert told(source.read(T0)) == {uuid: {Missing.TIMED_OUT} for uuid in expected}
    gate.set()
    batches = eventually(source, lambda batch: all(reading.values for reading in batch.readings))
    assert list(told(batches[-1])) == uuids
    assert not [event for batch in batches for event in batch.events]
    assert library.opening == 1
    source.close()


def test_a_library_that_hangs_on_a_node_that_tells_nothing_is_one_reading(
    library: RecordedNvml, tmp_path: Path
) -> None:
    library.hung_calls[COUNT] = gate = threading.Event()
    source = NvmlSource(library, PLACE, 0.3, driver_files=tmp_path)
    assert told(source.read(T0)) == {"GPU-unknown-node-1": {Missing.TIMED_OUT}}
    gate.set()
    batches = eventually(source, lambda batch: len(batch.readings) == 3)
    assert not [event for batch in batches for event in batch.events]
    source.close()


def test_driver_files_that_hang_cost_nothing(library: RecordedNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()

    def hanging(_folder: Path) -> list[DriverGpu]:
        gate.wait(30)
        return []

    monkeypatch.setattr("tocsin.collector.nvml.opening.driver_gpus", hanging)
    library.closed_indices[2] = Code.GPU_IS_LOST
    source = NvmlSource(library, PLACE, 0.3)
    assert told(source.read(T0))["GPU-unknown-node-1-2"] == {Missing.LOST}
    gate.set()
    source.close()


def test_a_library_that_says_no_later_is_tried_again(library: RecordedNvml) -> None:
    library.hung_calls[COUNT] = gate = threading.Event()
    library._of_library[COUNT] = lambda: refuse(Code.DRIVER_NOT_LOADED)
    source = NvmlSource(library, PLACE, 0.3)
    source.read(T0)
    gate.set()
    eventually(source, lambda batch: Missing.LOST in set.union(*told(batch).values()))
    library._of_library[COUNT] = lambda: 3
    assert len(source.read(T0 + 10_000 * SECOND).readings) == 3
    source.close()


def refuse(code: int) -> int:
    raise NvmlFailure(code)


def test_who_reads_but_once_waits_for_a_driver_that_is_slow(library: RecordedNvml) -> None:
    library.hung_calls[COUNT] = late = threading.Event()
    source = NvmlSource(library, PLACE, 10.0)
    assert isinstance(source, Settles)
    waiter = threading.Thread(target=source.settle)
    waiter.start()
    late.set()
    waiter.join(30)
    assert all(reading.values for reading in source.read(T0).readings)
    source.close()


def test_a_restarted_driver_whose_gpu_hangs_uses_no_handle_of_before(library: RecordedNvml) -> None:
    source = NvmlSource(library, PLACE, 0.3)
    source.read(T0)
    library.opened = False
    library.hung[1] = gate = threading.Event()
    batch = source.read(T0 + SECOND)
    assert [bool(reading.values) for reading in sorted(batch.readings, key=lambda r: r.gpu.index or 0)] == [1, 0, 1]
    gate.set()
    # A handle of the opening before would raise in the recorded library.
    assert len(eventually(source, lambda b: all(reading.values for reading in b.readings))[-1].readings) == 3
    source.close()


@settings(max_examples=40)
@given(
    st.one_of(st.integers(MOST_GPUS + 1, 1 << 64), st.integers(max_value=-1), st.sampled_from([1 << 31, 0xFFFFFFFF]))
)
def test_a_count_that_cannot_be_makes_no_gpus_and_hides_none(count: int) -> None:
    library = RecordedNvml(devices("h100-healthy"))
    library._of_library[COUNT] = lambda: count
    library.closed_indices = dict.fromkeys(range(3, MOST_GPUS), int(Code.INVALID_ARGUMENT))
    own = OwnMetrics()
    source = NvmlSource(library, PLACE, 10.0, own=own)
    batch = source.read(T0)
    assert len(batch.readings) == 3
    assert all(reading.values for reading in batch.readings)
    assert library.calls.count("nvmlDeviceGetHandleByIndex") <= MOST_GPUS
    assert own.value("tocsin_nvml_implausible_counts_total", what="gpu") == 2, "one at the start, one with the reading"
    source.close()


def test_a_count_that_turns_absurd_changes_nothing(library: RecordedNvml) -> None:
    source = NvmlSource(library, PLACE, 10.0)
    source.read(T0)
    calls = library.calls.count("nvmlDeviceGetHandleByIndex")
    library._of_library[COUNT] = lambda: 1 << 31
    for step in range(1, 10):
        assert len(source.read(T0 + step * SECOND).readings) == 3
    assert library.calls.count("nvmlDeviceGetHandleByIndex") == calls
    source.close()


def test_a_count_that_cannot_be_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    own = OwnMetrics()
    counts = PlausibleCounts(own)
    with caplog.at_level(logging.WARNING):
        assert [counts.gpus(answered) for answered in (-1, 1 << 31, 0, 8, MOST_GPUS)] == [
            (MOST_GPUS, True),
            (MOST_GPUS, True),
            (0, False),
            (8, False),
            (MOST_GPUS, False),
        ]
        assert counts.instances(1 << 31) == MOST_INSTANCES
    assert own.value("tocsin_nvml_implausible_counts_total", what="gpu") == 2
    assert own.value("tocsin_nvml_implausible_counts_total", what="mig") == 1


def test_mig_instances_beyond_any_gpu_are_not_asked_for(library: RecordedNvml) -> None:
    library.devices[0]["nvmlDeviceGetMigMode"] = {"value": [1, 1]}
    library.devices[0]["nvmlDeviceGetMaxMigDeviceCount"] = {"value": 1 << 31}
    source = NvmlSource(library, PLACE, 10.0)
    assert library.calls.count("nvmlDeviceGetMigDeviceHandleByIndex") == MOST_INSTANCES
    source.close()

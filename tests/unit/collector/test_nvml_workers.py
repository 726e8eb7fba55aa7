"""Threads that may be left behind, and what the source does with a GPU that hangs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from tocsin.collector.nvml import events as nvml_events
from tocsin.collector.nvml.library import Code
from tocsin.collector.nvml.source import ENUMERATE_MS, FIRST_RETRY_MS, MAX_STUCK_RETRY_MS, HungCalls, NvmlSource
from tocsin.collector.source import HasReaders, NodeIdentity
from tocsin.collector.workers import DriverThreads
from tocsin.domain.clock import HOUR, MINUTE
from tocsin.domain.errors import Unavailable
from tocsin.domain.event import EventKind
from tocsin.domain.reading import Missing, Reading
from tocsin_testing.builders import T0
from tocsin_testing.nvml_replay import RecordedNvml, devices

PLACE = NodeIdentity("node-1")


@pytest.fixture(autouse=True)
def quick_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing a source waits for its event thread, which waits in the driver."""
    monkeypatch.setattr(nvml_events, "WAIT_MS", 10)


@pytest.fixture
def workers() -> Iterator[DriverThreads[int]]:
    made: DriverThreads[int] = DriverThreads(patience=0.01)
    yield made
    made.close()


def gated(gate: threading.Event, result: int) -> Callable[[], int]:
    """A task that hangs until `gate` is set."""

    def task() -> int:
        gate.wait(30)
        return result

    return task


def stick(workers: DriverThreads[int], tasks: dict[str, Callable[[], int]]) -> None:
    """Run `tasks`, all of which hang or wait behind one that does, until a thread hangs in the first."""
    for _ in range(200):
        assert workers.run(tasks, 0.05) == {}
        if next(iter(tasks)) in workers.stuck:
            return
    raise AssertionError("no thread took the task")


def test_quick_tasks_share_one_thread(workers: DriverThreads[int]) -> None:
    patient: DriverThreads[threading.Thread] = DriverThreads(patience=10)
    for _ in range(3):
        used = patient.run({str(n): threading.current_thread for n in range(8)}, 10)
        assert len(used) == 8
        assert len(set(used.values())) == 1
        assert threading.current_thread() not in used.values()
    patient.close()
    for thread in set(used.values()):
        thread.join(10)
        assert not thread.is_alive()


def test_a_task_that_hangs_holds_up_the_others_for_the_patience_only(workers: DriverThreads[int]) -> None:
    gate = threading.Event()
    results = workers.run({"a": gated(gate, 1), "b": lambda: 2, "c": lambda: 3}, 1)
    assert results == {"b": 2, "c": 3}
    assert workers.stuck == {"a"}
    gate.set()
    assert workers.run({"d": lambda: 4}, 10) == {"d": 4}


def test_every_task_may_hang_but_one(workers: DriverThreads[int]) -> None:
    gate = threading.Event()
    tasks = {str(n): gated(gate, n) for n in range(7)}
    assert workers.run({**tasks, "last": lambda: 7}, 2) == {"last": 7}
    assert workers.stuck == set(tasks)
    gate.set()


def test_a_stuck_key_takes_no_task_and_its_late_result_counts_for_nothing(workers: DriverThreads[int]) -> None:
    gate = threading.Event()
    done = threading.Event()

    def slow() -> int:
        gate.wait(30)
        done.set()
        return 1

    stick(workers, {"a": slow})
    assert workers.run({"a": lambda: 2, "b": lambda: 3}, 10) == {"b": 3}
    gate.set()
    assert done.wait(10)
    for _ in range(1_000):
        if not workers.stuck:
            break
        workers.run({"b": lambda: 3}, 10)
    assert workers.run({"a": lambda: 2}, 10) == {"a": 2}


def test_an_abandoned_key_takes_tasks_again(workers: DriverThreads[int]) -> None:
    gate = threading.Event()
    stick(workers, {"a": gated(gate, 1)})
    workers.abandon("a")
    assert (workers.stuck, workers.left_behind) == (frozenset(), 1)
    assert workers.run({"a": lambda: 2}, 10) == {"a": 2}
    gate.set()
    for _ in range(1_000):
        if not workers.left_behind:
            break
        workers.run({"b": lambda: 3}, 10)
    assert workers.left_behind == 0


def test_a_task_without_a_thread_by_the_deadline_is_not_stuck() -> None:
    slow: DriverThreads[int] = DriverThreads(patience=60)
    gate = threading.Event()
    stick(slow, {"a": gated(gate, 1), "b": lambda: 2})
    assert slow.stuck == {"a"}
    gate.set()
    assert slow.run({"b": lambda: 2}, 10) == {"b": 2}
    slow.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_task_that_raises_costs_itself_alone(workers: DriverThreads[int]) -> None:
    def broken() -> int:
        raise RuntimeError("unforeseen")

    assert workers.run({"a": broken, "b": lambda: 2}, 10) == {"b": 2}
    assert workers.stuck == frozenset()
    assert workers.run({"a": lambda: 1}, 10) == {"a": 1}


def test_a_spell_is_retried_with_growing_pauses() -> None:
    stuck = HungCalls()
    stuck.note({"g"}, T0)
    assert not stuck.due("g", T0 + FIRST_RETRY_MS - 1)
    at, pauses = T0, []
    for step in range(1, 24 * 60):
        if stuck.due("g", T0 + step * MINUTE):
            pauses.append(T0 + step * MINUTE - at)
            at = T0 + step * MINUTE
    assert pauses[:6] == [5 * MINUTE, 10 * MINUTE, 20 * MINUTE, 40 * MINUTE, HOUR, HOUR]
    assert max(pauses) == MAX_STUCK_RETRY_MS
    stuck.note(set(), at)
    assert not stuck.due("g", at + HOUR)
    assert not stuck.uuids


class Hanging:
    """A source over three recorded GPUs, one of which can hang."""

    def __init__(self) -> None:
        self.library = RecordedNvml(devices("h100-healthy"))
        self.source = NvmlSource(self.library, PLACE, 10.0)
        self.source.read(T0)
        self.gates: list[threading.Event] = []

    def hang(self, device: int) -> None:
        """Let every call to `device` block."""
        gate = threading.Event()
        self.gates.append(gate)
        self.library.hung[device] = gate
        self.source.deadline_seconds = 0.6

    def heal(self, device: int) -> None:
        """New calls to `device` answer; those that hang go on hanging."""
        del self.library.hung[device]

    def read(self, at_ms: int) -> list[Reading]:
        return list(self.source.read(at_ms).readings)


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    made = Hanging()
    yield made
    for gate in made.gates:
        gate.set()
    made.source.close()


def test_stuck_readers_are_counted(hanging: Hanging) -> None:
    assert isinstance(hanging.source, HasReaders)
    assert hanging.source.stuck_readers == 0
    hanging.hang(1)
    hanging.hang(2)
    readings = hanging.read(T0 + 5_000)
    assert hanging.source.stuck_readers == 2
    assert readings[0].values
    assert {reason for r in readings[1:] for reason in r.missing.values()} == {Missing.TIMED_OUT}


def test_a_gpu_that_hangs_is_not_asked_again_until_its_call_is_back(hanging: Hanging) -> None:
    hanging.hang(1)
    hanging.read(T0 + 5_000)
    hanging.source.deadline_seconds = 30.0
    for step in range(2, 6):
        readings = hanging.read(T0 + step * 5_000)
        assert readings[0].values
        assert not readings[1].values, "and nobody waited for it"
    assert hanging.source.stuck_readers == 1


def test_a_gpu_that_hangs_for_good_is_opened_afresh_later(hanging: Hanging) -> None:
    hanging.hang(1)
    hanging.read(T0 + 5_000)
    hanging.heal(1)
    assert not hanging.read(T0 + 10_000)[1].values
    later = hanging.read(T0 + 5_000 + FIRST_RETRY_MS)
    assert later[1].values["gpu_temperature_celsius"] > 0
    assert hanging.source.stuck_readers == 1, "the thread that still hangs is told of"
    assert hanging.read(T0 + 10_000 + FIRST_RETRY_MS)[1].values
    hanging.gates[0].set()


def test_an_enumeration_passes_by_a_gpu_that_hangs(hanging: Hanging) -> None:
    hanging.hang(1)
    hanging.read(T0 + 5_000)
    uuids = [gpu.uuid for gpu in hanging.source.gpus()]
    batch = hanging.source.read(T0 + ENUMERATE_MS)
    assert sorted(gpu.uuid for gpu in hanging.source.gpus()) == sorted(uuids)
    assert not [e for e in batch.events if e.kind is not EventKind.XID], "it is neither lost nor found"
    assert len([reading for reading in batch.readings if reading.values]) == 2


def test_the_library_is_not_closed_under_a_call_that_hangs() -> None:
    made = Hanging()
    made.hang(1)
    made.read(T0 + 5_000)
    made.source.close()
    assert made.library.opened
    made.gates[0].set()


def test_a_library_that_does_not_open_is_unavailable_to_who_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tocsin.collector.nvml.source.OPEN_SECONDS", 0.05)
    library = RecordedNvml(devices("h100-healthy"))
    monkeypatch.setattr("tocsin.collector.nvml.source.START_SECONDS", 0.05)
    library.hung_calls["nvmlDeviceGetCount"] = gate = threading.Event()
    source = NvmlSource(library, PLACE)
    with pytest.raises(Unavailable, match=r"did not open: no answer within 0\.05 s; see whether `nvidia-smi` hangs"):
        source.settle()
    source.close()
    gate.set()


def test_while_a_gpu_is_lost_the_library_is_opened_anew_now_and_then() -> None:
    library = RecordedNvml(devices("h100-healthy"))
    source = NvmlSource(library, PLACE, 10.0)
    source.read(T0)
    library.failures[1, "*"] = Code.GPU_IS_LOST
    assert [e.kind for e in source.read(T0 + 5_000).events] == [EventKind.GPU_LOST]
    assert library.opening == 1
    assert source.read(T0 + ENUMERATE_MS).events == ()
    assert library.opening == 2, "handles of before the loss never see the GPU again"
    del library.failures[1, "*"]
    assert [e.kind for e in source.read(T0 + 2 * ENUMERATE_MS).events] == [EventKind.GPU_FOUND]
    assert library.opening == 3
    source.read(T0 + 3 * ENUMERATE_MS)
    assert library.opening == 3, "a whole fleet is not opened anew"
    source.close()


def test_a_listing_that_hangs_costs_no_readings_and_is_tried_again_later(hanging: Hanging) -> None:
    gate = threading.Event()
    hanging.gates.append(gate)
    hanging.library.hung_calls["nvmlDeviceGetCount"] = gate
    hanging.source.deadline_seconds = 0.6
    hanging.read(T0 + 5_000)
    hanging.source.deadline_seconds = 30.0
    assert all(reading.values for reading in hanging.read(T0 + 10_000)), "and nobody waited"
    assert hanging.source.stuck_readers == 1
    del hanging.library.hung_calls["nvmlDeviceGetCount"]
    hanging.library.devices.pop()
    assert len(hanging.read(T0 + 15_000)) == 3, "nobody can tell that one is gone"
    assert len(hanging.read(T0 + 5_000 + FIRST_RETRY_MS)) == 2

"""The hook inside a training process: what it samples, what it does when asked, and that it never gets in the way."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import tocsin.hook
from tocsin.domain.clock import ManualClock
from tocsin.hook import memory
from tocsin.hook.memory import TorchMemory, free_memory
from tocsin.hook.watch import LAST_PAUSE, Link, ProcessWatch
from tocsin_testing.fake_torch import MIB, UUID, block, install, segment
from tocsin_testing.hook_pair import EVERY, Pair, pair

HELD = [
    segment(block(60 * MIB, "active_allocated"), block(30 * MIB), block(10 * MIB)),
    segment(block(100 * MIB)),
    segment(block(100 * MIB)),
]


@pytest.fixture
def both(tmp_path: Path) -> Iterator[Pair]:
    with pair(tmp_path) as made:
        yield made


def figures(both: Pair) -> dict[str, float]:
    (process,) = both.server.processes()
    (entry,) = process.stats.devices
    return dict(entry.figures)


def test_a_sample_has_the_allocator_s_figures(both: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, HELD)
    both.settle()
    both.step(times=3)
    both.sample()
    (process,) = both.server.processes()
    assert process.stats.steps == 4
    (entry,) = process.stats.devices
    assert entry.framework == "torch"
    assert entry.device.uuid == UUID
    assert entry.device.pci == "00000000:41:00.0"
    assert entry.figures == {
        "allocated": 60 * MIB, "reserved": 300 * MIB, "active": 60 * MIB, "inactive_split": 40 * MIB,
        "requested": 45 * MIB, "retries": 0, "ooms": 0, "device_allocations": 3, "device_frees": 1,
        "free": 240 * MIB, "largest": 100 * MIB, "returnable": 200 * MIB,
        "group_largest": 100 * MIB,
    }  # fmt: skip


def test_steps_are_timed_and_the_newest_weigh_most(both: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, HELD)
    both.settle()
    both.step(100, times=20)
    both.step(200, times=60)
    both.sample()
    step_seconds = both.server.processes()[0].stats.step_seconds
    assert step_seconds is not None
    assert 0.19 < step_seconds < 0.8


def test_sampling_waits_for_the_end_of_a_step(both: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = install(monkeypatch, HELD)
    both.settle()
    both.step(times=2)
    both.sample()
    before = fake.cuda.snapshots, both.count("taken")
    both.clock.advance(int(1000 * EVERY))
    both.settle()
    assert (fake.cuda.snapshots, both.count("taken")) == before
    both.step()
    assert both.count("taken") == before[1] + 1


def test_a_process_that_does_not_step_is_sampled_all_the_same(both: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, HELD)
    both.settle()
    both.clock.advance(1500)
    both.settle()
    (process,) = both.server.processes()
    assert process.stats.steps == 0
    assert process.stats.step_seconds is None
    assert process.stats.devices


def test_without_an_agent_nothing_is_read_and_nothing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = install(monkeypatch, HELD)
    clock = ManualClock()
    watch = ProcessWatch(str(tmp_path / "none.sock"), EVERY, clock)
    for _ in range(100):
        clock.advance(1000)
        watch.turn()
        watch.step()
    assert watch.steps == 100
    assert watch.failures == 0
    assert fake.cuda.snapshots == 0


def test_attempts_to_connect_back_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = []
    link = Link(str(tmp_path / "none.sock"))
    monkeypatch.setattr(
        socket, "socket", lambda *args: tries.append(args) or (_ for _ in ()).throw(FileNotFoundError())
    )
    for second in range(300):
        link.ensure(float(second))
    assert 300 / LAST_PAUSE <= len(tries) <= 300 / LAST_PAUSE + 6
    assert not link.connected


def test_it_finds_an_agent_that_comes_back(both: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, HELD)
    both.settle()
    both.sample()
    assert both.server.processes()
    both.restart_server()
    assert not both.server.processes()
    both.sample()
    both.sample()
    assert figures(both)["reserved"] == 300 * MIB


def test_an_agent_that_takes_nothing_costs_messages_and_no_time(both: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, HELD)
    both.watch.turn()
    for _ in range(2000):
        both.clock.advance(6000)
        both.watch.turn()
        both.watch.step()
    assert both.watch.steps == 2000
    assert both.watch.failures == 0
    assert both.watch._link.lost > 0


def test_an_allocator_that_fails_never_reaches_the_script(both: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = install(monkeypatch, HELD)
    both.settle()

    def broken(ordinal: int) -> dict[str, Any]:
        raise RuntimeError("CUDA error: device-side assert triggered")

    fake.cuda.memory_stats_as_nested_dict = broken  # type: ignore[method-assign]
    for _ in range(3):
        both.sample()
    assert both.watch.failures >= 3
    assert both.watch.steps == 3


def test_only_the_first_living_optimizer_counts_until_the_script_counts_itself(both: Pair) -> None:
    class Optimizer:
        pass

    first, second = Optimizer(), Optimizer()
    for optimizer in (first, second, first):
        both.watch.after_optimizer(optimizer, (), {})
    assert both.watch.steps == 2
    del first, optimizer
    both.watch.after_optimizer(second, (), {})
    assert both.watch.steps == 3
    both.watch.step()
    both.watch.after_optimizer(second, (), {})
    assert both.watch.steps == 4


def test_a_failed_allocation_is_told(both: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = install(monkeypatch, HELD)
    both.settle()
    both.sample()
    (observer,) = fake.observers
    observer(0, 900 * MIB, 1000 * MIB, 50 * MIB)
    both.settle()
    ((_, _, oom),) = both.server.take_ooms()
    assert (oom.device.uuid, oom.requested, oom.free) == (UUID, 900 * MIB, 50 * MIB)


def test_a_snapshot_is_seldom_and_never_large(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = install(monkeypatch, HELD)
    clock = ManualClock()
    memory = TorchMemory(clock.monotonic, 30.0)

    def slow(include_traces: bool) -> list[dict[str, Any]]:
        clock.advance(40)
        fake.cuda.snapshots += 1
        return HELD

    fake.cuda.memory_snapshot = slow  # type: ignore[method-assign]
    for _ in range(150):
        memory.read()
        clock.advance(1000)
    # 40 ms may come back after 80 s at the earliest: 0.05 % of the time.
    assert fake.cuda.snapshots == 2
    fake.cuda.segments = [segment(*[block(512)] * 20_000)]
    clock.advance(100_000)
    (entry,) = memory.read()
    assert fake.cuda.snapshots == 2
    assert "free" not in entry
    assert entry["inactive_split"] > 0


def test_the_async_backend_s_zeros_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = install(monkeypatch, HELD)
    fake.cuda.backend = "cudaMallocAsync"
    (entry,) = TorchMemory(ManualClock().monotonic, 30.0).read()
    assert {key for key in entry if key not in ("framework", "uuid", "pci")} == {"reserved", "allocated", "active"}
    assert fake.cuda.snapshots == 0


def test_an_allocator_without_observers_is_sampled_all_the_same(both: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = install(monkeypatch, HELD)

    def unsupported(observer: object) -> None:
        raise RuntimeError("cudaMallocAsync does not yet support attachOutOfMemoryObserver")

    fake._C._cuda_attach_out_of_memory_observer = unsupported
    both.settle()
    both.sample()
    assert figures(both)["reserved"] == 300 * MIB
    assert both.watch.failures == 0


def test_free_segments_of_a_private_pool_do_not_come_back() -> None:
    graph = segment(block(6), pool=(0, 1))
    found = free_memory([segment(block(4)), graph, segment(block(3), pool=(0, 1), expandable=True)])
    assert found[0] == {"free": 13, "largest": 6, "returnable": 4, "group_largest": 4 + 6}


def test_cuda_that_is_not_in_use_is_not_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = install(monkeypatch, HELD)
    fake.cuda.initialized = False
    assert TorchMemory(ManualClock().monotonic, 30.0).read() == []


def test_devices_without_memory_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, [segment(block(MIB), device=2)], devices=4)
    (entry,) = TorchMemory(ManualClock().monotonic, 30.0).read()
    assert entry["uuid"].endswith("8")


def test_free_memory_of_pools_streams_and_expandable_segments() -> None:
    used = block(8, "active_allocated")
    found = free_memory(
        [
            segment(used, block(4), stream=0),
            segment(used, block(6), stream=1),
            segment(used, block(5), stream=1),
            segment(used, block(16), expandable=True, stream=2),
            segment(block(2), stream=0),
            segment(used, device=1),
        ]
    )
    assert found[0] == {
        "free": 33, "largest": 16, "returnable": 18, "group_largest": 4 + 6 + 16
    }  # fmt: skip
    assert found[1] == {"free": 0, "largest": 0, "returnable": 0, "group_largest": 0}


class Driver:
    """What libcuda answers for one device."""

    def __init__(self, answer: int = 0) -> None:
        self.answer = answer

    def cuDeviceGet(self, out: Any, ordinal: Any) -> int:  # noqa: N802
        out._obj.value = ordinal.value
        return self.answer

    def cuDeviceGetUuid_v2(self, out: Any, device: Any) -> int:  # noqa: N802
        out._obj[:] = bytes(range(16))
        return 0


def test_the_driver_names_the_device() -> None:
    assert memory.driver_uuid(0, lambda name: Driver()) == "00010203-0405-0607-0809-0a0b0c0d0e0f"
    assert memory.driver_uuid(0, lambda name: Driver(answer=3)) == ""
    assert memory.driver_uuid(0, lambda name: object()) == ""


def test_visible_devices_name_uuids_or_nothing() -> None:
    environment = {"CUDA_VISIBLE_DEVICES": "MIG-1234, GPU-5678"}
    assert memory.visible_uuid(1, environment) == "GPU-5678"
    assert memory.visible_uuid(2, environment) == ""
    assert memory.visible_uuid(0, {"CUDA_VISIBLE_DEVICES": "3"}) == ""


def fake_jax(monkeypatch: pytest.MonkeyPatch, stats: dict[str, int] | None, *, started: bool = True) -> None:
    device = SimpleNamespace(platform="gpu", local_hardware_id=0, memory_stats=lambda: stats)
    jax: Any = ModuleType("jax")
    jax.local_devices = lambda: [SimpleNamespace(platform="cpu"), device]
    bridge: Any = ModuleType("jax._src.xla_bridge")
    bridge.backends_are_initialized = lambda: started
    monkeypatch.setitem(sys.modules, "jax", jax)
    monkeypatch.setitem(sys.modules, "jax._src.xla_bridge", bridge)
    monkeypatch.setattr(memory, "driver_uuid", lambda ordinal: UUID)


def test_jax_tells_its_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_jax(
        monkeypatch,
        {"bytes_in_use": 40, "peak_bytes_in_use": 60, "bytes_limit": 100, "pool_bytes": 80,
         "largest_free_block_bytes": 30, "num_allocs": 7},
    )  # fmt: skip
    (entry,) = memory.JaxMemory().read()
    assert entry == {
        "framework": "jax", "uuid": UUID, "allocated": 40, "peak": 60, "limit": 100, "reserved": 80,
        "largest": 30, "free": 40,
    }  # fmt: skip


def test_jax_that_does_not_know_its_largest_block_says_nothing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_jax(monkeypatch, {"bytes_in_use": 40, "bytes_limit": 100, "largest_free_block_bytes": 0})
    (entry,) = memory.JaxMemory().read()
    assert not {"largest", "free"} & entry.keys()


def test_jax_is_not_started_by_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_jax(monkeypatch, {"bytes_in_use": 1}, started=False)
    assert memory.JaxMemory().read() == []
    fake_jax(monkeypatch, None)
    assert memory.JaxMemory().read() == []


def test_the_public_calls_are_safe_without_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOCSIN_HOOK_SOCKET", str(tmp_path / "none.sock"))
    tocsin.hook.stop()
    try:
        tocsin.hook.step()
        assert tocsin.hook.watch()
        assert tocsin.hook.watch()
        names = [thread.name for thread in threading.enumerate()]
        assert names.count("tocsin-hook") == 1
    finally:
        tocsin.hook.stop()
        tocsin.hook.stop()
    assert "tocsin-hook" not in [thread.name for thread in threading.enumerate()]


def test_a_variable_turns_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOCSIN_HOOK", "off")
    tocsin.hook.stop()
    assert not tocsin.hook.watch()
    tocsin.hook.step()
    assert "tocsin-hook" not in [thread.name for thread in threading.enumerate()]

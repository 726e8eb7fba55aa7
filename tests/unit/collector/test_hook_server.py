"""The agent's end of the hook: whom it believes, what it bounds, and what becomes of a reading."""

from __future__ import annotations

import os
import resource
import socket
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tocsin.collector.training_hook import server as hook_server
from tocsin.collector.training_hook.companion import OOM_REST_MS, find, open_hook
from tocsin.collector.training_hook.protocol import HookDevice
from tocsin.collector.training_hook.server import BURST, FLOOD, MIN_STALE_SECONDS, USER_BURST, HookServer
from tocsin.config.settings import AgentSettings, Settings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import ManualClock
from tocsin.domain.errors import Conflict, InputError
from tocsin.domain.event import EventKind
from tocsin.domain.metrics import spec_of, variant
from tocsin.domain.reading import Gpu, Owner, Reading, sanitise
from tocsin.hook.wire import DEFAULT_SOCKET, MAX_MESSAGE, pack
from tocsin.runtime.agent.companions import Companions, Context, find_companion
from tocsin.telemetry.metrics import OwnMetrics
from tocsin_testing.builders import T0
from tocsin_testing.fake_torch import UUID

GPU = Gpu(f"GPU-{UUID}", "node-1", index=0, pci_bus_id="00000000:41:00.0")
OTHER = Gpu("GPU-99999999-1111-2222-3333-444455556666", "node-1", index=1, pci_bus_id="00000000:42:00.0")
MIG = Gpu("MIG-abcdef01-1111-2222-3333-444455556666", "node-1", parent=OTHER.uuid, pci_bus_id="00000000:42:00.0")
ME = os.getpid()
MIB = 2**20

FIGURES = {
    "allocated": 60 * MIB, "reserved": 300 * MIB, "active": 60 * MIB, "inactive_split": 40 * MIB,
    "requested": 45 * MIB, "retries": 2, "ooms": 1, "device_allocations": 3, "device_frees": 1,
    "free": 240 * MIB, "largest": 100 * MIB, "returnable": 200 * MIB,
    "group_largest": 100 * MIB,
}  # fmt: skip


class Agent:
    """A server, and any number of clients that say what they like."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "hook.sock"
        self.clock = ManualClock(T0)
        self.own = OwnMetrics()
        self.server = HookServer(self.path, self.clock, self.own)
        self.companion = hook_companion(self)
        self.clients: list[socket.socket] = []

    def client(self) -> socket.socket:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        made.connect(str(self.path))
        self.clients.append(made)
        self.server.turn(0)
        return made

    def say(self, client: socket.socket, *packets: bytes) -> None:
        for packet in packets:
            client.send(packet)
            self.server.turn(0)

    def report(self, client: socket.socket, *devices: dict[str, Any], **more: Any) -> None:
        self.say(client, pack({"v": 1, "kind": "stats", "steps": 7, "devices": list(devices), **more}))

    def read(self, *readings: Reading) -> Batch:
        return self.companion.enrich(Batch(list(readings)), self.clock.now_ms())

    def count(self, outcome: str) -> float:
        return self.own.value("tocsin_hook_messages_total", outcome=outcome)

    def close(self) -> None:
        for client in self.clients:
            client.close()
        self.server.close()


def hook_companion(agent: Agent) -> Any:
    from tocsin.collector.training_hook.companion import HookCompanion

    return HookCompanion(agent.server, agent.own)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    made = Agent(tmp_path)
    yield made
    made.close()


def device(uuid: str = UUID, framework: str = "torch", **figures: float) -> dict[str, Any]:
    return {"framework": framework, "uuid": uuid, **(figures or FIGURES)}


def of_me(metric: str) -> str:
    return variant(metric, "pid", str(ME))


def test_a_reading_gets_the_metrics_of_its_processes(agent: Agent) -> None:
    client = agent.client()
    agent.report(client, device(), step_s=0.125)
    plain, other = agent.read(Reading(GPU, T0, {"gpu_power_watts": 300.0}), Reading(OTHER, T0, {})).readings
    assert dict(other.values) == {}
    assert dict(plain.values) == {
        "gpu_power_watts": 300.0,
        of_me("gpu_allocator_reserved_bytes"): 300 * MIB,
        of_me("gpu_allocator_allocated_bytes"): 60 * MIB,
        of_me("gpu_allocator_active_bytes"): 60 * MIB,
        of_me("gpu_allocator_requested_bytes"): 45 * MIB,
        of_me("gpu_allocator_inactive_split_bytes"): 40 * MIB,
        of_me("gpu_allocator_free_bytes"): 240 * MIB,
        of_me("gpu_allocator_largest_free_block_bytes"): 100 * MIB,
        of_me("gpu_allocator_retries_total"): 2,
        of_me("gpu_allocator_ooms_total"): 1,
        of_me("gpu_allocator_device_allocations_total"): 3,
        of_me("gpu_allocator_device_frees_total"): 1,
        of_me("gpu_allocator_cache_slack_ratio"): 0.8,
        of_me("gpu_allocator_split_fragmentation_ratio"): pytest.approx(40 / 300),
        of_me("gpu_allocator_internal_fragmentation_ratio"): 0.25,
        of_me("gpu_allocator_external_fragmentation_ratio"): pytest.approx(1 - 200 / 240),
        of_me("gpu_allocator_block_fragmentation_ratio"): pytest.approx(1 - 100 / 240),
        of_me("gpu_process_steps_total"): 7,
        of_me("gpu_process_step_seconds"): 0.125,
        "gpu_allocator_cached_bytes": 240 * MIB,
        "gpu_allocator_processes": 1,
    }
    assert sanitise(plain)[1] == []
    assert all(spec_of(name) is not None for name in plain.values)


def test_frameworks_of_one_process_add_up(agent: Agent) -> None:
    agent.report(
        agent.client(),
        device(reserved=100, allocated=40, largest=30, free=60),
        device(framework="jax", reserved=50, allocated=50, largest=10, free=10),
    )
    (found,) = agent.read(Reading(GPU, T0, {})).readings
    assert found.values[of_me("gpu_allocator_reserved_bytes")] == 150
    assert found.values[of_me("gpu_allocator_largest_free_block_bytes")] == 30
    assert found.values["gpu_allocator_cached_bytes"] == 60
    assert found.values["gpu_allocator_processes"] == 1


def test_the_largest_piece_is_that_of_either_framework(agent: Agent) -> None:
    jax = device(framework="jax", reserved=50, allocated=10, largest=30, free=40)
    agent.report(agent.client(), device(reserved=60, allocated=0, largest=10, free=60, returnable=20), jax)
    (found,) = agent.read(Reading(GPU, T0, {})).readings
    assert found.values[of_me("gpu_allocator_external_fragmentation_ratio")] == pytest.approx(1 - 30 / 100)


def test_contradicting_figures_give_no_ratio(agent: Agent) -> None:
    agent.report(agent.client(), device(reserved=10, allocated=40, largest=30, free=20))
    (found,) = agent.read(Reading(GPU, T0, {})).readings
    assert of_me("gpu_allocator_reserved_bytes") in found.values
    assert of_me("gpu_allocator_cache_slack_ratio") not in found.values
    assert of_me("gpu_allocator_external_fragmentation_ratio") not in found.values


def test_a_batch_is_left_alone_where_nobody_reports(agent: Agent) -> None:
    batch = Batch([Reading(GPU, T0, {})])
    assert agent.companion.enrich(batch, T0) is batch
    agent.client()
    assert agent.companion.enrich(batch, T0) is batch


def test_a_silent_process_leaves(agent: Agent) -> None:
    client = agent.client()
    agent.say(client, pack({"v": 1, "kind": "hello", "process": "train.py", "every_s": 5}))
    agent.report(client, device())
    agent.clock.advance(int(1000 * MIN_STALE_SECONDS))
    assert [state.process for state in agent.server.processes()] == ["train.py"]
    agent.clock.advance(1)
    assert agent.server.processes() == []
    agent.report(client, device())
    assert len(agent.server.processes()) == 1


def test_a_process_that_exits_leaves_at_once(agent: Agent) -> None:
    client = agent.client()
    agent.report(client, device())
    assert agent.own.value("tocsin_hook_processes") == 1
    client.close()
    agent.server.turn(0)
    assert agent.server.processes() == []
    assert agent.own.value("tocsin_hook_processes") == 0


def test_a_gpu_is_found_by_uuid_prefix_or_address() -> None:
    gpus = [GPU, OTHER, MIG]
    assert find(HookDevice(UUID.upper()), gpus) == GPU
    assert find(HookDevice(f"GPU-{UUID[:8]}"), gpus) == GPU
    assert find(HookDevice(MIG.uuid.removeprefix("MIG-")), gpus) == MIG
    assert find(HookDevice("", "00000000:42:00.0"), gpus) == OTHER
    assert find(HookDevice("", "nonsense"), gpus) is None
    assert find(HookDevice("5f2a", "00000000:43:00.0"), gpus) is None
    twin = replace(GPU, uuid=GPU.uuid[:-1] + "7")
    assert find(HookDevice(UUID[:8]), [GPU, twin]) is None


def test_nobody_speaks_for_a_gpu_that_it_is_not_on(agent: Agent) -> None:
    agent.report(agent.client(), device())
    (taken,) = agent.read(Reading(GPU, T0, {variant("gpu_process_memory_used_bytes", "pid", "1"): 5.0})).readings
    assert len(taken.values) == 1
    assert agent.count("not_on_gpu") == 1
    (owned,) = agent.read(Reading(GPU, T0, {}, owners=(Owner(ME), Owner(1)))).readings
    assert of_me("gpu_allocator_reserved_bytes") in owned.values


def test_an_unknown_gpu_is_counted(agent: Agent) -> None:
    agent.report(agent.client(), device(uuid="12345678-9999"))
    (found,) = agent.read(Reading(GPU, T0, {})).readings
    assert dict(found.values) == {}
    assert agent.count("unknown_gpu") == 1


def test_failed_allocations_become_events_and_repeats_are_counted(agent: Agent) -> None:
    client = agent.client()
    packet = pack({"v": 1, "kind": "oom", "uuid": UUID, "requested": 900 * MIB, "limit": 1, "free": 50 * MIB})
    agent.say(client, packet, packet)
    (event,) = agent.read(Reading(GPU, T0, {})).events
    assert (event.kind, event.gpu, event.host, event.code) == (EventKind.ALLOCATOR_OOM, GPU.uuid, GPU.host, ME)
    assert event.message == (
        f"process {ME} asked for 900 MiB of GPU memory and did not get it: 50 MiB were free on the GPU"
    )
    assert agent.count("repeated") == 1
    agent.clock.advance(OOM_REST_MS)
    agent.say(client, packet)
    assert len(agent.read(Reading(GPU, T0, {})).events) == 1


def test_the_kernel_says_who_speaks(agent: Agent) -> None:
    agent.report(agent.client(), device(), pid=1)
    (state,) = agent.server.processes()
    assert (state.pid, state.uid) == (ME, os.getuid())


def test_a_process_of_another_namespace_is_refused(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hook_server, "credentials", lambda connection: (0, 1000))
    client = agent.client()
    assert client.recv(10) == b""
    assert agent.own.value("tocsin_dropped_total", what="connection", reason="pid_of_another_namespace") == 1


@pytest.mark.parametrize(
    ("limit", "reason"), [("MAX_CONNECTIONS", "too_many"), ("MAX_PER_USER", "too_many_of_one_user")]
)
def test_connections_are_bounded(agent: Agent, monkeypatch: pytest.MonkeyPatch, limit: str, reason: str) -> None:
    monkeypatch.setattr(hook_server, limit, 2)
    for _ in range(3):
        agent.client()
    assert agent.clients[2].recv(10) == b""
    assert agent.own.value("tocsin_dropped_total", what="connection", reason=reason) == 1
    agent.report(agent.clients[0], device())
    assert len(agent.server.processes()) == 1


def test_a_flood_is_counted_then_cut_off(agent: Agent) -> None:
    client = agent.client()
    packet = pack({"v": 1, "kind": "hello", "process": "x", "every_s": 1})
    sent = 0
    while sent < 3 * FLOOD:
        try:
            agent.say(client, packet)
        except OSError:
            break
        sent += 1
    assert FLOOD < sent < 2 * FLOOD
    assert agent.count("too_fast") == FLOOD
    assert agent.count("taken") < 100


def test_many_connections_of_one_user_share_one_allowance(agent: Agent) -> None:
    packet = pack({"v": 1, "kind": "hello", "process": "x", "every_s": 1})
    for _ in range(int(USER_BURST / BURST) + 3):
        agent.say(agent.client(), *[packet] * int(BURST))
    assert agent.count("taken") == USER_BURST
    assert agent.count("too_fast") == 3 * BURST
    agent.clock.advance(1000)
    agent.say(agent.clients[-1], packet)
    assert agent.count("taken") == USER_BURST + 1


def test_two_connections_of_one_process_are_one_process(agent: Agent) -> None:
    for reserved in (10, 30):
        agent.clock.advance(1)
        agent.report(agent.client(), device(reserved=reserved, allocated=0))
    (found,) = agent.read(Reading(GPU, T0, {})).readings
    assert found.values["gpu_allocator_processes"] == 1
    assert found.values["gpu_allocator_cached_bytes"] == 30


def test_without_descriptors_it_pauses_and_takes_the_connection_later(agent: Agent) -> None:
    first = agent.client()
    agent.report(first, device())
    open_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    waiting = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    agent.clients.append(waiting)
    paused: list[float | None] = []
    agent.server._closing.wait = paused.append  # type: ignore[assignment,method-assign]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (waiting.fileno(), open_files[1]))
        waiting.connect(str(agent.path))
        agent.server.turn(0)
        assert paused == [hook_server.FULL_SECONDS]
        agent.report(first, device())
        assert len(agent.server.processes()) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, open_files)
    agent.server.turn(0)
    assert agent.own.value("tocsin_hook_processes") == 2


def test_an_oversized_packet_is_dropped(agent: Agent) -> None:
    client = agent.client()
    agent.say(client, b'{"v":1,"kind":"hello","every_s":1,"process":"' + b"x" * MAX_MESSAGE + b'"}')
    assert agent.count("malformed") == 1
    agent.report(client, device())
    assert len(agent.server.processes()) == 1


def test_anybody_on_the_node_may_connect(agent: Agent) -> None:
    assert stat.S_IMODE(agent.path.stat().st_mode) == 0o666


def test_a_leftover_is_replaced_and_a_living_agent_is_not(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "hook.sock"
    path.parent.mkdir()
    dead = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    dead.bind(str(path))
    dead.close()
    first = HookServer(path, ManualClock(), OwnMetrics())
    with pytest.raises(Conflict, match="another agent listens there"):
        HookServer(path, ManualClock(), OwnMetrics())
    first.close()
    first.close()
    assert not path.exists()


def test_a_missing_folder_is_made_for_everybody(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        server = HookServer(tmp_path / "run" / "hook.sock", ManualClock(), OwnMetrics())
    finally:
        os.umask(before)
    assert stat.S_IMODE(server.path.parent.stat().st_mode) == 0o755
    assert stat.S_IMODE(server.path.stat().st_mode) == 0o666
    server.close()


def test_what_another_agent_put_at_the_path_since_stays(tmp_path: Path) -> None:
    first = HookServer(tmp_path / "s", ManualClock(), OwnMetrics())
    first.path.unlink()
    second = HookServer(tmp_path / "s", ManualClock(), OwnMetrics())
    first.close()
    assert second.path.exists()
    second.close()
    assert not second.path.exists()


def test_a_path_that_cannot_be_used_is_said(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    for path in (file, tmp_path / ("x" * 200), file / "below"):
        with pytest.raises(InputError, match=r"agent\.hook_socket"):
            HookServer(path, ManualClock(), OwnMetrics())
    assert file.read_text() == "mine"


def test_it_is_opened_by_settings(tmp_path: Path) -> None:
    assert open_hook(AgentSettings(hook_socket=""), ManualClock(), OwnMetrics()) is None
    made = open_hook(AgentSettings(hook_socket=str(tmp_path / "s")), ManualClock(), OwnMetrics())
    assert made is not None
    made.close()
    made.close()
    assert not (tmp_path / "s").exists()


def test_agent_and_process_meet_by_default() -> None:
    assert AgentSettings().hook_socket == DEFAULT_SOCKET


@pytest.mark.parametrize(("source", "opened"), [("nvml", True), ("simulated", False), ("replay", False)])
def test_only_sources_of_this_node_open_it(tmp_path: Path, source: str, opened: bool) -> None:
    settings = Settings(agent=AgentSettings(hook_socket=str(tmp_path / "s")))
    around = Context(settings, ManualClock(), OwnMetrics(), source)
    companions = Companions(around, [("hook", find_companion("hook"))])
    assert (tmp_path / "s").exists() == opened
    companions.close()

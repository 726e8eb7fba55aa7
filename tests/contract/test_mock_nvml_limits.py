"""Limits through ctypes: the agent's port on the mock library, and an agent's hands that are killed at any instant."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from tocsin.collector.nvml.library import PynvmlLibrary
from tocsin.collector.nvml.limits import NvmlLimits
from tocsin.collector.nvml.reset import reset_check
from tocsin.domain.power import LimitFailure, Obstacle
from tocsin_testing.mock_gpus import a100, h100, split
from tocsin_testing.mock_nvml import MockFleet
from tocsin_testing.node_world import Node

SETTER = "nvmlDeviceSetPowerManagementLimit"


class LimitedNode:
    """A node of two GPUs, its port, and a limit writer over both."""

    def __init__(self, fleet: MockFleet, folder: Path) -> None:
        self.fleet = fleet
        self.port = NvmlLimits(PynvmlLibrary())
        self.gpu = fleet.gpus[0].uuid
        self.node = Node(folder, power=self.port)  # type: ignore[arg-type]
        self.order = self.node.order(gpu=self.gpu)

    def hold(self, watts: int) -> int:
        write = self.node.keeper.hold(self.order, watts * 1000)
        assert write.after is not None
        return write.after.enforced_mw // 1000

    @property
    def watts(self) -> int:
        return self.port.limits(self.gpu).current_mw // 1000


@pytest.fixture
def node(tmp_path: Path) -> Iterator[LimitedNode]:
    fleet = MockFleet(tmp_path, [h100(0), h100(1)])
    with fleet.loaded():
        made = LimitedNode(fleet, tmp_path / "limits")
        yield made
        made.port.release()


def test_a_limit_is_set_read_back_and_given_back(node: LimitedNode) -> None:
    assert node.hold(500) == 500
    assert node.hold(150) == 200, "the least that the GPU allows"
    node.node.restart()
    assert node.watts == 700


def test_the_wrapper_that_never_looks_at_the_answer_is_not_used(node: LimitedNode) -> None:
    node.hold(500)
    assert node.fleet.calls(SETTER) == 1
    assert node.fleet.calls("nvmlDeviceSetPowerManagementLimit_v2") == 0


def test_neither_fans_nor_application_clocks_are_ever_set(node: LimitedNode) -> None:
    node.hold(500)
    node.node.keeper.lock(node.order, 1200)
    node.node.keeper.restore_all()
    setters = {name for name in node.fleet.all_calls() if "Set" in name or "Reset" in name}
    assert setters == {SETTER, "nvmlDeviceSetGpuLockedClocks", "nvmlDeviceResetGpuLockedClocks"}


@pytest.mark.parametrize(
    ("code", "obstacle"),
    [
        ("NO_PERMISSION", Obstacle.PERMISSION),
        ("NOT_SUPPORTED", Obstacle.UNSUPPORTED),
        ("GPU_IS_LOST", Obstacle.LOST),
        ("DRIVER_NOT_LOADED", Obstacle.DRIVER),
        ("UNKNOWN", Obstacle.REFUSED),
        ("777", Obstacle.REFUSED),
    ],
)
def test_a_setter_that_fails_says_why_and_leaves_the_limit(
    node: LimitedNode, code: str, obstacle: Obstacle, monkeypatch: pytest.MonkeyPatch
) -> None:
    # pynvml remembers every number that it has met as an error of its own.
    monkeypatch.setattr(pynvml.NVMLError, "_errcode_to_string", dict(pynvml.NVMLError._errcode_to_string))
    node.fleet.gpus[0].fail(SETTER, code)
    node.fleet.apply()
    with pytest.raises(LimitFailure) as failure:
        node.hold(500)
    assert failure.value.obstacle is obstacle
    node.fleet.heal()
    node.node.restart()
    assert (node.watts, node.node.markers) == (700, [])


def test_a_setter_that_is_ignored_is_found_out(node: LimitedNode) -> None:
    node.fleet.gpus[0].ignore(SETTER)
    node.fleet.apply()
    with pytest.raises(LimitFailure, match="700 W is in force"):
        node.hold(500)
    assert node.node.markers == []


def test_a_setter_that_does_something_else_is_undone(node: LimitedNode) -> None:
    node.fleet.gpus[0].set(SETTER, to=333_000)
    node.fleet.apply()
    with pytest.raises(LimitFailure, match="333 W"):
        node.hold(500)
    node.fleet.gpus[0].forget(SETTER)
    node.fleet.apply()
    node.node.restart()
    assert node.watts == 700


def test_a_gpu_lost_between_setting_and_reading_back(node: LimitedNode) -> None:
    node.hold(600)
    node.fleet.gpus[0].fail("nvmlDeviceGetPowerManagementLimit", "GPU_IS_LOST")
    node.fleet.apply()
    with pytest.raises(LimitFailure):
        node.hold(500)
    assert node.node.keeper.restore_all() == (node.gpu,)
    node.fleet.heal()
    assert node.node.keeper.restore_all() == ()
    assert node.watts == 700


def test_a_reloaded_driver_is_opened_anew_and_has_forgotten_the_limit(node: LimitedNode) -> None:
    node.hold(500)
    node.fleet.reload()
    assert node.watts == 700
    assert node.fleet.stale_handles <= 1
    node.node.restart()
    assert (node.watts, node.node.markers) == (700, [])


def test_heat_is_read_with_margin_and_slowdown(node: LimitedNode) -> None:
    heat = node.port.heat(node.gpu)
    assert (heat.slowdown_c, heat.margin_c is not None, heat.power_w is not None) == (89.0, True, True)
    assert 55 < heat.temperature_c < 65


def test_clocks_are_locked_below_and_unlocked(node: LimitedNode) -> None:
    found = node.port.clocks(node.gpu)
    assert (found.low_mhz, found.high_mhz, found.held) == (210, 1980, False)
    node.node.keeper.lock(node.order, 1200)
    assert node.port.clocks(node.gpu).now_mhz == 1200
    node.node.keeper.restore_all()
    assert node.port.clocks(node.gpu).now_mhz > 1900


def test_clocks_that_somebody_set_are_seen(node: LimitedNode) -> None:
    node.fleet.gpus[0].set("nvmlDeviceGetCurrentClocksEventReasons", to=0x2)
    node.fleet.apply()
    with pytest.raises(LimitFailure, match="locked by another setting"):
        node.node.keeper.lock(node.order, 1200)


def test_another_uuid_is_nobodys(node: LimitedNode) -> None:
    with pytest.raises(LimitFailure) as failure:
        node.port.limits("GPU-00000000-0000-0000-0000-000000000000")
    assert failure.value.obstacle is Obstacle.UNKNOWN_GPU


def test_what_is_let_go_holds_no_handle(node: LimitedNode) -> None:
    node.hold(500)
    node.port.release()
    assert node.fleet.opens == node.fleet.closes
    assert node.watts == 500


def test_what_stands_against_a_reset(tmp_path: Path) -> None:
    fleet = MockFleet(tmp_path, [h100(0), a100(1), a100(2), split(h100(3), "3g.40gb", "1g.10gb")])
    for number in (1, 2):
        fleet.gpus[number].set("nvmlDeviceGetArchitecture", to=7)  # Ampere
    fleet.apply()
    with fleet.loaded():
        port = NvmlLimits(PynvmlLibrary())
        alone, linked, _, parted = (port.on_gpu(fleet.gpus[n].uuid, reset_check) for n in range(4))
        port.release()
    assert alone.processes == ("process 40000",)
    assert alone.peers == (fleet.gpus[0].uuid,), "from Hopper on a GPU is reset alone"
    assert {fleet.gpus[1].uuid, fleet.gpus[2].uuid} <= set(linked.peers)
    assert parted.mig_instances == 2


def test_a_list_of_processes_that_cannot_be_had_counts_as_one(tmp_path: Path) -> None:
    fleet = MockFleet(tmp_path, [h100(0)])
    fleet.gpus[0].processes.clear()
    fleet.gpus[0].fail("nvmlDeviceGetGraphicsRunningProcesses_v3", "NO_PERMISSION")
    fleet.apply()
    with fleet.loaded():
        port = NvmlLimits(PynvmlLibrary())
        found = port.on_gpu(fleet.gpus[0].uuid, reset_check)
        port.release()
    assert len(found.processes) == 1
    assert "does not tell" in found.processes[0]


WORKER = """
import sys
from pathlib import Path
from tocsin.actions.node.limit_writer import LimitWriter
from tocsin.actions.node.markers import MarkerFolder
from tocsin.collector.nvml.library import PynvmlLibrary
from tocsin.collector.nvml.limits import NvmlLimits
from tocsin.domain.clock import SystemClock
from tocsin.domain.finding import ActionKind
from tocsin.domain.order import Order
from tocsin.telemetry.log import configure_logging
configure_logging("error", "console")
writer = LimitWriter(NvmlLimits(PynvmlLibrary()), MarkerFolder(Path(sys.argv[1])), SystemClock(), "boot-1")
turn = 0
while True:
    for gpu in sys.argv[2:]:
        order = Order(f"k{turn}", "d", "node-1", gpu, ActionKind.THROTTLE, 0, 1)
        writer.hold(order, 650_000 - 50_000 * (turn % 6))
        if turn % 5 == 4:
            writer.restore(gpu)
    print(turn, flush=True)
    turn += 1
"""


@pytest.mark.parametrize("seed", range(2))
def test_hands_that_are_killed_leave_no_limit_behind(tmp_path: Path, seed: int) -> None:
    """The limits live in the mock driver, which outlives the process; a later process gives all of them back."""
    fleet = MockFleet(tmp_path, [h100(0), h100(1)])
    uuids = [fleet.gpus[n].uuid for n in range(2)]
    with fleet.loaded():
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByUUID(uuid) for uuid in uuids]
        pynvml.nvmlDeviceSetPowerManagementLimit(handles[1], 680_000)
        rng = random.Random(seed)
        lowered = 0
        for _ in range(6):
            command = [sys.executable, "-c", WORKER, str(tmp_path / "limits"), *uuids]
            env = os.environ | fleet.environment()
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:
                assert process.stdout is not None
                for _ in range(rng.randint(1, 12)):
                    assert process.stdout.readline()
                # Somewhere within the next turn, at no instant of the test's choosing.
                for _ in range(rng.randint(0, 200_000)):
                    pass
                process.send_signal(signal.SIGKILL)
            found = [pynvml.nvmlDeviceGetPowerManagementLimit(handle) for handle in handles]
            lowered += found != [700_000, 680_000]
            node = Node(tmp_path / "limits", power=NvmlLimits(PynvmlLibrary()))  # type: ignore[arg-type]
            found = [pynvml.nvmlDeviceGetPowerManagementLimit(handle) for handle in handles]
            assert found == [700_000, 680_000]
            assert node.markers == []
        assert lowered, "no process was killed while a limit was lowered"
        pynvml.nvmlShutdown()

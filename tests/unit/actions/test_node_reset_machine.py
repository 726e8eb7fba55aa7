"""A reset on the machine: who holds the GPU, the release file, the tool."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from tocsin.actions.node.reset import run_reset
from tocsin.collector.nvml.library import Code, NvmlFailure, PynvmlLibrary
from tocsin.collector.nvml.limits import NvmlLimits
from tocsin.collector.nvml.reset import _LISTS, HOPPER, ResetCheck, reset_check
from tocsin.config.settings import Settings
from tocsin.domain.clock import SystemClock
from tocsin.domain.errors import InputError, Unavailable
from tocsin.runtime.agent.order_worker import ResetMachine
from tocsin_testing.mock_gpus import h100
from tocsin_testing.mock_nvml import MockFleet


def machine(folder: Path, command: Sequence[str] = ("nvidia-smi",), **node: float) -> ResetMachine:
    proc = folder / "proc"
    (proc / "7" / "fd").mkdir(parents=True, exist_ok=True)
    (proc / "7" / "comm").write_text("dcgm\n")
    values = {
        "agent": {"release_file": str(folder / "release"), "proc": str(proc)},
        "node": {"reset_command": list(command), "clients_seconds": 0.01, **node},
    }
    ended = threading.Event()
    ended.set()
    return ResetMachine(NvmlLimits(PynvmlLibrary()), Settings.model_validate(values), SystemClock(), ended)


def test_holders_are_those_with_a_gpu_open(tmp_path: Path) -> None:
    made = machine(tmp_path)
    link = tmp_path / "proc" / "7" / "fd" / "3"
    link.symlink_to("/dev/null")
    assert made.holders(fabric=False) == []
    link.unlink()
    link.symlink_to("/dev/nvidia0")
    assert made.holders(fabric=False) == ["dcgm (7)"]


@pytest.mark.parametrize(
    ("device", "alone", "together"),
    [
        ("/dev/nvidiactl", True, True),
        ("/dev/nvidia-uvm-tools", True, True),
        ("/dev/nvidia-caps/nvidia-cap2", True, True),
        ("/dev/nvidia-nvswitchctl", False, True),
        ("/dev/nvidia-nvswitch3", False, True),
        ("/dev/nvidia-fs0", False, False),
    ],
)
def test_the_fabric_manager_counts_where_gpus_are_reset_together(
    tmp_path: Path, device: str, alone: bool, together: bool
) -> None:
    made = machine(tmp_path)
    (tmp_path / "proc" / "7" / "fd" / "3").symlink_to(device)
    assert (bool(made.holders(fabric=False)), bool(made.holders(fabric=True))) == (alone, together)


class Answers:
    """A driver that answers each function by name; an exception is raised."""

    def __init__(self, **answers: object) -> None:
        self.answers = {"nvmlDeviceGetUUID": "GPU-a", "nvmlDeviceGetCount": 1, **answers}

    def call(self, function: str, *arguments: object) -> object:
        found = self.answers.get(function, NvmlFailure(Code.NOT_SUPPORTED, function))
        if isinstance(found, NvmlFailure):
            raise found
        return found


def stands(**answers: object) -> ResetCheck:
    lists = dict.fromkeys(_LISTS, ())
    return reset_check(Answers(**{**lists, **answers}), "handle")  # type: ignore[arg-type]


def test_what_the_driver_does_not_tell_stands_against_a_reset() -> None:
    unknown = NvmlFailure(999, "unknown error")
    assert stands() == ResetCheck((), 0, ("GPU-a",))
    assert stands(nvmlDeviceGetMigMode=(1, 1)).mig_instances == 1
    two = {"nvmlDeviceGetMigMode": (1, 1), "nvmlDeviceGetMaxMigDeviceCount": 2}
    assert stands(**two).mig_instances == 0
    assert stands(**two, nvmlDeviceGetMigDeviceHandleByIndex=unknown).mig_instances == 2
    assert stands(nvmlDeviceGetComputeRunningProcesses=unknown).processes


def test_a_link_whose_state_is_unknown_ties_gpus_together() -> None:
    unknown = NvmlFailure(999, "unknown error")
    linked = {"nvmlDeviceGetNvLinkState": unknown, "nvmlDeviceGetHandleByIndex": "other"}
    assert stands(**linked).peers == ("GPU-a",)
    assert stands(**linked, nvmlDeviceGetArchitecture=HOPPER).peers == ("GPU-a",)
    with pytest.raises(NvmlFailure):
        stands(nvmlDeviceGetNvLinkState=1, nvmlDeviceGetHandleByIndex=NvmlFailure(Code.GPU_IS_LOST, "lost"))


def test_the_release_file_is_there_for_the_time_and_then_gone(tmp_path: Path) -> None:
    made = machine(tmp_path)
    made.ask_clients_to_let_go()
    assert (tmp_path / "release").exists()
    assert made.pause() is False
    made.take_back()
    made.take_back()
    assert not (tmp_path / "release").exists()


def test_a_release_file_of_somebody_elses_stays(tmp_path: Path) -> None:
    (tmp_path / "release").touch()
    made = machine(tmp_path)
    made.ask_clients_to_let_go()
    made.take_back()
    assert (tmp_path / "release").exists()


def test_a_release_file_that_cannot_be_made_stops_the_reset(tmp_path: Path) -> None:
    made = machine(tmp_path / "there")
    (tmp_path / "there" / "proc").rename(tmp_path / "proc")
    (tmp_path / "there").rmdir()
    with pytest.raises(InputError, match=r"agent\.release_file"):
        made.ask_clients_to_let_go()


def test_the_tool_gets_the_uuids_and_its_words_come_back(tmp_path: Path) -> None:
    assert machine(tmp_path, ["echo", "did"]).reset(["GPU-a", "GPU-b"], dry=False) == "did -r -i GPU-a,GPU-b"


def test_a_dry_run_says_what_would_be_run(tmp_path: Path) -> None:
    said = machine(tmp_path, ["false"]).reset(["GPU-a"], dry=True)
    assert said == 'dry run, would have run: false -r -i GPU-a (for real with "reset" in node.allow)'


@pytest.mark.parametrize(
    ("command", "seconds", "problem"),
    [
        (["false"], 60.0, "false -r -i GPU-a ended with 1"),
        (["no-such-tool"], 60.0, "no-such-tool cannot be run"),
        (["sh", "-c", "exec sleep 60"], 0.05, "did not end within 0.05 s"),
    ],
)
def test_a_tool_that_fails_is_told(tmp_path: Path, command: list[str], seconds: float, problem: str) -> None:
    with pytest.raises(Unavailable, match=problem):
        machine(tmp_path, command, reset_seconds=seconds).reset(["GPU-a"], dry=False)


def test_the_whole_procedure_on_the_mock_driver(tmp_path: Path) -> None:
    fleet = MockFleet(tmp_path, [h100(0)])
    uuid = fleet.gpus[0].uuid
    with fleet.loaded():
        made = machine(tmp_path, ["echo"])
        refused = run_reset(made, uuid, drained=True, allowed=True)
        fleet.gpus[0].processes.clear()
        fleet.apply()
        done = run_reset(made, uuid, drained=True, allowed=True)
        assert fleet.opens == fleet.closes, "no handle is left open under a reset"
    assert (refused.ok, "process 40000" in refused.detail) == (False, True)
    assert (done.ok, done.done, done.detail) == (True, True, f"-r -i {uuid}")

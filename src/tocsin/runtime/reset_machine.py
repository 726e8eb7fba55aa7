"""What a reset of a GPU needs of the machine: who holds it open, the agent's release file, the driver's own tool."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from tocsin.actions.node.ports import ResetFacts
from tocsin.collector.nvml.library import Nvml
from tocsin.collector.nvml.reset import standing
from tocsin.config.settings import Settings
from tocsin.domain.clock import Clock
from tocsin.domain.errors import InputError, Unavailable

_DEVICE = re.compile(r"^/dev/nvidia(\d+|ctl|-uvm|-uvm-tools|-modeset|-caps/.+)$")
_WITH_FABRIC = re.compile(rf"{_DEVICE.pattern}|^/dev/nvidia-nvswitch(\d+|ctl)$")
LOOK_SECONDS = 1.0
SHOWN = 300


class Driver(Protocol):
    """What is asked of the driver; `on_gpu` raises LimitFailure."""

    def on_gpu(self, gpu: str, look: Callable[[Nvml, Any], Any]) -> Any:
        """What `look` finds with the library and the GPU's handle."""
        ...

    def release(self) -> None:
        """Let go of the driver until the next call."""
        ...


class ResetMachine:
    """The reset port over NVML, ``/proc`` and a child process. Runs in a thread of its own.

    `limits` is its own opening of NVML with a time box on each look, let go before the clients are asked to. `ended`
    ends every wait.
    """

    def __init__(self, limits: Driver, settings: Settings, clock: Clock, ended: threading.Event) -> None:
        self._limits = limits
        self._command = tuple(settings.node.reset_command)
        self._seconds = settings.node.reset_seconds
        self._clients_seconds = settings.node.clients_seconds
        self._proc = settings.agent.proc
        self._file = Path(settings.agent.release_file) if settings.agent.release_file else None
        self._clock = clock
        self._ended = ended
        self._until = 0.0
        self._made = False

    def facts(self, gpu: str) -> ResetFacts:
        found = self._limits.on_gpu(gpu, standing)
        return ResetFacts(found.processes, found.mig_instances, found.peers)

    def ask_clients_to_let_go(self) -> None:
        self._limits.release()
        self._until = self._clock.monotonic() + self._clients_seconds
        if self._file is None:
            raise InputError(
                "agent.release_file", "", "without it the agent itself keeps the GPU open", "set agent.release_file"
            )
        try:
            if not self._file.exists():
                self._file.touch()
                self._made = True
        except OSError as error:
            problem = f"cannot be made ({error.strerror or error})"
            raise InputError("agent.release_file", str(self._file), problem, "name a path it may write to") from None

    def take_back(self) -> None:
        self._limits.release()
        if self._made and self._file is not None:
            self._made = False
            with contextlib.suppress(OSError):
                self._file.unlink(missing_ok=True)

    def holders(self, *, fabric: bool) -> Sequence[str]:
        devices = _WITH_FABRIC if fabric else _DEVICE
        running = [folder for folder in self._proc.iterdir() if folder.name.isdigit()]
        return sorted(f"{_name(folder)} ({folder.name})" for folder in running if _holds(folder, devices))

    def pause(self) -> bool:
        return self._clock.monotonic() < self._until and not self._ended.wait(LOOK_SECONDS)

    def reset(self, gpus: Sequence[str], *, dry: bool) -> str:
        command = [*self._command, "-r", "-i", ",".join(gpus)]
        if dry:
            return f'dry run, would have run: {" ".join(command)} (for real with "reset" in node.allow)'
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=self._seconds)
        except subprocess.TimeoutExpired:
            raise Unavailable(f"{' '.join(command)} did not end within {self._seconds:g} s") from None
        except OSError as error:
            raise Unavailable(
                f"{command[0]} cannot be run ({error.strerror or error}); see node.reset_command"
            ) from None
        said = " ".join((done.stdout + done.stderr).split())[:SHOWN]
        if done.returncode != 0:
            raise Unavailable(f"{' '.join(command)} ended with {done.returncode}: {said}")
        return said or "reset"


def _holds(folder: Path, devices: re.Pattern[str]) -> bool:
    """Whether a process has a GPU open; one that may not be looked into is another user's and is not known to."""
    try:
        links = list((folder / "fd").iterdir())
    except OSError:
        return False
    for link in links:
        with contextlib.suppress(OSError):
            if devices.match(os.readlink(link)):  # noqa: PTH115  # a link to a device is not to be resolved further
                return True
    return False


def _name(folder: Path) -> str:
    try:
        return (folder / "comm").read_text().strip()
    except OSError:
        return "?"

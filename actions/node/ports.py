"""What the logic of a node needs of its driver, of its training processes and of its machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tocsin.domain.power import ClockRange, Heat, PowerLimits


class PowerPort(Protocol):
    """Limits of GPUs by UUID. Every method but `release` raises `tocsin.domain.power.LimitFailure`."""

    def limits(self, gpu: str) -> PowerLimits:
        """The power limits as they are."""

    def set_limit(self, gpu: str, milliwatts: int) -> None:
        """Ask for a power limit; whether it is in force is what `limits` says afterwards."""

    def heat(self, gpu: str) -> Heat:
        """Temperature, margin and power now."""

    def clocks(self, gpu: str) -> ClockRange:
        """The SM clocks that can be locked."""

    def lock_clocks(self, gpu: str, low_mhz: int, high_mhz: int) -> None:
        """Keep the SM clock within a range."""

    def unlock_clocks(self, gpu: str) -> None:
        """End any lock of the SM clock."""

    def release(self) -> None:
        """Let go of the driver until the next call; safe to repeat."""


@dataclass(frozen=True, slots=True)
class Asked:
    """How one training process answered a request: outcome `done` or why not."""

    pid: int
    outcome: str
    seconds: float
    detail: str


class HookPort(Protocol):
    """Requests to the training processes of this node."""

    def processes(self, gpu: str) -> int:
        """How many processes on a GPU would be asked. Raises TocsinError where none can be."""

    def request(self, gpu: str, kind: str, seconds: float) -> tuple[str, int]:
        """Ask every process on a GPU; the request's name and how many were asked. Raises TocsinError where none is."""

    def answers(self, request: str) -> Sequence[Asked]:
        """Those that have ended so far."""


@dataclass(frozen=True, slots=True)
class ResetFacts:
    """What decides whether a GPU may be reset. `peers` are the GPUs, itself among them, that must be reset together."""

    processes: tuple[str, ...] = ()
    mig_instances: int = 0
    peers: tuple[str, ...] = ()


class ResetPort(Protocol):
    """What a reset needs of the machine. `facts` raises LimitFailure, `reset` raises Unavailable."""

    def facts(self, gpu: str) -> ResetFacts:
        """What holds the GPU now."""

    def ask_clients_to_let_go(self) -> None:
        """Make the agent and whoever else follows its release file close the driver."""

    def take_back(self) -> None:
        """Withdraw that request; safe to repeat."""

    def holders(self, *, fabric: bool) -> Sequence[str]:
        """Processes that still hold a GPU of this node open, as ``name (pid)``; with `fabric` an NVSwitch too."""

    def pause(self) -> bool:
        """Wait a while for clients to let go; False where they have had their time, or the agent ends."""

    def reset(self, gpus: Sequence[str], *, dry: bool) -> str:
        """Reset GPUs by UUID; what the driver's tool said. With `dry` only what would be run. Raises Unavailable where
        it failed or did not end."""

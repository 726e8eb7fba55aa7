"""Limits of GPUs with a time box on every call: a driver that hangs on one GPU holds up that GPU's orders alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from tocsin.collector.nvml.library import Nvml
from tocsin.collector.nvml.limits import NvmlLimits
from tocsin.collector.nvml.workers import Workers
from tocsin.domain.power import ClockRange, Heat, LimitFailure, Obstacle, PowerLimits

T = TypeVar("T")

CALL_SECONDS = 5.0
"""How long one call may take: what readings are given too (own choice)."""


class BoundedPower:
    """The power port of `tocsin.actions.node`, each GPU behind an opening of NVML and a thread of its own.

    A call that does not come back within `seconds` fails as hung, and until it does the GPU's other calls fail so at
    once. It cannot be taken back: where it sets a limit after all, the marker that was written before it has the limit
    restored. `open_port` makes the opening of one GPU. Belongs to one thread.
    """

    def __init__(self, open_port: Callable[[], NvmlLimits], seconds: float = CALL_SECONDS) -> None:
        self._open_port = open_port
        self._seconds = seconds
        self._ports: dict[str, NvmlLimits] = {}
        self._workers: Workers[Any] = Workers()

    def limits(self, gpu: str) -> PowerLimits:
        return self._ask(gpu, lambda port: port.limits(gpu))

    def set_limit(self, gpu: str, milliwatts: int) -> None:
        self._ask(gpu, lambda port: port.set_limit(gpu, milliwatts))

    def heat(self, gpu: str) -> Heat:
        return self._ask(gpu, lambda port: port.heat(gpu))

    def clocks(self, gpu: str) -> ClockRange:
        return self._ask(gpu, lambda port: port.clocks(gpu))

    def lock_clocks(self, gpu: str, low_mhz: int, high_mhz: int) -> None:
        self._ask(gpu, lambda port: port.lock_clocks(gpu, low_mhz, high_mhz))

    def unlock_clocks(self, gpu: str) -> None:
        self._ask(gpu, lambda port: port.unlock_clocks(gpu))

    def on_gpu(self, gpu: str, look: Callable[[Nvml, Any], Any]) -> Any:
        """What `look` finds with the library and the GPU's handle. Raises LimitFailure."""
        return self._ask(gpu, lambda port: port.on_gpu(gpu, look))

    def release(self) -> None:
        """Let go of the driver; a GPU whose call is still out keeps its opening until it comes back."""
        for gpu, port in list(self._ports.items()):
            if self._workers.run({gpu: port.release}, self._seconds):
                del self._ports[gpu]

    def close(self) -> None:
        """Let go, and let the threads end; safe to repeat."""
        self.release()
        self._workers.close()

    def _ask(self, gpu: str, call: Callable[[NvmlLimits], T]) -> T:
        port = self._ports.get(gpu)
        if port is None:
            port = self._ports[gpu] = self._open_port()
        found = self._workers.run({gpu: lambda: _tried(call, port)}, self._seconds)
        if gpu not in found:
            text = f"{gpu}: a call into the driver has not come back within {self._seconds:g} s"
            raise LimitFailure(Obstacle.HUNG, f"{text}; see whether nvidia-smi answers, a reboot ends it otherwise")
        value, failure = found[gpu]
        if failure is not None:
            raise failure
        answer: T = value
        return answer


def _tried(call: Callable[[NvmlLimits], T], port: NvmlLimits) -> tuple[T | None, LimitFailure | None]:
    try:
        return call(port), None
    except LimitFailure as failure:
        return None, failure

"""A watched process and an agent's server in one thread, over a real socket, under one clock that tests move."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tocsin.collector.training_hook.companion import HookCompanion
from tocsin.collector.training_hook.server import HookServer
from tocsin.domain.clock import ManualClock
from tocsin.hook.watch import ProcessWatch
from tocsin.telemetry.metrics import OwnMetrics
from tocsin_testing.builders import T0

EVERY = 5.0


class Pair:
    """`watch` reports to `server`; `pass_time` moves the clock and lets both have their turn."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = ManualClock(T0)
        self.own = OwnMetrics()
        self.server = HookServer(path, self.clock, self.own)
        self.companion = HookCompanion(self.server, self.own)
        self.watch = ProcessWatch(str(path), EVERY, self.clock)

    def settle(self) -> None:
        """Let everything that waits be said and heard."""
        for _ in range(4):
            self.watch.turn()
            self.server.turn(0)

    def step(self, milliseconds: int = 100, times: int = 1) -> None:
        """End steps of `milliseconds` each, then settle."""
        for _ in range(times):
            self.clock.advance(milliseconds)
            self.watch.step()
        self.settle()

    def sample(self) -> None:
        """Make a sample due, take it at the end of a step and let the server hear of it."""
        self.clock.advance(int(EVERY * 1000))
        self.settle()
        self.step()

    def count(self, outcome: str) -> float:
        """Messages that the server counted under `outcome`."""
        return self.own.value("tocsin_hook_messages_total", outcome=outcome)

    def restart_server(self) -> None:
        """End the agent and start it anew at the same path."""
        self.server.close()
        self.server = HookServer(self.path, self.clock, self.own)
        self.companion = HookCompanion(self.server, self.own)

    def close(self) -> None:
        """Close both ends."""
        self.watch.stop()
        self.server.close()


@contextmanager
def pair(folder: Path) -> Iterator[Pair]:
    """A pair whose socket is in `folder`."""
    made = Pair(folder / "hook.sock")
    try:
        yield made
    finally:
        made.close()

"""A node whose driver, training processes and machine are doubles, for tests of orders and limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path

from tocsin.actions.node.limit_writer import LimitWriter, Write
from tocsin.actions.node.markers import MarkerFolder
from tocsin.actions.node.ports import Asked, ResetFacts
from tocsin.actions.node.reset import ResetResult
from tocsin.actions.node.worker import NodeRules, NodeWorker, Ports
from tocsin.domain.clock import HOUR, SECOND, ManualClock
from tocsin.domain.errors import Unavailable
from tocsin.domain.finding import ActionKind
from tocsin.domain.order import Order, OrderReport, OrderState, order_parameters_of
from tocsin.domain.power import ClockRange, Heat, LimitFailure, Obstacle, PowerLimits
from tocsin_testing.builders import T0

ALL = ("throttle", "clocks", "reset", "checkpoint", "defragment")
WATTS = 700


class FakePower:
    """Limits of GPUs in memory. `trouble` fails a method by name, `ignores` makes setters do nothing."""

    def __init__(self, gpus: Sequence[str] = ("GPU-a",), watts: int = WATTS) -> None:
        self.limit_mw = dict.fromkeys(gpus, watts * 1000)
        self.default_mw = WATTS * 1000
        self.celsius = dict.fromkeys(gpus, 60.0)
        self.watts = dict.fromkeys(gpus, 650.0)
        self.slowdown_c: float | None = 89.0
        self.locked: dict[str, tuple[int, int]] = {}
        self.clocks_held = False
        self.trouble: dict[str, LimitFailure] = {}
        self.ignores = False
        self.instead_mw: int | None = None
        self.releases = 0

    def _meet(self, name: str) -> None:
        if name in self.trouble:
            raise self.trouble[name]

    def fail(self, name: str, obstacle: Obstacle) -> None:
        """Make a method fail until `trouble` is cleared."""
        self.trouble[name] = LimitFailure(obstacle, f"{name}: {obstacle}")

    def limits(self, gpu: str) -> PowerLimits:
        self._meet("limits")
        now = self.limit_mw[gpu]
        return PowerLimits(now, now, self.default_mw, 200_000, self.default_mw)

    def set_limit(self, gpu: str, milliwatts: int) -> None:
        self._meet("set_limit")
        if not self.ignores:
            self.limit_mw[gpu] = milliwatts if self.instead_mw is None else self.instead_mw

    def heat(self, gpu: str) -> Heat:
        self._meet("heat")
        return Heat(self.celsius[gpu], self.watts[gpu], slowdown_c=self.slowdown_c)

    def clocks(self, gpu: str) -> ClockRange:
        self._meet("clocks")
        high = self.locked.get(gpu, (210, 1980))[1]
        return ClockRange(210, 1980, min(1950, high), self.clocks_held)

    def lock_clocks(self, gpu: str, low_mhz: int, high_mhz: int) -> None:
        self._meet("lock_clocks")
        if not self.ignores:
            self.locked[gpu] = (low_mhz, high_mhz)

    def unlock_clocks(self, gpu: str) -> None:
        self._meet("unlock_clocks")
        self.locked.pop(gpu, None)

    def release(self) -> None:
        self.releases += 1


class FakeHooks:
    """Training processes: `count` of them answer with what `given` has."""

    def __init__(self) -> None:
        self.count = 2
        self.asked: list[tuple[str, str]] = []
        self.given: list[Asked] = []

    def processes(self, gpu: str) -> int:
        if not self.count:
            raise Unavailable(f"no process on {gpu} reports to this agent")
        return self.count

    def request(self, gpu: str, kind: str, seconds: float) -> tuple[str, int]:
        if not self.count:
            raise Unavailable(f"no process on {gpu} reports to this agent")
        self.asked.append((gpu, kind))
        return f"request-{len(self.asked)}", self.count

    def answers(self, request: str) -> Sequence[Asked]:
        return self.given


class FakeMachine:
    """What a reset needs; `open_by` let go after `patience` waits."""

    def __init__(self) -> None:
        self.known: dict[str, ResetFacts] = {}
        self.open_by: list[str] = []
        self.fabric_by: list[str] = []
        self.gone_after: set[str] = set()
        self.patience = 3
        self.waits = 0
        self.asked_to_let_go = False
        self.resets: list[tuple[tuple[str, ...], bool]] = []
        self.failure = ""

    def facts(self, gpu: str) -> ResetFacts:
        if gpu in self.gone_after and self.resets:
            raise Unavailable(f"{gpu} does not answer")
        return self.known.get(gpu, ResetFacts())

    def ask_clients_to_let_go(self) -> None:
        self.asked_to_let_go = True

    def take_back(self) -> None:
        self.asked_to_let_go = False

    def holders(self, *, fabric: bool) -> Sequence[str]:
        return [*self.open_by, *(self.fabric_by if fabric else [])]

    def pause(self) -> bool:
        self.waits += 1
        return self.waits < self.patience

    def reset(self, gpus: Sequence[str], *, dry: bool) -> str:
        assert self.asked_to_let_go
        if self.failure and not dry:
            raise Unavailable(self.failure)
        self.resets.append((tuple(gpus), dry))
        return "dry run" if dry else "reset"


def at_once(work: Callable[[], ResetResult]) -> Future[ResetResult]:
    """Run a reset within the call."""
    future: Future[ResetResult] = Future()
    future.set_result(work())
    return future


class Node:
    """One node with its worker; `restart` is a new agent on the same machine."""

    def __init__(
        self, folder: Path, *, allow: Sequence[str] = ALL, power: FakePower | None = None, dry_run: bool = False
    ) -> None:
        self.dry_run = dry_run
        self.clock = ManualClock(T0)
        self.power = power or FakePower()
        self.hooks = FakeHooks()
        self.machine = FakeMachine()
        self.folder = folder
        self.allow = allow
        self.boot = "boot-1"
        self.host = "node-1"
        self.writes: list[Write] = []
        self.restart()

    def restart(self) -> None:
        """Begin anew with what lies in the folder; the process before is simply gone."""
        marks = MarkerFolder(self.folder)
        self.keeper = LimitWriter(self.power, marks, self.clock, self.boot, self.writes.append)
        rules = NodeRules(self.host, frozenset(self.allow), dry_run=self.dry_run)
        ports = Ports(self.power, self.hooks, self.machine, at_once)
        self.worker = NodeWorker(rules, ports, self.keeper, marks, self.clock)

    def rename(self, host: str) -> None:
        """The agent of another host, begun anew."""
        self.host = host
        self.restart()

    def order(
        self, action: ActionKind = ActionKind.THROTTLE, gpu: str = "GPU-a", key: str = "", **parameters: str
    ) -> Order:
        """An order for this node."""
        now_ms = self.clock.now_ms()
        lease = 900.0 if action is ActionKind.THROTTLE else 0.0
        name = key or f"{action}@{gpu}"
        return Order(
            name,
            "d",
            self.host,
            gpu,
            action,
            now_ms,
            now_ms + HOUR,
            lease,
            1,
            parameters=order_parameters_of(action, parameters),
        )

    def seconds(self, count: int) -> None:
        """Let time pass with a look every second."""
        for _ in range(count):
            self.clock.advance(SECOND)
            self.worker.tick()

    def report(self, order: Order) -> OrderReport:
        """The newest report of an order that the brain has not been told."""
        return next(report for report in self.worker.reports() if report.order.key == order.key)

    def state(self, order: Order) -> OrderState:
        """How the order stands."""
        return self.report(order).state

    @property
    def watts(self) -> float:
        """The power limit of the first GPU."""
        return self.power.limit_mw["GPU-a"] / 1000.0

    @property
    def markers(self) -> list[str]:
        """Names of the marker files."""
        return sorted(path.name for path in self.folder.glob("*.limit.json"))

"""The agent's hands: takes the brain's orders for this node, carries out what it allows, and gives it all back."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2

from tocsin.actions.node.limit_writer import LimitWriter, Write
from tocsin.actions.node.markers import MarkerFolder
from tocsin.actions.node.ports import Asked, HookPort, PowerPort, ResetPort
from tocsin.actions.node.thermal import ThermalSettings
from tocsin.actions.node.worker import NodeRules, NodeWorker, Ports
from tocsin.client.agent import OrderLink
from tocsin.client.tls import ClientTls
from tocsin.collector.nvml.library import PynvmlLibrary
from tocsin.collector.nvml.limits import NvmlLimits
from tocsin.collector.training_hook.companion import HookCompanion
from tocsin.config.node import NodeSettings
from tocsin.config.settings import Settings
from tocsin.domain.clock import SECOND, Clock
from tocsin.domain.errors import Unavailable
from tocsin.runtime.bounded_power import BoundedPower
from tocsin.runtime.companions import Companions
from tocsin.runtime.reset_machine import ResetMachine
from tocsin.telemetry.log import logger
from tocsin.telemetry.metrics import OwnMetrics

_log = logger("actuator")

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
TICK_SECONDS = 1.0
STEP_SECONDS = {"air": 20.0, "liquid": 8.0}
"""Time between two steps of the controller: until most of a step's effect shows (own choice)."""
JOIN_SECONDS = 20.0
LOOK_SECONDS = 30.0
"""How long the look at one GPU before a reset may take: it asks some dozen things (own choice)."""


def thermal_settings(settings: NodeSettings) -> ThermalSettings:
    """The controller's numbers from the settings. Raises InputError for those that contradict each other."""
    return ThermalSettings(
        engage_margin_c=settings.engage_margin_c,
        engage_samples=settings.engage_samples,
        step_share=settings.step_share,
        floor_share=settings.floor_share,
        step_seconds=STEP_SECONDS[settings.cooling],
        release_margin_c=settings.release_margin_c,
        release_seconds=settings.release_seconds,
    )


def boot_id() -> str:
    """Name of this boot of the machine; empty where the kernel does not tell."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""


class AgentHooks:
    """Requests to training processes over the agent's hook socket, as a port of the worker."""

    def __init__(self, companions: Companions, clock: Clock) -> None:
        self._companions = companions
        self._clock = clock
        self._asked: dict[str, int] = {}

    def _server(self) -> HookCompanion:
        found = self._companions.find("hook")
        if not isinstance(found, HookCompanion):
            raise Unavailable("the agent has no hook socket, so that no training process can be asked")
        return found

    def processes(self, gpu: str) -> int:
        count = len(self._server().server.placed.get(gpu, ()))
        if not count:
            raise Unavailable(f"no process on {gpu} reports to this agent")
        return count

    def request(self, gpu: str, kind: str, seconds: float) -> tuple[str, int]:
        server = self._server().server
        count = len(server.placed.get(gpu, ()))
        name = server.request(gpu, kind, self._clock.now_ms() + int(seconds * SECOND))
        return name, max(count, 1)

    def answers(self, request: str) -> Sequence[Asked]:
        try:
            outcomes = self._server().server.outcomes()
        except Unavailable:
            return ()
        return [Asked(each.pid, each.outcome, each.seconds, each.detail) for each in outcomes if each.id == request]


class Actuator:
    """One per agent, in a thread of its own: what it waits for delays no reading. `ended` ends it, `pool` runs resets.

    What an earlier agent left behind is given back when it is made. Everything is given back at `close`, and where the
    brain has been silent for longer than an order's lease. Raises InputError where the marker folder cannot be written.
    """

    def __init__(
        self,
        worker: NodeWorker,
        link: OrderLink | None,
        poll_seconds: float,
        clock: Clock,
        own: OwnMetrics,
        ended: threading.Event,
        pool: ThreadPoolExecutor,
    ) -> None:
        self._worker = worker
        self._link = link
        self._poll_seconds = poll_seconds
        self._clock = clock
        self._own = own
        self._ended = ended
        self._pool = pool
        self._polled = float("-inf")
        self._silent = False
        self._thread = threading.Thread(target=self._run, name="actuator", daemon=True)
        own.set("tocsin_limits_engaged", worker.engaged)

    def start(self) -> None:
        """Begin to take orders."""
        self._thread.start()

    def turn(self) -> None:
        """Ask for orders where it is time, do what is due, and say what came of it."""
        now_s = self._clock.monotonic()
        if self._link is not None and now_s - self._polled >= self._poll_seconds:
            self._polled = now_s
            self._poll(self._link)
        self._worker.tick()
        self._own.set("tocsin_limits_engaged", self._worker.engaged)
        if self._link is not None:
            self._tell(self._link)

    def close(self) -> None:
        """Stop, and give everything back; safe to repeat."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(JOIN_SECONDS)
        self._worker.close()
        self._own.set("tocsin_limits_engaged", self._worker.engaged)
        if self._link is not None:
            self._tell(self._link)
            self._link.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _poll(self, link: OrderLink) -> None:
        try:
            self._worker.receive(link.orders())
        except Unavailable as error:
            self._own.count("tocsin_order_polls_total", outcome="failed")
            if not self._silent:
                _log.warning("no orders can be had (said once)", problem=str(error))
            self._silent = True
        else:
            self._own.count("tocsin_order_polls_total", outcome="answered")
            self._silent = False

    def _tell(self, link: OrderLink) -> None:
        for report in self._worker.reports():
            try:
                link.report(report)
            except Unavailable as error:
                _log.debug("a report waits for the brain", order=report.order.key, problem=str(error))
                return
            self._worker.told(report)

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                self.turn()
            except Exception:  # noqa: BLE001  # the supervisor of the actuator's loop: limits must still be given back
                self._own.count("tocsin_loop_failures_total", loop="actuator")
                _log.exception("unexpected error, the actuator goes on")
            self._ended.wait(TICK_SECONDS)


def _counted(own: OwnMetrics) -> Callable[[Write], None]:
    return lambda write: own.count("tocsin_limit_writes_total", outcome=write.outcome)


def wanted(settings: Settings) -> bool:
    """Whether an agent with these settings needs hands: something is allowed, or was left behind by an earlier one."""
    return bool(settings.node.allow) or any(settings.node.marker_folder.glob("*.limit.json"))


def open_actuator(
    settings: Settings,
    clock: Clock,
    own: OwnMetrics,
    companions: Companions,
    *,
    power: PowerPort | None = None,
    reset: ResetPort | None = None,
    transport: httpx2.BaseTransport | None = None,
) -> Actuator:
    """The hands of an agent, over NVML but for what is given. Raises InputError."""
    node, agent = settings.node, settings.agent
    host = agent.host or socket.gethostname()
    ended = threading.Event()
    machine = reset or ResetMachine(BoundedPower(_open_port, LOOK_SECONDS), settings, clock, ended)
    port = power or BoundedPower(_open_port)
    pool = ThreadPoolExecutor(1, "reset")
    hooks: HookPort = AgentHooks(companions, clock)
    rules = NodeRules(host, frozenset(node.allow), thermal_settings(node), node.arm_seconds, node.dry_run)
    folder = MarkerFolder(node.marker_folder)
    keeper = LimitWriter(port, folder, clock, boot_id(), _counted(own))
    worker = NodeWorker(rules, Ports(port, hooks, machine, pool.submit), keeper, folder, clock)
    link = _link(settings, host, transport)
    return Actuator(worker, link, node.poll_seconds, clock, own, ended, pool)


def _open_port() -> NvmlLimits:
    return NvmlLimits(PynvmlLibrary())


def _link(settings: Settings, host: str, transport: httpx2.BaseTransport | None) -> OrderLink | None:
    node, agent = settings.node, settings.agent
    url = node.brain_url or agent.push_url
    if not url or not node.allow:
        return None
    token = node.token.get_secret_value() or agent.push_token.get_secret_value()
    tls = None
    if agent.push_ca is not None or agent.push_certificate is not None:
        tls = ClientTls(agent.push_ca, agent.push_certificate, agent.push_key)
    return OrderLink(url, host, token, agent.push_timeout_seconds, tls, transport)

"""Takes the brain's orders for this node, carries out what the node allows, and gives it all back.

With it is what it needs of the node: power limits with a time box on every call, so that a driver that hangs on one
GPU holds up that GPU's orders alone, and what a reset asks of the machine.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar, cast

import httpx2

from tocsin.actions.node.limit_writer import LimitWriter
from tocsin.actions.node.markers import MarkerFolder
from tocsin.actions.node.ports import Asked, HookPort, PowerPort, ResetFacts, ResetPort
from tocsin.actions.node.thermal import ThermalSettings
from tocsin.actions.node.worker import NodeRules, NodeWorker, Ports
from tocsin.client.agent import OrderLink
from tocsin.client.bearer import BearerToken
from tocsin.collector.nvml.library import Nvml, PynvmlLibrary
from tocsin.collector.nvml.limits import NvmlLimits
from tocsin.collector.nvml.reset import reset_check
from tocsin.collector.training_hook.companion import HookCompanion
from tocsin.collector.training_hook.server import HookServer
from tocsin.collector.workers import DriverThreads
from tocsin.config.node import NodeSettings
from tocsin.config.settings import Settings
from tocsin.domain.clock import SECOND, Clock
from tocsin.domain.errors import InputError, Unavailable
from tocsin.domain.power import ClockRange, Heat, LimitFailure, Obstacle, PowerLimits
from tocsin.http_client import ClientTls
from tocsin.runtime.agent.companions import Companions
from tocsin.telemetry.log import logger
from tocsin.telemetry.metrics import OwnMetrics

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
        self._workers: DriverThreads[Any] = DriverThreads()

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
        return cast("T", value)


def _tried(call: Callable[[NvmlLimits], T], port: NvmlLimits) -> tuple[T | None, LimitFailure | None]:
    try:
        return call(port), None
    except LimitFailure as failure:
        return None, failure


_DEVICE = re.compile(r"^/dev/nvidia(\d+|ctl|-uvm|-uvm-tools|-modeset|-caps/.+)$")
_WITH_FABRIC = re.compile(rf"{_DEVICE.pattern}|^/dev/nvidia-nvswitch(\d+|ctl)$")
RELEASE_LOOK_SECONDS = 1.0
SHOWN = 300


class ResetMachine:
    """The reset port over NVML, ``/proc`` and a child process. Runs in a thread of its own.

    `limits` is its own opening of NVML with a time box on each look, let go before the clients are asked to. `ended`
    ends every wait.
    """

    def __init__(self, limits: BoundedPower, settings: Settings, clock: Clock, ended: threading.Event) -> None:
        self._limits = limits
        self._settings = settings
        self._file = Path(settings.agent.release_file) if settings.agent.release_file else None
        self._clock = clock
        self._ended = ended
        self._until = 0.0
        self._made = False

    def facts(self, gpu: str) -> ResetFacts:
        found = self._limits.on_gpu(gpu, reset_check)
        return ResetFacts(found.processes, found.mig_instances, found.peers)

    def ask_clients_to_let_go(self) -> None:
        self._limits.release()
        self._until = self._clock.monotonic() + self._settings.node.clients_seconds
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
        running = [folder for folder in self._settings.agent.proc.iterdir() if folder.name.isdigit()]
        return sorted(f"{_name(folder)} ({folder.name})" for folder in running if _holds(folder, devices))

    def pause(self) -> bool:
        return self._clock.monotonic() < self._until and not self._ended.wait(RELEASE_LOOK_SECONDS)

    def reset(self, gpus: Sequence[str], *, dry: bool) -> str:
        node = self._settings.node
        command = [*node.reset_command, "-r", "-i", ",".join(gpus)]
        if dry:
            return f'dry run, would have run: {" ".join(command)} (for real with "reset" in node.allow)'
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=node.reset_seconds)
        except subprocess.TimeoutExpired:
            raise Unavailable(f"{' '.join(command)} did not end within {node.reset_seconds:g} s") from None
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

    def _server(self) -> HookServer:
        found = self._companions.find("hook")
        if not isinstance(found, HookCompanion):
            raise Unavailable("the agent has no hook socket, so that no training process can be asked")
        return found.server

    def processes(self, gpu: str) -> int:
        count = len(self._server().placed.get(gpu, ()))
        if not count:
            raise Unavailable(f"no process on {gpu} reports to this agent")
        return count

    def request(self, gpu: str, kind: str, seconds: float) -> tuple[str, int]:
        server = self._server()
        asked = max(len(server.placed.get(gpu, ())), 1)
        return server.request(gpu, kind, self._clock.now_ms() + int(seconds * SECOND)), asked

    def answers(self, request: str) -> Sequence[Asked]:
        try:
            outcomes = self._server().outcomes()
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
                _log.warning("orders cannot be fetched (logged once)", problem=str(error))
            self._silent = True
        else:
            self._own.count("tocsin_order_polls_total", outcome="answered")
            self._silent = False

    def _tell(self, link: OrderLink) -> None:
        for report in self._worker.reports():
            try:
                link.report(report)
            except Unavailable as error:
                _log.debug("order report not sent, will be retried", order=report.order.key, problem=str(error))
                return
            self._worker.acknowledge(report)

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                self.turn()
            except Exception:  # noqa: BLE001  # the supervisor of the actuator's loop: limits must still be given back
                self._own.count("tocsin_loop_failures_total", loop="actuator")
                _log.exception("unexpected error, the actuator goes on")
            self._ended.wait(TICK_SECONDS)


def open_order_worker(
    settings: Settings,
    clock: Clock,
    own: OwnMetrics,
    companions: Companions,
    *,
    power: PowerPort | None = None,
    reset: ResetPort | None = None,
    transport: httpx2.BaseTransport | None = None,
) -> Actuator:
    """What carries out orders on the agent's node, over NVML but for what is given. Raises InputError."""
    node, agent = settings.node, settings.agent
    host = agent.host or socket.gethostname()
    ended = threading.Event()
    machine = reset or ResetMachine(BoundedPower(_open_port, LOOK_SECONDS), settings, clock, ended)
    port = power or BoundedPower(_open_port)
    pool = ThreadPoolExecutor(1, "reset")
    hooks: HookPort = AgentHooks(companions, clock)
    rules = NodeRules(host, frozenset(node.allow), thermal_settings(node), node.arm_seconds, node.dry_run)
    folder = MarkerFolder(node.marker_folder)
    limit_writer = LimitWriter(
        port, folder, clock, boot_id(), lambda write: own.count("tocsin_limit_writes_total", outcome=write.outcome)
    )
    worker = NodeWorker(rules, Ports(port, hooks, machine, pool.submit), limit_writer, folder, clock)
    return Actuator(worker, _link(settings, host, transport), node.poll_seconds, clock, own, ended, pool)


def _open_port() -> NvmlLimits:
    return NvmlLimits(PynvmlLibrary())


def _link(settings: Settings, host: str, transport: httpx2.BaseTransport | None) -> OrderLink | None:
    node, agent = settings.node, settings.agent
    url = node.brain_url or agent.push_url
    if not url or not node.allow:
        return None
    own = node.token.get_secret_value()
    token = BearerToken(own) if own else BearerToken(agent.push_token.get_secret_value(), agent.push_token_file)
    tls = ClientTls.of(agent.push_ca, agent.push_certificate, agent.push_key)
    return OrderLink(url, host, token, agent.push_timeout_seconds, tls, transport, agent.cell_urls)

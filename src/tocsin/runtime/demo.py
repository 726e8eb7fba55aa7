"""`tocsin demo`: a simulated fleet through the whole loop, in one process tree on free ports."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx2

from tocsin.api.app import create_app
from tocsin.api.server import ApiServer
from tocsin.client.demo_file import announced
from tocsin.client.models_cards import CardState
from tocsin.collector.exporter import FleetCollector
from tocsin.config.address import PortClaim, split_address
from tocsin.config.settings import Settings, StoreKind
from tocsin.domain.clock import SECOND, Clock, ManualClock, SystemClock
from tocsin.domain.decision import Mode, Ruling
from tocsin.domain.errors import Conflict
from tocsin.domain.reading import Reading
from tocsin.http_client import http_client
from tocsin.journal.verify import verify
from tocsin.queries.service import BrainService
from tocsin.runtime.brain.assembly import open_brain
from tocsin.runtime.dashboard_process import prepare_dashboard
from tocsin.runtime.demo_faults import HELD_STEPS, LEAK_STEP, FaultCards, PlannedFault, leaking_gpu, plan_faults
from tocsin.runtime.demo_terminal import DemoTerminal
from tocsin.sim.fleet import SimulatedFleet
from tocsin.sim.jobs import POOLS
from tocsin.sim.scenarios import scenario_of
from tocsin.sim.spec import FleetSpec
from tocsin.store.factory import open_store

HISTORY_READINGS = 26_000
"""Readings of simulated past put into the store before the start: charts and forecasts look at the past."""
EXPORT_INTERVALS = 3
"""A simulated GPU leaves `/metrics` after this many intervals without a reading."""
HISTORY_STEPS = 400
"""Most intervals of simulated past: enough for a risk, which needs six hours."""
PATIENCE_SECONDS = 900.0
"""Wall time that a decision of the demo waits for a person; at its speed the usual hour would be over in a minute."""
BREAKER_CAUSES = 20
"""Root causes that trip the demo's breaker: the failures that it injects itself are no mistake of the fleet's."""
SCRIPT: Sequence[tuple[int, str]] = (
    (2, "thermal_drift"),
    (8, "fallen_off_bus"),
    (20, "nvlink_recovery"),
    (30, "row_remap"),
)
"""Failures that the demo injects: evaluation number and kind, each into another GPU; `_past` begins a leak."""
LEAK, LATE_LEAK_STEP = "memory_leak", 4
"""The leak's kind, and its evaluation in a fleet in whose past it has no place."""

MOST_CARDS = 1_000
"""Cards that a demo of faults looks at."""

Announce = Callable[[str], None]


@dataclass
class FaultInjector:
    """Injects failures into the simulated fleet; safe to use from several threads."""

    fleet: SimulatedFleet
    lock: threading.Lock = field(default_factory=threading.Lock)

    def inject(self, kind: str, gpu: str) -> tuple[str, int, str]:
        with self.lock:
            fault = self.fleet.inject(kind, gpu)
        struck = next(one for one in self.fleet.gpus if one.uuid == fault.gpu)
        return fault.gpu, fault.started_ms, f"{kind} starts in {struck.host} GPU {struck.index}"


def demo_settings(settings: Settings, folder: Path) -> Settings:
    """`settings` with everything below `folder`, the whole fleet managed, and a person asked before each action."""
    interval = settings.simulation.interval_seconds
    store = settings.store.model_copy(update={"kind": StoreKind.SQLITE, "path": folder / "store.db"})
    journal = settings.journal.model_copy(update={"path": folder / "journal.db"})
    mode = Mode.PROPOSE if settings.actions.mode is Mode.OBSERVE else settings.actions.mode
    executors = settings.actions.executors
    actions = settings.actions.model_copy(
        update={
            "mode": mode,
            "fresh_seconds": max(120.0, 3 * interval),
            "time_box_seconds": max(settings.actions.time_box_seconds, PATIENCE_SECONDS * settings.simulation.speed),
            "executors": ["simulated"] if executors == ["journal_only"] else executors,
            "managed_pools": settings.actions.managed_pools or list(POOLS),
            "breaker_root_causes": max(settings.actions.breaker_root_causes, BREAKER_CAUSES),
        }
    )
    return settings.model_copy(update={"store": store, "journal": journal, "actions": actions})


def _past_steps(settings: Settings) -> int:
    return min(HISTORY_STEPS, max(10, HISTORY_READINGS // settings.simulation.gpus))


def _past(
    settings: Settings, fleet: SimulatedFleet, planned: Sequence[PlannedFault], script: Sequence[PlannedFault]
) -> int:
    """Put the fleet's past into the store; the evaluation before the first has number 0. Returns how many faults began.

    With a `script`, a leak is among them where a GPU is fit for it, on none of the script's hosts.
    """
    spared = {fleet.gpus[one.gpu].host for one in script}
    before: Sequence[Reading] = ()
    now: Sequence[Reading] = ()
    begun = 0
    store = open_store(settings.store)
    store.init()
    for step in range(1 - _past_steps(settings), 1):
        begins = [(one.kind, str(one.gpu)) for one in planned if one.step == step]
        if script and step == LEAK_STEP and (leaking := leaking_gpu(before, now, spared)):
            begins.append((LEAK, leaking))
        for kind, gpu in begins:
            fleet.inject(kind, gpu)
        begun += len(begins)
        batch = fleet.step()
        now = batch.readings
        if step == LEAK_STEP - HELD_STEPS:
            before = now
        store.write(batch)
    store.close()
    return begun


def only_faults(settings: Settings, faults: int) -> Settings:
    """`settings` of a demo of `faults` hard faults and nothing else, which by themselves do not trip its breaker."""
    simulation = settings.simulation.model_copy(update={"fault_rate_scale": 0.0})
    causes = max(settings.actions.breaker_root_causes, BREAKER_CAUSES, 2 * faults)
    actions = settings.actions.model_copy(update={"breaker_root_causes": causes})
    return settings.model_copy(update={"simulation": simulation, "actions": actions})


class Demo:
    """The fleet, its clock and the brain; `step` is one interval.

    With `faults` that many hard faults at distinct places take the place of the demo's own.
    """

    def __init__(self, settings: Settings, start_ms: int, faults: int = 0) -> None:
        simulation = settings.simulation
        interval_ms = round(simulation.interval_seconds * SECOND)
        self.settings = settings
        self.fleet = SimulatedFleet(
            FleetSpec(
                gpus=simulation.gpus,
                seed=simulation.seed,
                start_ms=start_ms // interval_ms * interval_ms,
                interval_ms=interval_ms,
                fault_rate_scale=simulation.fault_rate_scale,
                scenario=scenario_of(simulation.scenario),
                software_rate_scale=simulation.software_rate_scale,
                benign_rate_scale=simulation.benign_rate_scale,
            )
        )
        planned = plan_faults(self.fleet, faults, _past_steps(settings))
        script = [] if planned else [PlannedFault(*one, gpu=one[0] * 7 % simulation.gpus) for one in SCRIPT]
        self.injected = _past(settings, self.fleet, planned, script)
        if script and not self.injected:
            script.append(PlannedFault(LATE_LEAK_STEP, LEAK, LATE_LEAK_STEP * 7 % simulation.gpus))
        self.clock = ManualClock(self.fleet.now_ms)
        self.running = open_brain(settings, self.clock, propose=True, fleet=self.fleet, pools=self.fleet.pools)
        self.brain = self.running.brain
        self.injector = FaultInjector(self.fleet)
        self.service = BrainService(self.brain, self.injector)
        self.exporter = FleetCollector(self.clock, EXPORT_INTERVALS * simulation.interval_seconds)
        self.brain.metrics.registry.register(self.exporter)
        self.cards = FaultCards(self.fleet, planned) if planned else None
        self._script = [*script, *planned]
        self.steps = 0

    def step(self) -> None:
        """One interval of the fleet: read, keep, evaluate."""
        self.steps += 1
        for one in self._script:
            if one.step == self.steps:
                self._inject(one.kind, str(one.gpu))
        with self.injector.lock:
            batch = self.fleet.step()
        self.clock.advance(self.fleet.now_ms - self.clock.now_ms())
        self.exporter.update("simulated", batch.readings)
        self.brain.accept(batch)
        self.brain.managers.look()
        # Work is forgotten by the fleet's clock, which runs ahead of that by which planners look.
        self.brain.managers.look_at_work()
        self.brain.tick()
        if self.cards is not None:
            self.cards.look(self.service.cards(MOST_CARDS).items)

    def _inject(self, kind: str, gpu: str) -> None:
        # In a tiny fleet an earlier failure may have taken this very GPU.
        with suppress(Conflict):
            self.service.inject(kind, gpu, "demo")
            self.injected += 1

    def report(self) -> dict[str, object]:
        """What came of it; counts are since the start of the brain."""
        statuses = self.brain.statuses()
        held = Counter(v.guard for status in statuses for v in status.verdicts if v.ruling is Ruling.HOLD)
        result = verify(self.settings.journal.path)
        return {
            "simulated": True,
            "gpus": len(self.brain.gpus),
            "readings": self.brain.memory.count,
            "findings": self.brain.recorder.findings_opened,
            "incidents": self.brain.recorder.incidents_opened,
            "predictions": self.brain.forecasts.made,
            "decisions": len(statuses),
            "held_by": dict(sorted(held.items())),
            "faults_injected": self.injected,
            "journal": {"events": result.events, "verified": result.ok},
            "simulated_seconds": self.steps * self.settings.simulation.interval_seconds,
            **self._cards(),
        }

    def _cards(self) -> dict[str, object]:
        """What became of the faults that were asked for; empty where none were."""
        if self.cards is None:
            return {}
        resolved = self.service.cards(MOST_CARDS, CardState.RESOLVED)
        return self.cards.report([*self.service.cards(MOST_CARDS).items, *resolved.items])


@contextmanager
def _dashboard(settings: Settings, api_url: str, announce: Announce) -> Iterator[None]:
    wanted = settings.dashboard
    ready = prepare_dashboard(wanted.listen, api_url, wanted.api_token.get_secret_value(), wanted.api_ca, exactly=False)
    with settings.journal.path.with_name("dashboard.log").open("wb") as log:
        process = subprocess.Popen(
            ready.command, env=ready.environment, stdout=subprocess.DEVNULL, stderr=log, start_new_session=True
        )
    over = threading.Event()
    telling = threading.Thread(target=_tell, args=(process, ready.url, announce, over), name="tocsin-demo-dashboard")
    telling.start()
    try:
        yield
    finally:
        over.set()
        # The whole session, so that nothing that Streamlit started stays behind.
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        telling.join()
        ready.claim.release()


def _tell(process: subprocess.Popen[bytes], url: str, announce: Announce, over: threading.Event) -> None:
    """Announce the dashboard once it answers: an address that refuses a newcomer's first click is a bad begin."""
    with http_client(2.0, base_url=url) as client:
        while process.poll() is None and not over.wait(0.2):
            with suppress(httpx2.HTTPError):
                client.get("/_stcore/health").raise_for_status()
                announce(f"dashboard: {url}")
                return
    if not over.is_set():
        announce(f"the dashboard did not start: it ended with {process.returncode}")


@contextmanager
def _api(demo: Demo, announce: Announce) -> Iterator[str]:
    host, port = split_address(demo.settings.api.listen, "api.listen")
    claim = PortClaim(host, port)
    app = create_app(demo.service, demo.settings.api)
    server = ApiServer(app, host, claim.port, demo.settings.api, demo.service.refused)
    server.start()
    url = server.url
    announce(f"api: {url}")
    announce(f"metrics: {url}/metrics")
    announce(f"journal: {demo.settings.journal.path}")
    try:
        with announced(url, SystemClock().now_ms()) as findable:
            if findable:
                announce("in a second shell, tocsin inject, status and top find this demo by themselves")
            else:
                announce("in a second shell, for the other commands to find it:")
                announce(f"  export TOCSIN_DASHBOARD__API_URL={url}")
            yield url
    finally:
        server.stop()
        claim.release()


def _pace(demo: Demo, stop: threading.Event, wall: Clock, duration: float | None, terminal: DemoTerminal) -> None:
    begun = wall.monotonic()
    interval = demo.settings.simulation.interval_seconds / demo.settings.simulation.speed
    brain = demo.brain
    while not stop.is_set() and (duration is None or wall.monotonic() - begun < duration):
        due = begun + demo.steps * interval
        if (wait := due - wall.monotonic()) > 0:
            stop.wait(min(wait, 0.2))
            continue
        demo.step()
        now_ms = brain.clock.now_ms()
        terminal.look(now_ms, brain.incidents, brain.forecasts.current(now_ms), brain.statuses())


def run_demo(
    settings: Settings,
    stop: threading.Event,
    *,
    duration: float | None,
    dashboard: bool,
    announce: Announce,
    wall: Clock | None = None,
    colour: bool = False,
    faults: int = 0,
) -> dict[str, object]:
    """Run until `stop` is set or `duration` seconds of wall time have passed; returns the report.

    Everything it writes lies in a temporary folder that is removed at the end; meanwhile a file of the user says where
    it answers, by which other commands find it. `colour` is for a terminal. With `faults` so many hard faults at
    distinct places are all that goes wrong.
    """
    wall = wall or SystemClock()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tocsin-demo-")))
        announce(f"simulating {settings.simulation.gpus} GPUs; everything shown is simulated")
        wanted = demo_settings(only_faults(settings, faults) if faults else settings, folder)
        demo = Demo(wanted, wall.now_ms(), faults)
        stack.callback(demo.running.stop)
        url = stack.enter_context(_api(demo, announce))
        if dashboard:
            stack.enter_context(_dashboard(demo.settings, url, announce))
            announce("press Ctrl-C to end")
        # Evaluation is driven by the fleet; the other threads keep their own time.
        demo.running.start(evaluate=False)
        _pace(demo, stop, wall, duration, DemoTerminal(announce, colour))
        return demo.report()

"""A brain in mode `act` and four nodes with tokens: what node-a sends beside the truth, and what comes of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from tocsin.actions.loop.routing import build_routing
from tocsin.actions.planning.facts import NodeState
from tocsin.api.principal import simple
from tocsin.api.service import LineBody
from tocsin.api.write_access import WriteAccess
from tocsin.config.access import Role
from tocsin.config.settings import Settings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import SECOND, ManualClock
from tocsin.domain.event import Event, EventKind
from tocsin.domain.reading import Gpu, Reading
from tocsin.queries.service import BrainService
from tocsin.runtime.brain import assembly
from tocsin.runtime.brain.managers import Managers
from tocsin.store.line_protocol.encode import encode
from tocsin_testing.action_world import FakeExecutor
from tocsin_testing.builders import T0

HOSTILE, VICTIM = "node-a", "node-b"
HOSTS = (HOSTILE, VICTIM, "node-c", "node-d")
STEP_MS = 30 * SECOND
SETTLING_STEPS = 3
"""Steps after which a GPU is no newcomer any more."""
RULES = """
[[rules]]
name = "off_the_bus"
summary = "The GPU has fallen off the bus."
severity = "critical"
category = "hardware"
action = "drain"
mode = "act"
alert = "{where}: XID {code}: {help}. NVIDIA's catalogue says {remedy}."
all = [{ kind = "xid", classes = ["bus"], least = "critical" }]

[[rules]]
name = "hotter_than_peers"
summary = "The core is hotter than that of its peers."
severity = "info"
category = "thermal"
action = "notify"
alert = "{where}: core temperature {value}."
all = [{ kind = "peer", metric = "gpu_temperature_celsius", above = 12 }]
"""
MODEL = "NVIDIA H100 80GB HBM3"


class Shows(FakeExecutor):
    """A manager that lists all nodes, with `gpus` of each where it shows them; `out` are out of service."""

    def __init__(self, gpus: int | None, out: set[str]) -> None:
        super().__init__()
        self._gpus, self._out = gpus, out

    def nodes(self) -> dict[str, NodeState]:
        return {host: NodeState(host, host not in self._out, jobs={}, gpus=self._gpus) for host in HOSTS}


class TokenSite:
    """`step` is 30 s: nodes report what is so, then the brain evaluates."""

    def __init__(self, running: assembly.RunningBrain, clock: ManualClock, per_host: int, out: set[str]) -> None:
        self.running, self.brain, self.clock, self.out = running, running.brain, clock, out
        self.service = BrainService(running.brain)
        self.gpus = {
            host: [Gpu(f"GPU-{host}-{n}", host, index=n, model=MODEL) for n in range(per_host)] for host in HOSTS
        }
        self.lost: set[str] = set()
        self.silent: set[str] = set()
        self.celsius: dict[str, float] = {}

    def push(self, text: str, host: str) -> None:
        """As `POST /write` takes it with the token of `host`."""
        access = WriteAccess(simple(host, Role.AGENT, host=host), self.service.owner_against)
        (kept,) = self.service.ingest([LineBody(text, "ms", access)])
        if isinstance(kept, Exception):
            raise kept

    def step(self, hostile: Iterable[str] = ()) -> None:
        """Half a minute; `hostile` are lines that node-a sends before and after what is so."""
        self.clock.advance(STEP_MS)
        text = "\n".join(hostile)
        if text:
            self.push(text, HOSTILE)
        for host in HOSTS:
            self.push(self._truth(host), host)
        if text:
            self.push(text, HOSTILE)
        self.brain.managers.look()
        self.brain.tick()

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()

    def _truth(self, host: str) -> str:
        now = self.clock.now_ms()
        values = {"gpu_power_watts": 300.0, "gpu_utilization_ratio": 0.5}
        readings = [
            Reading(gpu, now, {**values, "gpu_temperature_celsius": self.celsius.get(gpu.uuid, 60.0)})
            for gpu in self.gpus[host]
            if gpu.uuid not in self.silent
        ]
        events = [
            Event(EventKind.XID, gpu.uuid, host, now, code=79, message="Xid 79", source="kernel")
            for gpu in self.gpus[host]
            if gpu.uuid in self.lost
        ]
        return encode(Batch(readings=readings, events=events))

    def started(self, host: str) -> set[str]:
        """Actions that ran, or run, on a host."""
        begun = self.brain.actions.controls().started
        found = [one.decision for one in self.brain.actions.statuses() if one.decision.key in begun]
        return {
            f"{one.action} {one.subject.key}" for one in found if one.subject.host == host and one.action != "notify"
        }

    def held(self, host: str) -> set[str]:
        """Guards that hold a decision about a host."""
        return {
            verdict.guard
            for one in self.brain.actions.statuses()
            if one.decision.subject.host == host and one.decision.action != "notify"
            for verdict in one.verdicts
            if verdict.ruling == "hold"
        }


@contextmanager
def token_site(
    folder: Path,
    *,
    per_host: int = 4,
    shown: int | None = None,
    managed: bool = False,
    rules: str = RULES,
    root_causes: int = 50,
) -> Iterator[TokenSite]:
    """`managed`: a manager lists the nodes, with `shown` GPUs of each. `root_causes` trip the breaker."""
    folder.mkdir(exist_ok=True)
    (folder / "rules.toml").write_text(rules)
    limits = {"max_concurrent": 50, "max_concurrent_ratio": 0.5, "min_available_ratio": 0.5, "attempts_per_day": 100}
    wanted = {
        "store": {"kind": "memory"},
        "journal": {"path": folder / "j.db"},
        "forecast": {"worker": False},
        "rules": {"path": folder / "rules.toml"},
        "actions": {
            "mode": "act",
            "earn_waived": ["*"],
            "managed_pools": ["default"],
            "confirmations": 1,
            "boot_grace_seconds": 0.0,
            "cooldown_seconds": 0.0,
            "newcomer_seconds": (SETTLING_STEPS - 1) * STEP_MS / SECOND,
            "breaker_root_causes": root_causes,
            "limits": limits,
        },
    }
    clock, out = ManualClock(T0), set[str]()
    executor = Shows(shown, out)
    routing = patch.object(
        assembly, "_routing", lambda parts: build_routing(parts.settings.actions, lambda _name: executor)
    )
    managers = patch.object(assembly, "Managers", lambda _all, *rest: Managers([executor] if managed else [], *rest))
    with routing, managers:
        running = assembly.open_brain(Settings.model_validate(wanted), clock)
    try:
        running.brain.actions.operator.resume("ann")
        yield TokenSite(running, clock, per_host, out)
    finally:
        running.stop()

"""A fleet of two tenants on a real brain: GPUs of each, one that both share, one that changed hands, and its API."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from tocsin.actions.planning.facts import NodeState, WorkloadFacts, WorkloadSeen
from tocsin.api.app import create_app
from tocsin.config.access import ApiSettings
from tocsin.config.settings import Settings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import SECOND, ManualClock
from tocsin.domain.event import Event, EventKind
from tocsin.domain.reading import Gpu, Owner, Reading
from tocsin.queries.service import BrainService
from tocsin.runtime.brain import assembly
from tocsin.runtime.brain.assembly import RunningBrain, open_brain
from tocsin.runtime.brain.managers import Managers
from tocsin_testing.action_world import FakeExecutor
from tocsin_testing.builders import T0

STEP, STEPS = 10 * SECOND, 90
A_POD = Owner(101, "vllm-alpha", pod="alpha-serve-0", namespace="alpha", pod_uid="aaaa-1111", user="anna.alpha")
A_JOB = Owner(102, "train-alpha", slurm_job="550011.0", user="anna.alpha")
A_SHARED = Owner(103, "notebook-alpha", pod="alpha-notebook", namespace="alpha", pod_uid="aaaa-2222")
B_POD = Owner(90201, "vllm-bravo", pod="bravo.serve-0", namespace="bravo", pod_uid="bbbb-1111", user="bob.bravo")
B_JOB = Owner(90202, "train-bravo", slurm_job="990017.3", user="DOM\\bobsky")
B_BOX = Owner(90203, "python-bravo", container="bcbcbcbcbcbcbcbcbcbcbcbcbcbc", user="böb user")
B_EARLY = Owner(90204, "early-bravo", pod="bravo-early", namespace="bravo", pod_uid="bbbb-3333", user="beate")
GPUS = {
    "a0": Gpu("GPU-aaaa-0000", "node-alpha-1", 0, "H100", serial="SN-ALPHA-0", pool="train"),
    "a1": Gpu("GPU-aaaa-0001", "node-alpha-2", 0, "H100", serial="SN-ALPHA-1", pool="train"),
    "both": Gpu("GPU-cccc-0000", "node-mixed", 0, "H100", serial="SN-MIXED-0", pool="train"),
    "b0": Gpu("GPU-bbbb-0000", "node-mixed", 1, "H100", serial="SN-BRAVO-0", pool="train"),
    "b1": Gpu("GPU-bbbb-0001", "node-bravo.site-b.example", 0, "H100", serial="SN-BRAVO-1", pool="train"),
    "b2": Gpu("GPU-bbbb-0002", "gpu-bravo7", 0, "A100", serial="SN-BRAVO-2", pool="pool-x", labels={"team": "bravo"}),
}
OWNERS = {
    "a0": (A_POD,),
    "a1": (A_JOB,),
    "both": (A_SHARED, B_BOX),
    "b0": (B_POD,),
    "b1": (B_JOB,),
    "b2": (B_BOX,),
}
OF_B = (
    "bravo", "bob.bravo", "bobsky", "böb user", "beate", "990017", "bcbcbcbcbcbc", "90201", "90202", "90203", "90204",
    "GPU-bbbb", "SN-BRAVO", "gpu-bravo7", "bbbb-", "pool-x", "notes of the operators", "rita",
)  # fmt: skip
"""Parts of what belongs to B, or to who operates the fleet, alone."""
OF_A = ("GPU-aaaa-0000", "GPU-aaaa-0001", "GPU-cccc-0000")
SECRETS = {name: f"{name}-secret-of-sixteen" for name in ("tenant", "account", "fleet", "rita", "none")}


class Shows(FakeExecutor):
    """Which account a Slurm job is of, and what nodes hold."""

    def nodes(self) -> dict[str, NodeState]:
        return {
            gpu.host: NodeState(gpu.host, True, jobs={one.pod_uid: "" for one in owners if one.pod_uid} or None)
            for gpu, owners in ((GPUS[name], OWNERS[name]) for name in GPUS)
        }

    def work(self) -> WorkloadSeen:
        return WorkloadSeen({
            "slurm/550011": WorkloadFacts(account="alpha-account", user="anna.alpha"),
            "slurm/990017": WorkloadFacts(account="bravo-account", user="bobsky", team="bravo-team"),
        })  # fmt: skip


def _values(name: str, step: int) -> dict[str, float]:
    hot = 97.0 if name in {"a0", "b0", "b1"} else 55.0
    found = {"gpu_temperature_celsius": hot + step % 2, "gpu_power_watts": 300.0, "gpu_utilization_ratio": 0.9}
    found["gpu_memory_used_ratio"] = 0.5
    return found | {f'gpu_process_memory_used_bytes{{pid="{one.pid}"}}': 1e9 for one in OWNERS[name]}


def _batch(step: int) -> Batch:
    at = T0 + step * STEP
    # Of the first steps GPU a0 was another's.
    readings = [
        Reading(gpu, at, _values(name, step), owners=(B_EARLY,) if name == "a0" and step < 30 else OWNERS[name])
        for name, gpu in GPUS.items()
    ]
    events = []
    if step in {10, 80}:
        for name in ("a0", "a1", "b1", "b2"):
            who = B_EARLY if step == 10 else OWNERS[name][0]
            text = f"NVRM: Xid (PCI): 79, pid={who.pid}, name={who.process}, fallen off the bus"
            events.append(Event(EventKind.XID, GPUS[name].uuid, GPUS[name].host, at, 79, text, "kernel_log"))
    return Batch(readings=readings, events=events)


@dataclass
class World:
    """A brain with the fleet of A and B, and clients of its API by name of the token."""

    running: RunningBrain
    app: FastAPI | None = None
    clients: dict[str, TestClient] = field(default_factory=dict)

    def get(self, path: str, who: str = "tenant") -> tuple[int, str, bytes]:
        answer = self.clients[who].get(path)
        return answer.status_code, answer.headers.get("content-type", ""), answer.content


def settings_in(folder: Path) -> Settings:
    return Settings.model_validate(
        {
            "store": {"path": folder / "store.db"},
            "journal": {"path": folder / "journal.db"},
            "forecast": {"worker": False},
            "prices": {"currency": "EUR", "gpu_hour_default": 2.0},
            "actions": {"managed_pools": ["train", "pool-x"], "mode": "propose", "boot_grace_seconds": 0},
        }
    )


def api_settings() -> ApiSettings:
    def token(name: str, role: str, **more: object) -> dict[str, object]:
        return {"name": name, "role": role, "secret": SECRETS[name], **more}

    tokens = [
        token("tenant", "viewer", namespaces=["alpha"]),
        token("account", "viewer", namespaces=["alpha-account"]),
        token("none", "viewer", namespaces=["empty"]),
        token("fleet", "viewer"),
        token("rita", "admin"),
    ]
    limits = {"requests_per_second": 1e6, "request_burst": 10**6}
    return ApiSettings.model_validate({"tokens": tokens, "limits": limits})


@contextmanager
def two_tenants(folder: Path) -> Iterator[World]:
    """The brain after some minutes of readings, with what it found, decided and counted."""
    clock = ManualClock(T0)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(assembly, "Managers", lambda _executors, *rest: Managers([Shows()], *rest))
        running = open_brain(settings_in(folder), clock, propose=True)
    made = World(running)
    try:
        for step in range(STEPS):
            if step % 15 == 0:
                running.brain.managers.look()
                running.brain.managers.look_at_work()
            running.brain.accept(_batch(step))
            clock.advance(STEP)
            if step % 15 == 14:
                running.brain.tick()
        running.brain.managers.look()
        running.brain.managers.look_at_work()
        running.brain.usage.look()
        running.brain.forecast()
        made.app = app = create_app(BrainService(running.brain), api_settings(), clock)
        for name, secret in SECRETS.items():
            headers = {"Authorization": f"Bearer {secret}"}
            made.clients[name] = TestClient(app, base_url="http://127.0.0.1", headers=headers)
        paused = made.clients["rita"].post("/v1/pause", json={"reason": "notes of the operators"})
        assert paused.status_code == 200
        yield made
    finally:
        running.stop()

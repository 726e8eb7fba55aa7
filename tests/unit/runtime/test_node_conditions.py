"""Conditions of others become events of their hosts, told again while they stay, and over when the tool says so."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tocsin.actions.kubernetes.api import STRATEGIC
from tocsin.actions.kubernetes.cluster import Cluster
from tocsin.config.settings import Settings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import MINUTE, ManualClock
from tocsin.domain.event import Event, EventKind
from tocsin.domain.node_fault import NodeFault
from tocsin.runtime.brain.brain import Brain
from tocsin.runtime.brain.node_conditions import REPEAT_MS, ConditionWatch, open_conditions
from tocsin.store.port import StoreUnavailable
from tocsin_testing.builders import T0, gpu, reading
from tocsin_testing.kube_double import ADMIN, KubeDouble
from tocsin_testing.kube_site import DirectDoor


class _Fleet:
    """A brain with hosts n1 and n3, over a cluster with nodes n1 and n2."""

    def __init__(self) -> None:
        self.double = KubeDouble()
        self.admin = DirectDoor(self.double, ADMIN)
        for name in ("n1", "n2"):
            self.admin.ask("POST", "/api/v1/nodes", body={"metadata": {"name": name}})
        self.clock, self.events = ManualClock(T0), list[Event]()
        self.held, self.full = True, False
        readings = [reading(gpu(0, host="n1"), at_ms=T0), reading(gpu(1, host="n3"), at_ms=T0)]
        self.brain = cast(
            Brain,
            SimpleNamespace(
                settings=Settings.model_validate({"kubernetes": {"read_conditions": True}}),
                clock=self.clock,
                lease=SimpleNamespace(held=lambda: self.held),
                memory=SimpleNamespace(latest=lambda: readings),
                accept=self._accept,
            ),
        )
        self.watch = ConditionWatch(self.brain, Cluster(DirectDoor(self.double)))

    def _accept(self, batch: Batch) -> None:
        if self.full:
            raise StoreUnavailable("the disk is full")
        self.events += batch.events

    def set(self, kind: str, status: str, node: str = "n1", writer: str = "npd") -> None:
        body: dict[str, Any] = {"type": kind, "status": status, "reason": "R", "message": "m"}
        patch = {"status": {"conditions": [body]}}
        path, query = f"/api/v1/nodes/{node}/status", {"fieldManager": writer}
        self.admin.ask("PATCH", path, query=query, body=patch, content_type=STRATEGIC)

    def look(self, after_ms: int = 30_000) -> list[tuple[str, int, str]]:
        """What a look tells."""
        self.clock.advance(after_ms)
        before = len(self.events)
        self.watch.look()
        return [(one.host, one.code, one.message) for one in self.events[before:]]


@pytest.fixture
def fleet() -> _Fleet:
    return _Fleet()


def test_a_bad_condition_is_told_at_once_again_while_it_stays_and_over_when_it_is_good(fleet: _Fleet) -> None:
    fleet.set("XIDErrors", "False")
    fleet.set("XIDErrors", "True", node="n2")
    assert fleet.look() == [], "n2 is no host of ours"
    fleet.set("XIDErrors", "True")
    said = "AKS sets XIDErrors=True (R: m)"
    assert fleet.look() == [("n1", NodeFault.GPU_CONDITION, said)]
    assert fleet.look() == []
    assert fleet.look(REPEAT_MS) == [("n1", NodeFault.GPU_CONDITION, said)]
    fleet.set("XIDErrors", "Unknown")
    assert fleet.look(MINUTE) == [], "unknown is not well"
    fleet.set("XIDErrors", "False")
    assert fleet.look() == [("n1", NodeFault.GPU_CONDITION.over, f"over: {said}")]
    assert fleet.look(REPEAT_MS) == []
    (first, *_rest) = fleet.events
    assert (first.kind, first.gpu, first.source) == (EventKind.NODE_FAULT, "", "kubernetes")


def test_gpus_and_the_node_are_told_apart_and_many_conditions_are_counted(fleet: _Fleet) -> None:
    for kind in ("GpuMemWatch", "GpuPcieWatch", "GpuSmWatch", "GpuMcuWatch"):
        fleet.set(kind, "True")
    fleet.set("KernelReady", "False")
    (gpus, node) = fleet.look()
    assert gpus[2].endswith("(R: m) and 1 more")
    assert node == ("n1", NodeFault.NODE_CONDITION, "EKS node monitoring agent sets KernelReady=False (R: m)")
    fleet.set("GpuMcuWatch", "False")
    assert [code for _, code, _ in fleet.look()] == [NodeFault.GPU_CONDITION], "what is bad has changed"


def test_tocsin_s_own_condition_is_not_read_back(fleet: _Fleet) -> None:
    fleet.set("AcceleratedHardwareReady", "False", writer="tocsin")
    assert fleet.look() == []


def test_only_the_active_brain_reads_and_what_was_not_stored_is_told_later(fleet: _Fleet) -> None:
    fleet.set("XIDErrors", "True")
    fleet.held = False
    assert fleet.look() == []
    fleet.held, fleet.full = True, True
    assert fleet.look() == []
    fleet.full = False
    assert len(fleet.look()) == 1
    fleet.double.withheld = frozenset({"list nodes"})
    assert fleet.look(REPEAT_MS) == [], "a refusal is logged"


def test_it_is_off_unless_set() -> None:
    brain = cast(Brain, SimpleNamespace(settings=Settings()))
    assert open_conditions(brain) is None

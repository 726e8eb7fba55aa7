"""A brain that observes alone: what it shows at the nodes of its managers, and what it reads there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tocsin.actions.kubernetes.api import STRATEGIC
from tocsin.config.settings import Settings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import SECOND, ManualClock
from tocsin.domain.event import Event
from tocsin.runtime.brain import slurm_signs
from tocsin.runtime.brain.assembly import RunningBrain, open_brain
from tocsin_testing.builders import T0, gpu, reading, xid
from tocsin_testing.fake_slurm import FakeSlurm, Node
from tocsin_testing.kube_site import Site, double_site

GPU = gpu(7, host="n1")
EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"


class _World:
    """A cluster with node n1, and a brain past its boot grace that has seen the GPU there."""

    def __init__(self, folder: Path, site: Site, **more: Any) -> None:
        self.site, self.clock, self.node = site, ManualClock(T0), site.node("n1")
        wanted = {
            "store": {"path": folder / "store.db"},
            "journal": {"path": folder / "journal.db"},
            "forecast": {"worker": False},
            "actions": {"mode": "observe", "boot_grace_seconds": 0},
        }
        self.running: RunningBrain = open_brain(Settings.model_validate(wanted | more), self.clock)

    def see(self, *events: Event) -> None:
        self.clock.advance(10 * SECOND)
        seen = reading(GPU, self.clock.now_ms(), temperature_celsius=55, power_watts=300)
        self.running.brain.accept(Batch(readings=[seen], events=list(events)))
        self.running.brain.tick()

    def fault(self) -> None:
        """The GPU falls off the bus."""
        self.see(xid(79, GPU, self.clock.now_ms()))

    def names(self) -> set[str]:
        return {one.name for one in self.running.threads} & {"signs", "conditions", "slurm_signs", "pod_role"}

    def turn(self, name: str) -> None:
        """One turn of that thread."""
        (thread,) = [one for one in self.running.threads if one.name == name]
        thread.once()
        assert thread.failures == 0

    def conditions(self) -> dict[str, dict[str, Any]]:
        return {one["type"]: one for one in self.site.find_node(self.node)["status"]["conditions"]}

    def active(self) -> set[tuple[str, str]]:
        return {(one.rule, one.subject.name) for one in self.running.brain.active}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with double_site(tmp_path) as found:
        yield found


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def _opened(stack: ExitStack, folder: Path, site: Site, **more: Any) -> _World:
    world = _World(folder, site, **more)
    stack.callback(world.running.stop)
    return world


def _kubernetes(site: Site, **more: object) -> dict[str, Any]:
    return {"kubernetes": {"kubeconfig": site.kubeconfig, **more}}


def test_a_fault_stands_at_its_node_as_a_condition_and_an_event(tmp_path: Path, site: Site, stack: ExitStack) -> None:
    world = _opened(stack, tmp_path, site, **_kubernetes(site, show_faults=True))
    assert world.names() == {"signs"}
    world.see()
    world.turn("signs")
    assert world.conditions()["TocsinGpuFault"]["status"] == "False"
    world.fault()
    world.turn("signs")
    (incident,) = world.running.brain.incidents
    shown = world.conditions()["TocsinGpuFault"]
    assert (shown["status"], incident.id in shown["message"]) == ("True", True)
    assert world.conditions()["Ready"]["status"] == "True", "the kubelet's stays"
    (event,) = site.get(EVENTS)["items"]
    assert (event["regarding"]["kind"], event["regarding"]["name"]) == ("Node", "n1")
    assert incident.id in event["note"]
    assert site.double is not None
    assert {one.resource for one in site.double.writes()} >= {"nodes/status", "events"}
    assert "unschedulable" not in site.find_node("n1")["spec"], "it only observes"


def test_a_condition_that_another_tool_keeps_is_evidence_for_a_rule(
    tmp_path: Path, site: Site, stack: ExitStack
) -> None:
    world = _opened(stack, tmp_path, site, **_kubernetes(site, read_conditions=True))
    assert world.names() == {"conditions"}
    bad = {"type": "XIDErrors", "status": "True", "reason": "XIDErrorFound", "message": "Xid 79"}
    path = "/api/v1/nodes/n1/status"
    site.door.ask("PATCH", path, body={"status": {"conditions": [bad]}}, content_type=STRATEGIC)
    world.see()
    assert world.active() == set()
    world.turn("conditions")
    world.see()
    assert world.active() == {("gpu_condition", "n1")}
    (finding,) = world.running.brain.active
    assert "AKS sets XIDErrors=True (XIDErrorFound: Xid 79)" in str(finding)
    assert "TocsinGpuFault" not in world.conditions(), "nothing asked for it to be shown"


def test_a_fault_stands_in_the_comment_of_its_slurm_node(
    tmp_path: Path, site: Site, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = FakeSlurm({"n1": Node(comment="rack 7")})
    monkeypatch.setattr(slurm_signs, "runner_of", lambda *_: cluster)
    world = _opened(stack, tmp_path, site, slurm={"show_faults": True, "snapshot_seconds": 0})
    assert world.names() == {"slurm_signs"}
    world.fault()
    world.turn("slurm_signs")
    (incident,) = world.running.brain.incidents
    assert cluster.nodes["n1"].comment.startswith("rack 7 [tocsin: ")
    assert f"(card {incident.id})]" in cluster.nodes["n1"].comment
    assert cluster.nodes["n1"].flags == set(), "it only observes"


def test_the_own_pod_is_labelled_as_the_active_one(tmp_path: Path, site: Site, stack: ExitStack) -> None:
    title = site.pod("brain-0", site.node("n2"), gpus=0)
    world = _opened(stack, tmp_path, site, **_kubernetes(site, pod=title))
    assert world.names() == {"pod_role"}
    world.turn("pod_role")
    assert site.find_pod(title)["metadata"]["labels"]["tocsin.io/brain"] == "active"


def test_nothing_at_nodes_is_touched_unasked(tmp_path: Path, site: Site, stack: ExitStack) -> None:
    assert _opened(stack, tmp_path, site, **_kubernetes(site)).names() == set()

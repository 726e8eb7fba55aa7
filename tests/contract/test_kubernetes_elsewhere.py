"""What Tocsin's marks start elsewhere, on nodes and pods of recorded exchanges.

Neither Kueue, JobSet nor Karpenter runs here: what each goes by, as its documents and source say, is held against what
Tocsin has written.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tocsin.actions.executors.kubernetes import Kubernetes
from tocsin.actions.kubernetes.cluster import Cluster
from tocsin.actions.kubernetes.signs import HEARTBEAT_MS, Fault, Signs
from tocsin.actions.model.executor import ExecutionResult
from tocsin.domain.clock import MINUTE, SECOND, ManualClock
from tocsin.domain.decision import Decision
from tocsin.domain.finding import ActionKind
from tocsin_testing.builders import T0
from tocsin_testing.kube_recorded import exchanges
from tocsin_testing.kube_site import Site, decide, double_site

Json = dict[str, Any]
REPAIR = "AcceleratedHardwareReady"
POLICIES = {
    REPAIR: ("False", 10), "StorageReady": ("False", 30), "NetworkingReady": ("False", 30),
    "KernelReady": ("False", 30), "ContainerRuntimeReady": ("False", 30), "Ready": ("False", 30),
}  # fmt: skip
"""Conditions by which Karpenter's provider for AWS repairs: the bad status, and minutes since its transition."""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with double_site(tmp_path) as found:
        yield found


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(T0)


def kueue_replaces(site: Site, node: str, tolerated: str = "") -> bool:
    """Topology-aware scheduling: a taint NoSchedule or NoExecute that the workload does not tolerate, and none of its
    pods on the node."""
    taints = site.find_node(node)["spec"].get("taints", [])
    kept_off = any(one["effect"] in ("NoSchedule", "NoExecute") and one["key"] != tolerated for one in taints)
    return kept_off and not pods(site, node)


def karpenter_repairs(site: Site, node: str, now_ms: int) -> list[str]:
    """Conditions that have been bad for long enough."""
    found = []
    for one in site.find_node(node)["status"]["conditions"]:
        bad, minutes = POLICIES.get(one["type"], ("", 0))
        if one["status"] == bad:
            since = datetime.fromisoformat(one["lastTransitionTime"]).timestamp()
            found += [one["type"]] if now_ms / 1000 - since >= minutes * 60 else []
    return found


def pods(site: Site, node: str) -> list[Json]:
    every = site.get(f"/api/v1/namespaces/{site.space}/pods")["items"]
    return [one for one in every if one["spec"].get("nodeName") == node]


def carried_out(executor: Kubernetes, decision: Decision, site: Site, clock: ManualClock) -> ExecutionResult:
    result = executor.execute(decision)
    for _ in range(20):
        if not result.pending:
            break
        site.settle()
        clock.advance(10 * SECOND)
        result = executor.execute(decision)
    assert result.ok
    return result


def test_kueue_replaces_a_node_once_a_drain_has_made_its_pods_go(site: Site, clock: ManualClock) -> None:
    node, executor = site.node(), site.executor(clock)
    site.pod("train-0", node)
    for action in (ActionKind.PLACE_ELSEWHERE, ActionKind.CORDON):
        assert executor.execute(decide(action, node)).ok
        assert not kueue_replaces(site, node), action
    drain = decide(ActionKind.DRAIN, node)
    assert executor.execute(drain).pending
    assert not kueue_replaces(site, node), "its pod is ending"
    carried_out(executor, drain, site, clock)
    assert kueue_replaces(site, node)
    assert not kueue_replaces(site, node, tolerated="node.kubernetes.io/unschedulable")
    assert carried_out(executor, decide(ActionKind.UNCORDON, node), site, clock).ok
    assert not kueue_replaces(site, node)


def test_steering_away_alone_moves_nothing_of_kueue_s(site: Site, clock: ManualClock) -> None:
    node = site.node()
    assert site.executor(clock).execute(decide(ActionKind.PLACE_ELSEWHERE, node)).ok
    assert site.find_node(node)["spec"]["taints"][0]["effect"] == "PreferNoSchedule"
    assert not kueue_replaces(site, node)


def test_a_jobset_sees_failed_pods_by_a_drain_alone_and_can_tell_an_eviction(site: Site, clock: ManualClock) -> None:
    node, executor = site.node(), site.executor(clock)
    site.pod("train-0", node)
    for action in (ActionKind.PLACE_ELSEWHERE, ActionKind.CORDON):
        executor.execute(decide(action, node))
        (pod,) = pods(site, node)
        assert (pod["status"]["phase"], pod["metadata"].get("deletionTimestamp")) == ("Running", None)
    assert executor.execute(decide(ActionKind.DRAIN, node)).pending
    (pod,) = pods(site, node)
    assert pod["metadata"]["deletionTimestamp"]
    assert site.double is not None
    assert [one.path.rsplit("/", 1)[1] for one in site.double.writes() if one.plural == "pods"][-1] == "eviction"
    evicted = exchanges()["evict_201_pod_after"]["response"]["body"]["status"]["conditions"]
    (target,) = [one for one in evicted if one["type"] == "DisruptionTarget"]
    assert (target["status"], target["reason"]) == ("True", "EvictionByEvictionAPI"), "which a policy can ignore"


def test_karpenter_repairs_by_the_condition_that_a_setting_names_and_its_clock_is_not_set_back(
    site: Site, clock: ManualClock
) -> None:
    nodes = {name: site.node(name) for name in ("asked", "plain")}
    executors = {"asked": site.executor(clock, repair_condition=REPAIR), "plain": site.executor(clock)}
    for name, node in nodes.items():
        site.pod(f"{name}-0", node)
        carried_out(executors[name], decide(ActionKind.DRAIN, node, name), site, clock)
    drained, fault = clock.now_ms(), Fault("0123456789abcdef", "xid_bus", "GPU-7 fell off the bus", "drain")
    signs = Signs(Cluster(site.door))
    for minute in range(1, 31):
        clock.advance(MINUTE)
        if minute * MINUTE % HEARTBEAT_MS == 0:
            signs.show({node: [fault] for node in nodes.values()}, dict.fromkeys(nodes.values(), True), clock.now_ms())
            executors["asked"].upkeep()
            again = replace(decide(ActionKind.DRAIN, nodes["asked"], f"at {minute}"), sentence=f"told {minute}")
            carried_out(executors["asked"], again, site, clock)
        repairs = karpenter_repairs(site, nodes["asked"], clock.now_ms())
        assert repairs == ([REPAIR] if clock.now_ms() - drained >= 10 * MINUTE else []), minute
        assert karpenter_repairs(site, nodes["plain"], clock.now_ms()) == [], "our own types start nothing"
    assert {one["type"] for one in site.find_node(nodes["plain"])["status"]["conditions"]} >= {
        "TocsinGpuHealthy", "TocsinGpuFault",
    }  # fmt: skip

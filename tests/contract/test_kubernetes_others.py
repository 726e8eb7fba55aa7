"""Executor `kubernetes` where others write on the same nodes, pods and autoscalers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tocsin.domain.clock import SECOND, ManualClock
from tocsin.domain.decision import Decision
from tocsin.domain.finding import ActionKind, Subject, SubjectKind
from tocsin_testing.action_world import World
from tocsin_testing.builders import T0
from tocsin_testing.kube_double import Asked
from tocsin_testing.kube_recorded import Answer, recorded
from tocsin_testing.kube_site import Site, decide, double_site, owner_of

VIEW = World().view()
FAULT = "example.com/fault"
THEIRS = {"key": FAULT, "value": "npd", "effect": "NoExecute"}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with double_site(tmp_path) as found:
        yield found


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(T0)


def _close(site: Site, node: str, closed: bool | None, **spec: Any) -> None:
    """As ``kubectl cordon`` and ``kubectl uncordon`` do."""
    site.edit(f"/api/v1/nodes/{node}", spec={"unschedulable": closed, **spec})


def _taints(site: Site, node: str) -> set[tuple[str, str, str]]:
    found = site.find_node(node)["spec"].get("taints", [])
    return {(each["key"], each.get("value", ""), each["effect"]) for each in found if "node.kube" not in each["key"]}


def test_a_pod_that_asks_for_an_odd_quantity_blinds_nobody(site: Site, clock: ManualClock) -> None:
    node = site.node()
    body = {
        "metadata": {"name": "shared", "labels": {}},
        "spec": {
            "nodeName": node,
            "containers": [
                {"name": "m", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3k"}}}
            ],
        },
    }
    site.door.ask("POST", f"/api/v1/namespaces/{site.space}/pods", body=body)
    assert site.executor(clock).nodes()[node].work == (f"{site.space}/shared",)


def test_a_cordon_that_a_person_made_after_undoing_tocsin_s_is_that_person_s(site: Site, clock: ManualClock) -> None:
    node = site.node()
    executor = site.executor(clock, fault_taint=FAULT)
    executor.execute(decide(ActionKind.CORDON, node, "k1"))
    assert executor.nodes()[node].ours
    _close(site, node, None)
    _close(site, node, True)
    assert not executor.nodes()[node].ours
    result = executor.execute(decide(ActionKind.UNCORDON, node, "k2"))
    assert (result.ok, site.find_node(node)["spec"]["unschedulable"]) == (False, True)
    assert "someone else" in result.detail
    assert _taints(site, node) == set(), "what Tocsin put is taken back even so"


def test_marks_on_a_node_that_a_person_gave_back_are_taken_off(site: Site, clock: ManualClock) -> None:
    node = site.node()
    executor = site.executor(clock, fault_taint=FAULT)
    cordon = decide(ActionKind.CORDON, node)
    executor.execute(cordon)
    assert executor.upkeep() == []
    _close(site, node, None)
    assert executor.upkeep() == [node]
    found = site.find_node(node)
    assert "tocsin.io/cordoned-by" not in found["metadata"]["labels"]
    assert "tocsin.io/cordon-reason" not in found["metadata"]["annotations"]
    assert _taints(site, node) == set()
    assert executor.upkeep() == []
    again = site.executor(clock, fault_taint=FAULT).execute(cordon)
    assert (again.ok, "unschedulable" in site.find_node(node)["spec"]) == (False, False), "it stays overruled"
    assert site.executor(clock).execute(decide(ActionKind.CORDON, node, "later")).ok


def test_taints_of_others_with_the_same_key_stay(site: Site, clock: ManualClock) -> None:
    node = site.node()
    theirs = (FAULT, "npd", "NoExecute")
    avoid = {"key": "tocsin.io/avoid", "value": "x", "effect": "NoSchedule"}
    site.edit(f"/api/v1/nodes/{node}", spec={"taints": [THEIRS, avoid]})
    executor = site.executor(clock, fault_taint=FAULT)
    cordon = decide(ActionKind.CORDON, node)
    executor.execute(cordon)
    executor.execute(decide(ActionKind.PLACE_ELSEWHERE, node))
    kept = {theirs, ("tocsin.io/avoid", "x", "NoSchedule")}
    assert _taints(site, node) == kept | {
        (FAULT, cordon.id, "NoSchedule"),
        ("tocsin.io/avoid", "true", "PreferNoSchedule"),
    }
    assert executor.execute(decide(ActionKind.UNCORDON, node)).ok
    assert _taints(site, node) == kept


def test_the_taint_of_a_cordon_that_is_not_tocsin_s_stays(site: Site, clock: ManualClock) -> None:
    node = site.node()
    closed = THEIRS | {"effect": "NoSchedule"}
    _close(site, node, True, taints=[THEIRS, closed])
    executor = site.executor(clock, fault_taint=FAULT)
    assert not executor.execute(decide(ActionKind.UNCORDON, node)).ok
    assert _taints(site, node) == {(FAULT, "npd", "NoExecute"), (FAULT, "npd", "NoSchedule")}
    _close(site, node, None)
    executor.execute(decide(ActionKind.CORDON, node, "k2"))
    executor.execute(decide(ActionKind.UNCORDON, node, "k2"))
    assert _taints(site, node) == {(FAULT, "npd", "NoExecute"), (FAULT, "npd", "NoSchedule")}


def _blocked_drain(site: Site, node: str) -> str:
    pod = site.pod("train-0", node, owner=owner_of("apps/v1", "ReplicaSet", "train"))
    site.budget("train", "train", 1)
    return pod


def test_a_pod_that_never_ends_after_it_was_deleted_fails_the_drain(site: Site, clock: ManualClock) -> None:
    node = site.node()
    _blocked_drain(site, node)
    executor = site.executor(clock, drain_seconds=60, delete_blocked_pods=True)
    results = []
    for _ in range(40):
        results.append(executor.execute(decide(ActionKind.DRAIN, node)))
        if not results[-1].pending:
            break
        clock.advance(10 * SECOND)
    assert not results[-1].ok
    assert results[-1].detail.startswith("not drained within 60 s")
    assert sum("deleted against their budgets" in each.detail for each in results) == 1


@pytest.mark.parametrize("status", [404, 409])
def test_a_pod_that_goes_while_it_is_deleted_is_no_error(site: Site, clock: ManualClock, status: int) -> None:
    node = site.node()
    pod = _blocked_drain(site, node)
    assert site.double is not None

    def gone(asked: Asked) -> Answer | None:
        if asked.method != "DELETE" or asked.plural != "pods":
            return None
        assert site.double is not None
        site.double.before = lambda _: None
        site.finish(pod)
        return Answer(status, recorded("rbac_403_eviction").body | {"code": status}, {})

    executor = site.executor(clock, drain_seconds=60, delete_blocked_pods=True)
    drain = decide(ActionKind.DRAIN, node)
    executor.execute(drain)
    clock.advance(61 * SECOND)
    site.double.before = gone
    assert executor.execute(drain).pending
    assert executor.execute(drain).ok


def _pool(action: ActionKind, key: str) -> Decision:
    return decide(action, "", key, subject=Subject(SubjectKind.POOL, "p", pool="p"))


def test_a_minimum_that_somebody_moved_is_where_tocsin_begins_anew(site: Site, clock: ManualClock) -> None:
    workloads = {"p": {"target": site.deployment("llm", 3), "min_replicas": 1, "max_replicas": 12}}
    site.autoscaler("llm", 5, 20)
    executor = site.executor(clock, autoscaled="raise_minimum", workloads=workloads)
    path = f"/apis/autoscaling/v2/namespaces/{site.space}/horizontalpodautoscalers/llm"

    def after(action: ActionKind, key: str) -> int:
        assert executor.execute(_pool(action, key)).ok
        return int(site.get(path)["spec"]["minReplicas"])

    assert after(ActionKind.SCALE_OUT, "a") == 6
    site.edit(path, spec={"minReplicas": 1})
    assert after(ActionKind.SCALE_IN, "b") == 1, "no minimum is raised to scale in"
    site.edit(path, spec={"minReplicas": 2})
    assert after(ActionKind.SCALE_OUT, "c") == 3, "one step, and no jump to an old minimum"
    assert after(ActionKind.SCALE_IN, "d") == 2
    assert after(ActionKind.SCALE_IN, "e") == 2, "never below what it was before"
    site.edit(path, metadata={"annotations": {"tocsin.io/minimum-before": "many"}})
    assert after(ActionKind.SCALE_OUT, "f") == 3

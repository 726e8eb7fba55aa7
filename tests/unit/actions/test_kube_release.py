"""What Tocsin wrote on nodes is taken back, and nothing of others."""

from __future__ import annotations

from typing import Any

import pytest

from tocsin.actions.kubernetes import patches
from tocsin.actions.kubernetes.api import MERGE, STRATEGIC, KubeError, KubeNode
from tocsin.actions.kubernetes.cluster import Cluster
from tocsin.actions.kubernetes.release import Released, own_conditions, release_all
from tocsin_testing.kube_double import ADMIN, KubeDouble
from tocsin_testing.kube_recorded import exchanges
from tocsin_testing.kube_site import DirectDoor

KEY = "00112233aabbccdd"
FOREIGN = {"key": "example.com/maintenance", "value": "x", "effect": "NoSchedule"}
NPD = {"type": "KernelDeadlock", "status": "False", "reason": "KernelHasNoDeadlock"}
OURS = {"type": "TocsinGpuHealthy", "status": "False", "reason": "TocsinCordon"}
REPAIR = {"type": "AcceleratedHardwareReady", "status": "False", "reason": "TocsinDrain"}


@pytest.fixture
def double() -> KubeDouble:
    made = KubeDouble()
    door = DirectDoor(made, ADMIN)
    for name in ("n1", "n2", "n3"):
        body = {"metadata": {"name": name, "labels": {"team": "blue"}}, "spec": {"taints": [FOREIGN]}}
        door.ask("POST", "/api/v1/nodes", body=body)
        path, query = f"/api/v1/nodes/{name}/status", {"fieldManager": "node-problem-detector"}
        door.ask("PATCH", path, query=query, body={"status": {"conditions": [NPD]}}, content_type=STRATEGIC)
    return made


def _cluster(double: KubeDouble, *, dry_run: bool = False) -> Cluster:
    return Cluster(DirectDoor(double), dry_run=dry_run)


def _mark_all(cluster: Cluster, node: str, key: str = KEY) -> None:
    """Each mark that executors make; the taint's key is one that settings name no more."""
    note = patches.CordonNote(key, "XID 79", "2026-11-24T00:00:00Z", "tocsin.io/old-key")
    assert cluster.change_node(node, lambda found: patches.cordon(found, note))
    assert cluster.change_node(node, lambda found: patches.avoid(found, "2027-01-01T00:00:00Z", "a", by_taint=True))
    assert cluster.change_node(node, lambda found: patches.avoid(found, "2027-01-01T00:00:00Z", "b", by_taint=False))
    assert cluster.change_node(node, lambda _: {"metadata": {"annotations": {f"{patches.MIGRATED}c": "uid"}}})
    cluster.set_condition(node, OURS)


def _ours_in(node: dict[str, Any]) -> list[str]:
    """Everything on a node that is Tocsin's."""
    about, spec = node["metadata"], node["spec"]
    names = [*about.get("labels", {}), *about.get("annotations", {}), *(each["key"] for each in spec["taints"])]
    return [name for name in names if "tocsin" in name] + [
        each["type"] for each in node["status"]["conditions"] if each["type"] == OURS["type"]
    ]


def test_all_that_executors_made_is_gone_and_what_others_made_stays(double: KubeDouble) -> None:
    cluster = _cluster(double)
    _mark_all(cluster, "n1")
    assert len(_ours_in(cluster.node("n1").raw)) == 12
    taken = (
        "cordon",
        "taint tocsin.io/old-key:NoSchedule",
        "taint tocsin.io/avoid:PreferNoSchedule",
        "label tocsin.io/cordoned-by",
        "label tocsin.io/avoid",
        "condition TocsinGpuHealthy",
    )
    before = cluster.node("n1").raw
    assert list(release_all(_cluster(double, dry_run=True), forget=True)) == [Released("n1", taken)]
    assert cluster.node("n1").raw == before
    assert list(release_all(cluster, forget=True)) == [Released("n1", taken)]
    after = cluster.node("n1")
    assert _ours_in(after.raw) == []
    assert after.schedulable
    assert (after.labels, after.taints, after.conditions) == ({"team": "blue"}, [FOREIGN], [NPD])
    assert list(release_all(cluster, forget=True)) == []


def test_a_decision_that_ended_stays_known_unless_it_is_to_be_forgotten(double: KubeDouble) -> None:
    cluster = _cluster(double)
    _mark_all(cluster, "n1")
    assert [one.node for one in release_all(cluster)] == ["n1"]
    assert sorted(_ours_in(cluster.node("n1").raw)) == [patches.CORDONS_ENDED, patches.KEYS_RUN]
    assert patches.cordon_state(cluster.node("n1"), KEY) is patches.CordonState.UNDONE
    assert list(release_all(cluster)) == []
    assert list(release_all(cluster, forget=True)) == [Released("n1", ("annotations",))]
    assert _ours_in(cluster.node("n1").raw) == []


def test_the_cordon_taint_and_condition_of_somebody_else_stay(double: KubeDouble) -> None:
    cluster, door = _cluster(double), DirectDoor(double, ADMIN)
    _mark_all(cluster, "n1")
    for closed in (False, True):
        body = {"spec": {"unschedulable": closed}}
        door.ask("PATCH", "/api/v1/nodes/n1", query={"fieldManager": "kubectl"}, body=body, content_type=MERGE)
    shared = {"status": {"conditions": [OURS]}}
    door.ask("PATCH", "/api/v1/nodes/n1/status", query={"fieldManager": "x"}, body=shared, content_type=STRATEGIC)
    lone = [{"key": "tocsin.io/old-key", "value": "ops", "effect": "NoSchedule"}, FOREIGN]
    door.ask("PATCH", "/api/v1/nodes/n2", body={"spec": {"taints": lone}}, content_type=MERGE)
    (found,) = release_all(cluster, condition=str(OURS["type"]))
    assert found.left == ("the cordon is somebody else's by now",)
    assert "cordon" not in found.taken
    after = cluster.node("n1")
    assert (after.schedulable, after.condition(str(OURS["type"]))["status"]) == (False, "False")
    assert cluster.node("n2").taints == lone


def _ask_for_repair(double: KubeDouble) -> Cluster:
    """Tocsin asked the provider for a repair of n1, the provider's own agent says that n2 is broken."""
    cluster, door = _cluster(double), DirectDoor(double, ADMIN)
    cluster.set_condition("n1", REPAIR)
    theirs = {"status": {"conditions": [REPAIR | {"reason": "XIDErrorFound"}]}}
    query = {"fieldManager": "eks-node-monitoring-agent"}
    door.ask("PATCH", "/api/v1/nodes/n2/status", query=query, body=theirs, content_type=STRATEGIC)
    return cluster


@pytest.mark.parametrize("told", [True, False])
def test_what_the_provider_is_asked_to_repair_is_taken_back_and_its_own_word_stays(
    double: KubeDouble, told: bool
) -> None:
    cluster = _ask_for_repair(double)
    if not told:
        double.forget_writers()
    kind = REPAIR["type"]
    assert list(release_all(cluster, repair=kind)) == [Released("n1", (f"condition {kind}",))]
    assert not cluster.node("n1").condition(kind)
    assert cluster.node("n2").condition(kind)["reason"] == "XIDErrorFound"
    assert list(release_all(cluster, repair=kind)) == []


def test_where_no_writer_is_told_the_types_that_settings_name_are_taken_back_and_the_own_one(
    double: KubeDouble,
) -> None:
    cluster = _ask_for_repair(double)
    cluster.set_condition("n1", OURS)
    cluster.set_condition("n3", {"type": "TocsinGpuFault", "status": "True", "reason": "XidBus"})
    double.forget_writers()
    assert list(release_all(cluster)) == [Released("n3", ("condition TocsinGpuFault",))]
    found = list(release_all(cluster, condition=OURS["type"], repair=REPAIR["type"]))
    assert found == [Released("n1", ("condition TocsinGpuHealthy", "condition AcceleratedHardwareReady"))]
    assert cluster.node("n1").conditions == [NPD]


def _partitioned(double: KubeDouble, node: str, before: str = "all-disabled") -> Cluster:
    """A node whose layout Tocsin has changed twice."""
    cluster = _cluster(double)
    if before:
        assert cluster.change_node(node, lambda _: {"metadata": {"labels": {patches.MIG_CONFIG: before}}})
    for config, key in (("all-2g.20gb", "aa" * 8), ("all-1g.10gb", KEY)):
        assert cluster.change_node(node, lambda found, config=config, key=key: patches.repartition(found, config, key))  # type: ignore[misc]
    return cluster


@pytest.mark.parametrize("before", ["all-disabled", ""])
def test_a_layout_of_gpus_is_asked_for_again_as_it_was_before_tocsin(double: KubeDouble, before: str) -> None:
    cluster = _partitioned(double, "n2", before)
    again = f"label nvidia.com/mig.config, again {before or 'none'}"
    assert list(release_all(_cluster(double, dry_run=True))) == [Released("n2", (again,))]
    assert cluster.node("n2").labels[patches.MIG_CONFIG] == "all-1g.10gb"
    assert list(release_all(cluster)) == [Released("n2", (again,))]
    after = cluster.node("n2")
    assert after.labels.get(patches.MIG_CONFIG, "") == before
    assert after.labels.get(patches.MIG_STATE, "") == ("pending" if before else ""), "no word of before is left"
    assert _ours_in(after.raw) == [patches.KEYS_RUN]
    assert patches.repartition(after, "all-1g.10gb", KEY) is None, "a brain that has forgotten it does not do it again"
    assert list(release_all(cluster)) == []
    assert list(release_all(cluster, forget=True)) == [Released("n2", ("annotations",))]
    assert _ours_in(cluster.node("n2").raw) == []


def test_a_layout_that_an_older_version_changed_goes_back_too(double: KubeDouble) -> None:
    notes = {patches.MIG_BEFORE: "all-disabled", patches.MIG_KEY: KEY}
    metadata = {"labels": {patches.MIG_CONFIG: "all-1g.10gb"}, "annotations": notes}
    assert _cluster(double).change_node("n2", lambda _: {"metadata": metadata})
    (found,) = release_all(_cluster(double))
    assert found.taken == ("label nvidia.com/mig.config, again all-disabled",)
    assert _cluster(double).node("n2").annotations == {patches.KEYS_RUN: KEY}


def test_a_layout_that_is_as_before_again_is_only_forgotten(double: KubeDouble) -> None:
    cluster = _partitioned(double, "n2")
    assert cluster.change_node("n2", lambda found: patches.repartition(found, "all-disabled", "bb" * 8))
    state = cluster.node("n2").labels
    assert list(release_all(cluster)) == [Released("n2", ("annotations",))]
    assert cluster.node("n2").labels == state


def test_a_layout_in_use_stays_and_is_said(double: KubeDouble) -> None:
    cluster, door = _partitioned(double, "n2"), DirectDoor(double, ADMIN)
    holds = {"resources": {"limits": {"nvidia.com/gpu": "1"}}, "name": "c", "image": "i"}
    pod = {"metadata": {"name": "train", "namespace": "ml"}, "spec": {"nodeName": "n2", "containers": [holds]}}
    door.ask("POST", "/api/v1/namespaces/ml/pods", body=pod)
    (found,) = release_all(cluster)
    assert found == Released(
        "n2",
        waits=(
            "nvidia.com/mig.config stays all-1g.10gb, it was all-disabled before: ml/train hold GPUs; "
            "drain the node and run tocsin release --all again",
        ),
    )
    assert cluster.node("n2").labels[patches.MIG_CONFIG] == "all-1g.10gb"
    door.ask(
        "PATCH", "/api/v1/namespaces/ml/pods/train/status", body={"status": {"phase": "Succeeded"}}, content_type=MERGE
    )
    (found,) = release_all(cluster)
    assert (found.taken, found.waits) == (("label nvidia.com/mig.config, again all-disabled",), ())


def test_a_layout_that_somebody_else_changed_since_stays(double: KubeDouble) -> None:
    cluster = _partitioned(double, "n2")
    assert cluster.change_node("n2", lambda _: {"metadata": {"labels": {patches.MIG_CONFIG: "all-3g.40gb"}}})
    said = "nvidia.com/mig.config is somebody else's by now"
    assert list(release_all(cluster)) == [Released("n2", ("annotations",), (said,))]
    assert cluster.node("n2").labels[patches.MIG_CONFIG] == "all-3g.40gb"


def test_one_node_that_refuses_keeps_no_other_from_it_and_a_lacking_right_ends_it(double: KubeDouble) -> None:
    cluster = _cluster(double)
    for node in ("n1", "n2"):
        _mark_all(cluster, node)

    class Stuck(Cluster):
        def remove_conditions(self, name: str, kinds: Any) -> None:
            if name == "n1":
                raise KubeError(422, "refused by a webhook")
            super().remove_conditions(name, kinds)

    class Closed(Cluster):
        def change_node(self, name: str, change: Any) -> bool:
            raise KubeError(422, "refused by a webhook")

    assert {(one.taken, bool(one.error)) for one in release_all(Closed(DirectDoor(double)))} == {((), True)}
    first, second = release_all(Stuck(DirectDoor(double)))
    assert (first.node, first.error) == ("n1", "Kubernetes answered 422: refused by a webhook")
    assert ("condition TocsinGpuHealthy" in first.taken, second.error) == (False, "")
    double.withheld = frozenset({"patch nodes/status"})
    with pytest.raises(KubeError, match="403"):
        list(release_all(cluster))


def test_who_wrote_a_condition_is_read_as_a_server_tells_it() -> None:
    node = KubeNode(exchanges()["node_condition_of_tocsin"]["response"]["body"])
    assert node.condition_writers == {"Ready": {"unknown"}, "GpuHealthy": {"tocsin"}}
    assert own_conditions(node) == ["GpuHealthy"]
    silent = KubeNode(node.raw | {"metadata": {"name": "n"}})
    assert own_conditions(silent) == []
    assert own_conditions(silent, own={"GpuHealthy"}) == ["GpuHealthy"]
    assert own_conditions(silent, shared={"GpuHealthy"}) == [], "its reason is no word of Tocsin's"

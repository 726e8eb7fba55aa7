"""Each verb that the roles grant is used, and each call finds its verb granted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tocsin.actions.kubernetes.cluster import Cluster
from tocsin.actions.kubernetes.devices import Effect, Rule, RuleNote, devices_in, rule_body
from tocsin.actions.kubernetes.rights import FEATURES, SCALED_KINDS, Right
from tocsin.actions.kubernetes.signs import Fault, event
from tocsin.actions.kubernetes.single_gpu import versions_in
from tocsin_testing.builders import T0
from tocsin_testing.kube_devices import DeviceDouble
from tocsin_testing.kube_double import TOCSIN
from tocsin_testing.kube_recorded import exchanges
from tocsin_testing.kube_site import DirectDoor, Site, double_site

SCALED = {"kind": "ScaledObject", "metadata": {"name": "infer"}, "spec": {"scaleTargetRef": {"name": "infer"}}}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with double_site(tmp_path, DeviceDouble()) as found:
        yield found


def _use_nodes_and_pods(cluster: Cluster, site: Site) -> None:
    node = site.node()
    for name in ("a", "b"):
        site.pod(name, node)
    assert cluster.change_node(node, lambda _: {"spec": {"unschedulable": True}})
    cluster.set_condition(node, {"type": "TocsinGpuHealthy", "status": "False"})
    cluster.create_event("default", event(node, Fault("0123456789abcdef", "xid", "XID 79", "drain"), "", T0))
    first, second = cluster.pods_on(node)
    assert (len(cluster.nodes()), len(cluster.placed_pods()), cluster.budgets()) == (1, 2, [])
    cluster.label_pod(first.namespace, first.name, {"tocsin.io/brain": "active"})
    cluster.annotate_pod(first, {"tocsin.io/checkpoint-requested": "k"})
    cluster.evict(cluster.pods_on(node)[0])
    cluster.delete_pod(second)


def _use_workloads(cluster: Cluster, site: Site) -> None:
    assert site.double is not None
    for plural in SCALED_KINDS:
        body = json.loads(json.dumps(exchanges()["deployment_create"]["request"]["body"]))
        body["metadata"]["name"] = "infer"
        folder = f"/apis/apps/v1/namespaces/{site.space}/{plural}"
        site.double.state.create(folder, body)
        version = cluster.workload(f"{folder}/infer")["metadata"]["resourceVersion"]
        cluster.set_replicas(f"{folder}/infer", 7, version, "tocsin-k")
        assert cluster.scale(f"{folder}/infer")["spec"]["replicas"] == 7
    site.autoscaler("infer", 2, 4)
    site.double.state.create(f"/apis/keda.sh/v1alpha1/namespaces/{site.space}/scaledobjects", dict(SCALED))
    for kind in ("HorizontalPodAutoscaler", "ScaledObject"):
        assert len(cluster.autoscalers(kind, site.space)) == 1
        cluster.patch_autoscaler(kind, site.space, "infer", {"metadata": {"annotations": {"tocsin.io/scaled-by": "k"}}})


def _use_devices(cluster: Cluster, site: Site) -> None:
    assert isinstance(site.double, DeviceDouble)
    site.double.publish("gpu-node-1", ["GPU-a", "GPU-b"])
    versions = versions_in(cluster.device_versions())
    devices = devices_in(cluster.slices(versions.objects, "gpu-node-1"))
    note = RuleNote("GPU-b", "0011", "XID 79")
    made = Rule(
        cluster.create_rule(versions.rules, rule_body(versions.rules, devices[1].name, note, "a/b", Effect.NONE))
    )
    cluster.patch_rule(versions.rules, made.name, {"spec": {"taint": {"effect": "NoSchedule"}}})
    assert [one["metadata"]["name"] for one in cluster.rules(versions.rules)] == [made.name]
    assert cluster.claims(versions.objects) == []
    cluster.delete_rule(versions.rules, made.name, made.uid)


def test_every_verb_of_the_roles_is_used_and_no_call_lacks_one(site: Site) -> None:
    assert site.double is not None
    site.double.keda = True
    cluster = Cluster(DirectDoor(site.double, TOCSIN))
    _use_nodes_and_pods(cluster, site)
    _use_workloads(cluster, site)
    _use_devices(cluster, site)
    site.double.tokens["t"] = {"audiences": ["tocsin"], "user": {"username": "u"}}
    assert cluster.review_token("t", "tocsin")["user"] == {"username": "u"}
    cluster.create_lease(site.space, "brain", {"holderIdentity": "a"})
    cluster.update_lease(site.space, cluster.lease(site.space, "brain"), {"holderIdentity": "b"})
    # What the administrator prepared came over the network and says who it is; the cluster's calls did not.
    asked = {Right(one.group, one.resource, one.verb) for one in site.double.served if not one.agent and one.plural}
    assert asked == {right for rights in FEATURES.values() for right in rights}

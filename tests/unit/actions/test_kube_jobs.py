"""Which pods are one job: by the labels of their operators, and by their controllers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tocsin.actions.executors.node import NodeAgents
from tocsin.actions.kubernetes.api import Pod
from tocsin.actions.kubernetes.cluster import Cluster
from tocsin.actions.kubernetes.observe import job_of_pod, node_states
from tocsin.actions.loop.decide import decide
from tocsin.actions.model.ranks import work_on
from tocsin.actions.model.view import GpuView
from tocsin.actions.node.order_queue import OrderQueue
from tocsin.actions.planning.facts import NodeState
from tocsin.domain.clock import ManualClock
from tocsin.domain.decision import Rank, Ruling, ranks_in
from tocsin.domain.finding import ActionKind
from tocsin.domain.reading import Owner
from tocsin.runtime.brain.managers import Managers
from tocsin.telemetry.metrics import OwnMetrics
from tocsin_testing.action_world import FakeExecutor, World, fleet
from tocsin_testing.builders import T0
from tocsin_testing.kube_double import ADMIN, KubeDouble
from tocsin_testing.kube_site import DirectDoor, owner_of


def pod(labels: dict[str, str] | None = None, owner: dict[str, Any] | None = None) -> Pod:
    references = [owner] if owner else []
    return Pod({"metadata": {"namespace": "ns", "name": "p", "labels": labels or {}, "ownerReferences": references}})


@pytest.mark.parametrize(
    ("labels", "job"),
    [
        ({"batch.kubernetes.io/job-name": "a", "job-name": "a"}, "ns/job/a"),
        ({"job-name": "a"}, "ns/job/a"),
        # Two Jobs of one JobSet are one.
        ({"jobset.sigs.k8s.io/jobset-name": "s", "batch.kubernetes.io/job-name": "s-w-0"}, "ns/jobset/s"),
        ({"jobset.sigs.k8s.io/jobset-name": "s", "batch.kubernetes.io/job-name": "s-w-1"}, "ns/jobset/s"),
        ({"training.kubeflow.org/job-name": "t"}, "ns/trainingjob/t"),
        ({"volcano.sh/job-name": "v", "volcano.sh/job-namespace": "ns"}, "ns/volcanojob/v"),
        ({"ray.io/cluster": "r", "ray.io/node-type": "worker"}, "ns/raycluster/r"),
        ({"scheduling.x-k8s.io/pod-group": "g"}, "ns/podgroup/g"),
        ({"kueue.x-k8s.io/pod-group-name": "g", "kueue.x-k8s.io/queue-name": "q"}, "ns/podgroup/g"),
        # A queue is no job.
        ({"kueue.x-k8s.io/queue-name": "q"}, ""),
        # Groups of a LeaderWorkerSet are replicas of each other.
        ({"leaderworkerset.sigs.k8s.io/name": "l", "leaderworkerset.sigs.k8s.io/group-index": "0"}, None),
        ({"tocsin.io/job": "mine", "leaderworkerset.sigs.k8s.io/name": "l"}, "ns/job/mine"),
        ({"app": "x", "pod-template-hash": "7c9"}, ""),
    ],
)
def test_labels_of_operators(labels: dict[str, str], job: str | None) -> None:
    assert job_of_pod(pod(labels)) == ("ns/leaderworkerset/l/0" if job is None else job)


@pytest.mark.parametrize(
    ("version", "kind", "job"),
    [
        ("batch/v1", "Job", "ns/job/x"),
        ("kubeflow.org/v1", "PyTorchJob", "ns/trainingjob/x"),
        ("kubeflow.org/v1", "MPIJob", "ns/trainingjob/x"),
        ("batch.volcano.sh/v1alpha1", "Job", "ns/volcanojob/x"),
        ("ray.io/v1", "RayCluster", "ns/raycluster/x"),
        ("apps/v1", "ReplicaSet", ""),
        ("apps/v1", "StatefulSet", ""),
        ("apps/v1", "DaemonSet", ""),
        ("v1", "Node", ""),
    ],
)
def test_the_controller_where_no_label_tells(version: str, kind: str, job: str) -> None:
    assert job_of_pod(pod(owner=owner_of(version, kind, "x"))) == job


GPUS = fleet(2, 2)


def cluster(double: KubeDouble) -> Cluster:
    """Two nodes; pods train-0 and train-1 of one Job, one on each, and a pod alone."""
    door = DirectDoor(double, ADMIN)
    for host in ("node-0", "node-1"):
        door.ask("POST", "/api/v1/nodes", body={"metadata": {"name": host}, "spec": {}})
    for name, host, labels in (
        ("train-0", "node-0", {"batch.kubernetes.io/job-name": "train"}),
        ("train-1", "node-1", {"batch.kubernetes.io/job-name": "train"}),
        ("alone", "node-1", {}),
    ):
        container = {"name": "main", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
        body = {"metadata": {"name": name, "labels": labels}, "spec": {"nodeName": host, "containers": [container]}}
        door.ask("POST", "/api/v1/namespaces/default/pods", body=body)
    return Cluster(door)


class _Sees(FakeExecutor):
    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self._cluster = cluster

    def nodes(self) -> dict[str, NodeState]:
        return dict(node_states(self._cluster))


def test_a_hot_gpu_of_one_pod_throttles_the_ranks_of_all_pods_of_its_job() -> None:
    double = KubeDouble()
    found = cluster(double)
    managers = Managers([_Sees(found)], ManualClock(T0), OwnMetrics())
    managers.look()
    nodes = managers.nodes()
    pods = {one.name: one for one in found.placed_pods()}
    on = {"GPU-0-0": "train-0", "GPU-1-0": "train-1", "GPU-1-1": "alone"}
    world = World(gpus=GPUS)
    gpus = {}
    for uuid, gpu in GPUS.items():
        owners = [Owner(1, pod_uid=pods[on[uuid]].uid)] if uuid in on else []
        work = work_on(gpu.host, owners, nodes[gpu.host])
        gpus[uuid] = GpuView(gpu, T0, job=work.job, job_known=work.known)
    world.clock.set(T0)
    world.break_gpu("GPU-0-0", action=ActionKind.THROTTLE)
    view = world.view()
    view = replace(view, gpus=gpus, nodes=nodes)
    (throttle,) = (d for d in decide(view.incidents, [], view, world.policy) if d.action is ActionKind.THROTTLE)
    assert ranks_in(throttle.parameters) == (Rank("node-0", "GPU-0-0"), Rank("node-1", "GPU-1-0"))
    queue = OrderQueue(world.clock)
    agents = NodeAgents(queue, world.clock)
    assert agents.check(throttle, view).ruling is Ruling.ALLOW
    agents.execute(throttle)
    assert [order.gpu for host in ("node-0", "node-1") for order in queue.for_host(host)] == ["GPU-0-0", "GPU-1-0"]

"""What the cluster shows: nodes, the work on their GPUs and the job it belongs to, and whether an action took effect.

Pods of one job run in step, so that what slows one of them slows all. A job is known by the label that its operator
puts on every pod of it, and where there is none, by the pod's controller. A label stands for the whole chain of owners
above the pod: a JobSet hands its name down to the pods of its Jobs, a TrainJob is a JobSet, and so on; the chain itself
is never asked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from tocsin.actions.kubernetes import patches
from tocsin.actions.kubernetes.actions import host_of, mig_config_of, pods_of
from tocsin.actions.kubernetes.api import Json, KubeNode, Pod, quantity
from tocsin.actions.kubernetes.budgets import allowed, covers, title
from tocsin.actions.kubernetes.cluster import Cluster
from tocsin.actions.kubernetes.drain import stays
from tocsin.actions.kubernetes.single_gpu import ClaimedPods
from tocsin.actions.model.ranks import named_job
from tocsin.actions.planning.facts import HostRoom, NodeState, WorkloadFacts, WorkloadSeen
from tocsin.actions.planning.state import Budget
from tocsin.config.kubernetes import KubernetesSettings
from tocsin.domain.clock import SECOND, from_iso
from tocsin.domain.decision import Decision
from tocsin.domain.finding import ActionKind
from tocsin.domain.grouping import grouped
from tocsin.topology.labels import claims_of_node

OWN_LABEL = "tocsin.io/job"
"""Label with which a site names its jobs itself; it goes before all others."""
LABELS: tuple[tuple[str, str], ...] = (
    (OWN_LABEL, "job"),
    ("jobset.sigs.k8s.io/jobset-name", "jobset"),
    ("training.kubeflow.org/job-name", "trainingjob"),
    ("volcano.sh/job-name", "volcanojob"),
    ("ray.io/cluster", "raycluster"),
    ("scheduling.x-k8s.io/pod-group", "podgroup"),
    ("kueue.x-k8s.io/pod-group-name", "podgroup"),
    ("batch.kubernetes.io/job-name", "job"),
    ("job-name", "job"),
)
"""Labels whose value names a job within its namespace, the widest first: pods of a JobSet carry that of their Job too.

Sources: the well-known labels of kubernetes.io (``batch.kubernetes.io/job-name``, ``job-name`` before 1.27), and those
that JobSet, the training operator of Kubeflow, Volcano, KubeRay, the coscheduling plugin and Kueue put on pods.
"""
WORKERS, WORKER_GROUP = "leaderworkerset.sigs.k8s.io/name", "leaderworkerset.sigs.k8s.io/group-index"
"""Of a LeaderWorkerSet one group, a leader and its workers, runs in step; groups are replicas of each other."""
_CONTROLLERS = {
    ("batch", "Job"): "job",
    ("batch.volcano.sh", "Job"): "volcanojob",
    ("jobset.x-k8s.io", "JobSet"): "jobset",
    ("ray.io", "RayCluster"): "raycluster",
}
"""Controllers, by API group and kind, all of whose pods run in step. Replicas of a Deployment, a StatefulSet or a
DaemonSet do not."""
_TRAINING = "kubeflow.org"
"""API group of the training operator: PyTorchJob, MPIJob and the others."""


def job_of_pod(pod: Pod) -> str:
    """Name of the job, the same for all its pods, as ``namespace/kind/name``; empty for a pod that runs by itself."""
    labels = pod.labels
    for label, kind in LABELS:
        if labels.get(label):
            return f"{pod.namespace}/{kind}/{labels[label]}"
        if label == OWN_LABEL and labels.get(WORKERS):
            return f"{pod.namespace}/leaderworkerset/{labels[WORKERS]}/{labels.get(WORKER_GROUP, '')}"
    return _by_controller(pod)


def _by_controller(pod: Pod) -> str:
    owner = pod.owner
    kind, name = str(owner.get("kind", "")), str(owner.get("name", ""))
    group = str(owner.get("apiVersion", "")).rpartition("/")[0]
    found = "trainingjob" if group == _TRAINING else _CONTROLLERS.get((group, kind), "")
    return f"{pod.namespace}/{found}/{name}" if found and name else ""


def known_as(pod: Pod) -> Mapping[str, str]:
    """What a process on a GPU may know of its pod, its UID or ``namespace/name``, to its job."""
    job = job_of_pod(pod)
    return {key: job for key in (pod.uid, pod.title) if key}


PRODUCT, REPLICAS = "nvidia.com/gpu.product", "nvidia.com/gpu.replicas"
"""Labels of GPU feature discovery: the model, that of an instance where each is given away as a GPU, and how often a
GPU is given away where several share it."""
_OTHER_GPUS = re.compile(r"amd\.com/gpu|huawei\.com/Ascend[0-9A-Za-z]*")
CHECKPOINT_AT = "tocsin.io/checkpoint-at"
"""Pod annotation that the program sets to the instant of its last checkpoint (ISO 8601)."""
CHECKPOINT_EVERY = "tocsin.io/checkpoint-every"
"""Pod annotation: seconds from one checkpoint to the next."""
STATELESS = "tocsin.io/stateless"
"""Pod annotation ``"true"``: nothing is lost when it is moved. Replicas of a Deployment are taken as such."""


def work_seen(cluster: Cluster, settings: KubernetesSettings, now_ms: int) -> WorkloadSeen:
    """Every pod that holds GPUs, under its UID and under its name; three lists in all. Raises KubeError."""
    pods = cluster.placed_pods()
    budgets = cluster.budgets()
    facts: dict[str, WorkloadFacts] = {}
    for pod in pods:
        if pod.gpus:
            found = _facts(pod, budgets, settings, now_ms)
            facts[f"pod/{pod.title}"] = found
            if pod.uid:
                facts[f"pod/{pod.uid}"] = found
    left = {name: Budget(name, allowed(one)) for one in budgets if (name := title(one))}
    return WorkloadSeen(facts, left, _rooms(cluster.nodes(), pods))


def _facts(pod: Pod, budgets: Iterable[Json], settings: KubernetesSettings, now_ms: int) -> WorkloadFacts:
    cpus, memory = _requests(pod)
    notes = pod.annotations
    return WorkloadFacts(
        priority=pod.priority,
        budgets=tuple(sorted(title(one) for one in budgets if covers(one, pod))),
        lost_s=_lost_s(pod, now_ms),
        checkpoint_every_s=_number(notes.get(CHECKPOINT_EVERY, "")),
        checkpoint_s=float(settings.checkpoint_seconds) if pod.checkpoints else None,
        ends_in_s=_ends_in_s(pod, now_ms),
        cpus=cpus,
        memory_bytes=memory,
        movable=not (stays(pod, settings) or pod.terminating),
        gang=job_of_pod(pod),
        team=pod.labels.get(settings.team_label, ""),
        hosts=frozenset({pod.node} - {""}),
    )


def _lost_s(pod: Pod, now_ms: int) -> float | None:
    """Seconds of work that a move loses: since the checkpoint that it tells of, none without state, else all of it.

    What has run since its start is the most that can be lost; None for a pod that has not started.
    """
    at_ms = _instant(pod.annotations.get(CHECKPOINT_AT, ""))
    started_ms = _instant(pod.started)
    stateless = pod.annotations.get(STATELESS, "").lower() == "true" or pod.owner.get("kind") == "ReplicaSet"
    if at_ms is None and stateless:
        return 0.0
    since_ms = started_ms if at_ms is None else at_ms
    return None if since_ms is None else max(0.0, (now_ms - since_ms) / SECOND)


def _ends_in_s(pod: Pod, now_ms: int) -> float | None:
    deadline = pod.raw.get("spec", {}).get("activeDeadlineSeconds")
    started_ms = _instant(pod.started)
    if not isinstance(deadline, int) or started_ms is None:
        return None
    return max(0.0, deadline - (now_ms - started_ms) / SECOND)


def _requests(pod: Pod) -> tuple[float, float]:
    """CPUs and bytes that its containers ask for together."""
    asked = [(each.get("resources") or {}).get("requests") or {} for each in pod.containers]
    return (
        sum(quantity(each.get("cpu", 0)) for each in asked),
        sum(quantity(each.get("memory", 0)) for each in asked),
    )


def _rooms(nodes: Iterable[KubeNode], pods: Iterable[Pod]) -> dict[str, HostRoom]:
    """What each node has for GPU work: what it may give, less what other pods ask for."""
    others: dict[str, tuple[float, float]] = {}
    for pod in pods:
        if not pod.gpus:
            (cpus, memory), (more, bytes_) = others.get(pod.node, (0.0, 0.0)), _requests(pod)
            others[pod.node] = cpus + more, memory + bytes_
    found = {}
    for node in nodes:
        given = (node.raw.get("status") or {}).get("allocatable") or {}
        if "cpu" in given and "memory" in given:
            cpus, memory = others.get(node.name, (0.0, 0.0))
            found[node.name] = HostRoom(quantity(given["cpu"]) - cpus, quantity(given["memory"]) - memory)
    return found


def _instant(text: str) -> int | None:
    try:
        return from_iso(text)
    except ValueError:
        return None


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 < value < 1e9 else None


_ON_NODES = frozenset(
    {
        ActionKind.CORDON,
        ActionKind.DRAIN,
        ActionKind.UNCORDON,
        ActionKind.PLACE_ELSEWHERE,
        ActionKind.DEFRAGMENT,
    }
)


def node_states(cluster: Cluster, claimed: ClaimedPods | None = None) -> Mapping[str, NodeState]:
    """Every node by name, with the pods that hold its GPUs, by `claimed` also those that hold them by claims; two lists
    in all. Raises KubeError."""
    placed = grouped((pod.node, pod) for pod in cluster.placed_pods())
    return {node.name: _state(node, placed.get(node.name, ()), claimed) for node in cluster.nodes()}


def _state(node: KubeNode, pods: Sequence[Pod], claimed: ClaimedPods | None) -> NodeState:
    ours = patches.is_ours(node)
    jobs = {key: job for pod in pods for key, job in known_as(pod).items()}
    by_claim = claimed.uids if claimed is not None else frozenset()
    holding = [pod for pod in pods if pod.gpus or pod.uid in by_claim]
    # A mark that steers work off the node does not tell which of its GPUs it is about.
    closed = None if claimed is None or patches.is_avoided(node) else claimed.closed
    return NodeState(
        node.name,
        node.schedulable,
        node.ready,
        ours,
        node.annotations.get(patches.CORDON_REASON, "") if ours else "",
        tuple(sorted(pod.title for pod in holding)),
        jobs,
        frozenset(named_job(job) for pod in holding if (job := job_of_pod(pod))),
        tuple(claims_of_node(node.name, node.labels)),
        closed,
        gpus_shown(node) or (claimed.gpus.get(node.name) if claimed is not None else None),
    )


def gpus_shown(node: KubeNode) -> int | None:
    """Whole GPUs that the node's capacity comes to; None where it has none, or MIG instances, which are no count of
    GPUs."""
    capacity = (node.raw.get("status") or {}).get("capacity") or {}
    parts = any(name.startswith("nvidia.com/mig-") and quantity(amount) for name, amount in capacity.items())
    if parts or "-MIG-" in node.labels.get(PRODUCT, ""):
        return None
    shared = node.labels.get(REPLICAS, "")
    replicas = int(shared) if shared.isascii() and shared.isdigit() and int(shared) else 1
    nvidia = sum(quantity(capacity.get(name, 0)) for name in ("nvidia.com/gpu", "nvidia.com/gpu.shared")) // replicas
    others = sum(quantity(amount) for name, amount in capacity.items() if _OTHER_GPUS.fullmatch(name))
    return int(nvidia + others) or None


def overdue(nodes: Sequence[KubeNode], now_ms: int) -> list[str]:
    """Nodes whose mark that steers work away has run out."""
    return [node.name for node in nodes if _runs_out(node) <= now_ms]


def left_over(nodes: Sequence[KubeNode]) -> list[str]:
    """Nodes that a person gave back and that still carry the marks of Tocsin's cordon."""
    return [node.name for node in nodes if patches.is_left_over(node)]


def _runs_out(node: KubeNode) -> float:
    until = node.annotations.get(patches.AVOID_UNTIL)
    # Somebody edited it where it cannot be read: that is over.
    return float("inf") if until is None else _instant(until) or 0


def seen(decision: Decision, cluster: Cluster) -> bool | None:
    """Whether the cluster shows what `decision` does to nodes and pods; None for other actions. Raises KubeError."""
    if decision.action in _ON_NODES:
        return _on_node(decision, cluster.node(host_of(decision)), cluster)
    if decision.action is ActionKind.MIGRATE:
        # A pod that is there may be another one of the same name: only its absence says something.
        wanted = pods_of(decision)
        here = any(pod.title in wanted and not pod.finished for pod in cluster.pods_on(host_of(decision)))
        return None if here else True
    return None


def _on_node(decision: Decision, node: KubeNode, cluster: Cluster) -> bool:
    if decision.action is ActionKind.UNCORDON:
        return node.schedulable and not patches.is_marked(node)
    if decision.action is ActionKind.PLACE_ELSEWHERE:
        return patches.is_avoided(node)
    if decision.action is ActionKind.DEFRAGMENT:
        wanted = mig_config_of(decision)
        right = wanted in {node.labels.get(patches.MIG_CONFIG), "previous"}
        return right and node.labels.get(patches.MIG_STATE) == "success"
    return not node.schedulable

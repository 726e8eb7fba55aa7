"""What the cluster shows: nodes as the brain sees them, and whether an action took effect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tocsin.actions.kubernetes import patches
from tocsin.actions.kubernetes.actions import host_of, mig_config_of, pods_of
from tocsin.actions.kubernetes.cluster import Cluster
from tocsin.actions.kubernetes.jobs import job_of_pod, known_as
from tocsin.actions.kubernetes.objects import Node, Pod
from tocsin.actions.model.ranks import named_job
from tocsin.actions.planning.facts import NodeState
from tocsin.domain.clock import from_iso
from tocsin.domain.decision import Decision
from tocsin.domain.finding import ActionKind

_ON_NODES = frozenset(
    {
        ActionKind.CORDON,
        ActionKind.DRAIN,
        ActionKind.UNCORDON,
        ActionKind.PLACE_ELSEWHERE,
        ActionKind.DEFRAGMENT,
    }
)


def node_states(cluster: Cluster) -> Mapping[str, NodeState]:
    """Every node by name, with the pods that hold its GPUs; two lists in all. Raises KubeError."""
    placed: dict[str, list[Pod]] = {}
    for pod in cluster.placed_pods():
        placed.setdefault(pod.node, []).append(pod)
    return {node.name: _state(node, placed.get(node.name, [])) for node in cluster.nodes()}


def _state(node: Node, pods: Sequence[Pod]) -> NodeState:
    ours = patches.is_ours(node)
    jobs: dict[str, str] = {}
    for pod in pods:
        jobs.update(known_as(pod))
    holding = [pod for pod in pods if pod.gpus]
    return NodeState(
        node.name,
        node.schedulable,
        node.ready,
        ours,
        node.annotations.get(patches.CORDON_REASON, "") if ours else "",
        tuple(sorted(pod.title for pod in holding)),
        jobs,
        frozenset(named_job(job) for pod in holding if (job := job_of_pod(pod))),
    )


def overdue(nodes: Sequence[Node], now_ms: int) -> list[str]:
    """Nodes whose mark that steers work away has run out."""
    return [node.name for node in nodes if _runs_out(node) <= now_ms]


def left_over(nodes: Sequence[Node]) -> list[str]:
    """Nodes that a person gave back and that still carry the marks of Tocsin's cordon."""
    return [node.name for node in nodes if patches.is_left_over(node)]


def _runs_out(node: Node) -> float:
    until = node.annotations.get(patches.AVOID_UNTIL)
    if until is None:
        return float("inf")
    try:
        return from_iso(until)
    except ValueError:
        # Somebody edited it: what cannot be read is over.
        return 0


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


def _on_node(decision: Decision, node: Node, cluster: Cluster) -> bool:
    if decision.action is ActionKind.UNCORDON:
        return node.schedulable and not patches.is_marked(node)
    if decision.action is ActionKind.PLACE_ELSEWHERE:
        return patches.is_avoided(node)
    if decision.action is ActionKind.DEFRAGMENT:
        wanted = mig_config_of(decision)
        right = wanted in {node.labels.get(patches.MIG_CONFIG), "previous"}
        return right and node.labels.get(patches.MIG_STATE) == "success"
    return not node.schedulable

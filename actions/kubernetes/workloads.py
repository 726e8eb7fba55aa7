"""What a cluster tells of the work on its GPUs: budgets, priority, requests, the job it belongs to, checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tocsin.actions.kubernetes.cluster import Cluster
from tocsin.actions.kubernetes.eviction import stays
from tocsin.actions.kubernetes.jobs import job_of_pod
from tocsin.actions.kubernetes.objects import Node, Pod, quantity
from tocsin.actions.kubernetes.port import Json
from tocsin.actions.planning.facts import Room, WorkloadFacts, WorkloadSeen
from tocsin.actions.planning.state import Budget
from tocsin.config.kubernetes import KubernetesSettings
from tocsin.domain.clock import SECOND, from_iso

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
            told = _facts(pod, budgets, settings, now_ms)
            facts[f"pod/{pod.title}"] = told
            if pod.uid:
                facts[f"pod/{pod.uid}"] = told
    allowed = {name: Budget(name, _allowed(one)) for one in budgets if (name := _name(one))}
    return WorkloadSeen(facts, allowed, _rooms(cluster.nodes(), pods))


def _facts(pod: Pod, budgets: Iterable[Json], settings: KubernetesSettings, now_ms: int) -> WorkloadFacts:
    cpus, memory = _requests(pod)
    notes = pod.annotations
    return WorkloadFacts(
        priority=pod.priority,
        budgets=tuple(sorted(_name(one) for one in budgets if covers(one, pod))),
        lost_s=_lost_s(pod, now_ms),
        checkpoint_every_s=_number(notes.get(CHECKPOINT_EVERY, "")),
        checkpoint_s=float(settings.checkpoint_seconds) if pod.checkpoints else None,
        ends_in_s=_ends_in_s(pod, now_ms),
        cpus=cpus,
        memory_bytes=memory,
        movable=not (stays(pod, settings) or pod.terminating),
        gang=job_of_pod(pod),
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


def covers(budget: Json, pod: Pod) -> bool:
    """Whether a disruption budget selects a pod: of its namespace, by labels and expressions; ``{}`` selects all."""
    spec: Mapping[str, Any] = budget.get("spec") or {}
    selector = spec.get("selector")
    if (budget.get("metadata") or {}).get("namespace") != pod.namespace or selector is None:
        return False
    labels = pod.labels
    wanted: Mapping[str, str] = selector.get("matchLabels") or {}
    if any(labels.get(name) != value for name, value in wanted.items()):
        return False
    return all(_matches(one, labels) for one in selector.get("matchExpressions") or ())


def _matches(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    name, values = str(expression.get("key", "")), expression.get("values") or ()
    return {
        "In": labels.get(name) in values,
        "NotIn": labels.get(name) not in values,
        "Exists": name in labels,
        "DoesNotExist": name not in labels,
    }.get(str(expression.get("operator", "")), True)


def _allowed(budget: Json) -> int:
    """Disruptions that it allows now; none while the server has not counted its present form yet."""
    status: Mapping[str, Any] = budget.get("status") or {}
    generation = (budget.get("metadata") or {}).get("generation", 0)
    if int(status.get("observedGeneration", -1)) < int(generation):
        return 0
    return int(status.get("disruptionsAllowed", 0))


def _name(budget: Json) -> str:
    about: Mapping[str, Any] = budget.get("metadata") or {}
    return f"{about.get('namespace', '')}/{about['name']}" if about.get("name") else ""


def _requests(pod: Pod) -> tuple[float, float]:
    """CPUs and bytes that its containers ask for together."""
    asked = [(each.get("resources") or {}).get("requests") or {} for each in pod.containers]
    return (
        sum(quantity(each.get("cpu", 0)) for each in asked),
        sum(quantity(each.get("memory", 0)) for each in asked),
    )


def _rooms(nodes: Iterable[Node], pods: Iterable[Pod]) -> dict[str, Room]:
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
            found[node.name] = Room(quantity(given["cpu"]) - cpus, quantity(given["memory"]) - memory)
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

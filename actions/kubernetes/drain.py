"""Drain and migration: level-triggered, one look at the world and one round of requests a call."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tocsin.actions.kubernetes import patches
from tocsin.actions.kubernetes.cluster import Cluster
from tocsin.actions.kubernetes.eviction import Evictor, Round, Sorted, blockers, sort_pods, stuck
from tocsin.actions.kubernetes.objects import Node, Pod
from tocsin.actions.kubernetes.port import Json
from tocsin.actions.model.executor import ExecutionResult
from tocsin.config.kubernetes import KubernetesSettings
from tocsin.domain.clock import Clock

MOST_REMEMBERED = 256
"""Actions whose state is kept; of what nobody asked about for longest, more is forgotten."""


class Rounds:
    """What is remembered of every action that goes on, by idempotency key."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rounds: dict[str, Round] = {}
        self._lock = threading.Lock()

    def of(self, key: str) -> Round:
        """That of `key`, begun now where there is none."""
        with self._lock:
            state = self._rounds.pop(key, None) or Round(self._clock.monotonic())
            self._rounds[key] = state
            while len(self._rounds) > MOST_REMEMBERED:
                del self._rounds[next(iter(self._rounds))]
            return state

    def forget(self, key: str) -> None:
        """The action of `key` has ended."""
        with self._lock:
            self._rounds.pop(key, None)


@dataclass(frozen=True, slots=True)
class Task:
    """One drain or migration: `mark` is what is written on the node, `pods` names the ones to move, None for all."""

    node: str
    mark: patches.CordonNote
    pods: frozenset[str] | None = None


class Drainer:
    """Gets pods off nodes, and says when they are off."""

    def __init__(self, cluster: Cluster, settings: KubernetesSettings, clock: Clock) -> None:
        self._cluster = cluster
        self._settings = settings
        self._clock = clock
        self._evictor = Evictor(cluster, settings)

    def drain(self, task: Task, state: Round) -> ExecutionResult:
        """One round of draining a node that is cordoned. Raises KubeError."""
        found = sort_pods(self._cluster.pods_on(task.node), self._settings)
        return self._round(found.leave, found, task, state)

    def migrate(self, task: Task, state: Round) -> ExecutionResult:
        """One round of moving single pods; those that came later under the same name are left alone."""
        pods = self._cluster.pods_on(task.node)
        chosen = self._chosen(task, pods)
        found = sort_pods([pod for pod in pods if pod.uid in chosen], self._settings)
        result = self._round(found.leave, found, task, state)
        if not result.pending and not self._cluster.dry_run:
            self._cluster.change_node(task.node, lambda node: _forget(node, task.mark.key))
        return result

    def _chosen(self, task: Task, pods: Sequence[Pod]) -> frozenset[str]:
        """UIDs of the pods that the first round found under the wanted names; kept on the node."""
        note = patches.MIGRATED + task.mark.key
        known = self._cluster.node(task.node).annotations.get(note)
        if known is not None:
            return frozenset(known.split(","))
        wanted = task.pods or frozenset()
        chosen = sorted(pod.uid for pod in pods if pod.title in wanted and not pod.finished)
        if chosen:
            self._cluster.change_node(task.node, lambda _: {"metadata": {"annotations": {note: ",".join(chosen)}}})
        return frozenset(chosen)

    def _round(self, pods: Sequence[Pod], found: Sorted, task: Task, state: Round) -> ExecutionResult:
        now = self._clock.monotonic()
        self._evictor.ask(pods, state, task.mark.key, now)
        if self._cluster.dry_run:
            return ExecutionResult(True, _rehearsed(pods, found, state), lasting=False)
        effect = _effect(state, now)
        if not pods:
            return _ended(task.node, found, state, effect)
        if stuck(pods, state):
            return ExecutionResult(False, f"not drained: {blockers(pods, state)}", effect=effect)
        if now - state.since < self._settings.drain_seconds:
            return ExecutionResult(True, f"waiting: {blockers(pods, state)}", pending=True, effect=effect)
        return self._late(pods, state, effect)

    def _late(self, pods: Sequence[Pod], state: Round, effect: Mapping[str, float]) -> ExecutionResult:
        words = blockers(pods, state)
        protected = [pod for pod in pods if pod.uid in state.waits and state.waits[pod.uid].budget]
        if protected and self._settings.delete_blocked_pods and not state.deleted:
            self._evictor.delete(protected, state)
            state.deleted = True
            # A second time box for those to end; nothing else is deleted in it.
            state.since = self._clock.monotonic()
            return ExecutionResult(True, f"deleted against their budgets: {words}", pending=True, effect=effect)
        box = f"{self._settings.drain_seconds:.0f} s"
        return ExecutionResult(False, f"not drained within {box}: {words}", effect=effect)


def _forget(node: Node, key: str) -> Json | None:
    note = patches.MIGRATED + key
    return {"metadata": {"annotations": {note: None}}} if note in node.annotations else None


def _effect(state: Round, now: float) -> dict[str, float]:
    return {
        "drain_seconds": now - state.since,
        "pods_evicted": float(len(state.evicted)),
        "evictions_blocked": float(state.times_blocked),
        "checkpoints_taken": float(len(state.checkpoints)),
    }


def _ended(node: str, found: Sorted, state: Round, effect: Mapping[str, float]) -> ExecutionResult:
    left = "; ".join(f"left {title} ({why})" for title, why in found.stay.items())
    if found.stranded_gpus:
        return ExecutionResult(False, f"pods that hold GPUs stay on {node}: {left}", effect=effect)
    detail = f"{len(state.evicted)} pods evicted from {node}" + (f"; {left}" if left else "")
    return ExecutionResult(True, detail, lasting=True, effect=effect)


def _rehearsed(pods: Sequence[Pod], found: Sorted, state: Round) -> str:
    going = [pod.title for pod in pods if pod.uid in state.evicted]
    held = [
        f"{pod.title} ({state.waits[pod.uid].why})"
        for pod in pods
        if state.waits.get(pod.uid, None) and state.waits[pod.uid].why
    ]
    left = [f"{title} ({why})" for title, why in found.stay.items()]
    parts = (("would evict", going), ("not allowed now", held), ("would leave", left))
    return "dry run: " + "; ".join(
        f"{verb} {', '.join(names)}" if names else f"{verb} nothing" for verb, names in parts
    )


def _why(pod: Pod, state: Round) -> str:
    wait = state.waits.get(pod.uid)
    return wait.why if wait else ""

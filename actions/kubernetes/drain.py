"""Drain and migration: which pods leave a node, one round of asking for their evictions, and what is in the way.

Level-triggered: each call reads the node's pods anew and makes one round of requests. What is remembered between two
rounds only spaces requests and bounds time: a restart loses it and begins the time box anew, and harms nothing, because
an eviction names the pod's UID and a cordon is known by its mark on the node.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tocsin.actions.kubernetes import patches
from tocsin.actions.kubernetes.api import CHECKPOINT_DONE, CHECKPOINT_REQUESTED, Json, KubeError, KubeNode, Pod
from tocsin.actions.kubernetes.cluster import Cluster
from tocsin.actions.model.executor import ExecutionResult, went
from tocsin.config.kubernetes import KubernetesSettings
from tocsin.domain.clock import Clock
from tocsin.domain.phrase import say

FIRST_PAUSE_SECONDS = 5.0
LONGEST_PAUSE_SECONDS = 60.0
"""Rest between two requests to evict one pod: doubles from the first to the longest (own choice; kubectl rests 5 s)."""
MOST_REFUSALS = 3
"""Answers 500 for one pod that are taken for a fault of the moment; two budgets on one pod answer so for ever."""

MOST_RETURNS = 3
"""Times that a controller may put new pods on the node after an eviction of its pods. The scheduler may just have bound
one when the node was cordoned; a controller that does it again and again would do so for ever (own choice)."""

_BUDGET = re.compile(r"disruption budget (\S+)")


@dataclass(slots=True)
class EvictionWait:
    """What one pod waits for: not asked again before `next_at`, seconds on the monotonic scale."""

    next_at: float = 0.0
    pause: float = 0.0
    why: str = ""
    budget: str = ""
    refusals: int = 0


@dataclass(slots=True)
class DrainProgress:
    """Everything that is remembered of one drain or migration between two rounds; a restart begins it anew.

    `since` is when its time box began, `begun` whether the world was changed for it, `asked` when each pod was asked
    for a checkpoint, by UID. `deleted` says that pods which budgets protect were deleted, which opens the second and
    last time box. `silent_since` is when the server stopped answering, `doubtful` whether a request may have taken
    effect unseen. `known` are the UIDs that a list of the node has shown, `left` the controllers of evicted pods,
    `returns` counts for each of those the lists that showed new pods of it.
    """

    since: float
    begun: bool = False
    doubtful: bool = False
    deleted: bool = False
    evicted: set[str] = field(default_factory=set)
    asked: dict[str, float] = field(default_factory=dict)
    checkpoints: set[str] = field(default_factory=set)
    waits: dict[str, EvictionWait] = field(default_factory=dict)
    times_blocked: int = 0
    silent_since: float | None = None
    known: set[str] = field(default_factory=set)
    left: set[str] = field(default_factory=set)
    returns: Counter[str] = field(default_factory=Counter)

    def look(self, pods: Sequence[Pod]) -> None:
        """Count the controllers that put new pods on the node since the last look."""
        new = {_controller(pod) for pod in pods if pod.uid not in self.known}
        self.returns.update(new & self.left)
        self.known.update(pod.uid for pod in pods)

    def comes_back(self, pod: Pod) -> bool:
        """Whether evicting the pod is of no use: its controller puts the next one here."""
        return not pod.terminating and self.returns[_controller(pod)] >= MOST_RETURNS


@dataclass(frozen=True, slots=True)
class SortedPods:
    """The pods of a node: those that `leave`, and those that stay behind, with why, by ``namespace/name``."""

    leave: tuple[Pod, ...]
    stay: dict[str, str]
    stranded_gpus: tuple[str, ...]
    """Of those that stay, the ones that hold GPUs and that a drain ought to have moved."""


def sort_pods(pods: Sequence[Pod], settings: KubernetesSettings) -> SortedPods:
    """Which of a node's pods a drain evicts. Finished pods hold nothing and count for neither."""
    leave, stay, stranded = [], {}, []
    for pod in pods:
        if pod.finished:
            continue
        why = stays(pod, settings)
        if not why:
            leave.append(pod)
            continue
        stay[pod.title] = why
        if pod.gpus and not (pod.mirror or pod.of_daemon):
            stranded.append(pod.title)
    return SortedPods(tuple(leave), stay, tuple(stranded))


def stays(pod: Pod, settings: KubernetesSettings) -> str:
    """Why a drain leaves the pod where it is; empty where it does not."""
    if pod.mirror:
        return "mirror pod"
    if pod.of_daemon:
        return "DaemonSet"
    if pod.terminating:
        return ""
    if pod.keeps_files and not settings.evict_local_data:
        return "local data (kubernetes.evict_local_data)"
    if not pod.owner and not settings.evict_bare_pods:
        return "no controller makes it anew (kubernetes.evict_bare_pods)"
    return ""


class Evictor:
    """Asks for evictions.

    A pod is known by its UID alone: eviction and deletion carry it as a precondition, so that a pod that came later
    under the same name is never touched (the server answers 409, and the next list shows which is there). A budget that
    forbids an eviction is the cluster's word and is waited for, with growing rests; only the time box, and a setting,
    go against it.
    """

    def __init__(self, cluster: Cluster, settings: KubernetesSettings) -> None:
        self._cluster = cluster
        self._settings = settings

    def ask(self, pods: Sequence[Pod], state: DrainProgress, key: str, now: float) -> None:
        """One round over `pods`: ask for checkpoints, then for the evictions that are due. Raises KubeError where the
        server gives no answer or forbids the request."""
        for pod in pods:
            if not pod.terminating and not state.comes_back(pod) and self.saved(pod, state, key, now):
                self._evict(pod, state, now)

    def delete(self, pods: Sequence[Pod], state: DrainProgress) -> None:
        """Delete the pods that a budget protects; one that has gone or was replaced meanwhile is no error."""
        for pod in pods:
            if not pod.terminating and state.waits.get(pod.uid, EvictionWait()).budget:
                try:
                    self._cluster.delete_pod(pod)
                except KubeError as error:
                    if error.status not in {404, 409}:
                        raise
                state.evicted.add(pod.uid)

    def saved(self, pod: Pod, state: DrainProgress, key: str, now: float) -> bool:
        """Whether the pod need not be waited for: its checkpoint is done, it takes none, or it took too long."""
        longest = self._settings.checkpoint_seconds
        if not longest or not pod.checkpoints or pod.uid in state.checkpoints:
            return True
        if pod.annotations.get(CHECKPOINT_DONE) == key:
            state.checkpoints.add(pod.uid)
            return True
        if pod.uid not in state.asked:
            ask_for_checkpoint(self._cluster, pod, key)
            state.asked[pod.uid] = now
        return now - state.asked[pod.uid] >= longest

    def _evict(self, pod: Pod, state: DrainProgress, now: float) -> None:
        wait = state.waits.setdefault(pod.uid, EvictionWait())
        if now < wait.next_at or wait.refusals >= MOST_REFUSALS:
            return
        try:
            self._cluster.evict(pod, self._settings.grace_seconds)
        except KubeError as error:
            _put_off(wait, error, now)
            state.times_blocked += error.status == 429
            return
        # Accepted is not gone: the pod counts as leaving until a list shows it no more.
        state.evicted.add(pod.uid)
        state.left.add(_controller(pod))
        wait.why = wait.budget = ""


def ask_for_checkpoint(cluster: Cluster, pod: Pod, key: str) -> None:
    """Write the request on the pod, once; a pod that has gone or was replaced meanwhile is no error."""
    if pod.annotations.get(CHECKPOINT_REQUESTED) == key:
        return
    try:
        cluster.annotate_pod(pod, {CHECKPOINT_REQUESTED: key})
    except KubeError as error:
        if error.status not in {404, 409, 422}:
            raise


def _put_off(wait: EvictionWait, error: KubeError, now: float) -> None:
    """Note why a pod was not evicted and when to ask again; what is no answer about this pod is raised."""
    if error.status in {404, 409}:
        # Gone, or another pod has its name: the next list shows which.
        return
    if error.status not in {429, 500}:
        raise error
    wait.pause = min(max(FIRST_PAUSE_SECONDS, 2 * wait.pause), LONGEST_PAUSE_SECONDS)
    wait.next_at = now + max(wait.pause, error.retry_after or 0.0)
    wait.why = "; ".join(error.causes) or error.message
    wait.refusals = wait.refusals + 1 if error.status == 500 else 0
    found = _BUDGET.search(wait.why)
    wait.budget = found.group(1) if found else ""


def blockers(pods: Sequence[Pod], state: DrainProgress) -> str:
    """In words, what the pods that are still there wait for."""
    words = []
    for pod in pods:
        wait = state.waits.get(pod.uid)
        if pod.terminating or pod.uid in state.evicted:
            words.append(f"{pod.title} is ending")
        elif state.comes_back(pod):
            words.append(f"{pod.title}: {_returning(pod)}")
        elif wait is not None and wait.why:
            words.append(f"{pod.title}: {wait.why.rstrip('.')}")
        elif pod.uid in state.asked:
            words.append(f"{pod.title} takes its checkpoint")
        else:
            words.append(f"{pod.title} waits")
    return ", ".join(words)


def stuck(pods: Sequence[Pod], state: DrainProgress) -> bool:
    """Whether nothing is left but pods that the server refuses to evict, or whose controller brings them back."""
    none = EvictionWait()
    return bool(pods) and all(
        state.waits.get(pod.uid, none).refusals >= MOST_REFUSALS or state.comes_back(pod) for pod in pods
    )


def _controller(pod: Pod) -> str:
    """What makes the pod anew, in words; without an owner it is known by its own name."""
    owner = pod.owner
    return f"{owner.get('kind', '')} {pod.namespace}/{owner.get('name', '')}" if owner else f"the maker of {pod.title}"


def _returning(pod: Pod) -> str:
    way = "they tolerate the cordon" if pod.tolerates_cordon else "they are put on this node by name"
    return f"{_controller(pod)} has brought pods back {MOST_RETURNS} times, {way}; scale it down or change its pods"


MOST_REMEMBERED = 256
"""Actions whose state is kept; of what nobody asked about for longest, more is forgotten."""


class DrainProgresses:
    """What is remembered of every action that goes on, by idempotency key."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rounds: dict[str, DrainProgress] = {}
        self._lock = threading.Lock()

    def of(self, key: str) -> DrainProgress:
        """That of `key`, begun now where there is none."""
        with self._lock:
            state = self._rounds.pop(key, None) or DrainProgress(self._clock.monotonic())
            self._rounds[key] = state
            while len(self._rounds) > MOST_REMEMBERED:
                del self._rounds[next(iter(self._rounds))]
            return state

    def forget(self, key: str) -> None:
        """The action of `key` has ended."""
        with self._lock:
            self._rounds.pop(key, None)


@dataclass(frozen=True, slots=True)
class DrainTask:
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

    def drain(self, task: DrainTask, state: DrainProgress) -> ExecutionResult:
        """One round of draining a node that is cordoned. Raises KubeError."""
        found = sort_pods(self._cluster.pods_on(task.node), self._settings)
        return self._round(found.leave, found, task, state)

    def migrate(self, task: DrainTask, state: DrainProgress) -> ExecutionResult:
        """One round of moving single pods; those that came later under the same name are left alone."""
        pods = self._cluster.pods_on(task.node)
        chosen = self._chosen(task, pods)
        found = sort_pods([pod for pod in pods if pod.uid in chosen], self._settings)
        result = self._round(found.leave, found, task, state)
        if not result.pending and not self._cluster.dry_run:
            self._cluster.change_node(task.node, lambda node: _forget(node, task.mark.key))
        return result

    def _chosen(self, task: DrainTask, pods: Sequence[Pod]) -> frozenset[str]:
        """UIDs of the pods that the first round found under the wanted names.

        They are written on the node before the first eviction: after a restart the same names may belong to new pods,
        which nobody asked to move.
        """
        note = patches.MIGRATED + task.mark.key
        known = self._cluster.node(task.node).annotations.get(note)
        if known is not None:
            return frozenset(known.split(","))
        wanted = task.pods or frozenset()
        chosen = sorted(pod.uid for pod in pods if pod.title in wanted and not pod.finished)
        if chosen:
            self._cluster.change_node(task.node, lambda _: {"metadata": {"annotations": {note: ",".join(chosen)}}})
        return frozenset(chosen)

    def _round(self, pods: Sequence[Pod], found: SortedPods, task: DrainTask, state: DrainProgress) -> ExecutionResult:
        now = self._clock.monotonic()
        state.look(pods)
        self._evictor.ask(pods, state, task.mark.key, now)
        if self._cluster.dry_run:
            return ExecutionResult(True, _rehearsed(pods, found, state), lasting=False)
        effect = {
            "drain_seconds": now - state.since,
            "pods_evicted": float(len(state.evicted)),
            "evictions_blocked": float(state.times_blocked),
            "checkpoints_taken": float(len(state.checkpoints)),
        }
        if not pods:
            return _ended(task.node, found, state, effect)
        if stuck(pods, state):
            return went(False, say("not drained: {blockers}", blockers=blockers(pods, state)), effect=effect)
        if now - state.since < self._settings.drain_seconds:
            return went(True, say("waiting: {blockers}", blockers=blockers(pods, state)), pending=True, effect=effect)
        return self._late(pods, state, effect)

    def _late(self, pods: Sequence[Pod], state: DrainProgress, effect: Mapping[str, float]) -> ExecutionResult:
        words = blockers(pods, state)
        protected = [pod for pod in pods if pod.uid in state.waits and state.waits[pod.uid].budget]
        if protected and self._settings.delete_blocked_pods and not state.deleted:
            self._evictor.delete(protected, state)
            state.deleted = True
            # A second time box for those to end; nothing else is deleted in it.
            state.since = self._clock.monotonic()
            return went(True, say("deleted against their budgets: {words}", words=words), pending=True, effect=effect)
        box = f"{self._settings.drain_seconds:.0f} s"
        return went(False, say("not drained within {box}: {words}", box=box, words=words), effect=effect)


def _forget(node: KubeNode, key: str) -> Json | None:
    note = patches.MIGRATED + key
    return {"metadata": {"annotations": {note: None}}} if note in node.annotations else None


def _ended(node: str, found: SortedPods, state: DrainProgress, effect: Mapping[str, float]) -> ExecutionResult:
    left = "; ".join(f"left {title} ({why})" for title, why in found.stay.items())
    if found.stranded_gpus:
        return went(False, say("pods that hold GPUs stay on {node}: {left}", node=node, left=left), effect=effect)
    detail = f"{len(state.evicted)} pods evicted from {node}" + (f"; {left}" if left else "")
    return ExecutionResult(True, detail, lasting=True, effect=effect)


def _rehearsed(pods: Sequence[Pod], found: SortedPods, state: DrainProgress) -> str:
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

"""The executor that acts on a Kubernetes cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from tocsin.actions.executors.base import ExecutorBase, rehearsed
from tocsin.actions.executors.registry import Dependencies
from tocsin.actions.kubernetes import observe
from tocsin.actions.kubernetes.actions import (
    KubernetesActions,
    host_of,
    mig_config_of,
    pods_of,
    replicas_asked,
)
from tocsin.actions.kubernetes.api import KubeError
from tocsin.actions.kubernetes.client import connect
from tocsin.actions.kubernetes.cluster import Cluster
from tocsin.actions.kubernetes.drain import DrainProgress, DrainProgresses
from tocsin.actions.kubernetes.rights import Need, needed
from tocsin.actions.model.executor import PRE_CHECK, ExecutionResult, Executor, deny, hold, went
from tocsin.actions.model.scope import pool_of
from tocsin.actions.model.view import FleetView, GpuView
from tocsin.actions.planning.facts import NodeState, WorkloadSeen
from tocsin.config.kubernetes import KubernetesSettings
from tocsin.domain.clock import MINUTE, Clock
from tocsin.domain.decision import Decision, Ruling, Verdict
from tocsin.domain.finding import ActionKind, SubjectKind
from tocsin.domain.phrase import say

OWNED_FOR_MS = 5 * MINUTE
"""How long a pool whose replicas an autoscaler owns is not asked about again (own choice)."""
_SCALING = frozenset({ActionKind.SCALE_OUT, ActionKind.SCALE_IN})
_SINGLE = frozenset({ActionKind.CORDON_GPU, ActionKind.UNCORDON_GPU})


class Kubernetes(ExecutorBase):
    """A node's name in the cluster is the host name of its GPUs.

    Each call of `execute` looks at the cluster and does the next thing; what it needs to know after a restart is
    written on the objects themselves.
    """

    name = "kubernetes"
    resumable = True

    def __init__(
        self, cluster: Cluster, settings: KubernetesSettings, clock: Clock, *, node_tokens: bool = False
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._node_tokens = node_tokens
        self._clock = clock
        self._actions = KubernetesActions(cluster, settings, clock)
        self._rounds = DrainProgresses(clock)
        self._owned: dict[str, tuple[str, int]] = {}
        self._lost_s: float | None = None

    def supports(self, action: ActionKind) -> bool:
        return action in self._actions.actions

    def serves(self, decision: Decision) -> bool:
        if decision.action in _SCALING:
            return pool_of(decision) in self._settings.workloads
        if decision.action in _SINGLE:
            gpu = decision.subject.kind is SubjectKind.GPU
            return gpu and bool(host_of(decision)) and bool(self._settings.device_rules)
        if decision.action is ActionKind.DEFRAGMENT:
            return bool(host_of(decision) and mig_config_of(decision))
        return bool(host_of(decision))

    def check_real(self, decision: Decision, view: FleetView) -> Verdict:
        if not self.serves(decision):
            return hold(say("{key} is nothing in this cluster", key=decision.subject.key))
        if decision.action in _SCALING:
            return self._check_scaling(decision)
        if decision.action is ActionKind.UNCORDON:
            host = host_of(decision)
            return _check_health(host, view.by_host.get(host, ()), view)
        if decision.action is ActionKind.UNCORDON_GPU:
            whole = view.whole(decision.subject.name)
            return _check_health(host_of(decision), () if whole is None else (whole,), view)
        if decision.action is ActionKind.MIGRATE and not pods_of(decision):
            return hold(say("it is not known which pods hold {subject}", subject=decision.subject.name))
        return Verdict(PRE_CHECK, Ruling.ALLOW)

    def execute(self, decision: Decision) -> ExecutionResult:
        if decision.simulated or not self.serves(decision):
            return went(False, say("{key} is nothing in this cluster", key=decision.subject.key), lasting=False)
        state = self._rounds.of(decision.key)
        try:
            with self._noticing():
                result = self._actions.carry_out(decision, state)
            state.silent_since = None
        except KubeError as error:
            result = self._in_trouble(error, decision, state)
        if decision.action in _SCALING and not result.ok and result.certain:
            self._owned[pool_of(decision)] = (result.detail, self._clock.now_ms())
        if self._cluster.dry_run:
            result = replace(rehearsed(result), pending=False)
        if not result.pending:
            self._rounds.forget(decision.key)
        return result

    def verify(self, decision: Decision, view: FleetView) -> bool | None:
        if self._cluster.dry_run or not self.serves(decision):
            return None
        try:
            if decision.action in _SCALING:
                return self._actions.scaler.seen(self._settings.workloads[pool_of(decision)], replicas_asked(decision))
            if decision.action in _SINGLE:
                out = decision.action is ActionKind.CORDON_GPU
                return self._actions.single.seen(decision.subject.name, host_of(decision), out=out)
            return observe.seen(decision, self._cluster)
        except (KubeError, ValueError):
            return None

    def nodes(self) -> Mapping[str, NodeState]:
        with self._noticing():
            claimed = self._actions.single.reader.claimed() if self._settings.device_rules else None
            return observe.node_states(self._cluster, claimed)

    def work(self) -> WorkloadSeen:
        with self._noticing():
            return observe.work_seen(self._cluster, self._settings, self._clock.now_ms())

    def upkeep(self) -> list[str]:
        """Take back the marks of `place_elsewhere` that have run out, and those of cordons on nodes that a person gave
        back, and move rules about single GPUs whose device has another name; the nodes and GPUs that had one.

        Raises ManagerUnavailable.
        """
        nodes = self._cluster.nodes()
        released = [node for node in observe.overdue(nodes, self._clock.now_ms()) if self._actions.release(node)]
        moved = self._actions.single.realign() if self._settings.device_rules else []
        return [*released, *(node for node in observe.left_over(nodes) if self._actions.strip(node)), *moved]

    def missing_rights(self) -> list[Need]:
        needs = needed(self._settings, node_tokens=self._node_tokens)
        return [need for need in needs if not self._cluster.may(need.right, need.namespace)]

    def close(self) -> None:
        self._cluster.close()

    def _check_scaling(self, decision: Decision) -> Verdict:
        try:
            replicas_asked(decision)
        except ValueError:
            return deny(say("its parameter replicas is no number"))
        why, at_ms = self._owned.get(pool_of(decision), ("", 0))
        until_ms = at_ms + OWNED_FOR_MS
        if why and self._clock.now_ms() < until_ms:
            return Verdict(PRE_CHECK, Ruling.HOLD, why, until_ms)
        return Verdict(PRE_CHECK, Ruling.ALLOW)

    def _in_trouble(self, error: KubeError, decision: Decision, state: DrainProgress) -> ExecutionResult:
        """Go on a little later where the trouble may pass; else it has failed."""
        state.doubtful = state.doubtful or not error.certain
        now = self._clock.monotonic()
        if state.silent_since is None:
            state.silent_since = now
        patience = self._settings.patience_seconds
        # A server that has just come back refuses valid credentials until it has read its roles and tokens.
        restarted = error.refused and self._lost_s is not None and now - self._lost_s < patience
        if (error.passing or restarted) and now - state.silent_since < patience:
            return went(True, say("{error}; it is asked again", error=error), pending=True)
        return went(
            False,
            say("{error}{hint}", error=error, hint=_hint(error)),
            certain=not state.doubtful,
            unserved=error.no_service,
        )

    @contextmanager
    def _noticing(self) -> Iterator[None]:
        """Note when the server was last away, whatever was asked of it."""
        try:
            yield
        except KubeError as error:
            if not error.status:
                self._lost_s = self._clock.monotonic()
            raise


def _hint(error: KubeError) -> str:
    """What to do about a refusal."""
    if error.granted:
        return "; the right itself is granted: an admission rule of the cluster refuses this request"
    if error.lacking:
        return f"; the right is lacking: {error.lacking}"
    return {
        401: "; the server does not accept the credentials (kubernetes.kubeconfig, or the pod's service account)",
        403: "; the server does not say whether the right is granted: tocsin act rights asks again",
    }.get(error.status, "")


def _check_health(host: str, members: Sequence[GpuView], view: FleetView) -> Verdict:
    """Giving back a node, or one GPU, wants proof: each of `members` seen, fresh and healthy."""
    if not members:
        return hold(say("no GPU of {host} is seen, so nothing proves that it is healthy", host=host))
    sick = sorted(member.gpu.uuid for member in members if not member.healthy)
    if sick:
        return hold(say("not healthy on {host}: {names}", host=host, names=", ".join(sick)))
    stale = sorted(member.gpu.uuid for member in members if not member.is_fresh(view.now_ms, view.policy.fresh_ms))
    if stale:
        return hold(say("no fresh reading on {host} of {names}", host=host, names=", ".join(stale)))
    return Verdict(PRE_CHECK, Ruling.ALLOW)


def build(dependencies: Dependencies) -> Executor:
    """Executor `kubernetes` by the settings; raises InputError or Unavailable where it cannot be had."""
    settings = dependencies.section(dependencies.settings.kubernetes)
    cluster = Cluster(connect(settings), dry_run=settings.dry_run)
    node_tokens = bool(dependencies.settings.api.node_service_accounts)
    return Kubernetes(cluster, settings, dependencies.clock, node_tokens=node_tokens)

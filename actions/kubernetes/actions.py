"""Each action as requests to the cluster: cordon, drain, migrate, checkpoint, repartition, scale.

Every method reads the cluster, does the next thing and says so. Replicas are changed through the scale subresource, or
through the autoscaler that owns them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tocsin.actions.kubernetes import patches
from tocsin.actions.kubernetes.api import CHECKPOINT_DONE, Json, KubeError, KubeNode
from tocsin.actions.kubernetes.cluster import HORIZONTAL, SCALED_OBJECT, Cluster, again_on
from tocsin.actions.kubernetes.drain import Drainer, DrainProgress, DrainTask, ask_for_checkpoint
from tocsin.actions.kubernetes.release import REASON, own_conditions
from tocsin.actions.kubernetes.rights import WorkloadResource, resource_of
from tocsin.actions.kubernetes.single_gpu import SingleGpu
from tocsin.actions.model.executor import ExecutionResult, went
from tocsin.actions.model.scope import pool_of
from tocsin.config.kubernetes import KubernetesSettings, KubernetesWorkload
from tocsin.domain.clock import SECOND, Clock, to_iso
from tocsin.domain.decision import BY_HAND, Decision, DefragmentParameters, ScaleParameters
from tocsin.domain.finding import ActionKind, Category, SubjectKind
from tocsin.domain.phrase import Phrase, say

SCALED_BY = "tocsin.io/scaled-by"
"""Annotation on an autoscaler: id of the decision that moved its minimum."""
MINIMUM_BEFORE = "tocsin.io/minimum-before"
"""Annotation on an autoscaler: its minimum before Tocsin first moved it."""
MINIMUM_SET = "tocsin.io/minimum-set"
"""Annotation on an autoscaler: the minimum that Tocsin set last; with another, somebody has moved it since."""

_BOUNDS = {
    SCALED_OBJECT: ("minReplicaCount", "maxReplicaCount", 0, 100),
    HORIZONTAL: ("minReplicas", "maxReplicas", 1, 1),
}
"""By kind of autoscaler, in the order in which they are looked for: the fields of its bounds, and their defaults."""


@dataclass(frozen=True, slots=True)
class ReplicaRequest:
    """`replicas` in all, or a step more (`direction` 1) or fewer (-1) than there are. `key` is the decision's id."""

    key: str
    direction: int
    replicas: int | None = None

    def target(self, now: int, workload: KubernetesWorkload) -> int:
        """The number to ask for, within the workload's bounds; `now` where that would go the other way."""
        wanted = now + self.direction * workload.step if self.replicas is None else self.replicas
        bounded = min(max(wanted, workload.min_replicas), workload.max_replicas)
        return bounded if (bounded - now) * self.direction > 0 else now


@dataclass(frozen=True, slots=True)
class Autoscaler:
    """The autoscaler of a workload: `kind` is ``HorizontalPodAutoscaler`` or ``ScaledObject`` (KEDA)."""

    kind: str
    name: str
    minimum: int
    maximum: int
    version: str
    annotations: Mapping[str, str]

    @property
    def before(self) -> int:
        """The minimum before Tocsin moved it; the present one where that is not Tocsin's."""
        known, last = (self.annotations.get(each, "") for each in (MINIMUM_BEFORE, MINIMUM_SET))
        return int(known) if known.isdecimal() and last == str(self.minimum) else self.minimum

    def __str__(self) -> str:
        return f"{self.kind} {self.name} ({self.minimum} to {self.maximum} replicas)"


class Scaler:
    """Changes replicas once per decision."""

    def __init__(self, cluster: Cluster, *, move_minimum: bool) -> None:
        self._cluster = cluster
        self._move_minimum = move_minimum

    def apply(self, workload: KubernetesWorkload, wish: ReplicaRequest) -> ExecutionResult:
        """Ask for the replicas, once. Raises KubeError."""
        place = resource_of(workload)
        return again_on(409, lambda: self._try(place, workload, wish))

    def seen(self, workload: KubernetesWorkload, wish: ReplicaRequest) -> bool | None:
        """Whether the replicas are as this decision set them; None while they are on the way, or it set none."""
        place = resource_of(workload)
        held = self._cluster.workload(place.path)
        owner = self._owner(place, str(held.get("kind", "")))
        if owner is not None:
            return owner.annotations.get(SCALED_BY) == wish.key
        scale = self._cluster.scale(place.path)
        if not _written_by(held, wish.key):
            return False
        asked, there = _replicas(scale), int((scale.get("status") or {}).get("replicas", 0))
        return True if asked == there else None

    def _try(self, place: WorkloadResource, workload: KubernetesWorkload, wish: ReplicaRequest) -> ExecutionResult:
        held = self._cluster.workload(place.path)
        owner = self._owner(place, str(held.get("kind", "")))
        if owner is not None:
            return self._hand_over(place, workload, wish, owner)
        if _written_by(held, wish.key):
            return went(True, say("{target}: already requested", target=workload.target), lasting=False)
        scale = self._cluster.scale(place.path)
        now = _replicas(scale)
        target = wish.target(now, workload)
        if target == now:
            bounds = f"{workload.min_replicas} to {workload.max_replicas}"
            return went(
                True,
                say(
                    "{target} stays at {now} replicas (bounds {bounds})", target=workload.target, now=now, bounds=bounds
                ),
                lasting=False,
            )
        self._cluster.set_replicas(place.path, target, scale["metadata"]["resourceVersion"], _manager(wish.key))
        return _scaled(f"{workload.target}: {now} -> {target} replicas", target - now)

    def _hand_over(
        self, place: WorkloadResource, workload: KubernetesWorkload, wish: ReplicaRequest, owner: Autoscaler
    ) -> ExecutionResult:
        """Leave the replicas to their owner; where settings allow, move its minimum instead."""
        if not self._move_minimum:
            return went(
                False,
                say(
                    "{owner} sets the replicas of {target}; it was left to that one",
                    owner=owner,
                    target=workload.target,
                ),
            )
        if owner.annotations.get(SCALED_BY) == wish.key:
            return went(True, say("{owner}: already requested", owner=owner), lasting=False)
        before = owner.before
        target = max(min(wish.target(owner.minimum, workload), owner.maximum), before)
        if (target - owner.minimum) * wish.direction <= 0:
            return went(True, say("{owner}: its minimum stays", owner=owner), lasting=False)
        notes = {SCALED_BY: wish.key, MINIMUM_BEFORE: str(before), MINIMUM_SET: str(target)}
        metadata = {"resourceVersion": owner.version, "annotations": notes}
        body = {"metadata": metadata, "spec": {_BOUNDS[owner.kind][0]: target}}
        self._cluster.patch_autoscaler(owner.kind, place.namespace, owner.name, body)
        return _scaled(f"{owner} of {workload.target}: minimum {owner.minimum} -> {target}", target - owner.minimum)

    def _owner(self, place: WorkloadResource, kind: str) -> Autoscaler | None:
        for owner in _BOUNDS:
            for one in self._cluster.autoscalers(owner, place.namespace):
                if _aims_at((one.get("spec") or {}).get("scaleTargetRef"), kind, place.name):
                    return _owner(owner, one)
        return None


def _owner(kind: str, one: Json) -> Autoscaler:
    metadata, spec = one.get("metadata") or {}, one.get("spec") or {}
    low, high, least, most = _BOUNDS[kind]
    name, version = str(metadata.get("name", "")), str(metadata.get("resourceVersion", ""))
    notes = metadata.get("annotations") or {}
    return Autoscaler(kind, name, int(spec.get(low, least)), int(spec.get(high, most)), version, notes)


def _aims_at(target: Mapping[str, Any] | None, kind: str, name: str) -> bool:
    """KEDA leaves the kind out for a Deployment."""
    return (
        bool(target) and target is not None and target.get("name") == name and target.get("kind", "Deployment") == kind
    )


def _replicas(scale: Json) -> int:
    return int((scale.get("spec") or {}).get("replicas", 0))


def _manager(key: str) -> str:
    return f"tocsin-{key}"


def _written_by(workload: Json, key: str) -> bool:
    """Whether the decision `key` set the replicas last: the server keeps the writer of every field."""
    fields = (workload.get("metadata") or {}).get("managedFields") or []
    return any(each.get("manager") == _manager(key) and each.get("subresource") == "scale" for each in fields)


def _scaled(detail: str, change: int) -> ExecutionResult:
    return ExecutionResult(True, detail, effect={"replicas_added": float(change)})


def _with(said: Phrase, more: str) -> Phrase:
    """`said`, and what else went wrong in words of its own."""
    return say("{said}{more}", said=said, more=more) if more else said


def host_of(decision: Decision) -> str:
    """The node that the decision is about; empty for a pool or the fleet."""
    subject = decision.subject
    return subject.name if subject.kind is SubjectKind.HOST else subject.host


def pods_of(decision: Decision) -> frozenset[str]:
    """The pods that the decision names."""
    return frozenset(decision.parameters.context.pods)


def mig_config_of(decision: Decision) -> str:
    """The MIG layout that the decision asks for; empty for none."""
    asked = decision.parameters
    return asked.mig_config if isinstance(asked, DefragmentParameters) else ""


def replicas_asked(decision: Decision) -> ReplicaRequest:
    """The replicas that the decision asks for, None where it names no number."""
    asked = decision.parameters
    direction = 1 if decision.action is ActionKind.SCALE_OUT else -1
    return ReplicaRequest(decision.id, direction, asked.replicas if isinstance(asked, ScaleParameters) else None)


class KubernetesActions:
    """Carries out single actions; raises KubeError where the server refuses or does not answer."""

    def __init__(self, cluster: Cluster, settings: KubernetesSettings, clock: Clock) -> None:
        self._cluster = cluster
        self._settings = settings
        self._clock = clock
        self._drainer = Drainer(cluster, settings, clock)
        self.scaler = Scaler(cluster, move_minimum=settings.autoscaled == "raise_minimum")
        self.single = SingleGpu(cluster, settings, clock, self._steer_away)
        self._ways: dict[ActionKind, Callable[[Decision, DrainProgress], ExecutionResult]] = {
            ActionKind.CORDON_GPU: lambda decision, state: self.single.cordon(decision, host_of(decision), state),
            ActionKind.UNCORDON_GPU: lambda decision, _state: self.single.uncordon(decision, host_of(decision)),
            ActionKind.CORDON: self._cordon,
            ActionKind.UNCORDON: self._uncordon,
            ActionKind.DRAIN: self._drain,
            ActionKind.MIGRATE: self._migrate,
            ActionKind.CHECKPOINT: self._checkpoint,
            ActionKind.PLACE_ELSEWHERE: self._avoid,
            ActionKind.DEFRAGMENT: self._repartition,
            ActionKind.SCALE_OUT: self._scale,
            ActionKind.SCALE_IN: self._scale,
        }

    @property
    def actions(self) -> frozenset[ActionKind]:
        return frozenset(self._ways)

    def carry_out(self, decision: Decision, state: DrainProgress) -> ExecutionResult:
        """The next step of `decision`, whose action is one of `actions`."""
        return self._ways[decision.action](decision, state)

    def release(self, node: str) -> bool:
        """Take back the mark that steers work away from `node`; False where there is none."""
        return self._cluster.change_node(node, patches.no_longer_avoid)

    def strip(self, node: str) -> bool:
        """Take the marks of a cordon off a node that a person gave back; False where there are none."""
        self._no_more_repair(self._cluster.node(node))
        return self._cluster.change_node(node, lambda fresh: patches.strip(fresh, self._settings.fault_taint))

    def _cordon(self, decision: Decision, state: DrainProgress) -> ExecutionResult:
        host = host_of(decision)
        stands = self._take(host, self._mark(decision), state)
        if stands is patches.CordonState.UNDONE:
            return went(False, say("someone uncordoned {host}; left as is", host=host))
        if stands is patches.CordonState.FOREIGN:
            return went(True, say("{host} is cordoned by someone else; left as is", host=host), lasting=False)
        free = stands is patches.CordonState.FREE
        said = say("cordoned {host}" if free else "{host} is cordoned already", host=host)
        return went(True, _with(said, self._set_condition(host, decision, healthy=False)))

    def _take(self, host: str, mark: patches.CordonNote, state: DrainProgress) -> patches.CordonState:
        """Cordon `host` unless it is, or unless that was undone; how it stood before."""
        change = patches.CordonChange(mark, state.begun)
        self._cluster.change_node(host, change)
        state.begun = not self._cluster.dry_run
        return change.stood

    def _uncordon(self, decision: Decision, state: DrainProgress) -> ExecutionResult:
        host, key = host_of(decision), self._mark(decision).key
        foreign = [False]
        before = [False]
        back = [False]
        touched = [False]

        def change(node: KubeNode) -> Json | None:
            touched[0] = patches.is_touched(node, self._settings.fault_taint)
            foreign[0] = not node.schedulable and not patches.is_ours(node)
            before[0], back[0] = patches.has_uncordoned(node, key), node.schedulable
            if patches.is_ours(node) and not before[0]:
                self._no_more_repair(node)
            return patches.uncordon(node, key, self._settings.fault_taint)

        if self._cluster.change_node(host, change) and touched[0] and not foreign[0]:
            said = say("uncordoned {host}", host=host)
            return went(True, _with(said, self._set_condition(host, decision, healthy=True)))
        if before[0] and back[0]:
            return went(True, say("{host} was uncordoned already", host=host))
        if before[0]:
            return went(False, say("{host} has been cordoned again since this uncordoned it; left as is", host=host))
        if foreign[0]:
            return went(False, say("{host} was cordoned by someone else, who has to uncordon it", host=host))
        return went(True, say("{host} was not cordoned by Tocsin", host=host), lasting=False)

    def _drain(self, decision: Decision, state: DrainProgress) -> ExecutionResult:
        host, mark = host_of(decision), self._mark(decision)
        before = state.begun
        try:
            stands = self._take(host, mark, state)
        except KubeError as error:
            if error.status != 404 or not before:
                raise
            return went(
                True, say("{host} was deleted while it was drained; nothing is left to do", host=host), lasting=False
            )
        if stands is patches.CordonState.UNDONE:
            return went(False, say("someone uncordoned {host}; the drain stops", host=host))
        said = "" if before else self._set_condition(host, decision, healthy=False)
        result = self._drainer.drain(DrainTask(host, mark), state)
        ours = result.lasting and stands is not patches.CordonState.FOREIGN
        if ours and result.ok and not result.pending:
            said += self._ask_for_repair(host, decision)
        more = None if result.said is None else _with(result.said, said)
        return replace(result, detail=result.detail + said, said=more, lasting=ours)

    def _migrate(self, decision: Decision, state: DrainProgress) -> ExecutionResult:
        host, wanted = host_of(decision), pods_of(decision)
        if not wanted:
            return went(False, say("no pods are named that hold {subject}", subject=decision.subject.name))
        if not state.begun:
            self._steer_away(host, decision.id)
            state.begun = not self._cluster.dry_run
        return self._drainer.migrate(DrainTask(host, self._mark(decision), wanted), state)

    def _checkpoint(self, decision: Decision, state: DrainProgress) -> ExecutionResult:
        host, wanted = host_of(decision), pods_of(decision)
        if not self._settings.checkpoint_seconds:
            return went(False, say("no pod is asked for checkpoints: kubernetes.checkpoint_seconds is 0"))
        here = [pod for pod in self._cluster.pods_on(host) if not pod.finished and not pod.terminating]
        asked = [pod for pod in here if pod.checkpoints and (pod.title in wanted if wanted else pod.gpus)]
        if not asked:
            return went(False, say("no pod on {host} takes checkpoints on request", host=host))
        for pod in asked:
            ask_for_checkpoint(self._cluster, pod, decision.id)
        waits = [pod.title for pod in asked if pod.annotations.get(CHECKPOINT_DONE) != decision.id]
        took = self._clock.monotonic() - state.since
        effect = {"checkpoint_seconds": took, "checkpoints_taken": float(len(asked) - len(waits))}
        if not waits:
            return went(True, say("{n} checkpoints are safe", n=len(asked)), effect=effect)
        if self._cluster.dry_run:
            return went(True, say("dry run: would ask {names}", names=", ".join(waits)), effect=effect)
        late = took >= self._settings.checkpoint_seconds
        return went(
            not late, say("no checkpoint yet of {pods}", pods=", ".join(waits)), pending=not late, effect=effect
        )

    def _avoid(self, decision: Decision, state: DrainProgress) -> ExecutionResult:
        host = host_of(decision)
        until = self._steer_away(host, decision.id)
        if not until:
            return went(True, say("new work was steered away from {host} before", host=host), lasting=False)
        return went(True, say("new work goes elsewhere than to {host} until {until}", host=host, until=until))

    def _steer_away(self, host: str, key: str) -> str:
        """Until when, empty where that was done before under `key`."""
        until = to_iso(self._clock.now_ms() + round(self._settings.avoid_seconds * SECOND))
        by_taint = self._settings.avoid_with == "taint"
        done = self._cluster.change_node(host, lambda node: patches.avoid(node, until, key, by_taint=by_taint))
        return until if done else ""

    def _repartition(self, decision: Decision, state: DrainProgress) -> ExecutionResult:
        host = host_of(decision)
        node = self._cluster.node(host)
        if node.annotations.get(patches.MIG_KEY) == decision.id:
            return self._repartitioned(node, state)
        if patches.has_run(node, decision.id):
            return went(False, say("{host} has been partitioned otherwise since; left as is", host=host))
        wanted = mig_config_of(decision)
        config = node.annotations.get(patches.MIG_BEFORE, "") if wanted == "previous" else wanted
        if not config:
            return went(False, say("no MIG configuration is named for {host}", host=host))
        if node.labels.get(patches.MIG_CONFIG) == config and node.labels.get(patches.MIG_STATE) == "success":
            return went(True, say("{host} is partitioned as {config} already", host=host, config=config), lasting=False)
        busy = sorted(
            pod.title for pod in self._cluster.pods_on(host) if pod.gpus and not pod.finished and not pod.of_daemon
        )
        if busy:
            return went(
                False,
                say(
                    "{names} hold GPUs of {host}; drain it before it is repartitioned", names=", ".join(busy), host=host
                ),
            )
        self._cluster.change_node(host, lambda fresh: patches.repartition(fresh, config, decision.id))
        return went(True, say("asked mig-manager for {config} on {host}", config=config, host=host), pending=True)

    def _repartitioned(self, node: KubeNode, state: DrainProgress) -> ExecutionResult:
        answer, config = node.labels.get(patches.MIG_STATE, ""), node.labels.get(patches.MIG_CONFIG, "")
        took = self._clock.monotonic() - state.since
        effect = {"repartition_seconds": took}
        before = node.annotations.get(patches.MIG_BEFORE, "") or "none"
        if answer == "success":
            return went(
                True,
                say(
                    "{node} is partitioned as {config}, before as {before}",
                    node=node.name,
                    config=config,
                    before=before,
                ),
                effect=effect,
            )
        if answer == "failed":
            return went(
                False,
                say("mig-manager failed on {node}; it was {before} before", node=node.name, before=before),
                effect=effect,
            )
        if took < self._settings.mig_seconds:
            return went(
                True, say("mig-manager on {node}: {answer}", node=node.name, answer=answer), pending=True, effect=effect
            )
        said = "mig-manager on {node} still says {answer} after {n} s"
        waited = f"{self._settings.mig_seconds:.0f}"
        return went(False, say(said, node=node.name, answer=answer, n=waited), certain=False, effect=effect)

    def _scale(self, decision: Decision, state: DrainProgress) -> ExecutionResult:
        workload = self._settings.workloads[pool_of(decision)]
        if decision.parameters.problem:
            return ExecutionResult(False, decision.parameters.problem)
        return self.scaler.apply(workload, replicas_asked(decision))

    def _mark(self, decision: Decision) -> patches.CordonNote:
        reason = f"{decision.rule}: {decision.sentence}"
        return patches.CordonNote(decision.id, reason, to_iso(self._clock.now_ms()), self._settings.fault_taint)

    def _set_condition(self, host: str, decision: Decision, *, healthy: bool) -> str:
        """Write the node condition; what went wrong with that, in words: the action itself has succeeded."""
        kind = self._settings.node_condition
        if not kind:
            return ""
        reason = "GivenBack" if healthy else f"{REASON}{decision.action.value.title().replace('_', '')}"
        at = to_iso(self._clock.now_ms())[:19] + "Z"
        try:
            body = patches.condition(
                self._cluster.node(host),
                kind,
                status="True" if healthy else "False",
                reason=reason,
                message=decision.sentence,
                at=at,
            )
            if body is not None:
                self._cluster.set_condition(host, body)
        except KubeError as error:
            return f" (condition {kind} was not written: {error})"
        return ""

    def _ask_for_repair(self, host: str, decision: Decision) -> str:
        """Write the condition that the provider repairs on, for broken hardware that a rule has found; what came of it
        in words."""
        kind = self._settings.repair_condition
        if not kind or decision.category is not Category.HARDWARE or decision.rule == BY_HAND:
            return ""
        at = to_iso(self._clock.now_ms())[:19] + "Z"
        try:
            node = self._cluster.node(host)
            if node.condition(kind) and kind not in own_conditions(node, shared={kind}):
                return f" (condition {kind} is kept by others: left as is)"
            body = patches.condition(
                node, kind, status="False", reason=f"{REASON}Drain", message=decision.sentence, at=at
            )
            if body is not None:
                self._cluster.set_condition(host, body)
        except KubeError as error:
            return f" (condition {kind} was not written: {error})"
        verb = "would be" if self._cluster.dry_run else "is"
        return f" (condition {kind} {verb} False: the provider may replace the node)"

    def _no_more_repair(self, node: KubeNode) -> None:
        """Take that condition away where it is Tocsin's: first of all, so that what fails after it is tried again."""
        kind = self._settings.repair_condition
        if kind and kind in own_conditions(node, shared={kind}):
            self._cluster.remove_conditions(node.name, [kind])

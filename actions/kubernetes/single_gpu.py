"""One GPU of a node is taken out of service and the others are spared: by a DeviceTaintRule, for pods that hold GPUs by
ResourceClaims.

That the server takes a rule proves nothing: it does so where nothing acts on it. A rule begins with effect ``None``,
and only once the controller of device taints has written its condition does it get an effect. Where that does not come,
new work is steered off the whole node by a taint that no scheduler must follow, and the outcome says so: guards have
looked at one GPU, so that closing its node is another decision.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tocsin.actions.kubernetes import patches
from tocsin.actions.kubernetes.api import Json, KubeError, KubeNode, Pod
from tocsin.actions.kubernetes.budgets import allowed, covers, title
from tocsin.actions.kubernetes.cluster import Cluster
from tocsin.actions.kubernetes.devices import (
    DRIVER,
    DeviceName,
    Effect,
    Rule,
    RuleNote,
    astray,
    devices_in,
    devices_of,
    gpus_by_node,
    holders,
    holders_by_device,
    rule_body,
)
from tocsin.actions.kubernetes.drain import DrainProgress, Evictor, stays
from tocsin.actions.model.executor import ExecutionResult, went
from tocsin.config.kubernetes import KubernetesSettings
from tocsin.domain.clock import MINUTE, Clock
from tocsin.domain.decision import Decision, UncordonGpuParameters, id_of
from tocsin.domain.phrase import Phrase, say

_OBJECTS = ("v1", "v1beta2", "v1beta1")
"""Versions of slices and claims, the newest first."""
_RULES = ("v1", "v1beta2", "v1alpha3")
"""Versions that DeviceTaintRules are found in: v1alpha3 of Kubernetes 1.33, v1beta2 of 1.36, v1 of 1.37."""
VERSIONS_MS = 10 * MINUTE
"""How long it is kept which versions the server serves (own choice)."""
_OFF = frozenset({404, 422})
"""Answers to the first rule by which a server knows no rules, or none with effect ``None`` (before Kubernetes 1.35)."""


@dataclass(frozen=True, slots=True)
class DeviceVersions:
    """The versions of ``resource.k8s.io`` to ask with; empty where the server has no such resource."""

    objects: str = ""
    rules: str = ""


@dataclass(frozen=True, slots=True)
class ClaimedPods:
    """`uids` of the pods that hold GPUs by claims, UUIDs of the GPUs that rules of Tocsin's `closed`, and how many
    `gpus` each node publishes."""

    uids: frozenset[str] = frozenset()
    closed: frozenset[str] = frozenset()
    gpus: Mapping[str, int] = field(default_factory=dict)


class DeviceReader:
    """What the cluster has of DRA. All methods raise KubeError."""

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self._cluster = cluster
        self._clock = clock
        self._known: tuple[int, DeviceVersions] | None = None

    def versions(self) -> DeviceVersions:
        """What the server serves, asked of it every ten minutes."""
        now_ms = self._clock.now_ms()
        if self._known is None or now_ms - self._known[0] >= VERSIONS_MS:
            self._known = (now_ms, versions_in(self._cluster.device_versions()))
        return self._known[1]

    def rules(self) -> list[Rule]:
        """The rules that Tocsin made; none where the server has none."""
        version = self.versions().rules
        return [Rule(one) for one in self._cluster.rules(version)] if version else []

    def claimed(self) -> ClaimedPods:
        """Who holds GPUs by claims in the whole cluster."""
        version = self.versions().objects
        held = holders_by_device(self._cluster.claims(version)) if version else {}
        uids = frozenset(uid for name, found in held.items() if name.driver == DRIVER for uid in found)
        closed = frozenset(rule.gpu for rule in self.rules() if rule.effect != Effect.NONE)
        return ClaimedPods(uids, closed, gpus_by_node(self._cluster.slices(version)) if version else {})


def versions_in(served: Mapping[str, frozenset[str]]) -> DeviceVersions:
    """The newest versions that have what is needed, of those `served` with their resources."""
    objects = (one for one in _OBJECTS if {"resourceslices", "resourceclaims"} <= served.get(one, frozenset()))
    rules = (one for one in _RULES if "devicetaintrules" in served.get(one, frozenset()))
    return DeviceVersions(next(objects, ""), next(rules, ""))


@dataclass(slots=True)
class _Task:
    """One `cordon_gpu` at one step."""

    decision: Decision
    host: str
    versions: DeviceVersions = field(default_factory=DeviceVersions)
    devices: Sequence[DeviceName] = ()

    @property
    def gpu(self) -> str:
        return self.decision.subject.name

    @property
    def named(self) -> str:
        return ", ".join(str(one) for one in self.devices)


class SingleGpu:
    """Takes single GPUs out of service and gives them back. All methods raise KubeError."""

    def __init__(
        self, cluster: Cluster, settings: KubernetesSettings, clock: Clock, steer: Callable[[str, str], str]
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._clock = clock
        self._steer = steer
        self._evictor = Evictor(cluster, settings)
        self.reader = DeviceReader(cluster, clock)

    def cordon(self, decision: Decision, host: str, state: DrainProgress) -> ExecutionResult:
        """The next step of taking the GPU of `decision` out."""
        task = _Task(decision, host, self.reader.versions())
        why = self._unfit(task)
        if why is not None:
            return self._instead(task, why)
        rules = {rule.device: rule for rule in self.reader.rules()}
        mine = [rules[one] for one in task.devices if one in rules and rules[one].gpu == task.gpu]
        if len(mine) < len(task.devices):
            state.begun = state.begun or patches.has_run(self._cluster.node(host), decision.id, patches.GPUS_RUN)
            return self._propose(task, {rule.device for rule in mine}, state)
        if not state.begun:
            # Its rules may be there of a process that ended before it could note that.
            self._note(task, state)
        if not all(rule.followed for rule in mine):
            return self._await(task, mine, state)
        for rule in mine:
            if rule.effect == Effect.NONE:
                self._set(task, rule, Effect.NO_SCHEDULE)
        return self._clear(task, mine, state)

    def uncordon(self, decision: Decision, host: str) -> ExecutionResult:
        """Take back the rules about the GPU of `decision`, and the mark on its node that stood in for one."""
        gpu, version = decision.subject.name, self.reader.versions().rules
        if patches.has_run(self._cluster.node(host), decision.id, patches.GPUS_RUN):
            said = say("{gpu} was given back by this before; what was done since is left as is", gpu=gpu)
            return went(True, said, lasting=False)
        mine = [rule for rule in self.reader.rules() if rule.gpu == gpu]
        for rule in mine:
            self._cluster.delete_rule(version, rule.name, rule.uid)
        parameters = decision.parameters
        undone = id_of(parameters.undoes) if isinstance(parameters, UncordonGpuParameters) and parameters.undoes else ""

        steered = [False]

        def change(node: KubeNode) -> Json | None:
            steered[0] = bool(undone) and node.annotations.get(patches.AVOID_KEY) == undone
            return patches.gpu_given_back(node, decision.id, undone)

        self._cluster.change_node(host, change)
        if steered[0] or mine:
            return went(True, say("{gpu} takes work again", gpu=gpu))
        return went(True, say("{gpu} was not taken out by Tocsin", gpu=gpu), lasting=False)

    def seen(self, gpu: str, host: str, *, out: bool) -> bool:
        """Whether the cluster shows the GPU taken `out`, or given back."""
        mine = [rule for rule in self.reader.rules() if rule.gpu == gpu]
        if not out:
            return not mine
        closed = bool(mine) and all(rule.followed and rule.effect != Effect.NONE for rule in mine)
        return closed or patches.is_avoided(self._cluster.node(host))

    def realign(self) -> list[str]:
        """Move rules whose device became another GPU to the device that theirs is now; the GPUs that had one."""
        rules, versions = self.reader.rules(), self.reader.versions()
        lost = astray(rules, devices_in(self._cluster.slices(versions.objects))) if rules and versions.objects else []
        for rule, _ in lost:
            # The wrong GPU is freed first: names are exchanged in pairs, and each name has one rule.
            self._cluster.delete_rule(versions.rules, rule.name, rule.uid)
        for rule, names in lost:
            for name in names:
                note = RuleNote(rule.gpu, rule.key, rule.reason)
                body = rule_body(versions.rules, name, note, rule.taint, Effect(rule.effect))
                self._cluster.create_rule(versions.rules, body)
        return [rule.gpu for rule, _ in lost]

    def _unfit(self, task: _Task) -> Phrase | None:
        """Why no rule can name the GPU; finds its devices otherwise."""
        if not task.versions.objects:
            return say("the cluster serves no ResourceSlices")
        listed = devices_in(self._cluster.slices(task.versions.objects, task.host))
        task.devices = devices_of(listed, task.gpu)
        if not task.devices:
            return say("no ResourceSlice has it, so that no pod holds it by a claim")
        if not task.versions.rules:
            return say("the cluster serves no DeviceTaintRules")
        return None

    def _propose(self, task: _Task, there: set[DeviceName], state: DrainProgress) -> ExecutionResult:
        """Make the rules without an effect."""
        if state.begun:
            return went(False, say("someone took back the rule for {devices}; left as is", devices=task.named))
        key = f"{task.decision.rule}: {task.decision.sentence}"
        note = RuleNote(task.gpu, task.decision.id, key)
        try:
            for name in task.devices:
                if name not in there:
                    body = rule_body(task.versions.rules, name, note, self._settings.device_taint, Effect.NONE)
                    self._cluster.create_rule(task.versions.rules, body)
        except KubeError as error:
            if error.status not in _OFF:
                raise
            return self._instead(task, say("the cluster refuses the rule ({error})", error=error))
        if self._cluster.dry_run:
            said = say("dry run: would take {gpu} ({devices}) out by a rule", gpu=task.gpu, devices=task.named)
            return went(True, said, lasting=False)
        self._note(task, state)
        return went(True, say("a rule names {devices}; waiting for the cluster", devices=task.named), pending=True)

    def _note(self, task: _Task, state: DrainProgress) -> None:
        """Note at the node that the decision has begun: rules that go again are not made anew for it."""
        self._cluster.change_node(task.host, lambda node: patches.gpu_taken(node, task.decision.id))
        state.begun = not self._cluster.dry_run

    def _await(self, task: _Task, mine: Sequence[Rule], state: DrainProgress) -> ExecutionResult:
        """Wait for the word of the controller; without it nothing acts on rules here, and the rules go again."""
        if self._clock.monotonic() - state.since < self._settings.device_rule_seconds:
            said = say("nothing has followed the rule for {devices} yet", devices=task.named)
            return went(True, said, pending=True)
        for rule in mine:
            if rule.effect == Effect.NONE:
                self._cluster.delete_rule(task.versions.rules, rule.name, rule.uid)
        return self._instead(task, say("nothing in the cluster follows its rule (gate DRADeviceTaintRules)"))

    def _instead(self, task: _Task, why: Phrase) -> ExecutionResult:
        until = self._steer(task.host, task.decision.id)
        template = "{gpu} is not taken out alone: {why}; new work is steered off {host}"
        said = say(template, gpu=task.gpu, why=why, host=task.host)
        if until:
            return went(True, say("{said} until {until}", said=said, until=until))
        return went(
            True, said if patches.is_avoided(self._cluster.node(task.host)) else say("{said} before", said=said)
        )

    def _set(self, task: _Task, rule: Rule, effect: Effect) -> None:
        body = {"metadata": {"resourceVersion": rule.version}, "spec": {"taint": {"effect": effect.value}}}
        self._cluster.patch_rule(task.versions.rules, rule.name, body)

    def _clear(self, task: _Task, mine: Sequence[Rule], state: DrainProgress) -> ExecutionResult:
        """New claims keep off it: say who holds it, and where the settings want that, make those pods go."""
        held = holders(self._cluster.claims(task.versions.objects), task.devices)
        pods = [pod for pod in self._cluster.pods_on(task.host) if pod.uid in held and not pod.finished]
        names = ", ".join(sorted(pod.title for pod in pods))
        if not pods:
            return went(True, say("{gpu} ({devices}) is out, and no pod holds it", gpu=task.gpu, devices=task.named))
        if self._settings.device_rules != "NoExecute":
            template = "{gpu} ({devices}) takes no new claims; {pods} hold it still"
            return went(True, say(template, gpu=task.gpu, devices=task.named, pods=names))
        told = any(rule.effect == Effect.NO_EXECUTE for rule in mine)
        why = "" if told else self._obstacles(pods, state, task.decision.id)
        late = self._clock.monotonic() - state.since >= self._settings.drain_seconds
        if late:
            template = "{gpu} takes no new claims, and {pods} hold it still: {why}"
            return went(False, say(template, gpu=task.gpu, pods=names, why=why or say("they are ending")))
        if why:
            return went(True, say("waiting: {blockers}", blockers=why), pending=True)
        for rule in mine:
            # One that had no effect a moment ago has another version by now: the next step sees it.
            if rule.effect == Effect.NO_SCHEDULE:
                self._set(task, rule, Effect.NO_EXECUTE)
        return went(True, say("{pods} are ending", pods=names), pending=True)

    def _obstacles(self, pods: Sequence[Pod], state: DrainProgress, key: str) -> str:
        """Why these pods may not be deleted now: the eviction that a rule brings asks nobody, so this does."""
        now = self._clock.monotonic()
        leaving = [pod for pod in pods if not pod.terminating]
        words = [f"{pod.title}: {why}" for pod in leaving if (why := stays(pod, self._settings))]
        words += [
            f"{pod.title} takes its checkpoint" for pod in leaving if not self._evictor.saved(pod, state, key, now)
        ]
        for budget in self._cluster.budgets():
            hit = sum(covers(budget, pod) for pod in leaving)
            if hit > allowed(budget):
                words.append(f"the disruption budget {title(budget)} allows {allowed(budget)} of {hit}")
        return ", ".join(words)

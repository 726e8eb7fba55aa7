"""All that Tocsin wrote on nodes and about devices is taken back at once: for a person who overrules or removes it.

What is Tocsin's is told by its marks and by the writers that the server keeps, never by settings alone: a key or a type
may have been renamed since, and another tool may use the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from tocsin.actions.kubernetes import mig_label, patches
from tocsin.actions.kubernetes.api import Json, KubeError, KubeNode
from tocsin.actions.kubernetes.cluster import Cluster
from tocsin.actions.kubernetes.devices import DRIVER, Rule, holders_by_device
from tocsin.actions.kubernetes.mig_label import MigReturn
from tocsin.actions.kubernetes.patches import (
    AVOID,
    CORDONED_BY,
    CORDONS_ENDED,
    GPUS_RUN,
    KEYS_RUN,
    OWNER,
    UNCORDONS_ENDED,
)
from tocsin.actions.kubernetes.signs import FAULT_CONDITION
from tocsin.actions.kubernetes.single_gpu import DeviceVersions, versions_in
from tocsin.domain.grouping import grouped

REASON = "Tocsin"
"""What the reason of a condition begins with while Tocsin has its node out of service."""
_NOTES = (patches.CORDON_REASON, patches.CORDON_KEY, patches.CORDON_AT, patches.AVOID_UNTIL, patches.AVOID_KEY)
_MEMORY = (CORDONS_ENDED, UNCORDONS_ENDED, KEYS_RUN, GPUS_RUN)
"""Annotations that keep a brain from doing again what has ended."""


@dataclass(frozen=True, slots=True)
class Released:
    """One node: what was `taken` back, what was `left` because it is somebody else's, what of Tocsin's `waits` and for
    what, and the refusal, empty for none."""

    node: str
    taken: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    error: str = ""
    waits: tuple[str, ...] = ()


def release_all(cluster: Cluster, *, condition: str = "", repair: str = "", forget: bool = False) -> Iterator[Released]:
    """Take back all of it, node by node; nodes without anything of Tocsin's are passed over.

    `condition` and `repair` are the types that settings name, the second one of others as well, for servers that tell
    no writers. With `forget` the ids of ended decisions go too. A node that refuses does not keep the others from it,
    and neither do rules of devices that may not be read: those are told of at the end. Raises KubeError where the
    server gives no service at all.
    """
    rules: dict[str, tuple[Rule, ...]] = {}
    versions, refusal = DeviceVersions(), ""
    nodes = cluster.nodes()
    try:
        versions = versions_in(cluster.device_versions())
        found = map(Rule, cluster.rules(versions.rules) if versions.rules else ())
        rules = grouped((one.device.pool, one) for one in found)
    except KubeError as error:
        refusal = str(error)
    work = _Work(cluster, versions.objects, {condition, FAULT_CONDITION} - {""}, {repair} - {""}, forget)
    for node in nodes:
        marks = work.release(node)
        taken = _take_rules(cluster, versions.rules, rules.pop(node.name, ()))
        if marks is not None or taken.taken or taken.error:
            yield _joined(node.name, marks, taken)
    for pool, left in rules.items():
        yield replace(_take_rules(cluster, versions.rules, left), node=pool)
    if refusal:
        yield Released("DeviceTaintRules", error=refusal)


def _take_rules(cluster: Cluster, version: str, rules: Sequence[Rule]) -> Released:
    taken: list[str] = []
    try:
        for rule in rules:
            cluster.delete_rule(version, rule.name, rule.uid)
            taken.append(f"DeviceTaintRule {rule.name}")
    except KubeError as error:
        return Released("", tuple(taken), error=str(error))
    return Released("", tuple(taken))


def _joined(node: str, marks: Released | None, rules: Released) -> Released:
    if marks is None:
        return replace(rules, node=node)
    error = "; ".join(filter(None, (marks.error, rules.error)))
    return replace(marks, taken=(*marks.taken, *rules.taken), error=error)


@dataclass(frozen=True, slots=True)
class _Look:
    """One node as it was read, and what is planned for its layout."""

    node: KubeNode
    mig: MigReturn

    @property
    def marks(self) -> list[str]:
        node = self.node
        cordon = ["cordon"] if patches.is_ours(node) and not node.schedulable else []
        taints = [f"taint {each.get('key')}:{each.get('effect')}" for each in node.taints if _ours(node, each)]
        labels = [f"label {key}" for key in _labels(node)]
        return [*cordon, *taints, *labels, *filter(None, (self.mig.taken,))] or ["annotations"]

    @property
    def left(self) -> tuple[str, ...]:
        """What is somebody else's by now."""
        foreign = patches.is_marked(self.node) and not patches.is_ours(self.node)
        said = "the cordon is somebody else's by now" if foreign else ""
        return tuple(filter(None, (said, self.mig.left)))

    @property
    def waits(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.mig.waits,)))


@dataclass(slots=True)
class _Work:
    """Takes the marks on nodes back; `objects` is the version that claims are read with, empty without DRA."""

    cluster: Cluster
    objects: str
    own: Collection[str]
    shared: Collection[str]
    forget: bool
    _by_claim: frozenset[str] | None = None

    def release(self, listed: KubeNode) -> Released | None:
        taken: list[str] = []
        seen: list[_Look] = []
        holders: list[str] = []

        def change(node: KubeNode) -> Json | None:
            plan = mig_label.put_back(node, holders)
            seen[:] = [_Look(node, plan)]
            return taking_back(node, plan, forget=self.forget)

        try:
            # Before the node is read to be changed: its version moves with every request of others in between.
            holders += self._holders(listed)
            if change(listed) is not None and self.cluster.change_node(listed.name, change):
                taken += seen[0].marks
            kinds = own_conditions(listed, own=self.own, shared=self.shared)
            if kinds:
                self.cluster.remove_conditions(listed.name, kinds)
                taken += [f"condition {kind}" for kind in kinds]
        except KubeError as error:
            if error.no_service:
                raise
            look = seen[0] if seen else _Look(listed, MigReturn({}))
            return Released(listed.name, tuple(taken), look.left, str(error), look.waits)
        look = seen[0]
        found = Released(listed.name, tuple(taken), look.left, "", look.waits)
        return found if found.taken or found.left or found.waits else None

    def _holders(self, node: KubeNode) -> list[str]:
        """The pods that hold GPUs of the node; asked for where its layout is to be changed."""
        if not mig_label.is_due(node):
            return []
        if self._by_claim is None:
            held = holders_by_device(self.cluster.claims(self.objects)) if self.objects else {}
            self._by_claim = frozenset(uid for name, uids in held.items() if name.driver == DRIVER for uid in uids)
        return mig_label.holders(self.cluster.pods_on(node.name), self._by_claim)


def taking_back(node: KubeNode, mig: MigReturn, *, forget: bool) -> Json | None:
    """The merge patch that takes back all marks, and does `mig`; None where there is nothing to do."""
    gone = [key for key in node.annotations if key in _NOTES or key.startswith(patches.MIGRATED)]
    gone += [key for key in _MEMORY if forget and key in node.annotations]
    labels = dict.fromkeys(_labels(node)) | mig.labels
    kept = [each for each in node.taints if not _ours(node, each)]
    spec: Json = {"taints": kept} if len(kept) != len(node.taints) else {}
    if patches.is_ours(node) and not node.schedulable:
        spec["unschedulable"] = None
    if not (gone or labels or spec or mig.notes):
        return None
    ran = patches.running(node, patches.AVOID_KEY, *({patches.MIG_KEY} & set(mig.notes)))
    notes: Json = dict.fromkeys((*gone, *mig.notes)) | ({} if forget else patches.ending(node) | ran)
    return {"metadata": {"labels": labels, "annotations": notes}, "spec": spec}


def own_conditions(node: KubeNode, *, own: Collection[str] = (), shared: Collection[str] = ()) -> list[str]:
    """Types of the conditions that Tocsin alone has written.

    Where the server tells no writer of one, those of `own` too, and of `shared`, which others keep as well, what has a
    reason of Tocsin's.
    """
    writers, found = node.condition_writers, list[str]()
    for each in node.conditions:
        kind = str(each.get("type", ""))
        marked = kind in shared and str(each.get("reason", "")).startswith(REASON)
        if writers.get(kind, {OWNER} if kind in own or marked else set()) == {OWNER}:
            found.append(kind)
    return found


def _labels(node: KubeNode) -> list[str]:
    return [key for key, value in ((CORDONED_BY, OWNER), (AVOID, "true")) if node.labels.get(key) == value]


def _ours(node: KubeNode, taint: Json) -> bool:
    """The taint that steers away, or one whose value is the id of a decision that cordoned this node."""
    if taint.get("key") == AVOID and taint.get("effect") == patches.RATHER_NOT:
        return True
    return taint.get("effect") == patches.CLOSED and taint.get("value") in patches.cordon_values(node)

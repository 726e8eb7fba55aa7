"""All that Tocsin wrote on nodes and about devices is taken back at once: for a person who overrules or removes it.

What is Tocsin's is told by its marks and by the writers that the server keeps, never by settings alone: a key or a type
may have been renamed since, and another tool may use the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tocsin.actions.kubernetes import patches
from tocsin.actions.kubernetes.api import Json, KubeError, KubeNode
from tocsin.actions.kubernetes.cluster import Cluster
from tocsin.actions.kubernetes.devices import Rule
from tocsin.actions.kubernetes.patches import AVOID, CORDONED_BY, CORDONS_ENDED, GPU_CORDONS, OWNER, UNCORDONS_ENDED
from tocsin.actions.kubernetes.single_gpu import versions_in
from tocsin.domain.grouping import grouped

_NOTES = (patches.CORDON_REASON, patches.CORDON_KEY, patches.CORDON_AT, patches.AVOID_UNTIL, patches.AVOID_KEY)
_MOST_NAMED = 4
_MEMORY = (CORDONS_ENDED, UNCORDONS_ENDED, GPU_CORDONS)
"""Annotations that keep a brain from doing again what has ended."""


@dataclass(frozen=True, slots=True)
class Released:
    """One node: what was `taken` back, what was `left` and why, and the refusal, empty for none."""

    node: str
    taken: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    error: str = ""


def release_all(cluster: Cluster, *, condition: str = "", forget: bool = False) -> Iterator[Released]:
    """Take back all of it, node by node; nodes without anything of Tocsin's are passed over.

    `condition` is the type that settings name, for servers that tell no writers. With `forget` the ids of ended
    decisions go too. A node that refuses does not keep the others from it, and neither do rules of devices that may not
    be read: those are told of at the end. Raises KubeError where the server gives no service at all.
    """
    rules: dict[str, tuple[Rule, ...]] = {}
    version, refusal = "", ""
    nodes = cluster.nodes()
    try:
        version = versions_in(cluster.device_versions()).rules
        rules = grouped((one.device.pool, one) for one in map(Rule, cluster.rules(version) if version else ()))
    except KubeError as error:
        refusal = str(error)
    for node in nodes:
        found = _release(cluster, node, condition, forget=forget)
        taken = _take_rules(cluster, version, rules.pop(node.name, ()))
        if found is not None or taken.taken or taken.error:
            yield _joined(node.name, found, taken)
    for pool, left in rules.items():
        yield replace(_take_rules(cluster, version, left), node=pool)
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


def _release(cluster: Cluster, listed: KubeNode, condition: str, *, forget: bool) -> Released | None:
    taken: list[str] = []
    left: list[str] = []

    def change(node: KubeNode) -> Json | None:
        taken[:], left[:] = _marks(node, busy), _left(node)
        return taking_back(node, busy, forget=forget)

    try:
        busy = _busy(cluster, listed)
        if taking_back(listed, busy, forget=forget) is not None:
            cluster.change_node(listed.name, change)
        else:
            left = _left(listed)
        kinds = own_conditions(listed, condition)
        if kinds:
            cluster.remove_conditions(listed.name, kinds)
            taken += [f"condition {kind}" for kind in kinds]
    except KubeError as error:
        if error.no_service:
            raise
        return Released(listed.name, tuple(taken), tuple(left), str(error))
    stays = _in_use(listed, busy) if busy else ""
    return Released(listed.name, tuple(taken), tuple(left), stays) if taken or left or stays else None


def _busy(cluster: Cluster, node: KubeNode) -> tuple[str, ...]:
    """Pods that hold GPUs of a node whose layout Tocsin changed: under them it is not changed back."""
    if patches.layout_back(node) is None:
        return ()
    pods = cluster.pods_on(node.name)
    return tuple(sorted(pod.title for pod in pods if pod.gpus and not pod.finished and not pod.of_daemon))


def taking_back(node: KubeNode, busy: Sequence[str] = (), *, forget: bool) -> Json | None:
    """The merge patch that takes back all marks, and the layout of GPUs unless pods are `busy` on them; None where
    there are none."""
    gone = [key for key in node.annotations if key in _NOTES or key.startswith(patches.MIGRATED)]
    gone += [key for key in _MEMORY if forget and key in node.annotations]
    labels = _labels(node)
    kept = [each for each in node.taints if not _ours(node, each)]
    spec: Json = {"taints": kept} if len(kept) != len(node.taints) else {}
    if patches.is_ours(node) and not node.schedulable:
        spec["unschedulable"] = None
    layout = (None if busy else patches.layout_back(node)) or {}
    if not (gone or labels or spec or layout):
        return None
    notes: Json = dict.fromkeys(gone) | ({} if forget else patches.ending(node)) | layout.get("annotations", {})
    return {
        "metadata": {"labels": dict.fromkeys(labels) | layout.get("labels", {}), "annotations": notes},
        "spec": spec,
    }


def own_conditions(node: KubeNode, condition: str) -> list[str]:
    """Types of the conditions that Tocsin alone has written; `condition` too where the server tells no writer of it."""
    writers = node.condition_writers
    present = [str(each.get("type", "")) for each in node.conditions]
    return [kind for kind in present if writers.get(kind, {OWNER} if kind == condition else set()) == {OWNER}]


def _marks(node: KubeNode, busy: Sequence[str]) -> list[str]:
    cordon = ["cordon"] if patches.is_ours(node) and not node.schedulable else []
    taints = [f"taint {each.get('key')}:{each.get('effect')}" for each in node.taints if _ours(node, each)]
    labels = [f"label {key}" for key in _labels(node)]
    if not busy and patches.layout_back(node) is not None:
        labels.append(f"label {patches.MIG_CONFIG}, again {node.annotations.get(patches.MIG_BEFORE) or 'none'}")
    return [*cordon, *taints, *labels] or ["annotations"]


def _in_use(node: KubeNode, busy: Sequence[str]) -> str:
    names = ", ".join(busy[:_MOST_NAMED])
    config, before = node.labels.get(patches.MIG_CONFIG, ""), node.annotations.get(patches.MIG_BEFORE) or "none"
    again = "drain the node and run tocsin release --all again"
    return f"{patches.MIG_CONFIG} stays {config}, it was {before} before: {names} hold GPUs; {again}"


def _left(node: KubeNode) -> list[str]:
    """What is not taken back: what is somebody else's by now."""
    left = []
    if patches.is_marked(node) and not patches.is_ours(node):
        left.append("the cordon is somebody else's by now")
    if patches.MIG_KEY in node.annotations and patches.layout_back(node) is None:
        left.append(f"{patches.MIG_CONFIG} is somebody else's by now")
    return left


def _labels(node: KubeNode) -> list[str]:
    return [key for key, value in ((CORDONED_BY, OWNER), (AVOID, "true")) if node.labels.get(key) == value]


def _ours(node: KubeNode, taint: Json) -> bool:
    """The taint that steers away, or one whose value is the id of a decision that cordoned this node."""
    if taint.get("key") == AVOID and taint.get("effect") == patches.RATHER_NOT:
        return True
    return taint.get("effect") == patches.CLOSED and taint.get("value") in patches.cordon_values(node)

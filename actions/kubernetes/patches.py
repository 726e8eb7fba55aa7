"""What Tocsin writes on nodes, as merge patches made from the node as it was read. Pure functions.

Every mark carries the prefix ``tocsin.io/``, so that what was put can be told from what others put, by a person too.
Taints are a list that a merge patch replaces as a whole: each patch here goes out with the resource version that it
was made from, so that a taint which somebody else adds in between is never lost.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from tocsin.actions.kubernetes.api import Json, KubeNode

OWNER = "tocsin"
"""Value of the label, and the field manager of everything that Tocsin writes on nodes."""
CORDONED_BY = "tocsin.io/cordoned-by"
"""Label, so that ``kubectl get nodes -l`` finds them; its value is ``tocsin``."""
CORDON_REASON = "tocsin.io/cordon-reason"
CORDON_KEY = "tocsin.io/cordon-key"
"""Annotation: id of the decision."""
CORDON_AT = "tocsin.io/cordon-at"
CORDONS_ENDED = "tocsin.io/cordons-ended"
"""Annotation: ids of the decisions whose cordons have ended: a brain that has forgotten them cordons for none again."""
UNCORDONS_ENDED = "tocsin.io/uncordons-ended"
"""Annotation: ids of the decisions that gave the node back: a brain that has forgotten them undoes no later cordon."""
MOST_ENDED = 8
KEYS_RUN = "tocsin.io/keys-run"
"""Annotation: ids of the decisions that steered work away, or changed the MIG layout: a brain that has forgotten them
does none of it again."""
GPUS_RUN = "tocsin.io/gpu-keys-run"
"""Annotation: the same of those that took out a GPU of the node, or gave one back: apart, because one that could not be
taken out alone steers work away under the same id."""
MOST_RUN = 32
"""Eight GPUs have four each (own choice)."""
AVOID = "tocsin.io/avoid"
"""Taint or label that steers new work elsewhere."""
AVOID_UNTIL = "tocsin.io/avoid-until"
AVOID_KEY = "tocsin.io/avoid-key"
"""Annotation: id of the decision that steers away."""
MIGRATED = "tocsin.io/migrate-"
"""Annotation, followed by the decision's id: UIDs of the pods that it moves."""
MIG_CONFIG = "nvidia.com/mig.config"
"""Label that mig-manager of NVIDIA's GPU operator follows."""
MIG_STATE = "nvidia.com/mig.config.state"
"""Label in which it answers: ``pending``, ``rebooting``, ``success`` or ``failed``."""
MIG_BEFORE = "tocsin.io/mig-config-before"
"""Annotation: the label's value before the newest change, empty for none."""
MIG_FIRST = "tocsin.io/mig-config-first"
"""Annotation: its value before the first of the changes by Tocsin that followed one another, empty for none."""
MIG_ASKED = "tocsin.io/mig-config-asked"
"""Annotation: the value that Tocsin set last; with another, somebody has changed it since."""
MIG_KEY = "tocsin.io/mig-key"
CLOSED, RATHER_NOT = "NoSchedule", "PreferNoSchedule"
"""Effects of the taints of a cordon and of steering away: others may have taints of the same key and another effect."""
LONGEST_REASON = 1024
"""Characters of a reason that are kept: own choice, a node's annotations may hold 256 KiB in all."""


@dataclass(frozen=True, slots=True)
class CordonNote:
    """Who cordons, why and when: `key` is the decision's id, `at` an RFC 3339 instant, `taint` a key or empty."""

    key: str
    reason: str
    at: str
    taint: str = ""


class CordonState(StrEnum):
    """How a node stands towards a cordon of Tocsin's."""

    FREE = "free"
    """It takes work, and nothing says that this decision cordoned it before."""
    OURS = "ours"
    """Tocsin cordoned it."""
    FOREIGN = "foreign"
    """Somebody else cordoned it."""
    UNDONE = "undone"
    """This decision cordoned it, and somebody has made it schedulable since, or Tocsin has."""


def is_marked(node: KubeNode) -> bool:
    """Whether the node carries Tocsin's mark of a cordon; it stays when a person gives the node back."""
    return node.labels.get(CORDONED_BY) == OWNER


def is_ours(node: KubeNode) -> bool:
    """Whether the node carries the mark, and nobody else has cordoned it since, as far as the server tells."""
    writers = node.cordon_writers
    return is_marked(node) and (node.schedulable or not writers or OWNER in writers)


def cordon_state(node: KubeNode, key: str) -> CordonState:
    """How `node` stands towards the decision `key`."""
    if node.schedulable:
        return CordonState.UNDONE if key in {node.annotations.get(CORDON_KEY), *_ended(node)} else CordonState.FREE
    return CordonState.OURS if is_ours(node) else CordonState.FOREIGN


def _ended(node: KubeNode, note: str = CORDONS_ENDED) -> list[str]:
    return [key for key in node.annotations.get(note, "").split(",") if key]


def has_uncordoned(node: KubeNode, key: str) -> bool:
    """Whether the decision `key` has given this node back before."""
    return key in _ended(node, UNCORDONS_ENDED)


def ending(node: KubeNode) -> dict[str, str]:
    """The annotation once the cordon that is noted on the node has ended; empty where none is."""
    key = node.annotations.get(CORDON_KEY)
    if not key:
        return {}
    return _with(node, CORDONS_ENDED, key)


def _with(node: KubeNode, note: str, key: str) -> dict[str, str]:
    """The annotation `note` with `key` as its newest id."""
    return {note: ",".join([*(one for one in _ended(node, note) if one != key), key][-MOST_ENDED:])}


def has_run(node: KubeNode, key: str, note: str = KEYS_RUN) -> bool:
    """Whether the decision `key` is in `note` as one that ran here."""
    return key in _ended(node, note)


def running(node: KubeNode, *notes: str, key: str = "") -> dict[str, str]:
    """The annotation of what ran, once the ids in `notes` go and `key` has run; empty where there is neither."""
    return _run(node, KEYS_RUN, [one for one in (*map(node.annotations.get, notes), key) if one])


def _run(node: KubeNode, note: str, keys: list[str]) -> dict[str, str]:
    known = [one for one in _ended(node, note) if one not in keys]
    return {note: ",".join([*known, *keys][-MOST_RUN:])} if keys else {}


def gpu_taken(node: KubeNode, key: str) -> Json | None:
    """Note that the decision `key` takes a GPU out; None where that is noted."""
    return None if has_run(node, key, GPUS_RUN) else {"metadata": {"annotations": _run(node, GPUS_RUN, [key])}}


def gpu_given_back(node: KubeNode, key: str, undone: str) -> Json | None:
    """Note that the decision `key` gave a GPU back, and take back the mark that steers away where the decision `undone`
    made it; None where that is noted."""
    noted = gpu_taken(node, key)
    steered = bool(undone) and node.annotations.get(AVOID_KEY) == undone
    patch = no_longer_avoid(node) if steered else None
    if noted is None or patch is None:
        return noted
    patch["metadata"]["annotations"] |= noted["metadata"]["annotations"]
    return patch


def cordon(node: KubeNode, mark: CordonNote) -> Json | None:
    """Make it unschedulable with Tocsin's mark; None where that is done, or is not Tocsin's to do."""
    stands = cordon_state(node, mark.key)
    if stands in {CordonState.FOREIGN, CordonState.UNDONE}:
        return None
    if stands is CordonState.OURS and node.annotations.get(CORDON_KEY) == mark.key:
        return None
    at = node.annotations.get(CORDON_AT, mark.at) if stands is CordonState.OURS else mark.at
    notes = {CORDON_REASON: mark.reason[:LONGEST_REASON], CORDON_KEY: mark.key, CORDON_AT: at} | ending(node)
    spec: Json = {"unschedulable": True}
    others = [each for each in node.taints if not _is_fault(node, each, mark.taint)]
    if mark.taint and not any(_is(each, mark.taint, CLOSED) for each in others):
        spec["taints"] = [*others, {"key": mark.taint, "value": _value(mark.key), "effect": CLOSED}]
    return {"metadata": {"labels": {CORDONED_BY: OWNER}, "annotations": notes}, "spec": spec}


@dataclass(slots=True)
class CordonChange:
    """Cordons a node unless it is, or unless a cordon that was `begun` has been undone. `stood` is how the node last
    stood before."""

    mark: CordonNote
    begun: bool
    stood: CordonState = CordonState.FREE

    def __call__(self, node: KubeNode) -> Json | None:
        self.stood = cordon_state(node, self.mark.key)
        if self.begun and node.schedulable:
            self.stood = CordonState.UNDONE
            return None
        return cordon(node, self.mark)


def uncordon(node: KubeNode, key: str, taint: str = "") -> Json | None:
    """Take back what Tocsin put, and nothing else, for the decision `key`; None where this decision has done so before,
    or where there is nothing of Tocsin's on a node that somebody else cordoned. The ids of what has ended stay."""
    if has_uncordoned(node, key) or not (node.schedulable or is_touched(node, taint)):
        return None
    gone, labels, spec = _put(node, taint)
    notes = gone | ending(node) | running(node, AVOID_KEY)
    if is_ours(node) or node.schedulable:
        # One that somebody else cordoned is not uncordoned by this: it stays to be done.
        notes |= _with(node, UNCORDONS_ENDED, key)
    return {"metadata": {"labels": labels, "annotations": notes}, "spec": spec}


def is_touched(node: KubeNode, taint: str = "") -> bool:
    """Whether anything of Tocsin's is on the node, beside the ids of what has ended."""
    return any(_put(node, taint))


def _put(node: KubeNode, taint: str) -> tuple[dict[str, str | None], dict[str, None], Json]:
    """What takes back all that Tocsin put: annotations, labels and parts of the spec."""
    taken = (CORDON_REASON, CORDON_KEY, CORDON_AT, AVOID_UNTIL, AVOID_KEY)
    gone: dict[str, str | None] = {note: None for note in taken if note in node.annotations}
    labels = {name: None for name in (CORDONED_BY, AVOID) if name in node.labels}
    spec: Json = {"unschedulable": None} if is_ours(node) and not node.schedulable else {}
    kept = [each for each in _others(node) if not _is_fault(node, each, taint)]
    if len(kept) != len(node.taints):
        spec["taints"] = kept
    return gone, labels, spec


def is_left_over(node: KubeNode) -> bool:
    """Whether a person gave the node back and Tocsin's marks of the cordon are still there."""
    return is_marked(node) and node.schedulable


def strip(node: KubeNode, taint: str = "") -> Json | None:
    """Take those marks back, so that a later cordon by a person is that person's; None where there are none.

    The decision's id stays: by it a decision that still goes on knows that it was overruled.
    """
    if not is_left_over(node):
        return None
    gone = {key: None for key in (CORDON_REASON, CORDON_AT) if key in node.annotations}
    patch: Json = {"metadata": {"labels": {CORDONED_BY: None}, "annotations": gone}}
    kept = [each for each in node.taints if not _is_fault(node, each, taint)]
    if len(kept) != len(node.taints):
        patch["spec"] = {"taints": kept}
    return patch


def avoid(node: KubeNode, until: str, key: str, *, by_taint: bool) -> Json | None:
    """Steer new work elsewhere until then; None where this decision has done so, also where that was undone since."""
    if node.annotations.get(AVOID_KEY) == key or has_run(node, key):
        return None
    metadata: Json = {"annotations": {AVOID_UNTIL: until, AVOID_KEY: key} | running(node, AVOID_KEY)}
    if not by_taint:
        return {"metadata": metadata | {"labels": {AVOID: "true"}}}
    taint = {"key": AVOID, "value": "true", "effect": RATHER_NOT}
    return {"metadata": metadata, "spec": {"taints": [*_others(node), taint]}}


def is_avoided(node: KubeNode) -> bool:
    """Whether new work is steered elsewhere by Tocsin's mark."""
    return node.labels.get(AVOID) == "true" or any(_is(each, AVOID, RATHER_NOT) for each in node.taints)


def no_longer_avoid(node: KubeNode) -> Json | None:
    """Take that mark back; None where there is none."""
    gone = {key: None for key in (AVOID_UNTIL, AVOID_KEY) if key in node.annotations}
    if not is_avoided(node) and not gone:
        return None
    patch: Json = {"metadata": {"annotations": gone | running(node, AVOID_KEY)}}
    if AVOID in node.labels:
        patch["metadata"]["labels"] = {AVOID: None}
    kept = _others(node)
    if len(kept) != len(node.taints):
        patch["spec"] = {"taints": kept}
    return patch


def repartition(node: KubeNode, config: str, key: str) -> Json | None:
    """Ask mig-manager for `config`, and note what was there; None where this decision has asked already.

    The state is set to ``pending`` with it, as mig-manager itself will: the ``success`` of the time before would be
    taken for the answer otherwise.
    """
    if node.annotations.get(MIG_KEY) == key or has_run(node, key):
        return None
    before, notes = node.labels.get(MIG_CONFIG, ""), node.annotations
    goes_on = MIG_FIRST in notes and notes.get(MIG_ASKED) == before
    first = notes[MIG_FIRST] if goes_on else before
    labels = {MIG_CONFIG: config, MIG_STATE: "pending"}
    marks = {MIG_KEY: key, MIG_BEFORE: before, MIG_FIRST: first, MIG_ASKED: config}
    return {"metadata": {"labels": labels, "annotations": marks | running(node, MIG_KEY, key=key)}}


def label(node: KubeNode, changes: dict[str, str | None]) -> Json | None:
    """Set labels, or remove those that are None; None where they are so already."""
    due = {key: value for key, value in changes.items() if node.labels.get(key) != value}
    return {"metadata": {"labels": due}} if due else None


def condition(node: KubeNode, kind: str, *, status: str, reason: str, message: str, at: str) -> Json | None:
    """The condition to write; None where it says so already. `at` is RFC 3339 in whole seconds."""
    before = node.condition(kind)
    if before.get("status") == status and before.get("reason") == reason and before.get("message") == message:
        return None
    since = before.get("lastTransitionTime") if before.get("status") == status else None
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message[:LONGEST_REASON],
        "lastHeartbeatTime": at,
        "lastTransitionTime": since or at,
    }


def _others(node: KubeNode) -> list[Json]:
    """All taints but the one that steers away."""
    return [each for each in node.taints if not _is(each, AVOID, RATHER_NOT)]


def _is(taint: Json, key: str, effect: str) -> bool:
    return taint.get("key") == key and taint.get("effect") == effect


def _is_fault(node: KubeNode, taint: Json, key: str) -> bool:
    """Whether it is the taint `key` that went with Tocsin's cordon: its value names the decision, as the mark does."""
    own = is_marked(node) and taint.get("value") == _value(node.annotations.get(CORDON_KEY, ""))
    return bool(key) and own and _is(taint, key, CLOSED)


def cordon_values(node: KubeNode) -> frozenset[str]:
    """Values of the taints that went with cordons of Tocsin's on this node, now or before."""
    return frozenset(_value(key) for key in (node.annotations.get(CORDON_KEY, ""), *_ended(node)) if key)


def _value(key: str) -> str:
    return re.sub(r"[^-A-Za-z0-9_.]", "-", key)[:63]

"""The label that mig-manager follows, where Tocsin has changed it: whether its earlier value is due, and how it is put
back. Pure functions of the node as it was read.

A layout is no mark beside others: mig-manager cuts the GPUs anew for it, and what runs on them would fail.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tocsin.actions.kubernetes.api import KubeNode, Pod
from tocsin.actions.kubernetes.patches import MIG_ASKED, MIG_BEFORE, MIG_CONFIG, MIG_FIRST, MIG_KEY, MIG_STATE

MOST_NAMED = 4
"""Pods that are named in a message."""
NOTES = (MIG_KEY, MIG_BEFORE, MIG_FIRST, MIG_ASKED)


@dataclass(frozen=True, slots=True)
class MigReturn:
    """What a release does about the label.

    `labels` are those to change, None for one to remove; `notes` the annotations that go; `taken`, `left` and `waits`
    are words on it: of what is taken back, is somebody else's, and stays until the GPUs are free. Empty where Tocsin
    has not changed it.
    """

    labels: dict[str, str | None]
    notes: tuple[str, ...] = ()
    taken: str = ""
    left: str = ""
    waits: str = ""


def is_due(node: KubeNode) -> bool:
    """Whether the label has a value of Tocsin's that is not the one from before."""
    return _is_noted(node) and _now(node) == _last(node) != _first(node)


def put_back(node: KubeNode, holders: Sequence[str]) -> MigReturn:
    """The earlier value of the label, unless `holders` (pods, ``namespace/name``) hold GPUs of the node."""
    if not _is_noted(node):
        return MigReturn({})
    notes = tuple(note for note in NOTES if note in node.annotations)
    now, first = _now(node), _first(node)
    if now == first:
        return MigReturn({}, notes)
    if not is_due(node):
        return MigReturn({}, notes, left=f"{MIG_CONFIG} is somebody else's by now")
    if holders:
        said = f"{MIG_CONFIG} stays {now}, it was {first or 'none'} before: {', '.join(holders[:MOST_NAMED])} hold GPUs"
        return MigReturn({}, waits=f"{said}; drain the node and run tocsin release --all again")
    # Without a layout to make there is no word of mig-manager to wait for.
    labels = {MIG_CONFIG: first or None, MIG_STATE: "pending" if first else None}
    return MigReturn(labels, notes, taken=f"label {MIG_CONFIG}, again {first or 'none'}")


def holders(pods: Sequence[Pod], by_claim: frozenset[str]) -> list[str]:
    """Those of a node's `pods` that hold GPUs, of the device plugin or, by UID, `by_claim`; ``namespace/name``."""
    return sorted(
        pod.title for pod in pods if not pod.finished and not pod.of_daemon and (pod.gpus or pod.uid in by_claim)
    )


def _is_noted(node: KubeNode) -> bool:
    """Older versions noted the value before the newest change alone."""
    return MIG_FIRST in node.annotations or MIG_BEFORE in node.annotations


def _now(node: KubeNode) -> str:
    return node.labels.get(MIG_CONFIG, "")


def _last(node: KubeNode) -> str:
    return node.annotations.get(MIG_ASKED, _now(node))


def _first(node: KubeNode) -> str:
    return node.annotations.get(MIG_FIRST, node.annotations.get(MIG_BEFORE, ""))

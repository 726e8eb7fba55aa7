"""How many more or fewer a decision asks for."""

from __future__ import annotations

import math
from collections.abc import Mapping

from tocsin.domain.decision import Decision
from tocsin.domain.subject import SubjectKind

NODES, GPUS = "nodes", "gpus"
"""Parameters of a decision to scale: nodes, or GPUs, to add or to take."""


def pool_of(decision: Decision) -> str:
    """The pool that a decision is about, that of its GPU where the subject is one; empty for none."""
    subject = decision.subject
    return subject.name if subject.kind is SubjectKind.POOL else subject.pool


def amount(parameters: Mapping[str, str], name: str) -> float:
    """A parameter as a positive number; 0 where it is missing or none."""
    try:
        number = float(parameters.get(name, 0))
    except ValueError:
        return 0.0
    return number if math.isfinite(number) and number > 0 else 0.0


def nodes_wanted(parameters: Mapping[str, str], gpus_per_node: int) -> int:
    """Nodes to add or take: ``nodes``, or as many as hold ``gpus``; else one."""
    nodes = amount(parameters, NODES)
    if nodes:
        return math.ceil(nodes)
    gpus = amount(parameters, GPUS)
    return math.ceil(gpus / gpus_per_node) if gpus and gpus_per_node else 1


def gpus_wanted(parameters: Mapping[str, str], gpus_per_node: int) -> int:
    """GPUs to add or take: ``gpus``, or those of ``nodes``; else those of one node."""
    gpus = amount(parameters, GPUS)
    return math.ceil(gpus) if gpus else nodes_wanted(parameters, gpus_per_node) * gpus_per_node

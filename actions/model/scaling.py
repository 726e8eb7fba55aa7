"""How many more or fewer a decision asks for."""

from __future__ import annotations

import math

from tocsin.domain.decision import Decision, ScaleParameters
from tocsin.domain.finding import SubjectKind


def pool_of(decision: Decision) -> str:
    """The pool that a decision is about, that of its GPU where the subject is one; empty for none."""
    subject = decision.subject
    return subject.name if subject.kind is SubjectKind.POOL else subject.pool


def scale_parameters(decision: Decision) -> ScaleParameters:
    """The parameters of a decision to scale; raises TypeError for one that is about something else."""
    if not isinstance(decision.parameters, ScaleParameters):
        raise TypeError(f"{decision.action} does not scale")
    return decision.parameters


def nodes_wanted(parameters: ScaleParameters, gpus_per_node: int) -> int:
    """Nodes to add or take: ``nodes``, or as many as hold ``gpus``; else one."""
    if parameters.nodes:
        return parameters.nodes
    gpus = parameters.gpus
    return math.ceil(gpus / gpus_per_node) if gpus and gpus_per_node else 1


def gpus_wanted(parameters: ScaleParameters, gpus_per_node: int) -> int:
    """GPUs to add or take: ``gpus``, or those of ``nodes``; else those of one node."""
    return parameters.gpus or nodes_wanted(parameters, gpus_per_node) * gpus_per_node

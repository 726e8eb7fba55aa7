"""What others say of a node: conditions of node-problem-detector, AKS, the EKS agent and NVSentinel, each in its own
polarity. Pure functions.

The row of a type in ``conditions.csv`` says which status is bad; a name such as ``Ready`` decides nothing. Types
without a row say nothing here, and neither does status ``Unknown``. What Tocsin wrote itself is no evidence.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.resources import files

from tocsin.actions.kubernetes.api import KubeNode
from tocsin.actions.kubernetes.release import own_conditions

_LONGEST_MESSAGE = 300
"""Characters of a condition's message that are told (own choice)."""


class About(StrEnum):
    """What a condition is about."""

    GPU = "gpu"
    """GPUs, or what only they need; no single one is named."""
    NODE = "node"


@dataclass(frozen=True, slots=True)
class ConditionSpec:
    """One row: status `bad` of condition `type`, which `tool` keeps, means what `meaning` says."""

    type: str
    tool: str
    bad: str
    about: About
    provenance: str
    meaning: str

    @property
    def good(self) -> str:
        return "False" if self.bad == "True" else "True"


@cache
def known_conditions() -> Mapping[str, ConditionSpec]:
    """The rows by type."""
    text = files("tocsin.actions.kubernetes").joinpath("conditions.csv").read_text(encoding="utf-8")
    return {
        row["type"]: ConditionSpec(
            row["type"], row["tool"], row["bad"], About(row["about"]), row["provenance"], row["meaning"]
        )
        for row in csv.DictReader(text.splitlines())
    }


@dataclass(frozen=True, slots=True)
class OthersWord:
    """What others' conditions of one node say: `bad` has the words by type, `good` the types that say all is well."""

    bad: Mapping[About, Mapping[str, str]]
    good: frozenset[str]


def word_of_others(node: KubeNode, own: frozenset[str] = frozenset()) -> OthersWord:
    """What others say of `node`; `own` are types that Tocsin writes, for servers that tell no writers."""
    ours = own_conditions(node, shared=own)
    bad: dict[About, dict[str, str]] = {about: {} for about in About}
    good = set()
    for condition in node.conditions:
        spec = known_conditions().get(str(condition.get("type", "")))
        if spec is None or spec.type in ours:
            continue
        status = condition.get("status")
        if status == spec.bad:
            bad[spec.about][spec.type] = _words(spec, condition)
        elif status == spec.good:
            good.add(spec.type)
    return OthersWord(bad, frozenset(good))


def _words(spec: ConditionSpec, condition: Mapping[str, object]) -> str:
    reason = " ".join(str(condition.get("reason") or "").split())[:_LONGEST_MESSAGE]
    message = " ".join(str(condition.get("message") or "").split())[:_LONGEST_MESSAGE].rstrip(" .")
    said = ": ".join(filter(None, (reason, message)))
    return f"{spec.tool} sets {spec.type}={spec.bad}" + (f" ({said})" if said else f" ({spec.meaning})")

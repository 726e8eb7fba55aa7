"""PodDisruptionBudgets as they were read: which pods one is about, and what it allows now. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tocsin.actions.kubernetes.api import Json, Pod


def covers(budget: Json, pod: Pod) -> bool:
    """Whether a disruption budget selects a pod: of its namespace, by labels and expressions; ``{}`` selects all."""
    spec: Mapping[str, Any] = budget.get("spec") or {}
    selector = spec.get("selector")
    if (budget.get("metadata") or {}).get("namespace") != pod.namespace or selector is None:
        return False
    labels = pod.labels
    wanted: Mapping[str, str] = selector.get("matchLabels") or {}
    if any(labels.get(name) != value for name, value in wanted.items()):
        return False
    return all(_matches(one, labels) for one in selector.get("matchExpressions") or ())


def _matches(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    name, values = str(expression.get("key", "")), expression.get("values") or ()
    return {
        "In": labels.get(name) in values,
        "NotIn": labels.get(name) not in values,
        "Exists": name in labels,
        "DoesNotExist": name not in labels,
    }.get(str(expression.get("operator", "")), True)


def allowed(budget: Json) -> int:
    """Disruptions that it allows now; none while the server has not counted its present form yet."""
    status: Mapping[str, Any] = budget.get("status") or {}
    generation = (budget.get("metadata") or {}).get("generation", 0)
    if int(status.get("observedGeneration", -1)) < int(generation):
        return 0
    return int(status.get("disruptionsAllowed", 0))


def title(budget: Json) -> str:
    """``namespace/name``; empty where it has no name."""
    about: Mapping[str, Any] = budget.get("metadata") or {}
    return f"{about.get('namespace', '')}/{about['name']}" if about.get("name") else ""

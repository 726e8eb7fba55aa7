"""Replicas of a workload: through the scale subresource, or through the autoscaler that owns them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tocsin.actions.kubernetes.cluster import TRIES, Cluster
from tocsin.actions.kubernetes.place import Place, place_of
from tocsin.actions.kubernetes.port import Json, KubeError
from tocsin.actions.model.executor import ExecutionResult
from tocsin.config.kubernetes import KubernetesWorkload

SCALED_BY = "tocsin.io/scaled-by"
"""Annotation on an autoscaler: id of the decision that moved its minimum."""
MINIMUM_BEFORE = "tocsin.io/minimum-before"
"""Annotation on an autoscaler: its minimum before Tocsin first moved it."""
MINIMUM_SET = "tocsin.io/minimum-set"
"""Annotation on an autoscaler: the minimum that Tocsin set last; with another, somebody has moved it since."""


@dataclass(frozen=True, slots=True)
class Wish:
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
class Owner:
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

    def apply(self, workload: KubernetesWorkload, wish: Wish) -> ExecutionResult:
        """Ask for the replicas, once. Raises KubeError."""
        place = place_of(workload)
        for left in reversed(range(TRIES)):
            try:
                return self._try(place, workload, wish)
            except KubeError as error:
                if error.status != 409 or not left:
                    raise
        raise AssertionError("the last try returns or raises")

    def seen(self, workload: KubernetesWorkload, wish: Wish) -> bool | None:
        """Whether the replicas are as this decision set them; None while they are on the way, or it set none."""
        place = place_of(workload)
        held = self._cluster.workload(place.path)
        owner = self._owner(place, str(held.get("kind", "")))
        if owner is not None:
            return owner.annotations.get(SCALED_BY) == wish.key
        scale = self._cluster.scale(place.path)
        if not _written_by(held, wish.key):
            return False
        asked, there = _replicas(scale), int((scale.get("status") or {}).get("replicas", 0))
        return True if asked == there else None

    def _try(self, place: Place, workload: KubernetesWorkload, wish: Wish) -> ExecutionResult:
        held = self._cluster.workload(place.path)
        owner = self._owner(place, str(held.get("kind", "")))
        if owner is not None:
            return self._hand_over(place, workload, wish, owner)
        if _written_by(held, wish.key):
            return ExecutionResult(True, f"{workload.target}: asked for before", lasting=False)
        scale = self._cluster.scale(place.path)
        now = _replicas(scale)
        target = wish.target(now, workload)
        if target == now:
            bounds = f"{workload.min_replicas} to {workload.max_replicas}"
            return ExecutionResult(True, f"{workload.target} stays at {now} replicas (bounds {bounds})", lasting=False)
        self._cluster.set_replicas(place.path, target, scale["metadata"]["resourceVersion"], _manager(wish.key))
        return _scaled(f"{workload.target}: {now} -> {target} replicas", target - now)

    def _hand_over(self, place: Place, workload: KubernetesWorkload, wish: Wish, owner: Owner) -> ExecutionResult:
        """Leave the replicas to their owner; where settings allow, move its minimum instead."""
        if not self._move_minimum:
            return ExecutionResult(False, f"{owner} sets the replicas of {workload.target}; it was left to that one")
        if owner.annotations.get(SCALED_BY) == wish.key:
            return ExecutionResult(True, f"{owner}: asked for before", lasting=False)
        before = owner.before
        target = max(min(wish.target(owner.minimum, workload), owner.maximum), before)
        if (target - owner.minimum) * wish.direction <= 0:
            return ExecutionResult(True, f"{owner}: its minimum stays", lasting=False)
        notes = {SCALED_BY: wish.key, MINIMUM_BEFORE: str(before), MINIMUM_SET: str(target)}
        body: Json = {"metadata": {"resourceVersion": owner.version, "annotations": notes}}
        if owner.kind == "ScaledObject":
            body["spec"] = {"minReplicaCount": target}
            self._cluster.patch_scaled_object(place.namespace, owner.name, body)
        else:
            body["spec"] = {"minReplicas": target}
            self._cluster.patch_autoscaler(place.namespace, owner.name, body)
        return _scaled(f"{owner} of {workload.target}: minimum {owner.minimum} -> {target}", target - owner.minimum)

    def _owner(self, place: Place, kind: str) -> Owner | None:
        for one in self._cluster.scaled_objects(place.namespace):
            spec = one.get("spec") or {}
            if _aims_at(spec.get("scaleTargetRef"), kind, place.name):
                lowest, highest = spec.get("minReplicaCount", 0), spec.get("maxReplicaCount", 100)
                return _owner("ScaledObject", one, lowest, highest)
        for one in self._cluster.autoscalers(place.namespace):
            spec = one.get("spec") or {}
            if _aims_at(spec.get("scaleTargetRef"), kind, place.name):
                return _owner("HorizontalPodAutoscaler", one, spec.get("minReplicas", 1), spec.get("maxReplicas", 1))
        return None


def _owner(kind: str, one: Json, lowest: Any, highest: Any) -> Owner:
    metadata = one.get("metadata") or {}
    name, version = str(metadata.get("name", "")), str(metadata.get("resourceVersion", ""))
    return Owner(kind, name, int(lowest), int(highest), version, metadata.get("annotations") or {})


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

"""The state behind the API server double: objects, patches, budgets, and what controllers do about them."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any

from tocsin_testing.kube_recorded import Answer, recorded

Json = dict[str, Any]
UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
NOT_READY = "node.kubernetes.io/not-ready"
_LABEL = re.compile(r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")
_MICRO = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$")


class State:
    """Objects by collection path and name. Resource versions go on from those of the recording."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Json]] = {}
        self.version = 600
        self.halted = False
        """Whether the disruption controller stands still, so that new budgets stay unprocessed."""
        self.compacted = 0
        """Lists that began at or before this version are too old to go on."""
        self.lively = False
        """Whether controllers of a real cluster also do what no test asks them for (`live`)."""

    def collection(self, path: str) -> dict[str, Json]:
        return self.objects.setdefault(path, {})

    def next_version(self) -> str:
        self.version += 1
        return str(self.version)

    def find(self, path: str, name: str) -> Json:
        """The object; a recorded 404 where there is none."""
        found = self.collection(path).get(name)
        if found is None:
            raise missing(path, name)
        return found

    def every(self, plural: str) -> Iterator[Json]:
        """The objects of a kind in all namespaces, by namespace and name."""
        for path in sorted(self.objects):
            if path.rpartition("/")[2] == plural:
                yield from (self.objects[path][name] for name in sorted(self.objects[path]))

    def create(self, path: str, body: Json) -> Json:
        """Enter a new object with what a server adds."""
        name = body["metadata"]["name"]
        if name in self.collection(path):
            templates = {
                "leases": ("lease_create_409_exists", "gpu-monitor-leader"),
                "events": ("event_create_409", "tocsin.gpu-node-1.0001"),
                "devicetaintrules": ("dra_rule_create_409_exists", "tocsin-gpu-node-1-gpu-5"),
            }
            template, old = templates.get(path.rpartition("/")[2], ("pod_create_conflict_409", "free-0"))
            raise recorded(template, **{old: name, "train-0": name})
        made = copy.deepcopy(body)
        made.setdefault("apiVersion", _api_version(path))
        made.setdefault("kind", KINDS[path.rpartition("/")[2]])
        metadata = made["metadata"]
        namespace = re.search(r"/namespaces/([^/]+)/", path + "/")
        if namespace and path != "/api/v1/namespaces":
            metadata["namespace"] = namespace.group(1)
        version = self.next_version()
        metadata |= {"uid": f"00000000-0000-4000-8000-{int(version):012d}", "resourceVersion": version}
        metadata.setdefault("creationTimestamp", "2026-11-21T03:08:33Z")
        defaults(path, made)
        validate(path, made)
        self.collection(path)[name] = made
        self.controllers()
        return made

    def change(self, path: str, name: str, changed: Json, *, dry_run: bool) -> Json:
        """Store `changed` for the object under `name`; the same content keeps its version."""
        before = self.find(path, name)
        asked = changed["metadata"].get("resourceVersion")
        if asked != before["metadata"]["resourceVersion"]:
            raise conflict(path, name)
        if changed["metadata"].get("uid") != before["metadata"]["uid"]:
            raise wrong_uid(name, str(changed["metadata"].get("uid")), before["metadata"]["uid"])
        validate(path, changed)
        if dry_run or changed == before:
            return changed
        changed["metadata"]["resourceVersion"] = self.next_version()
        self.collection(path)[name] = changed
        answer = copy.deepcopy(changed)
        self.controllers()
        return answer

    def remove(self, path: str, name: str) -> Json:
        """Take an object away at once."""
        gone = self.find(path, name)
        del self.collection(path)[name]
        self.controllers()
        return gone

    def controllers(self) -> None:
        """What controllers do by themselves: the taint of a cordon, the status of budgets."""
        for node in self.every("nodes"):
            spec = node["spec"]
            others = [each for each in spec.get("taints", []) if each["key"] != UNSCHEDULABLE]
            taints = others + ([{"key": UNSCHEDULABLE, "effect": "NoSchedule"}] if spec.get("unschedulable") else [])
            if taints != spec.get("taints", []):
                spec.pop("taints", None)
                spec |= {"taints": taints} if taints else {}
                node["metadata"]["resourceVersion"] = self.next_version()
        if not self.halted:
            for budget in self.every("poddisruptionbudgets"):
                self._count(budget)

    def live(self) -> list[str]:
        """What a real cluster does between any two requests, where `lively`; pods that are garbage, by path and name.

        The node controller taints nodes that no kubelet answers for, heartbeats and status move the resource version of
        nodes, and pods whose owners are not there are collected: three things that tests must not stumble over.
        """
        if not self.lively:
            return []
        there = {one["metadata"]["uid"] for kind in self.objects.values() for one in kind.values()}
        for node in self.every("nodes"):
            taints = node["spec"].get("taints", [])
            if not any(each["key"] == NOT_READY for each in taints):
                node["spec"]["taints"] = [*taints, {"key": NOT_READY, "effect": "NoSchedule"}]
            node["metadata"]["resourceVersion"] = self.next_version()
        return [
            f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
            for pod in self.every("pods")
            if (owners := pod["metadata"].get("ownerReferences")) and not there & {owner["uid"] for owner in owners}
        ]

    def autoscale(self) -> None:
        """What the deployment and the autoscaling controller do later: the replicas come, and are put within bounds."""
        for scaler in self.every("horizontalpodautoscalers"):
            spec = scaler["spec"]
            path = f"/apis/apps/v1/namespaces/{scaler['metadata']['namespace']}/deployments"
            target = self.collection(path).get(spec["scaleTargetRef"]["name"])
            if target is not None:
                wanted = min(max(target["spec"]["replicas"], spec.get("minReplicas", 1)), spec["maxReplicas"])
                if wanted != target["spec"]["replicas"]:
                    target["spec"]["replicas"] = wanted
                    target["metadata"]["resourceVersion"] = self.next_version()
        for deployment in self.every("deployments"):
            deployment["status"]["replicas"] = deployment["spec"]["replicas"]

    def budgets_of(self, pod: Json) -> list[Json]:
        """The disruption budgets that select `pod`."""
        space = pod["metadata"]["namespace"]
        return [
            budget
            for budget in self.every("poddisruptionbudgets")
            if budget["metadata"]["namespace"] == space and _selects(budget["spec"]["selector"], pod)
        ]

    def _count(self, budget: Json) -> None:
        space, spec = budget["metadata"]["namespace"], budget["spec"]
        pods = [
            pod
            for pod in self.every("pods")
            if pod["metadata"]["namespace"] == space and _selects(spec["selector"], pod)
        ]
        healthy = sum(_ready(pod) for pod in pods)
        needed = spec["minAvailable"] if "minAvailable" in spec else max(0, len(pods) - spec["maxUnavailable"])
        budget["status"] = {
            "observedGeneration": 1,
            "disruptionsAllowed": max(0, healthy - needed),
            "currentHealthy": healthy,
            "desiredHealthy": needed,
            "expectedPods": len(pods),
        }


KINDS = {
    "nodes": "Node",
    "pods": "Pod",
    "namespaces": "Namespace",
    "configmaps": "ConfigMap",
    "daemonsets": "DaemonSet",
    "deployments": "Deployment",
    "replicasets": "ReplicaSet",
    "statefulsets": "StatefulSet",
    "poddisruptionbudgets": "PodDisruptionBudget",
    "horizontalpodautoscalers": "HorizontalPodAutoscaler",
    "scaledobjects": "ScaledObject",
    "leases": "Lease",
    "events": "Event",
    "resourceslices": "ResourceSlice",
    "resourceclaims": "ResourceClaim",
    "devicetaintrules": "DeviceTaintRule",
}
SCALED = ("deployments", "replicasets", "statefulsets")
"""Kinds with replicas."""


def _api_version(path: str) -> str:
    parts = path.split("/")
    return "v1" if parts[1] == "api" else f"{parts[2]}/{parts[3]}"


def defaults(path: str, made: Json) -> None:
    """What a server fills in, as far as it matters here; taken from the recorded answers."""
    plural = path.rpartition("/")[2]
    if plural == "nodes":
        made.setdefault("spec", {})
    if plural == "devicetaintrules":
        made["metadata"]["generation"] = 1
        made["spec"]["taint"]["timeAdded"] = "2026-11-22T12:03:15Z"
        made.setdefault("status", {})
    if plural == "pods":
        template = recorded("pod_create_bare_gpu").body
        made["spec"] = {**template["spec"], **made["spec"]}
        made.setdefault("status", template["status"])
        for container in made["spec"]["containers"]:
            resources = container.setdefault("resources", {})
            if "limits" in resources:
                resources.setdefault("requests", dict(resources["limits"]))
    if plural in SCALED:
        made["status"] = {"replicas": made["spec"]["replicas"]}
    if plural == "poddisruptionbudgets":
        made["metadata"]["generation"] = 1
        made["status"] = recorded("pdb_get_not_observed").body["status"]


def validate(path: str, made: Json) -> None:
    """The recorded 422 where an object is not valid."""
    name, plural = made["metadata"]["name"], path.rpartition("/")[2]
    for taint in made.get("spec", {}).get("taints", []) if plural == "nodes" else []:
        if not _LABEL.match(taint["key"]):
            raise recorded("node_taint_invalid_422", **{"node-2": name, "bad key!": taint["key"]})
    spec = made.get("spec", {})
    if plural == "leases":
        for key in ("renewTime", "acquireTime"):
            if key in spec and not _MICRO.match(spec[key]):
                raise recorded("lease_time_without_micros", **{"2026-11-21T03:10:30Z": spec[key]})
    if plural == "events":
        _validate_event(made)
    if plural in SCALED and spec["replicas"] < 0:
        raise recorded("scale_patch_negative_422", **{"infer": name, "-1": str(spec["replicas"])})


def _validate_event(made: Json) -> None:
    """The recorded 422, about the first layer of what is wrong."""
    name = made["metadata"]["name"]
    if not _MICRO.match(made.get("eventTime", "")):
        raise recorded("event_create_422_missing", **{"tocsin.bad.1": name})
    if len(made.get("note", "").encode()) > 1024:
        raise recorded("event_create_422_note", **{"tocsin.bad.2": name})
    if not 0 < len(made.get("reportingInstance", "")) <= 128:
        raise recorded("event_create_422_reportinginstance", **{"tocsin.bad.5": name})


def missing(path: str, name: str) -> Answer:
    """The recorded 404 for one object."""
    plural = path.rpartition("/")[2]
    templates = {
        "nodes": ("node_get_404", "node-99"),
        "pods": ("evict_404_missing_pod", "nope"),
        "leases": ("lease_get_404", "gpu-monitor-leader"),
        "deployments": ("scale_404", "nope"),
        "devicetaintrules": ("dra_rule_patch_404", "nope"),
    }
    template, old = templates.get(plural, ("scale_404", "nope"))
    swapped = {old: name} if plural in templates else {old: name, "deployments.apps": plural, "deployments": plural}
    return recorded(template, **swapped)


def conflict(path: str, name: str) -> Answer:
    """The recorded 409 for a stale resource version."""
    templates = {
        "leases": ("lease_takeover_409_conflict", "gpu-monitor-leader"),
        "deployments": ("scale_put_conflict_409", "infer"),
        "devicetaintrules": ("dra_rule_patch_409_rv", "tocsin-gpu-node-1-gpu-5"),
    }
    template, old = templates.get(path.rpartition("/")[2], ("node_taint_add_mergepatch_rv_conflict_409", "node-1"))
    return recorded(template, **{old: name})


def wrong_uid(name: str, asked: str, there: str) -> Answer:
    """The recorded 409 for the UID of another object."""
    swapped = {
        "free-0": name,
        "11111111-1111-1111-1111-111111111111": asked,
        "8e8eb129-8952-4034-a362-3034156fdce6": there,
    }
    return recorded("evict_409_uid_precondition", **swapped)


def merge(target: Any, patch: Any) -> Any:
    """JSON merge patch (RFC 7386)."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key), value)
    return result


def merge_strategic(target: Json, patch: Json) -> Json:
    """Strategic merge patch: conditions merge by type or go by ``$patch``, taints are replaced as a whole, the rest
    merges."""
    result: Json = merge(target, patch)
    new = patch.get("status", {}).get("conditions")
    if new is not None:
        there = {condition["type"]: condition for condition in target.get("status", {}).get("conditions", [])}
        kept = [{**there.get(one["type"], {}), **one} for one in new if one.get("$patch") != "delete"]
        kinds = {condition["type"] for condition in new}
        result["status"]["conditions"] = [*kept, *(one for kind, one in there.items() if kind not in kinds)]
    return result


def _selects(selector: Json, pod: Json) -> bool:
    labels = pod["metadata"].get("labels", {})
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items())


def _ready(pod: Json) -> bool:
    conditions = pod["status"].get("conditions", [])
    ready = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
    return ready and not pod["metadata"].get("deletionTimestamp")

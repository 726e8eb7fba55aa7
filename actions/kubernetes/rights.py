"""What Tocsin must be allowed to do in a cluster, feature by feature; the Helm chart grants it, and
``deploy/kubernetes/rbac.yaml``, which is rendered from it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tocsin.config.kubernetes import KubernetesSettings, KubernetesWorkload

_APPS = {"deployment": "deployments", "statefulset": "statefulsets", "replicaset": "replicasets"}


@dataclass(frozen=True, slots=True)
class WorkloadResource:
    """One workload; `group` and `plural` name its resource, such as ``apps`` and ``deployments``."""

    namespace: str
    name: str
    group: str
    version: str
    plural: str

    @property
    def path(self) -> str:
        return f"/apis/{self.group}/{self.version}/namespaces/{self.namespace}/{self.plural}/{self.name}"


def resource_of(workload: KubernetesWorkload) -> WorkloadResource:
    """The place of the workload that settings name."""
    namespace, kind, name = workload.target.split("/")
    plural = _APPS.get(kind.lower())
    if plural is not None:
        return WorkloadResource(namespace, name, "apps", "v1", plural)
    plural, version, group = kind.split(".", 2)
    return WorkloadResource(namespace, name, group, version, plural)


APPS = "apps"
KEDA = "keda.sh"
EVENTS = "events.k8s.io"
LEASES = "coordination.k8s.io"
DEVICES = "resource.k8s.io"
AUTHENTICATION = "authentication.k8s.io"
HPA = "autoscaling"
SCALED_KINDS = ("deployments", "replicasets", "statefulsets")


@dataclass(frozen=True, slots=True, order=True)
class Right:
    """One verb on one resource; `group` is empty for the core API, `resource` names a subresource behind a slash."""

    group: str
    resource: str
    verb: str

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}" + (f".{self.group}" if self.group else "")


def _rights(group: str, resource: str, *verbs: str) -> tuple[Right, ...]:
    return tuple(Right(group, resource, verb) for verb in verbs)


FEATURES: dict[str, tuple[Right, ...]] = {
    "nodes": (
        *_rights("", "nodes", "get", "list", "patch"),
        *_rights("", "nodes/status", "patch"),
        *_rights("", "pods", "list"),
        *_rights("", "pods/eviction", "create"),
        *_rights("policy", "poddisruptionbudgets", "list"),
    ),
    "checkpoints": _rights("", "pods", "patch"),
    "delete": _rights("", "pods", "delete"),
    "scale": (
        *(right for kind in SCALED_KINDS for right in _rights(APPS, kind, "get")),
        *(right for kind in SCALED_KINDS for right in _rights(APPS, f"{kind}/scale", "get", "patch")),
        *_rights(HPA, "horizontalpodautoscalers", "list"),
        *_rights(KEDA, "scaledobjects", "list"),
    ),
    "autoscalers": (
        *_rights(HPA, "horizontalpodautoscalers", "patch"),
        *_rights(KEDA, "scaledobjects", "patch"),
    ),
    "signs": (
        *_rights("", "nodes", "list"),
        *_rights("", "nodes/status", "patch"),
        *_rights(EVENTS, "events", "create"),
    ),
    "conditions": _rights("", "nodes", "list"),
    "devices": (
        *_rights(DEVICES, "resourceslices", "list"),
        *_rights(DEVICES, "resourceclaims", "list"),
        *_rights(DEVICES, "devicetaintrules", "list", "create", "patch", "delete"),
    ),
    "pod": _rights("", "pods", "patch"),
    "tokenreviews": _rights(AUTHENTICATION, "tokenreviews", "create"),
    "lease": _rights(LEASES, "leases", "get", "create", "update"),
}
"""Each feature is one ClusterRole ``tocsin-<feature>`` of the manifest; all but `nodes` are for who uses them."""


@dataclass(frozen=True, slots=True)
class Need:
    """A right, and the namespace that it is needed in; empty for all of them."""

    right: Right
    namespace: str = ""

    def __str__(self) -> str:
        return f"{self.right}" + (f" in {self.namespace}" if self.namespace else "")


_PATH = re.compile(
    r"/(?:api|apis/(?P<group>[^/]+))/[^/]+(?:/namespaces/(?P<namespace>[^/]+)(?=/))?"
    r"/(?P<resource>[^/]+)(?:/(?P<name>[^/]+)(?:/(?P<sub>[^/]+))?)?"
)
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


def need_of(method: str, path: str) -> Need | None:
    """The right that a request takes; None for a path that is no resource's."""
    found = _PATH.fullmatch(path)
    if found is None:
        return None
    part = found.groupdict(default="")
    resource = f"{part['resource']}/{part['sub']}" if part["sub"] else part["resource"]
    verb = _VERBS.get(method, "get" if part["name"] else "list")
    return Need(Right(part["group"], resource, verb), part["namespace"])


def role_of(right: Right) -> str:
    """The role of the manifest that grants it; empty where none does."""
    return next((f"tocsin-{feature}" for feature, rights in FEATURES.items() if right in rights), "")


def needed(settings: KubernetesSettings, *, node_tokens: bool = False) -> tuple[Need, ...]:
    """What the features that `settings` turn on need, and with `node_tokens` what `api.node_service_accounts` do."""
    needs = [Need(right) for right in FEATURES["nodes"]]
    if settings.checkpoint_seconds:
        needs += [Need(right) for right in FEATURES["checkpoints"]]
    if settings.delete_blocked_pods:
        needs += [Need(right) for right in FEATURES["delete"]]
    for workload in settings.workloads.values():
        place = resource_of(workload)
        rights = list(_rights(place.group, place.plural, "get"))
        rights += _rights(place.group, f"{place.plural}/scale", "get", "patch")
        rights += [right for right in FEATURES["scale"] if right.group in {HPA, KEDA}]
        rights += FEATURES["autoscalers"] if settings.autoscaled == "raise_minimum" else ()
        needs += [Need(right, place.namespace) for right in rights]
    if settings.show_faults:
        needs += [Need(right) for right in FEATURES["signs"]]
    if settings.read_conditions:
        needs += [Need(right) for right in FEATURES["conditions"]]
    if settings.device_rules:
        needs += [Need(right) for right in FEATURES["devices"]]
    if settings.pod:
        needs += [Need(right, settings.pod.partition("/")[0]) for right in FEATURES["pod"]]
    if node_tokens:
        needs += [Need(right) for right in FEATURES["tokenreviews"]]
    if settings.lease:
        needs += [Need(right, settings.lease.partition("/")[0]) for right in FEATURES["lease"]]
    return tuple(dict.fromkeys(needs))

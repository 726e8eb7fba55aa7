"""Where a workload is in the API."""

from __future__ import annotations

from dataclasses import dataclass

from tocsin.config.kubernetes import KubernetesWorkload

_APPS = {"deployment": "deployments", "statefulset": "statefulsets", "replicaset": "replicasets"}


@dataclass(frozen=True, slots=True)
class Place:
    """One workload; `group` and `plural` name its resource, such as ``apps`` and ``deployments``."""

    namespace: str
    name: str
    group: str
    version: str
    plural: str

    @property
    def path(self) -> str:
        """Its API path."""
        return f"/apis/{self.group}/{self.version}/namespaces/{self.namespace}/{self.plural}/{self.name}"


def place_of(workload: KubernetesWorkload) -> Place:
    """The place of the workload that settings name."""
    namespace, kind, name = workload.target.split("/")
    plural = _APPS.get(kind.lower())
    if plural is not None:
        return Place(namespace, name, "apps", "v1", plural)
    plural, version, group = kind.split(".", 2)
    return Place(namespace, name, group, version, plural)

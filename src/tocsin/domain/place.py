"""Places that a fault can sit in: what GPUs share with each other."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class PlaceKind(StrEnum):
    """What kind of place; a GPU is in one of each at most, except that it has many links."""

    GPU = "gpu"
    LINK = "link"
    """Two or more GPUs at the ends of one NVLink."""
    HOST = "host"
    CHASSIS = "chassis"
    RACK = "rack"
    POWER_ZONE = "power_zone"
    """What one feed, busbar or distribution unit supplies."""
    COOLING_ZONE = "cooling_zone"
    """What one air handler or coolant distribution unit cools."""
    NVLINK_DOMAIN = "nvlink_domain"
    """GPUs that reach each other over NVLink: NVML's ``clusterUuid`` and ``cliqueId``."""
    SWITCH = "switch"
    """Hosts behind one leaf switch of the network."""
    RAIL = "rail"
    """GPUs whose network ports lead to one rail of switches."""
    JOB = "job"
    POOL = "pool"
    """GPUs that serve one purpose: where load and memory in use are told of, no place that a fault sits in."""


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """One place; `name` is a UUID for a GPU, a host name for a host, and the site's own name elsewhere."""

    kind: PlaceKind
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"

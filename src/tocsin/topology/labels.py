"""Places that labels name: those that an agent sends of its GPUs, and those of a cluster's nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tocsin.domain.place import Place, PlaceKind
from tocsin.domain.reading import NVLINK_DOMAIN, Gpu
from tocsin.topology.claims import Claim, ClaimSource

MOST_LETTERS = 253
"""Longest name of a place that is taken up (own choice; a Kubernetes label has 63 at most, a DNS name 253)."""

RAIL_LABEL = "topology.kubernetes.io/rail"
"""Names the rail of a GPU."""

NODE_LABELS: dict[str, PlaceKind] = {
    "nvidia.com/gpu.clique": PlaceKind.NVLINK_DOMAIN,
    "topology.kubernetes.io/chassis": PlaceKind.CHASSIS,
    "topology.kubernetes.io/rack": PlaceKind.RACK,
    "topology.kubernetes.io/power-zone": PlaceKind.POWER_ZONE,
    "topology.kubernetes.io/cooling-zone": PlaceKind.COOLING_ZONE,
    "topology.kubernetes.io/switch": PlaceKind.SWITCH,
    RAIL_LABEL: PlaceKind.RAIL,
}
"""Label to kind of place. The first is GPU feature discovery's (``clusterUuid.cliqueId``)."""

ZONE_LABEL = "topology.kubernetes.io/zone"
"""Kubernetes' failure domain: a power and a cooling zone where nothing narrower is named."""


def node_places(labels: Mapping[str, str]) -> dict[str, str]:
    """The labels that name places; of a node with hundreds of labels the rest need not be kept."""
    return {name: labels[name] for name in (*NODE_LABELS, ZONE_LABEL) if usable(labels.get(name, ""))}


def claims_of_node(host: str, labels: Mapping[str, str]) -> Iterator[Claim]:
    """What the labels of a node say of its host."""
    return _claims(Place(PlaceKind.HOST, host), labels, ClaimSource.NODE_LABEL)


def claims_of_gpu(gpu: Gpu) -> Iterator[Claim]:
    """What a GPU's own reading says: its NVLink domain by the driver, the agent's rack and labels."""
    if gpu.is_mig or not gpu.uuid:
        return
    subject = Place(PlaceKind.GPU, gpu.uuid)
    domain = gpu.labels.get(NVLINK_DOMAIN, "")
    if usable(domain):
        yield Claim(subject, Place(PlaceKind.NVLINK_DOMAIN, domain), ClaimSource.DRIVER)
    if usable(gpu.rack):
        yield Claim(subject, Place(PlaceKind.RACK, gpu.rack), ClaimSource.AGENT)
    if gpu.labels:
        yield from _claims(subject, gpu.labels, ClaimSource.AGENT)


def _claims(subject: Place, labels: Mapping[str, str], source: ClaimSource) -> Iterator[Claim]:
    for label, kind in NODE_LABELS.items():
        name = labels.get(label, "")
        if usable(name):
            yield Claim(subject, Place(kind, name), source)
    zone = labels.get(ZONE_LABEL, "")
    if usable(zone):
        wide = ClaimSource.AGENT_ZONE if source is ClaimSource.AGENT else ClaimSource.ZONE_LABEL
        for kind in (PlaceKind.POWER_ZONE, PlaceKind.COOLING_ZONE):
            yield Claim(subject, Place(kind, zone), wide)


def usable(name: str) -> bool:
    """Whether `name` can name a place: some printable text of bounded length."""
    return 0 < len(name) <= MOST_LETTERS and name.isprintable()

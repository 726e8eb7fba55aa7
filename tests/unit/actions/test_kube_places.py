"""Labels of Kubernetes nodes name places of their hosts."""

from __future__ import annotations

from tocsin.actions.kubernetes.cluster import Cluster
from tocsin.actions.kubernetes.observe import node_states
from tocsin.domain.place import Place, PlaceKind
from tocsin.topology.claims import ClaimSource
from tocsin_testing.kube_double import ADMIN, KubeDouble
from tocsin_testing.kube_site import DirectDoor


def test_labels_of_a_node_are_claims_of_its_host() -> None:
    door = DirectDoor(KubeDouble(), ADMIN)
    labels = {
        "nvidia.com/gpu.clique": "c0ffee.3",
        "topology.kubernetes.io/rack": "r1",
        "topology.kubernetes.io/zone": "eu-1a",
        "app": "x",
    }
    door.ask("POST", "/api/v1/nodes", body={"metadata": {"name": "node-0", "labels": labels}, "spec": {}})
    door.ask("POST", "/api/v1/nodes", body={"metadata": {"name": "node-1"}, "spec": {}})
    states = node_states(Cluster(door))
    assert {(one.place, one.source) for one in states["node-0"].places} == {
        (Place(PlaceKind.NVLINK_DOMAIN, "c0ffee.3"), ClaimSource.NODE_LABEL),
        (Place(PlaceKind.RACK, "r1"), ClaimSource.NODE_LABEL),
        (Place(PlaceKind.POWER_ZONE, "eu-1a"), ClaimSource.ZONE_LABEL),
        (Place(PlaceKind.COOLING_ZONE, "eu-1a"), ClaimSource.ZONE_LABEL),
    }
    assert {one.subject for one in states["node-0"].places} == {Place(PlaceKind.HOST, "node-0")}
    assert states["node-1"].places == ()

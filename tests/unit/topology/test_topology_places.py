"""Where GPUs and hosts are, by what several sources say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.domain.place import Place, PlaceKind
from tocsin.domain.reading import NVLINK_DOMAIN
from tocsin.topology.claims import Claim, ClaimSource
from tocsin.topology.labels import MOST_LETTERS, claims_of_node, node_places
from tocsin.topology.topology import NO_TOPOLOGY, Topology, topology_of
from tocsin_testing.builders import gpu


def host(name: str) -> Place:
    return Place(PlaceKind.HOST, name)


def one(uuid: str) -> Place:
    return Place(PlaceKind.GPU, uuid)


def says(subject: Place, kind: PlaceKind, name: str, source: ClaimSource = ClaimSource.SITE_FILE) -> Claim:
    return Claim(subject, Place(kind, name), source)


HOSTS = {"a": "n1", "b": "n1", "c": "n2"}


def test_a_gpu_is_where_its_host_is() -> None:
    places = Topology(HOSTS, [says(host("n1"), PlaceKind.RACK, "r1"), says(host("n2"), PlaceKind.RACK, "r1")])
    assert [places.name(PlaceKind.RACK, uuid) for uuid in "abc"] == ["r1"] * 3
    held = places.held(Place(PlaceKind.RACK, "r1"))
    assert (held.gpus, held.hosts) == ({"a", "b", "c"}, {"n1", "n2"})
    assert places.held(Place(PlaceKind.HOST, "n1")).gpus == {"a", "b"}


def test_a_gpu_may_be_elsewhere_than_its_host() -> None:
    claims = [says(host("n1"), PlaceKind.RAIL, "rail0"), says(one("b"), PlaceKind.RAIL, "rail1")]
    places = Topology(HOSTS, claims)
    assert (places.name(PlaceKind.RAIL, "a"), places.name(PlaceKind.RAIL, "b")) == ("rail0", "rail1")
    assert places.disagreements == (), "one source that says more of a part does not contradict itself"


def test_what_nobody_says_is_not_known() -> None:
    places = Topology(HOSTS)
    assert places.name(PlaceKind.RACK, "a") == places.name(PlaceKind.HOST, "stranger") == ""
    assert places.held(Place(PlaceKind.RACK, "r9")).gpus == frozenset()
    assert NO_TOPOLOGY.name(PlaceKind.NVLINK_DOMAIN, "a", "n1") == ""


@pytest.mark.parametrize("stronger", list(ClaimSource)[:-3])
def test_the_source_named_first_counts_and_the_disagreement_is_named(stronger: ClaimSource) -> None:
    weaker = list(ClaimSource)[list(ClaimSource).index(stronger) + 1]
    claims = [
        says(host("n1"), PlaceKind.RACK, "wrong", weaker),
        says(host("n1"), PlaceKind.RACK, "right", stronger),
    ]
    for order in (claims, claims[::-1]):
        places = Topology(HOSTS, order)
        assert places.name(PlaceKind.RACK, "a") == "right"
        (said,) = places.disagreements
        assert str(said) == (
            f"host n1: rack is right by the {stronger} and wrong by the {weaker}; the {stronger} counts"
        )


def test_a_gpu_that_contradicts_its_host_is_named() -> None:
    claims = [
        says(host("n1"), PlaceKind.NVLINK_DOMAIN, "by-hand"),
        says(one("a"), PlaceKind.NVLINK_DOMAIN, "measured", ClaimSource.DRIVER),
    ]
    places = Topology(HOSTS, claims)
    assert (places.name(PlaceKind.NVLINK_DOMAIN, "a"), places.name(PlaceKind.NVLINK_DOMAIN, "b")) == (
        "by-hand",
        "by-hand",
    )
    assert [str(said) for said in places.disagreements] == [
        "gpu a: nvlink domain is by-hand by the site file and measured by the driver; the site file counts"
    ]


def test_what_an_agent_says_of_its_gpus_moves_them_nowhere_that_the_site_names_otherwise() -> None:
    forged = {NVLINK_DOMAIN: "d", "nvidia.com/gpu.clique": "d", "topology.kubernetes.io/rack": "r1"}
    evil, victim = gpu(1, host="evil", labels=forged), gpu(2, host="n1")
    said = {
        "evil": {"nvidia.com/gpu.clique": "other", "topology.kubernetes.io/rack": "r9"},
        "n1": {"nvidia.com/gpu.clique": "d", "topology.kubernetes.io/rack": "r1"},
    }
    places = topology_of(
        [evil, victim], [claim for name, labels in said.items() for claim in claims_of_node(name, labels)]
    )
    assert places.held(Place(PlaceKind.NVLINK_DOMAIN, "d")).gpus == {victim.uuid}
    assert places.held(Place(PlaceKind.RACK, "r1")).hosts == {"n1"}
    assert {one.used.place.kind for one in places.disagreements} == {PlaceKind.NVLINK_DOMAIN, PlaceKind.RACK}


def test_a_hosts_own_claim_by_a_stronger_source_counts_for_its_gpus() -> None:
    claims = [
        says(host("n1"), PlaceKind.RACK, "by-file"),
        says(one("a"), PlaceKind.RACK, "by-agent", ClaimSource.AGENT),
    ]
    assert Topology(HOSTS, claims).name(PlaceKind.RACK, "a") == "by-file"


def test_a_zone_label_fills_in_and_never_disagrees() -> None:
    labels = {"topology.kubernetes.io/zone": "eu-1a"}
    claims = [*claims_of_node("n1", labels), says(host("n1"), PlaceKind.POWER_ZONE, "feed-3")]
    places = Topology(HOSTS, claims)
    assert places.name(PlaceKind.POWER_ZONE, "a") == "feed-3"
    assert places.name(PlaceKind.COOLING_ZONE, "a") == "eu-1a"
    assert places.disagreements == ()


def test_gpus_name_their_domain_and_rack_and_instances_are_where_their_gpu_is() -> None:
    whole = gpu(1, host="n1", rack="r7", labels={NVLINK_DOMAIN: "u.3", "nvidia.com/gpu.clique": "u.3"})
    part = gpu(2, host="n1", parent=whole.uuid)
    places = topology_of([whole, part])
    for uuid in (whole.uuid, part.uuid):
        assert places.name(PlaceKind.NVLINK_DOMAIN, uuid) == "u.3"
        assert places.name(PlaceKind.RACK, uuid) == "r7"
        assert places.host(uuid) == "n1"
    assert places.held(Place(PlaceKind.HOST, "n1")).gpus == {whole.uuid}
    assert places.disagreements == ()


def test_links_add_up() -> None:
    claims = [says(one("a"), PlaceKind.LINK, name) for name in ("l1", "l2")] + [says(one("b"), PlaceKind.LINK, "l1")]
    places = Topology(HOSTS, claims)
    assert places.links("a") == {"l1", "l2"}
    assert places.held(Place(PlaceKind.LINK, "l1")).gpus == {"a", "b"}


def test_jobs_are_places_too() -> None:
    places = Topology(HOSTS, [says(host("n1"), PlaceKind.RACK, "r1")], jobs={"a": "old"}).with_jobs(
        {"b": "j", "c": "j"}
    )
    assert places.name(PlaceKind.JOB, "a") == ""
    assert places.held(Place(PlaceKind.JOB, "j")).gpus == {"b", "c"}
    assert places.name(PlaceKind.RACK, "a") == "r1"


def test_a_mig_instance_has_the_job_that_holds_it_and_not_that_of_its_gpu() -> None:
    whole = gpu(1, host="n1")
    parts = [gpu(n, host="n1", uuid=f"MIG-{n}", parent=whole.uuid) for n in range(3)]
    places = topology_of([whole, *parts]).with_jobs({whole.uuid: "whole", "MIG-0": "a", "MIG-1": "b"})
    assert [places.name(PlaceKind.JOB, one.uuid) for one in parts] == ["a", "b", ""]
    assert places.held(Place(PlaceKind.JOB, "a")).gpus == {"MIG-0"}


def test_labels_with_unusable_names_say_nothing() -> None:
    labels = {"topology.kubernetes.io/rack": "x" * (MOST_LETTERS + 1), "nvidia.com/gpu.clique": "a\nb", "other": "r"}
    assert list(claims_of_node("n1", labels)) == []
    assert node_places(labels) == {}


@given(
    st.lists(st.dictionaries(st.sampled_from("abcdef"), st.sampled_from(["slurm 1", "slurm 2", "slurm 3"])), max_size=6)
)
def test_jobs_that_change_leave_what_all_jobs_made_anew_hold(later: list[dict[str, str]]) -> None:
    places = Topology(HOSTS, jobs={"a": "slurm 1", "b": "slurm 1"})
    for jobs in later:
        places = places.with_jobs(jobs)
        assert places.places(PlaceKind.JOB) == Topology(HOSTS, jobs=jobs).places(PlaceKind.JOB)

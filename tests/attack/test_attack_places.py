"""What an agent says of where its GPUs are gives it no hold on incidents of other hosts."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin.domain.finding import Finding, Severity, Subject, SubjectKind
from tocsin.domain.place import Place, PlaceKind
from tocsin.domain.reading import NVLINK_DOMAIN, Gpu
from tocsin.rules.incidents import collapse
from tocsin.rules.xid import xid
from tocsin.topology.claims import Claim
from tocsin.topology.labels import claims_of_node
from tocsin.topology.topology import Topology, topology_of
from tocsin_testing.builders import T0

EVIL = "evil"
RACK, CLIQUE = "topology.kubernetes.io/rack", "nvidia.com/gpu.clique"


def gpus_of(host: str, count: int, rack: str, domain: str) -> list[Gpu]:
    """GPUs whose agent says where they are."""
    labels = {NVLINK_DOMAIN: domain, "topology.kubernetes.io/power-zone": rack}
    return [Gpu(f"GPU-{host}-{n}", host, index=n, rack=rack, labels=labels) for n in range(count)]


def broken(gpu: Gpu, code: int, at_ms: int) -> Finding:
    spec, subject = xid(code), Subject(SubjectKind.GPU, gpu.uuid, gpu.host)
    said = ("gpu_xid_last_code", float(code))
    rule = f"xid_{spec.xid_class}"
    return Finding(rule, subject, Severity.CRITICAL, spec.category, spec.action, at_ms, at_ms, "s", *said)


def places(honest: int, evil_gpus: int, *, site: bool) -> tuple[list[Gpu], list[Gpu], Topology]:
    """Honest hosts of one rack and domain, one GPU each, and one that says it is there as well."""
    good = [one for n in range(honest) for one in gpus_of(f"n{n}", 1, "r1", "u.1")]
    bad = gpus_of(EVIL, evil_gpus, "r1", "u.1")
    claims: list[Claim] = []
    if site:
        claims = [claim for one in good for claim in claims_of_node(one.host, {RACK: "r1", CLIQUE: "u.1"})]
    return good, bad, topology_of([*good, *bad], claims)


@pytest.mark.parametrize("kind", [PlaceKind.RACK, PlaceKind.NVLINK_DOMAIN])
def test_nobody_talks_itself_into_a_place_that_the_site_knows(kind: PlaceKind) -> None:
    good, bad, topology = places(3, 2, site=True)
    name = {PlaceKind.RACK: "r1", PlaceKind.NVLINK_DOMAIN: "u.1"}[kind]
    assert topology.held(Place(kind, name)).hosts == {one.host for one in good}
    assert [topology.name(kind, one.uuid) for one in bad] == ["", ""]
    said = [str(one) for one in topology.disagreements if EVIL in str(one)]
    assert any("the site names it for other hosts, not for this one" in one for one in said)


def test_a_host_that_says_many_racks_swells_none_of_them() -> None:
    good = gpus_of("n0", 1, "r0", "u.1")
    bad = [Gpu(f"GPU-evil-{n}", EVIL, index=n, rack=f"r{n}") for n in range(8)]
    topology = topology_of([*good, *bad])
    assert topology.held(Place(PlaceKind.RACK, "r0")).hosts == {"n0"}
    assert len([one for one in topology.disagreements if "GPUs of that host name others" in str(one)]) == 8


@pytest.mark.parametrize("site", [True, False])
@pytest.mark.parametrize("code", [79, 149])
def test_a_fault_beside_another_hosts_hides_nothing(code: int, site: bool) -> None:
    """It knows the rack and the domain, has more GPUs than all others, and reports the same a moment before."""
    good, bad, topology = places(2, 8, site=site)
    victim = broken(good[0], code, T0 + 1000)
    incidents = collapse([victim, *(broken(one, code, T0) for one in bad)], (), topology)
    assert [one for one in incidents if one.root == victim], "it keeps its own incident, page and decision"
    assert {one.place for one in incidents if one.root != victim} == {Place(PlaceKind.HOST, EVIL)}


def test_a_place_that_agents_name_holds_where_three_hosts_show_it() -> None:
    good, _, topology = places(4, 0, site=False)
    (one,) = collapse([broken(each, 79, T0) for each in good[:3]], (), topology)
    assert (one.place, one.subjects) == (Place(PlaceKind.RACK, "r1"), 3)
    assert len(collapse([broken(each, 79, T0) for each in good[:2]], (), topology)) == 2


faults = st.lists(st.tuples(st.sampled_from([48, 74, 79, 119, 145, 149]), st.integers(0, 60)), min_size=1, max_size=10)


@settings(max_examples=100)
@given(faults, st.booleans())
def test_what_one_host_shows_is_never_put_on_healthy_ones(shown: Sequence[tuple[int, int]], site: bool) -> None:
    _, bad, topology = places(3, 8, site=site)
    found = [broken(bad[n % 8], code, T0 + 1000 * second) for n, (code, second) in enumerate(shown)]
    own = {Place(PlaceKind.HOST, EVIL), *(Place(PlaceKind.GPU, one.uuid) for one in bad)}
    assert {one.place for one in collapse(found, (), topology)} <= own


@settings(max_examples=100)
@given(faults, st.sampled_from([48, 79, 95, 119, 149]), st.integers(0, 60), st.booleans())
def test_a_hard_fault_keeps_its_own_root_whatever_another_host_says(
    shown: Sequence[tuple[int, int]], code: int, second: int, site: bool
) -> None:
    good, bad, topology = places(3, 8, site=site)
    victim = broken(good[0], code, T0 + 1000 * second)
    found = [broken(bad[n % 8], code, T0 + 1000 * at) for n, (code, at) in enumerate(shown)]
    (mine,) = [one for one in collapse([victim, *found], (), topology) if victim in one.members]
    assert mine.root == victim

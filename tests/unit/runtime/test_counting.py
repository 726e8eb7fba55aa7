"""Which GPUs of a host count in the limits, and which are more than it has."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from tocsin.actions.kubernetes.api import KubeNode
from tocsin.actions.kubernetes.observe import gpus_shown
from tocsin.actions.planning.facts import NodeState
from tocsin.domain.batch import Batch
from tocsin.domain.clock import DAY, MINUTE
from tocsin.domain.reading import UNKNOWN_GPU, Gpu, Reading
from tocsin.runtime.brain.counting import Counting, LimitWeight
from tocsin.runtime.brain.ownership import Ownership
from tocsin_testing.builders import T0

NEWCOMER_MS, LABEL = 10 * MINUTE, "tocsin.io/managed"


class Fleet:
    """A site that has run for a day, with three hosts of `per_host` GPUs."""

    def __init__(self, per_host: int = 4, listed: tuple[str, ...] = ()) -> None:
        self.owners = Ownership(256, NEWCOMER_MS)
        self.owners.seed((), T0 - DAY, ())
        self.counting = Counting(self.owners, 8, LABEL, listed)
        self.gpus: dict[str, Gpu] = {}
        for host in "abc":
            self.come([Gpu(f"{host}{n}", host) for n in range(per_host)], T0)

    def come(self, gpus: list[Gpu], at_ms: int) -> None:
        assert not self.owners.refuse(Batch(readings=[Reading(one, at_ms, {}) for one in gpus]), at_ms).readings
        self.gpus.update((one.uuid, one) for one in gpus)

    def look(self, at_ms: int, nodes: Mapping[str, NodeState] | None = None) -> dict[str, LimitWeight]:
        return self.counting.look(list(self.gpus.values()), nodes or {}, at_ms)[0]

    def counted(self, host: str, at_ms: int, nodes: Mapping[str, NodeState] | None = None) -> int:
        found = self.look(at_ms, nodes)
        return sum(found[one.uuid].counted for one in self.gpus.values() if one.host == host)


@pytest.mark.parametrize("per_host", [1, 4, 8, 16])
@pytest.mark.parametrize("managed", [True, False])
def test_ten_new_nodes_of_an_honest_site_count_within_a_quarter_of_an_hour(per_host: int, managed: bool) -> None:
    fleet, at_ms = Fleet(per_host), T0 + DAY
    for n in range(10):
        fleet.come([Gpu(f"new{n}-{m}", f"new{n}") for m in range(per_host)], at_ms)
    nodes = {f"new{n}": NodeState(f"new{n}", True, gpus=per_host) for n in range(10)} if managed else {}
    assert fleet.counted("new0", at_ms, nodes) == (per_host if managed else 0)
    assert not any(one.surplus for one in fleet.look(at_ms, nodes).values())
    later = at_ms + 15 * MINUTE
    assert [fleet.counted(f"new{n}", later, nodes) for n in range(10)] == [per_host] * 10


def test_what_a_host_adds_to_what_it_came_with_is_surplus_for_good() -> None:
    fleet = Fleet()
    fleet.come([Gpu(f"a-fake{n}", "a") for n in range(3)], T0 + DAY)
    found = fleet.look(T0 + 9 * DAY)
    assert {uuid for uuid, one in found.items() if one.surplus} == {"a-fake0", "a-fake1", "a-fake2"}
    assert fleet.counted("a", T0 + 9 * DAY) == 4


@pytest.mark.parametrize(("per_host", "most"), [(2, 8), (16, 16)])
def test_a_new_host_has_no_more_than_is_usual(per_host: int, most: int) -> None:
    fleet = Fleet(per_host)
    fleet.come([Gpu(f"x{n}", "x") for n in range(100)], T0 + DAY)
    assert fleet.counted("x", T0 + 2 * DAY) == most


def test_a_host_that_is_alone_has_what_it_says() -> None:
    fleet = Fleet()
    fleet.gpus = {f"z{n}": Gpu(f"z{n}", "z") for n in range(16)}
    fleet.come(list(fleet.gpus.values()), T0 + DAY)
    assert fleet.counted("z", T0 + 2 * DAY) == 16


@pytest.mark.parametrize(("shown", "counted"), [(6, 6), (2, 2), (None, 4)])
def test_a_manager_that_shows_gpus_says_how_many_count(shown: int | None, counted: int) -> None:
    fleet = Fleet()
    fleet.come([Gpu(f"a-more{n}", "a") for n in range(9)], T0 + DAY)
    assert fleet.counted("a", T0 + DAY, {"a": NodeState("a", True, gpus=shown)}) == counted


def test_gpus_in_the_sites_file_count_before_all_others() -> None:
    fleet = Fleet(listed=("a-late0", "a-late1"))
    fleet.come([Gpu(f"a-late{n}", "a") for n in range(3)], T0 + DAY)
    found = fleet.look(T0 + DAY)
    assert found["a-late0"] == found["a-late1"] == LimitWeight(counted=True, surplus=False)
    assert found["a-late2"].surplus
    assert fleet.counted("a", T0 + DAY) == 4


def test_a_gpu_that_replaces_one_takes_its_place() -> None:
    fleet = Fleet()
    fleet.owners.forget([fleet.gpus.pop("a0")])
    fleet.come([Gpu("a-new", "a")], T0 + DAY)
    assert fleet.counted("a", T0 + DAY) == 3
    assert fleet.counted("a", T0 + DAY + NEWCOMER_MS) == 4


def test_a_gpu_that_could_not_be_opened_keeps_its_place_until_it_is_known() -> None:
    fleet = Fleet()
    fleet.come([Gpu(f"{UNKNOWN_GPU}d", "d"), Gpu("d0", "d")], T0)
    assert fleet.counted("d", T0 + DAY) == 1
    fleet.come([Gpu("d1", "d")], T0 + DAY)
    assert fleet.counted("d", T0 + 2 * DAY) == 2


def test_instances_are_parts_of_a_gpu_and_seven_at_most() -> None:
    fleet = Fleet()
    fleet.come([Gpu(f"m{n}", "m", parent="m-whole") for n in range(9)], T0)
    found = fleet.look(T0 + DAY)
    assert sum(found[f"m{n}"].counted for n in range(9)) == 7
    fleet.come([Gpu(f"m-late{n}", "m", parent="m-made-up") for n in range(2)], T0 + DAY)
    assert fleet.look(T0 + 2 * DAY)["m-late0"].surplus


def test_a_gpu_that_its_agent_moves_into_another_pool_or_opts_in_counts_in_no_share() -> None:
    fleet = Fleet()
    fleet.look(T0 + DAY)
    fleet.gpus["a0"] = Gpu("a0", "a", pool="theirs")
    fleet.gpus["a1"] = Gpu("a1", "a", labels={LABEL: "true"})
    found = fleet.look(T0 + 2 * DAY)
    assert [found[f"a{n}"].counted for n in range(4)] == [False, False, True, True]


def test_a_rack_is_the_one_that_a_gpu_came_with() -> None:
    fleet = Fleet()
    fleet.gpus["a0"] = Gpu("a0", "a", rack="r1")
    fleet.look(T0)
    fleet.gpus["a0"] = Gpu("a0", "a", rack="theirs")
    _, racks = fleet.counting.look(list(fleet.gpus.values()), {}, T0 + DAY)
    assert {uuid: gpu.rack for uuid, gpu in racks.items()} == {"a0": "r1"}


def node(capacity: Mapping[str, str], **labels: str) -> KubeNode:
    named = {name.replace("_", "."): value for name, value in labels.items()}
    prefixed = {f"nvidia.com/{name}": value for name, value in named.items()}
    return KubeNode({"metadata": {"name": "n", "labels": prefixed}, "status": {"capacity": dict(capacity)}})


@pytest.mark.parametrize(
    ("capacity", "labels", "gpus"),
    [
        ({"nvidia.com/gpu": "8", "cpu": "96"}, {}, 8),
        ({"nvidia.com/gpu": "0"}, {}, None),
        ({}, {}, None),
        ({"nvidia.com/gpu": "40"}, {"gpu_replicas": "10"}, 4),
        ({"nvidia.com/gpu.shared": "16"}, {"gpu_replicas": "4"}, 4),
        ({"nvidia.com/gpu": "8"}, {"gpu_replicas": "x"}, 8),
        ({"nvidia.com/gpu": "56"}, {"gpu_product": "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb"}, None),
        ({"nvidia.com/gpu": "6", "nvidia.com/mig-1g.10gb": "14"}, {}, None),
        ({"amd.com/gpu": "8"}, {}, 8),
        ({"huawei.com/Ascend910": "8"}, {}, 8),
    ],
)
def test_what_a_nodes_capacity_says_of_its_gpus(
    capacity: Mapping[str, str], labels: dict[str, str], gpus: int | None
) -> None:
    assert gpus_shown(node(capacity, **labels)) == gpus


@pytest.mark.parametrize("seed", range(8))
def test_a_look_that_is_kept_is_what_a_new_one_comes_to(seed: int) -> None:
    chance, fleet, at_ms, nodes = random.Random(seed), Fleet(), T0 + DAY, dict[str, NodeState]()
    for step in range(40):
        at_ms += chance.choice([MINUTE, 3 * MINUTE, 11 * MINUTE])
        host = chance.choice("abcdef")
        what = chance.choice(["come", "gone", "shown", "nothing", "nothing"])
        if what == "come":
            fleet.come([Gpu(f"{host}-{step}", host, pool=chance.choice("pq"))], at_ms)
        elif what == "gone" and (mine := [one for one in fleet.gpus.values() if one.host == host]):
            fleet.owners.forget(mine)
            # The same object, as a store's reader gives it again.
            fleet.come(mine, at_ms)
        elif what == "shown":
            nodes[host] = NodeState(host, True, gpus=chance.choice([1, 4]))
        fresh = Counting(fleet.owners, 8, LABEL)
        fresh._came = dict(fleet.counting._came)
        assert fleet.look(at_ms, nodes) == fresh.look(list(fleet.gpus.values()), nodes, at_ms)[0]

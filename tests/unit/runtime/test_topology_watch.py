"""The brain's topology follows GPUs, nodes and the site's file, and names disagreements."""

from __future__ import annotations

from tocsin.actions.planning.facts import NodeState
from tocsin.domain.place import Place, PlaceKind
from tocsin.domain.reading import NVLINK_DOMAIN
from tocsin.runtime.brain.topology_watch import TopologyWatch
from tocsin.telemetry.metrics import OwnMetrics
from tocsin.topology.claims import Claim, ClaimSource
from tocsin_testing.builders import gpu

RACK = Claim(Place(PlaceKind.HOST, "node-1"), Place(PlaceKind.RACK, "r1"), ClaimSource.SITE_FILE)


def test_it_is_built_anew_only_where_something_changed() -> None:
    watch = TopologyWatch([RACK], OwnMetrics())
    one = gpu(1)
    first = watch.now([one], {}, {})
    assert first.name(PlaceKind.RACK, one.uuid) == "r1"
    assert watch.now([gpu(1)], {"node-1": NodeState("node-1", True)}, {}) is first
    moved = watch.now([gpu(1, labels={NVLINK_DOMAIN: "u.1"})], {}, {})
    assert moved is not first
    assert moved.name(PlaceKind.NVLINK_DOMAIN, one.uuid) == "u.1"


def test_jobs_that_change_are_seen_in_the_same_places() -> None:
    watch = TopologyWatch([RACK], OwnMetrics())
    one, jobs = gpu(1), {gpu(1).uuid: "slurm 7"}
    first = watch.now([one], {}, jobs)
    assert first.name(PlaceKind.JOB, one.uuid) == "slurm 7"
    assert watch.now([one], {}, dict(jobs)) is first
    jobs[one.uuid] = "slurm 8"
    second = watch.now([one], {}, jobs)
    assert (first.name(PlaceKind.JOB, one.uuid), second.name(PlaceKind.JOB, one.uuid)) == ("slurm 7", "slurm 8")
    assert second.name(PlaceKind.RACK, one.uuid) == "r1"
    assert watch.now([one], {}, {}).name(PlaceKind.JOB, one.uuid) == ""


def test_disagreements_are_counted_and_end() -> None:
    metrics = OwnMetrics()
    watch = TopologyWatch([RACK], metrics)
    places = (Claim(Place(PlaceKind.HOST, "node-1"), Place(PlaceKind.RACK, "r9"), ClaimSource.NODE_LABEL),)
    watch.now([gpu(1)], {"node-1": NodeState("node-1", True, places=places)}, {})
    assert metrics.value("tocsin_topology_disagreements") == 1
    watch.now([gpu(1)], {}, {})
    assert metrics.value("tocsin_topology_disagreements") == 0

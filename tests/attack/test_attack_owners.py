"""What an agent says of who uses its GPUs gives it no hold on work of another host."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.accounting.holders import holders_of
from tocsin.actions.model.ranks import named_job
from tocsin.actions.planning.facts import NodeState
from tocsin.domain.batch import Batch
from tocsin.domain.clock import DAY, MINUTE, ManualClock
from tocsin.domain.reading import UNKNOWN_GPU, Gpu, Owner, Reading
from tocsin.queries.fleet_state import workloads_of
from tocsin.queries.service import BrainService
from tocsin.runtime.brain import assembly
from tocsin.runtime.brain.assembly import RunningBrain
from tocsin.runtime.brain.managers import Managers
from tocsin.runtime.brain.owner_lines import MOST_BYTES, believed, places_of
from tocsin_testing.action_world import FakeExecutor
from tocsin_testing.builders import T0
from tocsin_testing.lone_brain import lone_brain

GPUS = {host: Gpu(f"GPU-{host}", host, index=0) for host in ("node-a", "node-b", "node-c")}


class Shows(FakeExecutor):
    """Slurm job 7 on nodes b and c, a pod on node b."""

    def nodes(self) -> dict[str, NodeState]:
        return NODES


NODES = {
    "node-a": NodeState("node-a", True, jobs={}),
    "node-b": NodeState("node-b", True, jobs={"u1": "", "ns/p": ""}, held_by=frozenset({"slurm 7"})),
    "node-c": NodeState("node-c", True, jobs={}, held_by=frozenset({"slurm 7"})),
}
CLAIMS = {
    "a Slurm job": Owner(1, slurm_job="7.0"),
    "a pod by its UID": Owner(1, pod_uid="u1"),
    "a pod by its name": Owner(1, pod="p", namespace="ns"),
    "a pod by its name, with a UID of its own": Owner(1, pod="p", namespace="ns", pod_uid="other"),
    "both": Owner(1, pod_uid="other", slurm_job="7"),
}


def reading(host: str, *owners: Owner) -> Reading:
    return Reading(GPUS[host], T0, {"gpu_temperature_celsius": 90.0}, owners=owners)


@pytest.mark.parametrize("managed", [True, False])
@pytest.mark.parametrize("claim", CLAIMS)
def test_a_claim_on_work_of_another_host_shares_nothing_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, claim: str, managed: bool
) -> None:
    """Before: one owner line by node-a made the GPUs of node-b ranks of its job, and Slurm requeue that job."""
    if managed:
        monkeypatch.setattr(assembly, "Managers", lambda _executors, *rest: Managers([Shows()], *rest))
    with lone_brain(tmp_path) as running:
        brain, service = running.brain, BrainService(running.brain)
        brain.managers.look()
        brain.accept(Batch(readings=[reading("node-b", CLAIMS[claim]), reading("node-a", CLAIMS[claim])]))
        brain.accept(Batch(readings=[reading("node-c", Owner(2, slurm_job="7.1"))]))
        assert service.same_jobs(["GPU-node-a"]) == {"GPU-node-a"}
        assert "GPU-node-a" not in service.same_jobs(["GPU-node-b"])
        kept = {one.gpu.host: one.owners for one in brain.memory.latest()}
        if managed:
            assert kept["node-a"] == (Owner(1),)
            assert brain.metrics.value("tocsin_dropped_total", what="owner", reason="other_host") == 1
            in_job = {"GPU-node-b", "GPU-node-c"} if claim in {"a Slurm job", "both"} else {"GPU-node-b"}
            assert service.same_jobs(["GPU-node-b"]) == in_job


@pytest.fixture
def running(tmp_path: Path) -> Iterator[RunningBrain]:
    with lone_brain(tmp_path) as made:
        yield made


def crowd(size: int, letter: str = "x") -> tuple[Owner, ...]:
    return tuple(Owner(pid, user=f"{pid} " + letter * 240) for pid in range(size))


def remembered(running: RunningBrain, host: str) -> int:
    return sum(len(one.owners) for one in running.brain.memory.newest((), {host}))


def test_owners_of_a_host_take_bounded_memory_and_none_of_another(running: RunningBrain) -> None:
    """Before: 256 GPUs with 1,024 owners each were 460 MB for one host, sent a little at a time."""
    brain, most = running.brain, MOST_BYTES // 390
    gpus = [Gpu(f"GPU-{n}", "node-a", index=n) for n in range(8)]
    for gpu in gpus:
        brain.accept(Batch(readings=[Reading(gpu, T0, {"gpu_temperature_celsius": 50.0}, owners=crowd(1_000))]))
    assert 0.9 * most < remembered(running, "node-a") <= most
    dropped = brain.metrics.value("tocsin_dropped_total", what="owner", reason="owner_bytes_per_host")
    assert dropped == 8_000 - remembered(running, "node-a")
    # What is older than the newest reading makes no room.
    brain.accept(Batch(readings=[Reading(gpu, T0 - 1, {}) for gpu in gpus]))
    brain.accept(Batch(readings=[Reading(gpus[7], T0 + 1, {}, owners=crowd(1_000))]))
    assert remembered(running, "node-a") <= most
    brain.accept(Batch(readings=[Reading(GPUS["node-b"], T0, {}, owners=crowd(1_000))]))
    assert remembered(running, "node-b") == 1_000
    brain.accept(Batch(readings=[Reading(gpu, T0 + 2, {}) for gpu in gpus]))
    brain.accept(Batch(readings=[Reading(gpus[7], T0 + 3, {}, owners=crowd(1_000))]))
    assert remembered(running, "node-a") == 1_000


def test_owners_that_are_others_each_time_leave_nothing_behind() -> None:
    """Before: the last 65,536 lists of owners were kept, each of up to a megabyte."""
    tracemalloc.start()
    try:
        for turn in range(200):
            holders_of(tuple(Owner(pid, user=f"{turn} {pid} " + "x" * 200) for pid in range(400)))
        left, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert left < 10 << 20


def test_a_gpu_that_nobody_could_name_is_forgotten_like_any_other(running: RunningBrain) -> None:
    """Before: a name that its host had given up stayed owned, and took the host's room for GPUs, for ever."""
    brain, clock = running.brain, cast(ManualClock, running.brain.clock)
    names = [f"{UNKNOWN_GPU}node-a-{n}" for n in range(3)]
    brain.accept(Batch(readings=[Reading(Gpu(one, "node-a"), T0, {"gpu_memory_used_ratio": 0.5}) for one in names]))
    brain.accept(Batch(readings=[Reading(GPUS["node-a"], T0 + 1, {})]))
    brain.tick()
    assert [brain.owners.host_of(one) for one in names] == ["node-a"] * 3, "names of a day are bounded"
    clock.advance(DAY + MINUTE)
    brain.accept(Batch(readings=[Reading(Gpu(names[0], "node-a"), clock.now_ms(), {})]))
    brain.tick()
    assert [brain.owners.host_of(one) for one in names] == ["node-a", "", ""]


names = st.sampled_from(["7", "8"])
owners = st.builds(
    Owner,
    pid=st.integers(1, 3),
    slurm_job=st.sampled_from(["", "7", "8.1"]),
    pod_uid=st.sampled_from(["", "u1", "u2"]),
    pod=st.sampled_from(["", "p"]),
    namespace=st.just("ns"),
)
nodes = st.dictionaries(
    st.sampled_from(["node-a", "node-b"]),
    st.builds(
        lambda jobs, held: NodeState("n", True, jobs=jobs, held_by=frozenset(f"slurm {one}" for one in held)),
        st.none() | st.dictionaries(st.sampled_from(["u1", "u2", "ns/p"]), st.sampled_from(["", "ns/job/x"])),
        st.lists(names),
    ),
)


@given(nodes=nodes, mine=st.lists(owners, max_size=2), theirs=st.lists(owners, max_size=2))
def test_two_hosts_share_a_job_only_where_their_manager_shows_it_on_both(
    nodes: dict[str, NodeState], mine: list[Owner], theirs: list[Owner]
) -> None:
    said = {"node-a": mine, "node-b": theirs}
    readings = [
        believed(reading(host, *who), nodes.get(host), lambda: places_of(nodes))[0] for host, who in said.items()
    ]
    job_a, job_b = (one.job for one in workloads_of(readings, nodes, blind=False).values())
    if job_a and job_a == job_b:
        for node in (nodes["node-a"], nodes["node-b"]):
            assert job_a in node.held_by or job_a in {named_job(one) for one in (node.jobs or {}).values()}

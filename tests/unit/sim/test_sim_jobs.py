"""Whose processes simulated GPUs show, and what is told of their jobs."""

from __future__ import annotations

from tocsin.actions.executors.simulated import Simulated
from tocsin.actions.planning.build import work_id
from tocsin.domain.clock import MINUTE
from tocsin.domain.finding import ActionKind
from tocsin.domain.metrics import variant
from tocsin_testing.simulated import fleet


def test_every_gpu_at_work_shows_its_process_and_no_other_does() -> None:
    simulated = fleet(64)
    for _ in range(30):
        for one in simulated.step().readings:
            assert len(one.owners) == one.values["gpu_processes"]
            for owner in one.owners:
                assert variant("gpu_process_memory_used_bytes", "pid", str(owner.pid)) in one.values
                assert bool(owner.pod) == (one.gpu.pool == "inference")


def test_a_gang_has_one_job_and_processes_of_its_own() -> None:
    held: dict[str, list[tuple[str, int]]] = {}
    for one in fleet(64).step().readings:
        for owner in one.owners:
            held.setdefault(work_id(owner), []).append((f"{one.gpu.pool} {one.gpu.host}", owner.pid))
    for members in held.values():
        assert len({where for where, _ in members}) == 1
        assert len({pid for _, pid in members}) == len(members)
        assert len(members) == (8 if members[0][0].startswith("training") else 1)
    assert any(len(members) == 8 for members in held.values())


def test_a_new_job_has_a_new_name() -> None:
    simulated = fleet(16)
    seen: dict[str, set[int]] = {}
    for _ in range(300):
        for one in simulated.step(10 * MINUTE).readings:
            for owner in one.owners:
                seen.setdefault(f"{owner.slurm_job} {one.gpu.uuid}", set()).add(owner.pid)
    assert len(seen) > 16
    assert all(len(pids) == 1 for pids in seen.values())


def test_the_same_seed_has_the_same_jobs() -> None:
    one, other = fleet(32), fleet(32)
    for _ in range(5):
        assert [r.owners for r in one.step().readings] == [r.owners for r in other.step().readings]
    assert one.jobs() == other.jobs()


def test_schedulers_tell_of_every_job_that_shows() -> None:
    simulated = fleet(64)
    readings = simulated.step().readings
    facts = Simulated(simulated).work().facts
    assert facts.keys() == {work_id(owner) for one in readings for owner in one.owners}
    for name, told in facts.items():
        assert told.lost_s is not None
        assert told.lost_s >= 0
        assert (told.lost_s == 0) == name.startswith("pod/")
        assert (told.ends_in_s is None) == name.startswith("pod/")
        assert told.ends_in_s is None or told.ends_in_s > 0
    every = {told.checkpoint_every_s for told in facts.values()}
    assert every == {None, 1800.0}
    assert all(told.lost_s < 1890 for told in facts.values() if told.checkpoint_every_s and told.lost_s is not None)


def test_work_that_has_left_shows_no_more() -> None:
    simulated = fleet(64)
    uuid = simulated.gpus[0].uuid
    assert simulated.step().readings[0].owners
    simulated.apply(ActionKind.DRAIN, uuid)
    assert not simulated.step().readings[0].owners

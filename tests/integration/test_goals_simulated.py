"""Actions in the simulated fleet are judged by their goals: with an effect they end done, without one never."""

from __future__ import annotations

from collections import Counter

import pytest

from tocsin.domain.decision import DecisionState, OutcomeStatus
from tocsin.domain.errors import Conflict, InputError
from tocsin.domain.finding import ActionKind, Category, Subject, SubjectKind
from tocsin_testing.acted_fleet import ActedCase, ActedFleet

GPUS = 640
WANTED = {
    ActionKind.THROTTLE: 8,
    ActionKind.RESET_GPU: 52,
    ActionKind.MIGRATE: 58,
    ActionKind.DEFRAGMENT: 40,
    ActionKind.DRAIN: 14,
    ActionKind.CORDON: 24,
    ActionKind.SCALE_OUT: 14,
}
RUNS = 200
LATER = (ActionKind.MIGRATE, ActionKind.SCALE_OUT)
HOT = "gpu_temperature_celsius"
ALLOCATOR = "gpu_allocator_external_fragmentation_ratio"
STEPS = 125


def _injected(world: ActedFleet, kind: str, numbers: list[int], most: int) -> list[int]:
    found: list[int] = []
    for number in numbers:
        if len(found) == most:
            break
        try:
            world.fleet.inject(kind, str(number))
        except (Conflict, InputError):
            continue
        found.append(number)
    return found


def _jobs(world: ActedFleet, number: int) -> list[str]:
    return [owner.slurm_job or owner.pod for owner in world.readings[number].owners]


def _cases(world: ActedFleet) -> list[ActedCase]:
    """Hot GPUs, GPUs with errors and fragmented allocators by injected faults, and hosts; each on hosts of its own."""
    gpus = world.fleet.gpus
    hosts = sorted({gpu.host for gpu in gpus})
    by_host = {host: [n for n, gpu in enumerate(gpus) if gpu.host == host] for host in hosts}
    drained, cordoned, heated, faulty = hosts[:14], hosts[14:38], hosts[38:46], hosts[46:60]
    rest = [number for host in faulty for number in by_host[host]]
    made = []
    # A throttle is for a whole job, so that one GPU of each is hot.
    jobs = {
        job: number
        for host in heated
        for number in by_host[host]
        for job in _jobs(world, number)
        if gpus[number].pool == "training"
    }
    hot = _injected(world, "thermal_drift", list(jobs.values()), WANTED[ActionKind.THROTTLE])
    world.held = hot
    for number in hot:
        limit = world.readings[number].values.get("gpu_temperature_slowdown_celsius", 93.0) - 7
        subject = world.gpu_subject(number)
        made.append(ActedCase(subject, ActionKind.THROTTLE, Category.THERMAL, HOT, limit, limit - 4))
    for number in _injected(world, "row_remap", rest[0::2], WANTED[ActionKind.RESET_GPU]):
        subject, told = world.gpu_subject(number), True
        made.append(ActedCase(subject, ActionKind.RESET_GPU, Category.HARDWARE, "gpu_recovery_action", 0.5, told=told))
    for number in _injected(world, "allocator_fragmentation", rest[1::2], WANTED[ActionKind.DEFRAGMENT]):
        subject = world.gpu_subject(number)
        made.append(ActedCase(subject, ActionKind.DEFRAGMENT, Category.FRAGMENTATION, ALLOCATOR, 0.3, 0.25))
    for action, names in ((ActionKind.DRAIN, drained), (ActionKind.CORDON, cordoned)):
        for host in names:
            subject = Subject(SubjectKind.HOST, host, host, gpus[by_host[host][0]].pool)
            made.append(ActedCase(subject, action, Category.HARDWARE))
    return made


def _more(world: ActedFleet, minute: int) -> list[ActedCase]:
    """Pools that grow, one after the other, and jobs that leave a GPU where there is room for one."""
    made = []
    counts = Counter(case.action for case in world.cases)
    busy_pools = {case.subject.name for case in world.cases if not case.done}
    for pool in ("training", "inference", "batch"):
        if counts[ActionKind.SCALE_OUT] < WANTED[ActionKind.SCALE_OUT] and pool not in busy_pools:
            subject = Subject(SubjectKind.POOL, pool, pool=pool, detail=str(minute))
            made.append(ActedCase(subject, ActionKind.SCALE_OUT, Category.CAPACITY))
            counts[ActionKind.SCALE_OUT] += 1
    open_moves = sum(case.action is ActionKind.MIGRATE and not case.done for case in world.cases)
    if not open_moves and counts[ActionKind.MIGRATE] < WANTED[ActionKind.MIGRATE]:
        taken = {case.subject.host for case in world.cases if case.action is not ActionKind.MIGRATE}
        alone = [
            number
            for number, one in enumerate(world.readings)
            if one.owners and one.gpu.pool in ("batch", "inference") and one.gpu.host not in taken
        ]
        half = len(alone) // 2
        world.make_room(alone[:half])
        most = WANTED[ActionKind.MIGRATE] - counts[ActionKind.MIGRATE]
        chosen = alone[half:][: min(half - 2, most)]
        world.hold_work(chosen)
        made += [ActedCase(world.gpu_subject(number), ActionKind.MIGRATE, Category.MEMORY) for number in chosen]
    return made


@pytest.mark.parametrize("effective", [True, False], ids=["effect", "none"])
def test_what_works_ends_done_and_what_does_not_never_does(effective: bool) -> None:
    world = ActedFleet(GPUS, effective=effective)
    world.step()
    world.cases = _cases(world)
    for minute in range(STEPS):
        if minute % 4 == 3:
            world.cases += _more(world, minute)
        world.step()
        made = Counter(case.action for case in world.cases)
        if all(made[action] >= WANTED[action] for action in LATER) and all(case.done for case in world.cases):
            break
    ended = [case.ended for case in world.cases if case.ended is not None]
    states = Counter((one.decision.action, one.state) for one in ended)
    assert len(ended) == len(world.cases) >= RUNS, (Counter(case.action for case in world.cases), states)
    done = sum(one.state is DecisionState.DONE for one in ended)
    assert done >= 0.95 * len(ended) if effective else done == 0, states
    for one in ended:
        assert one.decision.goal is not None
        assert one.outcome is not None
        assert one.outcome.next_step
        if one.outcome.status is OutcomeStatus.SUCCEEDED:
            assert one.outcome.measured is not None
            assert one.decision.goal.met(one.outcome.measured), one

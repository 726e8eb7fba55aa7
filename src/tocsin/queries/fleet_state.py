"""The running fleet as planners and rules take it: free GPUs, the mix of jobs, workloads, and all of its state."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import compress
from operator import is_not
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from tocsin.actions.model.catalogue import ACTIONS, Scope
from tocsin.actions.model.ledger_entry import DecisionStatus
from tocsin.actions.model.ranks import JobOnGpu, named_job, work_on
from tocsin.actions.planning.build import Knowledge, fleet_state_from
from tocsin.actions.planning.facts import NodeState
from tocsin.actions.planning.layouts import layouts_of, running_demand
from tocsin.actions.planning.scaling import ScalingPolicy
from tocsin.actions.planning.state import FleetState, Pool
from tocsin.actions.planning.statefile import state_json
from tocsin.actions.planning.units import PlanLimits
from tocsin.config.planning import PlanningSettings
from tocsin.config.settings import TaskShare
from tocsin.domain.finding import SubjectKind, healthy_gpus
from tocsin.domain.fragmentation import TaskClass, mix_of_sizes
from tocsin.domain.grouping import grouped
from tocsin.domain.reading import Gpu, Owner, Reading
from tocsin.queries.live import LiveBrain, LiveManagers
from tocsin.rules.fleet import GANG, idle

UTILIZATION, ENGINE = "gpu_utilization_ratio", "gpu_graphics_engine_active_ratio"
PROCESSES, MEMORY = "gpu_processes", "gpu_memory_used_ratio"


def free_now(readings: Sequence[Reading]) -> npt.NDArray[np.bool_]:
    """bool[n]: whether each GPU or MIG instance does next to nothing and has no process; False where that is not known.

    Where a GPU in MIG mode has no utilisation the activity of its engine stands for it. Drivers tell none of an
    instance: one of which the processes or the memory in use are known is judged by these alone.
    """
    busy, engine, processes, memory = (
        np.array([one.values.get(name, np.nan) for one in readings], np.float64)
        for name in (UTILIZATION, ENGINE, PROCESSES, MEMORY)
    )
    busy = np.where(np.isnan(busy), engine, busy)
    judged_by_these = np.array([one.gpu.is_mig for one in readings], np.bool_) & ~(
        np.isnan(processes) & np.isnan(memory)
    )
    return idle(np.where(np.isnan(busy) & judged_by_these, 0.0, busy), processes, memory)


def at_work(readings: Sequence[Reading]) -> frozenset[str]:
    """UUIDs of the GPUs and MIG instances that are not free."""
    return frozenset(one.gpu.uuid for one, free in zip(readings, free_now(readings).tolist(), strict=True) if not free)


MixFrom = Literal["settings", "running", "node"]


def mix_of(
    configured: Sequence[TaskShare],
    readings: Sequence[Reading],
    running: Callable[[Sequence[Reading]], tuple[TaskClass, ...]] | None = None,
) -> tuple[tuple[TaskClass, ...], MixFrom]:
    """The jobs that free GPUs are measured by, and where they are from; `running` stands for `running_mix`.

    Where none are `configured` and no job is known on `readings`, one of a whole node stands for them.
    """
    if configured:
        return tuple(TaskClass(task.gpus, task.share) for task in configured), "settings"
    mix = (running or running_mix)(readings)
    return (mix, "running") if mix else (whole_node(readings), "node")


def running_mix(readings: Iterable[Reading]) -> tuple[TaskClass, ...]:
    """The mix of the jobs on `readings`, each counted once per node by its GPUs there; empty where no owner is known.

    A job is a Slurm job, a pod, a container, or a process that is in none of these. MIG instances, and GPUs in MIG
    mode, are left out: their jobs take no whole GPUs.
    """
    held: dict[tuple[str, str], set[str]] = defaultdict(set)
    for reading in readings:
        for job in _whole_jobs(reading):
            held[reading.gpu.host, job].add(reading.gpu.uuid)
    return mix_of_sizes(len(gpus) for gpus in held.values())


def _whole_jobs(reading: Reading) -> Collection[str]:
    """The jobs on a whole GPU."""
    if not reading.owners or reading.gpu.is_mig or reading.values.get("gpu_mig_mode") == 1.0:
        return ()
    return set(map(_job, reading.owners))


class RunningMix:
    """`running_mix` of all GPUs, of which those are looked at that have another reading; for one thread."""

    def __init__(self) -> None:
        self._last: Sequence[Reading] = ()
        self._jobs: dict[str, tuple[str, Collection[str]]] = {}
        self._held = Counter[tuple[str, str]]()

    def now(self, readings: Sequence[Reading]) -> tuple[TaskClass, ...]:
        """The mix on `readings`, one of each GPU."""
        last, self._last = self._last, readings
        for reading in compress(readings, map(is_not, readings, last)) if len(readings) == len(last) else readings:
            self._put(reading.gpu.uuid, reading.gpu.host, _whole_jobs(reading))
        if len(self._jobs) > len(readings):
            for uuid in self._jobs.keys() - {reading.gpu.uuid for reading in readings}:
                self._put(uuid, "", ())
                del self._jobs[uuid]
        return mix_of_sizes(self._held.values())

    def _put(self, uuid: str, host: str, jobs: Collection[str]) -> None:
        before = self._jobs.get(uuid, ("", ()))
        if before != (host, jobs):
            self._held.subtract((before[0], job) for job in before[1])
            self._held.update((host, job) for job in jobs)
            for job in before[1]:
                if not self._held[before[0], job]:
                    del self._held[before[0], job]
            self._jobs[uuid] = host, jobs


def whole_node(readings: Sequence[Reading]) -> tuple[TaskClass, ...]:
    """What stands for the mix where no job is known, as the rules take it."""
    sizes = Counter(one.gpu.host for one in readings if not one.gpu.is_mig)
    return (TaskClass(float(min(GANG, max(sizes.values(), default=1)))),)


def _job(owner: Owner) -> str:
    """What holds a GPU together with others; a step of a Slurm job belongs to its job."""
    if owner.slurm_job:
        return f"slurm {owner.slurm_job.partition('.')[0]}"
    return owner.pod_uid or (f"{owner.namespace}/{owner.pod}" if owner.pod else owner.container) or f"pid {owner.pid}"


class KnownWork(NamedTuple):
    """The `work` on a GPU, and what it was worked out from."""

    owners: tuple[Owner, ...]
    host: str
    node: NodeState | None
    blind: bool
    work: JobOnGpu


def workloads_of(
    readings: Iterable[Reading],
    nodes: Mapping[str, NodeState],
    *,
    blind: bool,
    known: dict[str, KnownWork] | None = None,
) -> dict[str, JobOnGpu]:
    """The work on each GPU by UUID; `nodes` as their managers show them, `blind` where one has not answered lately.

    A job is one job on several hosts where the manager of each shows it there. Where only agents say so it is another
    on each: a host that could claim a share in the job of another would have that one slowed for its own heat.

    `known` is what the last call came to, brought up to date here: what is the same object is not worked out again.
    """
    readings, known = list(readings), {} if known is None else known
    found, first, several = dict[str, JobOnGpu](), dict[str, str](), set[str]()
    for reading in readings:
        gpu, owners = reading.gpu, reading.owners
        uuid, host = gpu.uuid, gpu.host
        node, one = nodes.get(host), known.get(uuid)
        if one is None or one.owners is not owners or one.node is not node or (one.host, one.blind) != (host, blind):
            known[uuid] = one = KnownWork(owners, host, node, blind, work_on(host, owners, node, blind=blind))
        found[uuid] = work = one.work
        if work.job and first.setdefault(work.job, host) != host:
            several.add(work.job)
    for uuid in known.keys() - found.keys() if len(known) > len(found) else ():
        del known[uuid]
    for gpu in (reading.gpu for reading in readings if several and found[reading.gpu.uuid].job in several):
        alone = found[gpu.uuid]
        if not gpu.simulated and not _is_shown(alone.job, nodes.get(gpu.host)):
            found[gpu.uuid] = alone._replace(job=f"{gpu.host} {alone.job}")
    return found


def _is_shown(job: str, node: NodeState | None) -> bool:
    """Whether the manager of `node` shows `job`, as `JobOnGpu` names it, there."""
    if node is None:
        return False
    shown = {named_job(one) for one in (node.jobs or {}).values() if one}
    return job in node.held_by or job in shown or job.removeprefix("slurm ") in node.work


def same_jobs(readings: Iterable[Reading], managers: LiveManagers, gpus: Collection[str]) -> set[str]:
    """UUIDs of the GPUs that the jobs on `gpus` hold, `gpus` among them."""
    workloads = workloads_of(readings, managers.nodes(), blind=managers.blind())
    jobs = {workloads[uuid].job for uuid in gpus if uuid in workloads} - {""}
    return set(gpus) | {uuid for uuid, one in workloads.items() if one.job in jobs}


def live_state(brain: LiveBrain, now_ms: int, readings: Sequence[Reading] | None = None) -> FleetState:
    """The fleet as its newest readings (`readings`, where given), managers, findings and forecasts show it.

    What no manager tells is left out: no plan moves work of which nobody knows what it would lose. What is not idle and
    has no known owner is work that stays where it is.
    """
    readings = brain.memory.latest() if readings is None else readings
    planning = brain.settings.planning
    work = brain.managers.work()
    layouts = layouts_of(readings)
    known = Knowledge(
        facts=work.facts,
        nodes=brain.managers.nodes(),
        budgets=work.budgets,
        rooms=work.rooms,
        layouts=layouts,
        demand=running_demand(layout.placed for layout in layouts.values() if layout.placed),
        pools=_pools(readings, planning),
        healthy=healthy_gpus(readings, brain.active),
        # No work goes on where a GPU has fallen off the bus.
        at_work=at_work([one for one in readings if not one.is_lost]),
        mix=mix_of(brain.settings.fragmentation.task_mix, readings)[0],
        restart_s=planning.restart_seconds,
    )
    return fleet_state_from(readings, brain.pools(), brain.forecasts.current(now_ms), now_ms, known)


def planned_state(brain: LiveBrain, now_ms: int) -> FleetState:
    """`live_state` for planners: nothing is moved to a host that is to be drained or rebooted, whoever has yet to say
    yes to that."""
    state, leaving = live_state(brain, now_ms), _leaving(brain.statuses(final=False))
    return state.with_nodes(replace(state.nodes[host], leaving=True) for host in leaving & state.nodes.keys())


def _leaving(statuses: Iterable[DecisionStatus]) -> set[str]:
    """The hosts that decisions take out of service which wait or run."""
    subjects = [one.decision.subject for one in statuses if ACTIONS[one.decision.action].scope is Scope.HOST]
    return {one.name if one.kind is SubjectKind.HOST else one.host for one in subjects}


def _pools(readings: Sequence[Reading], planning: PlanningSettings) -> dict[str, Pool]:
    """Every pool by name; agents name them, so that there may be as many as GPUs."""
    gpus = grouped((one.gpu.pool, one.gpu) for one in readings)
    return {name: _pool(name, [gpu for gpu in gpus[name] if not gpu.is_mig], planning) for name in sorted(gpus)}


def _pool(name: str, mine: Sequence[Gpu], planning: PlanningSettings) -> Pool:
    """What may be done to a pool's size; a node that is added is like the commonest of those it has."""
    sizes = Counter(Counter(gpu.host for gpu in mine).values())
    models = Counter(gpu.model for gpu in mine)
    return Pool(
        name,
        floor_gpus=planning.pool_floor_gpus.get(name, 0),
        most_nodes=planning.pool_max_nodes.get(name),
        node_gpus=sizes.most_common(1)[0][0] if sizes else 0,
        node_model=models.most_common(1)[0][0] if models else "",
        provision_s=planning.provision_seconds,
    )


def state_document(brain: LiveBrain, now_ms: int) -> dict[str, Any]:
    """`planned_state` in the form of a state file (docs/planning.md)."""
    document: dict[str, Any] = json.loads(state_json(planned_state(brain, now_ms)))
    return document


def limits_of(settings: PlanningSettings) -> PlanLimits:
    """The bounds of plans that move work."""
    return PlanLimits(
        settings.max_moves, settings.horizon_hours, settings.max_risk, settings.patience_seconds, settings.effort
    )


def policy_of(settings: PlanningSettings) -> ScalingPolicy:
    """When pools grow and shrink."""
    return ScalingPolicy(
        settings.scale_in_below,
        settings.most_after_scale_in,
        settings.fill_to,
        settings.scale_out_rest_seconds,
        settings.scale_in_rest_seconds,
    )

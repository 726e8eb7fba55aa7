"""The executor that acts on a Slurm cluster (docs/slurm.md).

What it has begun is marked in the cluster itself: in the reason and comment of nodes, in the administrator's comment of
jobs. So it goes on after a restart, and never does a thing twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tocsin.actions.executors.base import ExecutorBase
from tocsin.actions.executors.registry import Dependencies
from tocsin.actions.model.executor import PRE_CHECK, ExecutionResult, Executor, ManagerUnavailable, went
from tocsin.actions.model.scope import named_host, pool_of
from tocsin.actions.model.view import FleetView
from tocsin.actions.planning.facts import NodeState, WorkloadSeen
from tocsin.actions.slurm import comments, nodes
from tocsin.actions.slurm.client import Command, Runner, Slurm, SlurmProblem
from tocsin.actions.slurm.jobs import CHECKPOINT, REQUEUE, JobMover, JobTask, work_seen
from tocsin.actions.slurm.nodes import DOWN, UP, CloudNodePower, none_idle
from tocsin.actions.slurm.rest import Closing, runner_of
from tocsin.actions.slurm.signs import hosts_by_node, node_of
from tocsin.actions.slurm.state import SlurmJob, SlurmNode, SlurmSnapshot
from tocsin.config.slurm import SlurmSettings
from tocsin.domain.clock import Clock
from tocsin.domain.decision import Decision, Ruling, Verdict
from tocsin.domain.finding import ActionKind, SubjectKind
from tocsin.domain.phrase import say
from tocsin.domain.place import Place, PlaceKind
from tocsin.topology.claims import Claim, ClaimSource

SEEN_SECONDS = 60.0
"""Age up to which what Slurm said last counts in the pre-check, which must not wait for it (own choice)."""
UNSEEN = f"Slurm has not answered in the last {SEEN_SECONDS:g} s: its nodes are not known yet"
_ON_NODES = frozenset(
    {
        ActionKind.CHECKPOINT,
        ActionKind.MIGRATE,
        ActionKind.CORDON,
        ActionKind.UNCORDON,
        ActionKind.DRAIN,
        ActionKind.REBOOT_NODE,
    }
)
_ON_POOLS = frozenset({ActionKind.SCALE_OUT, ActionKind.SCALE_IN})
_TAKES_OUT = frozenset({ActionKind.CORDON, ActionKind.DRAIN, ActionKind.REBOOT_NODE})
_OF_ONE_GPU = frozenset({ActionKind.CHECKPOINT, ActionKind.MIGRATE})


class SlurmExecutor(ExecutorBase):
    """Drains, resumes and reboots nodes, checkpoints and requeues jobs, powers cloud nodes."""

    name = "slurm"
    resumable = True

    def __init__(self, settings: SlurmSettings, runner: Runner, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._runner = runner
        self._slurm = Slurm(settings, runner, clock)
        self._power = CloudNodePower(self._slurm)
        self._indices: dict[str, int] = {}

    def supports(self, action: ActionKind) -> bool:
        if action is ActionKind.REBOOT_NODE:
            return self._settings.allow_reboot
        return action in _ON_NODES or (action in _ON_POOLS and bool(self._settings.partitions))

    def serves(self, decision: Decision) -> bool:
        if decision.action in _ON_POOLS:
            return bool(self._power.partition(pool_of(decision)))
        return bool(_host(decision))

    def check_real(self, decision: Decision, view: FleetView) -> Verdict:
        whole = view.whole(decision.subject.name)
        if whole is not None and whole.gpu.index is not None:
            self._indices[decision.subject.name] = whole.gpu.index
        try:
            seen = self._slurm.latest(SEEN_SECONDS)
            problem = UNSEEN if seen is None else self._objection(decision, seen, view)
        except SlurmProblem as error:
            problem = str(error)
        return Verdict(PRE_CHECK, Ruling.HOLD, problem) if problem else Verdict(PRE_CHECK, Ruling.ALLOW)

    def execute(self, decision: Decision) -> ExecutionResult:
        plan: list[Command] | None = [] if self._settings.dry_run else None
        slurm = self._slurm if plan is None else self._slurm.planning(plan)
        try:
            result = self._do(decision, slurm)
        except SlurmProblem as problem:
            if problem.trouble.passing and plan is None:
                return went(True, say("{problem}; tried again", problem=problem), pending=True)
            return ExecutionResult(False, str(problem), lasting=False)
        if plan is None or not result.ok:
            return result
        said = "; ".join(" ".join(command) for command in plan) or "nothing"
        return went(True, say("dry run, would have run: {said}", said=said), lasting=False)

    def verify(self, decision: Decision, view: FleetView) -> bool | None:
        try:
            seen = self._slurm.snapshot(self._settings.snapshot_seconds)
        except SlurmProblem:
            return None
        if decision.action in _ON_POOLS:
            return self._power.seen(decision, UP if decision.action is ActionKind.SCALE_OUT else DOWN, seen)
        node = seen.nodes.get(self._node_name(decision))
        return None if node is None else _seen_on(decision, node, seen)

    def nodes(self) -> Mapping[str, NodeState]:
        try:
            seen = self._slurm.snapshot(self._settings.snapshot_seconds)
        except SlurmProblem as problem:
            raise ManagerUnavailable(str(problem)) from None
        places = self._slurm.places()
        host_of = hosts_by_node(self._settings)
        states = (_state(node, host_of(node.name), seen, places.get(node.name, ())) for node in seen.nodes.values())
        return {state.host: state for state in states}

    def work(self) -> WorkloadSeen:
        try:
            return work_seen(self._slurm, self._clock.now_ms())
        except SlurmProblem as problem:
            raise ManagerUnavailable(str(problem)) from None

    def close(self) -> None:
        """Let go of the connections to slurmrestd."""
        if isinstance(self._runner, Closing):
            self._runner.close()

    def _do(self, decision: Decision, slurm: Slurm) -> ExecutionResult:
        # Of the cluster itself in a dry run too: the pre-check goes by what was seen last.
        seen, now_ms = self._slurm.snapshot(), self._clock.now_ms()
        if decision.action in _ON_POOLS:
            power, pool = CloudNodePower(slurm), pool_of(decision)
            if decision.action is ActionKind.SCALE_OUT:
                return power.out(decision, pool, seen, now_ms)
            return power.back(decision, pool, seen, now_ms, self._named(named_host(decision)))
        name = self._node_name(decision)
        node = seen.nodes.get(name)
        if node is None:
            return went(False, say("Slurm knows no node {name}", name=name), lasting=False)
        if decision.action is ActionKind.UNCORDON:
            return self._give_back(decision, slurm, node, seen)
        if decision.action is ActionKind.REBOOT_NODE:
            return nodes.reboot(slurm, node, decision, now_ms)
        if decision.action in _OF_ONE_GPU:
            return self._move(decision, slurm, node, seen)
        refused = nodes.take_out(slurm, node, decision, now_ms)
        if refused is not None:
            return refused
        if decision.action is ActionKind.CORDON:
            return went(True, say("{name} takes no new work", name=name))
        return self._empty(decision, slurm, node, seen)

    def _empty(self, decision: Decision, slurm: Slurm, node: SlurmNode, seen: SlurmSnapshot) -> ExecutionResult:
        """The rest of a drain: what runs is waited for, or moved first."""
        now_ms, said, effect = self._clock.now_ms(), "", {}
        if self._settings.drain_jobs == "requeue":
            task = JobTask(decision.id, node.name, requeue=True, deadline_ms=decision.parameters.context.deadline_ms)
            progress = JobMover(slurm).tend(task, seen, now_ms)
            said, effect = f"; {progress.text()}", progress.effect()
            if not progress.done:
                return went(True, say("{node} takes no new work{said}", node=node.name, said=said), pending=True)
        running = [job.ref for job in seen.on(node.name)]
        if running or not node.drained:
            left = say("waits for {jobs}", jobs=", ".join(running[:8])) if running else say("to be seen as drained")
            return went(
                True,
                say("{node} takes no new work, {left}{said}", node=node.name, left=left, said=said),
                pending=True,
                effect=effect,
            )
        done = effect | nodes.drain_seconds(node, now_ms)
        return went(True, say("{node} is drained{said}", node=node.name, said=said), effect=done)

    def _move(self, decision: Decision, slurm: Slurm, node: SlurmNode, seen: SlurmSnapshot) -> ExecutionResult:
        """Checkpoint the jobs of a node, or of one GPU, and for a migration requeue them."""
        task = JobTask(
            decision.id,
            node.name,
            requeue=decision.action is ActionKind.MIGRATE,
            exclude=True,
            deadline_ms=decision.parameters.context.deadline_ms,
            wanted=lambda job: self._concerned(decision, node.name, job),
        )
        unknown = decision.subject.name not in self._indices and not decision.parameters.context.jobs
        begun = any(_marked(job, decision.id) for job in seen.jobs)
        if decision.subject.kind is SubjectKind.GPU and unknown and not begun:
            return went(
                False,
                say(
                    "which GPU of {node} {subject} is, is not known here", node=node.name, subject=decision.subject.name
                ),
                lasting=False,
            )
        progress = JobMover(slurm).tend(task, seen, self._clock.now_ms())
        return went(
            True,
            say("{node}: {progress}", node=node.name, progress=progress.text()),
            lasting=bool(progress.asked or progress.proved or progress.requeued or progress.waiting),
            pending=not progress.done,
            effect=progress.effect(),
        )

    def _concerned(self, decision: Decision, node: str, job: SlurmJob) -> bool:
        if decision.subject.kind is not SubjectKind.GPU or _marked(job, decision.id):
            return True
        if str(job.number) in decision.parameters.context.jobs:
            return True
        index = self._indices.get(decision.subject.name)
        return index is not None and index in job.gpus.get(node, frozenset())

    def _give_back(self, decision: Decision, slurm: Slurm, node: SlurmNode, seen: SlurmSnapshot) -> ExecutionResult:
        drained = comments.find(node.comment, nodes.DRAIN)
        result = nodes.give_back(slurm, node, decision, self._clock.now_ms())
        released = JobMover(slurm).release_held(seen, drained.id) if result.ok and drained is not None else []
        if not released:
            return result
        return went(
            True,
            say("{detail}; released {names}", detail=result.said or result.detail, names=", ".join(released)),
            lasting=result.lasting,
            effect=result.effect,
        )

    def _objection(self, decision: Decision, seen: SlurmSnapshot, view: FleetView) -> str:
        if decision.action is ActionKind.SCALE_OUT:
            pool = pool_of(decision)
            none = f"partition {self._power.partition(pool)} has no powered-down cloud node left"
            return "" if self._power.asleep(pool, seen) else none
        if decision.action is ActionKind.SCALE_IN:
            only = self._named(named_host(decision))
            return "" if self._power.idle(pool_of(decision), seen, only) else none_idle("the pool", only)
        node = seen.nodes.get(self._node_name(decision))
        if node is None:
            return f"Slurm knows no node {self._node_name(decision)}"
        if decision.action in _TAKES_OUT:
            return nodes.foreign(node)
        if decision.action is ActionKind.UNCORDON:
            return nodes.foreign(node) or _unproved(decision, view)
        return ""

    def _node_name(self, decision: Decision) -> str:
        return self._named(_host(decision))

    def _named(self, host: str) -> str:
        return node_of(self._settings, host)


def _host(decision: Decision) -> str:
    subject = decision.subject
    if subject.kind is SubjectKind.HOST:
        return subject.name
    return subject.host if subject.kind is SubjectKind.GPU else ""


def _marked(job: SlurmJob, identity: str) -> bool:
    return any(comments.find(job.admin_comment, what, identity) is not None for what in (CHECKPOINT, REQUEUE))


def _unproved(decision: Decision, view: FleetView) -> str:
    """Why nothing proves that the node is well; empty where all its GPUs are freshly read and healthy."""
    host = _host(decision)
    members = view.by_host.get(host, ())
    if not members:
        return f"no GPU of {host} is known: nothing proves that it is well"
    stale = [m.gpu.uuid for m in members if not m.is_fresh(view.now_ms, view.policy.fresh_ms)]
    sick = [m.gpu.uuid for m in members if not m.healthy]
    if stale:
        return f"{stale[0]} has no fresh reading: nothing proves that it is well"
    return f"{sick[0]} is not healthy" if sick else ""


def _seen_on(decision: Decision, node: SlurmNode, seen: SlurmSnapshot) -> bool | None:
    action = decision.action
    if action is ActionKind.UNCORDON:
        return not node.drained and node.base != "DOWN"
    if action is ActionKind.CORDON:
        return node.drained
    if action is ActionKind.DRAIN:
        return node.drained and not seen.on(node.name)
    if action is ActionKind.REBOOT_NODE:
        mark = comments.find(node.comment, nodes.REBOOT, decision.id)
        return node.ready and mark is not None and node.boot_s * 1000 > mark.at_ms
    what = REQUEUE if action is ActionKind.MIGRATE else CHECKPOINT
    marked = [job for job in seen.jobs if comments.find(job.admin_comment, what, decision.id) is not None]
    if not marked:
        return None
    return action is ActionKind.CHECKPOINT or not any(job.active and node.name in job.nodes for job in marked)


def _state(node: SlurmNode, host: str, seen: SlurmSnapshot, places: Sequence[tuple[PlaceKind, str]]) -> NodeState:
    jobs = seen.on(node.name)
    work = tuple(job.ref for job in jobs if job.gpus.get(node.name) or node.name not in job.gpus)
    held_by = frozenset(f"slurm {job.number}" for job in jobs if job.gpus.get(node.name))
    mine = Place(PlaceKind.HOST, host)
    claims = tuple(Claim(mine, Place(kind, name), ClaimSource.SLURM) for kind, name in places)
    ours = nodes.is_ours(node)
    state = NodeState(host, node.schedulable, node.ready, ours, node.reason, work, held_by=held_by, places=claims)
    return replace(state, gpus=node.gpus or None)


def build(dependencies: Dependencies) -> Executor:
    """Executor `slurm` by the settings; raises InputError or Unavailable where it cannot be had."""
    settings = dependencies.section(dependencies.settings.slurm)
    return SlurmExecutor(settings, runner_of(settings, dependencies.clock), dependencies.clock)

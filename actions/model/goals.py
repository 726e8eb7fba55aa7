"""What an action wants to change, named before it runs, and how far that has come.

A goal is one figure with a target and a unit. It is worked out of the decision and the state alone, when the decision
is made and again when it begins, and measured in the state after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tocsin.actions.model.scope import affected, gpus_of, hosts_of, pool_of
from tocsin.actions.model.view import FleetView, GpuView
from tocsin.domain.decision import (
    ActionGoal,
    Decision,
    GoalSense,
    MigrateParameters,
    Outcome,
    OutcomeStatus,
    RestoreParameters,
    ScaleParameters,
    ThrottleParameters,
    ranks_in,
)
from tocsin.domain.finding import ActionKind, SubjectKind
from tocsin.domain.metrics import MetricKind, spec_of
from tocsin.domain.phrase import Phrase, say, say_count

POWER_LIMIT = "gpu_power_limit_watts"
LIMIT_TOLERANCE_W = 1.0
"""Boards round limits (own choice)."""
OPEN_CAUSES, NEW_ERRORS, ELSEWHERE, AT_WORK, OPEN_GPUS, POOL_GPUS = (
    "open_causes",
    "new_errors",
    "work_elsewhere",
    "gpus_at_work",
    "open_gpus",
    "pool_gpus",
)
"""Measures that no metric has: causes that are still found, errors since the start and flags that stand, jobs that run
on other GPUs, GPUs of the host with work or open to it, GPUs that take new work, GPUs of the pool."""
_UNITS = {
    OPEN_CAUSES: "findings",
    NEW_ERRORS: "errors",
    ELSEWHERE: "jobs",
    AT_WORK: "GPUs",
    OPEN_GPUS: "GPUs",
    POOL_GPUS: "GPUs",
}
_FLAGS = (
    "gpu_recovery_action",
    "gpu_row_remap_pending",
    "gpu_retired_pages_pending",
    "gpu_ecc_uncorrected_volatile_total",
)
"""What an error leaves standing until the GPU is reset; volatile counters begin at 0 with the driver (NVML)."""
_LESS_IS_WORSE = frozenset({"gpu_thermal_margin_celsius"})
_FOLLOWED = ("slurm ", "pods ")
"""Jobs whose name stays when they run elsewhere; a lone pod or a process has another name there, but for simulated
ones."""


@dataclass(frozen=True, slots=True)
class BegunAction:
    """What was there when an action began: the instant, and the jobs on the GPUs that it is about."""

    at_ms: int = 0
    work: frozenset[str] = frozenset()


def work_at(decision: Decision, view: FleetView) -> frozenset[str]:
    """The jobs on the GPUs that a decision is about, as `GpuView.job` names them."""
    return frozenset(member.job for member in _left(decision, view)) - {""}


def _left(decision: Decision, view: FleetView) -> tuple[GpuView, ...]:
    """The GPUs that work leaves: those of its source where it names one."""
    parameters = decision.parameters
    if isinstance(parameters, MigrateParameters) and parameters.source:
        found = (view.whole(place.gpu) for place in parameters.source)
        return tuple(one for one in found if one is not None)
    return affected(decision, view)


def goal_of(decision: Decision, view: FleetView) -> ActionGoal | None:
    """What `decision` is to change in the state as it is; None where nothing of it could be measured."""
    made = _GOALS.get(decision.action)
    return None if made is None else made(decision, view)


def _own(measure: str, sense: GoalSense, target: float) -> ActionGoal:
    return ActionGoal(measure, sense, target, _UNITS[measure])


def _cause(decision: Decision, view: FleetView) -> ActionGoal:
    """The metric that went wrong, on the right side of its threshold; where there is none, no open cause."""
    root = view.findings.get(decision.findings[0] if decision.findings else "")
    spec = None if root is None else spec_of(root.metric.partition("{")[0])
    if root is None or root.threshold is None or spec is None or spec.kind is not MetricKind.GAUGE:
        return _own(OPEN_CAUSES, GoalSense.AT_MOST, 0.0)
    sense = GoalSense.AT_LEAST if spec.name in _LESS_IS_WORSE else GoalSense.AT_MOST
    return ActionGoal(spec.name, sense, root.threshold, spec.unit)


def _throttle(decision: Decision, view: FleetView) -> ActionGoal:
    parameters = decision.parameters
    if isinstance(parameters, ThrottleParameters) and parameters.power_limit_watts is not None:
        return ActionGoal(POWER_LIMIT, GoalSense.AT_MOST, parameters.power_limit_watts + LIMIT_TOLERANCE_W, "watts")
    return _cause(decision, view)


def _restore(decision: Decision, view: FleetView) -> ActionGoal | None:
    parameters = decision.parameters
    if not isinstance(parameters, RestoreParameters) or parameters.power_limit_watts is None:
        return None
    return ActionGoal(POWER_LIMIT, GoalSense.AT_LEAST, parameters.power_limit_watts - LIMIT_TOLERANCE_W, "watts")


def _migrate(decision: Decision, view: FleetView) -> ActionGoal:
    return _own(ELSEWHERE, GoalSense.AT_LEAST, float(len(work_at(decision, view))))


def _uncordon(decision: Decision, view: FleetView) -> ActionGoal:
    return _own(OPEN_GPUS, GoalSense.AT_LEAST, float(len(affected(decision, view))))


def _scale(decision: Decision, view: FleetView) -> ActionGoal | None:
    """As many GPUs more or fewer than there are now; one at least where no number is named."""
    parameters, now = decision.parameters, _pool_gpus(decision, view)
    if not isinstance(parameters, ScaleParameters) or now is None:
        return None
    sizes: dict[str, int] = {}
    for member in view.by_pool.get(pool_of(decision), ()):
        sizes[member.gpu.host] = sizes.get(member.gpu.host, 0) + 1
    asked = parameters.gpus or (parameters.nodes or 0) * max(sizes.values(), default=1) or 1
    if decision.action is ActionKind.SCALE_OUT:
        return _own(POOL_GPUS, GoalSense.AT_LEAST, now + asked)
    return _own(POOL_GPUS, GoalSense.AT_MOST, max(0.0, now - asked))


def _none(measure: str) -> Callable[[Decision, FleetView], ActionGoal]:
    return lambda _decision, _view: _own(measure, GoalSense.AT_MOST, 0.0)


_GOALS: Mapping[ActionKind, Callable[[Decision, FleetView], ActionGoal | None]] = {
    ActionKind.THROTTLE: _throttle,
    ActionKind.RESTORE: _restore,
    ActionKind.PLACE_ELSEWHERE: _none(OPEN_GPUS),
    ActionKind.DEFRAGMENT: _cause,
    ActionKind.SCALE_OUT: _scale,
    ActionKind.SCALE_IN: _scale,
    ActionKind.MIGRATE: _migrate,
    ActionKind.CORDON_GPU: _none(OPEN_GPUS),
    ActionKind.UNCORDON_GPU: _uncordon,
    ActionKind.CORDON: _none(OPEN_GPUS),
    ActionKind.UNCORDON: _uncordon,
    ActionKind.DRAIN: _none(AT_WORK),
    ActionKind.RESET_GPU: _none(NEW_ERRORS),
    ActionKind.REBOOT_NODE: _none(NEW_ERRORS),
}
"""A checkpoint, a ticket and a notification are seen by nobody here."""


def measure(decision: Decision, goal: ActionGoal, view: FleetView, begun: BegunAction) -> float | None:
    """The figure of `goal` in `view`, in its unit; None where nothing shows it now."""
    own = _MEASURES.get(goal.measure)
    return _metric(decision, goal, view) if own is None else own(decision, view, begun)


def _metric(decision: Decision, goal: ActionGoal, view: FleetView) -> float | None:
    """The worst value over the subject's GPUs and their parts; of pools and the fleet what the rules see of them."""
    if decision.subject.kind in (SubjectKind.POOL, SubjectKind.FLEET):
        return view.figures.get(f"{goal.measure}|{decision.subject.name}")
    members = gpus_of(decision.subject, view)
    if not _fresh(members, view):
        return None
    found = [value for member in members for name, value in member.values.items() if _is(name, goal.measure)]
    worst = max if goal.sense is GoalSense.AT_MOST else min
    return worst(found, default=None)


def _is(name: str, metric: str) -> bool:
    return name == metric or name.startswith(f"{metric}{{")


def _fresh(members: tuple[GpuView, ...], view: FleetView) -> bool:
    return bool(members) and all(member.is_fresh(view.now_ms, view.policy.fresh_ms) for member in members)


def _open_causes(decision: Decision, view: FleetView, begun: BegunAction) -> float | None:
    """An event stays on record for hours: that it is still found says nothing."""
    root = view.findings.get(decision.findings[0] if decision.findings else "")
    return None if root is not None and root.told else float(root is not None)


def _new_errors(decision: Decision, view: FleetView, begun: BegunAction) -> float | None:
    """Errors since the start and flags that stand; None before every GPU was read again and showed what it has."""
    members = affected(decision, view)
    read = all((member.last_reading_ms or 0) > begun.at_ms for member in members)
    shown = any(flag in member.values for member in members for flag in _FLAGS)
    if not _fresh(members, view) or not read or not shown:
        return None
    new = sum(at_ms > begun.at_ms for member in members for at_ms in view.errors.get(member.gpu.uuid, ()))
    return float(new + sum(member.values.get(flag, 0.0) > 0 for member in members for flag in _FLAGS))


def _work_elsewhere(decision: Decision, view: FleetView, begun: BegunAction) -> float | None:
    """Of the jobs of before, those that run on other GPUs now; one whose name stays nowhere has gone as well."""
    left = _left(decision, view)
    if not _fresh(left, view):
        return None
    here = {member.job for member in left}
    uuids = {member.gpu.uuid for member in left}
    others = {one.job for one in view.physical.values() if one.gpu.uuid not in uuids}
    gone = {job for job in begun.work if job not in here}
    follows = _FOLLOWED if not decision.simulated else ("",)
    return float(sum(job in others or not job.startswith(follows) for job in gone))


def _known_hosts(decision: Decision, view: FleetView) -> bool:
    hosts = hosts_of(decision.subject, view)
    return bool(hosts) and not view.blind and hosts <= view.nodes.keys()


def _at_work(decision: Decision, view: FleetView, begun: BegunAction) -> float | None:
    if not _known_hosts(decision, view):
        return None
    return float(sum(not member.under_action or bool(member.job) for member in affected(decision, view)))


_OF_ONE_GPU = frozenset({ActionKind.PLACE_ELSEWHERE, ActionKind.CORDON_GPU, ActionKind.UNCORDON_GPU})


def _open_gpus(decision: Decision, view: FleetView, begun: BegunAction) -> float | None:
    """GPUs that take new work; where a single GPU is closed, its manager must show that."""
    if not _known_hosts(decision, view):
        return None
    members = affected(decision, view)
    if decision.action not in _OF_ONE_GPU:
        return float(sum(not member.under_action for member in members))
    closed = [view.nodes[member.gpu.host].closed for member in members]
    if None in closed:
        return None
    return float(sum(one.gpu.uuid not in (shut or ()) for one, shut in zip(members, closed, strict=True)))


def _pool_gpus(decision: Decision, view: FleetView, begun: BegunAction | None = None) -> float | None:
    """GPUs of the pool: as its scheduler tells, else those that report."""
    name = pool_of(decision)
    state = view.pools.get(name)
    if state is not None and state.gpus is not None:
        return state.gpus
    return float(len(view.by_pool[name])) if name in view.by_pool else None


_MEASURES: Mapping[str, Callable[[Decision, FleetView, BegunAction], float | None]] = {
    OPEN_CAUSES: _open_causes,
    NEW_ERRORS: _new_errors,
    ELSEWHERE: _work_elsewhere,
    AT_WORK: _at_work,
    OPEN_GPUS: _open_gpus,
    POOL_GPUS: _pool_gpus,
}
_SIGNS = {"celsius": (1.0, " °C"), "watts": (1.0, " W"), "ratio": (100.0, " %"), "hertz": (1e-6, " MHz")}


def repaired_by(decision: Decision, outcome: Outcome) -> tuple[str, ...]:
    """Keys of the GPUs, or the host, that `decision` has repaired and proved so: it ran, and no new error was measured
    after it. Empty for any other action, and where nothing showed it.
    """
    goal, value = decision.goal, outcome.measured
    worked = outcome.status is OutcomeStatus.SUCCEEDED and value is not None
    if goal is None or value is None or not worked or goal.measure != NEW_ERRORS or not goal.met(value):
        return ()
    if decision.action is ActionKind.REBOOT_NODE:
        host = decision.subject.host or decision.subject.name
        return (f"{SubjectKind.HOST}:{host}",)
    gpus = {rank.gpu for rank in ranks_in(decision.parameters)} or {decision.subject.name}
    return tuple(f"{SubjectKind.GPU}:{uuid}" for uuid in sorted(gpus))


def shown(value: float, unit: str) -> Phrase:
    """`value` with two digits behind the point and its unit; what is counted is whole."""
    if unit in _UNITS.values():
        # The measure of causes is called as what it counts.
        if unit == _UNITS[OPEN_CAUSES]:
            return say("{said}", said=f"{value:.0f}")
        return say_count(round(value), unit.removesuffix("s"))
    factor, sign = _SIGNS.get(unit, (1.0, f" {unit}" if unit else ""))
    return say("{said}", said=f"{value * factor:.2f}{sign}")


def in_words(goal: ActionGoal, value: float | None) -> Phrase:
    """What was measured beside what was wanted: ``gpu temperature 79.52 °C, goal at most 85.00 °C``; of errors that are
    to be none ``no new errors (goal: none)``."""
    if goal.measure == NEW_ERRORS and goal.target == 0:
        if value is None:
            return say("nothing shows whether there are new errors (goal: none)")
        few = say("no new errors (goal: none)") if value == 0 else say("{n} new error (goal: none)", n=1)
        return few if value < 2 else say("{n} new errors (goal: none)", n=f"{value:.0f}")
    name = goal.measure.removesuffix(f"_{goal.unit}").replace("_", " ")
    found = say("nothing shows it") if value is None else shown(value, goal.unit)
    at_most, at_least = "{figure} {found}, goal at most {wanted}", "{figure} {found}, goal at least {wanted}"
    template = at_most if goal.sense is GoalSense.AT_MOST else at_least
    return say(template, figure=name, found=found, wanted=shown(goal.target, goal.unit))

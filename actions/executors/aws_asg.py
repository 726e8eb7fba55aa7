"""The executor that scales EC2 Auto Scaling groups (docs/cloud.md)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tocsin.actions.cloud.auto_scaling import AutoScaling, AwsProblem, Group, Scaling, ScalingActivity
from tocsin.actions.cloud.aws_client import open_boto
from tocsin.actions.executors.base import ExecutorBase
from tocsin.actions.executors.registry import Dependencies
from tocsin.actions.model.executor import PRE_CHECK, ExecutionResult, Executor, hold, went
from tocsin.actions.model.scope import named_host, nodes_wanted, pool_of, scale_parameters
from tocsin.actions.model.view import FleetView, GpuView
from tocsin.config.cloud import AwsSettings
from tocsin.domain.clock import Clock
from tocsin.domain.decision import Decision, Ruling, ScaleInParameters, Verdict
from tocsin.domain.finding import ActionKind, SubjectKind
from tocsin.domain.phrase import say

_INSTANCE = re.compile(r"^i-[0-9a-f]{8,17}$")
_PROCESSES = "gpu_processes"


class AwsAsg(ExecutorBase):
    """Adds instances by the desired capacity, takes away single idle ones; never below or above a group's bounds."""

    name = "aws_asg"
    resumable = True

    def __init__(self, settings: AwsSettings, aws: AutoScaling, clock: Clock) -> None:
        self._settings = settings
        self._aws = aws
        self._clock = clock
        self._victims: dict[str, str] = {}
        self._accepted: set[tuple[str, str]] = set()

    def supports(self, action: ActionKind) -> bool:
        return action in (ActionKind.SCALE_OUT, ActionKind.SCALE_IN)

    def serves(self, decision: Decision) -> bool:
        return pool_of(decision) in self._settings.groups

    def check_real(self, decision: Decision, view: FleetView) -> Verdict:
        if decision.action is ActionKind.SCALE_OUT:
            return Verdict(PRE_CHECK, Ruling.ALLOW)
        named = named_host(decision)
        host = _host(decision) or _idle_host(view, pool_of(decision), named)
        if not host:
            if named:
                return hold(say("{host} is not known to be idle", host=named))
            return hold(say("no host of pool {pool} is known to be idle", pool=pool_of(decision)))
        self._victims[decision.key] = host
        return Verdict(PRE_CHECK, Ruling.ALLOW)

    def execute(self, decision: Decision) -> ExecutionResult:
        plan: list[str] | None = [] if self._settings.dry_run else None
        try:
            result = self._do(decision, self._aws if plan is None else _Planned(self._aws, plan))
        except AwsProblem as problem:
            if problem.passing and plan is None:
                return went(True, say("{problem}; tried again", problem=problem), pending=True)
            return ExecutionResult(False, str(problem), lasting=False)
        if plan is None or not result.ok:
            return result
        return went(True, say("dry run, would have asked: {plan}", plan="; ".join(plan) or "nothing"), lasting=False)

    def verify(self, decision: Decision, view: FleetView) -> bool | None:
        try:
            return self._scaling(decision, self._aws).seen(decision.id)
        except AwsProblem:
            return None

    def _do(self, decision: Decision, aws: AutoScaling) -> ExecutionResult:
        scaling, now_ms = self._scaling(decision, aws), self._clock.now_ms()
        if decision.action is ActionKind.SCALE_OUT:
            count = min(
                nodes_wanted(scale_parameters(decision), self._settings.gpus_per_node), self._settings.max_nodes
            )
            return scaling.out(decision.id, count, now_ms)
        host = _host(decision) or self._victims.get(decision.key, "")
        instance = host if not host or _INSTANCE.match(host) else aws.instance_on(host)
        return scaling.back(decision.id, instance, now_ms)

    def _scaling(self, decision: Decision, aws: AutoScaling) -> Scaling:
        return Scaling(aws, self._settings.groups.get(pool_of(decision), []), self._accepted)


class _Planned:
    """Reads, and puts what would be asked into `plan`."""

    def __init__(self, aws: AutoScaling, plan: list[str]) -> None:
        self._aws = aws
        self._plan = plan

    def groups(self, names: Sequence[str]) -> dict[str, Group]:
        return self._aws.groups(names)

    def activities(self, group: str) -> list[ScalingActivity]:
        return self._aws.activities(group)

    def instance_on(self, host: str) -> str:
        return self._aws.instance_on(host)

    def mark(self, group: str, key: str, value: str) -> None:
        self._plan.append(f"tag {group} {key} = {value}")

    def unmark(self, group: str, keys: Sequence[str]) -> None:
        self._plan.append(f"untag {group} {', '.join(keys)}")

    def set_desired(self, group: str, count: int) -> None:
        self._plan.append(f"SetDesiredCapacity {group} {count}")

    def terminate(self, instance: str) -> None:
        self._plan.append(f"TerminateInstanceInAutoScalingGroup {instance}")


def _host(decision: Decision) -> str:
    """The host, or the instance, that the decision itself names."""
    asked = decision.parameters
    named = asked.instance if isinstance(asked, ScaleInParameters) else ""
    if not named and decision.subject.kind is not SubjectKind.POOL:
        named = asked.context.host
    return named or (decision.subject.name if decision.subject.kind is SubjectKind.HOST else decision.subject.host)


def _idle_host(view: FleetView, pool: str, named: str = "") -> str:
    """A host all of whose GPUs are freshly read, of the pool, and without any process; empty where none is known.

    Only the `named` one will do where a host is named.
    """

    def idle(member: GpuView) -> bool:
        fresh = member.is_fresh(view.now_ms, view.policy.fresh_ms)
        return fresh and member.gpu.pool == pool and member.values.get(_PROCESSES) == 0.0

    hosts = sorted({member.gpu.host for member in view.by_pool.get(pool, ()) if named in ("", member.gpu.host)})
    return next((host for host in hosts if all(idle(member) for member in view.by_host[host])), "")


def build(dependencies: Dependencies) -> Executor:
    """Executor `aws_asg` by the settings; raises InputError or Unavailable where it cannot be had."""
    settings = dependencies.section(dependencies.settings.aws)
    return AwsAsg(settings, open_boto(settings), dependencies.clock)

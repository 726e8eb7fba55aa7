"""What executors share: the guard of the simulator, and the post-check of those without eyes of their own."""

from __future__ import annotations

from dataclasses import replace

from tocsin.actions.model.catalogue import ACTIONS, Scope
from tocsin.actions.model.executor import PRE_CHECK, ExecutionResult, deny
from tocsin.actions.model.recovery import inverse_of
from tocsin.actions.model.scope import affected, gpus_of
from tocsin.actions.model.view import FleetView
from tocsin.actions.planning.foresight import PLANNED
from tocsin.domain.decision import Decision, Ruling, ScaleOutParameters, ScaleParameters, ThrottleParameters, Verdict
from tocsin.domain.finding import Subject
from tocsin.domain.phrase import say

_LIMIT = "gpu_power_limit_watts"
_TOLERANCE_W = 1.0
"""Boards round limits (own choice)."""


class ExecutorBase:
    """What most executors do alike: a simulated decision never leaves the simulator, whatever is supported is served,
    and the effect is looked for in the view."""

    resumable = False

    def serves(self, decision: Decision) -> bool:
        return True

    def check(self, decision: Decision, view: FleetView) -> Verdict:
        if decision.simulated:
            return deny(say("simulated decisions never leave the simulator"))
        return self.check_real(decision, view)

    def check_real(self, decision: Decision, view: FleetView) -> Verdict:
        """The pre-check of a decision about something real."""
        return Verdict(PRE_CHECK, Ruling.ALLOW)

    def verify(self, decision: Decision, view: FleetView) -> bool | None:
        return seen_in(decision, view)

    def inverse(self, decision: Decision) -> Decision | None:
        return inverse_of(decision)


def rehearsed(result: ExecutionResult) -> ExecutionResult:
    """`result` of a dry run: it says so, and nothing in the world was changed."""
    if result.detail.startswith("dry run"):
        return replace(result, lasting=False)
    said = say("dry run: {detail}", detail=result.said or result.detail)
    return replace(result, detail=str(said), said=said, lasting=False)


def seen_in(decision: Decision, view: FleetView) -> bool | None:
    """Whether `view` shows that the decision took effect.

    A cure is seen by its cause being gone, unless that is an event, which stays on record for hours. A removal from
    service is seen by all its GPUs being out of service. What can be seen neither way gives None: the end of the cause
    proves nothing about a cordon. A power limit that a plan wants is seen in the limit itself: the plan goes on wanting
    it.
    """
    spec = ACTIONS[decision.action]
    if isinstance(decision.parameters, ScaleOutParameters) and decision.parameters.before:
        # A pool that grows before something is taken away: the cause stays until that has happened.
        return None
    root = decision.findings[0] if decision.findings else ""
    cause = view.findings.get(root)
    if decision.rule in PLANNED and isinstance(decision.parameters, ThrottleParameters):
        return _is_limited(decision.subject, decision.parameters.power_limit_watts, view)
    if isinstance(decision.parameters, ScaleParameters) and cause is not None:
        # A pool that has grown may be busy for a while yet.
        return None
    if spec.cures:
        return None if cause is not None and cause.told else cause is None
    members = affected(decision, view)
    if spec.scope is Scope.HOST and members and all(member.under_action for member in members):
        return True
    return None


def _is_limited(subject: Subject, watts: float | None, view: FleetView) -> bool | None:
    limits = [found for one in gpus_of(subject, view) if (found := one.values.get(_LIMIT)) is not None]
    return all(watts is None or limit <= watts + _TOLERANCE_W for limit in limits) if limits else None

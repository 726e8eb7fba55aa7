"""The executor whose hands are the agents: it puts up orders, which they pull, check once more and carry out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tocsin.actions.executors.base import ExecutorBase, rehearsed, seen_in
from tocsin.actions.executors.registry import Dependencies
from tocsin.actions.model.executor import PRE_CHECK, ExecutionResult, Executor, deny, hold, went
from tocsin.actions.model.ranks import job_unknown, ranks_of, unseen_hosts
from tocsin.actions.model.view import FleetView
from tocsin.actions.node.order_queue import WITHDRAWN, OrderQueue, QueuedOrder
from tocsin.actions.planning.facts import NodeState
from tocsin.domain.clock import MINUTE, Clock
from tocsin.domain.decision import (
    Decision,
    Rank,
    RestoreParameters,
    Ruling,
    ThrottleKind,
    ThrottleParameters,
    Verdict,
    ranks_in,
    undone_by,
)
from tocsin.domain.finding import ActionKind, SubjectKind
from tocsin.domain.order import (
    Order,
    OrderParameters,
    OrderState,
    ResetOrderParameters,
    RestoreOrderParameters,
    ThrottleOrderParameters,
)
from tocsin.domain.phrase import say

SUPPORTED = frozenset(
    {
        ActionKind.THROTTLE,
        ActionKind.RESTORE,
        ActionKind.RESET_GPU,
        ActionKind.CHECKPOINT,
        ActionKind.DEFRAGMENT,
    }
)
EFFECTS = ("limit_lowered_watts", "celsius_per_watt", "processes_done", "slowest_seconds")
GRACE_MS = 15 * MINUTE
"""How long an order that its agent has taken may go on beyond its expiry before it is given up (own choice)."""


class NodeAgents(ExecutorBase):
    """A decision becomes one order for each GPU that it is for, and ends when each agent has reported.

    Of a job with several GPUs all are throttled or none: the subject's GPU leads, the others follow its limit, and
    where one refuses the others are given back before the decision fails.
    """

    name = "node"
    resumable = True

    def __init__(self, queue: OrderQueue, clock: Clock, *, dry_run: bool = False) -> None:
        self._queue = queue
        self._clock = clock
        self._dry_run = dry_run
        self._drained: set[str] = set()

    def supports(self, action: ActionKind) -> bool:
        return action in SUPPORTED

    def serves(self, decision: Decision) -> bool:
        """Limits, resets and requests are about GPUs; defragmenting a pool or the fleet is somebody else's."""
        return decision.subject.kind in (SubjectKind.GPU, SubjectKind.HOST)

    def check_real(self, decision: Decision, view: FleetView) -> Verdict:
        ranks = ranks_of(decision.subject, view)
        if not ranks and not ranks_in(decision.parameters):
            return hold(say("no GPU is known by {subject}", subject=decision.subject.name))
        if decision.action is ActionKind.THROTTLE:
            return self._check_job(decision, ranks, view)
        if decision.action is ActionKind.RESET_GPU:
            if not _drained(decision, view):
                self._drained.discard(decision.key)
                return hold(say("a GPU is reset only once its whole node is out of service"))
            # Not in the decision: after a restart of the brain it has to be seen again before the order goes up.
            self._drained.add(decision.key)
        return Verdict(PRE_CHECK, Ruling.ALLOW)

    def _check_job(self, decision: Decision, ranks: Sequence[Rank], view: FleetView) -> Verdict:
        named = set(ranks_in(decision.parameters))
        single = not named and decision.parameters.throttle_kind is ThrottleKind.CAP
        if ranks and not single and (named or {ranks[0]}) != set(ranks):
            return deny(say("the job on this GPU has changed since the decision was made"), view.now_ms)
        hidden = unseen_hosts(decision.subject, view)
        if hidden:
            template = "all GPUs of a job are throttled or none, and no reading shows those that it holds on {host}"
            return hold(say(template, host=hidden[0]))
        if job_unknown(decision.subject, view):
            return hold(say("which job the pod on this GPU belongs to is not known yet"))
        unmanaged = [rank.gpu for rank in ranks if rank.gpu not in view.managed]
        if len(ranks) > 1 and unmanaged:
            template = "all GPUs of a job are throttled or none, and {n} of {total} are not managed"
            return hold(say(template, n=len(unmanaged), total=len(ranks)))
        return Verdict(PRE_CHECK, Ruling.ALLOW)

    def execute(self, decision: Decision) -> ExecutionResult:
        if decision.action is ActionKind.RESET_GPU and not self._seen_drained(decision):
            return self._not_seen(decision)
        orders = self._orders(decision)
        if decision.action is ActionKind.RESET_GPU and self._in_service_again(decision, orders):
            self._queue.close(order.key for order in orders)
            return went(
                False, say("{host} takes work again; its GPU was not reset", host=_host(decision)), lasting=False
            )
        if decision.action is ActionKind.RESTORE and not self._dry_run:
            for order in orders:
                kind = order.parameters.of if isinstance(order.parameters, RestoreOrderParameters) else None
                standing = self._queue.on_gpu(order.gpu, ActionKind.THROTTLE)
                self._queue.close(s.order.key for s in standing if kind in (None, s.order.parameters.throttle_kind))
        self._queue.post(orders)
        standing = [found for order in orders if (found := self._queue.standing(order.key)) is not None]
        now_ms = self._clock.now_ms()
        if decision.action is ActionKind.THROTTLE and len(standing) > 1 and not self._dry_run:
            fallen = [each for each in standing if each.state.ended]
            if fallen:
                return self._take_back(standing, fallen[0])
        late = [each for each in standing if _late(each, now_ms)]
        result = self._give_up(standing, late) if late else _result(decision, standing)
        return replace(rehearsed(result), certain=True) if self._dry_run else result

    def _seen_drained(self, decision: Decision) -> bool:
        """Whether this process has seen the node out of service and empty: at the pre-check, or now."""
        if decision.key not in self._drained:
            state = self._queue.nodes().get(_host(decision))
            if state is None or not _empty(state):
                return False
            self._drained.add(decision.key)
        return True

    def _in_service_again(self, decision: Decision, orders: Sequence[Order]) -> bool:
        """Whether the node was given back before its agent came to the order."""
        state = self._queue.nodes().get(_host(decision))
        standing = [self._queue.standing(order.key) for order in orders]
        return state is not None and not _empty(state) and not any(each is not None and each.taken for each in standing)

    def _not_seen(self, decision: Decision) -> ExecutionResult:
        """An earlier process has begun this reset. Its agent may have done it: what it says comes with the order."""
        host = _host(decision)
        if self._clock.now_ms() >= decision.expires_ms:
            template = (
                "{host} was not seen out of service and empty again since the brain was restarted: "
                "whether its GPU was reset is unknown"
            )
            return went(False, say(template, host=host), certain=False)
        return went(True, say("waits until {host} is seen out of service and empty again", host=host), pending=True)

    def _give_up(self, standing: Sequence[QueuedOrder], late: Sequence[QueuedOrder]) -> ExecutionResult:
        self._queue.withdraw(each.order.key for each in standing)
        hosts = ", ".join(sorted({each.order.host for each in late}))
        taken = any(each.taken for each in standing)
        late_order, no_order = (
            "the agent of {hosts} did not end the order in time: {why}",
            "the agent of {hosts} took no order in time: {why}",
        )
        said = next((each.report.detail for each in late if each.report is not None and not each.taken), "")
        why = said or "is it running, with node.allow set?"
        return went(False, say(late_order if taken else no_order, hosts=hosts, why=why), certain=not taken)

    def _take_back(self, standing: Sequence[QueuedOrder], fallen: QueuedOrder) -> ExecutionResult:
        """One GPU of a job did not take part: the others are given back, and only then has it failed."""
        self._queue.withdraw(each.order.key for each in standing)
        backs = [self._queue.standing(f"{each.order.key}{WITHDRAWN}") for each in standing]
        open_ = [each for each in backs if each is not None and not each.state.ended]
        why = "" if fallen.report is None else fallen.report.detail
        template = "all GPUs of a job or none: {gpu} on {host} did not take part ({why})"
        detail = say(template, gpu=fallen.order.gpu, host=fallen.order.host, why=why)
        if open_:
            return went(
                True, say("{detail}; {n} others are being given back", detail=detail, n=len(open_)), pending=True
            )
        return went(False, say("{detail}; the others are as they were", detail=detail))

    def _orders(self, decision: Decision) -> list[Order]:
        ranks = ranks_in(decision.parameters) or (Rank(_host(decision), decision.subject.name),)
        lead = _key(decision, ranks[0])
        return [
            Order(
                key=_key(decision, rank),
                decision=decision.id,
                host=rank.host,
                gpu=rank.gpu,
                action=decision.action,
                issued_ms=decision.at_ms,
                expires_ms=decision.expires_ms,
                simulated=decision.simulated,
                parameters=self._passed(decision, lead if place else ""),
            )
            for place, rank in enumerate(ranks)
        ]

    def _passed(self, decision: Decision, lead: str) -> OrderParameters:
        """What one order is told; a throttle for heat follows the order `lead` where that is not empty."""
        asked, dry = decision.parameters, self._dry_run
        if isinstance(asked, ThrottleParameters):
            heat = asked.throttle_kind is ThrottleKind.HEAT
            return ThrottleOrderParameters(
                dry_run=dry,
                power_limit_watts=asked.power_limit_watts,
                sm_clock_max_mhz=asked.sm_clock_max_mhz,
                lead=lead if heat else "",
            )
        if isinstance(asked, RestoreParameters):
            return RestoreOrderParameters(dry_run=dry, of=asked.throttle_kind if undone_by(asked) else None)
        if decision.action is ActionKind.RESET_GPU:
            return ResetOrderParameters(dry_run=dry, drained=decision.key in self._drained)
        return OrderParameters(dry_run=dry)

    def verify(self, decision: Decision, view: FleetView) -> bool | None:
        if self._dry_run:
            return None
        states = [found.state for order in self._orders(decision) if (found := self._queue.standing(order.key))]
        if decision.action in (ActionKind.RESTORE, ActionKind.CHECKPOINT):
            wanted = OrderState.RESTORED if decision.action is ActionKind.RESTORE else OrderState.APPLIED
            return all(state is wanted for state in states) if states else None
        return seen_in(decision, view)


def _late(standing: QueuedOrder, now_ms: int) -> bool:
    expires_ms = standing.order.expires_ms
    if not standing.taken:
        return now_ms >= expires_ms
    return standing.state is OrderState.PENDING and now_ms >= expires_ms + GRACE_MS


def _key(decision: Decision, rank: Rank) -> str:
    return f"{decision.key}@{rank.gpu}"


def _host(decision: Decision) -> str:
    return decision.subject.host or decision.parameters.context.host


def _empty(state: NodeState) -> bool:
    return not state.schedulable and not state.work


def _drained(decision: Decision, view: FleetView) -> bool:
    state = view.nodes.get(_host(decision))
    if state is not None:
        return _empty(state)
    members = view.by_host.get(_host(decision), ())
    return bool(members) and all(member.under_action for member in members)


def _result(decision: Decision, standing: Sequence[QueuedOrder]) -> ExecutionResult:
    reports = [each.report for each in standing if each.report is not None]
    waiting = len(standing) - len(reports)
    if waiting:
        return went(
            True, say("{waiting} of {n} agents have not reported yet", waiting=waiting, n=len(standing)), pending=True
        )
    effect = {name: sum(r.figures[name] for r in reports if name in r.figures) for name in EFFECTS}
    effect = {name: value for name, value in effect.items() if any(name in r.figures for r in reports)}
    said = "; ".join(dict.fromkeys(report.detail for report in reports))
    bad = [each for each in standing if each.state in (OrderState.REFUSED, OrderState.FAILED)]
    if bad:
        return ExecutionResult(False, said, certain=all(each.state is OrderState.REFUSED for each in bad))
    if any(each.state in (OrderState.PENDING, OrderState.OUTRANKED) for each in standing):
        return ExecutionResult(True, said, pending=True)
    unused = all(each.state is OrderState.EXPIRED for each in standing)
    lasting = decision.action is ActionKind.THROTTLE and not unused
    return ExecutionResult(True, said, lasting=lasting, effect=effect)


def build(dependencies: Dependencies) -> Executor:
    """Executor `node` by the settings; raises InputError or Unavailable where it cannot be had."""
    queue = dependencies.orders or OrderQueue(dependencies.clock)
    return NodeAgents(queue, dependencies.clock, dry_run=dependencies.settings.actions.dry_run)

"""The node's side of orders: takes them, looks at the GPU once more, carries them out, and gives everything back.

Pure but for its ports: whoever runs it calls `receive` with what the brain lists, `tick` about once a second, and
`close` at the end. All of it in one thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from tocsin.actions.node.limit_writer import LimitWriter
from tocsin.actions.node.markers import MarkerFolder
from tocsin.actions.node.ports import Asked, HookPort, PowerPort, ResetPort
from tocsin.actions.node.reset import ResetResult, run_reset
from tocsin.actions.node.thermal import ThermalSettings
from tocsin.actions.node.throttle import ActiveThrottle
from tocsin.domain.clock import Clock
from tocsin.domain.decision import ThrottleKind
from tocsin.domain.errors import InputError, TocsinError
from tocsin.domain.finding import ActionKind
from tocsin.domain.order import (
    Order,
    OrderReport,
    OrderState,
    ResetOrderParameters,
    RestoreOrderParameters,
    ThrottleOrderParameters,
)
from tocsin.domain.power import LimitFailure, PowerLimits
from tocsin.hook.wire import CHECKPOINT, DONE, EMPTY_CACHE
from tocsin.telemetry.log import logger

KINDS = {ActionKind.CHECKPOINT: CHECKPOINT, ActionKind.DEFRAGMENT: EMPTY_CACHE}
"""What a process is asked for, by action."""
GRACE_SECONDS = 30.0
"""How long an answer may take beyond the request's own time: a checkpoint that was begun in time is written out."""


@dataclass
class HookRequest:
    """One such order at its node; begun at `begun_s` seconds on the agent's monotonic scale."""

    order: Order
    begun_s: float
    name: str = ""
    asked: int = 0
    seconds: float = 0.0
    detail: str = ""
    figures: dict[str, float] = field(default_factory=dict)

    def begin(self, hooks: HookPort, seconds: float) -> str:
        """Ask; why nobody could be asked, empty where somebody was."""
        self.seconds = seconds
        kind = KINDS[self.order.action]
        try:
            self.name, self.asked = hooks.request(self.order.gpu, kind, seconds)
        except TocsinError as error:
            return str(error)
        self.detail = f"asked {self.asked} process{'es' if self.asked != 1 else ''} for {kind}"
        return ""

    def rehearse(self, hooks: HookPort) -> tuple[OrderState, str]:
        """What `begin` would do, and how that would stand."""
        kind = KINDS[self.order.action]
        try:
            count = hooks.processes(self.order.gpu)
        except TocsinError as error:
            return OrderState.REFUSED, str(error)
        return OrderState.APPLIED, f"dry run: would ask {count} process{'es' if count != 1 else ''} for {kind}"

    def look(self, hooks: HookPort, now_s: float) -> tuple[OrderState, str] | None:
        """How it ended; None while answers are out."""
        answers = hooks.answers(self.name)
        over = now_s - self.begun_s >= self.seconds + GRACE_SECONDS
        if len(answers) < self.asked and not over:
            return None
        done = [answer for answer in answers if answer.outcome == DONE]
        self.figures = {"processes_asked": float(self.asked), "processes_done": float(len(done))}
        if done:
            self.figures["slowest_seconds"] = max(answer.seconds for answer in done)
        state = OrderState.APPLIED if len(done) == self.asked else OrderState.FAILED
        return state, _answered(self.asked, answers)


def _answered(asked: int, answers: Sequence[Asked]) -> str:
    counts = Counter(answer.outcome for answer in answers)
    counts["without an answer"] = asked - len(answers)
    text = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()) if count)
    said = next((answer.detail for answer in answers if answer.outcome != DONE and answer.detail), "")
    return f"{asked} asked: {text}" + (f" ({said})" if said else "")


_log = logger("orders")

REMEMBERED = 1000
"""Ended orders whose outcome is kept, so that one that comes again is answered and not done again."""
RETRY_SECONDS = 5.0
MAX_RETRY_SECONDS = 300.0
"""First and longest pause between two attempts to give back what could not be given back; it doubles."""
REPORT_SECONDS = 60.0
"""Time between two reports of an order that stands as it did: a brain that was restarted learns of it so."""

Submit = Callable[[Callable[[], ResetResult]], "Future[ResetResult]"]


@dataclass(frozen=True, slots=True)
class NodeRules:
    """What this node allows: `allow` has ``throttle``, ``clocks``, ``reset``, ``checkpoint`` and ``defragment``.

    With `dry_run` orders are looked at and nothing is done; so is a single order that asks for that.
    """

    host: str
    allow: Collection[str] = frozenset()
    thermal: ThermalSettings = field(default_factory=ThermalSettings)
    arm_seconds: float = 600.0
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Ports:
    """What the worker acts through; `submit` runs a reset beside it."""

    power: PowerPort
    hooks: HookPort
    reset: ResetPort
    submit: Submit


class NodeWorker:
    """Carries out the orders of one node.

    Everything that an earlier process left behind is given back before anything else: its leases and controllers are
    gone with it, so that nobody would end those limits. An order that the node does not allow, that came too late, that
    is for another host or from an older brain is refused, and says why.

    - The epoch only rises, and is kept on disk: two brains that both take themselves for
      the acting one cannot both throttle. A restore is followed whichever brain it is from, because it only gives back.
    - An order ends once. Its report is remembered, so that the same order, listed again by a brain that missed the
      report, is answered and not carried out again.
    - A limit stands only as long as an order in `_throttles` holds it and its lease runs: whatever else goes wrong, the
      silence of the brain gives the GPU back.
    - A GPU in `_left` has a limit that could not be given back. It takes no new order until that is done.
    """

    def __init__(self, rules: NodeRules, ports: Ports, writer: LimitWriter, folder: MarkerFolder, clock: Clock) -> None:
        self._rules = rules
        self._ports = ports
        self._writer = writer
        self._folder = folder
        self._clock = clock
        self._epoch = folder.highest_epoch()
        self._throttles: dict[str, ActiveThrottle] = {}
        self._requests: dict[str, HookRequest] = {}
        self._resets: dict[str, tuple[Order, Future[ResetResult]]] = {}
        self._ended: dict[str, OrderReport] = {}
        self._reports: dict[str, OrderReport] = {}
        self._reported_s: dict[str, float] = {}
        self._retry_s = 0.0
        self._pause_s = RETRY_SECONDS
        self._left = writer.restore_all()

    @property
    def busy(self) -> bool:
        """Whether anything is in hand that needs a look every second."""
        return bool(self._throttles or self._requests or self._resets or self._left)

    @property
    def engaged(self) -> int:
        """GPUs whose limits are changed now."""
        return len(self._writer.held)

    def reports(self) -> tuple[OrderReport, ...]:
        """What the brain has not been told yet, one for each order, the newest."""
        return tuple(self._reports.values())

    def acknowledge(self, report: OrderReport) -> None:
        """The brain has `report`."""
        if self._reports.get(report.order.key) == report:
            del self._reports[report.order.key]

    def receive(self, orders: Sequence[Order]) -> None:
        for order in orders:
            if order.epoch > self._epoch:
                self._follow(order.epoch)
            known = self._throttles.get(order.key)
            if known is not None and order.action is ActionKind.THROTTLE and order.epoch >= self._epoch:
                known.renew(order, self._clock.monotonic())
            elif order.key in self._ended:
                self._reports.setdefault(order.key, self._ended[order.key])
            elif not (order.key in self._throttles or order.key in self._requests or order.key in self._resets):
                self._take(order)

    def tick(self) -> None:
        now_s = self._clock.monotonic()
        for throttle in list(self._throttles.values()):
            # The end of one order may have ended another of the same GPU.
            if throttle.order.key in self._throttles:
                self._sample(throttle, now_s)
        for request in list(self._requests.values()):
            self._look_at(request)
        for order, future in list(self._resets.values()):
            if future.done():
                result = future.result()
                del self._resets[order.key]
                failed = OrderState.FAILED if result.done else OrderState.REFUSED
                self._end(order, OrderState.APPLIED if result.ok else failed, result.detail)
        self._retry(now_s)

    def close(self) -> None:
        """Give everything back; what cannot be given back now is left to the next process. Safe to repeat."""
        while self._throttles:
            self._release(next(iter(self._throttles.values())), OrderState.RESTORED, "the agent ends")
        self._left = self._writer.restore_all()
        self._ports.power.release()

    # ------------------------------------------------------------------ taking

    def _follow(self, epoch: int) -> None:
        """Follow no brain older than `epoch`. Where that cannot be written down it holds until the agent ends."""
        self._epoch = epoch
        try:
            self._folder.remember_epoch(epoch)
        except InputError as error:
            _log.error("the epoch of the brain could not be written", epoch=epoch, problem=str(error))

    def _take(self, order: Order) -> None:
        if order.epoch < self._epoch and order.action is not ActionKind.RESTORE:
            # Not remembered as ended: the brain may come to act again, and asks for the same under the same key.
            self._report(OrderReport(order, OrderState.OUTRANKED, self._outranked(order), self._clock.now_ms()))
            return
        problem = self._objection(order)
        if problem:
            self._end(order, OrderState.REFUSED, problem)
        elif self._dry(order) and order.action is not ActionKind.RESET_GPU:
            state, said = self._rehearse(order)
            self._end(order, state, said)
        elif order.action is ActionKind.RESTORE:
            self._restore(order)
        elif order.action is ActionKind.THROTTLE:
            self._throttle(order)
        elif order.action is ActionKind.RESET_GPU:
            allowed = "reset" in self._rules.allow and not self._dry(order)
            drained = isinstance(order.parameters, ResetOrderParameters) and order.parameters.drained
            port = self._ports.reset
            # The worker is itself a client that has the driver open; a reset waits for all of them to let go.
            self._ports.power.release()
            future = self._ports.submit(lambda: run_reset(port, order.gpu, drained=drained, allowed=allowed))
            self._resets[order.key] = (order, future)
        else:
            self._ask(order)

    def _objection(self, order: Order) -> str:
        """Why an order is not followed at all; empty where it may be."""
        if order.simulated:
            return "a simulated order never reaches a real GPU"
        if order.host != self._rules.host:
            return f"the order is for {order.host}, this is {self._rules.host}"
        needed = _needed(order)
        if needed is None:
            return f"a node does not carry out {order.action}"
        if needed and needed not in self._rules.allow:
            return f'not allowed on this node: add "{needed}" to node.allow'
        if order.action is not ActionKind.RESTORE and order.issued_ms >= order.expires_ms:
            return "the order has expired"
        return order.parameters.problem

    def _dry(self, order: Order) -> bool:
        return self._rules.dry_run or order.parameters.dry_run

    def _rehearse(self, order: Order) -> tuple[OrderState, str]:
        """All but the last call of an order, and what that would have been."""
        if order.action is ActionKind.RESTORE:
            held = order.gpu in self._writer.held
            return OrderState.RESTORED, f"dry run: would restore {'what is held' if held else 'nothing'}"
        if order.action is not ActionKind.THROTTLE:
            return HookRequest(order, self._clock.monotonic()).rehearse(self._ports.hooks)
        problem = self._taken_already(order)
        if problem:
            return OrderState.REFUSED, problem
        now_s = self._clock.monotonic()
        throttle = ActiveThrottle(
            order, now_s, now_s + order.lease_seconds, self._rules.thermal, self._rules.arm_seconds
        )
        try:
            return OrderState.RESTORED, throttle.rehearse(self._ports.power, self._writer)
        except LimitFailure as failure:
            return OrderState.REFUSED, str(failure)

    def _taken_already(self, order: Order) -> str:
        """Why the GPU cannot be under `order` as well; empty where it can. Heat and a fixed cap go together."""
        other = next(iter(self._on(order.gpu, order.parameters.throttle_kind)), None)
        if other is not None:
            return f"the GPU is under another order already ({other.order.key})"
        return "an earlier limit of this GPU is not restored yet" if order.gpu in self._left else ""

    def _on(self, gpu: str, kind: ThrottleKind | None = None) -> list[ActiveThrottle]:
        """The throttles of a GPU, those of one kind where it is named."""
        return [each for each in self._throttles.values() if each.order.gpu == gpu and kind in (None, each.kind)]

    def _outranked(self, order: Order) -> str:
        heard = f"epoch {order.epoch}, this node has heard of {self._epoch}"
        remedy = f"where no newer one acts, remove {self._folder.epoch_file} while the agent is stopped"
        return f"the order is from an older brain ({heard}): {remedy}"

    def _throttle(self, order: Order) -> None:
        problem = self._taken_already(order)
        if problem:
            self._end(order, OrderState.REFUSED, problem)
            return
        now_s = self._clock.monotonic()
        throttle = ActiveThrottle(
            order, now_s, now_s + order.lease_seconds, self._rules.thermal, self._rules.arm_seconds
        )
        try:
            throttle.begin(self._ports.power, self._writer)
        except LimitFailure as failure:
            self._end(order, OrderState.REFUSED, str(failure), throttle)
            return
        self._throttles[order.key] = throttle
        self._report_throttle(throttle)

    def _restore(self, order: Order) -> None:
        """Give back what orders of the named kind hold on this GPU, or any; a restore of nothing is done at once."""
        kind = order.parameters.of if isinstance(order.parameters, RestoreOrderParameters) else None
        ended = self._on(order.gpu, kind)
        figures: dict[str, float] = {}
        for throttle in ended:
            if throttle.order.key not in self._throttles:
                continue
            figures |= throttle.report(OrderState.RESTORED, "", 0, None).figures
            self._release(throttle, OrderState.RESTORED, "withdrawn by the brain")
        if not ended:
            self._give_back(order.gpu)
        others = self._on(order.gpu)
        said = "the limit is as it was" if ended else "nothing was changed any more"
        if others:
            said = f"it holds nothing any more; the GPU stays under another order ({others[0].order.key})"
        if order.gpu in self._left:
            again = "; it is tried again" if ended else ""
            self._end(order, OrderState.FAILED, f"the limit is not restored yet{again}")
        else:
            self._end(order, OrderState.RESTORED, said, figures=figures)

    def _ask(self, order: Order) -> None:
        request = HookRequest(order, self._clock.monotonic())
        problem = request.begin(self._ports.hooks, (order.expires_ms - order.issued_ms) / 1000.0)
        if problem:
            self._end(order, OrderState.REFUSED, problem)
        else:
            self._requests[order.key] = request
            self._report(OrderReport(order, OrderState.PENDING, request.detail, self._clock.now_ms()))

    # ------------------------------------------------------------------ going on

    def _sample(self, throttle: ActiveThrottle, now_s: float) -> None:
        lapsed = throttle.lapsed(now_s)
        if lapsed:
            self._release(throttle, OrderState.EXPIRED, lapsed)
            return
        before = throttle.state, throttle.detail
        try:
            write = throttle.sample(now_s, self._ports.power, self._writer)
        except LimitFailure as failure:
            # What passes is waited out while a limit stands, but never beyond the lease.
            stands = throttle.state is OrderState.APPLIED and not throttle.lapsed(self._clock.monotonic())
            if failure.obstacle.passes and stands:
                return
            self._release(throttle, OrderState.FAILED, str(failure))
            return
        if write is not None and write.after is not None:
            self._see(throttle.order.gpu, write.after)
        again = now_s - self._reported_s.get(throttle.order.key, -1e18) >= REPORT_SECONDS
        if again or before != (throttle.state, throttle.detail):
            self._report_throttle(throttle)

    def _see(self, gpu: str, now: PowerLimits) -> None:
        """Every order of a GPU reports the limit that is set, whichever has set it."""
        for each in self._on(gpu):
            if each.now != now and each.state is OrderState.APPLIED:
                each.see(now)
                self._report_throttle(each)

    def _look_at(self, request: HookRequest) -> None:
        outcome = request.look(self._ports.hooks, self._clock.monotonic())
        if outcome is not None:
            del self._requests[request.order.key]
            state, detail = outcome
            self._end(request.order, state, detail, figures=request.figures)

    def _retry(self, now_s: float) -> None:
        if not self._left:
            self._pause_s = RETRY_SECONDS
        elif now_s >= self._retry_s and not self._resets:
            self._retry_s = now_s + self._pause_s
            self._pause_s = min(2.0 * self._pause_s, MAX_RETRY_SECONDS)
            for gpu in self._left:
                self._give_back(gpu)
            if not self._throttles:
                self._ports.power.release()

    # ------------------------------------------------------------------ ending

    def _release(self, throttle: ActiveThrottle, state: OrderState, detail: str) -> None:
        order = throttle.order
        self._throttles.pop(order.key, None)
        self._writer.release(order)
        problem = self._give_back(order.gpu)
        if problem:
            detail += f"; its limit is not restored yet ({problem}), it is tried again"
        self._end(order, state, detail, throttle)
        # Where giving back found the limit to be somebody else's, what the others held is gone with it.
        for other in self._on(order.gpu):
            if other.limits and not self._writer.holds(other.order):
                self._release(other, OrderState.FAILED, f"its limit does not hold any more ({detail})")
        if not self._throttles and not self._left:
            self._ports.power.release()

    def _give_back(self, gpu: str) -> str:
        """Why it is to be tried again; empty where it is done."""
        try:
            write = self._writer.settle(gpu)
        except LimitFailure as failure:
            if gpu not in self._left:
                self._left = (*self._left, gpu)
            return str(failure)
        self._left = tuple(other for other in self._left if other != gpu)
        if write is not None and write.after is not None:
            self._see(gpu, write.after)
        return ""

    def _end(
        self,
        order: Order,
        state: OrderState,
        detail: str,
        throttle: ActiveThrottle | None = None,
        figures: Mapping[str, float] | None = None,
    ) -> None:
        now_ms = self._clock.now_ms()
        if throttle is None:
            report = OrderReport(order, state, detail, now_ms, figures=figures or {})
        else:
            report = throttle.report(state, detail, now_ms, self._limits(order.gpu))
        _log.info("order ended", order=order.key, gpu=order.gpu, state=state.value, detail=detail)
        self._reported_s.pop(order.key, None)
        self._ended[order.key] = report
        while len(self._ended) > REMEMBERED:
            self._ended.pop(next(iter(self._ended)))
        self._report(report)

    def _report_throttle(self, throttle: ActiveThrottle) -> None:
        self._reported_s[throttle.order.key] = self._clock.monotonic()
        self._report(throttle.report(throttle.state, throttle.detail, self._clock.now_ms(), throttle.now))

    def _report(self, report: OrderReport) -> None:
        self._reports[report.order.key] = report

    def _limits(self, gpu: str) -> PowerLimits | None:
        try:
            return self._ports.power.limits(gpu)
        except LimitFailure:
            return None


def _needed(order: Order) -> str | None:
    """What ``node.allow`` must have for `order`: empty for what needs none, None for what no node does."""
    if order.action is ActionKind.THROTTLE:
        parameters = order.parameters
        clocks = isinstance(parameters, ThrottleOrderParameters) and parameters.sm_clock_max_mhz is not None
        return "clocks" if clocks else "throttle"
    return {
        ActionKind.RESTORE: "",
        ActionKind.RESET_GPU: "",
        ActionKind.CHECKPOINT: "checkpoint",
        ActionKind.DEFRAGMENT: "defragment",
    }.get(order.action)

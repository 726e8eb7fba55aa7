"""The brain's queue of orders: what each node is asked for, and how it stands there.

In memory: after a restart of the brain pending decisions put their orders up again under the same keys, and what stands
at a node comes back with its next report.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tocsin.actions.planning.facts import NodeState
from tocsin.domain.clock import SECOND, Clock
from tocsin.domain.finding import ActionKind
from tocsin.domain.order import Order, OrderReport, OrderState, RestoreOrderParameters, ThrottleOrderParameters

KEPT = 10_000
"""Ended orders that are remembered, so that one is not put up again (own choice)."""
WITHDRAWN = "|withdrawn"
"""What follows the key of an order in the key of the restore that takes it back."""


@dataclass(frozen=True, slots=True)
class QueuedOrder:
    """An order and the newest report of it, None where no agent spoke of it yet. A closed one is handed out no more."""

    order: Order
    report: OrderReport | None = None
    closed: bool = False

    @property
    def state(self) -> OrderState:
        """As reported; pending before that."""
        return OrderState.PENDING if self.report is None else self.report.state

    @property
    def taken(self) -> bool:
        """Whether its agent has taken it, or ended it."""
        return self.report is not None and self.report.state is not OrderState.OUTRANKED


class OrderQueue:
    """Safe to use from several threads.

    An order to throttle stands until it is withdrawn, until its node ends it, or for `hold_seconds` at most: each time
    its node asks, its lease begins anew. Every other order ends with its report, or at its expiry where no agent took
    it. `epoch` is the brain's and goes with every order of a brain that acts. `nodes` says how the fleet's managers see
    its nodes; whoever runs the queue sets it.
    """

    def __init__(self, clock: Clock, lease_seconds: float = 900.0, hold_seconds: float = 14_400.0) -> None:
        self._clock = clock
        self._lease = lease_seconds
        self._hold_ms = int(hold_seconds * SECOND)
        self._lock = threading.Lock()
        self._standing: dict[str, QueuedOrder] = {}
        self._halted = False
        self.epoch = 0
        self.nodes: Callable[[], Mapping[str, NodeState]] = dict

    def halt(self, halted: bool) -> None:
        """While halted nothing new is handed out: only what gives back, and what keeps limits that are in force.

        A halted queue speaks for no brain, so that one that waits fences off none that acts: orders go out under the
        epoch that their node reported, 0 before that.
        """
        with self._lock:
            self._halted = halted

    def renew_epoch(self) -> None:
        """The brain acts from now on: nodes follow it, and those that acted before it no more."""
        with self._lock:
            self.epoch = max(self.epoch + 1, self._clock.now_ms())

    def post(self, orders: Iterable[Order]) -> None:
        """Put orders up; one whose key is known is left as it stands."""
        with self._lock:
            for order in orders:
                self._standing.setdefault(order.key, QueuedOrder(order))
            self._trim()

    def withdraw(self, keys: Iterable[str]) -> None:
        """Take orders back: a node that has taken one, or may have, is told to restore its GPU."""
        with self._lock:
            now_ms = self._clock.now_ms()
            for key in keys:
                standing = self._standing.get(key)
                if standing is None or standing.state.ended or standing.closed:
                    continue
                self._standing[key] = replace(standing, closed=True)
                given = standing.order.parameters
                back = replace(
                    standing.order,
                    key=f"{key}{WITHDRAWN}",
                    action=ActionKind.RESTORE,
                    issued_ms=now_ms,
                    expires_ms=now_ms + self._hold_ms,
                    lease_seconds=0.0,
                    parameters=RestoreOrderParameters(of=given.throttle_kind, dry_run=given.dry_run),
                )
                self._standing[back.key] = QueuedOrder(back)

    def close(self, keys: Iterable[str]) -> None:
        """Hand orders out no more: their leases run out where nothing restores them before."""
        with self._lock:
            for key in keys:
                # One that has ended may have been forgotten since the caller saw it.
                if key in self._standing:
                    self._standing[key] = replace(self._standing[key], closed=True)

    def standing(self, key: str) -> QueuedOrder | None:
        """How an order stands; None where it is unknown."""
        with self._lock:
            return self._standing.get(key)

    def on_gpu(self, gpu: str, action: ActionKind) -> list[QueuedOrder]:
        """Orders of one action on one GPU that have not ended."""
        with self._lock:
            return [
                each
                for each in self._standing.values()
                if each.order.gpu == gpu and each.order.action is action and not each.state.ended
            ]

    def for_host(self, host: str) -> list[Order]:
        """What the agent of `host` is asked for now, what gives back first."""
        with self._lock:
            now_ms = self._clock.now_ms()
            found = [self._handed_out(each) for each in self._standing.values() if self._open(each, host, now_ms)]
        return sorted(found, key=lambda order: (order.action is not ActionKind.RESTORE, order.issued_ms, order.key))

    def _open(self, standing: QueuedOrder, host: str, now_ms: int) -> bool:
        order = standing.order
        if order.host != host or standing.state.ended or standing.closed:
            return False
        if self._halted and not _keeps(standing):
            return False
        if order.action is ActionKind.THROTTLE:
            limit = order.issued_ms + self._hold_ms
            return now_ms < (limit if standing.taken else order.expires_ms)
        return standing.state is not OrderState.APPLIED and now_ms < order.expires_ms

    def _handed_out(self, standing: QueuedOrder) -> Order:
        order = standing.order
        parameters = order.parameters
        if isinstance(parameters, ThrottleOrderParameters):
            lead = self._standing.get(parameters.lead)
            share = None if lead is None else _share(lead.report)
            if share is not None:
                parameters = replace(parameters, limit_share=share)
        lease = self._lease if order.action is ActionKind.THROTTLE else 0.0
        return replace(order, parameters=parameters, lease_seconds=lease, epoch=self._epoch_of(standing))

    def _epoch_of(self, standing: QueuedOrder) -> int:
        if not self._halted:
            return self.epoch
        return 0 if standing.report is None else standing.report.order.epoch

    def report(self, report: OrderReport) -> bool:
        """Take in what an agent says; False where it is about an order that is not known and that nothing is to be
        learned of."""
        with self._lock:
            key = report.order.key
            known = self._standing.get(key)
            if known is not None:
                if known.report is None or known.report.at_ms <= report.at_ms:
                    self._standing[key] = replace(known, report=report)
                return True
            over = report.state.ended or report.state is OrderState.OUTRANKED
            if report.order.action is not ActionKind.THROTTLE or over:
                return False
            # A brain that was restarted learns what stands at a node, so that its lease goes on.
            self._standing[key] = QueuedOrder(report.order, report)
            return True

    def all(self) -> Sequence[QueuedOrder]:
        """Every order that is remembered, oldest first."""
        with self._lock:
            return list(self._standing.values())

    def _trim(self) -> None:
        surplus = len(self._standing) - KEPT
        if surplus > 0:
            ended = [key for key, each in self._standing.items() if each.state.ended][:surplus]
            for key in ended:
                del self._standing[key]


def _keeps(standing: QueuedOrder) -> bool:
    """Whether an order gives back, or keeps a limit as it is."""
    if standing.order.action is ActionKind.RESTORE:
        return True
    return standing.order.action is ActionKind.THROTTLE and standing.state is OrderState.APPLIED


def _share(report: OrderReport | None) -> float | None:
    """Share of its default limit that a lead is at; None where it has not lowered it."""
    if report is None or report.state is not OrderState.APPLIED or report.requested_after_mw is None:
        return None
    default = report.figures.get("default_limit_watts", 0.0)
    return report.requested_after_mw / 1000.0 / default if default > 0 else None

"""The brain's end of orders: the queue that the executor fills, as the API serves it."""

from __future__ import annotations

from tocsin.actions.node.order_queue import OrderQueue
from tocsin.client.control import OrderTaken
from tocsin.config.node import NodeSettings
from tocsin.domain.clock import Clock
from tocsin.domain.errors import Conflict, InputError
from tocsin.domain.order import Order, OrderReport
from tocsin.telemetry.log import logger
from tocsin.telemetry.metrics import OwnMetrics

_log = logger("orders")


def open_queue(settings: NodeSettings, clock: Clock) -> OrderQueue:
    """The queue of a brain that begins now: its epoch is this instant in milliseconds."""
    queue = OrderQueue(clock, settings.lease_seconds, settings.hold_seconds)
    queue.renew_epoch()
    return queue


class OrderService:
    """Serves agents from a queue; counts and logs what they report."""

    def __init__(self, queue: OrderQueue, own: OwnMetrics) -> None:
        self.queue = queue
        self._own = own

    def halt(self, halted: bool) -> None:
        """While `halted`, by a pause or without the lease, agents are asked for nothing new."""
        self.queue.halt(halted)

    def renew_epoch(self) -> None:
        """This brain has become the acting one: nodes follow none that acted before it any more."""
        self.queue.renew_epoch()

    def orders(self, host: str) -> list[Order]:
        return list(self.queue.for_host(host))

    def report(self, order_id: str, report: OrderReport) -> OrderTaken:
        """Take in a report. Raises InputError where path and body name different orders or it cannot be read, Conflict
        where the order is another host's."""
        if report.order.id != order_id:
            raise InputError("order.id", report.order.id, f"is not the order of the path, {order_id}", "send it there")
        known = self.queue.standing(report.order.key)
        if known is not None and (known.order.host, known.order.gpu) != (report.order.host, report.order.gpu):
            raise Conflict(f"order {order_id} is for {known.order.gpu} on {known.order.host}")
        taken = self.queue.report(report)
        self._own.count("tocsin_order_reports_total", state=report.state.value)
        _log.info(
            "order report",
            order=report.order.key,
            host=report.order.host,
            gpu=report.order.gpu,
            state=report.state.value,
            detail=report.detail,
            requested_before_mw=report.requested_before_mw,
            enforced_before_mw=report.enforced_before_mw,
            requested_after_mw=report.requested_after_mw,
            enforced_after_mw=report.enforced_after_mw,
        )
        return OrderTaken(known=taken)

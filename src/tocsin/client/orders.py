"""Orders on the wire, between the brain and the agents of nodes."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from tocsin.client.wire import Instant, Wire
from tocsin.domain.clock import from_iso, to_iso
from tocsin.domain.finding import ActionKind
from tocsin.domain.order import Order, OrderReport, OrderState, order_parameters_of
from tocsin.domain.parameters import encode

Text = Annotated[str, Field(max_length=1000)]
Name = Annotated[str, Field(min_length=1, max_length=1000)]
Milliwatts = Annotated[int, Field(ge=0, le=10_000_000)]
MOST_ENTRIES = 64


def _real(text: str) -> str:
    """The pattern alone lets the 31st of February through."""
    from_iso(text)
    return text


RealInstant = Annotated[Instant, AfterValidator(_real)]


class OrderOut(Wire):
    """One order for one GPU; see `tocsin.domain.order.Order`."""

    id: str
    key: Name
    decision: Text
    host: Name
    gpu: Name
    action: ActionKind
    issued: RealInstant
    expires: RealInstant
    lease_s: Annotated[float, Field(ge=0)] = 0.0
    """How long the node keeps its effect without hearing of it again; 0 for what leaves none."""
    epoch: Annotated[int, Field(ge=0)] = 0
    """When its brain began to act, in milliseconds; from one older than it has heard of a node takes only a restore."""
    simulated: bool = False
    parameters: dict[str, Text] = Field(default_factory=dict, max_length=MOST_ENTRIES)


class OrderReportIn(Wire):
    """How an order stands at its node; see `tocsin.domain.order.OrderReport`. Limits are milliwatts."""

    order: OrderOut
    state: OrderState
    detail: Text
    at: RealInstant
    requested_before_mw: Milliwatts | None = None
    enforced_before_mw: Milliwatts | None = None
    requested_after_mw: Milliwatts | None = None
    enforced_after_mw: Milliwatts | None = None
    figures: dict[str, float] = Field(default_factory=dict, max_length=MOST_ENTRIES)


class OrderTaken(Wire):
    """Whether the brain knows the order of a report."""

    known: bool


def order_out(order: Order) -> OrderOut:
    """An order as it goes out."""
    return OrderOut(
        id=order.id,
        key=order.key,
        decision=order.decision,
        host=order.host,
        gpu=order.gpu,
        action=order.action,
        issued=to_iso(order.issued_ms),
        expires=to_iso(order.expires_ms),
        lease_s=order.lease_seconds,
        epoch=order.epoch,
        simulated=order.simulated,
        parameters=encode(order.parameters),
    )


def order_in(wire: OrderOut) -> Order:
    """Inverse of `order_out`."""
    return Order(
        key=wire.key,
        decision=wire.decision,
        host=wire.host,
        gpu=wire.gpu,
        action=wire.action,
        issued_ms=from_iso(wire.issued),
        expires_ms=from_iso(wire.expires),
        lease_seconds=wire.lease_s,
        epoch=wire.epoch,
        simulated=wire.simulated,
        parameters=order_parameters_of(wire.action, wire.parameters),
    )


def report_out(report: OrderReport) -> OrderReportIn:
    """A report as it goes out."""
    return OrderReportIn(
        order=order_out(report.order),
        state=report.state,
        detail=report.detail[:1000],
        at=to_iso(report.at_ms),
        requested_before_mw=report.requested_before_mw,
        enforced_before_mw=report.enforced_before_mw,
        requested_after_mw=report.requested_after_mw,
        enforced_after_mw=report.enforced_after_mw,
        figures=dict(report.figures),
    )


def report_in(wire: OrderReportIn) -> OrderReport:
    """Inverse of `report_out`."""
    return OrderReport(
        order=order_in(wire.order),
        state=wire.state,
        detail=wire.detail,
        at_ms=from_iso(wire.at),
        requested_before_mw=wire.requested_before_mw,
        enforced_before_mw=wire.enforced_before_mw,
        requested_after_mw=wire.requested_after_mw,
        enforced_after_mw=wire.enforced_after_mw,
        figures=dict(wire.figures),
    )

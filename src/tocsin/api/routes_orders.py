"""Orders to the agents of nodes: an agent asks for its own, and says what came of them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query

from tocsin.api.auth import Writer
from tocsin.api.errors import ApiError, documented, refuse_unknown_parameters
from tocsin.api.principal import Principal
from tocsin.api.routes_control import require_json
from tocsin.api.routes_ops import Brain
from tocsin.client.orders import OrderOut, OrderReportIn, OrderTaken

router = APIRouter(
    prefix="/v1/orders",
    tags=["orders"],
    dependencies=[Depends(refuse_unknown_parameters)],
    responses=documented(400, 401, 403, 422, 429, 500, 503),
)

Host = Annotated[str, Query(min_length=1, max_length=253, description="Node that the agent speaks for.")]
OrderId = Annotated[str, Path(min_length=1, max_length=64, description="Id of an order.")]


def _own(who: Principal, host: str) -> None:
    if not who.speaks_for(host):
        raise ApiError(403, "other_host", f"{who.name} may not speak for node {host}")


@router.get("")
def orders(service: Brain, who: Writer, host: Host) -> list[OrderOut]:
    """What the agent of a node is asked for now, what gives back first; asking renews the leases of what stands."""
    _own(who, host)
    return service.orders(host)


@router.post("/{order_id}/report", dependencies=[Depends(require_json)], responses=documented(409, 413, 415))
def report(service: Brain, who: Writer, order_id: OrderId, sent: OrderReportIn) -> OrderTaken:
    """How an order stands at its node."""
    _own(who, sent.order.host)
    return service.report_order(order_id, sent)

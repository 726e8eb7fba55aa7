"""The ASGI application."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

from anyio import CapacityLimiter
from fastapi import FastAPI, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.routing import Route

from tocsin import __version__
from tocsin.api import errors
from tocsin.api.auth import Authenticator
from tocsin.api.gate import Gate
from tocsin.api.ingest import Ingest
from tocsin.api.login import LoginService, login_router
from tocsin.api.node_tokens import ReviewsTokens
from tocsin.api.read_audit import ReadAudit
from tocsin.api.routes_cell_at import OwnCell, cell_at_router
from tocsin.api.routes_cells import cells_control_router, cells_router
from tocsin.api.routes_decisions import EXPORTS_AT_ONCE, control_router, decisions_router
from tocsin.api.routes_desk import Desks, desk_router
from tocsin.api.routes_ops import PlainWrite, ops_router, orders_router
from tocsin.api.routes_push import push_router
from tocsin.api.routes_read import EncodedMap, read_router
from tocsin.api.routes_silences import silences_router
from tocsin.api.routes_slack import SlackPresses, slack_router
from tocsin.api.routes_usage import usage_router
from tocsin.api.service import Service
from tocsin.api.signatures import Replays
from tocsin.api.tenancy import Names, vocabulary_of
from tocsin.config.access import ApiSettings
from tocsin.domain.clock import Clock, SystemClock

_DESCRIPTION = """State of a GPU fleet, its findings, predictions and decisions; takes telemetry, approvals and pauses.

Every error has one shape, `{"error": {"code", "message", "details"}}`. Instants are RFC 3339 in UTC."""


ROUTERS = (
    read_router,
    usage_router,
    decisions_router,
    control_router,
    cells_router,
    cells_control_router,
    cell_at_router,
    silences_router,
    login_router,
    ops_router,
    push_router,
    orders_router,
    desk_router,
    slack_router,
)


def create_app(
    service: Service, settings: ApiSettings, clock: Clock | None = None, reviews: ReviewsTokens | None = None
) -> FastAPI:
    """The API over `service`; `reviews` knows the tokens of `api.node_service_accounts`.

    Raises InputError for what cannot be used or lacks. There is no CORS: pages of another origin cannot read, and
    whatever changes something refuses them.
    """
    clock = clock or SystemClock()
    authenticator = Authenticator(settings, clock, reviews=reviews)
    app = FastAPI(
        title="Tocsin",
        version=__version__,
        description=_DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        # Tocsin has metrics of its own; asking for each request whether somebody wants others costs as much as a route.
        telemetry={"tracing": False, "metrics": False, "logs": False},
        # Taken as they are: routers that are included are built anew for each application, at its first request.
        routes=[PlainWrite(), DOCUMENT, *(route for router in ROUTERS for route in router.routes)],
    )
    app.state.document, app.state.documenting = b"", asyncio.Lock()
    app.state.service = service
    app.state.read_audit = ReadAudit(settings.audit_reads, clock, service.record_reads, service.must_lead)
    app.state.encoded_map, app.state.export_turns = EncodedMap(), CapacityLimiter(EXPORTS_AT_ONCE)
    app.state.ingest = Ingest(service, settings.max_body_bytes)
    app.state.login_service = LoginService(settings, clock, authenticator.sessions, service)
    replays = Replays(clock)
    app.state.desks = Desks(settings.desks, clock, replays)
    app.state.slack = SlackPresses(settings.slack, clock, replays, service)

    names = _names(app, service)
    app.add_middleware(
        Gate, authenticator=authenticator, settings=settings, clock=clock, refused=service.refused, names=names
    )
    # Before the gate, which goes by the path.
    app.add_middleware(OwnCell, cells=service.cells)
    errors.install(app)
    return app


async def _document(request: Request) -> Response:
    """The OpenAPI document. Anyone may ask for it, and making it takes a second: it is made once, and nobody else waits
    meanwhile."""
    app = request.app
    async with app.state.documenting:
        if not app.state.document:
            app.state.document = await run_in_threadpool(_written, app)
    return Response(app.state.document, media_type="application/json")


def _written(app: FastAPI) -> bytes:
    return json.dumps(app.openapi(), separators=(",", ":")).encode()


DOCUMENT = Route("/openapi.json", _document, include_in_schema=False)


def _names(app: FastAPI, service: Service) -> Callable[[frozenset[str]], Names]:
    """What tells the names that a tenant must not read."""
    app.state.vocabulary = None

    def names(namespaces: frozenset[str]) -> Names:
        # The document is made once, at the first question of a tenant.
        if app.state.vocabulary is None:
            app.state.vocabulary = vocabulary_of(app.openapi())
        return service.names_of_others(namespaces, app.state.vocabulary)

    return names

"""The ASGI application."""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.routing import APIRoute

from tocsin import __version__
from tocsin.api import (
    errors,
    routes_ahead,
    routes_control,
    routes_decisions,
    routes_login,
    routes_now,
    routes_ops,
    routes_orders,
    routes_read,
)
from tocsin.api.auth import Authenticator
from tocsin.api.gate import Gate
from tocsin.api.login import LoginService
from tocsin.api.service import Service
from tocsin.config.access import ApiSettings
from tocsin.domain.clock import Clock, SystemClock

_DESCRIPTION = """State of a GPU fleet, its findings, predictions and decisions; takes telemetry, approvals and pauses.

Every error has one shape, `{"error": {"code", "message", "details"}}`. Instants are RFC 3339 in UTC."""


ROUTES = (
    routes_read,
    routes_now,
    routes_decisions,
    routes_ahead,
    routes_control,
    routes_login,
    routes_ops,
    routes_orders,
)


def create_app(service: Service, settings: ApiSettings, clock: Clock | None = None) -> FastAPI:
    """The API over `service`. Raises InputError for tokens that cannot be used, or for a library that lacks.

    There is no CORS: pages of another origin cannot read, and whatever changes something refuses them.
    """
    clock = clock or SystemClock()
    authenticator = Authenticator(settings, clock)
    app = FastAPI(
        title="Tocsin",
        version=__version__,
        description=_DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=_operation_id,
    )
    app.state.service = service
    app.state.encoded_map = routes_now.EncodedMap()
    app.state.max_body_bytes = settings.max_body_bytes
    app.state.doorkeeper = LoginService(settings, clock, authenticator.sessions, service)
    app.add_middleware(Gate, authenticator=authenticator, settings=settings, clock=clock, refused=service.refused)
    errors.install(app)
    for module in ROUTES:
        app.include_router(module.router)
    return app


def _operation_id(route: APIRoute) -> str:
    suffix = "_influxdb" if route.path == "/api/v2/ping" else ""
    return route.name + suffix

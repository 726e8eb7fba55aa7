"""Log-in and log-out of people."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from tocsin.api.auth import Anyone
from tocsin.api.errors import documented, refuse_unknown_parameters
from tocsin.api.login import LoginService
from tocsin.api.routes_control import require_json
from tocsin.client.models import ControlRequest, LoginMethods, LoginOut, LoginRequest


def _doorkeeper_of(request: Request) -> LoginService:
    found: LoginService = request.app.state.doorkeeper
    return found


Door = Annotated[LoginService, Depends(_doorkeeper_of)]

router = APIRouter(prefix="/v1", tags=["access"], dependencies=[Depends(refuse_unknown_parameters)])


@router.get("/login/methods", responses=documented(422, 429, 500, 503))
async def login_methods(door: Door) -> LoginMethods:
    """How people log in here: by password, by an OpenID Connect provider, or not at all."""
    return door.methods()


@router.post(
    "/login",
    dependencies=[Depends(require_json)],
    responses=documented(400, 401, 403, 408, 409, 413, 415, 422, 429, 500, 503),
)
def login(door: Door, asked: Request, request: LoginRequest) -> LoginOut:
    """Check a password against the directory; the token that comes back is sent as `Bearer` until it expires."""
    address = asked.client.host if asked.client else ""
    return door.login(request.user, request.password.get_secret_value(), address)


@router.post(
    "/logout",
    status_code=204,
    dependencies=[Depends(require_json)],
    responses=documented(400, 401, 403, 408, 409, 413, 415, 422, 429, 500, 503),
)
def logout(door: Door, who: Anyone, _request: ControlRequest) -> Response:
    """End the log-in whose token the request carries."""
    door.logout(who)
    return Response(status_code=204)

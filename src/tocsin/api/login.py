"""Log-in by password: who may try how often, and what comes of it."""

from __future__ import annotations

import threading
import unicodedata
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from tocsin.api.auth import Anyone
from tocsin.api.buckets import Lockout, same_network
from tocsin.api.dependencies import of_app, operation_id, require_json
from tocsin.api.directory import Directory, NoRole
from tocsin.api.errors import ApiError, documented, refuse_unknown_parameters
from tocsin.api.gate import too_many
from tocsin.api.principal import Principal
from tocsin.api.service import Detail, Service
from tocsin.api.sessions import LoginSessions
from tocsin.client.control import (
    ControlRequest,
    LoginMethods,
    LoginOut,
    LoginRequest,
    OidcMethod,
)
from tocsin.config.access import ApiSettings
from tocsin.domain.clock import Clock, to_iso
from tocsin.domain.errors import Conflict

MOST_AT_ONCE = 8
"""Log-ins in work at once: each holds one of the server's threads until the directory answers."""
ADDRESS_FACTOR = 4
"""Wrong passwords that one address may send in terms of those for one person: behind it there may be several."""


def same_name(user: str) -> str:
    """`user` as the laxest directory compares names: what RFC 4518 leaves out does not count, nor do accents.

    Otherwise each way to write a name would have attempts of its own. Two people whose names differ by an accent alone
    share theirs.
    """
    bare = "".join(
        sign for sign in unicodedata.normalize("NFKD", user) if not unicodedata.category(sign).startswith("M")
    )
    return " ".join(bare.casefold().split())


class LoginService:
    """Checks passwords against the directory and opens sessions; log-ins, log-outs and locks go into the journal."""

    def __init__(self, settings: ApiSettings, clock: Clock, sessions: LoginSessions, service: Service) -> None:
        limits = settings.limits
        self._settings = settings
        self._sessions = sessions
        self._service = service
        self._directory = Directory(settings.ldap) if settings.ldap.url else None
        waits = (limits.login_lock_seconds, limits.login_lock_max_seconds)
        self._people = Lockout(clock, limits.login_attempts, *waits)
        self._addresses = Lockout(clock, limits.login_attempts * ADDRESS_FACTOR, *waits)
        self._free = threading.BoundedSemaphore(MOST_AT_ONCE)

    def methods(self) -> LoginMethods:
        oidc = self._settings.oidc
        offered = OidcMethod(issuer=oidc.issuer, client_id=oidc.client_id, scope=oidc.scope) if oidc.issuer else None
        return LoginMethods(password=self._directory is not None, oidc=offered)

    def login(self, user: str, password: str, address: str) -> LoginOut:
        """Open a session. Raises ApiError 401, 403, 429 or 503, Conflict without a directory, and Unavailable."""
        if self._directory is None:
            raise Conflict("no api.ldap.url is set: nobody logs in by password here")
        person = same_name(user)
        if wait := max(self._people.wait(person), self._addresses.wait(same_network(address))):
            raise too_many(wait, "login_locked", "too many wrong passwords")
        principal = self._checked(self._directory, user, password)
        if principal is None:
            self._failed(person, address)
            raise ApiError(401, "login_failed", "name or password are wrong")
        # The address stays as it is: one right password must not excuse guesses at others'.
        self._people.succeeded(person)
        token, until_ms = self._sessions.open(principal)
        detail: Detail = {"address": address, "role": principal.role.value, "until_ms": until_ms}
        self._service.record_access("login", principal.name, detail)
        return LoginOut(token=token, name=principal.name, role=principal.role.value, expires=to_iso(until_ms))

    def _checked(self, directory: Directory, user: str, password: str) -> Principal | None:
        if not self._free.acquire(blocking=False):
            raise ApiError(503, "busy", "too many log-ins are in work; try again", headers={"Retry-After": "1"})
        try:
            return directory.login(user, password)
        except NoRole as error:
            raise ApiError(403, "no_role", str(error)) from error
        finally:
            self._free.release()

    def _failed(self, person: str, address: str) -> None:
        seconds = max(self._people.failed(person), self._addresses.failed(same_network(address)))
        if seconds:
            # Each lock, and not each failure: guesses must not fill the journal.
            detail: Detail = {"user": person[:200], "address": address, "seconds": seconds}
            self._service.record_access("login_locked", "tocsin", detail)

    def logout(self, principal: Principal) -> None:
        """End the session of `principal`. Raises Conflict where there is none: tokens and JWTs end by themselves."""
        if not principal.session:
            raise Conflict("this token is no log-in by password; it cannot be ended here")
        self._sessions.close(principal.session)
        self._service.record_access("logout", principal.name, {})


Access = Annotated[LoginService, of_app("login_service")]

login_router = APIRouter(
    generate_unique_id_function=operation_id,
    prefix="/v1",
    tags=["access"],
    dependencies=[Depends(refuse_unknown_parameters)],
)


@login_router.get("/login/methods", responses=documented(422, 429, 500, 503))
async def login_methods(access: Access) -> LoginMethods:
    """How people log in here: by password, by an OpenID Connect provider, or not at all."""
    return access.methods()


@login_router.post(
    "/login",
    dependencies=[Depends(require_json)],
    responses=documented(400, 401, 403, 409, 415, 422, 429, 500, 503),
)
def login(access: Access, asked: Request, request: LoginRequest) -> LoginOut:
    """Check a password against the directory; the token that comes back is sent as `Bearer` until it expires."""
    address = asked.client.host if asked.client else ""
    return access.login(request.user, request.password.get_secret_value(), address)


@login_router.post(
    "/logout",
    status_code=204,
    dependencies=[Depends(require_json)],
    responses=documented(400, 401, 403, 409, 415, 422, 429, 500, 503),
)
def logout(access: Access, who: Anyone, _request: ControlRequest) -> Response:
    """End the log-in whose token the request carries."""
    access.logout(who)
    return Response(status_code=204)

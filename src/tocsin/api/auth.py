"""Who asks, and what may they do."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Request, Security
from fastapi.security import HTTPBearer
from starlette.datastructures import Headers

from tocsin.api.errors import ApiError
from tocsin.config.settings import Role, Token
from tocsin.domain.errors import InputError

_FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip")
_LOOPBACK_NAMES = {"localhost", "127.0.0.1", "[::1]"}
_CHALLENGE = {"WWW-Authenticate": "Bearer"}


@dataclass(frozen=True, slots=True)
class Principal:
    """Holder of a token; `name` goes into the journal."""

    name: str
    role: Role


LOOPBACK = Principal("loopback", Role.ADMIN)
"""Whoever asks from this machine where no tokens are configured."""


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()


def _is_loopback(client: str) -> bool:
    try:
        address = ipaddress.ip_address(client)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def _host_name(headers: Headers) -> str:
    host = headers.get("host", "").lower()
    return host if host.endswith("]") else host.rsplit(":", 1)[0]


class Authenticator:
    """Finds the principal of a request.

    With tokens, each request carries one, as ``Bearer`` or ``Token``. Without tokens only the loopback address is
    served: not through a proxy (whose clients all look local), and only under a loopback name (a web page may give
    its own name the address 127.0.0.1).

    Raises InputError for a secret that is too short or given twice.
    """

    def __init__(self, tokens: Sequence[Token]) -> None:
        self._known: list[tuple[bytes, Principal]] = []
        for token in tokens:
            secret = token.secret.get_secret_value()
            field = f"api.tokens.{token.name}.secret"
            digest = _digest(secret)
            if any(hmac.compare_digest(digest, known) for known, _ in self._known):
                raise InputError(field, "(hidden)", "two tokens have this secret", "give each its own")
            self._known.append((digest, Principal(token.name, token.role)))

    def principal(self, headers: Headers, client: str) -> Principal:
        """Who sent a request with `headers` from address `client`; raises ApiError 401."""
        return self._by_token(headers) if self._known else self._by_address(headers, client)

    def _by_token(self, headers: Headers) -> Principal:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if not given or scheme.lower() not in {"bearer", "token"}:
            raise ApiError(401, "token_required", "send a token: Authorization: Bearer TOKEN", headers=_CHALLENGE)
        digest, found = _digest(given.strip()), None
        for known, principal in self._known:
            if hmac.compare_digest(digest, known):
                found = principal
        if found is None:
            raise ApiError(401, "token_unknown", "the token is none of api.tokens", headers=_CHALLENGE)
        return found

    def _by_address(self, headers: Headers, client: str) -> Principal:
        if not _is_loopback(client) or any(name in headers for name in _FORWARDED):
            message = "without api.tokens only direct requests from the loopback address are served; configure a token"
            raise ApiError(401, "token_required", message, headers=_CHALLENGE)
        if _host_name(headers) not in _LOOPBACK_NAMES:
            message = "without api.tokens the API answers to localhost and 127.0.0.1 alone; configure a token"
            raise ApiError(401, "host_unknown", message, headers=_CHALLENGE)
        return LOOPBACK


_SCHEME = HTTPBearer(auto_error=False, description="A token of `api.tokens`; InfluxDB's `Token` scheme works as well.")


def _require(*roles: Role) -> Callable[..., Coroutine[Any, Any, Principal]]:
    async def check(request: Request, _documented: Annotated[object, Security(_SCHEME)] = None) -> Principal:
        principal: Principal = request.state.principal
        if principal.role not in roles:
            wanted = " or ".join(role.value for role in roles)
            message = f"token {principal.name} is {principal.role.value}; this needs {wanted}"
            raise ApiError(403, "role_too_low", message)
        return principal

    return check


Viewer = Annotated[Principal, Depends(_require(Role.VIEWER, Role.OPERATOR, Role.ADMIN))]
Operator = Annotated[Principal, Depends(_require(Role.OPERATOR, Role.ADMIN))]
Admin = Annotated[Principal, Depends(_require(Role.ADMIN))]
Writer = Annotated[Principal, Depends(_require(Role.AGENT, Role.ADMIN))]
Anyone = Annotated[Principal, Depends(_require(*Role))]

"""Who asks: by token, log-in, provider or client certificate; and what a route needs of them."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Annotated, Any

from fastapi import Depends, Request, Security
from fastapi.security import HTTPBearer
from starlette.datastructures import Headers

from tocsin.api.errors import ApiError
from tocsin.api.node_tokens import NodeTokens, ReviewsTokens
from tocsin.api.oidc import OidcVerifier, looks_like_jwt
from tocsin.api.principal import Principal, simple
from tocsin.api.sessions import PREFIX, LoginSessions, digest_of
from tocsin.api.tenancy import require_declared
from tocsin.client.moved import ACTIVE_ONLY
from tocsin.config.access import ApiSettings, Role, Token
from tocsin.config.host_tokens import host_of_token
from tocsin.domain.clock import Clock
from tocsin.domain.errors import InputError

_FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip")
_LOOPBACK_NAMES = {"localhost", "127.0.0.1", "[::1]"}
_CHALLENGE = {"WWW-Authenticate": "Bearer"}

LOOPBACK = simple("loopback", Role.ADMIN)
"""Whoever asks from this machine where nobody has to prove anything."""


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


def _known_tokens(tokens: Iterable[Token]) -> list[tuple[str, Principal]]:
    known: list[tuple[str, Principal]] = []
    for token in tokens:
        digest = digest_of(token.secret.get_secret_value())
        if any(hmac.compare_digest(digest, other) for other, _ in known):
            field = f"api.tokens.{token.name}.secret"
            raise InputError(field, "(hidden)", "two tokens have this secret", "give each its own")
        found = simple(
            token.name,
            token.role,
            token.scopes,
            token.host,
            personal=token.personal,
            namespaces=token.namespaces,
        )
        known.append((digest, found))
    return known


def _node_tokens(settings: ApiSettings, clock: Clock, reviews: ReviewsTokens | None) -> NodeTokens | None:
    if not settings.node_service_accounts:
        return None
    if reviews is None:
        named = ", ".join(settings.node_service_accounts)
        raise InputError("api.node_service_accounts", named, "there is no cluster to ask", "run `tocsin brain`")
    return NodeTokens(settings, clock, reviews)


class Authenticator:
    """Finds the principal of a request.

    An ``Authorization`` header decides, as ``Bearer`` or ``Token``: a token of the settings, of a node, a log-in, or a
    JWT of the cluster (which `reviews` knows) or of the provider. Without one a verified client certificate makes an
    agent. Where nothing of all that is configured only the loopback address is served: not through a proxy (whose
    clients all look local), and only under a loopback name (a web page may give its own name the address 127.0.0.1).

    Raises InputError for a secret that is given twice, or for a library or a cluster that lacks.
    """

    def __init__(
        self,
        settings: ApiSettings,
        clock: Clock,
        oidc: OidcVerifier | None = None,
        reviews: ReviewsTokens | None = None,
    ) -> None:
        self._open = settings.open_to_loopback
        self._own_host = settings.client_own_host
        self._known = _known_tokens(settings.tokens)
        self._host_key = settings.host_key.get_secret_value()
        self._revoked = frozenset(host.lower() for host in settings.revoked_hosts)
        self._oidc = oidc or (OidcVerifier(settings.oidc, clock) if settings.oidc.issuer else None)
        self._nodes = _node_tokens(settings, clock, reviews)
        self.sessions = LoginSessions(clock, settings.session_seconds)

    def may_block(self, headers: Headers) -> bool:
        """Whether `principal` may have to ask the provider or the cluster: it is then for a thread to call."""
        asks = self._oidc is not None or self._nodes is not None
        return asks and looks_like_jwt(headers.get("authorization", ""))

    def principal(self, headers: Headers, client: str, certificate_names: Sequence[str] = ()) -> Principal:
        """Who sent a request with `headers` from address `client`; raises ApiError 401, 403 or 503."""
        if self._open:
            return self._by_address(headers, client)
        if certificate_names and "authorization" not in headers:
            hosts = frozenset(name.lower() for name in certificate_names) if self._own_host else frozenset[str]()
            return Principal(f"cert:{certificate_names[0]}", simple("", Role.AGENT).grants, hosts)
        return self._by_token(headers, client)

    def _by_token(self, headers: Headers, client: str) -> Principal:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        given = given.strip()
        if not given or scheme.lower() not in {"bearer", "token"}:
            raise ApiError(401, "token_required", "send a token: Authorization: Bearer TOKEN", headers=_CHALLENGE)
        digest, found = digest_of(given), None
        for known, principal in self._known:
            if hmac.compare_digest(digest, known):
                found = principal
        if found is None:
            found = self._of_node(given, client)
        if found is None and given.startswith(PREFIX):
            found = self.sessions.find(given)
            if found is None:
                raise ApiError(401, "token_expired", "the log-in has ended; log in again", headers=_CHALLENGE)
        if found is None and self._oidc is not None and looks_like_jwt(given):
            return self._oidc.principal(given)
        if found is None:
            raise ApiError(401, "token_unknown", "the token is none of api.tokens", headers=_CHALLENGE)
        return found

    def _of_node(self, given: str, client: str) -> Principal | None:
        """The node whose own token `given` is, by the key or by the cluster; None where it is neither."""
        host = host_of_token(self._host_key, given)
        found = None if host is None else simple(f"host:{host}", Role.AGENT, host=host)
        if found is None and self._nodes is not None:
            found = self._nodes.principal(given, client)
        if found is not None and (revoked := found.hosts & self._revoked):
            raise ApiError(401, "token_revoked", f"the token of {min(revoked)} is revoked", headers=_CHALLENGE)
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

READERS = (Role.VIEWER, Role.OPERATOR, Role.ADMIN)
OPERATORS = (Role.OPERATOR, Role.ADMIN)
WRITERS = (Role.AGENT, Role.ADMIN)


_ROLES: dict[object, tuple[Role, ...]] = {}


def _require(*roles: Role) -> Callable[..., Coroutine[Any, Any, Principal]]:
    async def check(request: Request, _documented: Annotated[object, Security(_SCHEME)] = None) -> Principal:
        principal: Principal = request.state.principal
        require_role(principal, roles)
        if principal.namespaces:
            require_declared(request.method, request.scope["route"].path, principal.name)
        if ACTIVE_ONLY in request.headers:
            request.app.state.service.must_lead()
        request.app.state.read_audit.note(principal, request.method, request.url.path)
        return principal

    _ROLES[check] = roles
    return check


def require_role(principal: Principal, roles: Sequence[Role]) -> None:
    """Raise ApiError 403 where `principal` has none of `roles`."""
    if not principal.has(roles):
        wanted = " or ".join(role.value for role in roles)
        message = f"token {principal.name} is {principal.role.value}; this needs {wanted}"
        raise ApiError(403, "role_too_low", message)


def roles_needed(dependency: object) -> tuple[Role, ...]:
    """The roles of which a request needs one for a `dependency` of its endpoint; none where it asks for no role."""
    return _ROLES.get(dependency, ())


def require_scope(principal: Principal, roles: Sequence[Role], action: str, pools: Sequence[str] = ()) -> None:
    """Raise ApiError 403 where no scope of `principal` has `action` in each of `pools`; none means the whole fleet."""
    if principal.may(roles, action, pools):
        return
    where = f"in pool {', '.join(pools)}" if any(pools) else "for the whole fleet"
    has = "; ".join(principal.scope_texts()) or "none with this role"
    message = f"token {principal.name} may not {action} {where}; its scopes: {has}"
    raise ApiError(403, "scope_lacking", message, {"action": action, "pools": list(pools)})


Viewer = Annotated[Principal, Depends(_require(*READERS))]
Operator = Annotated[Principal, Depends(_require(*OPERATORS))]
Admin = Annotated[Principal, Depends(_require(Role.ADMIN))]
Writer = Annotated[Principal, Depends(_require(*WRITERS))]
Anyone = Annotated[Principal, Depends(_require(*Role))]

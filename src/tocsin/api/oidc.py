"""Bearer tokens of an OpenID Connect provider: JWTs that are checked against its published keys."""

from __future__ import annotations

import base64
import binascii
import json
import threading
from collections.abc import Mapping
from typing import Any

import httpx2

from tocsin.api.errors import ApiError
from tocsin.api.principal import Principal, grants_of
from tocsin.config.access import OidcSettings, require_safe
from tocsin.domain.clock import HOUR, SECOND, Clock
from tocsin.domain.errors import InputError, Unavailable, install_extra
from tocsin.http_client import http_client
from tocsin.telemetry.log import logger

_log = logger("oidc")

DISCOVERY = "/.well-known/openid-configuration"
"""OpenID Connect Discovery 1.0, section 4."""
MAX_DOCUMENT_BYTES = 1024 * 1024
"""A provider's keys are a few kilobytes."""
REFETCH_SECONDS = 10.0
"""Least time between two fetches: tokens with invented key ids must not make us hammer the provider."""
STALE_MS = HOUR
"""How long known keys still serve while the provider does not answer. Own choice: outages are shorter, and a key that
the provider has withdrawn must not be taken for long."""
_CHALLENGE = {"WWW-Authenticate": 'Bearer error="invalid_token"'}


def looks_like_jwt(token: str) -> bool:
    """Whether `token` has the three parts of a signed JWT."""
    return token.count(".") == 2


class _Keys:
    """The provider's signing keys, fetched when they are old or a token names one that is not among them."""

    def __init__(self, settings: OidcSettings, clock: Clock, transport: httpx2.BaseTransport | None) -> None:
        self._settings = settings
        self._clock = clock
        self._http = http_client(
            settings.timeout_seconds, transport=transport, ca=settings.ca, proxies=True, most_bytes=None
        )
        self._lock = threading.Lock()
        self._set: Any = None
        self._fetched_ms = 0
        self._tried: float | None = None

    def find(self, kid: str | None) -> Any:
        """The key set to check a token with key id `kid` by. Raises Unavailable where no keys can be had."""
        with self._lock:
            if self._due(kid):
                self._tried = self._clock.monotonic()
                self._refresh()
            if self._set is None or self._age_ms() > max(STALE_MS, self._settings.keys_seconds * SECOND):
                raise Unavailable(f"the keys of {self._settings.issuer} cannot be fetched; try again later")
            return self._set

    def _age_ms(self) -> int:
        return self._clock.now_ms() - self._fetched_ms

    def _due(self, kid: str | None) -> bool:
        if self._tried is not None and self._clock.monotonic() - self._tried < REFETCH_SECONDS:
            return False
        if self._set is None or not 0 <= self._age_ms() < self._settings.keys_seconds * SECOND:
            return True
        return kid is not None and all(key.kid != kid for key in self._set.keys)

    def _refresh(self) -> None:
        from joserfc.errors import JoseError
        from joserfc.jwk import KeySet

        try:
            discovered = self._document(self._settings.issuer.rstrip("/") + DISCOVERY)
            if discovered.get("issuer") != self._settings.issuer:
                raise ValueError(f"the discovery document is of issuer {discovered.get('issuer')!r}")
            address = str(discovered.get("jwks_uri", ""))
            require_safe(address, "jwks_uri")
            self._set = KeySet.import_key_set(self._document(address))  # type: ignore[arg-type]
            self._fetched_ms = self._clock.now_ms()
        except (httpx2.HTTPError, JoseError, ValueError, KeyError, TypeError) as error:
            _log.warning("keys of the OIDC provider cannot be fetched", issuer=self._settings.issuer, error=str(error))

    def _document(self, url: str) -> dict[str, Any]:
        body = bytearray()
        with self._http.stream("GET", url) as response:
            response.raise_for_status()
            for part in response.iter_bytes():
                body += part
                if len(body) > MAX_DOCUMENT_BYTES:
                    raise ValueError(f"{url} is larger than {MAX_DOCUMENT_BYTES} bytes")
        document = json.loads(bytes(body))
        if not isinstance(document, dict):
            raise TypeError(f"{url} is no JSON object")
        return document

    def close(self) -> None:
        self._http.close()


class OidcVerifier:
    """Turns a JWT of the configured provider into a principal.

    Signature (asymmetric algorithms of the settings alone), issuer, audience, expiry, not-before and issue time are
    checked; groups become roles. Raises InputError where the library for it is not installed.
    """

    def __init__(self, settings: OidcSettings, clock: Clock, *, transport: httpx2.BaseTransport | None = None) -> None:
        try:
            import joserfc  # noqa: F401  # only whether it is there
        except ModuleNotFoundError:
            problem, remedy = "the library joserfc is missing", install_extra("access")
            raise InputError("api.oidc.issuer", settings.issuer, problem, remedy) from None
        self._settings = settings
        self._clock = clock
        self._keys = _Keys(settings, clock, transport)

    def principal(self, token: str) -> Principal:
        """Whose `token` is. Raises ApiError 401 or 403; may take a request to the provider."""
        claims = self._claims(token)
        name = self._name(claims)
        groups = claims.get(self._settings.groups_claim, [])
        named = [groups] if isinstance(groups, str) else groups if isinstance(groups, list) else []
        grants = grants_of((str(group) for group in named), self._settings.groups)
        if not grants:
            message = f"oidc:{name} is in no group of api.oidc.groups; claim {self._settings.groups_claim} decides"
            raise ApiError(403, "no_role", message)
        return Principal(f"oidc:{name}", grants, personal=True)

    def _claims(self, token: str) -> Mapping[str, Any]:
        from joserfc import jwt
        from joserfc.errors import ExpiredTokenError, JoseError

        wanted = self._settings
        registry = jwt.JWTClaimsRegistry(
            now=lambda: self._clock.now_ms() // SECOND,
            leeway=wanted.leeway_seconds,
            iss={"essential": True, "value": wanted.issuer},
            aud={"essential": True, "values": wanted.audiences or [wanted.client_id]},
            exp={"essential": True},
        )
        try:
            keys = self._keys.find(_key_id(token))
        except Unavailable as error:
            raise ApiError(503, "unavailable", str(error), headers={"Retry-After": "10"}) from error
        try:
            decoded = jwt.decode(token, keys, algorithms=list(wanted.algorithms))
            registry.validate(decoded.claims)
        except ExpiredTokenError as error:
            raise _refused("token_expired", "the token has expired; log in again") from error
        except (JoseError, ValueError, TypeError, KeyError) as error:
            # What is wrong with it helps an attacker little and an operator much, and it holds nothing of the token.
            raise _refused("token_unknown", f"the token is not good here: {type(error).__name__} {error}") from error
        return decoded.claims

    def _name(self, claims: Mapping[str, Any]) -> str:
        claim = self._settings.name_claim
        name = claims.get(claim)
        if not isinstance(name, str) or not name.strip() or len(name) > 200 or not name.isprintable():
            raise _refused("token_unknown", f"the token has no usable claim {claim}; see api.oidc.name_claim")
        if claim == "email" and claims.get("email_verified") is not True:
            raise _refused("token_unknown", "the token's email is not verified by the provider")
        return name.strip()

    def close(self) -> None:
        """Close connections; safe to repeat."""
        self._keys.close()


def _refused(code: str, message: str) -> ApiError:
    return ApiError(401, code, message[:300], headers=_CHALLENGE)


def _key_id(token: str) -> str | None:
    """The ``kid`` of a JWT's header; None where it names none."""
    head = token.partition(".")[0]
    try:
        header = json.loads(base64.urlsafe_b64decode(head + "=" * (-len(head) % 4)))
    except (binascii.Error, ValueError, RecursionError):
        return None
    kid = header.get("kid") if isinstance(header, dict) else None
    return kid if isinstance(kid, str) else None

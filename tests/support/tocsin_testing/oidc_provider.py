"""An OpenID Connect provider of our own: discovery, keys, the device grant, and tokens as a test wants them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from joserfc import jwt
from joserfc.jwk import ECKey, RSAKey
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

CLIENT = "tocsin"
Key = ECKey | RSAKey


def ec_key(kid: str) -> ECKey:
    return ECKey.generate_key("P-256", {"kid": kid, "alg": "ES256", "use": "sig"})


class Provider:
    """`keys` are what it publishes, and may be changed; `fetches` counts how often they were asked for."""

    def __init__(self, server: HTTPServer, now_s: int) -> None:
        self.issuer = server.url_for("").rstrip("/")
        self.now_s = now_s
        self.keys: list[Key] = [ec_key("one")]
        self.claimed_issuer = self.issuer
        self.fetches = 0
        self.down = False
        self.pending = 0
        self.interval = 2.0
        self.refusal = ""
        self.token = ""
        self.asked: list[Mapping[str, str]] = []
        for path, handler in (
            ("/.well-known/openid-configuration", self._discovery),
            ("/keys", self._keys),
            ("/device", self._device),
            ("/token", self._token),
        ):
            server.expect_request(path).respond_with_handler(handler)

    def sign(self, key: Key | None = None, header: Mapping[str, Any] | None = None, **claims: Any) -> str:
        """A token that is good, but for what `header` and `claims` change; None removes a claim."""
        key = key or self.keys[0]
        whole: dict[str, Any] = {
            "iss": self.issuer,
            "aud": CLIENT,
            "sub": "u-1",
            "preferred_username": "anna",
            "groups": ["gpu-ops"],
            "iat": self.now_s,
            "exp": self.now_s + 300,
            **claims,
        }
        algorithm = key.alg or "ES256"
        head = {"alg": algorithm, "kid": key.kid, **(header or {})}
        kept = {name: value for name, value in whole.items() if value is not None}
        return jwt.encode(head, kept, key, algorithms=[head["alg"]])

    def _discovery(self, _request: Request) -> Response:
        if self.down:
            return Response("down", 503)
        return _json(
            {
                "issuer": self.claimed_issuer,
                "jwks_uri": f"{self.issuer}/keys",
                "token_endpoint": f"{self.issuer}/token",
                "device_authorization_endpoint": f"{self.issuer}/device",
            }
        )

    def _keys(self, _request: Request) -> Response:
        self.fetches += 1
        return _json({"keys": [key.as_dict(private=False) for key in self.keys]})

    def _device(self, request: Request) -> Response:
        self.asked.append(request.form.to_dict())
        return _json(
            {
                "device_code": "the-device-code",
                "user_code": "ABCD-EFGH",
                "verification_uri": f"{self.issuer}/activate",
                "interval": self.interval,
                "expires_in": 60,
            }
        )

    def _token(self, request: Request) -> Response:
        self.asked.append(request.form.to_dict())
        if self.pending:
            self.pending -= 1
            error = "slow_down" if self.pending == 0 else "authorization_pending"
            return _json({"error": error}, 400)
        if self.refusal:
            return _json({"error": self.refusal, "error_description": "the person said no"}, 400)
        return _json({"id_token": self.token, "access_token": "opaque", "expires_in": 300})


def _json(body: Mapping[str, Any], status: int = 200) -> Response:
    return Response(json.dumps(body), status, content_type="application/json")

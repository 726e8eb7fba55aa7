"""Tokens as a kubelet projects them into an agent's pod, and what an API server says of them."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Mapping
from typing import Any

from tocsin.api.node_tokens import NotReviewed, PodToken
from tocsin.domain.clock import SECOND

ACCOUNT = "system:serviceaccount:tocsin:tocsin-agent"
AUDIENCE = "tocsin"
NODE_NAME = "authentication.kubernetes.io/node-name"


def pod_token(node: str, now_ms: int, signature: str = "c2lnbmVk", **claims: object) -> str:
    """A token of the agent's pod on `node`, an hour long; `claims` take the place of its own, None leaves one out."""
    now = now_ms // SECOND
    own: dict[str, object] = {
        "aud": [AUDIENCE],
        "exp": now + 3600,
        "iat": now,
        "iss": "https://kubernetes.default.svc.cluster.local",
        "jti": "7ee52be0-9045-4653-aa5e-0da57b8dccdc",
        "kubernetes.io": {"namespace": "tocsin", "node": {"name": node}, "pod": {"name": "tocsin-agent-x7k2p"}},
        "sub": ACCOUNT,
    }
    said = {name: value for name, value in (own | claims).items() if value is not None}
    return ".".join((_part({"alg": "RS256", "kid": "k"}), _part(said), signature))


def jwt_of(text: str) -> str:
    """Something in the form of a JSON web token whose claims are `text`."""
    return f"e30.{base64.urlsafe_b64encode(text.encode()).decode().rstrip('=')}.c2ln"


def _part(value: Mapping[str, object]) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def known_to_server(node: str, **more: Any) -> dict[str, Any]:
    """What a TokenReview says of such a token: for `KubeDouble.tokens`."""
    extra = {
        "authentication.kubernetes.io/credential-id": ["JTI=7ee52be0-9045-4653-aa5e-0da57b8dccdc"],
        NODE_NAME: [node],
        "authentication.kubernetes.io/node-uid": ["497e9d9a-47aa-4930-b0f6-9f2fb574c8c6"],
        "authentication.kubernetes.io/pod-name": ["tocsin-agent-x7k2p"],
        "authentication.kubernetes.io/pod-uid": ["e87dbbd6-3d7e-45db-aafb-72b24627dff5"],
    }
    groups = ["system:serviceaccounts", "system:serviceaccounts:tocsin", "system:authenticated"]
    user = {"username": ACCOUNT, "uid": "1f2e", "groups": groups, "extra": extra}
    return {"audiences": [AUDIENCE], "user": user | more}


class FakeReviews:
    """Knows the tokens in `known`; `away` is what it raises instead, `meanwhile` is called within each question."""

    def __init__(self) -> None:
        self.known: dict[str, PodToken] = {}
        self.asked: list[str] = []
        self.threads: set[str] = set()
        self.away: NotReviewed | None = None
        self.meanwhile: Callable[[], object] = lambda: None

    def review(self, token: str) -> PodToken | None:
        self.asked.append(token)
        self.threads.add(threading.current_thread().name)
        self.meanwhile()
        if self.away is not None:
            raise self.away
        return self.known.get(token)

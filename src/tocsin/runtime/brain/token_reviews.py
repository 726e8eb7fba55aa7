"""Whose the tokens of pods are, by the API server of `kubernetes`."""

from __future__ import annotations

from typing import Any

import structlog

from tocsin.actions.kubernetes.api import KubeError
from tocsin.actions.kubernetes.client import connect
from tocsin.actions.kubernetes.cluster import Cluster
from tocsin.api.node_tokens import NotReviewed, PodToken
from tocsin.config.settings import Settings
from tocsin.telemetry.metrics import OwnMetrics

log = structlog.get_logger()

NODE = "authentication.kubernetes.io/node-name"
"""What the API server calls the node of a token's pod (KEP-4193; by default since Kubernetes 1.30)."""
MOST_NAME = 253
_ABOUT_THE_TOKEN = frozenset({400, 413, 422})
"""Answers that say more of what was sent than of the server: no other token has to wait for them."""


class TokenReviews:
    """Asks by TokenReview; each answer is counted, a server that gives none is logged once until it does again."""

    def __init__(self, cluster: Cluster, audience: str, metrics: OwnMetrics) -> None:
        self._cluster = cluster
        self._audience = audience
        self._metrics = metrics
        self._problem = ""

    def review(self, token: str) -> PodToken | None:
        """Whose `token` is; None where the server does not accept it for the audience. Raises NotReviewed."""
        try:
            found = pod_token(self._cluster.review_token(token, self._audience), self._audience)
        except KubeError as error:
            if error.status in _ABOUT_THE_TOKEN:
                found = None
            else:
                self._failed(f"{error}; lacking: {error.lacking}" if error.lacking else str(error))
                raise NotReviewed(str(error), error.retry_after or 0.0) from error
        self._problem = ""
        self._metrics.count("tocsin_token_reviews_total", outcome="unknown" if found is None else "known")
        return found

    def close(self) -> None:
        self._cluster.close()

    def _failed(self, problem: str) -> None:
        self._metrics.count("tocsin_token_reviews_total", outcome="failed")
        if problem != self._problem:
            log.warning("the API server is not asked about tokens of nodes: agents wait", problem=problem)
        self._problem = problem


def pod_token(status: dict[str, Any], audience: str) -> PodToken | None:
    """What the status of a TokenReview says. A server without audiences names none: it may be for others."""
    user = status.get("user")
    if status.get("authenticated") is not True or not isinstance(user, dict):
        return None
    if audience not in (status.get("audiences") or ()):
        return None
    names: list[Any] = (user.get("extra") or {}).get(NODE) or []
    named = names[0] if len(names) == 1 and isinstance(names[0], str) else ""
    return PodToken(str(user.get("username", "")), named if named.isprintable() and len(named) <= MOST_NAME else "")


def open_token_reviews(settings: Settings, metrics: OwnMetrics) -> TokenReviews | None:
    """What asks about `api.node_service_accounts`; None without any. Raises InputError as the connection does."""
    if not settings.api.node_service_accounts:
        return None
    return TokenReviews(Cluster(connect(settings.kubernetes)), settings.api.node_audience, metrics)

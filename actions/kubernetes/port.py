"""What the rest of this package needs of an API server: one question, and what its refusal means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from tocsin.actions.model.executor import ManagerUnavailable

Json = dict[str, Any]
"""An object of the API as JSON has it."""

PLAIN = "application/json"
MERGE = "application/merge-patch+json"
"""JSON merge patch (RFC 7386); a stale ``metadata.resourceVersion`` in it is answered 409."""
STRATEGIC = "application/strategic-merge-patch+json"
"""Merges conditions by type. It replaces taints as a whole, so it is used for conditions alone."""

_PASSING = frozenset({0, 429, 500, 502, 503, 504})


class KubeError(ManagerUnavailable):
    """The API server refused, or gave no answer.

    `status` is the HTTP status, 0 where no answer came. `reason` is the server's word for it, often empty for 500.
    `causes` are the messages of its causes, `retry_after` the seconds that it asks to wait. `certain` is False where
    the request may have taken effect.
    """

    exit_code = 3

    def __init__(
        self,
        status: int,
        message: str,
        *,
        reason: str = "",
        causes: tuple[str, ...] = (),
        retry_after: float | None = None,
        certain: bool = True,
    ) -> None:
        self.status = status
        self.reason = reason
        self.message = message
        self.causes = causes
        self.retry_after = retry_after
        self.certain = certain
        said = "; ".join(causes) if causes and status == 429 else message
        super().__init__(f"Kubernetes answered {status}: {said}" if status else f"Kubernetes: {said}")

    @property
    def passing(self) -> bool:
        """Whether the same request may well succeed a little later."""
        return self.status in _PASSING


class ApiClient(Protocol):
    """An API server."""

    def ask(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: object = None,
        content_type: str = PLAIN,
    ) -> Json:
        """The body of the answer; raises KubeError for anything but 2xx, and where no answer comes."""
        ...

    def close(self) -> None:
        """Let go of connections; safe to repeat."""
        ...

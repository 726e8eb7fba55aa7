"""What the journal says of deliveries: who was told of what waits, and what is open where."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tocsin.domain.decision import Decision


@dataclass(frozen=True, slots=True)
class Done:
    """How telling one channel of one notification ended."""

    ok: bool
    detail: str
    attempts: int


class Delivered:
    """Folds entries of kind `notification`; the same entries give the same state.

    An entry says which channel was told; the last one about a notification has its outcome as well. `open` is by
    channel and by key of the message what must be told when it ends: the notifications of that message by their keys.
    """

    def __init__(self) -> None:
        self._done: dict[str, dict[str, Done]] = {}
        self.open: dict[str, dict[str, dict[str, Decision]]] = {}

    def apply(self, payload: Mapping[str, Any], decision: Decision | None) -> bool:
        """Take one entry in; whether it is the last one about a notification."""
        channel = payload["channel"]
        if "ended" in payload:
            for message in payload["ended"]:
                self.open.get(channel, {}).pop(message, None)
            return False
        key = payload["key"]
        if "outcome" in payload:
            self._done.pop(key, None)
        else:
            self._done.setdefault(key, {})[channel] = Done(payload["ok"], payload["detail"], payload["attempts"])
        if "message" in payload and decision is not None:
            self.open.setdefault(channel, {}).setdefault(payload["message"], {})[key] = decision
        return "outcome" in payload

    def done(self, key: str) -> Mapping[str, Done]:
        """The channels that are done with a notification that others still wait for."""
        return self._done.get(key, {})

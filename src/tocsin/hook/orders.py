"""What the agent asks of the process: carried out at a step boundary, in the training thread, and acknowledged."""

from __future__ import annotations

import gc
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tocsin.hook.wire import CHECKPOINT, DONE, EMPTY_CACHE, EXPIRED, FAILED, REFUSED, REQUESTS

REMEMBERED = 64
"""Requests whose outcome is kept, so that one that comes twice is carried out once."""
WAITING = 16
"""Requests that may wait for a boundary at once."""
LONGEST_WAIT = 7 * 86_400.0
"""Seconds after which no request may still be begun."""
LONGEST_DETAIL = 200


@dataclass(frozen=True, slots=True)
class Order:
    """One request, to be begun before `deadline` (seconds, monotonic)."""

    id: str
    kind: str
    deadline: float


class Orders:
    """Requests between their coming and their acknowledgement.

    `take` and `expire` belong to the hook's own thread, `carry_out` to the training thread; what passes between them
    is a deque, whose ends are safe. `acknowledge` gets each acknowledgement.
    """

    def __init__(
        self, now: Callable[[], float], empty_cache: Callable[[], int], acknowledge: Callable[[dict[str, Any]], None]
    ) -> None:
        self.on_checkpoint: list[Callable[[], object]] = []
        self._now = now
        self._empty_cache = empty_cache
        self._acknowledge = acknowledge
        self._waiting: deque[Order] = deque()
        self._known: OrderedDict[str, dict[str, Any] | None] = OrderedDict()

    @property
    def waiting(self) -> bool:
        """Whether something waits for a boundary."""
        return bool(self._waiting)

    def take(self, message: dict[str, Any]) -> None:
        """Accept a request, or answer at once that it cannot be."""
        name, kind = message.get("id"), message.get("do")
        seconds: Any = message.get("expires_s")
        if not isinstance(name, str) or not name:
            return
        if name in self._known:
            known = self._known[name]
            if known is not None:
                self._acknowledge(known)
            return
        known_kind = isinstance(kind, str) and kind in REQUESTS
        numeric = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if not known_kind or not numeric or not 0 <= seconds <= LONGEST_WAIT:
            self._end(name, REFUSED, "unknown request")
        elif kind == CHECKPOINT and not self.on_checkpoint:
            self._end(name, REFUSED, "the script has registered no function with on_checkpoint")
        elif len(self._waiting) >= WAITING:
            self._end(name, REFUSED, "too many requests wait")
        else:
            self._remember(name, None)
            self._waiting.append(Order(name, str(kind), self._now() + seconds))

    def expire(self) -> None:
        """Answer what has waited too long for a boundary."""
        for _ in range(len(self._waiting)):
            try:
                order = self._waiting.popleft()
            except IndexError:
                break
            if self._now() >= order.deadline:
                self._end(order.id, EXPIRED, "no step ended in time")
            else:
                self._waiting.append(order)

    def carry_out(self) -> None:
        """Do all that waits. What a script's own function raises is its outcome and goes no further."""
        while self._waiting:
            try:
                order = self._waiting.popleft()
            except IndexError:
                break
            begun = self._now()
            if begun >= order.deadline:
                self._end(order.id, EXPIRED, "no step ended in time")
                continue
            try:
                detail = self._do(order.kind)
            except Exception as error:  # noqa: BLE001  # a script's function may raise anything; training goes on
                self._end(order.id, FAILED, f"{type(error).__name__}: {error}", self._now() - begun)
            else:
                self._end(order.id, DONE, detail, self._now() - begun)

    def forget(self) -> None:
        """Drop all: in a forked child they are the parent's."""
        self._waiting.clear()
        self._known.clear()

    def _do(self, kind: str) -> str:
        if kind == EMPTY_CACHE:
            gc.collect()
            return f"{self._empty_cache()} bytes returned"
        for function in tuple(self.on_checkpoint):
            function()
        return f"{len(self.on_checkpoint)} function{'s' if len(self.on_checkpoint) != 1 else ''} called"

    def _end(self, name: str, outcome: str, detail: str, seconds: float = 0.0) -> None:
        known = {
            "kind": "ack",
            "id": name,
            "outcome": outcome,
            "seconds": round(seconds, 6),
            "detail": detail[:LONGEST_DETAIL],
        }
        self._remember(name, known)
        self._acknowledge(known)

    def _remember(self, name: str, known: dict[str, Any] | None) -> None:
        self._known[name] = known
        while len(self._known) > REMEMBERED:
            self._known.popitem(last=False)

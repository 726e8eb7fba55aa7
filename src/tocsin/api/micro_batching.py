"""Requests that come at the same time are worked on together: one turn of a thread, one transaction.

A fleet's nodes push a few readings each, and what a turn and a transaction cost has little to do with how many readings
are in them. Where several came at once the next ones are waited for, for a moment; a sender that is alone never waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

LINGER_SECONDS = 0.1
"""How long others are waited for at most (own choice): an agent that pushes every few seconds does not notice."""
QUIET_SECONDS = 0.02
"""Nobody else is waited for once nobody came for so long: senders that go on as soon as they are answered all wait by
then."""
MOST = 64
"""Requests of one group."""

T = TypeVar("T")
R = TypeVar("R")


class MicroBatcher(Generic[T, R]):
    """Groups for `work`, which answers each of a group with what became of it, in order. It may answer fewer: the rest
    come first in the next group. For the event loop's thread alone."""

    def __init__(self, work: Callable[[Sequence[T]], Awaitable[Sequence[R | Exception]]]) -> None:
        self._work = work
        self._waiting: list[tuple[T, asyncio.Future[R]]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._several = False
        self._timer: asyncio.TimerHandle | None = None
        self._began = self._last = 0.0

    async def submit(self, one: T, *, hurry: bool = False) -> R:
        """What became of `one`; raises what `work` answered for it. In a `hurry` nobody is waited for."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[R] = loop.create_future()
        self._waiting.append((one, answer))
        self._last = loop.time()
        if hurry or len(self._waiting) >= MOST or not (self._several or self._tasks):
            self._go()
        elif self._timer is None:
            self._began = self._last
            self._timer = loop.call_later(QUIET_SECONDS, self._look, loop)
        return await answer

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        until = min(self._last + QUIET_SECONDS, self._began + LINGER_SECONDS)
        if until > loop.time():
            self._timer = loop.call_at(until, self._look, loop)
        else:
            self._go()

    def _go(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        group, self._waiting = self._waiting, []
        task = asyncio.get_running_loop().create_task(self._answered(group))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answered(self, group: Sequence[tuple[T, asyncio.Future[R]]]) -> None:
        self._several = len(group) > 1
        found: Sequence[R | Exception]
        try:
            found = await self._work([one for one, _ in group])
        except Exception as error:  # noqa: BLE001  # each request raises it
            found = [error] * len(group)
        for (_, answer), outcome in zip(group, found, strict=False):
            # Who went away meanwhile has cancelled it.
            if answer.done():
                continue
            if isinstance(outcome, Exception):
                answer.set_exception(outcome)
            else:
                answer.set_result(outcome)
        if left := group[len(found) :]:
            self._waiting[:0] = left
            self._go()

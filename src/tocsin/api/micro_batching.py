"""Requests that come at the same time are worked on together: one turn of a thread, one transaction.

A fleet's nodes push a few readings each, and what a turn and a transaction cost has little to do with how many readings
are in them. Where several came at once the next ones are waited for, for a moment; a sender that is alone never waits.
Of many that push now and then each can wait longer: it has nothing else to send.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Generic, TypeVar

LINGER_SECONDS = 0.1
"""How long others are waited for at most (own choice): an agent that pushes every few seconds does not notice."""
QUIET_SECONDS = 0.02
"""Nobody else is waited for once nobody came for so long: senders that go on as soon as they are answered all wait by
then."""
PATIENT_SECONDS = 0.25
"""How long others are waited for where nobody of a group waits to go on (own choice)."""
RESTED_SECONDS = 3.0
"""Who has sent nothing for so long has nothing else to send, and can wait (own choice)."""
CROWD = 64
"""With fewer callers nobody is made to wait (own choice)."""
REMEMBERED_SECONDS, MOST_CALLERS = 120.0, 20_000
"""How long, and how many, callers are remembered."""
MOST = 64
"""Requests of one group."""

T = TypeVar("T")
R = TypeVar("R")


class Crowd:
    """Who sends, and when last."""

    def __init__(self) -> None:
        self._last: dict[Hashable, float] = {}

    def can_wait(self, caller: Hashable, now: float) -> bool:
        """Whether `caller`, who sends something at `now`, is one of many and has rested since it sent before."""
        before = self._last.get(caller)
        self.answered(caller, now)
        while len(self._last) > MOST_CALLERS or now - next(iter(self._last.values())) > REMEMBERED_SECONDS:
            del self._last[next(iter(self._last))]
        return before is not None and now - before >= RESTED_SECONDS and len(self._last) >= CROWD

    def answered(self, caller: Hashable, now: float) -> None:
        """From `now` on it rests; for those who were asked about by `can_wait`, which forgets."""
        self._last.pop(caller, None)
        self._last[caller] = now


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
        self._pressed: float | None = None

    async def submit(self, one: T, *, hurry: bool = False, patient: bool = False) -> R:
        """What became of `one`; raises what `work` answered for it. What is in a `hurry` goes at once and alone, what
        is `patient` waits for `PATIENT_SECONDS` or goes with one that is not."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[R] = loop.create_future()
        if hurry:
            self._begin([(one, answer)])
            return await answer
        self._waiting.append((one, answer))
        self._last = now = loop.time()
        if len(self._waiting) >= MOST or not (patient or self._several or self._tasks):
            self._go()
            return await answer
        presses = not patient and self._pressed is None
        if presses:
            self._pressed = now
        if self._timer is None:
            self._began = now
        if self._timer is None or presses:
            self._wake(loop)
        return await answer

    def _until(self) -> float:
        until = self._began + PATIENT_SECONDS
        return (
            until if self._pressed is None else min(until, self._last + QUIET_SECONDS, self._pressed + LINGER_SECONDS)
        )

    def _wake(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(self._until(), self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._until() > loop.time():
            self._wake(loop)
        else:
            self._go()

    def _go(self) -> None:
        """Begin with all that wait."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._pressed = None
        group, self._waiting = self._waiting, []
        self._several = len(group) > 1
        self._begin(group)

    def _begin(self, group: list[tuple[T, asyncio.Future[R]]]) -> None:
        task = asyncio.get_running_loop().create_task(self._answered(group))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answered(self, group: Sequence[tuple[T, asyncio.Future[R]]]) -> None:
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

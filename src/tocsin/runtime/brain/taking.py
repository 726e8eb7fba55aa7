"""Batches that come at the same time are kept together: one transaction, one look at owners, one place in memory.

A fleet's nodes push a few readings each, and what a write costs has little to do with how many readings are in it.
Nobody is answered before what it sent is kept. Where several came at once the next ones are waited for, for a moment; a
sender that is alone never waits, and an event holds nobody up.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain

from tocsin.domain.batch import Batch
from tocsin.domain.errors import Unavailable

LINGER_SECONDS = 0.05
"""How long others are waited for (own choice): an agent that pushes every few seconds does not notice."""


@dataclass
class _Waiting:
    """A batch that is not kept yet; `leads` is set where its thread is to keep the next batches, its own among them."""

    batch: Batch
    leads: bool = False
    error: Exception | None = field(default_factory=lambda: Unavailable("the readings were not kept; send them again"))
    turn: threading.Event = field(default_factory=threading.Event)


class Taking:
    """Hands batches to `keep`, one call at a time; safe to use from several threads. `pause` waits for its event to be
    set, for `LINGER_SECONDS` at most."""

    def __init__(
        self,
        keep: Callable[[Batch], None],
        pause: Callable[[threading.Event], object] = lambda hurry: hurry.wait(LINGER_SECONDS),
    ) -> None:
        self._keep = keep
        self._pause = pause
        self._lock = threading.Lock()
        self._waiting: list[_Waiting] = []
        self._busy = self._several = False
        self._hurry = threading.Event()

    def take(self, batch: Batch) -> None:
        """Keep `batch`, perhaps with others; raises what `keep` raises for it alone."""
        mine = _Waiting(batch)
        with self._lock:
            self._waiting.append(mine)
            mine.leads, self._busy = not self._busy, True
            if batch.events or batch.findings:
                self._hurry.set()
        if not mine.leads:
            mine.turn.wait()
        if mine.leads:
            self._lead()
        if mine.error is not None:
            raise mine.error

    def _lead(self) -> None:
        """Keep what waits by then, tell those who sent it, and make the first of those who came since the next."""
        if self._several:
            self._pause(self._hurry)
        with self._lock:
            group, self._waiting = self._waiting, []
            self._hurry.clear()
        try:
            self._keep_all(group)
        finally:
            with self._lock:
                self._several = len(group) > 1
                self._busy = bool(self._waiting)
                if self._waiting:
                    self._waiting[0].leads = True
                    self._waiting[0].turn.set()
            for one in group:
                one.turn.set()

    def _keep_all(self, group: Sequence[_Waiting]) -> None:
        try:
            self._keep(_joined([one.batch for one in group]))
            for one in group:
                one.error = None
        except Exception as error:  # noqa: BLE001  # the thread that sent it raises it
            if len(group) == 1:
                group[0].error = error
                return
            # What is wrong with one sender's batch costs no other.
            for one in group:
                self._keep_all([one])


def _joined(batches: Sequence[Batch]) -> Batch:
    if len(batches) == 1:
        return batches[0]
    return Batch(
        list(chain.from_iterable(one.readings for one in batches)),
        list(chain.from_iterable(one.events for one in batches)),
        list(chain.from_iterable(one.findings for one in batches)),
        list(chain.from_iterable(one.predictions for one in batches)),
    )

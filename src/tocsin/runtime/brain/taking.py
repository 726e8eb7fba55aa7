"""Batches that come at the same time are kept together: one transaction, one look at owners, one place in memory.

A fleet's nodes push a few readings each, and what a write costs has little to do with how many readings are in it.
Nobody is answered before what it sent is kept.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain

from tocsin.domain.batch import Batch
from tocsin.domain.errors import Unavailable
from tocsin.store.port import StoreMisconfigured


@dataclass
class _Waiting:
    """Batches of one thread that are not kept yet, and what is wrong with each; `leads` is set where the thread is to
    keep the next ones, its own among them."""

    batches: Sequence[Batch]
    leads: bool = False
    errors: list[Exception | None] = field(default_factory=list)
    turn: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.errors = [Unavailable("the readings were not kept; send them again") for _ in self.batches]


class Taking:
    """Hands batches to `keep`, one call at a time; safe to use from several threads. What comes while others are being
    kept is kept together after them."""

    def __init__(self, keep: Callable[[Batch], None]) -> None:
        self._keep = keep
        self._lock = threading.Lock()
        self._waiting: list[_Waiting] = []
        self._busy = False

    def take(self, batches: Sequence[Batch]) -> list[Exception | None]:
        """Keep `batches`, perhaps with others; what `keep` raised for each alone."""
        if not batches:
            return []
        mine = _Waiting(batches)
        with self._lock:
            self._waiting.append(mine)
            mine.leads, self._busy = not self._busy, True
        if not mine.leads:
            mine.turn.wait()
        if mine.leads:
            self._lead()
        return mine.errors

    def _lead(self) -> None:
        """Keep what waits by then, tell those who sent it, and make the first of those who came since the next."""
        with self._lock:
            group, self._waiting = self._waiting, []
        try:
            self._keep_all([(one, place) for one in group for place in range(len(one.batches))])
        finally:
            with self._lock:
                self._busy = bool(self._waiting)
                if self._waiting:
                    self._waiting[0].leads = True
                    self._waiting[0].turn.set()
            for one in group:
                one.turn.set()

    def _keep_all(self, group: Sequence[tuple[_Waiting, int]]) -> None:
        try:
            self._keep(_joined([one.batches[place] for one, place in group]))
            for one, place in group:
                one.errors[place] = None
        except Exception as error:  # noqa: BLE001  # told to the one who sent it
            if len(group) == 1 or isinstance(error, Unavailable | StoreMisconfigured):
                # What does not answer, or refuses everything, would be waited for once for each of them.
                for one, place in group:
                    one.errors[place] = error
                return
            # What is wrong with one sender's batch costs no other.
            for member in group:
                self._keep_all([member])


def _joined(batches: Sequence[Batch]) -> Batch:
    if len(batches) == 1:
        return batches[0]
    return Batch(
        list(chain.from_iterable(one.readings for one in batches)),
        list(chain.from_iterable(one.events for one in batches)),
        list(chain.from_iterable(one.findings for one in batches)),
        list(chain.from_iterable(one.predictions for one in batches)),
    )

"""One happening, two witnesses: the kernel log and the source beside it both report an XID."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from tocsin.domain.clock import SECOND
from tocsin.domain.event import Event, EventKind

_KINDS = frozenset({EventKind.XID, EventKind.RECOVERY_ACTION})
_KEPT = 1_024
"""Events of either side that wait for their twin."""

SLACK_MS = 5 * SECOND
"""What the two may differ by beyond the time between two readings."""


class Deduplicator:
    """Pairs events of the same kind, GPU and code, one with one.

    The kernel's is the better one: it has the true instant, the process and the text, while a source dates an event to
    the reading that found it, up to `interval_ms` later. Of a pair the kernel's is kept, unless the other has already
    been handed on.
    """

    def __init__(self, interval_ms: int) -> None:
        self._reach_ms = interval_ms + SLACK_MS
        self._kernel: deque[Event] = deque(maxlen=_KEPT)
        self._other: deque[Event] = deque(maxlen=_KEPT)

    def settle(self, kernel: Sequence[Event], other: Sequence[Event]) -> tuple[list[Event], list[Event]]:
        """`kernel` and `other`, both new, without those whose twin speaks for them."""
        own = [event for event in kernel if event.kind not in _KINDS or not self._taken(event, self._other, late=True)]
        self._kernel.extend(event for event in own if event.kind in _KINDS)
        rest = [
            event for event in other if event.kind not in _KINDS or not self._taken(event, self._kernel, late=False)
        ]
        self._other.extend(event for event in rest if event.kind in _KINDS)
        return own, rest

    def _taken(self, event: Event, waiting: deque[Event], *, late: bool) -> bool:
        for one in waiting:
            # Positive where the source's event, as it must be, is the later.
            apart = one.at_ms - event.at_ms if late else event.at_ms - one.at_ms
            same = (one.kind, one.gpu, one.code) == (event.kind, event.gpu, event.code)
            if same and -SLACK_MS <= apart <= self._reach_ms:
                waiting.remove(one)
                return True
        return False

"""Events as rules see them: each once, none from too long ago and none from the future."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tocsin.domain.event import Event
from tocsin.domain.reading import MAX_FUTURE_MS
from tocsin.rules.roster import Roster

_PRUNES = 8
"""Times that remembered ids are looked through within one window."""


class EventLog:
    """Takes in events; `fresh` are those new in this step as (row of the GPU or host, event), in order of time.

    An event counts once by its id, however often it comes. `window_ms` is how far back any rule looks: an older event
    is left out, so that replayed history causes nothing. `dropped` counts what was left out, by reason.
    """

    def __init__(self, roster: Roster, window_ms: int, dropped: Counter[str]) -> None:
        self.fresh: list[tuple[int, Event]] = []
        self._roster = roster
        self._window_ms = window_ms
        self._dropped = dropped
        self._seen: dict[str, int] = {}
        self._pruned_ms = 0

    def accept(self, now_ms: int, events: Sequence[Event]) -> None:
        """Replace `fresh` by what is new in `events`; the roster must settle afterwards."""
        self.fresh = []
        for event in events:
            if event.at_ms < now_ms - self._window_ms:
                self._dropped["event_too_old"] += 1
            elif event.at_ms > now_ms + MAX_FUTURE_MS:
                self._dropped["event_from_the_future"] += 1
            elif event.id not in self._seen:
                self._seen[event.id] = event.at_ms
                self.fresh.append((self._roster.admit_named(event.gpu, event.host), event))
        self.fresh.sort(key=lambda item: (item[1].at_ms, item[1].code, item[1].id))
        if abs(now_ms - self._pruned_ms) * _PRUNES >= self._window_ms:
            self._pruned_ms = now_ms
            self._seen = {name: at for name, at in self._seen.items() if at >= now_ms - self._window_ms}

    def affected(self, row: int, event: Event) -> list[int]:
        """Rows that `event` speaks of: its GPU, or everything on its host where it names no GPU."""
        return [row] if event.gpu else self._roster.on_host(event.host)

"""What agents wrote to the store themselves, brought into memory as if they had pushed it to the brain.

Agents may push to InfluxDB or VictoriaMetrics without passing the brain. What must hold: a reading or an event counts
once, whichever of the two ways it took, or both; and a store that is slow or away holds up no evaluation, which is why
this has a thread of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import structlog

from tocsin.config.settings import StoreKind
from tocsin.domain.batch import Batch
from tocsin.domain.clock import MINUTE, SECOND, Clock
from tocsin.domain.event import Event, EventKind
from tocsin.domain.reading import MAX_FUTURE_MS, Reading
from tocsin.runtime.brain.brain import Brain
from tocsin.runtime.brain.follower import Patience
from tocsin.store.port import Store, StoreUnavailable
from tocsin.telemetry.metrics import OwnMetrics

log = structlog.get_logger()

FOLLOWED = frozenset({StoreKind.INFLUXDB, StoreKind.VICTORIAMETRICS})
"""Kinds of stores that others than the brain write to."""
EVENTS_BACK_MS = 10 * MINUTE
"""Events that reach the store later than this after they happened are met at the next start."""
FRUITLESS, REST_SECONDS = 30, 60.0
"""After so many looks without anything new all agents push to the brain: from then on it looks once a minute."""


class StoreFollower:
    """Implements `tocsin.runtime.brain.follower.Follower`: looks for what is newer than what the brain has.

    `newest` gives the readings that the brain has, `seen` says whether it knows an event, and `take` takes over what it
    lacks and returns what of that may be kept. Readings older than `fresh_ms` are of no use to it.
    """

    name = "store"
    on_standby = True
    before_start = False

    def __init__(
        self,
        store: Store,
        newest: Callable[[], Collection[Reading]],
        seen: Callable[[str], bool],
        take: Callable[[Batch], Batch],
        clock: Clock,
        fresh_ms: int,
        metrics: OwnMetrics,
        every_seconds: float,
    ) -> None:
        self.every_seconds = every_seconds
        self._store = store
        self._newest = newest
        self._seen = seen
        self._take = take
        self._clock = clock
        self._fresh_ms = fresh_ms
        self._metrics = metrics
        self._fruitless = 0
        self._rests_until = 0.0
        self._patience = Patience(every_seconds, clock)
        self._passed: set[str] = set()
        self._refused: set[str] = set()

    def look(self) -> None:
        """Take over what is new. A store that does not answer is said once, until it does."""
        if self._patience.rests() or (self._fruitless >= FRUITLESS and self._clock.monotonic() < self._rests_until):
            return
        now = self._clock.now_ms()
        try:
            readings, events = self._readings(now), self._events(now)
        except StoreUnavailable as error:
            if self._patience.news("away"):
                log.warning("the store cannot be followed, what agents write there is not seen", error=str(error))
            self._patience.failed()
            self._metrics.count("tocsin_source_failures_total", source=self.name)
            return
        self._patience.answered()
        if self._patience.news(""):
            log.info("the store is followed again")
        kept = self._take(Batch(readings=readings, events=events)) if readings or events else Batch()
        self._passed = {event.id for event in events}
        self._fruitless = 0 if kept.readings or kept.events else self._fruitless + 1
        self._rests_until = self._clock.monotonic() + REST_SECONDS
        self._metrics.count("tocsin_store_followed_total", len(kept.readings), what="reading")
        self._metrics.count("tocsin_store_followed_total", len(kept.events), what="event")

    def close(self) -> None:
        """Nothing is held: the store is the brain's."""

    def _readings(self, now_ms: int) -> list[Reading]:
        found = self._store.latest(now_ms - self._fresh_ms)
        known = {reading.gpu.uuid: _extent(reading) for reading in self._newest()}
        soon_ms = now_ms + MAX_FUTURE_MS
        return [one for one in found if known.get(one.gpu.uuid, (-1, 0)) < _extent(one) and one.at_ms <= soon_ms]

    def _events(self, now_ms: int) -> list[Event]:
        found = self._store.events(now_ms - EVENTS_BACK_MS, now_ms + SECOND)
        # What a brain made is no news, and what was refused once is refused.
        self._refused = {event.id for event in found} & (self._refused | self._passed)
        return [
            event
            for event in found
            if event.kind is not EventKind.DUPLICATE_IDENTITY
            and event.id not in self._refused
            and not self._seen(event.id)
        ]


def open_store_follower(brain: Brain) -> StoreFollower | None:
    """What looks into the brain's own store; None where nobody but the brain writes to it."""
    if brain.settings.store.kind not in FOLLOWED:
        return None
    return StoreFollower(
        store=brain.store,
        newest=brain.memory.latest,
        seen=brain.memory.has_event,
        take=brain.take_stored,
        clock=brain.clock,
        fresh_ms=round(brain.settings.actions.fresh_seconds * SECOND),
        metrics=brain.metrics,
        every_seconds=brain.settings.rules.evaluate_seconds,
    )


def _extent(reading: Reading) -> tuple[int, int]:
    """Of one instant more may be in the store than was there at the last look."""
    return reading.at_ms, len(reading.values) + len(reading.missing) + len(reading.owners)

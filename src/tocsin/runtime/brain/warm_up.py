"""What a start reads of the past for the rules, so that they go on as they were: little of a large fleet at a time.

From a store on this host that takes seconds, and the brain begins with it. A server needs minutes for a large fleet:
the brain judges by what comes in, while an engine that knows the past is made beside it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import groupby

import structlog

from tocsin.domain.clock import DAY, MINUTE, SECOND, Clock
from tocsin.domain.event import Event
from tocsin.domain.finding import Finding
from tocsin.domain.reading import Reading
from tocsin.domain.versions import VersionBefore
from tocsin.rules.engine import Inputs, RuleEngine
from tocsin.rules.past import Past, instants
from tocsin.rules.schema import RuleSet
from tocsin.runtime.brain.past_reader import SAMPLE_SPAN_MS
from tocsin.runtime.brain.periodic import Rests
from tocsin.store.port import Store

log = structlog.get_logger()

PAST_MS = DAY
"""How far back. What rises since counts: there is one sample in each slot of `instants`, one a day ago, and one just
before each repair, by which what was counted before is past."""
OFTEN_MS = 30 * MINUTE
"""For how long before the start one sample follows the other, so that a `for` of a rule survives it."""
WHOLE_MS = SAMPLE_SPAN_MS
"""For how long all is read: that many readings of an agent that reads often tell how often it does."""
_LOOK_MS = 10 * SECOND
"""What a sample looks at first; then for the GPUs alone that are not there: agents that read as often are."""


GIVEN_UP_MS = OFTEN_MS
"""After how long a brain that runs meanwhile does without: what it has seen itself is as much by then."""
WARM_SECONDS = 0.1
"""Pause between two samples that are read beside a running brain: what comes in is first (own choice)."""


@dataclass(frozen=True, slots=True)
class _Span:
    """One sample, or all that was read in that time."""

    start_ms: int
    end_ms: int
    whole: bool = False


def warm_up(
    store: Store, known: AbstractSet[str], now_ms: int, step_ms: int, repaired: Mapping[str, int]
) -> Iterator[Inputs]:
    """The past up to `now_ms` of the fleet whose GPUs are `known`, by UUID, as evaluations saw it, oldest first; of the
    last `WHOLE_MS` every `step_ms`. `repaired` has the instants of repairs by GPU or host. Raises StoreUnavailable.
    """
    for span in _spans(now_ms - PAST_MS, now_ms, repaired):
        yield from _read(store, known, span, step_ms, repaired)


def _spans(start_ms: int, now_ms: int, repaired: Mapping[str, int]) -> list[_Span]:
    """What is to be read of the time from `start_ms` on, oldest first."""
    whole_ms = max(start_ms, now_ms - WHOLE_MS)
    often_ms = max(start_ms, min(now_ms - OFTEN_MS, whole_ms))
    starts = {*instants(start_ms, often_ms), *range(often_ms, whole_ms, SAMPLE_SPAN_MS), min(start_ms, whole_ms)}
    spans = {(at_ms, min(at_ms + SAMPLE_SPAN_MS, now_ms)) for at_ms in starts if at_ms < whole_ms}
    for at_ms in repaired.values():
        long_ms = SAMPLE_SPAN_MS if at_ms < often_ms else _LOOK_MS
        spans |= {(at_ms - long_ms + 1, at_ms + 1)} if start_ms < at_ms < whole_ms else set()
    return [*(_Span(*span) for span in sorted(spans)), _Span(whole_ms, now_ms + 1, whole=True)]


def _read(
    store: Store, known: AbstractSet[str], span: _Span, step_ms: int, repaired: Mapping[str, int]
) -> Iterator[Inputs]:
    if not span.whole:
        yield from _seen(_sample(store, known, span.start_ms, span.end_ms), repaired)
        return
    found = store.readings(span.start_ms, span.end_ms)
    for _, group in groupby(found, key=lambda reading: reading.at_ms // step_ms):
        yield from _seen({reading.gpu.uuid: reading for reading in group}, repaired)


class WarmUp:
    """The engine that knows the past, made beside a brain that judges by one that does not.

    `look` is for a thread of its own, all else for the one that evaluates. Until the brain takes the engine, findings
    that are `open` go on as they were recorded.
    """

    def __init__(
        self,
        store: Store,
        ruleset: RuleSet,
        clock: Clock,
        step_ms: int,
        known: Callable[[], AbstractSet[str]],
        repaired: Mapping[str, int],
        versions: Sequence[VersionBefore],
        open_: Iterable[Finding],
    ) -> None:
        self.store = store
        self._clock = clock
        self._step_ms = step_ms
        self._known = known
        self._repaired = repaired
        self._versions = versions
        self.open = list(open_)
        self._engine = RuleEngine(ruleset)
        self._begun_ms = self._until_ms = now_ms = clock.now_ms()
        self._spans = _spans(now_ms - PAST_MS, now_ms, repaired)
        self._pasts: list[Past] = []
        self._left: set[str] = set()
        self._paused = self._ended = False
        self._rests = Rests()
        self.done = False

    def go_on(self, store: Store, open_: Iterable[Finding]) -> None:
        """After a pause, over `store`, where `open_` is on record by now."""
        self.store, self.open, self._paused = store, list(open_), False

    def pause(self) -> None:
        """Let a look that is under way end soon: what it has read so far is read again."""
        self._paused = True

    def end(self) -> None:
        """Read no more."""
        self._paused = self._ended = True

    def look(self) -> None:
        """Read one sample more; does nothing once all is read. Raises StoreUnavailable: later calls try again, the
        fewer the oftener it failed."""
        if not self.done and not self._ended:
            self._rests.look(self._look)

    def _look(self) -> None:
        if not self._spans:
            # Reading took its time: what came in meanwhile is read too, the less the nearer it is to now.
            start_ms, self._until_ms = self._until_ms + 1, self._clock.now_ms()
            self.done = self._until_ms - start_ms < WHOLE_MS
            self._spans = [] if self.done else _spans(start_ms, self._until_ms, {})
            return
        for inputs in _read(self.store, self._known(), self._spans[0], self._step_ms, self._repaired):
            if self._paused:
                return
            self._engine.step(replace(inputs, versions=self._versions))
        del self._spans[0]

    def given_up(self) -> bool:
        """Whether the brain is to do without."""
        return not self.done and self._clock.now_ms() - self._begun_ms > GIVEN_UP_MS

    def hear_past(self, past: Past) -> None:
        """What rules wanted of more of the past, for the engine that is being made."""
        self._pasts.append(past)

    def leave(self, gpus: Iterable[str]) -> None:
        """These GPUs have left the fleet."""
        self._left.update(gpus)

    def with_open(self, active: Sequence[Finding]) -> list[Finding]:
        """`active`, with what was open at the start and is not judged by what its rule wants to know."""
        there = {(one.rule, one.subject.key) for one in active}
        kept = [one for one in self.open if (one.rule, one.subject.key) not in there]
        return [*active, *(one for one in kept if one.subject.name not in self._left)]

    def engine(self, events: Sequence[Event], adopted: Iterable[Finding]) -> RuleEngine:
        """The engine once it is `done`, with the `events` of late; it takes up the `adopted` findings."""
        log.info("rules know the past", seconds=round((self._clock.now_ms() - self._begun_ms) / SECOND))
        self._engine.leave(self._left)
        self._engine.step(Inputs(self._clock.now_ms(), (), events, repairs=self._repaired, versions=self._versions))
        for past in self._pasts:
            self._engine.recall(past)
        self._engine.adopt(adopted)
        return self._engine


def _sample(store: Store, known: AbstractSet[str], start_ms: int, end_ms: int) -> dict[str, Reading]:
    """The first reading of each GPU within the span."""
    found: dict[str, Reading] = {}
    for reading in store.readings(start_ms, start_ms + _LOOK_MS):
        found.setdefault(reading.gpu.uuid, reading)
    if late := known - found.keys():
        for reading in store.readings(start_ms + _LOOK_MS, end_ms, late):
            found.setdefault(reading.gpu.uuid, reading)
    return found


def _seen(readings: Mapping[str, Reading], repaired: Mapping[str, int]) -> Iterator[Inputs]:
    """As one evaluation, or as several where repairs lie between: what was counted before one is past after it."""
    rising, repairs = sorted(readings.values(), key=lambda one: one.at_ms), sorted(repaired.values())
    for _, group in groupby(rising, key=lambda one: bisect_left(repairs, one.at_ms)):
        part = tuple(group)
        now_ms = part[-1].at_ms
        yield Inputs(now_ms, part, repairs={key: at_ms for key, at_ms in repaired.items() if at_ms < now_ms})

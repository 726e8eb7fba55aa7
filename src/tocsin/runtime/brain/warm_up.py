"""What a start reads of the past for the rules, so that they go on as they were: little of a large fleet at a time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from itertools import groupby

from tocsin.domain.clock import DAY, MINUTE, SECOND
from tocsin.domain.reading import Reading
from tocsin.rules.engine import Inputs
from tocsin.rules.past import instants
from tocsin.runtime.brain.past_reader import SAMPLE_SPAN_MS
from tocsin.store.port import Store

PAST_MS = DAY
"""How far back. What rises since counts: there is one sample in each slot of `instants`, one a day ago, and one just
before each repair, by which what was counted before is past."""
OFTEN_MS = 30 * MINUTE
"""For how long before the start one sample follows the other, so that a `for` of a rule survives it."""
WHOLE_MS = SAMPLE_SPAN_MS
"""For how long all is read: that many readings of an agent that reads often tell how often it does."""
_LOOK_MS = 10 * SECOND
"""What a sample looks at first; then for the GPUs alone that are not there: agents that read as often are."""


def warm_up(
    store: Store, known: AbstractSet[str], now_ms: int, step_ms: int, repaired: Mapping[str, int]
) -> Iterator[Inputs]:
    """The past up to `now_ms` of the fleet whose GPUs are `known`, by UUID, as evaluations saw it, oldest first; of the
    last `WHOLE_MS` every `step_ms`. `repaired` has the instants of repairs by GPU or host. Raises StoreUnavailable.
    """
    often_ms, whole_ms = now_ms - OFTEN_MS, now_ms - WHOLE_MS
    rare, often = instants(now_ms - PAST_MS, often_ms), range(often_ms, whole_ms, SAMPLE_SPAN_MS)
    spans = {(start, start + SAMPLE_SPAN_MS) for start in (now_ms - PAST_MS, *rare, *often)}
    for at_ms in repaired.values():
        long_ms = SAMPLE_SPAN_MS if at_ms < often_ms else _LOOK_MS
        spans |= {(at_ms - long_ms + 1, at_ms + 1)} if now_ms - PAST_MS < at_ms < whole_ms else set()
    for start, end in sorted(spans):
        yield from _seen(_sample(store, known, start, end), repaired)
    for _, group in groupby(store.readings(whole_ms, now_ms + 1), key=lambda reading: reading.at_ms // step_ms):
        yield from _seen({reading.gpu.uuid: reading for reading in group}, repaired)


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

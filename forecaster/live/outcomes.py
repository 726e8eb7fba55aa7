"""What came of statements whose window is over: by readings for a crossing, by onsets for a fault.

What did not come counts only where readings show that it did not. A GPU that is no more observed in the second half of
a window, as its host died or left, shows nothing: neither that it stayed healthy nor that a metric stayed below.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from tocsin.domain.clock import HOUR, MINUTE
from tocsin.domain.grouping import grouped, in_parts
from tocsin.domain.metrics import METRICS
from tocsin.domain.prediction import Prediction
from tocsin.forecaster.features.heat import stored_onsets
from tocsin.forecaster.features.onsets import Onset
from tocsin.forecaster.live.recalibration import SEEN_SHARE, came_of
from tocsin.store.grid import by_gpu, within
from tocsin.store.port import Store

TOGETHER = 100
"""GPUs that are asked for in one request: what it costs hardly depends on how many there are."""
PLAIN = "plain"
TAIL_MS = 10 * MINUTE
"""The end of a window that is asked for first, of many GPUs at once: nearly all are observed there (own choice)."""


def outcomes(store: Store, due: Sequence[Prediction]) -> list[bool | None]:
    """Of each of `due`, whose windows are over, whether it came; None where nothing shows that it did not. Raises
    StoreUnavailable."""
    came: dict[int, bool | None] = {}
    # What has a label of its own, such as a process, is of one GPU: it is read of no other.
    for what, cases in grouped((PLAIN if one.metric in METRICS else one.metric, one) for one in due).items():
        came |= _crossings(store, cases) if what else _faults(store, cases)
    return [came[id(one)] for one in due]


def _crossings(store: Store, cases: Iterable[Prediction]) -> dict[int, bool | None]:
    """By identity, as `came_of` has it; many GPUs, and all that was said of them, in one request."""
    found: dict[int, bool | None] = {}
    for part in _together(cases):
        start, end = min(one.at_ms for one in part), max(map(end_of, part))
        uuids, metrics = {one.subject.name for one in part}, sorted({one.metric for one in part})
        series = by_gpu(store.columns(metrics, start + 1, end + 1, uuids), uuids)
        for one in part:
            mine = within(series[one.subject.name], one.at_ms + 1, end_of(one) + 1)
            values = mine.values[:, metrics.index(one.metric)]
            found[id(one)] = came_of(one, mine.at_ms.tolist(), values) if values.size else None
    return found


def _faults(store: Store, cases: Sequence[Prediction]) -> dict[int, bool | None]:
    """By identity, whether hardware failed; None where the GPU was observed no more and did not."""
    onsets = onset_instants(onsets_between(store, min(one.at_ms for one in cases), max(map(end_of, cases))))
    struck = {id(one) for one in cases if _strikes(one, onsets.get(one.subject.name, ()))}
    seen = still_observed(store, [one for one in cases if id(one) not in struck])
    return {id(one): True if id(one) in struck else False if id(one) in seen else None for one in cases}


def _strikes(said: Prediction, onsets: Sequence[int]) -> bool:
    return any(said.at_ms < at_ms <= end_of(said) for at_ms in onsets)


def onsets_between(store: Store, start_ms: int, end_ms: int) -> list[Onset]:
    """The onsets of hardware faults after `start_ms`, up to `end_ms`: whether an event is one depends on the quiet time
    before it, however little was asked for. Raises StoreUnavailable."""
    return [one for one in stored_onsets(store, start_ms, end_ms + 1) if one.at_ms > start_ms]


def onset_instants(onsets: Iterable[Onset]) -> Mapping[str, Sequence[int]]:
    """By device, in ms."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for one in onsets:
        found[one.device].append(one.at_ms)
    return found


def still_observed(store: Store, cases: Iterable[Prediction]) -> set[int]:
    """The identities of `cases` whose GPU has a reading in the second half of the window. Raises StoreUnavailable."""
    found: set[int] = set()
    for part in _ending_together(cases):
        found |= _read_in(store, part, lambda one: end_of(one) - TAIL_MS)
        rest = [one for one in part if id(one) not in found]
        found |= _read_in(store, rest, _middle) if rest else set()
    return found


def _read_in(store: Store, part: Sequence[Prediction], since: Callable[[Prediction], int]) -> set[int]:
    """The identities of those that have a reading in the second half, looked for from `since` on."""
    uuids = {one.subject.name for one in part}
    rows = by_gpu(store.columns((), min(map(since, part)), max(map(end_of, part)) + 1, uuids), uuids)
    found = set()
    for one in part:
        at_ms = rows[one.subject.name].at_ms
        newest = int(np.searchsorted(at_ms, end_of(one), side="right")) - 1
        if newest >= 0 and at_ms[newest] >= _middle(one):
            found.add(id(one))
    return found


def _ending_together(cases: Iterable[Prediction]) -> Iterator[Sequence[Prediction]]:
    """Cases whose windows end within an hour, `TOGETHER` at most."""
    for part in grouped((end_of(one) // HOUR, one) for one in cases).values():
        yield from in_parts(part, TOGETHER)


def _together(cases: Iterable[Prediction]) -> Iterator[list[Prediction]]:
    """Cases to read for in one request: of `TOGETHER` GPUs at most, with windows that span twice their longest."""
    part: list[Prediction] = []
    gpus: set[str] = set()
    start, end, longest = 0, 0, 0
    for one in cases:
        wide = max(end, end_of(one)) - min(start, one.at_ms) > 2 * max(longest, one.horizon_ms)
        full = len(gpus) == TOGETHER and one.subject.name not in gpus
        if part and (wide or full):
            yield part
            part, gpus = [], set()
        if not part:
            start, end, longest = one.at_ms, end_of(one), one.horizon_ms
        start, end, longest = min(start, one.at_ms), max(end, end_of(one)), max(longest, one.horizon_ms)
        part.append(one)
        gpus.add(one.subject.name)
    if part:
        yield part


def end_of(said: Prediction) -> int:
    """The last instant (ms) of its window."""
    return said.at_ms + said.horizon_ms


def _middle(said: Prediction) -> int:
    """From here on a reading shows what did not come."""
    return said.at_ms + int(said.horizon_ms * SEEN_SHARE)

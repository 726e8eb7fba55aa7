"""How likely a GPU that had an error is to have another: a rate beside that of its place, not a multiple of it.

The rate is counted day by day over all GPUs that stay in place after an error, by the kind of their last error and how
long ago it was, each shrunk to the rate over all of them.
"""

from __future__ import annotations

import numpy as np

from tocsin.domain.clock import DAY
from tocsin.forecaster.features.examples import Floats, Ints, Mask
from tocsin_benchmarks.tally import Tally, pairs
from tocsin_benchmarks.titan.data import BURST_MS, EVENTS, Fleet

EDGES_DAYS = (30.0, 120.0)
MEMORY_DAYS = 365.0
FIRST_RATE = 1e-3
"""Onsets per day of such a GPU before any was seen, worth one onset (own choice)."""
PRIOR_ONSETS = 1.0
"""Weight of the rate over all in that of one kind and age. Chosen on 2015."""


def own_rate(fleet: Fleet, life: Ints, at_ms: Ints, teachers: Mask) -> Floats:
    """Onsets per day of each row from its GPU's own errors, 0 without one; counted over the `teachers`, bool[devices],
    up to the start of its day."""
    first_day = int(fleet.insert_ms.min()) // DAY
    cells = len(EVENTS) * (len(EDGES_DAYS) + 1)
    rates = _rates(*_counts(fleet, first_day, cells, teachers))
    had, cell = _cell(fleet, life, at_ms)
    day = np.clip(at_ms // DAY - first_day, 0, len(rates) - 1)
    return np.asarray(np.where(had, rates[day, cell], 0.0), dtype=np.float64)


def _cell(fleet: Fleet, life: Ints, at_ms: Ints) -> tuple[Mask, Ints]:
    """Whether the GPU had an error, and the number of its kind and age."""
    newest = Tally(fleet.event_device, fleet.event_ms).newest(fleet.life_device[life], at_ms)
    had = newest >= 0
    days = np.where(had, at_ms - fleet.event_ms[newest], 0) / DAY if fleet.event_ms.size else np.zeros(life.size)
    kind = fleet.event_kind[newest] if fleet.event_ms.size else np.zeros(life.size, dtype=np.int64)
    return had, np.asarray(np.digitize(days, EDGES_DAYS) + (len(EDGES_DAYS) + 1) * kind, dtype=np.int64)


def _counts(fleet: Fleet, first_day: int, cells: int, teachers: Mask) -> tuple[Floats, Floats]:
    """float64[days, cells]: onsets within each day, and GPUs in place at its start that had an error before."""
    days = fleet.end_ms // DAY - first_day + 1
    life, day = _stays_after_errors(fleet, first_day, days)
    at_ms = (day + first_day) * DAY
    had, cell = _cell(fleet, life, at_ms)
    ago_ms = at_ms - fleet.event_ms[Tally(fleet.event_device, fleet.event_ms).newest(fleet.life_device[life], at_ms)]
    counts = had & (ago_ms > BURST_MS) & teachers[fleet.life_device[life]]
    onset_ms = fleet.event_ms[fleet.onset]
    following = Tally(fleet.event_device[fleet.onset], onset_ms).next(fleet.life_device[life], at_ms)
    hit = counts & (following >= 0) & (np.append(onset_ms, 0)[following] <= at_ms + DAY)
    place = day * cells + cell
    shape = (days, cells)
    onsets, served = (np.bincount(place, weights=one, minlength=days * cells) for one in (hit, counts))
    return onsets.astype(np.float64).reshape(shape), served.astype(np.float64).reshape(shape)


def _stays_after_errors(fleet: Fleet, first_day: int, days: int) -> tuple[Ints, Ints]:
    """Each stay and day, counted from the first, with an earlier error of the stay's GPU."""
    life, of = pairs(fleet.life_device, fleet.event_device)
    since = np.maximum(-(-fleet.event_ms[of] // DAY), -(-fleet.insert_ms[life] // DAY))
    until = np.minimum((fleet.remove_ms[life] - 1) // DAY, first_day + days - 1)
    length = np.maximum(until - since + 1, 0)
    each = np.repeat(np.arange(life.size), length)
    day = since[each] - first_day + np.arange(each.size) - np.repeat(np.cumsum(length) - length, length)
    both = np.unique(life[each] * days + day)
    return both // days, both % days


def _rates(onsets: Floats, served: Floats) -> Floats:
    """float64[days, cells]: the rate at the start of each day, by the days before it."""
    fade = np.exp(-1 / MEMORY_DAYS)
    had, days = np.zeros(onsets.shape[1]), np.zeros(onsets.shape[1])
    rates = np.zeros_like(onsets)
    for day in range(len(onsets)):
        whole = (had.sum() + 1.0) / (days.sum() + 1.0 / FIRST_RATE)
        rates[day] = (had + PRIOR_ONSETS) / (days + PRIOR_ONSETS / whole)
        had, days = had * fade + onsets[day], days * fade + served[day]
    return rates

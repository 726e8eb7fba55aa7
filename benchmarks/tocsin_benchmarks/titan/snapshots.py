"""Decision instants of the fleet of Titan: 00:00 UTC of each day that a GPU is in place.

All instants in the week before an onset are kept, and all soon after an error of the GPU or of its blade, which are
few and on which much depends; of the others a random share, whose weight makes up for it exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tocsin.domain.clock import DAY, HOUR
from tocsin.domain.errors import InputError
from tocsin.forecaster.features.examples import NEVER, Floats, Ints, Mask
from tocsin_benchmarks.tally import Tally, numbered, pairs
from tocsin_benchmarks.titan.data import BURST_MS, Fleet

HORIZON_MS = 48 * HOUR
BEFORE_DAYS = 7
OWN_DAYS = 180
BLADE_DAYS = 10
"""So long before an onset, after an error of the GPU, or of one in its blade, all instants are kept (own choice)."""


@dataclass(frozen=True, slots=True)
class Snapshots:
    """Rows: the stay (index into the fleet's lives), the instant, the next onset (`NEVER`: none), the end of
    observation, and how many instants the row stands for."""

    life: Ints
    at_ms: Ints
    next_ms: Ints
    until_ms: Ints
    weight: Floats

    def __len__(self) -> int:
        return int(self.life.size)

    def take(self, chosen: Mask | Ints) -> Snapshots:
        """Some of the rows."""
        return Snapshots(*(getattr(self, name)[chosen] for name in ("life", "at_ms", "next_ms", "until_ms", "weight")))


def snapshots(fleet: Fleet, start_ms: int, end_ms: int, sample: int, seed: int, lives: Mask) -> Snapshots:
    """Instants t with start <= t and t + 48 h <= end, of the chosen `lives`; about `sample` are drawn from those that
    are not kept anyhow. Left out are instants within 7 days after an error, and those whose label the files do not
    tell. Raises InputError where none is left."""
    days = _Days(fleet, start_ms, end_ms, lives)
    kept = np.unique(np.concatenate([days.before_onsets(), days.after_errors()]))
    size = min(sample, days.total)
    drawn = np.sort(np.random.default_rng(seed).choice(days.total, size=size, replace=False, shuffle=False))
    drawn = np.setdiff1d(drawn, kept, assume_unique=True)
    number = np.concatenate([kept, drawn])
    weight = np.concatenate([np.ones(kept.size), np.full(drawn.size, days.total / max(size, 1))])
    life, at_ms = days.of(number)
    rows = Snapshots(life, at_ms, *_observed(fleet, life, at_ms, end_ms), weight)
    usable = rows.take(_is_usable(fleet, rows))
    if len(usable) == 0:
        raise InputError("instants", 0, "no GPU is in place at an instant of known label", "give files of more days")
    order: Ints = np.lexsort((usable.life, usable.at_ms)).astype(np.int64)
    return usable.take(order)


class _Days:
    """The days of all stays in one line, so that one can be drawn by its number."""

    def __init__(self, fleet: Fleet, start_ms: int, end_ms: int, lives: Mask) -> None:
        self._fleet = fleet
        low = np.maximum(fleet.insert_ms, start_ms)
        high = np.minimum(fleet.remove_ms - 1, end_ms - HORIZON_MS)
        self._first = -(-low // DAY)
        self._count = np.where(lives, np.maximum(high // DAY - self._first + 1, 0), 0)
        self._ends = np.cumsum(self._count)
        self.total = int(self._ends[-1]) if self._ends.size else 0

    def of(self, number: Ints) -> tuple[Ints, Ints]:
        """Stay and instant of each number."""
        life = np.searchsorted(self._ends, number, side="right").astype(np.int64)
        since = number - (self._ends[life] - self._count[life])
        return life, (self._first[life] + since) * DAY

    def _number(self, life: Ints, day: Ints) -> Ints:
        since = day - self._first[life]
        inside = (since >= 0) & (since < self._count[life])
        return np.unique((self._ends[life] - self._count[life] + since)[inside])

    def before_onsets(self) -> Ints:
        """Numbers of the instants in the week before an onset of the stay's GPU."""
        fleet = self._fleet
        life, of = pairs(fleet.life_device, fleet.event_device[fleet.onset])
        newest = (fleet.event_ms[fleet.onset][of] - 1) // DAY
        return self._spread(life, newest, -np.arange(BEFORE_DAYS))

    def after_errors(self) -> Ints:
        """Numbers of the instants soon after an error of the stay's GPU or of another in its blade."""
        fleet = self._fleet
        own, of = pairs(fleet.life_device, fleet.event_device)
        numbers = [self._spread(own, -(-fleet.event_ms[of] // DAY), np.arange(OWN_DAYS))]
        blade = blades(fleet)
        near, of = pairs(blade[fleet.life_slot], blade[fleet.event_slot])
        numbers.append(self._spread(near, -(-fleet.event_ms[of] // DAY), np.arange(BLADE_DAYS)))
        return np.concatenate(numbers)

    def _spread(self, life: Ints, day: Ints, steps: Ints) -> Ints:
        return self._number(np.repeat(life, steps.size), (day[:, None] + steps).ravel())


def blades(fleet: Fleet) -> Ints:
    """int64[slots]: number of the blade, the four slots that share a board."""
    return numbered(*fleet.place[:, :4].T)


def _observed(fleet: Fleet, life: Ints, at_ms: Ints, end_ms: int) -> tuple[Ints, Ints]:
    """The next onset of each GPU, and until when it was observed."""
    onset_ms = fleet.event_ms[fleet.onset]
    found = Tally(fleet.event_device[fleet.onset], onset_ms).next(fleet.life_device[life], at_ms)
    next_ms = np.append(onset_ms, NEVER)[found]
    return np.where(next_ms <= end_ms, next_ms, NEVER), np.minimum(fleet.remove_ms[life], end_ms)


def _is_usable(fleet: Fleet, rows: Snapshots) -> Mask:
    days = Tally(fleet.event_device, fleet.event_ms).days_since(fleet.life_device[rows.life], rows.at_ms)
    faulted = np.nan_to_num(days, nan=np.inf) <= BURST_MS / DAY
    end_ms = rows.at_ms + HORIZON_MS
    usable: Mask = ~faulted & ((rows.next_ms <= end_ms) | (rows.until_ms >= end_ms))
    return usable

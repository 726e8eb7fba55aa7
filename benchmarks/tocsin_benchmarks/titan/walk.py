"""Walks through the weeks of the fleet as one who knows only the past: place effects, and what they leave unexplained.

Each step the effects are fitted anew, and state how many onsets the coming days should bring to each stay. When it is
over, blades, cages and serial-number lots that had more or fewer than stated get a shrunk ratio of their own
(gamma-Poisson), and so does the fleet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tocsin.domain.clock import DAY
from tocsin.forecaster.features.examples import Floats, Ints, Mask
from tocsin_benchmarks.tally import numbered
from tocsin_benchmarks.titan.data import Fleet
from tocsin_benchmarks.titan.place_effects import Past, fit, past_of
from tocsin_benchmarks.titan.snapshots import blades

FLEET_DAYS, FLEET_ONSETS = 30.0, 3.0
"""Memory and prior of the fleet's own ratio: faster than the place effects, for the level rises within weeks."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How often the effects are fitted anew, and the decay times of the pasts that they are fitted on, the logarithms
    of whose rates are averaged."""

    step_ms: int = 7 * DAY
    memories_days: tuple[float, ...] = (60.0, 120.0, 240.0)


PACE = Pace()


@dataclass(frozen=True, slots=True)
class Ratio:
    """An entity's onsets over those stated: memory in days, onsets of its prior, weight of its logarithm in the rate.
    Chosen on 2015, like the place effects."""

    memory_days: float
    prior_onsets: float
    weight: float


RATIOS: Mapping[str, Ratio] = {
    "blade": Ratio(365.0, 1.0, 0.375),
    "cage": Ratio(365.0, 1.0, 0.3),
    "lot_100": Ratio(365.0, 4.0, 0.225),
    "lot_2000": Ratio(365.0, 4.0, 0.225),
}


@dataclass(frozen=True, slots=True)
class Walked:
    """float64[n] each: the log onsets per day of each row, and its parts: what place and make add, the fleet's level,
    its ratio, and the log ratio of each of `RATIOS`."""

    log_rate: Floats
    place: Floats
    level: Floats
    fleet: Floats
    ratios: Mapping[str, Floats]


class _Book:
    """Onsets and stated onsets of entities, fading."""

    def __init__(self, entity: Ints, memory_days: float, prior_onsets: float, step_ms: int) -> None:
        self._entity, self._prior = entity, prior_onsets
        self._fade = float(np.exp(-step_ms / (DAY * memory_days)))
        self._had = np.zeros(int(entity.max(initial=0)) + 1)
        self._stated = np.zeros_like(self._had)

    def log_ratio(self) -> Floats:
        """float64[lives]."""
        ratio = (self._had + self._prior) / (self._stated + self._prior)
        logs: Floats = np.log(ratio)[self._entity]
        return logs

    def add(self, lives: Ints, stated: Floats) -> None:
        """The onsets of a step and what was stated of it for each stay."""
        size = self._had.size
        self._had = self._had * self._fade + np.bincount(self._entity[lives], minlength=size)
        self._stated = self._stated * self._fade + np.bincount(self._entity, weights=stated, minlength=size)


def walk(fleet: Fleet, life: Ints, at_ms: Ints, teachers: Mask, pace: Pace) -> Walked:
    """The rate of each row by what had happened to the `teachers`, bool[devices], up to the start of its week; weeks
    begin on Thursdays, as the epoch did."""
    past = past_of(fleet, teachers)
    step_ms = pace.step_ms
    entities = _entities(fleet)
    books = {name: _Book(entities[name], one.memory_days, one.prior_onsets, step_ms) for name, one in RATIOS.items()}
    whole = _Book(np.zeros(past.insert_ms.size, dtype=np.int64), FLEET_DAYS, FLEET_ONSETS, step_ms)
    effects = {memory: np.zeros(len(past.prior)) for memory in pace.memories_days}
    step = at_ms // step_ms
    parts = np.zeros((3 + len(RATIOS), life.size))
    for one in range(int(past.insert_ms.min() // step_ms) + 1, int(step.max(initial=-1)) + 1):
        now_ms = one * step_ms
        place, level = _place(past, now_ms, effects)
        ratio = whole.log_ratio()
        rows = np.flatnonzero(step == one)
        now = [place, np.full(place.size, level), ratio, *(book.log_ratio() for book in books.values())]
        parts[:, rows] = np.stack(now)[:, life[rows]]
        stated = _days_in_service(past, now_ms, now_ms + step_ms) * np.exp(place + level)
        low, high = np.searchsorted(past.onset_ms, [now_ms, now_ms + step_ms], side="right")
        whole.add(past.onset_life[low:high], stated)
        for book in books.values():
            book.add(past.onset_life[low:high], stated * np.exp(ratio))
    ratios = dict(zip(RATIOS, parts[3:], strict=True))
    rate = parts[:3].sum(axis=0) + np.sum([RATIOS[name].weight * logs for name, logs in ratios.items()], axis=0)
    return Walked(rate, parts[0], parts[1], parts[2], ratios)


def _place(past: Past, now_ms: int, effects: dict[float, Floats]) -> tuple[Floats, float]:
    """What place and make add for each stay, and the level, means over the memories; `effects` is brought to date."""
    place, level = np.zeros(past.insert_ms.size), 0.0
    for memory, before in effects.items():
        effects[memory] = after = fit(past, now_ms, memory, before)
        place += after[past.code[:-1]].sum(axis=0) / len(effects)
        level += float(after[-1]) / len(effects)
    return place, level


def _days_in_service(past: Past, start_ms: int, end_ms: int) -> Floats:
    """Of each stay that is learned from, 0 of the others."""
    days: Floats = np.maximum(np.minimum(past.remove_ms, end_ms) - np.maximum(past.insert_ms, start_ms), 0) / DAY
    return np.where(past.teaches, days, 0.0)


def _entities(fleet: Fleet) -> dict[str, Ints]:
    """int64[lives]: number of each stay's blade, cage of its cabinet, and lot of neighbouring serial numbers."""
    serial = fleet.devices
    prefix = np.unique([one[:7] for one in serial], return_inverse=True)[1]
    number = np.asarray([int(one[7:]) if one[7:].isdigit() else 0 for one in serial], dtype=np.int64)
    lots = {f"lot_{size}": numbered(prefix, number // size)[fleet.life_device] for size in (100, 2000)}
    return {"blade": blades(fleet)[fleet.life_slot], "cage": numbered(*fleet.place[fleet.life_slot, :3].T), **lots}

"""What a builder is made of: intake of readings, liveness, thermal resistance, and what happened to each GPU."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from tocsin.domain.clock import DAY, HOUR, MINUTE
from tocsin.domain.event import Event, EventKind
from tocsin.forecaster.features.arrays import NOT_YET, Arrays, Bools, Floats, Ints, Rows
from tocsin.forecaster.features.onsets import EVENT_CLASSES, FAULT_CLASSES, event_class, is_return
from tocsin.forecaster.features.peers import GpuRoster
from tocsin.forecaster.features.plan import (
    BUSY,
    FAMILIES,
    LIVELY,
    ChannelFeed,
    ColumnLayout,
    FeatureChannel,
    FeatureKind,
    FeaturePlan,
)
from tocsin.forecaster.features.rings import Rings
from tocsin.forecaster.trend.resample import FROZEN_MS, FROZEN_SAMPLES


@dataclass(frozen=True, slots=True)
class Parts:
    """Each part keeps its arrays in `arrays`; `installed_ms` says when a UUID was put into service, where known."""

    plan: FeaturePlan
    arrays: Arrays
    rings: Rings
    intake: Intake
    liveness: Liveness
    thermal: Thermal
    happenings: Happenings
    roster: GpuRoster = field(default_factory=GpuRoster)
    installed_ms: dict[str, int] = field(default_factory=dict)


def parts_of(plan: FeaturePlan) -> Parts:
    """The parts of a builder that knows no GPU yet."""
    arrays = Arrays()
    arrays.add("first_ms", (), np.int64, NOT_YET)
    arrays.add("last_ms", (), np.int64, NOT_YET)
    return Parts(
        plan,
        arrays,
        Rings(plan, arrays),
        Intake(plan, arrays),
        Liveness(arrays),
        Thermal(plan.step_ms, arrays),
        Happenings(arrays),
    )


# From readings to the numbers of channels: growth of counters across resets, shares, peaks.


class Intake:
    """Remembers the last value of every key of each GPU, and adds up what a step brings.

    A counter that falls has started again from zero: what it shows then is its growth, and the reset is noted. Readings
    come in rounds with at most one of each GPU.
    """

    def __init__(self, plan: FeaturePlan, arrays: Arrays) -> None:
        self._arrays = arrays
        self.keys = {name: number for number, name in enumerate(plan.metrics)}
        self._counters = plan.count(FeatureKind.COUNTER)
        self._means = self._counters + plan.count(FeatureKind.MEAN)
        self._channels = len(plan.names)
        arrays.add("last", (len(self.keys),), np.float64, np.nan)
        arrays.add("reset_ms", (), np.int64, NOT_YET)
        arrays.add("resets", (), np.int64)

    def take(self, layout: ColumnLayout, values: Floats, gpus: Rows, at_ms: Rows) -> None:
        """Take in readings `values` float64[k, n] of `gpus` [n]."""
        last = self._arrays["last"]
        where = np.ix_(layout.keys, gpus)
        before = last[where]
        here = np.isfinite(values)
        last[where] = np.where(here, values, before)
        growth = self._growth(layout, values, before, here, gpus, at_ms)
        found = np.full((self._channels, gpus.size), np.nan)
        loaded = _loaded(layout, values)
        for feed in layout.feeds:
            if feed.channel.kind is FeatureKind.COUNTER:
                found[feed.place] = _counter(feed, growth)
            else:
                found[feed.place] = self._gauge(feed, values, loaded, gpus)
        self._add(found, gpus)

    def _growth(
        self, layout: ColumnLayout, values: Floats, before: Floats, here: Bools, gpus: Rows, at_ms: Rows
    ) -> Floats:
        """float64[k, n]: growth of the counters, NaN of everything else and where nothing was known before."""
        growth = np.full(values.shape, np.nan)
        rows = layout.counters
        grown = values[rows] - before[rows]
        fell = grown < 0
        growth[rows] = np.where(fell, values[rows], grown)
        reset = (fell & here[rows]).any(axis=0)
        if reset.any():
            self._arrays["reset_ms"][gpus[reset]] = at_ms[reset]
            self._arrays["resets"][gpus[reset]] += 1
        return growth

    def _gauge(self, feed: ChannelFeed, values: Floats, loaded: Bools, gpus: Rows) -> Floats:
        channel = feed.channel
        value = _first(values, feed.any_of, channel)
        if feed.over.size:
            below = np.nansum(self._arrays["last"][np.ix_(feed.over, gpus)], axis=0)
            value = value / np.where(below > 0, below, np.nan)
        value = value / channel.scale
        if channel.lost:
            value = np.clip(1.0 - value, 0.0, 1.0)
        if channel.at_least is not None:
            value = np.where(np.isnan(value), np.nan, value >= channel.at_least)
        return np.where(loaded, value, np.nan) if channel.loaded else value

    def _add(self, found: Floats, gpus: Rows) -> None:
        total, count = self._arrays["sum"], self._arrays["count"]
        here = np.isfinite(found)
        values = np.where(here, found, 0.0)
        total[: self._means, gpus] += values[: self._means]
        total[self._means :, gpus] = np.maximum(total[self._means :, gpus], values[self._means :])
        count[:, gpus] += here

    def level(self, channel: FeatureChannel) -> Floats:
        """float64[g]: what a counter shows now, over resets of its own; NaN where it was never seen."""
        ways = [self._arrays["last"][[self.keys[key] for key in way]] for way in channel.any_of]
        levels = np.stack([np.where(np.isnan(way).all(axis=0), np.nan, np.nansum(way, axis=0)) for way in ways])
        return np.asarray(np.fmax.reduce(levels) / channel.scale)


def _loaded(layout: ColumnLayout, values: Floats) -> Bools:
    if layout.load < 0:
        return np.ones(values.shape[1], np.bool_)
    return np.asarray(values[layout.load] >= BUSY)


def _counter(feed: ChannelFeed, growth: Floats) -> Floats:
    """Largest growth that one of the ways shows, NaN where none is known."""
    found = [_sum(growth, way) for way in feed.any_of]
    return np.asarray(np.fmax.reduce(found) / feed.channel.scale)


def _first(values: Floats, ways: tuple[Rows, ...], channel: FeatureChannel) -> Floats:
    found = _combined(values, ways[0], channel)
    for way in ways[1:]:
        found = np.where(np.isnan(found), _combined(values, way, channel), found)
    return found


def _combined(values: Floats, way: Rows, channel: FeatureChannel) -> Floats:
    total = _sum(values, way)
    return total / np.maximum(np.isfinite(values[way]).sum(axis=0), 1) if channel.mean else total


def _sum(values: Floats, way: Rows) -> Floats:
    """Sum of the values there are, NaN where there is none."""
    if way.size == 1:
        return np.asarray(values[way[0]])
    part = values[way]
    missing = np.isnan(part)
    return np.asarray(np.where(missing.all(axis=0), np.nan, np.where(missing, 0.0, part).sum(axis=0)))


# Whether what is read is alive: repetition that cannot be, silence, and families of metrics that have gone.

POWER, ENERGY = 0, 1
"""Places in `LIVELY`."""
DRAWING_WATTS = 5.0
"""Power above which the energy counter has to grow."""
BUSY_WATTS = 100.0
"""Power that no idle GPU of a data centre draws."""
BUSY_MS = HOUR
"""How long a busy GPU without an energy counter may seem to stand still; recorded A100s do so for 20 minutes."""
IDLE_MS = 8 * HOUR
"""The same of an idle one; recorded A100s do so for seven hours."""


class Liveness:
    """Follows each GPU's run of equal readings and when each family was last there.

    A reading is frozen where everything lively in it has been the same for `FROZEN_SAMPLES` readings and long enough:
    `FROZEN_MS` where energy is drawn and not counted, else `BUSY_MS` or `IDLE_MS`. A metric that is missing says
    nothing.
    """

    def __init__(self, arrays: Arrays) -> None:
        self._arrays = arrays
        arrays.add("lively", (len(LIVELY),), np.float64, np.nan)
        arrays.add("run_ms", (), np.int64, NOT_YET)
        arrays.add("run", (), np.int64)
        arrays.add("frozen", (), np.bool_)
        arrays.add("family_ms", (len(FAMILIES),), np.int64, NOT_YET)

    def take(self, layout: ColumnLayout, values: Floats, gpus: Rows, at_ms: Ints) -> Bools:
        """Take in readings `values` float64[k, n]; which of them are frozen."""
        moved, repeated = self._compare(layout, values, gpus)
        arrays = self._arrays
        arrays["run_ms"][gpus[moved]] = at_ms[moved]
        arrays["run"][gpus] = np.where(moved, 1, arrays["run"][gpus] + repeated)
        frozen = self._judge(gpus, at_ms)
        arrays["frozen"][gpus] = frozen
        live = ~frozen
        for family, rows in layout.families:
            here = np.isfinite(values[rows]).any(axis=0) & live
            arrays["family_ms"][family, gpus[here]] = at_ms[here]
        return frozen

    def _compare(self, layout: ColumnLayout, values: Floats, gpus: Rows) -> tuple[Bools, Bools]:
        """Which readings differ from what was seen before, and which only repeat it."""
        moved = np.zeros(gpus.size, np.bool_)
        repeated = np.zeros(gpus.size, np.bool_)
        lively = self._arrays["lively"]
        for number, row in layout.lively:
            value, before = values[row], lively[number, gpus]
            here = np.isfinite(value)
            same = value == before
            moved |= here & ~same
            repeated |= same
            lively[number, gpus] = np.where(here, value, before)
        return moved, repeated & ~moved

    def _judge(self, gpus: Rows, at_ms: Ints) -> Bools:
        lively = self._arrays["lively"]
        lasted = at_ms - self._arrays["run_ms"][gpus]
        power = np.nan_to_num(lively[POWER, gpus])
        counted = np.isfinite(lively[ENERGY, gpus])
        drawn = counted & (power > DRAWING_WATTS) & (lasted >= FROZEN_MS)
        busy = ~counted & (power >= BUSY_WATTS) & (lasted >= BUSY_MS)
        enough = self._arrays["run"][gpus] >= FROZEN_SAMPLES
        return np.asarray(enough & (drawn | busy | (lasted >= IDLE_MS)))


# Thermal resistance of each slot, fitted online from power and temperature. In the steady state a die is hotter than
# its inlet by resistance times power (Newton's law of cooling), so temperature is a line in power: its slope is the
# resistance, its intercept the inlet. The line is a least-squares fit with exponential forgetting, kept as decayed
# moments, which gives what recursive least squares gives.

HALF_LIVES_MS = (6 * HOUR, 7 * DAY)
"""Of the quick and of the slow fit (own choice): the first follows a drift, the second is what is usual."""
INLET_C = 25.0
"""Inlet that a fit without any spread of power assumes: the upper half of ASHRAE's recommended 18 to 27 C."""
PRIOR_W2 = 400.0
"""Spread of power, as a variance in W^2, below which the assumed inlet outweighs the fit (own choice: 20 W)."""
LEAST_STEPS = 6
"""Steps without which nothing is said."""
_MOMENTS = 5  # weight, power, temperature, power^2, power * temperature


class Thermal:
    """The two fits of each GPU."""

    def __init__(self, step_ms: int, arrays: Arrays) -> None:
        self._arrays = arrays
        self._keep = [0.5 ** (step_ms / life) for life in HALF_LIVES_MS]
        arrays.add("thermal", (len(HALF_LIVES_MS), _MOMENTS), np.float64)
        arrays.add("thermal_steps", (), np.int64)

    def take(self, power: Floats, temperature: Floats, here: Bools) -> None:
        """Take in the means of one closed step, float64[g], where `here`."""
        moments = self._arrays["thermal"]
        power, temperature = np.where(here, power, 0.0), np.where(here, temperature, 0.0)
        new = np.stack([here.astype(np.float64), power, temperature, power**2, power * temperature])
        for fit, keep in enumerate(self._keep):
            moments[fit] = np.where(here, keep, 1.0) * moments[fit] + new
        steps = self._arrays["thermal_steps"]
        steps += here

    def lines(self) -> tuple[Floats, Floats]:
        """Resistance float64[fits, g] in kelvin per watt and intercept in degrees Celsius; NaN where too little is
        known."""
        weight, power, heat, power2, both = np.moveaxis(self._arrays["thermal"], 1, 0)
        with np.errstate(invalid="ignore", divide="ignore"):
            mean_w, mean_c = power / weight, heat / weight
            spread = np.maximum(power2 / weight - mean_w**2, 0.0)
            together = both / weight - mean_w * mean_c
            assumed = (mean_c - INLET_C) / np.maximum(mean_w, 1.0)
            slope = (together + PRIOR_W2 * assumed) / (spread + PRIOR_W2)
        slope = np.where(self._arrays["thermal_steps"] >= LEAST_STEPS, slope, np.nan)
        return slope, mean_c - slope * mean_w


# What happened to each GPU: onsets by class with decay, repairs, own history, and bursts that hit many at once.

DECAYS_MS = (DAY, 14 * DAY)
"""Time constants of the decay (own choice): the recent, and the inclined."""
REPEAT_MS = 10 * MINUTE
"""Within this an event of the same class on the same GPU is the same onset."""
BURST_MS = MINUTE
"""How near in time events of different GPUs are one burst; on a fleet of 2,344 dozens fell into one scrape of 15 s."""
_REMEMBERED = 100_000
_FADED = 1e-3


class Happenings:
    """Counts events by class. Every class has its number in `EVENT_CLASSES`."""

    def __init__(self, arrays: Arrays) -> None:
        self._arrays = arrays
        classes = len(EVENT_CLASSES)
        arrays.add("events", (classes,), np.int64)
        arrays.add("event_ms", (classes,), np.int64, NOT_YET)
        arrays.add("decayed", (len(DECAYS_MS), classes), np.float64)
        arrays.add("decayed_ms", (classes,), np.int64, NOT_YET)
        arrays.add("back_ms", (), np.int64, NOT_YET)
        arrays.add("backs", (), np.int64)
        arrays.add("lost", (), np.bool_)
        self.known: dict[str, int] = {}
        """Ids of the events that were counted, with their instants; to be saved."""

    def fresh(self, events: Iterable[Event]) -> list[Event]:
        """Those that were not seen before, by instant; a store may give an event again."""
        new: dict[str, Event] = {event.id: event for event in events if event.id not in self.known}
        self.known.update((name, event.at_ms) for name, event in new.items())
        if len(self.known) > _REMEMBERED:
            newest = sorted(self.known.items(), key=lambda item: item[1])[-_REMEMBERED // 2 :]
            self.known = dict(newest)
        return sorted(new.values(), key=lambda event: (event.at_ms, event.id))

    def take(self, event: Event, gpu: int) -> bool | None:
        """Count `event` of GPU number `gpu`; whether it is a fault of the hardware, None where it counts as nothing."""
        arrays = self._arrays
        if is_return(event):
            arrays["back_ms"][gpu] = max(arrays["back_ms"][gpu], event.at_ms)
            arrays["backs"][gpu] += 1
            arrays["lost"][gpu] = False
            return None
        name = event_class(event)
        if not name:
            return None
        if event.kind is EventKind.GPU_LOST:
            arrays["lost"][gpu] = True
        self._count(EVENT_CLASSES.index(name), gpu, event.at_ms)
        return name in FAULT_CLASSES

    def _count(self, number: int, gpu: int, at_ms: int) -> None:
        last_ms = self._arrays["event_ms"][:, gpu]
        repeated = 0 <= at_ms - last_ms[number] < REPEAT_MS
        last_ms[number] = max(last_ms[number], at_ms)
        if repeated:
            return
        self._arrays["events"][number, gpu] += 1
        since_ms = self._arrays["decayed_ms"][:, gpu]
        base_ms = max(int(since_ms[number]), at_ms)
        for place, decay_ms in enumerate(DECAYS_MS):
            value = self._arrays["decayed"][place, number, gpu]
            before = value * np.exp((since_ms[number] - base_ms) / decay_ms) if value else 0.0
            self._arrays["decayed"][place, number, gpu] = before + np.exp((at_ms - base_ms) / decay_ms)
        since_ms[number] = base_ms

    def decayed(self, now_ms: int) -> Floats:
        """float64[decays, classes, g]: events so far, each worth exp(-age / decay)."""
        since = self._arrays["decayed_ms"]
        age = np.where(since == NOT_YET, 0, now_ms - since)
        weight = np.exp(-age[None] / np.array(DECAYS_MS, dtype=np.float64)[:, None, None])
        return np.asarray(self._arrays["decayed"] * weight)


def hours_since(since_ms: Ints, now_ms: int | Ints) -> Floats:
    """Hours from `since_ms` to `now_ms`, NaN where it is `NOT_YET`."""
    return np.asarray(np.where(since_ms == NOT_YET, np.nan, (now_ms - since_ms) / HOUR))


def burst(last_ms: Ints, host: Ints, now_ms: int) -> tuple[Floats, Floats]:
    """Of each GPU's last fault: how many other GPUs, and how many other hosts, had theirs within `BURST_MS` of it.

    Both float64[g], decayed over a day since; 0 without a fault.
    """
    had = last_ms != NOT_YET
    if not had.any():
        return np.zeros(last_ms.size), np.zeros(last_ms.size)
    fade = np.where(had, np.exp(-(now_ms - np.where(had, last_ms, now_ms)) / DAY), 0.0)
    gpus = _near(np.sort(last_ms[had]), last_ms) - 1.0
    pairs = np.unique(np.stack([host[had], last_ms[had]]), axis=1)
    hosts = np.zeros(last_ms.size)
    for row in np.flatnonzero(had & (gpus > 0) & (fade > _FADED)):
        near = np.abs(pairs[1] - last_ms[row]) <= BURST_MS
        hosts[row] = np.unique(pairs[0, near]).size - 1
    return gpus * fade, hosts * fade


def _near(ordered: Ints, instants: Ints) -> Floats:
    high = np.searchsorted(ordered, instants + BURST_MS, side="right")
    low = np.searchsorted(ordered, instants - BURST_MS, side="left")
    return np.asarray(high - low, dtype=np.float64)

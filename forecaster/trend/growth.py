"""Memory that grows towards a limit: since when, how far it came, when it is there, and how likely it ever is.

A process fills its memory when it begins, evenly and for hours, and then holds; a leak begins later. So nothing is said
of growth since a process began until its level has held for once, or has grown for longer than anything fills up.
Growth that stops does so anywhere on its way: nothing is said before a good part of the way is gone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from tocsin.domain.clock import HOUR, MINUTE
from tocsin.domain.phrase import Phrase, say
from tocsin.forecaster.trend.lines import fit_lines
from tocsin.forecaster.trend.resample import Floats, Instants, cadence, median

BIN_MS = 5 * MINUTE
STEP, STEP_NOISE = 0.02, 8.0
"""A change between two samples that no growth makes: another process, or a large allocation. As a share of the whole,
and in median changes, whichever is more (own choice)."""
HOLD_MS = 30 * MINUTE
HELD = 0.012
"""A level has held where its means differ by no more over that time (own choice)."""
LONG_MS = 6 * HOUR
"""What grew for so long does not fill up from its start (own choice)."""
WINDOWS = (6, 8, 12, 18, 27, 40, 60, 90, 135, 200, 300)
"""Means in which a rise is looked for, the longest first."""
LEAST_RISE = 0.008
"""Rise, as a share of the whole, below which it is a ripple."""
LEAST_MEANS = 6
NEWEST_MEANS = 4
STRAIGHT = 0.9
"""Share of the variance that lies on the line."""
STILL, STILL_NOW = 0.85, 0.4
"""Shares of its slope that a line must keep in its older and newer half, and in its newest means."""


USED = 0.5
"""Share of the way to the limit that must be gone before anything is said (own choice): of leaks of which three in ten
stop or shrink, anywhere, six in seven go on from there."""
FAR_MS = 100 * MINUTE
"""What is further ahead has no late end (own choice): growth may stop, or the next process come before it, of which the
past shows nothing; in simulated fleets intervals held the less often, the further ahead they lay."""
# What follows, up to `EARLY`, is fitted to fleets that `python -m tocsin_benchmarks.simulator.growth_counts` counts
# anew: how often growth arrives, how late, and what intervals hold by these numbers.
STOPS = 0.15
"""Share of the growth that stops before its limit, seen from its beginning, fitted to simulated fleets; what has used
up more of its way stops in proportion less often."""
LEAST_NOISE = 0.0002
LATE_SHARES = (0.005, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.25, 0.5, 0.75, 0.9, 0.93, 0.95, 0.97, 0.99)
LATE = (-15.5, -13.9, -8.3, -4.6, -1.7, -1.1, -0.94, -0.26, 0.38, 1.07, 1.73, 2.04, 2.43, 3.04, 6.44)
"""How late growth reaches its limit, in units of its error there: quantiles at `LATE_SHARES`, counted in simulated
fleets where it was no further ahead than `FAR_MS`; the outermost three stand on few cases."""
EARLY = 0.45
"""Of what an interval leaves out, this share comes before it: of simulated fleets those were narrowest."""


@dataclass(frozen=True, slots=True)
class Growth:
    """Grows since `since_ms`, has `used` that share of its way to the limit, and reaches it `lead_ms` after the newest
    sample by a straight line that rises `slope` a millisecond; `noise` is the deviation of its means about the line."""

    since_ms: int
    used: float
    lead_ms: float
    slope: float
    noise: float

    @property
    def comes(self) -> float:
        """Probability that it reaches the limit at all."""
        return 1.0 - STOPS * (1.0 - self.used)

    @property
    def scale_ms(self) -> float:
        """Its error at the limit, as time: the deviation about a line grows in proportion as it is drawn out."""
        return max(self.noise, LEAST_NOISE) / self.slope / self.used

    def comes_within(self, ahead_ms: float) -> float:
        """Probability that it reaches the limit within `ahead_ms` after the newest sample; never falls with it."""
        return self.comes * NormalDist().cdf((ahead_ms - self.quantile(0.5)) / max(self.scale_ms, 1.0))

    def quantile(self, share: float) -> float:
        """Milliseconds after the newest sample by which `share` of the growth that arrives has arrived."""
        late = float(np.interp(share, LATE_SHARES, LATE))
        return max(0.0, self.lead_ms + late * self.scale_ms)

    def interval(self, coverage: float) -> tuple[float, float]:
        """Ends of the interval that holds the crossing with probability `coverage`, what never arrives counted as
        missed; milliseconds after the newest sample. The late end is infinite where too much never arrives, and beyond
        `FAR_MS`."""
        left = 1.0 - coverage / self.comes
        if left < 0.0 or self.lead_ms > FAR_MS:
            return self.quantile((1.0 - coverage) * EARLY), math.inf
        return self.quantile(left * EARLY), self.quantile(1.0 - left * (1.0 - EARLY))

    def ends(self, coverage: float, step_ms: int) -> tuple[float, float]:
        """The ends of `interval` at readings each `step_ms`: those within it, as its quantiles are of readings at which
        crossings were seen, about the middle."""
        low, high = (end / step_ms for end in self.interval(coverage))
        mid = self.quantile(0.5) / step_ms
        last = max(math.floor(high), math.ceil(mid)) if math.isfinite(high) else high
        return min(math.ceil(low), math.floor(mid)) * step_ms, last * step_ms


def growth(at_ms: Instants, values: Floats, limit: float) -> Growth | Phrase | None:
    """What grows at the end of `values` towards `limit`; a reason where that cannot be told yet, None where nothing
    does. Samples without NaN, in order of time, the newest below `limit`; at least two of them."""
    first = _began(values)
    bin_ms = max(BIN_MS, cadence(at_ms))
    means = _means(at_ms[first:], values[first:], bin_ms)
    settled = _settled(means, bin_ms)
    if settled is None:
        return say("the level has not held since its process began")
    found = _grown(means[settled:], bin_ms, int(at_ms[-1]), limit)
    if found is not None and found.used < USED:
        used, needed = f"{found.used:.0%}", f"{USED:.0%}"
        return say("it grew {used} of its way to the limit, {needed} needed", used=used, needed=needed)
    return found


def _began(values: Floats) -> int:
    """Index of the first sample of what runs now."""
    changes = np.abs(np.diff(values))
    steps = np.flatnonzero(changes > max(STEP, STEP_NOISE * median(changes)))
    return int(steps[-1]) + 1 if steps.size else 0


def _means(at_ms: Instants, values: Floats, bin_ms: int) -> Floats:
    """Means of bins counted back from the newest sample, the oldest first; empty ones bridged by a straight line."""
    place = (at_ms[-1] - at_ms) // bin_ms
    count = np.bincount(place)
    known = np.flatnonzero(count)
    found = np.bincount(place, weights=values)[known] / count[known]
    return np.asarray(np.interp(np.arange(count.size), known, found)[::-1])


def _settled(means: Floats, bin_ms: int) -> int | None:
    """Index of the first mean of a level that held; None where none did."""
    wide = int(max(2, HOLD_MS // bin_ms))
    if means.size >= wide:
        windows = np.lib.stride_tricks.sliding_window_view(means, wide)
        held = np.flatnonzero(windows.max(axis=1) - windows.min(axis=1) <= HELD)
        if held.size:
            return int(held[0])
    return 0 if means.size * bin_ms >= LONG_MS else None


def _grown(means: Floats, bin_ms: int, end_ms: int, limit: float) -> Growth | None:
    """The longest straight rise at the end of `means`."""
    if means.size < LEAST_MEANS or means[-1] <= means[-NEWEST_MEANS]:
        return None
    for wide in sorted({min(one, means.size) for one in WINDOWS}, reverse=True):
        if wide < LEAST_MEANS:
            break
        found = _straight(means[-wide:], bin_ms, end_ms, limit)
        if found is not None:
            return found
    return None


def _straight(mine: Floats, bin_ms: int, end_ms: int, limit: float) -> Growth | None:
    whole = fit_lines(mine[None])
    slope, level = float(whole.slope[0]), float(whole.level[0])
    if slope * mine.size < LEAST_RISE or float(whole.explained[0]) < STRAIGHT or level >= limit:
        return None
    older, newer = (float(fit_lines(part[None]).slope[0]) for part in (mine[: mine.size // 2], mine[mine.size // 2 :]))
    newest = float(mine[-1] - mine[-NEWEST_MEANS]) / (NEWEST_MEANS - 1)
    if min(older, newer) < STILL * slope or newest < STILL_NOW * slope:
        return None
    way = limit - level
    rest = mine - level - slope * (np.arange(mine.size) - (mine.size - 1))
    return Growth(
        since_ms=end_ms - (mine.size - 1) * bin_ms,
        used=slope * (mine.size - 1) / (slope * (mine.size - 1) + way),
        lead_ms=way / slope * bin_ms - bin_ms / 2,
        slope=slope / bin_ms,
        noise=float(rest.std()),
    )

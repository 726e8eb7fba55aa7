"""How late growing memory reaches its limit in simulated fleets: what `tocsin.forecaster.trend.growth` was fitted to.

`python -m tocsin_benchmarks.simulator.growth_counts`. The seeds are neither those of the rehearsals nor of the priors.
A GPU is looked at every few minutes, and what is said of it opens a window in which nothing more counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import click
import numpy as np

from tocsin.domain.clock import DAY, HOUR, MINUTE
from tocsin.forecaster.features.examples import Floats
from tocsin.forecaster.trend.growth import FAR_MS, LATE_SHARES, Growth, growth
from tocsin.forecaster.trend.model_threshold import MEMORY_LIMIT, reach_of
from tocsin.sim.fleet import SimulatedFleet
from tocsin.sim.spec import FleetSpec

START_MS = 1_767_571_200_000
FAULT_SCALE = 30.0
USED = "gpu_memory_used_ratio"
PAST = DAY // MINUTE
COVERAGE = 0.8
LOOKED, RISEN = 25, 0.004
"""Minutes, and the least rise within them of what may grow: all else is not looked at, to save time."""


@dataclass(frozen=True, slots=True)
class Said:
    """One statement and after how many milliseconds the limit was there, infinite where it never was in its window."""

    growth: Growth
    came_ms: float

    @property
    def late(self) -> float:
        """In units of its error."""
        return (self.came_ms - self.growth.lead_ms) / self.growth.scale_ms

    @property
    def ends(self) -> tuple[float, float]:
        """Of its interval, at readings a minute apart."""
        return self.growth.ends(COVERAGE, MINUTE)


def used(seed: int, gpus: int, days: float) -> Floats:
    """Memory of each GPU, float64[minutes, gpus]."""
    fleet = SimulatedFleet(FleetSpec(gpus, seed, START_MS, MINUTE, fault_rate_scale=FAULT_SCALE))
    return np.array([fleet.step_columns((USED,))[0].values[:, 0] for _ in range(round(days * PAST))])


def statements(values: Floats, every: int) -> Iterator[Said]:
    """What is said of one GPU, float64[minutes], looked at each `every` minutes, of windows that are over."""
    risen = np.full(values.size, -np.inf)
    risen[LOOKED:] = values[LOOKED:] - values[:-LOOKED]
    until = 0
    for now in np.flatnonzero((risen > RISEN) & (values < MEMORY_LIMIT)).tolist():
        if now % every or now < until:
            continue
        known = now - np.flatnonzero(np.isfinite(values[max(0, now - PAST) : now + 1][::-1]))[::-1]
        found = growth(known * MINUTE, values[known], MEMORY_LIMIT) if known.size > 1 else None
        if not isinstance(found, Growth):
            continue
        wanted = max(HOUR, round(2 * found.quantile(0.5)))
        horizon = min(2 * DAY, reach_of(int(known[-1] - known[0]) * MINUTE, MINUTE), wanted) // MINUTE
        if found.comes_within(horizon * MINUTE) < 0.5:
            continue
        until = now + horizon
        there = np.flatnonzero(values[now + 1 : until + 1] >= MEMORY_LIMIT)
        if until < values.size:
            yield Said(found, float(there[0] + 1) * MINUTE if there.size else math.inf)


def table(said: list[Said]) -> str:
    """Quantiles of how late, and what intervals and probabilities were worth."""
    near = [one for one in said if one.growth.lead_ms <= FAR_MS]
    came = [one for one in near if math.isfinite(one.came_ms)]
    late = np.quantile([one.late for one in came], LATE_SHARES)
    held = [low <= one.came_ms <= high for one in near for low, high in [one.ends]]
    before = [one.came_ms < one.ends[0] for one in near]
    wide = [(high - low) / MINUTE for one in near for low, high in [one.ends]]
    lines = [
        f"statements {len(said)}, no further ahead than {FAR_MS / MINUTE:g} min {len(near)}",
        f"came {np.mean([math.isfinite(one.came_ms) for one in said]):.3f}, "
        f"stated {np.mean([one.growth.comes for one in said]):.3f}",
        f"intervals held {np.mean(held):.3f}, crossings before them {np.mean(before):.3f}, "
        f"median width {np.median(wide):.1f} min",
        *(f"late at {share:g}: {value:.2f}" for share, value in zip(LATE_SHARES, late.tolist(), strict=True)),
    ]
    return "\n".join(lines)


@click.command()
@click.option("--gpus", default=768, show_default=True)
@click.option("--days", default=6.0, show_default=True)
@click.option("--seeds", default=(901, 910), show_default=True, nargs=2, help="First and last.")
def main(gpus: int, days: float, seeds: tuple[int, int]) -> None:
    """Looked at every five minutes, as where growth is expected, and every thirty, as where nothing was."""
    fleets = [used(seed, gpus, days) for seed in range(seeds[0], seeds[1] + 1)]
    both: list[Said] = []
    for every in (5, 30):
        said = [one for values in fleets for gpu in values.T for one in statements(gpu, every)]
        both += said
        click.echo(f"every {every} min\n{table(said)}\n")
    click.echo(f"both\n{table(both)}")


if __name__ == "__main__":
    main()

"""Three alerts that know nothing, scored by the same ticket clock: what a figure is worth shows only beside them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tocsin.domain.clock import HOUR
from tocsin.forecaster.evaluation.ticket_clock import Instants, LoggedIncident, TicketScore, score

DRAWS = 1_000
"""How many coins are tossed and how many circular shifts are made."""
QUANTILE = 95.0
"""Skill is claimed only above this percentile of the shifts."""
SKILL_FIGURE = "fresh_24h"
"""The figure that skill is claimed on. The plain count of found incidents is a poor judge where several incidents of
one node lie within a week: a single start then finds them all, for a shifted alert as for a real one."""

Draw = Callable[[], Mapping[str, Instants]]


BAR = {"found": 6.0, "found_24h": 6.0, "found_48h": 3.0, "precision": 0.85}
"""What the shipped rules must at least reach together on the seven development incidents, set before any rule ran."""
BAR_PER_NODE_DAY = 0.2
"""The most starts per node-day that the bar allows."""


def figures(result: TicketScore, bar: Mapping[str, float] = BAR) -> dict[str, float]:
    """The figures that are compared, by name.

    `found` counts incidents found, `found_24h` and `found_48h` those with at least that lead, `fresh_24h` those with
    24 h where each start serves one incident only, `precision` is 0 without starts, `per_node_day` counts starts, and
    `bar` is 1 where all of `bar` is reached at once within `BAR_PER_NODE_DAY`.
    """
    single = {
        "found": float(result.count()),
        "found_24h": float(result.count(24 * HOUR)),
        "found_48h": float(result.count(48 * HOUR)),
        "fresh_24h": float(result.count_fresh(24 * HOUR)),
        "precision": result.precision or 0.0,
        "per_node_day": result.per_node_day,
    }
    whole = all(single[name] >= least for name, least in bar.items())
    return {**single, "bar": float(whole and result.per_node_day <= BAR_PER_NODE_DAY)}


@dataclass(frozen=True, slots=True)
class Spread:
    """One figure over the draws: mean, 95th percentile, and the share of draws that reach the real alerts' figure."""

    mean: float
    p95: float
    reached: float


@dataclass(frozen=True, slots=True)
class NullAlert:
    """What a null alert gets over `draws` draws, by the names of `figures`."""

    draws: int
    spreads: Mapping[str, Spread]


@dataclass(frozen=True, slots=True)
class Nulls:
    """The three null alerts."""

    always_on: NullAlert
    coin: NullAlert
    shifts: NullAlert


def _null(
    draw: Draw,
    draws: int,
    real: TicketScore,
    incidents: Sequence[LoggedIncident],
    seen: Mapping[str, Instants],
    bar: Mapping[str, float],
) -> NullAlert:
    target = figures(real, bar)
    rows = [figures(score(draw(), incidents, seen), bar) for _ in range(draws)]
    spreads = {}
    for name, value in target.items():
        column = np.array([row[name] for row in rows])
        p95 = float(np.percentile(column, QUANTILE))
        spreads[name] = Spread(float(column.mean()), p95, float((column >= value).mean()))
    return NullAlert(draws, spreads)


def _shifted(times: Instants, seen: Instants, offset: int) -> Instants:
    """Each alert moved on by `offset` observed instants, from the last to the first: gaps stay free of alerts."""
    place = np.searchsorted(seen, times).clip(0, seen.size - 1)
    return np.sort(seen[(place + offset) % seen.size])


def _coin(rng: np.random.Generator, starts: int, seen: Mapping[str, Instants]) -> dict[str, Instants]:
    """`starts` alerts at observed (node, instant) pairs, drawn evenly."""
    owners = np.repeat(np.arange(len(seen)), [times.size for times in seen.values()])
    if owners.size == 0:
        return {}
    instants = np.concatenate(list(seen.values()))
    picks = rng.integers(0, owners.size, starts)
    return {node: np.sort(instants[picks[owners[picks] == i]]) for i, node in enumerate(seen)}


def nulls(
    times: Mapping[str, Instants],
    incidents: Sequence[LoggedIncident],
    observed: Mapping[str, Instants],
    *,
    seed: int = 0,
    draws: int = DRAWS,
    bar: Mapping[str, float] = BAR,
) -> Nulls:
    """Score the null alerts beside the alert `times` per node.

    Always-on alerts at every observed instant. The coin has as many starts as the real alerts, at observed (node,
    instant) pairs drawn evenly. A circular shift moves all of a node's alerts together by one random number of
    observed instants, so that it keeps their number and spacing and only loses their place; each node gets its own.
    Shifting within what was observed is the stricter choice: a shift into a gap of the recording could find nothing.
    """
    rng = np.random.default_rng(seed)
    seen = {node: values for node, values in observed.items() if values.size}
    real = score(times, incidents, observed)

    def shift() -> Mapping[str, Instants]:
        return {
            node: _shifted(values, seen[node], int(rng.integers(0, seen[node].size)))
            for node, values in times.items()
            if node in seen
        }

    return Nulls(
        always_on=_null(lambda: seen, 1, real, incidents, seen, bar),
        coin=_null(lambda: _coin(rng, real.starts, seen), draws, real, incidents, seen, bar),
        shifts=_null(shift, draws, real, incidents, seen, bar),
    )


def figures_above(result: TicketScore, shifts: NullAlert, bar: Mapping[str, float] = BAR) -> list[str]:
    """Names of the figures that lie above the shifts' 95th percentile. One that is at its best possible value there
    already cannot lie above it."""
    return [name for name, value in figures(result, bar).items() if value > shifts.spreads[name].p95]


def skilful(result: TicketScore, shifts: NullAlert) -> bool:
    """Whether `SKILL_FIGURE` lies above the shifts' 95th percentile."""
    return SKILL_FIGURE in figures_above(result, shifts)

"""Which rows a network learns from, and how often it sees them, with the prior that undoes the choice."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tocsin.forecaster.features.examples import Floats, Ints, Mask

MOST_REPEATS = 20


@dataclass(frozen=True, slots=True)
class Choice:
    """Chosen rows int64[m] in ascending order and the weight float64[m] that is left to each."""

    rows: Ints
    weight: Floats


@dataclass(frozen=True, slots=True)
class Course:
    """What an epoch goes through: `order` int64[e] indexes rows, those with an onset perhaps several times; `weight`
    float64[m] has mean 1 on either side. `log_ratio`: see `survival.log_likelihood`."""

    order: Ints
    weight: Floats
    log_ratio: float


def choose(happened: Mask, weight: Floats, limit: int, seed: int) -> Choice:
    """At most `limit` rows: those with an onset, up to half of the limit, and others.

    Rows are drawn in proportion to their weight, systematically, so that those drawn count alike and the sum of
    weights stays near what it was.
    """
    rng = np.random.default_rng(seed)
    hits, quiet = np.flatnonzero(happened & (weight > 0)), np.flatnonzero(~happened & (weight > 0))
    hits, hit_weight = _draw(hits, weight[hits], max(limit // 2, limit - quiet.size), rng)
    quiet, quiet_weight = _draw(quiet, weight[quiet], limit - hits.size, rng)
    rows = np.concatenate([hits, quiet])
    order = np.argsort(rows)
    return Choice(rows[order], np.concatenate([hit_weight, quiet_weight])[order])


def _draw(rows: Ints, weight: Floats, count: int, rng: np.random.Generator) -> tuple[Ints, Floats]:
    if rows.size <= count:
        return rows, weight
    share = _shares(weight, count)
    order = rng.permutation(rows.size)
    steps = np.floor(np.cumsum(share[order]) + rng.random())
    taken = order[np.diff(steps, prepend=0.0) > 0]
    return rows[taken], weight[taken] / share[taken]


def _shares(weight: Floats, count: int) -> Floats:
    """Chances of being drawn, in proportion to `weight`, none above 1, `count` in sum."""
    sure = np.zeros(weight.size, np.bool_)
    share = np.ones(weight.size)
    while True:
        rest = ~sure
        share[rest] = weight[rest] * (count - int(sure.sum())) / weight[rest].sum()
        above = rest & (share > 1)
        if not above.any():
            return share
        share[above] = 1.0
        sure |= above


def course(happened: Mask, weight: Floats, rows: Ints, balance: float) -> Course:
    """How to go through `rows` (indices into `happened` and `weight`): those with an onset are repeated until they are
    a share of `balance`, at most `MOST_REPEATS` times."""
    hits, quiet = rows[happened[rows]], rows[~happened[rows]]
    wanted = balance / (1 - balance) * quiet.size / max(hits.size, 1)
    times = int(min(max(math.floor(wanted), 1), MOST_REPEATS))
    even = np.ones(weight.size)
    met = np.zeros(2)
    for side, (part, repeats) in enumerate(((hits, times), (quiet, 1))):
        if part.size:
            even[part] = weight[part] / weight[part].mean()
            met[side] = repeats * part.size / weight[part].sum()
    ratio = math.log(met[1] / met[0]) if met.all() else 0.0
    return Course(np.concatenate([*([hits] * times), quiet]), even, ratio)

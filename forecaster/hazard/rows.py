"""From examples to the arrays that a model is fitted on: columns by name and made even, rows with a
known label, device folds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase

import numpy as np
import numpy.typing as npt

from tocsin.forecaster.features.examples import Codes, Examples, Floats, Ints, Mask, Singles
from tocsin.forecaster.hazard.scorer import Common, NotEnoughData


@dataclass(frozen=True, slots=True)
class LearningRows:
    """Rows to learn from: `x` float32[n, f], NaN where missing, the other arrays [n]. `onset` says whether an onset
    falls within the longest horizon, `end_ms` is the last instant that any device was observed."""

    x: Singles
    onset: Mask
    weight: Floats
    device: Codes
    group: Codes
    at_ms: Ints
    event_ms: Ints
    until_ms: Ints
    end_ms: int

    def __len__(self) -> int:
        return int(self.onset.size)


def chosen_names(names: tuple[str, ...], patterns: tuple[str, ...]) -> tuple[str, ...]:
    """The names that a pattern matches and no pattern with a leading ``!`` does."""
    wanted = [p for p in patterns if not p.startswith("!")]
    refused = [p[1:] for p in patterns if p.startswith("!")]

    return tuple(
        name
        for name in names
        if any(fnmatchcase(name, p) for p in wanted) and not any(fnmatchcase(name, p) for p in refused)
    )


def aligned(examples: Examples, names: tuple[str, ...]) -> Singles:
    """float32[n, len(names)]: the features by name, NaN for one that the examples lack and for infinities."""
    at = {name: i for i, name in enumerate(examples.names)}
    values = np.full((len(examples), len(names)), np.nan, np.float32)
    there = [(i, at[name]) for i, name in enumerate(names) if name in at]
    if there:
        to, of = zip(*there, strict=True)
        values[:, to] = examples.features[:, of]
    values[~np.isfinite(values)] = np.nan
    return values


def too_short(examples: Examples, settings: Common) -> Mask:
    """Rows whose past is shorter than the scorer needs."""
    return examples.history_ms < settings.min_history_ms


def settled(examples: Examples, horizon_ms: int) -> tuple[Mask, Mask]:
    """`Examples.label`, without the tail of the observation: there only onsets are known, and none of the quiet rows,
    so that a rate would come out too high."""
    onset, known = examples.label(horizon_ms)
    return onset, known & (examples.at_ms + horizon_ms <= examples.until_ms.max(initial=0))


def usable(examples: Examples, settings: Common) -> Ints:
    """Numbers of the rows with past enough and a known label at the longest horizon."""
    _, known = settled(examples, settings.horizons_ms[-1])
    return np.flatnonzero(known & ~too_short(examples, settings) & (examples.weight > 0))


def known_rows(examples: Examples, names: tuple[str, ...], settings: Common) -> LearningRows:
    """The usable rows with the features `names`."""
    onset, _ = examples.label(settings.horizons_ms[-1])
    chosen = usable(examples, settings)
    return LearningRows(
        x=aligned(examples, names)[chosen],
        onset=onset[chosen],
        weight=examples.weight[chosen],
        device=examples.device[chosen],
        group=examples.group[chosen],
        at_ms=examples.at_ms[chosen],
        event_ms=examples.event_ms[chosen],
        until_ms=examples.until_ms[chosen],
        end_ms=int(examples.until_ms.max(initial=0)),
    )


def onsets(rows: LearningRows) -> int:
    """Different onsets within the longest horizon."""
    pairs = np.stack([rows.device[rows.onset].astype(np.int64), rows.event_ms[rows.onset]], axis=1)
    return len(np.unique(pairs, axis=0))


def require(name: str, rows: LearningRows, settings: Common) -> None:
    """Raises NotEnoughData where too few onsets or no quiet row is there to learn from."""
    found = onsets(rows)
    if found < settings.min_onsets:
        text = f"{found} onsets in {len(rows)} rows of known label, {settings.min_onsets} onsets needed"
        raise NotEnoughData(f"{name}: {text}")
    if rows.onset.all():
        raise NotEnoughData(f"{name}: an onset follows each of {len(rows)} rows, rows without one are needed")


def device_folds(rows: LearningRows, folds: int, seed: int) -> Ints:
    """int64[n]: a fold for each row, the same for all rows of a device; devices with an onset are dealt evenly.

    With fewer than `folds` devices that had an onset there are only as many folds, but at least two.
    """
    devices, of_row = np.unique(rows.device, return_inverse=True)
    failed = np.zeros(devices.size, np.bool_)
    failed[of_row[rows.onset]] = True
    count = max(2, min(folds, int(failed.sum())))
    order = np.random.default_rng(seed).permutation(devices.size)
    order = order[np.argsort(~failed[order], kind="stable")]
    fold = np.empty(devices.size, np.int64)
    fold[order] = np.arange(devices.size) % count
    return fold[of_row]


def thin(onset: Mask, weight: Floats, limit: int, seed: int) -> tuple[Ints, Floats]:
    """Rows to keep, all with an onset and at most `limit` others, and their weights: the sums stay as they were."""
    quiet = np.flatnonzero(~onset)
    if quiet.size <= limit:
        return np.arange(onset.size), weight
    kept = np.random.default_rng(seed).choice(quiet, limit, replace=False)
    rows = np.sort(np.concatenate([np.flatnonzero(onset), kept]))
    thinned = weight[rows].copy()
    others = ~onset[rows]
    thinned[others] *= weight[quiet].sum() / thinned[others].sum()
    return rows, thinned


def balanced(onset: Mask, weight: Floats, share: float) -> Floats:
    """Weights of mean 1 of which rows with an onset have `share`, if that is more than they have anyhow."""
    has = weight[onset].sum() / weight.sum()
    if not 0 < has < share:
        return np.asarray(weight / weight.mean(), np.float64)
    factor = share / (1 - share) * (1 - has) / has
    balanced = np.where(onset, weight * factor, weight)
    return np.asarray(balanced / balanced.mean(), np.float64)


# Features made even: robust scale, signed logarithm of the tails, marks for what is missing.

SAMPLE = 50_000
"""Rows that quantiles are taken from: evenly spaced, so that the choice needs no chance."""
QUARTILES_TO_SPREAD = 1.349
"""Quartile distance of the normal distribution in standard deviations."""
RARE = 0.002
"""A mark for a missing value is made where at least this share is missing and this share is there."""
LEAST_SPREAD = 0.1
"""A column spreads at least so much: one that is nearly constant would be blown up otherwise. Own choice."""


@dataclass(frozen=True, slots=True)
class Preparation:
    """How columns are made even; float64[m] each.

    z = asinh((x - centre) / scale), held within [low, high] of the fit, then (z - mean) / spread: a line near the
    centre and a signed logarithm in the tails, so that counters and temperatures can be told by the same model.
    `columns` are those that vary; of `marked` columns it is also said whether they are missing. A missing value is 0.
    """

    columns: Ints
    marked: Ints
    centre: Floats
    scale: Floats
    low: Floats
    high: Floats
    mean: Floats
    spread: Floats

    def apply(self, x: Singles) -> Floats:
        """float64[n, columns + marked] for `x` float32[n, f]."""
        z = _even(x[:, self.columns], self.centre, self.scale)
        np.clip(z, self.low, self.high, out=z)
        z -= self.mean
        z /= self.spread
        z[np.isnan(z)] = 0.0
        return np.hstack([z, np.isnan(x[:, self.marked]).astype(np.float64)])

    def arrays(self) -> dict[str, npt.NDArray[np.generic]]:
        return {f"prepare.{one.name}": getattr(self, one.name) for one in fields(self)}


def from_arrays(arrays: Mapping[str, npt.NDArray[np.generic]]) -> Preparation:
    """The reverse of `Preparation.arrays`."""
    return Preparation(**{one.name: np.asarray(arrays[f"prepare.{one.name}"]) for one in fields(Preparation)})


def _even(x: npt.NDArray[np.floating], centre: Floats, scale: Floats) -> Floats:
    z = x.astype(np.float64)
    z -= centre
    z /= scale
    return np.arcsinh(z, out=z)


def prepare(x: Singles) -> Preparation:
    """Learn from `x` float32[n, f], NaN where missing."""
    sample = x[:: max(1, -(-len(x) // SAMPLE))].astype(np.float64)
    missing = np.isnan(sample)
    columns = np.flatnonzero(~missing.all(axis=0))
    centre, scale = _centre_and_scale(sample[:, columns])
    varies = scale > 0
    columns, centre, scale = columns[varies], centre[varies], scale[varies]
    z = _even(sample[:, columns], centre, scale)
    mean = np.nanmean(z, axis=0)
    spread = np.maximum(np.nanstd(z, axis=0), LEAST_SPREAD)
    low, high = np.nanmin(z, axis=0), np.nanmax(z, axis=0)
    return Preparation(columns, _marked(missing), centre, scale, low, high, mean, spread)


def _centre_and_scale(sample: Floats) -> tuple[Floats, Floats]:
    """Median and quartile distance; where that is nothing, the median of what is not at the centre; 0: constant."""
    if not sample.shape[1]:
        return np.zeros(0), np.zeros(0)
    first, centre, third = np.nanquantile(sample, (0.25, 0.5, 0.75), axis=0)
    scale = (third - first) / QUARTILES_TO_SPREAD
    for i in np.flatnonzero(scale <= 0):
        away = np.abs(sample[:, i] - centre[i])
        away = away[away > 0]
        scale[i] = np.median(away) if away.size else 0.0
    return centre, scale


def _marked(missing: npt.NDArray[np.bool_]) -> Ints:
    """Columns that are missing now and then; of several that always are so together, the first."""
    share = missing.mean(axis=0)
    candidates = np.flatnonzero((share >= RARE) & (share <= 1 - RARE))
    if candidates.size == 0:
        return candidates
    _, first = np.unique(np.packbits(missing[:, candidates], axis=0), axis=1, return_index=True)
    return np.asarray(candidates[np.sort(first)], np.int64)

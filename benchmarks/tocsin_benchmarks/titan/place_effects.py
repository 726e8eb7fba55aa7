"""What place and make add to the rate of onsets, learned from the past alone.

Stays are weighed by how lately they were served, so that the effects follow what the fleet does now: early in the life
of Titan errors were few and struck anywhere, later the upper cages with their warm air failed first. Poisson regression
with normal priors shrinks every margin towards the fleet's rate (Clayton and Kaldor, Biometrics 1987, use it for maps
of disease); neighbouring columns and rows are drawn towards each other (Besag, York and Mollie 1991).

All constants were chosen on 2015 from fits on what came before.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tocsin.domain.clock import DAY
from tocsin.forecaster.features.examples import Floats, Ints, Mask
from tocsin_benchmarks.tally import Tally, numbered
from tocsin_benchmarks.titan.data import PLACE_PARTS, Fleet

CELLS = (("cage",), ("node",), ("row",), ("column",), ("blade",), ("cage", "node"), ("row", "cage"), ("year",))
ALONE, TOGETHER = 1.0, 5.0
"""Weight of the prior of an effect of one part, and of two together: it is half believed after so many onsets."""
SMOOTH, LOOSE = 20.0, 0.2
"""Of rows and columns: weight of the difference of neighbours, and of an effect itself."""
LEVEL_ONSETS = 0.5
STEPS = 25
LARGEST_STEP = 2.0
"""Of one effect in one Newton step, in logits: keeps early fits of few onsets in bounds."""
SMALL = 1e-3


@dataclass(frozen=True, slots=True)
class Past:
    """What is fitted on: `code` int64[cells + 1, lives], the effects that each stay has (the last is the level, which
    all have), the weight of their priors float64[effects, effects], which stays are learned from, and the onsets of
    those."""

    code: Ints
    prior: Floats
    insert_ms: Ints
    remove_ms: Ints
    teaches: Mask
    onset_life: Ints
    onset_ms: Ints


def past_of(fleet: Fleet, teachers: Mask) -> Past:
    """Stays, and onsets of the GPUs in `teachers` bool[devices]. An onset of a GPU that no line puts anywhere is left
    out."""
    values = {name: fleet.place[fleet.life_slot, i] for i, name in enumerate(PLACE_PARTS)}
    values["year"] = _year(fleet)[fleet.life_device]
    codes = [numbered(*(values[name] for name in cell)) for cell in CELLS]
    sizes = [int(code.max(initial=0)) + 1 for code in codes]
    first = np.concatenate([[0], np.cumsum(sizes)])
    code = np.stack([*codes, np.zeros_like(codes[0])]) + first[:, None]
    onset_ms = fleet.event_ms[fleet.onset]
    life = Tally(fleet.life_device, fleet.insert_ms).newest(fleet.event_device[fleet.onset], onset_ms - 1)
    placed = np.flatnonzero((life >= 0) & teachers[fleet.event_device[fleet.onset]])
    placed = placed[np.argsort(onset_ms[placed], kind="stable")]
    teaches = teachers[fleet.life_device]
    return Past(code, _prior(sizes), fleet.insert_ms, fleet.remove_ms, teaches, life[placed], onset_ms[placed])


def _year(fleet: Fleet) -> npt.NDArray[np.int32]:
    """Year of make: the sixth and seventh digit of the serial number; 0 where they are none."""
    texts = [serial[5:7] for serial in fleet.devices]
    return np.asarray([int(text) if text.isdigit() else 0 for text in texts], dtype=np.int32)


def _prior(sizes: list[int]) -> Floats:
    total = sum(sizes) + 1
    prior = np.zeros((total, total))
    first = 0
    for cell, size in zip(CELLS, sizes, strict=True):
        block = slice(first, first + size)
        if cell in (("row",), ("column",)):
            steps = np.diff(np.eye(size), axis=0)
            prior[block, block] = LOOSE * np.eye(size) + SMOOTH * steps.T @ steps
        else:
            prior[block, block] = (ALONE if len(cell) == 1 else TOGETHER) * np.eye(size)
        first += size
    return prior


def fit(past: Past, now_ms: int, memory_days: float, start: Floats) -> Floats:
    """Effects as log ratios, the last the fleet's log onsets per GPU and day, on what had happened by `now_ms`.
    `start` is an earlier fit, or zeros."""
    served = _served_days(past, now_ms, memory_days)
    upto = int(np.searchsorted(past.onset_ms, now_ms, side="right"))
    faded = np.exp((past.onset_ms[:upto] - now_ms) / (DAY * memory_days))
    onsets = np.bincount(past.onset_life[:upto], weights=faded, minlength=served.size).astype(np.float64)
    there = (served > 0) & past.teaches
    return _poisson(past.code[:, there], onsets[there], served[there], start, past.prior)


def _served_days(past: Past, now_ms: int, memory_days: float) -> Floats:
    """Days of service up to `now_ms`; a day that is a memory's length ago counts 1/e."""
    end, start = np.minimum(past.remove_ms, now_ms), np.minimum(past.insert_ms, now_ms)
    scale = DAY * memory_days
    days: Floats = memory_days * (np.exp((end - now_ms) / scale) - np.exp((start - now_ms) / scale))
    return np.maximum(days, 0.0)


def _poisson(code: Ints, onsets: Floats, served: Floats, start: Floats, prior: Floats) -> Floats:
    """The most probable effects by Newton's method."""
    effects = start.copy()
    if served.size == 0:
        return effects
    if not start.any():
        effects[-1] = np.log((onsets.sum() + LEVEL_ONSETS) / served.sum())
    size = effects.size
    happened = _by_effect(code, onsets, size)
    happened[-1] += LEVEL_ONSETS
    cross = [above * size + below for above in code for below in code]
    for _ in range(STEPS):
        expected = served * np.exp(np.clip(effects[code].sum(axis=0), -30.0, 5.0))
        gradient = happened - _by_effect(code, expected, size) - prior @ effects
        both = np.sum([np.bincount(one, weights=expected, minlength=size**2) for one in cross], axis=0)
        step = np.linalg.solve(both.reshape(size, size) + prior, gradient)
        step *= min(1.0, LARGEST_STEP / max(float(np.abs(step).max()), SMALL))
        effects += step
        if np.abs(step).max() < SMALL:
            break
    return effects


def _by_effect(code: Ints, values: Floats, size: int) -> Floats:
    """Sum of `values` over the stays that have each effect."""
    total: Floats = np.sum([np.bincount(one, weights=values, minlength=size) for one in code], axis=0)
    return total

"""Readings of whole minutes and of ten: what is kept of old ones.

Of a window, which starts at a multiple of its width since the epoch and is dated by that, there is kept

- of a counter, and of a state (flags, modes, codes, generations, numbers of links): the last value,
- of bits: all that were set at some time,
- of any other gauge: the mean, and as columns ``NAME:min`` and ``NAME:max`` the extremes,
- of reasons and owners: those of the last reading that has any; a reason counts where the window has no value.

A mean weighs every value alike, also where it is made of means: ``NAME:count`` says of how many, where these are fewer
than the readings of the window. (A mean of a variant weighs windows by their readings.) It is rounded to thousandths,
or to the unit of its values where that is finer, and to whole numbers above 1e9: further digits are noise and cost most
of the space.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from tocsin.domain.metrics import METRICS, MetricKind, split_variant
from tocsin.store.embedded.blocks import Block, Extra, Flags, Floats, windows
from tocsin.store.embedded.segments import unit_of

LOW, HIGH, VALUES = ":min", ":max", ":count"
COUNT = ":readings"
"""Column with the number of readings that a window had."""

_STATES = frozenset({"action", "bool", "generation", "lanes", "links", "p-state", "state", "xid"})
_LARGE = 1e9
_FINE = 1000.0

Starts = npt.NDArray[np.intp]


class RollupRule(Enum):
    """What becomes of the values of a window."""

    LAST = "last"
    MEAN = "mean"
    BITS = "bits"
    SUM = "sum"
    LOW = "low"
    HIGH = "high"


@lru_cache(maxsize=65_536)
def rule_of(name: str) -> RollupRule:
    """The rule for a metric, a variant or one of the columns that the roll-up itself makes."""
    if name == COUNT or name.endswith(VALUES):
        return RollupRule.SUM
    if name.endswith((LOW, HIGH)):
        return RollupRule.LOW if name.endswith(LOW) else RollupRule.HIGH
    spec = METRICS.get(split_variant(name)[0])
    if spec is None or spec.kind is MetricKind.COUNTER or spec.unit in _STATES:
        return RollupRule.LAST
    return RollupRule.BITS if spec.unit == "bits" else RollupRule.MEAN


def is_made(name: str) -> bool:
    """Whether the roll-up made the column, so that it is none of a reading's metrics."""
    return ":" in name and "{" not in name


def roll(block: Block, step_ms: int) -> Block:
    """`block`, which has each (GPU, instant) once and is sorted by them, in windows of `step_ms`."""
    if not step_ms or not len(block):
        return block
    at_ms = windows(block.at_ms, step_ms)
    fresh = np.ones(len(block), dtype=np.bool_)
    fresh[1:] = (block.gpu[1:] != block.gpu[:-1]) | (at_ms[1:] != at_ms[:-1])
    first = np.flatnonzero(fresh)
    count = np.nan_to_num(block.column(COUNT), nan=1.0)
    columns = dict(_columns(block, first, count))
    values = np.empty((len(columns), len(first)))
    for place, column in enumerate(columns.values()):
        values[place] = column
    return Block(
        block.gpu[first],
        at_ms[first],
        tuple(columns),
        values,
        block.reasons.last(first),
        block.owners.last(first),
        _rolled_extra(block.extra, np.cumsum(fresh) - 1, count),
    )


def _columns(block: Block, first: Starts, count: Floats) -> Iterator[tuple[str, Floats]]:
    total = np.add.reduceat(count, first)
    yield COUNT, total
    for name, column in zip(block.names, block.values, strict=True):
        if is_made(name):
            continue
        rule = rule_of(name)
        if rule is RollupRule.MEAN:
            yield from _gauge(block, name, column, first, (count, total))
        else:
            yield name, fold(rule, column, first, count)


def _gauge(
    block: Block, name: str, column: Floats, first: Starts, readings: tuple[Floats, Floats]
) -> Iterator[tuple[str, Floats]]:
    """Mean, extremes and number of values; the last two only where they say something."""
    count, total = readings
    weight = np.where(np.isnan(column), 0.0, np.fmin(count, np.nan_to_num(block.column(name + VALUES), nan=np.inf)))
    yield name, fold(RollupRule.MEAN, column, first, weight)
    values = np.add.reduceat(weight, first)
    if not np.array_equal(values, np.where(values > 0, total, 0.0)):
        yield name + VALUES, values
    low, high = (block.column(name + end) for end in (LOW, HIGH))
    lowest = fold(RollupRule.LOW, np.fmin(low, column), first, count)
    highest = fold(RollupRule.HIGH, np.fmax(high, column), first, count)
    if not np.array_equal(lowest, highest, equal_nan=True):
        yield name + LOW, lowest
        yield name + HIGH, highest


def fold(rule: RollupRule, column: Floats, first: Starts, count: Floats) -> Floats:
    """One value for each run of `column` that starts at one of `first`; NaN where a run has no value.

    `count`, float64 like the column, is of how many values each was made, and weighs it in a mean.
    """
    there = ~np.isnan(column)
    some = np.maximum.reduceat(there, first)
    if rule is RollupRule.LAST:
        place = np.maximum.reduceat(np.where(there, np.arange(len(column)), 0), first)
        found = column[place]
    elif rule is RollupRule.BITS:
        found = np.bitwise_or.reduceat(np.where(np.isfinite(column), column, 0.0).astype(np.int64), first).astype(float)
    elif rule is RollupRule.SUM:
        found = np.add.reduceat(np.where(there, column, 0.0), first)
    elif rule is RollupRule.LOW:
        found = np.fmin.reduceat(column, first)
    elif rule is RollupRule.HIGH:
        found = np.fmax.reduceat(column, first)
    else:
        found = _means(column, there, some, first, count)
    return np.where(some, found, np.nan)


@np.errstate(over="ignore")  # a sum beyond what a float holds is brought back to the highest value below
def _means(column: Floats, there: Flags, some: Flags, first: Starts, count: Floats) -> Floats:
    total = np.add.reduceat(np.where(there, column * count, 0.0), first)
    weight = np.add.reduceat(np.where(there, count, 0.0), first)
    mean = total / np.where(some, weight, 1.0)
    unit = unit_of(column)
    if unit is not None:
        large = bool((np.abs(mean) >= _LARGE).any())
        scale = 1.0 if large else max(unit, _FINE)
        mean = np.rint(mean * scale) / scale
    # Rounding, and summing what is all alike, must not lead out of what was measured.
    return np.fmin(np.fmax(mean, np.fmin.reduceat(column, first)), np.fmax.reduceat(column, first))


def _rolled_extra(extra: Extra, window: npt.NDArray[np.intp], count: Floats) -> Extra:
    if not len(extra.row):
        return extra
    group = window[extra.row]
    key = group * len(extra.names) + extra.name
    order = np.argsort(key, kind="stable")
    key, name = key[order], extra.name[order]
    value, weight = extra.value[order], count[extra.row[order]]
    first = np.flatnonzero(np.append(True, key[1:] != key[:-1]))
    rules = [rule_of(text) for text in extra.names]
    of_run = np.array([list(RollupRule).index(rule) for rule in rules])[name[first]]
    folded = np.empty(len(first))
    for rule in set(rules):
        chosen = of_run == list(RollupRule).index(rule)
        folded[chosen] = fold(rule, value, first, weight)[chosen]
    return Extra(group[order[first]].astype(np.int32), name[first], folded, extra.names)

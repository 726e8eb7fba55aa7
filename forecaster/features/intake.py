"""From readings to the numbers of channels: growth of counters across resets, shares, peaks."""

from __future__ import annotations

import numpy as np

from tocsin.forecaster.features.arrays import NOT_YET, Arrays, Bools, Floats, Rows
from tocsin.forecaster.features.channels import BUSY, Channel, Kind
from tocsin.forecaster.features.layout import Feed, Layout
from tocsin.forecaster.features.plan import Plan


class Intake:
    """Remembers the last value of every key of each GPU, and adds up what a step brings.

    A counter that falls has started again from zero: what it shows then is its growth, and the reset is noted. Readings
    come in rounds with at most one of each GPU.
    """

    def __init__(self, plan: Plan, arrays: Arrays) -> None:
        self._arrays = arrays
        self.keys = {name: number for number, name in enumerate(plan.metrics)}
        self._counters = plan.count(Kind.COUNTER)
        self._means = self._counters + plan.count(Kind.MEAN)
        self._channels = len(plan.names)
        arrays.add("last", (len(self.keys),), np.float64, np.nan)
        arrays.add("reset_ms", (), np.int64, NOT_YET)
        arrays.add("resets", (), np.int64)

    def take(self, layout: Layout, values: Floats, gpus: Rows, at_ms: Rows) -> None:
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
            if feed.channel.kind is Kind.COUNTER:
                found[feed.place] = _counter(feed, growth)
            else:
                found[feed.place] = self._gauge(feed, values, loaded, gpus)
        self._add(found, gpus)

    def _growth(self, layout: Layout, values: Floats, before: Floats, here: Bools, gpus: Rows, at_ms: Rows) -> Floats:
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

    def _gauge(self, feed: Feed, values: Floats, loaded: Bools, gpus: Rows) -> Floats:
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

    def level(self, channel: Channel) -> Floats:
        """float64[g]: what a counter shows now, over resets of its own; NaN where it was never seen."""
        ways = [self._arrays["last"][[self.keys[key] for key in way]] for way in channel.any_of]
        levels = np.stack([np.where(np.isnan(way).all(axis=0), np.nan, np.nansum(way, axis=0)) for way in ways])
        return np.asarray(np.fmax.reduce(levels) / channel.scale)


def _loaded(layout: Layout, values: Floats) -> Bools:
    """Where the GPU works, as far as it says."""
    if layout.load < 0:
        return np.ones(values.shape[1], np.bool_)
    return np.asarray(values[layout.load] >= BUSY)


def _counter(feed: Feed, growth: Floats) -> Floats:
    """Largest growth that one of the ways shows, NaN where none is known."""
    found = [_sum(growth, way) for way in feed.any_of]
    return np.asarray(np.fmax.reduce(found) / feed.channel.scale)


def _first(values: Floats, ways: tuple[Rows, ...], channel: Channel) -> Floats:
    found = _combined(values, ways[0], channel)
    for way in ways[1:]:
        found = np.where(np.isnan(found), _combined(values, way, channel), found)
    return found


def _combined(values: Floats, way: Rows, channel: Channel) -> Floats:
    total = _sum(values, way)
    return total / np.maximum(np.isfinite(values[way]).sum(axis=0), 1) if channel.mean else total


def _sum(values: Floats, way: Rows) -> Floats:
    """Sum of the values there are, NaN where there is none."""
    if way.size == 1:
        return np.asarray(values[way[0]])
    part = values[way]
    missing = np.isnan(part)
    return np.asarray(np.where(missing.all(axis=0), np.nan, np.where(missing, 0.0, part).sum(axis=0)))

"""The table of features at one instant. docs/features.md has the definitions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np

from tocsin.domain.clock import DAY, HOUR, MINUTE
from tocsin.forecaster.features import peers
from tocsin.forecaster.features.arrays import NOT_YET, Floats, Ints, Singles
from tocsin.forecaster.features.onsets import EVENT_CLASSES, FAULT_CLASSES
from tocsin.forecaster.features.parts import Parts, burst, hours_since, parts_of
from tocsin.forecaster.features.plan import (
    FAMILIES,
    FROZEN,
    HARDWARE_EVENTS,
    OTHER_EVENTS,
    REPORTED,
    FeatureKind,
    FeaturePlan,
)
from tocsin.forecaster.features.rings import StepSpan

Column = tuple[str, Floats]
DECAYS = ("recent", "inclined")


@dataclass(frozen=True, slots=True)
class FeatureTable:
    """`values` float32[g, f] in the order of `names`, NaN where missing, a row for each of `gpus` (UUIDs).

    `history_ms` int64[g] is the span since each GPU's first reading, -1 without one; `seen_ms` int64[g] the instant of
    the newest datum in its row, peers' data among it, -1 without any.
    """

    gpus: tuple[str, ...]
    names: tuple[str, ...]
    values: Singles
    history_ms: Ints
    seen_ms: Ints

    def column(self, name: str) -> Singles:
        """One feature of all GPUs. Raises ValueError for an unknown name."""
        return self.values[:, self.names.index(name)]


def span_name(milliseconds: int) -> str:
    """``24h``, ``3d``: a span as it stands in names of features."""
    if milliseconds % DAY == 0 and milliseconds > DAY:
        return f"{milliseconds // DAY}d"
    if milliseconds % HOUR == 0:
        return f"{milliseconds // HOUR}h"
    return f"{milliseconds // MINUTE}m" if milliseconds % MINUTE == 0 else f"{milliseconds}ms"


@cache
def names_of(plan: FeaturePlan) -> tuple[str, ...]:
    """Every feature of `plan`, in the order of a table."""
    parts = parts_of(plan)
    parts.rings.advance(parts.rings.step_of(plan.step_ms))
    return tuple(name for name, _ in columns_of(parts, plan.step_ms))


def values_of(parts: Parts, now_ms: int) -> Singles:
    """float32[g, f] of every GPU at `now_ms`, which lies in the step in progress."""
    values = np.empty((len(names_of(parts.plan)), parts.arrays.size), np.float32)
    for place, (_, column) in enumerate(columns_of(parts, now_ms)):
        values[place] = column
    return np.ascontiguousarray(values.T)


def columns_of(parts: Parts, now_ms: int) -> Iterator[Column]:
    """Every feature with its values float64[g]."""
    spans = parts.rings.spans(now_ms)
    yield from _counters(parts, spans)
    yield from _means(parts, spans)
    yield from _peaks(parts, spans)
    yield from _shares(parts, spans, now_ms)
    yield from _life(parts, now_ms)
    yield from _events(parts, now_ms)
    yield from heat(parts, spans[0])
    yield from against_peers(parts, spans)
    yield from neighbours(parts, now_ms)


def _labels(plan: FeaturePlan) -> list[str]:
    return [span_name(window) for window in plan.windows_ms]


def _counters(parts: Parts, spans: list[StepSpan]) -> Iterator[Column]:
    plan, names = parts.plan, parts.plan.names
    day = max((place for place, window in enumerate(plan.windows_ms) if window <= DAY), default=0)
    quick, slow = min(1, len(spans) - 1), max(0, len(spans) - 2)
    for channel in plan.of(FeatureKind.COUNTER):
        place = names.index(channel.name)
        with np.errstate(invalid="ignore"):
            yield f"{channel.name}.level", np.log1p(parts.intake.level(channel))
        for label, span in zip(_labels(plan), spans, strict=True):
            yield f"{channel.name}.{label}", _grown(span, place)
        rates = [_rate(plan, spans[which], place) for which in (day, quick, slow)]
        yield f"{channel.name}.rate", rates[0]
        yield f"{channel.name}.surge", rates[1] - rates[2]
    for name in (HARDWARE_EVENTS, OTHER_EVENTS):
        for label, span in zip(_labels(plan), spans, strict=True):
            yield f"{name}.{label}", np.log1p(span.total[names.index(name)])


def _grown(span: StepSpan, place: int) -> Floats:
    return np.asarray(np.where(span.steps[place] > 0, np.log1p(span.total[place]), np.nan))


def _rate(plan: FeaturePlan, span: StepSpan, place: int) -> Floats:
    """log(1 + growth per hour that was watched)."""
    hours = span.steps[place] * (plan.step_ms / HOUR)
    return np.asarray(np.where(hours > 0, np.log1p(span.total[place] / np.where(hours > 0, hours, 1.0)), np.nan))


def _means(parts: Parts, spans: list[StepSpan]) -> Iterator[Column]:
    plan, names = parts.plan, parts.plan.names
    newest, here = parts.rings.values(parts.rings.step)
    for channel in plan.of(FeatureKind.MEAN):
        place = names.index(channel.name)
        level = spans[0].mean(place)
        yield f"{channel.name}.level", level
        now = np.where(here[place], newest[place], np.nan)
        yield f"{channel.name}.{_labels(plan)[0]}", now - level
        for label, span in zip(_labels(plan)[1:], spans[1:], strict=True):
            yield f"{channel.name}.{label}", level - span.mean(place)


def _peaks(parts: Parts, spans: list[StepSpan]) -> Iterator[Column]:
    plan, names = parts.plan, parts.plan.names
    for channel in plan.of(FeatureKind.PEAK):
        place = names.index(channel.name)
        for label, span in zip(_labels(plan), spans, strict=True):
            yield f"{channel.name}.{label}", np.where(span.steps[place] > 0, span.total[place], np.nan)


def _shares(parts: Parts, spans: list[StepSpan], now_ms: int) -> Iterator[Column]:
    """Share of a window's steps in which anything was read, and in which it was frozen, since the first reading."""
    plan = parts.plan
    first_ms = parts.arrays["first_ms"]
    known_ms = np.where(first_ms == NOT_YET, 0, now_ms - first_ms + plan.step_ms)
    for name in (REPORTED, FROZEN):
        place = plan.names.index(name)
        for window, label, span in zip(plan.windows_ms, _labels(plan), spans, strict=True):
            whole = np.minimum(known_ms, window) / plan.step_ms
            share = np.minimum(span.steps[place] / np.maximum(whole, 1.0), 1.0)
            yield f"{name}.{label}", np.where(known_ms > 0, share, np.nan)


def _life(parts: Parts, now_ms: int) -> Iterator[Column]:
    arrays = parts.arrays
    last_ms, first_ms = arrays["last_ms"], arrays["first_ms"]
    yield "silent_hours", np.log1p(hours_since(last_ms, now_ms))
    yield "flat_hours", np.log1p(hours_since(arrays["run_ms"], now_ms))
    yield "frozen_now", arrays["frozen"].astype(np.float64)
    yield "reset_hours", np.log1p(hours_since(arrays["reset_ms"], now_ms))
    yield "resets", np.log1p(arrays["resets"])
    yield "lost", arrays["lost"].astype(np.float64)
    yield "back_hours", np.log1p(hours_since(arrays["back_ms"], now_ms))
    yield "backs", np.log1p(arrays["backs"])
    installed = [parts.installed_ms.get(gpu.uuid, NOT_YET) for gpu in parts.roster.gpus]
    born_ms = np.where(np.array(installed, dtype=np.int64) == NOT_YET, first_ms, np.array(installed, dtype=np.int64))
    yield "age_days", np.log1p(np.maximum(hours_since(born_ms, now_ms), 0.0) / 24.0)
    yield "slot", np.array([np.nan if g.index is None else g.index for g in parts.roster.gpus], dtype=np.float64)
    gone = hours_since(arrays["family_ms"], last_ms)  # at the newest reading, not now
    for number, family in enumerate(FAMILIES):
        yield f"family.{family}.gone", np.log1p(np.maximum(gone[number], 0.0))


def _events(parts: Parts, now_ms: int) -> Iterator[Column]:
    decayed = parts.happenings.decayed(now_ms)
    event_ms, counts = parts.arrays["event_ms"], parts.arrays["events"]
    since = hours_since(event_ms, now_ms)
    for number, name in enumerate(EVENT_CLASSES):
        for decay, values in zip(DECAYS, decayed[:, number], strict=True):
            yield f"event.{name}.{decay}", values
        yield f"event.{name}.hours", np.log1p(since[number])
        yield f"event.{name}.count", np.log1p(counts[number])
    faults = np.where(parts.roster.surplus, NOT_YET, event_ms[: len(FAULT_CLASSES)].max(axis=0))
    gpus, hosts = burst(faults, parts.roster.host, now_ms)
    yield "burst.gpus", np.log1p(gpus)
    yield "burst.hosts", np.log1p(hosts)


# Features that come of a comparison: heat with its own past, values with peers, events with those of neighbours.

ALIKE = ("model", "host", "rack", "job")
"""Where peers are looked for; always among GPUs of the same model."""
NEIGHBOURS = ("model", "host", "rack", "slot", "batch", "job")
"""Whose events are counted beside a GPU's own."""
GAUGES = {
    "temperature": ("power", 1.0),
    "memory_temperature": ("power", 1.0),
    "power": ("utilization", 5.0),
    "sm_clock": ("utilization", 0.01),
    "utilization": ("", 0.02),
}
"""What is compared, the load at which, and the least standard deviation that is believed, in its unit (own choice)."""
STEPS = {"power": peers.power_step, "utilization": peers.load_step}
"""Load to what tells the GPUs at equal load."""
RANGED_CHANNELS = {
    "temperature": "gpu_temperature_celsius",
    "memory_temperature": "gpu_memory_temperature_celsius",
    "power": "gpu_power_watts",
}
"""Channels whose levels tell a host that says what cannot be."""
ERRORS = ("ecc_corrected", "pcie_replay", "pcie_errors", "nvlink_crc", "nvlink_replay", "nvlink_symbol")
"""Counters whose growth over a day is compared."""
LEAST_ERRORS = 0.5
"""Least standard deviation of log(1 + growth) that is believed (own choice)."""
LEAST_RESISTANCE = 0.002
"""The same of thermal resistance, in kelvin per watt: 1.4 K at 700 W (own choice)."""


def heat(parts: Parts, newest: StepSpan) -> Iterator[Column]:
    """Thermal resistance now and usually, and how much hotter the GPU is than usual at the power that it draws."""
    slope, inlet = parts.thermal.lines()
    yield "thermal.resistance", slope[0]
    yield "thermal.usual", slope[1]
    with np.errstate(invalid="ignore", divide="ignore"):
        yield "thermal.drift", np.where(slope[1] > 0, slope[0] / slope[1] - 1.0, np.nan)
    yield "thermal.inlet", inlet[1]
    mean = newest.mean()
    power, temperature = (_channel(parts, mean, name) for name in ("power", "temperature"))
    yield "thermal.excess", temperature - (inlet[1] + slope[1] * power)
    counted = peers.counted(parts.roster, _ranged(parts, mean))
    yield "thermal.vs_model", peers.score(slope[0], peers.groups(parts.roster.model), LEAST_RESISTANCE, counted)
    yield "thermal.vs_slot", peers.score(slope[0], peers.groups(parts.roster.slot), LEAST_RESISTANCE, counted)


def against_peers(parts: Parts, spans: list[StepSpan]) -> Iterator[Column]:
    """Values less the median of peers at equal load, and errors of a day in standard deviations of the model."""
    roster = parts.roster
    level = spans[0].mean()
    counted = peers.counted(roster, _ranged(parts, level))
    for name, (load, least) in GAUGES.items():
        values = _channel(parts, level, name)
        step = STEPS[load](_channel(parts, level, load)) if load else np.zeros(values.size, np.int64)
        for alike in ALIKE:
            own = () if alike == "model" else (getattr(roster, alike),)
            group = peers.groups(roster.model, step, *own)
            # Within a host nobody else speaks.
            others = None if alike == "host" else counted
            yield f"{name}.vs_{alike}", peers.residual(values, group, others)
            if alike == "model":
                yield f"{name}.score", peers.score(values, group, least, counted)
    day = max((place for place, window in enumerate(parts.plan.windows_ms) if window <= DAY), default=0)
    for name in ERRORS:
        if name in parts.plan.names:
            grown = np.log1p(_channel(parts, spans[day].total, name))
            yield f"{name}.score", peers.score(grown, peers.groups(roster.model), LEAST_ERRORS, counted)


def _ranged(parts: Parts, level: Floats) -> dict[str, Floats]:
    """The levels of the metrics that models have a range of, by metric."""
    return {metric: _channel(parts, level, name) for name, metric in RANGED_CHANNELS.items()}


def _channel(parts: Parts, values: Floats, name: str) -> Floats:
    """The row of one channel, NaN where the plan does not have it."""
    if name not in parts.plan.names:
        return np.full(parts.arrays.size, np.nan)
    return np.asarray(values[parts.plan.names.index(name)])


def neighbours(parts: Parts, now_ms: int) -> Iterator[Column]:
    """Decayed faults per other GPU of the same model, host, rack, slot, batch and job."""
    faults = parts.happenings.decayed(now_ms)[:, : len(FAULT_CLASSES)].sum(axis=1)
    for alike in NEIGHBOURS:
        group = getattr(parts.roster, alike)
        for decay, values in zip(("recent", "inclined"), faults, strict=True):
            yield f"others.{alike}.{decay}", peers.of_others(values, group, ~parts.roster.surplus)

"""Features that come of a comparison: heat with its own past, values with peers, events with those of neighbours."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tocsin.domain.clock import DAY
from tocsin.forecaster.features import peers
from tocsin.forecaster.features.arrays import Floats, Ints
from tocsin.forecaster.features.onsets import FAULT_CLASSES
from tocsin.forecaster.features.parts import Parts
from tocsin.forecaster.features.rings import Span

Column = tuple[str, Floats]

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
ERRORS = ("ecc_corrected", "pcie_replay", "pcie_errors", "nvlink_crc", "nvlink_replay", "nvlink_symbol")
"""Counters whose growth over a day is compared."""
LEAST_ERRORS = 0.5
"""Least standard deviation of log(1 + growth) that is believed (own choice)."""
LEAST_RESISTANCE = 0.002
"""The same of thermal resistance, in kelvin per watt: 1.4 K at 700 W (own choice)."""


def heat(parts: Parts, newest: Span) -> Iterator[Column]:
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
    yield "thermal.vs_model", peers.score(slope[0], peers.groups(parts.roster.model), LEAST_RESISTANCE)
    yield "thermal.vs_slot", peers.score(slope[0], peers.groups(parts.roster.slot), LEAST_RESISTANCE)


def against_peers(parts: Parts, spans: list[Span]) -> Iterator[Column]:
    """Values less the median of peers at equal load, and errors of a day in standard deviations of the model."""
    roster = parts.roster
    level = spans[0].mean()
    for name, (load, least) in GAUGES.items():
        values = _channel(parts, level, name)
        step = _step(load, _channel(parts, level, load)) if load else np.zeros(values.size, np.int64)
        for alike in ALIKE:
            own = () if alike == "model" else (getattr(roster, alike),)
            group = peers.groups(roster.model, step, *own)
            yield f"{name}.vs_{alike}", peers.residual(values, group)
            if alike == "model":
                yield f"{name}.score", peers.score(values, group, least)
    day = max((place for place, window in enumerate(parts.plan.windows_ms) if window <= DAY), default=0)
    for name in ERRORS:
        if name in parts.plan.names:
            grown = np.log1p(_channel(parts, spans[day].total, name))
            yield f"{name}.score", peers.score(grown, peers.groups(roster.model), LEAST_ERRORS)


def _channel(parts: Parts, values: Floats, name: str) -> Floats:
    """The row of one channel, NaN where the plan does not have it."""
    if name not in parts.plan.names:
        return np.full(parts.arrays.size, np.nan)
    return np.asarray(values[parts.plan.names.index(name)])


def _step(load: str, values: Floats) -> Ints:
    return peers.power_step(values) if load == "power" else peers.load_step(values)


def neighbours(parts: Parts, now_ms: int) -> Iterator[Column]:
    """Decayed faults per other GPU of the same model, host, rack, slot, batch and job."""
    faults = parts.happenings.decayed(now_ms)[:, : len(FAULT_CLASSES)].sum(axis=1)
    for alike in NEIGHBOURS:
        group = getattr(parts.roster, alike)
        for decay, values in zip(("recent", "inclined"), faults, strict=True):
            yield f"others.{alike}.{decay}", peers.of_others(values, group)

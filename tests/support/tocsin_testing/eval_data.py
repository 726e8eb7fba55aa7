"""Made-up examples for the evaluation: every array can be chosen."""

from __future__ import annotations

from typing import Any

import numpy as np

from tocsin.domain.clock import DAY, HOUR
from tocsin.forecaster.features.examples import NEVER, Examples

START = 1_735_689_600_000
HORIZON = 48 * HOUR


def rows(device: Any, at_day: Any, event_day: Any = None, **more: Any) -> Examples:
    """Rows of devices at days after `START`; `event_day` NaN or None: no onset. Observed for ever unless said."""
    device = np.asarray(device, dtype=np.int32)
    count = device.size
    at_ms = START + np.round(np.asarray(at_day, dtype=np.float64) * DAY).astype(np.int64)
    days = np.full(count, np.nan) if event_day is None else np.asarray(event_day, dtype=np.float64)
    event_ms = np.where(np.isnan(days), NEVER, START + np.round(np.nan_to_num(days) * DAY).astype(np.int64))
    devices = int(device.max(initial=0)) + 1
    values: dict[str, Any] = {
        "devices": tuple(f"d{number}" for number in range(devices)),
        "device": device,
        "groups": tuple(f"g{number}" for number in range(devices // 2 + 1)),
        "group": (device // 2).astype(np.int32),
        "at_ms": at_ms,
        "names": ("x",),
        "features": np.arange(count, dtype=np.float32).reshape(-1, 1),
        "seen_ms": at_ms,
        "history_ms": np.full(count, 30 * DAY),
        "event_ms": event_ms,
        "until_ms": np.full(count, START + 10_000 * DAY),
        "event_class": np.where(event_ms == NEVER, "", "bus"),
        "weight": np.ones(count),
    }
    return Examples(**{**values, **more})


def fleet(devices: int = 24, days: int = 40, seed: int = 0, every: float = 1.0) -> Examples:
    """Daily rows of a fleet: some devices fail, the feature `x` rises by 3 in the four days before, `y` is noise."""
    rng = np.random.default_rng(seed)
    fail_day = np.where(rng.random(devices) < 0.7, rng.uniform(4, days, devices), np.nan)
    grid = np.arange(0.0, days, every)
    device, at_day = np.repeat(np.arange(devices), grid.size), np.tile(grid, devices)
    event = fail_day[device]
    alive = ~(event <= at_day)
    device, at_day, event = device[alive], at_day[alive], event[alive]
    near = np.nan_to_num(event - at_day, nan=99.0) < 4
    x = rng.normal(size=device.size) + 3.0 * near
    noise = rng.normal(size=device.size)
    features = np.stack([x, noise], axis=1).astype(np.float32)
    until = np.full(device.size, START + days * DAY)
    return rows(device, at_day, event, names=("x", "y"), features=features, until_ms=until)

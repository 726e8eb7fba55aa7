"""A made-up fleet as examples: some devices fail, most of those show it for days, in a level and in a counter."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tocsin.domain.clock import DAY, HOUR
from tocsin.forecaster.features.examples import NEVER, Examples, HeldSequences
from tocsin_testing.builders import T0

NAMES = ("heat", "errors", "age", "load", "noise", "constant")
STEP_MS = 6 * HOUR
CHANNELS = ("heat", "load")


def fleet(devices: int = 160, days: int = 15, seed: int = 0, failing: float = 0.4, steps: int = 8) -> Examples:
    """Rows every six hours until the failure of a device or the end."""
    rng = np.random.default_rng(seed)
    fail_ms = np.where(rng.random(devices) < failing, rng.uniform(2 * DAY, days * DAY, devices), np.inf)
    shows = rng.random(devices) < 0.7
    device = np.repeat(np.arange(devices), days * 4)
    at = np.tile(np.arange(days * 4) * STEP_MS, devices)
    alive = at < fail_ms[device]
    device, at = device[alive], at[alive]
    left = fail_ms[device] - at
    near = np.where(shows[device] & (left < 3 * DAY), 1 - np.minimum(left, 3 * DAY) / (3 * DAY), 0.0)
    rows = device.size
    x = np.column_stack(
        [
            rng.normal(60, 3, rows) + 12 * near,
            rng.poisson(0.05 + 30 * near**2),
            rng.random(devices)[device] * 1000 + at / DAY,
            rng.random(rows),
            rng.normal(0, 1, rows),
            np.full(rows, 7.0),
        ]
    ).astype(np.float32)
    x[rng.random(x.shape) < 0.03] = np.nan
    failed = np.isfinite(fail_ms[device])
    end = np.where(failed, np.where(np.isfinite(fail_ms), fail_ms, 0)[device], days * DAY).astype(np.int64)
    past = rng.normal(0, 1, (rows, steps, 2)).astype(np.float32)
    past[:, :, 0] += (4 * near)[:, None]
    return Examples(
        devices=tuple(f"gpu{i}" for i in range(devices)),
        device=device.astype(np.int32),
        groups=tuple(f"host{i}" for i in range(devices)),
        group=device.astype(np.int32),
        at_ms=at + T0,
        names=NAMES,
        features=x,
        seen_ms=at + T0,
        history_ms=at + HOUR,
        event_ms=np.where(failed, T0 + end, NEVER),
        until_ms=T0 + end,
        event_class=np.where(failed, "memory", ""),
        weight=np.ones(rows),
        sequences=HeldSequences(CHANNELS, past),
    )


def healthy(rows: int = 12) -> Examples:
    """One device whose every feature stays where that of a healthy one is."""
    like = fleet(devices=1, days=max(3, rows), failing=0.0)
    like = like.take(np.arange(rows))
    usual = np.array([60.0, 0.0, 500.0, 0.5, 0.0, 7.0], np.float32)
    past = np.zeros((rows, 8, 2), np.float32)
    return replace(like, features=np.tile(usual, (rows, 1)), sequences=HeldSequences(CHANNELS, past))


def frozen(examples: Examples) -> Examples:
    """The same with arrays that cannot be written to."""
    for name in examples.__slots__:
        value = getattr(examples, name)
        if isinstance(value, np.ndarray):
            value.setflags(write=False)
    return examples


SMALL: dict[str, dict[str, object]] = {
    "boosting": {"max_iter": 30, "folds": 2, "learning_rate": 0.2},
    "calibrated": {"of": {"strengths": [0.01]}},
    "ensemble": {
        "members": ["hazard", "isolation"],
        "of": {"isolation": {"trees": 30}, "hazard": {"strengths": [0.01]}},
    },
    "hazard": {"strengths": [0.001, 0.01]},
    "isolation": {"trees": 50},
    "lstm": {"hidden": 8, "epochs": 3, "max_rows": 1500},
    "rate": {"rate": "heat"},
    "rules": {"terms": [["heat", ">=", 68.0, 2.0], ["err*", ">=", 3.0, 2.0], ["gone", ">=", 0.0, 1.0]]},
}
"""Settings that make a family quick."""

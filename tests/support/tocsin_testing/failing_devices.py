"""Devices of which some fail after a ramp of one channel: a past that can be learned from in seconds."""

from __future__ import annotations

import numpy as np

from tocsin.domain.clock import HOUR
from tocsin.forecaster.features.examples import NEVER, Examples, HeldSequences

CHANNELS = ("heat", "load", "noise")
FEATURES = ("age", "repairs")


def failing_devices(
    devices: int = 45, instants: int = 12, steps: int = 24, seed: int = 0, gaps: float = 0.2, weight: float = 1.0
) -> Examples:
    """Every third device fails; in the 72 h before, `heat` rises by 0.15 an hour over a noise of 3. Decisions every
    12 h, hourly steps, a share of `gaps` missing; features are noise. Rows without a fault ahead get `weight`."""
    rng = np.random.default_rng(seed)
    span = instants * 12 * HOUR
    device = np.repeat(np.arange(devices), instants)
    at_ms = np.tile(np.arange(instants, dtype=np.int64) * 12 * HOUR, devices)
    fault = (span * rng.uniform(0.3, 1.0, devices)).astype(np.int64)[device]
    event_ms = np.where(device % 3 == 0, fault, NEVER)
    kept = at_ms < event_ms
    device, at_ms, event_ms = device[kept], at_ms[kept], event_ms[kept]
    values = rng.normal(50.0, 3.0, (at_ms.size, steps, len(CHANNELS))).astype(np.float32)
    left_h = (event_ms[:, None] - at_ms[:, None]) / HOUR + np.arange(steps)[::-1]
    values[:, :, 0] += 0.15 * np.clip(72 - left_h, 0, None)
    values[rng.random(values.shape) < gaps] = np.nan
    fails = event_ms < NEVER
    return Examples(
        devices=tuple(f"device-{i}" for i in range(devices)),
        device=device.astype(np.int32),
        groups=("all",),
        group=np.zeros(at_ms.size, np.int32),
        at_ms=at_ms,
        names=FEATURES,
        features=rng.normal(size=(at_ms.size, len(FEATURES))).astype(np.float32),
        seen_ms=at_ms,
        history_ms=np.full(at_ms.size, steps * HOUR),
        event_ms=event_ms,
        until_ms=np.full(at_ms.size, span + 48 * HOUR),
        event_class=np.where(fails, "thermal", ""),
        weight=np.where(fails, 1.0, weight),
        sequences=HeldSequences(CHANNELS, values),
    )

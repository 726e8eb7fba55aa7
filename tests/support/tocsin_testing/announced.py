"""A fleet whose devices announce their faults in one feature, or do not."""

from __future__ import annotations

import numpy as np

from tocsin.domain.clock import DAY, HOUR
from tocsin.forecaster.features.examples import NEVER, Examples
from tocsin_testing.builders import T0

START = T0 // DAY * DAY
NAMES = ("ecc_corrected.24h", "pcie_replay.24h", "nvlink_crc.24h")


def fleet(strength: float = 2.5, *, devices: int = 120, days: int = 60, seed: int = 3, first: int = 0) -> Examples:
    """A row a day for each device. One device in three fails once; `strength` is how far its first feature has moved in
    the two days before, in standard deviations."""
    rng = np.random.default_rng(seed)
    day = np.tile(np.arange(days), devices)
    device = np.repeat(np.arange(devices), days).astype(np.int32)
    at_ms = START + (first + day) * DAY
    fails = np.where(rng.random(devices) < 0.33, rng.integers(3, days, devices), 10_000)
    event = np.where(day < fails[device], START + (first + fails[device]) * DAY - HOUR, NEVER)
    event = np.where(fails[device] < days, event, NEVER)
    soon = (event != NEVER) & (event - at_ms <= 2 * DAY)
    features = rng.normal(0, 1, (day.size, 3)).astype(np.float32)
    features[:, 0] += strength * soon
    keep = (event != NEVER) | (fails[device] >= days)
    order = np.argsort(at_ms, kind="stable")
    whole = Examples(
        devices=tuple(f"G{seed}-{n}" for n in range(devices)),
        device=device,
        groups=tuple(f"h{seed}-{n}" for n in range(devices // 8)),
        group=(device // 8).astype(np.int32),
        at_ms=at_ms,
        names=NAMES,
        features=features,
        seen_ms=at_ms,
        history_ms=np.full(day.size, 30 * DAY),
        event_ms=event,
        until_ms=np.full(day.size, START + (first + days + 3) * DAY),
        event_class=np.where(event == NEVER, "", "memory"),
        weight=np.ones(day.size),
    )
    return whole.take(order[keep[order]])

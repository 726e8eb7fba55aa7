"""First alarms of drives: whom they warn of, how long before, and how many healthy drives they name."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tocsin.domain.clock import HOUR
from tocsin.forecaster.benchmarks.backblaze_models import HORIZON_MS
from tocsin.forecaster.evaluation.bootstrap import clusters, ratio
from tocsin.forecaster.features.examples import NEVER, Examples, Floats, Ints, Mask

LEADS_H = (24, 48)


@dataclass(frozen=True, slots=True)
class First:
    """By drive: what it weighs, the days that it was watched, whether it fails, whether it is ever alarmed about, and
    the span in ms from its first alarm to its failure (0 without either)."""

    weight: Floats
    days: Floats
    fails: Mask
    alarmed: Mask
    lead_ms: Ints


def first_alarms(sweep: Examples, alarm: Mask) -> First:
    """Of `sweep`, every day of its drives, and `alarm` [n]."""
    drives, of_row = np.unique(sweep.device, return_inverse=True)
    weight, event_ms = np.zeros(drives.size), np.zeros(drives.size, dtype=np.int64)
    weight[of_row], event_ms[of_row] = sweep.weight, sweep.event_ms
    first_ms = np.full(drives.size, NEVER)
    np.minimum.at(first_ms, of_row[alarm], sweep.at_ms[alarm])
    fails, alarmed = event_ms != NEVER, first_ms != NEVER
    lead_ms = np.where(fails & alarmed, event_ms, first_ms) - first_ms
    return First(weight, np.bincount(of_row).astype(np.float64), fails, alarmed, lead_ms)


def alarm_draws(sweep: Examples, alarm: Mask, draws: int, seed: int) -> dict[str, Floats]:
    """float64[1 + draws], drives drawn: `hit`, the share of failing drives that fail within 48 h after their first
    alarm; `warned`, those with any alarm before, `warned_24h` and `warned_48h` with the first so long before;
    `precision`, the share of first alarms that a failure follows within 48 h; `false_per_1000_days`."""
    one = first_alarms(sweep, alarm)
    drawn = clusters(np.arange(one.weight.size), draws, seed)
    failing = drawn.total(one.weight * one.fails)
    warned = one.fails & one.alarmed
    hit = warned & (one.lead_ms <= HORIZON_MS)
    raised, right = drawn.total(one.weight * one.alarmed), drawn.total(one.weight * hit)
    days = drawn.total(one.weight * one.days)
    return {
        "hit": ratio(right, failing),
        "warned": ratio(drawn.total(one.weight * warned), failing),
        **{
            f"warned_{hours}h": ratio(drawn.total(one.weight * (warned & (one.lead_ms >= hours * HOUR))), failing)
            for hours in LEADS_H
        },
        "precision": ratio(right, raised),
        "false_per_1000_days": ratio(1000.0 * (raised - right), days),
    }

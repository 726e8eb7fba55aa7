"""Alarms against onsets: how many were warned of, how long before, and how many alarms were about nothing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tocsin.domain.clock import DAY, HOUR
from tocsin.forecaster.evaluation.bootstrap import Clusters, ratio
from tocsin.forecaster.evaluation.result import ReportTable
from tocsin.forecaster.features.examples import NEVER, Codes, Examples, Floats, Ints, Mask

LOOKBACK_MS = 7 * DAY
"""An alarm is about an onset of the same device within this; earlier ones are about nothing."""

MERGE_MS = 24 * HOUR
"""Alarms closer together than this are one alarm, raised at its start."""

LEADS_MS = {"any_lead": 0, "24h_lead": 24 * HOUR, "48h_lead": 48 * HOUR}


@dataclass(frozen=True, slots=True)
class WarnedOnsets:
    """Onsets that rows look at: `device` [k] and `event_ms` [k] of each, `row` [k] one row before it, `lead_ms` [k] the
    span from the earliest alarm about it, 0 without one."""

    device: Codes
    event_ms: Ints
    row: Ints
    lead_ms: Ints


def about(examples: Examples, lookback_ms: int = LOOKBACK_MS) -> Mask:
    """Rows that an onset follows within `lookback_ms`."""
    early = examples.event_ms - np.minimum(examples.at_ms, examples.event_ms)
    return np.asarray((examples.event_ms != NEVER) & (early > 0) & (early <= lookback_ms))


def warned(examples: Examples, alarm: Mask, lookback_ms: int = LOOKBACK_MS) -> WarnedOnsets:
    """The onsets within `lookback_ms` after any row, and when the first of `alarm` [n] about each was raised."""
    rows = np.flatnonzero(about(examples, lookback_ms))
    pairs = np.stack((examples.device[rows].astype(np.int64), examples.event_ms[rows]), axis=1)
    onsets, first, index = np.unique(pairs, axis=0, return_index=True, return_inverse=True)
    lead_ms = np.zeros(len(onsets), dtype=np.int64)
    raised = alarm[rows]
    early_ms = examples.event_ms[rows] - examples.at_ms[rows]
    np.maximum.at(lead_ms, index.reshape(-1)[raised], early_ms[raised])
    return WarnedOnsets(onsets[:, 0].astype(np.int32), onsets[:, 1], rows[first], lead_ms)


def starts(examples: Examples, alarm: Mask, merge_ms: int = MERGE_MS) -> Ints:
    """Rows at which an alarm begins: none of the same device within `merge_ms` before."""
    rows = np.flatnonzero(alarm)
    rows = rows[np.lexsort((examples.at_ms[rows], examples.device[rows]))]
    if rows.size == 0:
        return rows
    fresh = np.ones(rows.size, dtype=np.bool_)
    same = np.diff(examples.device[rows]) == 0
    fresh[1:] = ~(same & (np.diff(examples.at_ms[rows]) < merge_ms))
    return rows[fresh]


def cadence_ms(examples: Examples) -> int:
    """The usual span between neighbouring rows of a device, 0 where no device has two. Wrong where rows of devices
    were left out and weighted instead: name it then."""
    order = np.lexsort((examples.at_ms, examples.device))
    steps = np.diff(examples.at_ms[order])[np.diff(examples.device[order]) == 0]
    return int(np.median(steps[steps > 0])) if (steps > 0).any() else 0


def lead_figures(
    examples: Examples, alarm: Mask, drawn: Clusters, every_ms: int, lookback_ms: int = LOOKBACK_MS
) -> dict[str, Floats]:
    """`incident_recall_any_lead`, `_24h_lead`, `_48h_lead`, `start_precision` and `false_alarms_per_1000_device_days`.

    `alarm` is [n], `every_ms` the time that a row stands for. An onset counts once, also where its rows allow no long
    lead; an alarm that is not followed by an onset within `lookback_ms` is false, also where observation ends before.
    """
    found = warned(examples, alarm, lookback_ms)

    def counted(which: Mask) -> Floats:
        return drawn.total(np.bincount(found.row, weights=which, minlength=len(examples)).astype(np.float64))

    onsets = counted(np.ones(found.row.size, np.bool_))
    out = {
        f"incident_recall_{name}": ratio(counted((found.lead_ms > 0) & (found.lead_ms >= least_ms)), onsets)
        for name, least_ms in LEADS_MS.items()
    }
    start = starts(examples, alarm)
    raised = np.zeros(len(examples))
    raised[start] = examples.weight[start]
    false = drawn.total(np.where(about(examples, lookback_ms), 0.0, raised))
    out["start_precision"] = 1.0 - ratio(false, drawn.total(raised))
    days = drawn.total(examples.weight) * every_ms / DAY
    out["false_alarms_per_1000_device_days"] = ratio(1000.0 * false, days)
    return out


def lead_table(title: str, found: WarnedOnsets, bounds_h: tuple[int, ...] = (0, 1, 6, 24, 48, 96)) -> ReportTable:
    """How many onsets were warned of at least so many hours before."""
    total = len(found.lead_ms)
    counts = [int(((found.lead_ms > 0) & (found.lead_ms >= hours * HOUR)).sum()) for hours in bounds_h]
    rows = [
        (f"{hours} h" if hours else "any", count, total, count / total if total else None)
        for hours, count in zip(bounds_h, counts, strict=True)
    ]
    return ReportTable(title, ("lead at least", "warned", "onsets", "share"), rows)

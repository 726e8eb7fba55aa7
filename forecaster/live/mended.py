"""What a proven repair has mended is no sign any more: rows as if errors had been counted from the repair on.

A reset that reached its goal leaves the windows of days, and all that is counted over a GPU's life, as they were. To a
model they say that it is failing. From the repair on these show what has come since: the longest window that begins
after it stands for all that begin before it, and nothing where there is none yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tocsin.domain.clock import DAY, HOUR
from tocsin.forecaster.features.examples import Examples, Ints, Mask, Sequences, Singles
from tocsin.forecaster.features.onsets import FAULT_CLASSES, POWER, THERMAL
from tocsin.forecaster.features.plan import FeaturePlan
from tocsin.forecaster.features.table import ERRORS, span_name

COUNTED = frozenset(
    {
        "ecc_corrected", "ecc_uncorrected", "retired_pages", "remap_correctable", "remap_uncorrectable", "pcie_replay",
        "pcie_errors", "nvlink_crc", "nvlink_replay", "nvlink_recovery", "nvlink_symbol", "hardware_events",
        "other_events",
    }
)  # fmt: skip
"""Channels of errors that a reset or a reboot ends; neither cools a GPU nor mends its feed. Their growth stands as
log(1 + growth) in the features."""
FLAGS = frozenset({"row_remap_pending", "repair_pending", "recovery_action"})
"""What a GPU owes until it is reset."""
_CLASSES = tuple(name for name in FAULT_CLASSES if name not in (THERMAL, POWER))


def mended(fleet: Examples, repaired: Mapping[str, int], plan: FeaturePlan) -> tuple[Examples, Ints]:
    """`fleet` without the signs of before the repairs, and the rows that this may have changed.

    `repaired` has the instants of the newest proven repairs by UUID; rows of other GPUs stay, and those that were
    repaired before the longest window began. Every row is of the same instant.
    """
    when = np.array([repaired.get(fleet.devices[device], 0) for device in fleet.device.tolist()], dtype=np.int64)
    since = fleet.at_ms - when
    rows = np.flatnonzero((when > 0) & (since >= 0) & (since < max(plan.windows_ms)))
    if not rows.size:
        return fleet, rows
    features, places = fleet.features.copy(), {name: place for place, name in enumerate(fleet.names)}
    for row in rows.tolist():
        _mend_counts(features[row], places, int(since[row]), plan)
        _mend_events(features[row], places, int(since[row]))
    sequences = None if fleet.sequences is None else _Since(fleet.sequences, fleet.at_ms, when, rows, plan)
    return replace(fleet, features=features, sequences=sequences), rows


def _mend_counts(values: Singles, places: Mapping[str, int], since_ms: int, plan: FeaturePlan) -> None:
    inside = [window for window in plan.windows_ms if window <= since_ms]
    wider = [span_name(window) for window in plan.windows_ms if window > since_ms]
    # As the table has them: a rate is that of a day, a surge stands beside the longest window but one.
    day = max((window for window in plan.windows_ms if window <= DAY), default=plan.windows_ms[0])
    slow = plan.windows_ms[max(0, len(plan.windows_ms) - 2)]
    for name in sorted(COUNTED | FLAGS):
        known = places.get(f"{name}.{span_name(inside[-1])}") if inside else None
        newest = values[known] if known is not None else np.float32(0.0)
        for label in (*wider, "level"):
            _set(values, places, f"{name}.{label}", newest)
        if since_ms < day:
            hours = inside[-1] / HOUR if inside else 1.0
            _set(values, places, f"{name}.rate", np.log1p(np.expm1(newest) / hours))
        if since_ms < slow:
            _set(values, places, f"{name}.surge", np.float32(0.0))
    # The growth of a day beside that of others says nothing before a day has passed.
    for name in ERRORS if since_ms < DAY else ():
        _set(values, places, f"{name}.score", np.float32(0.0))


def _mend_events(values: Singles, places: Mapping[str, int], since_ms: int) -> None:
    """What has happened since is a sign again, with all that was before it."""
    again = False
    for name in FAULT_CLASSES:
        last = places.get(f"event.{name}.hours")
        if last is None or np.isnan(values[last]):
            continue
        if name not in _CLASSES or np.expm1(values[last]) * HOUR < since_ms:
            again = True
            continue
        values[last] = np.nan
        for label in ("recent", "inclined", "count"):
            _set(values, places, f"event.{name}.{label}", np.float32(0.0))
    for name in () if again else ("burst.gpus", "burst.hosts"):
        _set(values, places, name, np.float32(0.0))


def _set(values: Singles, places: Mapping[str, int], name: str, value: np.float32) -> None:
    """What is not known stays unknown."""
    place = places.get(name)
    if place is not None and np.isfinite(values[place]):
        values[place] = value


class _Since:
    """Sequences in which errors and flags of steps that began before the repair are none."""

    def __init__(self, whole: Sequences, at_ms: Ints, when: Ints, rows: Ints, plan: FeaturePlan) -> None:
        self.channels, self.steps = whole.channels, whole.steps
        self._whole, self._rows = whole, frozenset(rows.tolist())
        self._at_ms, self._when, self._step_ms = at_ms, when, plan.step_ms
        self._signs = np.array([name in COUNTED | FLAGS for name in whole.channels], dtype=np.bool_)

    def take(self, rows: Ints) -> Singles:
        """As `Sequences.take`."""
        found = self._whole.take(rows)
        mended = [(place, row) for place, row in enumerate(np.asarray(rows).tolist()) if row in self._rows]
        found = found.copy() if mended else found
        for place, row in mended:
            past = np.ix_(self._before(row), self._signs)
            found[place][past] = np.where(np.isnan(found[place][past]), np.nan, 0.0)
        return found

    def _before(self, row: int) -> Mask:
        """Which steps began before the repair; the last one is the newest that is over."""
        last = int(self._at_ms[row]) // self._step_ms - 1
        begun_ms = (last - self.steps + 1 + np.arange(self.steps)) * self._step_ms
        return np.asarray(begun_ms < self._when[row])

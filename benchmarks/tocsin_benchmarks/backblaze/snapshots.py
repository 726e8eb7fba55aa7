"""Daily snapshots of drives as examples: every one before a failure, and an exactly weighted part of the others.

Snapshots lie on whole days (date = min_date + (hour - min_hours) / 24), never on the starts of rows: a row begins
when a value changes, which is what failing drives do, so sampling there would know what is to be found out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tocsin.domain.clock import DAY, HOUR
from tocsin.domain.errors import InputError
from tocsin.forecaster.features.examples import NEVER, Codes, Examples, Floats, Ints, Mask, Singles
from tocsin_benchmarks.backblaze.drive_models import Record
from tocsin_benchmarks.backblaze.drives import ATTRIBUTES, HOURS_PER_DAY, Drives
from tocsin_benchmarks.backblaze.features import DEFECTS, Ledger, features, ledger, names

# The last weeks of a drive in daily steps, looked up when a batch asks for them.

STEPS = 30
"""Days of past."""


class DriveSequences:
    """SMART values as log(1 + x), and their changes since the day before on the same scale; NaN before the first
    reading and where an attribute is not reported."""

    channels = (*(f"{name}_log" for name in ATTRIBUTES), *(f"{name}_change" for name in ATTRIBUTES))
    steps = STEPS

    def __init__(self, book: Ledger, drive: Codes, hour: Ints) -> None:
        self._book, self._drive, self._hour = book, drive, hour

    def take(self, rows: Ints) -> Singles:
        book = self._book
        ago = np.arange(self.steps, -1, -1) * HOURS_PER_DAY
        drive = np.broadcast_to(self._drive[rows, None], (rows.size, self.steps + 1))
        row = book.drives.rows_at(drive, self._hour[rows, None] - ago, book.keys)
        level = np.where(row[:, :, None] < 0, np.nan, book.value[np.maximum(row, 0)])
        change = np.diff(level, axis=1)
        logs = np.log1p(level[:, 1:])
        return np.concatenate([logs, np.sign(change) * np.log1p(np.abs(change))], axis=2).astype(np.float32)


HORIZON_H = 48
"""Hours ahead that the label looks."""
FRESH_H = 72
"""Hours for which a change of a defect counter is fresh (own choice)."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How many negative snapshots to keep: of drives with a defect at the time (`hot`), and of the others (`cold`).
    With `fresh` above 0, those of hot drives whose defects grew within `FRESH_H` are a stratum of so many by
    themselves. Weights undo it exactly in each stratum."""

    hot: int
    cold: int
    seed: int
    fresh: int = 0


@dataclass(frozen=True, slots=True)
class Snapshots:
    """Drives at power-on hours, each for `weight` snapshots of its stratum."""

    drive: Codes
    hour: Ints
    weight: Floats

    def take(self, which: Mask) -> Snapshots:
        """Those of bool[n] alone."""
        return Snapshots(self.drive[which], self.hour[which], self.weight[which])


@dataclass(frozen=True, slots=True)
class _Runs:
    """Daily instants that rows cover: row `row` holds at days `first` to `first + count - 1` of its drive."""

    row: Ints
    first: Ints
    count: Ints

    def take(self, which: Mask) -> _Runs:
        return _Runs(self.row[which], self.first[which], self.count[which])

    def at(self, index: Ints) -> tuple[Ints, Ints]:
        """Row and day of the instants numbered in order of the rows."""
        ends = np.cumsum(self.count)
        run = np.searchsorted(ends, index, "right")
        return self.row[run], self.first[run] + index - (ends[run] - self.count[run])


def _runs(drives: Drives, low: Ints, high: Ints) -> _Runs:
    """The whole days of each row within power-on hours [low, high) of its drive."""
    zero = drives.zero_hour[drives.drive]
    start = np.maximum(drives.start, low[drives.drive]) - zero
    stop = np.minimum(drives.stop, high[drives.drive]) - zero
    first, last = -(-start // HOURS_PER_DAY), -(-stop // HOURS_PER_DAY)
    rows = np.flatnonzero(last > first)
    return _Runs(rows, first[rows], (last - first)[rows])


def snapshots(drives: Drives, since: Floats, sampling: Sampling) -> Snapshots:
    """Daily snapshots from day `since` [d] on whose label is known: all that a failure follows within 48 h, and of the
    others as many as `sampling` says."""
    low, turn, end = _bounds(drives, since)
    quiet = _runs(drives, low, turn)
    hot = _hot(drives)[quiet.row]
    strata = [(quiet.take(hot), sampling.hot), (quiet.take(~hot), sampling.cold)]
    if sampling.fresh:
        fresh, older = _parted(drives, quiet.take(hot))
        strata = [(older, sampling.hot), strata[1], (fresh, sampling.fresh)]
    rng = np.random.default_rng(sampling.seed)
    ahead = _all(drives, _runs(drives, np.maximum(low, turn), end))
    return _ordered(ahead, *(_some(drives, runs, wanted, rng) for runs, wanted in strata))


def daily(drives: Drives, since: Floats, weight: Floats) -> Snapshots:
    """Every daily snapshot of known label from day `since` [d] on of the drives with a `weight` [d] above 0."""
    low, turn, end = _bounds(drives, since)
    wanted = weight > 0
    runs = _runs(drives, low, np.where(wanted, np.maximum(turn, end), low))
    made = _ordered(_all(drives, runs))
    return Snapshots(made.drive, made.hour, weight[made.drive])


def _bounds(drives: Drives, since: Floats) -> tuple[Ints, Ints, Ints]:
    """Power-on hours [d]: of the first decision, from which on a failure follows, and where decisions end."""
    every = np.arange(len(drives))
    low = np.maximum(np.ceil(drives.hour(every, since)).astype(np.int64), drives.first_hour)
    turn = np.where(drives.failed, drives.fail_hour - HORIZON_H, drives.last_hour - HORIZON_H + 1)
    return low, turn, np.where(drives.failed, drives.fail_hour, low)


def _ordered(*parts: tuple[Codes, Ints, Floats]) -> Snapshots:
    drive, hour, weight = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.lexsort((hour, drive))
    return Snapshots(drive[order], hour[order], weight[order])


def _hot(drives: Drives) -> Mask:
    columns = [ATTRIBUTES.index(name) for name in DEFECTS]
    return np.asarray((np.nan_to_num(drives.values[:, columns]) > 0).any(axis=1))


def _parted(drives: Drives, runs: _Runs) -> tuple[_Runs, _Runs]:
    """The days of each row up to `FRESH_H` after the newest change of a defect counter, and the later ones."""
    changed = ledger(drives).changed[runs.row][:, [ATTRIBUTES.index(name) for name in DEFECTS]]
    newest = np.where(np.isnan(changed), -np.inf, changed).max(axis=1, initial=-np.inf)
    limit = np.floor((newest + FRESH_H - drives.zero_hour[drives.drive[runs.row]]) / HOURS_PER_DAY) + 1
    count = np.clip(limit - runs.first, 0, runs.count).astype(np.int64)
    fresh = _Runs(runs.row, runs.first, count)
    older = _Runs(runs.row, runs.first + count, runs.count - count)
    return fresh.take(count > 0), older.take(older.count > 0)


def stratum(table: Examples) -> Ints:
    """int64[n]: 0 cold, 1 hot, 2 fresh, as `Sampling` has them; from features alone."""
    hot = table.column("defect_kinds") > 0
    fresh = table.column("defects_unchanged_log_h") <= np.log1p(FRESH_H + 0.5)
    return np.where(hot, 1 + fresh, 0).astype(np.int64)


def _at(drives: Drives, runs: _Runs, index: Ints, weight: float) -> tuple[Codes, Ints, Floats]:
    row, day = runs.at(index)
    drive = drives.drive[row]
    return drive, drives.zero_hour[drive] + day * HOURS_PER_DAY, np.full(index.size, weight)


def _all(drives: Drives, runs: _Runs) -> tuple[Codes, Ints, Floats]:
    return _at(drives, runs, np.arange(runs.count.sum()), 1.0)


def _some(drives: Drives, runs: _Runs, wanted: int, rng: np.random.Generator) -> tuple[Codes, Ints, Floats]:
    total = int(runs.count.sum())
    if total <= wanted:
        return _all(drives, runs)
    index = np.sort(rng.choice(total, wanted, replace=False, shuffle=False))
    return _at(drives, runs, index, total / wanted)


def examples(drives: Drives, record: Record, chosen: Snapshots, book: Ledger | None = None) -> Examples:
    """The snapshots with their features and sequences. Raises InputError where there are none."""
    if chosen.drive.size == 0:
        raise InputError("data", 0, "no drive has a daily snapshot of known label", "give drives of more than 48 h")
    book = ledger(drives) if book is None else book
    drive, hour = chosen.drive, chosen.hour
    groups, group = np.unique(drives.model, return_inverse=True)
    at_ms = _ms(drives, drive, hour)
    until_ms = _ms(drives, drive, drives.last_hour[drive])
    failed = drives.failed[drive]
    row = drives.rows_at(drive, hour, book.keys)
    return Examples(
        devices=tuple(drives.serial.tolist()),
        device=drive.astype(np.int32),
        groups=tuple(groups.tolist()),
        group=group[drive].astype(np.int32),
        at_ms=at_ms,
        names=names(),
        features=features(book, record, drive, hour),
        seen_ms=_ms(drives, drive, drives.start[row]),
        history_ms=(hour - drives.first_hour[drive]) * HOUR,
        event_ms=np.where(failed, until_ms, NEVER),
        until_ms=until_ms,
        event_class=np.where(failed, "failure", ""),
        weight=chosen.weight,
        sequences=DriveSequences(book, drive, hour),
    )


def _ms(drives: Drives, drive: Codes, hour: Ints) -> Ints:
    zero_ms = np.rint(drives.zero_day[drive] * DAY).astype(np.int64)
    return np.asarray(zero_ms + (hour - drives.zero_hour[drive]) * HOUR)

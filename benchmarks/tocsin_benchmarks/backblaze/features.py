"""Features of a drive at an hour, from the rows begun by then: levels, changes, ages of changes, its kind's record, and
the day of the week.

Counters are taken on the scale log(1 + x): a first bad sector says as much as the thousandth. A drive counts as failed
when people take it out, which they do on working days.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tocsin.forecaster.features.examples import Codes, Floats, Ints, Mask, Singles
from tocsin_benchmarks.backblaze.drive_models import Record
from tocsin_benchmarks.backblaze.drives import ATTRIBUTES, HOURS_PER_DAY, Drives

CHANGE_DAYS = (1, 3, 7, 14, 30, 90)
"""Spans over which a counter's change is taken."""

COUNT_DAYS = (7, 30, 90)
"""Spans over which changes are counted."""

DEFECTS = ("smart_5", "smart_187", "smart_197", "smart_198")
"""Counters of sectors lost or about to be."""

MAKERS = ("ST", "HGST", "WDC")
"""Makers with a column of their own; any other has zeros in all."""

CHUNK = 65_536


@dataclass(frozen=True, slots=True)
class Ledger:
    """What the rows of all drives sum up to, by row: float32[r, attributes] unless said.

    `value` as read; `base` the same with gaps filled from the drive's next value; `ups` how many changes the drive
    has had; `changed` float64: the hour of the newest one, NaN before the first; `keys` finds a row.
    """

    drives: Drives
    keys: Ints
    first_row: Ints
    value: Singles
    base: Singles
    ups: Singles
    changed: Floats


def ledger(drives: Drives) -> Ledger:
    """Run once over the rows of all drives."""
    value = drives.values
    fresh = np.ones(len(value), dtype=np.bool_)
    fresh[1:] = np.diff(drives.drive) != 0
    first_row = np.flatnonzero(fresh)
    change = np.zeros(value.shape, dtype=np.bool_)
    change[1:] = (value[1:] != value[:-1]) & ~np.isnan(value[1:]) & ~np.isnan(value[:-1]) & ~fresh[1:, None]
    ups = np.cumsum(change, axis=0, dtype=np.int64)
    ups = ups - ups[first_row][drives.drive]
    return Ledger(
        drives=drives,
        keys=drives.keys(),
        first_row=first_row,
        value=value,
        base=_filled_back(value, drives.drive),
        ups=ups.astype(np.float32),
        changed=_newest(change, drives),
    )


def _filled_back(value: Singles, drive: Codes) -> Singles:
    """Gaps take the next value of the same drive, which was known before any later row was."""
    rows = np.arange(len(value))
    out = value.copy()
    for column in range(value.shape[1]):
        here = np.where(np.isnan(value[:, column]), len(value), rows)
        nearest = np.minimum.accumulate(here[::-1])[::-1]
        usable = (nearest < len(value)) & (drive[np.minimum(nearest, len(value) - 1)] == drive)
        out[usable, column] = value[nearest[usable], column]
    return out


def _newest(change: Mask, drives: Drives) -> Floats:
    rows = np.arange(len(change))
    first = np.searchsorted(drives.drive, drives.drive)
    out = np.full(change.shape, np.nan)
    for column in range(change.shape[1]):
        nearest = np.maximum.accumulate(np.where(change[:, column], rows, -1))
        usable = nearest >= first
        out[usable, column] = drives.start[nearest[usable]]
    return out


def names() -> tuple[str, ...]:
    """The columns of `features`, in order."""
    own = []
    for name in ATTRIBUTES:
        own += [f"{name}_log", *(f"{name}_change_{days}d" for days in CHANGE_DAYS)]
        own += [*(f"{name}_changes_{days}d" for days in COUNT_DAYS), f"{name}_unchanged_log_h", f"{name}_per_day"]
    return (*own, *_CROSS, *_WEEK, *_KIND)


_CROSS = (
    "defects_log",
    "defect_kinds",
    *(f"defects_change_{days}d" for days in CHANGE_DAYS),
    "defects_unchanged_log_h",
    "any_unchanged_log_h",
    "pending_share",
)
_WEEK = ("weekday", "weekday_sin", "weekday_cos", "workdays_ahead")
_KIND = ("age_log_h", "age_h", "observed_log_d", "size_tb", *(f"maker_{maker}" for maker in MAKERS), *Record.names)


def features(book: Ledger, record: Record, drive: Codes, hour: Ints) -> Singles:
    """float32[n, len(names())] of drives at power-on hours within their observation."""
    out = np.empty((hour.size, len(names())), dtype=np.float32)
    for at in range(0, hour.size, CHUNK):
        part = slice(at, at + CHUNK)
        out[part] = _features(book, record, drive[part], hour[part])
    return out


def _signed_log(values: npt.NDArray[np.floating]) -> Singles:
    return np.asarray(np.sign(values) * np.log1p(np.abs(values)), dtype=np.float32)


def _since(book: Ledger, drive: Codes, hour: Ints, days: int) -> Ints:
    """The row valid so many days before, or the drive's first."""
    row = book.drives.rows_at(drive, hour - days * HOURS_PER_DAY, book.keys)
    return np.where(row < 0, book.first_row[drive], row)


def _features(book: Ledger, record: Record, drive: Codes, hour: Ints) -> Singles:
    row = book.drives.rows_at(drive, hour, book.keys)
    before = {days: _since(book, drive, hour, days) for days in (*CHANGE_DAYS, *COUNT_DAYS)}
    value = book.value[row]
    change = {days: value - book.base[before[days]] for days in CHANGE_DAYS}
    count = {days: book.ups[row] - book.ups[before[days]] for days in COUNT_DAYS}
    unchanged = hour[:, None] - book.changed[row]
    observed = np.maximum(hour - book.drives.first_hour[drive], 1)
    grown = value - book.base[book.first_row[drive]]
    per_day = _signed_log(grown / (observed[:, None] / HOURS_PER_DAY))
    parts = [_signed_log(value), *(_signed_log(change[days]) for days in CHANGE_DAYS), *count.values()]
    parts += [np.log1p(unchanged).astype(np.float32), per_day]
    own = np.stack(parts, axis=2).reshape(hour.size, -1)
    cross = _cross(value, change, unchanged)
    week = _week(book.drives.day(drive, hour))
    return np.concatenate([own, cross, week, _kind(book.drives, record, drive, hour, observed)], axis=1)


def _cross(value: Singles, change: dict[int, Singles], unchanged: Floats) -> Singles:
    columns = [ATTRIBUTES.index(name) for name in DEFECTS]
    pending = ATTRIBUTES.index("smart_197")
    level = np.nan_to_num(value[:, columns])
    logs = _signed_log(level)
    out = [logs.sum(axis=1), (level > 0).sum(axis=1)]
    out += [_signed_log(np.nan_to_num(change[days][:, columns])).sum(axis=1) for days in CHANGE_DAYS]
    out += [np.log1p(_least(unchanged[:, columns])), np.log1p(_least(unchanged))]
    out.append(np.nan_to_num(value[:, pending]) / (1.0 + level.sum(axis=1)))
    return np.stack(out, axis=1).astype(np.float32)


def _least(hours: Floats) -> Floats:
    """The smallest of each row, NaN where all are missing."""
    least = np.where(np.isnan(hours), np.inf, hours).min(axis=1)
    return np.where(np.isinf(least), np.nan, least)


def _week(day: Floats) -> Singles:
    """Day of the week (0: Monday) of days since 1970-01-01, a Thursday; and how many of it and the next are working
    days."""
    weekday = (np.floor(day).astype(np.int64) + 3) % 7
    turn = 2 * np.pi * weekday / 7
    ahead = (weekday < 5).astype(np.int64) + ((weekday + 1) % 7 < 5)
    return np.stack([weekday, np.sin(turn), np.cos(turn), ahead], axis=1).astype(np.float32)


def _kind(drives: Drives, record: Record, drive: Codes, hour: Ints, observed: Ints) -> Singles:
    maker = drives.maker[drive]
    out = [np.log1p(hour), hour.astype(np.float64), np.log1p(observed / HOURS_PER_DAY), drives.size_tb[drive]]
    out += [(maker == one).astype(np.float64) for one in MAKERS]
    kind = np.stack(out, axis=1).astype(np.float32)
    return np.concatenate([kind, record.look(drives.model[drive], drives.day(drive, hour))], axis=1)

"""Drive histories of the Backblaze set: spans of power-on hours during which the SMART values stood still.

A row holds the values read at `tstart`, valid until `tstop`; `fails` ends the drive's last row with its failure. The
set has no calendar but the drive's first one: date = min_date + (hour - min_hours) / 24.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tocsin.domain.errors import InputError
from tocsin.forecaster.features.examples import NEVER, Codes, Floats, Ints, Mask, Singles

if TYPE_CHECKING:
    import polars as pl

ATTRIBUTES = tuple(f"smart_{number}" for number in (5, 10, 12, 187, 188, 189, 196, 197, 198))
"""SMART attributes of the set: reallocated sectors, spin retries, power cycles, uncorrectable errors, command
timeouts, high-fly writes, reallocation events, pending sectors, offline uncorrectable sectors."""

_TEXTS = ("serial_number", "model", "manufacturer")
_NUMBERS = ("size_tb", "min_date", "min_hours", "tstart", "tstop", "fails")
_TIMES = ("min_date", "min_hours", "tstart", "tstop", "fails")

HOURS_PER_DAY = 24
HOUR_BITS = 20
"""Room for 119 years of power-on hours in the key of a row."""


@dataclass(frozen=True, slots=True)
class Drives:
    """Histories of `d` drives in `r` rows, ordered by drive and hour.

    By drive: `serial`, `maker`, `model`, `size_tb`, `zero_hour` (the power-on hour of the instant `zero_day`, days
    since 1970-01-01), `first_hour` and `last_hour` of observation, `fail_hour` (NEVER: it did not fail).
    By row: `drive`, `start` and `stop` in power-on hours, `values` float32[r, attributes], NaN where not reported.
    """

    serial: npt.NDArray[np.str_]
    maker: npt.NDArray[np.str_]
    model: npt.NDArray[np.str_]
    size_tb: Floats
    zero_day: Floats
    zero_hour: Ints
    first_hour: Ints
    last_hour: Ints
    fail_hour: Ints
    drive: Codes
    start: Ints
    stop: Ints
    values: Singles

    def __len__(self) -> int:
        return int(self.serial.size)

    def day(self, drive: Codes | Ints, hour: Ints) -> Floats:
        """Days since 1970-01-01 at power-on hours of drives."""
        return np.asarray(self.zero_day[drive] + (hour - self.zero_hour[drive]) / HOURS_PER_DAY)

    def hour(self, drive: Codes | Ints, day: Floats | float) -> Floats:
        """Power-on hours of drives at days since 1970-01-01."""
        return np.asarray(self.zero_hour[drive] + (day - self.zero_day[drive]) * HOURS_PER_DAY)

    @property
    def failed(self) -> Mask:
        """bool[d]: whether the drive fails within its history."""
        return np.asarray(self.fail_hour != NEVER)

    @property
    def end_day(self) -> Floats:
        """float64[d]: when the history of each drive ends."""
        return self.day(np.arange(len(self)), self.last_hour)

    def keys(self) -> Ints:
        """int64[r], ascending: drive and first hour of each row in one number."""
        return (self.drive.astype(np.int64) << HOUR_BITS) + self.start

    def rows_at(self, drive: Codes | Ints, hour: Ints, keys: Ints) -> Ints:
        """The row that is valid at power-on hours of drives, -1 before the first; `keys` are those of `keys()`."""
        row = np.searchsorted(keys, (drive.astype(np.int64) << HOUR_BITS) + hour, "right") - 1
        return np.where(hour >= self.first_hour[drive], row, -1)

    def chosen(self, keep: Mask) -> Drives:
        """The drives of bool[d] alone."""
        rows = keep[self.drive]
        code = np.cumsum(keep) - 1
        return self._taken(keep, rows, code[self.drive[rows]].astype(np.int32))

    def until(self, day: float) -> Drives:
        """What was known at `day`: rows begun before it, failures up to it, and no drive that came later."""
        limit = np.floor(self.hour(np.arange(len(self)), day)).astype(np.int64)
        keep = self.first_hour < limit
        rows = keep[self.drive] & (self.start < limit[self.drive])
        cut = self._taken(keep, rows, (np.cumsum(keep) - 1)[self.drive[rows]].astype(np.int32))
        limit = limit[keep]
        fail_hour = np.where(cut.fail_hour <= limit, cut.fail_hour, NEVER)
        stop = np.minimum(cut.stop, limit[cut.drive])
        return replace(cut, last_hour=np.minimum(cut.last_hour, limit), fail_hour=fail_hour, stop=stop)

    def _taken(self, keep: Mask, rows: Mask, drive: Codes) -> Drives:
        return Drives(
            serial=self.serial[keep],
            maker=self.maker[keep],
            model=self.model[keep],
            size_tb=self.size_tb[keep],
            zero_day=self.zero_day[keep],
            zero_hour=self.zero_hour[keep],
            first_hour=self.first_hour[keep],
            last_hour=self.last_hour[keep],
            fail_hour=self.fail_hour[keep],
            drive=drive,
            start=self.start[rows],
            stop=self.stop[rows],
            values=self.values[rows],
        )


def read_drives(*folders: Path) -> Drives:
    """The drives of every `*.parquet` of the folders. Rows of one serial number become one history, wherever they
    stand. Raises InputError for a folder without parquet files, missing or unusable columns and impossible rows."""
    import polars as pl

    frame = pl.concat([_read(path) for folder in folders for path in _files(folder)])
    frame = frame.sort("serial_number", "tstart", "tstop", maintain_order=True)
    frame = frame.unique(("serial_number", "tstart"), keep="last", maintain_order=True)
    return _drives(frame)


def _files(folder: Path) -> list[Path]:
    found = sorted(folder.glob("*.parquet")) if folder.is_dir() else []
    if not found:
        problem = "holds no *.parquet file" if folder.is_dir() else "is not a folder"
        raise InputError("data", str(folder), problem, "name a folder in the Backblaze drive format")
    return found


def _read(path: Path) -> pl.DataFrame:
    import polars as pl

    try:
        frame = pl.read_parquet(path)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise InputError("data", str(path), f"is not readable parquet ({error})", "copy the file again") from error
    missing = [name for name in (*_TEXTS, *_NUMBERS) if name not in frame.columns]
    if missing:
        raise InputError("data", str(path), f"lacks the columns {', '.join(missing)}", "use the format of the data set")
    if not set(ATTRIBUTES) & set(frame.columns):
        raise InputError("data", str(path), "has none of the SMART columns", f"give some of {', '.join(ATTRIBUTES)}")
    absent = [pl.lit(None, dtype=pl.Float32).alias(name) for name in ATTRIBUTES if name not in frame.columns]
    return _typed(frame.with_columns(absent), path)


def _typed(frame: pl.DataFrame, path: Path) -> pl.DataFrame:
    import polars as pl

    try:
        frame = frame.select(
            *(pl.col(name).cast(pl.String) for name in _TEXTS),
            *(pl.col(name).cast(pl.Float64) for name in _NUMBERS),
            *(pl.col(name).cast(pl.Float32) for name in ATTRIBUTES),
        )
    except pl.exceptions.PolarsError as error:
        raise InputError("data", str(path), f"has a column of the wrong type ({error})", "give numbers") from error
    _check(frame, path)
    return frame


def _check(frame: pl.DataFrame, path: Path) -> None:
    import polars as pl

    if frame.is_empty():
        raise InputError("data", str(path), "has no rows", "leave an empty file out")
    known = pl.all_horizontal(pl.col("serial_number").is_not_null(), *(pl.col(name).is_finite() for name in _TIMES))
    problems = {
        "lacks a serial number, date, hour or `fails`": ~known.fill_null(value=False),
        "has tstop <= tstart": pl.col("tstop") <= pl.col("tstart"),
        "has hours outside 0 to 1,000,000": (pl.col("tstart") < 0) | (pl.col("tstop") > 1_000_000),
        "has `fails` other than 0 and 1": ~pl.col("fails").is_in([0.0, 1.0]),
    }
    for problem, which in problems.items():
        wrong = frame.with_row_index("row").filter(which)
        if len(wrong):
            row = int(wrong["row"][0])
            raise InputError("data", f"{path}, row {row}", f"{problem} ({len(wrong)} such rows)", "correct the file")


def _drives(frame: pl.DataFrame) -> Drives:
    column = {name: frame[name].to_numpy() for name in _NUMBERS}
    first = np.flatnonzero(frame["serial_number"].ne_missing(frame["serial_number"].shift(1)).to_numpy())
    count = np.diff(np.append(first, len(frame)))
    last = first + count - 1
    start, stop = column["tstart"].astype(np.int64), column["tstop"].astype(np.int64)
    _one_failure(frame, column["fails"] > 0, last)
    stop[:-1] = np.where(np.isin(np.arange(len(stop) - 1), last), stop[:-1], np.minimum(stop[:-1], start[1:]))
    texts = {name: frame[name].fill_null("").to_numpy()[first].astype(np.str_) for name in _TEXTS}
    return Drives(
        serial=texts["serial_number"],
        maker=texts["manufacturer"],
        model=texts["model"],
        size_tb=column["size_tb"][first],
        zero_day=column["min_date"][last],
        zero_hour=column["min_hours"][last].astype(np.int64),
        first_hour=start[first],
        last_hour=stop[last],
        fail_hour=np.where(column["fails"][last] > 0, stop[last], NEVER),
        drive=np.repeat(np.arange(first.size, dtype=np.int32), count),
        start=start,
        stop=stop,
        values=frame.select(ATTRIBUTES).to_numpy().astype(np.float32),
    )


def _one_failure(frame: pl.DataFrame, fails: npt.NDArray[np.bool_], last: Ints) -> None:
    inner = fails.copy()
    inner[last] = False
    if inner.any():
        serial = frame["serial_number"][int(np.flatnonzero(inner)[0])]
        raise InputError("serial_number", serial, "has rows after its failure", "end a drive's history there")

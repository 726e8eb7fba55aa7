"""Reads the GPU lives of the Titan machine: one line for each stay of a GPU in a slot and for each error of its own.

Columns: ``SN`` (serial number), ``location`` (``c10-0c2s5n0``: column, row, cage, blade, node), ``insert``, ``remove``
(UTC; empty: still in place), ``event`` (``DBE`` double-bit error, ``OTB`` off the bus, or empty). The instant of an
event is ``remove``; an event line without ``insert`` is an error during a stay that another line tells. Other columns
are not looked at: ``out`` (gone for good) was known only later.

Ostrouchov et al., GPU Lifetimes on Titan Supercomputer, SC 2020.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from tocsin.domain.clock import DAY
from tocsin.domain.errors import InputError
from tocsin.forecaster.features.examples import NEVER, Codes, Ints, Mask
from tocsin_benchmarks.tally import Numbers

COLUMNS = ("SN", "location", "insert", "remove", "event")
EVENTS = ("DBE", "OTB")
PLACE = r"^c(\d+)-(\d+)c(\d+)s(\d+)n(\d+)$"
PLACE_PARTS = ("column", "row", "cage", "blade", "node")
BURST_MS = 7 * DAY
"""Errors of one GPU closer than this are one onset (protocol of the set)."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """Stays and errors. `device` arrays index `devices`, `slot` arrays `slots`; `remove_ms` is `NEVER` while in place.
    `place` int32[slots, 5] is column, row, cage, blade, node. `onset` marks the first error of each burst. `known`
    says which devices the train folder names, `tested` which the test folder. `end_ms` is the newest instant of the
    files."""

    devices: tuple[str, ...]
    slots: tuple[str, ...]
    place: Codes
    life_device: Codes
    life_slot: Codes
    insert_ms: Ints
    remove_ms: Ints
    event_device: Codes
    event_slot: Codes
    event_ms: Ints
    event_kind: Codes
    onset: Mask
    known: Mask
    tested: Mask
    end_ms: int


def read_lives(folder: Path) -> pl.DataFrame:
    """The lines of all ``*.csv`` of `folder` that have the columns. Raises InputError where there is none, or where a
    line cannot be used."""
    files = sorted(folder.glob("*.csv")) if folder.is_dir() else []
    frames = [_read_file(path) for path in files if _has_columns(path)]
    if not frames:
        found = ", ".join(path.name for path in files) or "no CSV"
        raise InputError(str(folder), found, f"no CSV with the columns {', '.join(COLUMNS)}", "name a folder with one")
    return pl.concat(frames)


def _has_columns(path: Path) -> bool:
    try:
        with path.open(encoding="utf-8-sig") as lines:
            head = [name.strip().strip('"') for name in lines.readline().split(",")]
    except (OSError, UnicodeDecodeError):
        return False
    return set(COLUMNS) <= set(head)


def _read_file(path: Path) -> pl.DataFrame:
    try:
        raw = pl.read_csv(path, columns=list(COLUMNS), infer_schema=False, null_values=["", "NA"])
    except pl.exceptions.PolarsError as error:
        raise InputError(str(path), path.name, f"cannot be read: {error}", "name a CSV of GPU lives") from None
    lives = raw.with_columns(_instant(pl.col("insert")), _instant(pl.col("remove")))
    for name in ("insert", "remove"):
        _refuse(path, raw[name], raw[name].is_not_null() & lives[name].is_null(), f"{name} is no date and time")
    _refuse(path, raw["SN"], raw["SN"].is_null(), "the serial number is missing")
    _refuse(path, raw["location"], ~raw["location"].str.contains(PLACE).fill_null(False), "no place like c10-0c2s5n0")
    _refuse(path, raw["event"], raw["event"].is_not_null() & ~raw["event"].is_in(EVENTS), "neither DBE nor OTB")
    _refuse(path, raw["event"], raw["event"].is_not_null() & raw["remove"].is_null(), "an event without remove")
    _refuse(path, raw["insert"], (lives["insert"] > lives["remove"]).fill_null(False), "removed before it was inserted")
    return lives


def _instant(text: pl.Expr) -> pl.Expr:
    """Milliseconds of ``2016-07-12 19:12:05``, also with T, Z and fractions."""
    plain = text.str.replace("T", " ").str.replace("Z", "").str.strip_chars()
    parsed = plain.str.to_datetime("%Y-%m-%d %H:%M:%S%.f", strict=False, time_unit="ms")
    return parsed.fill_null(plain.str.to_datetime("%Y-%m-%d", strict=False, time_unit="ms")).dt.epoch("ms")


def _refuse(path: Path, column: pl.Series, bad: pl.Series, problem: str) -> None:
    rows = np.flatnonzero(bad.to_numpy())
    if rows.size:
        where = f"{path.name} line {int(rows[0]) + 2} {column.name}"
        raise InputError(where, column[int(rows[0])], problem, f"correct the {rows.size} lines of that kind")


def fleet_of(train: pl.DataFrame, test: pl.DataFrame | None = None) -> Fleet:
    """One fleet of the lines of both folders, each stay and error once. A stay that ends in one file and is open in the
    other has ended. A GPU that only the train folder names is not observed after that folder's end."""
    lines = train if test is None else pl.concat([train, test])
    stays = lines.filter(pl.col("insert").is_not_null())
    stays = stays.group_by("SN", "location", "insert").agg(pl.col("remove").min()).sort("SN", "insert", "location")
    errors = lines.filter(pl.col("event").is_not_null()).select("SN", "location", "remove", "event").unique()
    errors = errors.sort("SN", "remove", "event")
    devices = lines["SN"].unique().sort()
    slots = lines["location"].unique().sort()
    place = slots.to_frame().select(pl.col("location").str.extract_groups(PLACE)).unnest("location").cast(pl.Int32)
    device, at_ms = _codes(errors["SN"], devices), errors["remove"].to_numpy().astype(np.int64)
    tested = devices.is_in((lines if test is None else test)["SN"].unique().to_list()).to_numpy()
    remove_ms = stays["remove"].fill_null(NEVER).to_numpy().astype(np.int64)
    life_device = _codes(stays["SN"], devices)
    remove_ms = np.where(tested[life_device], remove_ms, np.minimum(remove_ms, newest(train)))
    return Fleet(
        devices=tuple(devices.to_list()),
        slots=tuple(slots.to_list()),
        place=place.to_numpy().astype(np.int32),
        life_device=life_device,
        life_slot=_codes(stays["location"], slots),
        insert_ms=stays["insert"].to_numpy().astype(np.int64),
        remove_ms=remove_ms,
        event_device=device,
        event_slot=_codes(errors["location"], slots),
        event_ms=at_ms,
        event_kind=np.asarray([EVENTS.index(kind) for kind in errors["event"]], dtype=np.int32),
        onset=first_of_bursts(device, at_ms, BURST_MS),
        known=devices.is_in(train["SN"].unique().to_list()).to_numpy(),
        tested=tested,
        end_ms=newest(lines),
    )


def newest(lines: pl.DataFrame) -> int:
    """The newest instant of some lines. Raises InputError without one."""
    ends = [int(edge) for name in ("insert", "remove") if isinstance(edge := lines[name].max(), int)]
    if not ends:
        raise InputError("lines", lines.height, "no line has an instant", "name a CSV of GPU lives")
    return max(ends)


def _codes(values: pl.Series, of: pl.Series) -> Codes:
    """Position of each value in the sorted `of`."""
    return np.asarray(of.search_sorted(values), dtype=np.int32)


def first_of_bursts(device: Numbers, at_ms: Ints, burst_ms: int) -> Mask:
    """Which events begin a burst: those later than `burst_ms` after the event before them. Ordered by device, time."""
    first = np.ones(at_ms.size, dtype=np.bool_)
    first[1:] = (device[1:] != device[:-1]) | (np.diff(at_ms) > burst_ms)
    return first

"""Made-up drives in the counting-process format of the Backblaze set: a third of those that fail show it before."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl

FIRST_DAY = 15_805
DAYS = 400
Row = dict[str, object]


def drive(
    serial: str, spans: list[tuple[int, int]], *, fails: bool = False, zero: int = 0, **values: list[float]
) -> list[Row]:
    """Rows of one drive: `spans` of power-on hours, and SMART values for each."""
    rows = []
    for number, (start, stop) in enumerate(spans):
        row: Row = {
            "serial_number": serial,
            "model": "ST4000DM000" if serial < "M" else "HGST HMS5C4040ALE640",
            "manufacturer": "ST" if serial < "M" else "HGST",
            "size_tb": 4.0,
            "min_date": float(FIRST_DAY),
            "min_hours": zero,
            "tstart": start,
            "tstop": stop,
            "fails": float(fails and number == len(spans) - 1),
        }
        rows.append(row | {name: column[number] for name, column in values.items()})
    return rows


def frame(rows: list[Row]) -> pl.DataFrame:
    """A table as the set has it; attributes that no row names are missing."""
    names = [f"smart_{number}" for number in (5, 10, 12, 187, 188, 189, 196, 197, 198)]
    filled = [{**dict.fromkeys(names), **row} for row in rows]
    whole = pl.DataFrame(filled, infer_schema_length=None)
    return whole.with_columns(pl.col(names).cast(pl.Float64), pl.col("min_hours").cast(pl.Int32))


def write(folder: Path, table: pl.DataFrame, name: str = "drives.parquet") -> Path:
    """The folder, with the table in it."""
    folder.mkdir(parents=True, exist_ok=True)
    table.write_parquet(folder / name)
    return folder


def fleet(drives: int = 150, seed: int = 0, prefix: str = "") -> pl.DataFrame:
    """A fleet of which a fifth fails at a random time."""
    rng = np.random.default_rng(seed)
    rows: list[Row] = []
    for number in range(drives):
        rows += _random_drive(f"{prefix}{'A' if number % 3 else 'Z'}{number:04}", rng)
    return frame(rows)


def _random_drive(serial: str, rng: np.random.Generator) -> list[Row]:
    fails = bool(rng.random() < 0.2)
    zero = int(rng.integers(0, 20_000))
    end = int(rng.integers(40, DAYS) if fails else DAYS) * 24
    cuts = {int(one) * 24 for one in rng.integers(1, end // 24, rng.integers(0, 4))}
    warns = fails and rng.random() < 0.7
    if warns:
        cuts |= {end - 24 * ahead for ahead in (9, 6, 4, 2, 1)}
    inner = sorted(one for one in cuts if 0 < one < end)
    bounds = [0, *inner, end]
    spans = [(zero + a, zero + b) for a, b in pairwise(bounds)]
    bad = np.cumsum([0, *(int(rng.integers(5, 60)) if warns and end - one <= 240 else 0 for one in inner)])
    cycles = np.arange(len(spans)) + int(rng.integers(1, 30))
    values = {"smart_5": bad, "smart_197": bad // 2, "smart_187": bad // 3, "smart_12": cycles}
    return drive(
        serial, spans, fails=fails, zero=zero, **{name: [float(x) for x in one] for name, one in values.items()}
    )

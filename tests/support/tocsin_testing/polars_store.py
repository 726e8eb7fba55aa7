"""The other shape that the embedded store could have, as far as its benchmarks need it: a trial, not a product.

SQLite has the hot window, a blob of Arrow IPC under LZ4 for each write; the hours that are over are Parquet files under
zstd, all of it written, merged and read by polars. It lacks reasons, owners, variants, attributes, retention, roll-up,
damaged files, backup and every other process that writes.
"""

from __future__ import annotations

import io
import sqlite3
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from tocsin.domain.clock import HOUR, MINUTE
from tocsin.domain.reading import Reading

_TABLES = """
CREATE TABLE gpu (id INTEGER PRIMARY KEY, uuid TEXT UNIQUE, last_ms INTEGER);
CREATE TABLE chunk (id INTEGER PRIMARY KEY, hour INTEGER, first_ms INTEGER, last_ms INTEGER, body BLOB);
CREATE INDEX chunk_span ON chunk (hour, last_ms, first_ms);
"""
_NEWEST = (
    "UPDATE gpu SET last_ms = max(coalesce(last_ms, 0), ?2) WHERE id = ?1"  # of a GPU, after its readings are written
)


class PolarsStore:
    """A durable write, the newest of all, the past of one."""

    def __init__(self, path: Path) -> None:
        self.folder = path.with_name(path.name + ".segments")
        self.folder.mkdir()
        self.db = sqlite3.connect(path, isolation_level=None)
        for pragma in ("page_size = 16384", "journal_mode = WAL", "synchronous = FULL"):
            self.db.execute(f"PRAGMA {pragma}")
        self.db.executescript(_TABLES)
        self._numbers: dict[str, int] = {}

    def write(self, readings: Sequence[Reading]) -> None:
        """Readings of one set of names; durable on return."""
        self.db.execute("BEGIN IMMEDIATE")
        frame = self._frame(readings)
        for (hour,), part in frame.group_by(pl.col("at_ms") // HOUR * HOUR, maintain_order=True):
            body = io.BytesIO()
            part.write_ipc(body, compression="lz4")
            row = (hour, part["at_ms"].min(), part["at_ms"].max(), body.getvalue())
            self.db.execute("INSERT INTO chunk (hour, first_ms, last_ms, body) VALUES (?, ?, ?, ?)", row)
        self.db.executemany(_NEWEST, frame.group_by("gpu").agg(pl.col("at_ms").max()).rows())
        self.db.execute("COMMIT")

    def _frame(self, readings: Sequence[Reading]) -> pl.DataFrame:
        names = list(dict.fromkeys(name for reading in readings for name in reading.values))
        flat = np.fromiter((r.values.get(name, np.nan) for r in readings for name in names), np.float64)
        columns = np.ascontiguousarray(flat.reshape(len(readings), -1).T)
        gpu = np.fromiter((self._number(reading.gpu.uuid) for reading in readings), np.int32)
        at_ms = np.fromiter((reading.at_ms for reading in readings), np.int64)
        values = dict(zip(names, columns, strict=True))
        return pl.DataFrame({"gpu": gpu, "at_ms": at_ms, **values}, nan_to_null=True)

    def _number(self, uuid: str) -> int:
        found = self._numbers.get(uuid)
        if found is None:
            (found,) = self.db.execute("INSERT INTO gpu (uuid) VALUES (?) RETURNING id", (uuid,)).fetchone()
            self._numbers[uuid] = found
        return found

    def _hot(self, start_ms: int, end_ms: int, names: list[str] | None = None) -> list[pl.DataFrame]:
        hours = [h for (h,) in self.db.execute("SELECT DISTINCT hour FROM chunk") if start_ms - HOUR < h < end_ms]
        query = "SELECT body FROM chunk WHERE hour = ? AND last_ms >= ? AND first_ms < ? ORDER BY id"
        found = [body for hour in hours for (body,) in self.db.execute(query, (hour, start_ms, end_ms))]
        return [pl.read_ipc(io.BytesIO(body), columns=names and ["gpu", "at_ms", *names]) for body in found]

    def compact(self) -> None:
        """Make a file of each hour."""
        for (hour,) in self.db.execute("SELECT DISTINCT hour FROM chunk ORDER BY hour").fetchall():
            frame = _merged(self._hot(hour, hour + HOUR))
            path = self.folder / f"{hour}.parquet"
            frame.write_parquet(path, compression="zstd", compression_level=3, row_group_size=8_192, statistics=True)
            self.db.execute("DELETE FROM chunk WHERE hour = ?", (hour,))

    def series(self, uuid: str, names: list[str], start_ms: int, end_ms: int) -> npt.NDArray[np.float64]:
        """The past of one GPU, float64[n, m]."""
        wanted = (pl.col("gpu") == self._numbers[uuid]) & pl.col("at_ms").is_between(start_ms, end_ms, closed="left")
        cold = pl.scan_parquet(sorted(self.folder.glob("*.parquet"))) if any(self.folder.iterdir()) else None
        parts = [] if cold is None else [cold.filter(wanted).select("gpu", "at_ms", *names).collect()]
        parts += [part.filter(wanted) for part in self._hot(start_ms, end_ms, names)]
        return _merged(parts).select(names).to_numpy()

    def newest(self, names: list[str]) -> npt.NDArray[np.float64]:
        """The newest row of each GPU that has one of the last minute, by number, float64[n, m]."""
        schema = {"gpu": pl.Int32, "last_ms": pl.Int64}
        last = pl.DataFrame(self.db.execute("SELECT id, last_ms FROM gpu").fetchall(), schema=schema, orient="row")
        front = last.filter(pl.col("last_ms") > pl.col("last_ms").max() - MINUTE)["last_ms"]
        first_ms, last_ms = min(front.to_list()), max(front.to_list())
        found = _merged(self._hot(first_ms, last_ms + 1, names)).join(last, on="gpu")
        return found.filter(pl.col("at_ms") == pl.col("last_ms")).sort("gpu").select(names).to_numpy()

    def bytes(self) -> int:
        """Of all files."""
        return sum(path.stat().st_size for path in self.folder.iterdir())


def _merged(parts: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """One row per GPU and instant, sorted by them; of two values the later one wins."""
    frame = pl.concat(parts, how="diagonal")
    if frame.select(pl.struct("gpu", "at_ms").n_unique()).item() < frame.height:
        frame = frame.group_by("gpu", "at_ms", maintain_order=True).agg(pl.all().drop_nulls().last())
    return frame.sort("gpu", "at_ms")

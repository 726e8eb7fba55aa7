"""From the first version of the embedded store, which had a row per reading and a column per metric."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Sequence

import numpy as np
import structlog

from tocsin.domain.reading import Gpu, Missing, Reading
from tocsin.store.embedded import gpus as rows
from tocsin.store.embedded.blocks import Block
from tocsin.store.embedded.chunks import Chunks
from tocsin.store.embedded.notes import Index

log = structlog.get_logger()

_SLICE = 5_000
Gather = Callable[[Sequence[Reading], Index], Block]


def bring_over(db: sqlite3.Connection, chunks: Chunks, gather: Gather) -> None:
    """Turn the rows of table ``reading`` into chunks, some at a time, and drop it when it is empty.

    Each slice is one transaction: a process that is killed goes on where it was when the file is opened again, and two
    that open the file at once take turns.
    """
    moved = 0
    while _is_old(db):
        db.execute("BEGIN IMMEDIATE")
        with db:
            taken = _slice(db, chunks, gather) if _is_old(db) else 0
            if not taken:
                db.execute("DROP TABLE IF EXISTS reading")
                db.execute("DROP TABLE IF EXISTS metric")
        moved += taken
    if moved:
        log.info("store brought over to the present version", readings=moved)


def _is_old(db: sqlite3.Connection) -> bool:
    return db.execute("SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'reading'").fetchone() is not None


def _slice(db: sqlite3.Connection, chunks: Chunks, gather: Gather) -> int:
    names = tuple(str(name) for (name,) in db.execute("SELECT name FROM metric ORDER BY position"))
    columns = "".join(f', "{name}"' for name in names)
    gpu_columns = ", ".join(f"gpu.{name.strip()}" for name in rows.GPU_COLUMNS.split(","))
    width = len(rows.GPU_COLUMNS.split(","))
    found = db.execute(
        f"SELECT reading.rowid, reading.gpu, {gpu_columns}, at_ms, missing, extra{columns} FROM reading "
        f"JOIN gpu ON gpu.id = reading.gpu ORDER BY at_ms LIMIT {_SLICE}"
    ).fetchall()
    if not found:
        return 0
    readings = [_read_reading(rows.read_gpu(row[2 : 2 + width]), row[2 + width :], names) for row in found]
    numbers = np.array([row[1] for row in found], dtype=np.int32)
    chunks.insert(db, gather(readings, numbers))
    db.executemany("DELETE FROM reading WHERE rowid = ?", [(row[0],) for row in found])
    return len(found)


def _read_reading(gpu: Gpu, row: Sequence[str | int | float | bytes | None], names: tuple[str, ...]) -> Reading:
    """A reading of that version: ``at_ms``, a byte a column for what is missing, variants as JSON, the columns."""
    at_ms, blob, extra, *columns = row
    values = {name: float(value) for name, value in zip(names, columns, strict=True) if value is not None}
    missing: dict[str, Missing] = {}
    if isinstance(blob, bytes):
        missing = {name: Missing(code) for name, code in zip(names, blob, strict=False) if code and name not in values}
    if extra is not None:
        variants, reasons = json.loads(str(extra))
        values.update(variants)
        missing.update({k: Missing(v) for k, v in reasons.items() if k not in values})
    return Reading(gpu, int(str(at_ms)), values, missing)

"""Table ``segment``: which files hold the history, and setting aside those that cannot be read."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import structlog

from tocsin.domain.atomic_file import SUFFIX as UNFINISHED
from tocsin.store.embedded import segments
from tocsin.store.embedded.blocks import Block
from tocsin.store.embedded.chunks import Ask
from tocsin.store.embedded.database import Database
from tocsin.store.embedded.sums import checked, row_sum
from tocsin.store.port import StoreUnavailable

log = structlog.get_logger()

_SPANS = "step_ms, start_ms, end_ms, first_ms, last_ms, first_gpu, last_gpu"
_COLUMNS = f"id, name, {_SPANS}, height, variants, size, newest, sums, sum, problem"
_LIVE = "retired_ms IS NULL AND problem IS NULL"


@dataclass(frozen=True, slots=True)
class Segment:
    """A row of table ``segment``: a file with `height` rows of the GPUs numbered `first_gpu` to `last_gpu`.

    It belongs to the span [`start_ms`, `end_ms`), an hour or a day; its instants lie in [`first_ms`, `last_ms`].
    `step_ms` is the width of its windows, 0 for readings as they were taken; `variants` counts values of variants.
    `newest` is the number of the newest chunk in it: what it says outranks what a segment of older chunks says.
    """

    id: int
    name: str
    step_ms: int
    start_ms: int
    end_ms: int
    first_ms: int
    last_ms: int
    first_gpu: int
    last_gpu: int
    height: int
    variants: int
    size: int
    newest: int
    sums: bytes | None = None
    sum: int = 0
    problem: str | None = None

    @property
    def row(self) -> tuple[object, ...]:
        """What its sum is of."""
        span = (self.name, self.step_ms, self.start_ms, self.end_ms, self.first_ms, self.last_ms)
        return (*span, self.first_gpu, self.last_gpu, self.height, self.variants, self.size, self.newest, self.sums)


def read_segment(row: Sequence[Any]) -> Segment:
    """The segment of a row of the table; raises DamagedRow."""
    found = Segment(*row)
    checked("segment", found.sum, found.row)
    return found


class Gone(Exception):
    """A file is not there any more: it was replaced after the list of segments was read."""


class Segments:
    """The folder of segments beside the SQLite file, and the table that says which of its files count."""

    def __init__(self, database: Database) -> None:
        self._database = database
        path = database.path
        self.folder = path.with_name(path.name + ".segments")

    def path(self, segment: Segment) -> Path:
        """The segment's file."""
        return self.folder / segment.name

    def found(self, db: sqlite3.Connection, ask: Ask) -> list[Segment]:
        """The segments that may have wanted rows, oldest first; one whose file could not be read is left out."""
        first, last = ask.span
        query = (
            f"SELECT {_COLUMNS} FROM segment WHERE {_LIVE} AND last_ms >= ? AND first_ms < ? "
            "AND last_gpu >= ? AND first_gpu <= ? ORDER BY newest, id"
        )
        bounds = (max(ask.start_ms, -(2**63)), min(ask.end_ms, 2**63 - 1))
        rows = [read_segment(row) for row in db.execute(query, (*bounds, first, last))]
        spans = np.array([(segment.first_ms, segment.last_ms) for segment in rows], np.int64).reshape(-1, 2)
        return [rows[place] for place in np.flatnonzero(ask.touches(*spans.T))]

    def of_span(self, db: sqlite3.Connection, start_ms: int, end_ms: int) -> list[Segment]:
        """The segments that belong to spans within [`start_ms`, `end_ms`), oldest first."""
        query = f"SELECT {_COLUMNS} FROM segment WHERE {_LIVE} AND start_ms >= ? AND end_ms <= ? ORDER BY newest, id"
        return [read_segment(row) for row in db.execute(query, (start_ms, end_ms))]

    def read(self, segment: Segment, ask: Ask, *, last_try: bool = False) -> Block | None:
        """The wanted rows of a segment; None where its file is damaged, which is logged and remembered.

        Raises Gone where the file is not there, unless this is the `last_try` and it should be there, and
        StoreUnavailable where the machine and not the file is at fault.
        """
        try:
            return segments.read(
                self.path(segment),
                ask.start_ms,
                ask.end_ms,
                ask.gpus,
                ask.names,
                whole=ask.whole,
                variants=bool(ask.variants and segment.variants),
                sums=segment.sums or b"",
            )
        except FileNotFoundError as error:
            if not last_try or not self._counts(segment):
                raise Gone(segment.name) from None
            problem = str(error)
        except OSError as error:
            # Arrow reports a damaged page as an error without a number, or as one of reading.
            if error.errno not in (None, errno.EIO):
                raise StoreUnavailable(f"segment {self.path(segment)}: {error}") from None
            problem = str(error)
        except pa.ArrowMemoryError as error:
            raise StoreUnavailable(f"segment {self.path(segment)}: {error}") from None
        except (pa.ArrowException, segments.BadSegment) as error:
            problem = f"{type(error).__name__}: {error}"
        self._set_aside(segment, problem)
        return None

    def _counts(self, segment: Segment) -> bool:
        with self._database.reading() as db:
            found = db.execute("SELECT 1 FROM segment WHERE id = ? AND retired_ms IS NULL", (segment.id,)).fetchone()
        return found is not None

    def _set_aside(self, segment: Segment, problem: str) -> None:
        log.error("segment set aside", segment=str(self.path(segment)), rows=segment.height, problem=problem[:300])
        with self._database.writing() as db:
            db.execute("UPDATE segment SET problem = ? WHERE id = ?", (problem[:300], segment.id))

    def damaged(self) -> list[tuple[str, str]]:
        """Name and problem of each segment that could not be read."""
        with self._database.reading() as db:
            return db.execute("SELECT name, problem FROM segment WHERE problem IS NOT NULL ORDER BY id").fetchall()

    def add(self, db: sqlite3.Connection, made: Sequence[Segment]) -> None:
        """Let new segments count; their own numbers are not used."""
        columns = _COLUMNS.removeprefix("id, ")
        marks = ", ".join("?" * len(columns.split(",")))
        values = [(*one.row, row_sum(one.row), one.problem) for one in made]
        db.executemany(f"INSERT INTO segment ({columns}) VALUES ({marks})", values)

    def retire(self, db: sqlite3.Connection, gone: Sequence[Segment], now_ms: int) -> None:
        """Let segments no longer count; `sweep` removes their files once readers have had time to finish."""
        db.executemany("UPDATE segment SET retired_ms = ? WHERE id = ?", [(now_ms, segment.id) for segment in gone])

    def sweep(self, retired_before_ms: int) -> int:
        """Remove files that belong to no segment, and segments retired before that instant; returns how many files.

        Whoever calls holds the upkeep lock: nobody else is writing a segment.
        """
        with self._database.writing() as db:
            db.execute("DELETE FROM segment WHERE retired_ms < ?", (retired_before_ms,))
            named = {name for (name,) in db.execute("SELECT name FROM segment")}
        if not self.folder.is_dir():
            return 0
        kept = named | {segments.variants_of(Path(name)).name for name in named}
        ours = [path for path in self.folder.iterdir() if path.name.endswith((segments.SUFFIX, UNFINISHED, ".tmp"))]
        orphans = [path for path in ours if path.name not in kept]
        for path in orphans:
            path.unlink(missing_ok=True)
        return len(orphans)

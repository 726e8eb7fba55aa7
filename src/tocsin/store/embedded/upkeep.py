"""Upkeep of the embedded store: compaction, days from hours, roll-up of what is old, removal of what is too old.

Everything here happens under a lock of its own, one process and thread at a time; writers and readers go on meanwhile.
"""

from __future__ import annotations

import fcntl
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import structlog

from tocsin.at_rest.keys import RING, StateKey
from tocsin.domain.atomic_file import make_folder
from tocsin.domain.clock import DAY, HOUR, MINUTE
from tocsin.domain.errors import Unavailable
from tocsin.store.embedded import segments as files
from tocsin.store.embedded.blocks import Block, merge
from tocsin.store.embedded.chunks import Ask, Chunks, DamagedChunk
from tocsin.store.embedded.database import Database, locked
from tocsin.store.embedded.gpus import flags_of
from tocsin.store.embedded.rollup import roll
from tocsin.store.embedded.segment_index import Gone, Segment, Segments
from tocsin.store.port import StoreUnavailable
from tocsin.store.upkeep import STEPS, Retention, Upkeep

# Rewriting a span of the embedded store: chunks and segments in, fewer and better sorted segments out. Compaction,
# joining hours to days, rolling up and cutting off the past are all this. New files are on disk before one
# transaction lets them count and takes the old ones, and the chunks, out of the count: whoever is killed before that
# has changed nothing, and the files are swept away later.

MAX_ROWS = 2**17
"""About how many rows are put together in memory at once, and go into a file: of 60 metrics they are 63 MB."""


@dataclass(frozen=True, slots=True)
class Job:
    """Put `parts` and the chunks up to number `upto` in [`start_ms`, `end_ms`) into segments of windows `step_ms`.

    Rows before `floor_ms` are left out. `chunk_rows` is how many rows the chunks have, `first_gpu` and `last_gpu` are
    the lowest and highest number of a GPU in them.
    """

    start_ms: int
    end_ms: int
    step_ms: int
    parts: Sequence[Segment] = ()
    upto: int = 0
    chunk_rows: int = 0
    first_gpu: int = 2**31
    last_gpu: int = 0
    floor_ms: int = field(default=-(2**63))

    @property
    def gpus(self) -> tuple[int, int]:
        """Lowest and highest number of a GPU that goes in."""
        first = min([self.first_gpu, *(part.first_gpu for part in self.parts)])
        return first, max([self.last_gpu, *(part.last_gpu for part in self.parts)])

    @property
    def rows(self) -> int:
        """How many rows go in."""
        return self.chunk_rows + sum(part.height for part in self.parts)


class Interrupted(Unavailable):
    """The process is about to end: the job was left as it was."""


class Rewriter:
    """Carries out jobs. Whoever calls holds the upkeep lock."""

    def __init__(self, database: Database, chunks: Chunks, segments: Segments) -> None:
        self._database = database
        self._chunks = chunks
        self._segments = segments
        self._number = 0
        self.ending = threading.Event()

    def run(self, job: Job, now_ms: int) -> int:
        """Carry out `job`; returns how many rows the new segments have. Raises StoreUnavailable, and changes nothing.

        A segment that turns out to be damaged is left out, and stays set aside.
        """
        with self._database.reading() as db:
            (highest,) = db.execute(
                "SELECT COALESCE(MAX(seq), 0) FROM sqlite_sequence WHERE name = 'segment'"
            ).fetchone()
        self._number = max(self._number, highest)
        made: list[Segment] = []
        try:
            make_folder(self._segments.folder)
            made.extend(self._written(job, block) for block in _gathered(self._merged(job)))
            self._swap(job, made, now_ms)
        except (OSError, Unavailable) as error:
            for segment in made:
                files.remove(self._segments.path(segment))
            if isinstance(error, Unavailable):
                raise
            raise StoreUnavailable(f"segments {self._segments.folder}: {error}") from None
        return sum(segment.height for segment in made)

    def _merged(self, job: Job) -> Iterator[Block]:
        """The job's rows, merged and rolled up, some GPUs at a time."""
        first, last = job.gpus
        count = min(last - first + 1, -(-job.rows // MAX_ROWS)) or 1
        edges = np.linspace(first, last + 1, count + 1).astype(int)
        for low, high in pairwise(edges.tolist()):
            if self.ending.is_set():
                raise Interrupted(f"upkeep of {self._database.path} ends early")
            chosen = flags_of(range(low, high))
            ask = Ask(job.start_ms, job.end_ms, chosen, whole=True, variants=True, upto=job.upto)
            block = self._piece(job, ask)
            kept = block.between(max(job.floor_ms, job.start_ms), job.end_ms)
            if len(kept):
                yield kept

    def _piece(self, job: Job, ask: Ask) -> Block:
        block = merge([])
        for step in STEPS:
            if step > job.step_ms:
                break
            here = [self._read(part, ask) for part in job.parts if part.step_ms == step and _touches(part, ask)]
            if step == 0 and job.chunk_rows:
                with self._database.reading() as db:
                    here += list(self._chunks.read(db, ask))
            # What is rolled up already stays as it is: a late reading only fills in what the window did not have.
            block = merge([part for part in (roll(block, step), *here) if len(part)])
        return block

    def _read(self, part: Segment, ask: Ask) -> Block:
        try:
            found = self._segments.read(part, ask, last_try=True)
        except Gone as error:
            raise StoreUnavailable(f"segment {error} is gone") from None
        return merge([]) if found is None else found

    def _written(self, job: Job, block: Block) -> Segment:
        self._number += 1
        name = f"{job.start_ms}-{job.end_ms - job.start_ms}-{job.step_ms}-{self._number:08d}{files.SUFFIX}"
        size, sums = files.write(self._segments.folder / name, block)
        span = (int(block.at_ms.min()), int(block.at_ms.max()), int(block.gpu.min()), int(block.gpu.max()))
        variants = len(block.extra.row)
        newest = max([job.upto, *(part.newest for part in job.parts)])
        return Segment(0, name, job.step_ms, job.start_ms, job.end_ms, *span, len(block), variants, size, newest, sums)

    def _swap(self, job: Job, made: Sequence[Segment], now_ms: int) -> None:
        with self._database.writing() as db:
            self._chunks.set_aside(db)
            self._segments.add(db, made)
            healthy = {name for (name,) in db.execute("SELECT name FROM segment WHERE problem IS NULL")}
            self._segments.retire(db, [part for part in job.parts if part.name in healthy], now_ms)
            db.execute(
                "DELETE FROM chunk WHERE bucket_ms >= ? AND bucket_ms < ? AND id <= ?",
                (job.start_ms, job.end_ms, job.upto),
            )
            if job.step_ms:
                db.execute(
                    "UPDATE gpu SET last_ms = last_ms - last_ms % ?1 WHERE last_ms >= ?2 AND last_ms < ?3",
                    (job.step_ms, job.start_ms, job.end_ms),
                )


def _touches(part: Segment, ask: Ask) -> bool:
    first, last = ask.span
    return part.first_gpu <= last and part.last_gpu >= first


def _gathered(blocks: Iterator[Block]) -> Iterator[Block]:
    """`blocks` put together to as many rows as a file takes; a roll-up makes them small."""
    waiting: list[Block] = []
    for block in blocks:
        if waiting and sum(map(len, waiting)) + len(block) > MAX_ROWS:
            yield merge(waiting)
            waiting = []
        waiting.append(block)
    if waiting:
        yield merge(waiting)


log = structlog.get_logger()

CLOSED_MS = 5 * MINUTE
"""How long after its end an hour is compacted: until then its readings may still come."""
JOIN_MS = 2 * DAY
"""Age at which the hours of a day become one: the newest days are also read across all GPUs, minutes at a time."""
RETIRED_MS = 10 * MINUTE
"""How long the file of a replaced segment stays for those who had begun to read it."""
_JOIN_ROWS = 32 * MAX_ROWS
"""Largest day that is joined: of a larger one the segments of each hour are large enough."""
_JOIN_PARTS = 8
_TIER = 4


@dataclass(frozen=True, slots=True)
class _Hot:
    """The chunks of one hour: newest number, rows, lowest and highest number of a GPU."""

    bucket_ms: int
    upto: int
    rows: int
    first_gpu: int
    last_gpu: int


class EmbeddedUpkeep:
    """Looks after the files of one embedded store."""

    def __init__(self, database: Database, chunks: Chunks, segments: Segments) -> None:
        self._database = database
        self._chunks = chunks
        self._segments = segments
        self._rewriter = Rewriter(database, chunks, segments)
        self._lock = threading.Lock()
        self._before: dict[int, int] = {}

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the upkeep lock. Raises Conflict where another process has it."""
        with self._lock, locked(self._database.path, ".upkeep", fcntl.LOCK_EX):
            yield

    def run(self, now_ms: int, retention: Retention) -> Upkeep:
        """One round of everything that is due at `now_ms`. Raises Conflict, StoreUnavailable."""
        done = Upkeep()
        self._rewriter.ending.clear()
        with self.alone():
            self._segments.sweep(now_ms - RETIRED_MS)
            done = replace(done, removed=self._drop(now_ms, retention))
            try:
                done = replace(done, rolled=self._roll(now_ms, retention))
                done = replace(done, compacted=self._compact(now_ms, retention))
                done = replace(done, joined=self._join(now_ms))
            except Interrupted as error:
                log.info("upkeep interrupted", reason=str(error))
            with self._database.reading() as db:
                self._before = {hot.bucket_ms: hot.upto for hot in _hot(db)}
                (rows,) = db.execute("SELECT COALESCE(SUM(rows), 0) FROM damaged").fetchone()
        return replace(done, damaged=len(self._segments.damaged()), damaged_rows=int(rows))

    def interrupt(self) -> None:
        """Let the round under way end after the piece that it is at."""
        self._rewriter.ending.set()

    # ------------------------------------------------------------------ steps

    def _drop(self, now_ms: int, retention: Retention) -> int:
        """Remove whole days that are older than all that is kept, and events, findings and predictions."""
        before = (now_ms - retention.ten_minute_ms) // DAY * DAY
        with self._database.writing() as db:
            old = db.execute("SELECT id, height FROM segment WHERE end_ms <= ? AND retired_ms IS NULL", (before,))
            gone = old.fetchall()
            db.executemany("UPDATE segment SET retired_ms = ? WHERE id = ?", [(now_ms, number) for number, _ in gone])
            query = "SELECT COALESCE(SUM(height), 0) FROM chunk WHERE bucket_ms < ?"
            removed = sum(int(height) for _, height in gone) + int(db.execute(query, (before,)).fetchone()[0])
            db.execute("DELETE FROM chunk WHERE bucket_ms < ?", (before,))
            db.execute("UPDATE gpu SET last_ms = NULL WHERE last_ms < ?", (before,))
            for table in ("event", "finding"):
                removed += remove_before(db, table, now_ms - retention.ten_minute_ms)
            removed += remove_before(db, "prediction", now_ms - retention.minute_ms)
        return removed

    def _roll(self, now_ms: int, retention: Retention) -> int:
        """Put days whose readings are too old for their windows into wider ones."""
        with self._database.reading() as db:
            days = {hot.bucket_ms // DAY * DAY for hot in _hot(db)}
            days |= {start // DAY * DAY for (start,) in db.execute("SELECT start_ms FROM segment")}
        rolled = 0
        for day in sorted(days):
            step = retention.step_of(now_ms - day - DAY)
            if step:
                rolled += self._roll_day(day, step, now_ms)
        return rolled

    def _roll_day(self, day: int, step: int, now_ms: int) -> int:
        with self._database.reading() as db:
            parts = self._segments.of_span(db, day, day + DAY)
            hot = _hot(db, day, day + DAY)
        if any(self._before.get(one.bucket_ms) != one.upto for one in hot):
            # A past is being brought in: its windows are made once, when no more of it comes.
            return 0
        finer = [part for part in parts if part.step_ms < step]
        if not finer and not hot:
            return 0
        fresh = _job(day, day + DAY, step, finer, hot)
        first, last = fresh.gpus
        coarse = [p for p in parts if p.step_ms == step and p.first_gpu <= last and p.last_gpu >= first]
        return self._rewriter.run(_job(day, day + DAY, step, [*finer, *coarse], hot), now_ms)

    def _compact(self, now_ms: int, retention: Retention) -> int:
        """Put the chunks of each hour that is over into segments, together with small segments of that hour."""
        with self._database.reading() as db:
            due = [hot for hot in _hot(db) if hot.bucket_ms + HOUR + CLOSED_MS <= now_ms]
        compacted = 0
        for hot in due:
            start, end = hot.bucket_ms, hot.bucket_ms + HOUR
            there = self._of_day(start)
            if retention.step_of(now_ms - start // DAY * DAY - DAY) or any(part.step_ms for part in there):
                # Its day is rolled up, or is about to be.
                continue
            parts = _small([part for part in there if (part.start_ms, part.end_ms) == (start, end)], hot.rows)
            compacted += self._rewriter.run(_job(start, end, 0, parts, [hot]), now_ms)
        return compacted

    def _of_day(self, instant: int) -> list[Segment]:
        day = instant // DAY * DAY
        with self._database.reading() as db:
            return self._segments.of_span(db, day, day + DAY)

    def _join(self, now_ms: int) -> int:
        """Make one segment, or few, of the hours of a day that is long over."""
        with self._database.reading() as db:
            query = "SELECT DISTINCT start_ms FROM segment WHERE step_ms = 0 AND retired_ms IS NULL AND end_ms <= ?"
            days = {start // DAY * DAY for (start,) in db.execute(query, (now_ms - JOIN_MS,))}
        joined = 0
        for day in sorted(days):
            parts = self._of_day(day)
            hours = [part for part in parts if part.end_ms - part.start_ms < DAY]
            least = 2 if len(hours) == len(parts) else _JOIN_PARTS
            if day + DAY + JOIN_MS > now_ms or len(hours) < least or sum(p.height for p in parts) > _JOIN_ROWS:
                continue
            if not any(part.step_ms for part in parts):
                joined += self._rewriter.run(_job(day, day + DAY, 0, parts, []), now_ms)
        return joined

    # ------------------------------------------------------------------ cutting off

    def cut(self, before_ms: int) -> int:
        """Remove readings before `before_ms`, in the middle of an hour too; returns how many."""
        removed = 0
        with self.alone():
            with self._database.reading() as db:
                parts = self._segments.found(db, Ask(-(2**63), before_ms))
            removed += self._count(before_ms)
            whole = [part for part in parts if part.last_ms < before_ms]
            for part in parts:
                if part.last_ms >= before_ms:
                    job = Job(part.start_ms, part.end_ms, part.step_ms, [part], floor_ms=before_ms)
                    self._rewriter.run(job, 0)
            with self._database.writing() as db:
                self._segments.retire(db, whole, 0)
                self._cut_chunks(db, before_ms)
                db.execute("UPDATE gpu SET last_ms = NULL WHERE last_ms < ?", (before_ms,))
        return removed

    def reseal(self) -> int:
        """Write every segment anew that this process would write otherwise: plain, or with another key. Nobody else may
        have the store open. Returns how many. Raises Conflict, StoreUnavailable and InputError."""
        with self.alone():
            with self._database.reading() as db:
                parts = self._segments.of_span(db, -(2**62), 2**62)
            key = RING.first()
            stale = [part for part in parts if not self._is_by(part, key)]
            for part in stale:
                self._rewriter.run(Job(part.start_ms, part.end_ms, part.step_ms, [part]), 0)
            self._segments.sweep(1)
        return len(stale)

    def _is_by(self, part: Segment, key: StateKey | None) -> bool:
        path = self._segments.path(part)
        try:
            return all(files.is_sealed_by(one, key) for one in (path, files.variants_of(path)) if one.exists())
        except OSError as error:
            raise StoreUnavailable(f"segment {path}: {error}") from None

    def _cut_chunks(self, db: sqlite3.Connection, before_ms: int) -> None:
        db.execute("DELETE FROM chunk WHERE last_ms < ?", (before_ms,))
        for (number,) in db.execute("SELECT id FROM chunk WHERE first_ms < ?", (before_ms,)).fetchall():
            ask = Ask(before_ms, 2**62, whole=True, variants=True)
            try:
                self._chunks.replace(db, number, self._chunks.one(db, number, ask))
            except DamagedChunk as error:
                self._chunks.damaged[number] = str(error)
        self._chunks.set_aside(db)

    def _count(self, before_ms: int) -> int:
        """How many readings there are before an instant; one that is in two places counts once."""
        ask = Ask(-(2**62), before_ms, names=frozenset())
        with self._database.reading() as db:
            parts = self._segments.found(db, ask)
            blocks: list[Block | None] = list(self._chunks.read(db, ask))
        blocks += [self._segments.read(part, ask, last_try=True) for part in parts]
        return len(merge([block for block in blocks if block is not None]))


def _hot(db: sqlite3.Connection, start_ms: int = -(2**62), end_ms: int = 2**62) -> list[_Hot]:
    query = (
        "SELECT bucket_ms, MAX(id), SUM(height), MIN(first_gpu), MAX(last_gpu) FROM chunk "
        "WHERE bucket_ms >= ? AND bucket_ms < ? GROUP BY bucket_ms ORDER BY bucket_ms"
    )
    return [_Hot(*row) for row in db.execute(query, (start_ms, end_ms))]


def _job(start_ms: int, end_ms: int, step_ms: int, parts: Sequence[Segment], hot: Sequence[_Hot]) -> Job:
    return Job(
        start_ms,
        end_ms,
        step_ms,
        tuple(parts),
        upto=max((one.upto for one in hot), default=0),
        chunk_rows=sum(one.rows for one in hot),
        first_gpu=min((one.first_gpu for one in hot), default=2**31),
        last_gpu=max((one.last_gpu for one in hot), default=0),
    )


def _small(parts: Sequence[Segment], rows: int) -> list[Segment]:
    """The newest of an hour's segments that late readings are worth rewriting for: few rows never rewrite many."""
    chosen: list[Segment] = []
    for part in reversed(parts):
        if part.height > _TIER * rows:
            break
        chosen.append(part)
        rows += part.height
    return chosen[::-1]


def remove_before(db: sqlite3.Connection, table: str, before_ms: int) -> int:
    """Remove events, findings or predictions that are older; returns how many."""
    return db.execute(f"DELETE FROM {table} WHERE at_ms < ?", (before_ms,)).rowcount

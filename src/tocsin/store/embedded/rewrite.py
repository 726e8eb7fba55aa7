"""Rewriting a span of the embedded store: chunks and segments in, fewer and better sorted segments out.

Compaction, joining hours to days, rolling up and cutting off the past are all this. New files are on disk before one
transaction lets them count and takes the old ones, and the chunks, out of the count: whoever is killed before that has
changed nothing, and the files are swept away later.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from tocsin.domain.atomic_file import make_folder
from tocsin.domain.errors import Unavailable
from tocsin.store.embedded import segments as files
from tocsin.store.embedded.chunks import Ask, Chunks
from tocsin.store.embedded.database import Database
from tocsin.store.embedded.gpus import flags_of
from tocsin.store.embedded.hot_block import Block, merge
from tocsin.store.embedded.newest import changed
from tocsin.store.embedded.segment_index import Gone, Segment, Segments
from tocsin.store.port import StoreUnavailable
from tocsin.store.rollup import STEPS, roll

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
        size = files.write(self._segments.folder / name, block)
        span = (int(block.at_ms.min()), int(block.at_ms.max()), int(block.gpu.min()), int(block.gpu.max()))
        variants = len(block.extra.row)
        newest = max([job.upto, *(part.newest for part in job.parts)])
        return Segment(0, name, job.step_ms, job.start_ms, job.end_ms, *span, len(block), variants, size, newest)

    def _swap(self, job: Job, made: Sequence[Segment], now_ms: int) -> None:
        with self._database.writing() as db:
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
            if job.step_ms or job.floor_ms > job.start_ms:
                changed(db)


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

"""Telemetry as it is sent: unpacked, checked for who may say it, decoded and kept slice by slice.

What others push as series becomes line protocol first, so that one way and one set of checks leads to the store.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

from anyio import CapacityLimiter, to_thread

from tocsin.api.errors import ApiError
from tocsin.api.micro_batching import Crowd, MicroBatcher
from tocsin.api.principal import Principal
from tocsin.api.service import LineBody, Service
from tocsin.api.write_access import WriteAccess, foreign, other_cell
from tocsin.client.control import IngestResult, RejectedLine
from tocsin.collector.push.samples import MAX_UNPACKED_BYTES, Broken, PushedSeries, Tally, TooLarge
from tocsin.store.line_protocol.decode import MAX_REJECTED
from tocsin.store.line_protocol.encode import encode

MAX_MEMBERS = 4096
"""Members that a gzip body may have: each costs a decoder, empty ones too. Files of bgzip have one for 64 KiB."""
_STEP = 8192
"""Bytes that a decoder is given at once: what is left behind the end of a member is copied."""
_PIECE = 256 * 1024
SLICE = 512 * 1024
"""Bytes of line protocol that are decoded and stored at a time, under a second of CPU whatever they hold."""
MAX_LINE = 2 * SLICE
"""A longer line is refused: a GPU with all metrics and labels has a line of some 20 KB."""
_CUT_TRIES = 4
WORKERS = 8
"""Groups of slices in work at once."""
TOGETHER = 3 * SLICE
"""Bytes of a group from which on no further slice joins it."""
SMALL = 1_024
"""A smaller body is taken at once and alone: it is an event that somebody waits for, as nodes send them alone."""
SMALL_UNPACKED = 8_192
"""Bytes that a small one has less than once it is unpacked."""


def unpacked(body: bytes, encoding: str, limit: int) -> Iterator[bytes]:
    """`body` without its ``Content-Encoding``, piece by piece: what is kept in memory is one piece.

    Raises ApiError 413 where the whole would exceed `limit` bytes (a small body can unpack to gigabytes), 400 for
    gzip that is broken, cut short or of more than `MAX_MEMBERS` members, 415 for an encoding other than gzip and
    identity.
    """
    if encoding in {"", "identity"}:
        yield body
        return
    if encoding != "gzip":
        raise ApiError(
            415, "unsupported_encoding", f"Content-Encoding {encoding[:50]} is not read; use gzip or identity"
        )
    place = members = size = 0
    while place < len(body):
        members += 1
        if members > MAX_MEMBERS:
            raise ApiError(400, "broken_gzip", f"the gzip body has more than {MAX_MEMBERS} members; send it as one")
        decoder = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        while not decoder.eof:
            # What did not fit into the last piece is still to be read.
            left = decoder.unconsumed_tail
            part = left or body[place : place + _STEP]
            place += 0 if left else len(part)
            try:
                piece = decoder.decompress(part, _PIECE)
            except zlib.error as error:
                raise ApiError(400, "broken_gzip", f"the body is not gzip: {error}") from error
            if not (part or piece or decoder.eof):
                raise ApiError(400, "broken_gzip", "the gzip body is cut short; send it again whole")
            size += len(piece)
            if size > limit:
                message = f"the body unpacks to more than {limit} bytes; send less at once"
                raise ApiError(413, "content_too_large", message)
            yield piece
        place -= len(decoder.unused_data)


def slices(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """What `pieces` hold together, in slices of whole lines of about `SLICE` bytes.

    A line that is longer than `MAX_LINE` comes as its beginning alone, which no decoder takes, so that it is refused
    and counted like any other bad line.
    """
    waiting = bytearray()
    cutting = False
    for piece in pieces:
        for start in range(0, len(piece), SLICE):
            part = piece[start : start + SLICE]
            if cutting:
                end = part.find(b"\n")
                if end < 0:
                    continue
                part, cutting = part[end:], False
            waiting += part
            if len(waiting) >= SLICE:
                cut = _cut(waiting)
                if cut:
                    yield bytes(waiting[:cut])
                    del waiting[:cut]
                elif len(waiting) > MAX_LINE:
                    yield b"%s... is longer than %d bytes" % (waiting[:100].split(b" ")[0], MAX_LINE)
                    waiting.clear()
                    cutting = True
    if waiting:
        yield bytes(waiting)


def _cut(waiting: bytearray) -> int:
    """Behind the last newline that stands in no quoted text, as far as that can be seen; 0 where there is no newline.

    A sender whose quotes do not match may lose a line at the cut, and has lost it anyway.
    """
    cut = last = waiting.rfind(b"\n") + 1
    for _ in range(_CUT_TRIES):
        if (waiting.count(b'"', 0, cut) - waiting.count(b'\\"', 0, cut)) % 2 == 0:
            return cut
        cut = waiting.rfind(b"\n", 0, max(waiting.rfind(b'"', 0, cut), 0)) + 1
        if not cut:
            break
    return last


class RefusedLines:
    """Lines that are not kept: the `first` `MAX_REJECTED` of them, and how many `more`, which cost but a count."""

    def __init__(self) -> None:
        self.first: list[RejectedLine] = []
        self.more = 0

    def add(self, number: int, problem: str) -> None:
        if len(self.first) < MAX_REJECTED:
            self.first.append(RejectedLine(number=number, problem=problem))
        else:
            self.more += 1


_UNDECODABLE = re.compile("[\udc80-\udcff]")


def decode(body: bytes) -> tuple[str, RefusedLines]:
    """`body` as text, and the lines that are no UTF-8: these are left empty, so that the others keep their numbers."""
    refused = RefusedLines()
    try:
        return body.decode(), refused
    except UnicodeDecodeError:
        pass
    lines = body.decode("utf-8", "surrogateescape").split("\n")
    for place, line in enumerate(lines):
        if not line.isascii() and (found := _UNDECODABLE.search(line)) is not None:
            lines[place] = ""
            refused.add(place + 1, f"not UTF-8 at byte {len(line[: found.start()].encode())}")
    return "\n".join(lines), refused


@dataclass(frozen=True, slots=True)
class Upload:
    """Who sends something, and how; `client` is the address."""

    who: Principal
    client: str
    precision: str
    sure: bool = False
    """Whether only hosts that are this cell's by what is set may be kept."""


T = TypeVar("T")


@dataclass(frozen=True)
class Form(Generic[T]):
    """A form of pushed bodies: how one is unpacked within a number of bytes, and how its series are read of that."""

    unpack: Callable[[bytes, int], T]
    read: Callable[[T, Tally], Iterator[PushedSeries]]


PUSH_STEP = 2_000
"""Series that are made into lines at a time."""
PUSH_SAMPLES = 20_000
"""About the samples of these: each may become a reading of a kilobyte, and the pushes of all others wait meanwhile."""


def pushed_lines(
    service: Service, who: Principal, body: bytes, form: Form[T], tally: Tally, limit: int
) -> Iterator[bytes]:
    """Line protocol of the series in `body`, step by step; nothing of what `who` may not say. Raises ApiError."""

    def admits(host: str, gpus: Collection[str]) -> str:
        return foreign(who, host, gpus, service.owner_against)

    def whole() -> Iterator[PushedSeries]:
        """What can be read, up to where the body is broken."""
        try:
            yield from form.read(data, tally)
        except Broken as error:
            tally.samples += 1
            tally.reject(1, str(error))

    try:
        data = form.unpack(body, limit)
    except TooLarge as error:
        raise ApiError(413, "content_too_large", str(error)) from None
    except Broken as error:
        raise ApiError(400, "broken_body", str(error)) from None
    series, told = whole(), 0
    while (step := _step(series)) or tally.rejected > told:
        taken = service.pushed(step, who.name, admits, tally.rejected - told)
        if taken.rejected:
            tally.reject(taken.rejected, taken.problem)
        told = tally.rejected
        yield encode(taken.batch).encode("utf-8", "replace")


def _step(series: Iterator[PushedSeries]) -> list[PushedSeries]:
    """The next of `series`, as many as are made into lines at a time."""
    step, samples = [], 0
    for one in islice(series, PUSH_STEP):
        step.append(one)
        samples += len(one.samples)
        if samples >= PUSH_SAMPLES:
            break
    return step


def _with_end(parts: Iterator[bytes]) -> Iterator[tuple[bytes, bool]]:
    """Each of `parts`, and whether it is the last. What is raised for a later one is raised after all before it."""
    part = next(parts, None)
    while part is not None:
        try:
            following = next(parts, None)
        except ApiError:
            yield part, False
            raise
        yield part, following is None
        part = following


class _Slices:
    """What is left of the body of `upload`, slice by slice, each with whether it is the last; for one thread at a
    time."""

    def __init__(self, upload: Upload, parts: Iterator[tuple[bytes, bool]]) -> None:
        self.upload = upload
        self._parts = parts
        self.before = 0
        """Lines of those that were taken."""
        self.ended = False

    def take(self) -> bytes:
        """The next slice, empty behind the last. Raises what the body's unpacking raises."""
        part, self.ended = next(self._parts, (b"", True))
        return part


def is_small(body: bytes, encoding: str) -> bool:
    """Whether little is in `body`, also once it is unpacked."""
    if len(body) >= SMALL or encoding in {"", "identity"}:
        return len(body) < SMALL
    try:
        decoder = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        return len(decoder.decompress(body, SMALL_UNPACKED)) < SMALL_UNPACKED and not decoder.unused_data
    except zlib.error:
        return False


class Ingest:
    """Takes bodies for `service` on threads of its own, one slice of one caller after the other.

    Whatever a body holds, no other request waits for it; of two callers each gets every second slice, however much the
    other sends. What several callers send at the same time is kept together. A caller's small bodies have turns of
    their own: an event of one node behind a proxy does not queue behind the readings of all others.
    """

    def __init__(self, service: Service, max_body_bytes: int, workers: int = WORKERS, unpackers: int = 2) -> None:
        self._service = service
        self._limit = max_body_bytes
        self._threads = CapacityLimiter(workers)
        self._unpacking = asyncio.Semaphore(unpackers)
        self._batcher = MicroBatcher(self._on_a_thread)
        self._crowd = Crowd()
        self._turns: WeakValueDictionary[tuple[str, str, bool], asyncio.Lock] = WeakValueDictionary()

    async def take(self, upload: Upload, body: bytes, encoding: str) -> IngestResult:
        """Keep `body`; what was kept is durable, also where a later part of it is refused as a whole.

        Raises ApiError 400, 413 or 415 for a body that cannot be unpacked.
        """
        parts = _with_end(slices(unpacked(body, encoding, self._limit)))
        small = is_small(body, encoding)
        return await self._kept(upload, parts, small=small, hurry=small)

    async def push(self, upload: Upload, body: bytes, form: Form[T], tally: Tally) -> IngestResult:
        """Keep the series of `body`, counted in `tally`; of all such bodies two are unpacked at a time.

        Raises ApiError 400 or 413 for a body that cannot be unpacked. One that is broken from some byte on counts as a
        refused sample, and what comes before it is kept.
        """
        async with self._unpacking:
            limit = min(self._limit, MAX_UNPACKED_BYTES)
            # Each step is made of what the ones before left: none may be made ahead.
            lines = ((part, False) for part in pushed_lines(self._service, upload.who, body, form, tally, limit))
            return await self._kept(upload, lines, small=len(body) < SMALL, hurry=True)

    async def _kept(
        self, upload: Upload, parts: Iterator[tuple[bytes, bool]], *, small: bool, hurry: bool
    ) -> IngestResult:
        caller = upload.who.name, "" if upload.who.hosts else upload.client, small
        turn = self._turns.setdefault(caller, asyncio.Lock())
        result: IngestResult | None = None
        left = _Slices(upload, parts)
        loop = asyncio.get_running_loop()
        patient = not hurry and self._crowd.can_wait(caller, loop.time())
        while result is None or not left.ended:
            # Where bodies of one caller queue up, each would wait for others anew.
            now = hurry or turn.locked()
            async with turn:
                result = _together(result, await self._batcher.submit(left, hurry=now, patient=patient))
            patient = False
        if not hurry:
            self._crowd.answered(caller, loop.time())
        return result

    async def _on_a_thread(self, bodies: Sequence[_Slices]) -> Sequence[IngestResult | Exception]:
        return await to_thread.run_sync(self._kept_now, bodies, limiter=self._threads)

    def _kept_now(self, bodies: Sequence[_Slices]) -> list[IngestResult | Exception]:
        """What became of the next slice of the first of `bodies`, as many as fit together, at least one."""
        parts, size = list[_Part](), 0
        for body in bodies:
            if size >= TOGETHER:
                break
            parts.append(part := _Part(self._service, body))
            size += part.size
        good = [part.body for part in parts if part.body is not None]
        kept = iter(self._service.ingest(good) if good else ())
        return [part.told(next(kept)) if part.body is not None else part.problem or IngestResult() for part in parts]


class _Part:
    """One slice on its way: what is to be kept of it, None where there is nothing or a `problem` with all of it."""

    def __init__(self, service: Service, left: _Slices) -> None:
        self.body: LineBody | None = None
        self.problem: Exception | None = None
        self.size = 0
        self._before = left.before
        upload = left.upload
        try:
            part = left.take()
        except Exception as error:  # noqa: BLE001  # the request raises it
            self.problem = error
            return
        if part:
            self.size = len(part)
            text, self._refused = decode(part)
            self._access = WriteAccess(upload.who, service.owner_against, service.cells, sure=upload.sure)
            self.body = LineBody(text, upload.precision, self._access)
            left.before += text.count("\n")

    def told(self, kept: IngestResult | Exception) -> IngestResult | Exception:
        """What to answer where `kept` became of the lines."""
        if isinstance(kept, Exception):
            return kept
        if self._access.elsewhere is not None and not kept.records:
            # Whoever speaks for one host goes on there, with all that it has.
            return other_cell(*self._access.elsewhere)
        found = sorted([*self._refused.first, *kept.rejected], key=lambda line: line.number)
        rejected = [
            RejectedLine(number=line.number + self._before, problem=line.problem) for line in found[:MAX_REJECTED]
        ]
        more = kept.rejected_more + self._refused.more + len(found) - len(rejected)
        return kept.model_copy(update={"rejected": rejected, "rejected_more": more}) if found or more else kept


def _together(one: IngestResult | None, other: IngestResult) -> IngestResult:
    if one is None:
        return other
    rejected = [*one.rejected, *other.rejected]
    return IngestResult(
        readings=one.readings + other.readings,
        events=one.events + other.events,
        findings=one.findings + other.findings,
        predictions=one.predictions + other.predictions,
        rejected=rejected[:MAX_REJECTED],
        rejected_more=one.rejected_more + other.rejected_more + len(rejected[MAX_REJECTED:]),
        warnings=[*one.warnings, *other.warnings][:MAX_REJECTED],
    )

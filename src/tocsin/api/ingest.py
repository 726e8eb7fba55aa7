"""Telemetry as it is sent: unpacked, checked for who may say it, decoded and kept slice by slice.

What others push as series becomes line protocol first, so that one way and one set of checks leads to the store.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

from anyio import CapacityLimiter, to_thread

from tocsin.api.errors import ApiError
from tocsin.api.principal import Principal
from tocsin.api.service import CellService, Service
from tocsin.client.control import IngestResult, RejectedLine
from tocsin.client.moved import MISDIRECTED, OTHER_CELL
from tocsin.collector.push.samples import MAX_UNPACKED_BYTES, Broken, PushedSeries, Tally, TooLarge
from tocsin.config.access import Role
from tocsin.store.line_protocol.decode import MAX_REJECTED
from tocsin.store.line_protocol.encode import encode
from tocsin.store.line_protocol.grammar import LineError, cut_head, parse_head, remembered

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
"""Slices in work at once: most wait to be kept, together with each other."""


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


_TELEMETRY = frozenset({"gpu", "gpu_missing", "gpu_info", "gpu_owner", "gpu_event"})


def own_lines(text: str, who: Principal, owner_against: Callable[[str, str], str]) -> tuple[str, RefusedLines]:
    """`text` with the lines that `who` may not send left empty, so that the others keep their numbers, and those lines.

    Agents write readings and events alone: a prediction or a finding of theirs would be acted on. `owner_against` tells
    which other node than the line's reports a GPU, empty where none does: its UUID cannot be taken over by another's
    certificate or token. Every record of line protocol starts on a line of its own, with its tags, so each line is
    looked at.
    """
    refused = RefusedLines()
    if not who.hosts and who.role is not Role.AGENT:
        return text, refused
    lines = text.split("\n")
    heads, told, problem = _Heads(), None, ""
    for place, line in enumerate(lines):
        try:
            found = heads.of(line)
        except LineError:
            # No record can start here; whether it belongs to one that started earlier is for the decoder to say.
            found = None
        if found is None or found is not told:
            told, problem = found, "" if found is None else _problem(found, who, owner_against)
        if problem:
            lines[place] = ""
            refused.add(place + 1, problem)
    return "\n".join(lines) if refused.first else text, refused


def own_hosts(text: str, cells: CellService, *, sure: bool = False) -> tuple[str, RefusedLines]:
    """`text` with the lines of hosts of other cells left empty, and those lines.

    Raises ApiError 421, which names the other cell and its URL, where no line is left: whoever speaks for one host goes
    on there, with all that it has. Where it is to be `sure`, it also raises for a host that is nobody's: whose own
    cell does not answer for a while must not become this one's by asking here.
    """
    if not cells.assigned() and not sure:
        return text, RefusedLines()
    lines, refused, where, heads = list[str](), RefusedLines(), None, _Heads()
    for number, line in enumerate(text.split("\n"), start=1):
        host = _host_of(line, heads)
        home = cells.elsewhere(host) if host else None
        if sure and host and home is None and not cells.has(host):
            raise not_assigned(host)
        lines.append("" if home else line)
        if home:
            where = host, *home
            refused.add(number, f"host {host[:100]!r} belongs to cell {home[0]}: push it to {home[1]}")
    if where is not None and not any(line.strip() for line in lines):
        raise other_cell(*where)
    return "\n".join(lines), refused


def other_cell(host: str, cell: str, url: str) -> ApiError:
    """That `host` is another cell's, and where that is reached."""
    message = f"host {host[:100]!r} belongs to cell {cell}: its brain is at {url}"
    return ApiError(MISDIRECTED, OTHER_CELL, message, {"host": host[:100], "cell": cell, "url": url})


def not_assigned(host: str) -> ApiError:
    """That `host` is no cell's by what is set, and this one does not take it from its own."""
    return ApiError(MISDIRECTED, "not_assigned", f"host {host[:100]!r} is not assigned to this cell")


def _host_of(line: str, heads: _Heads) -> str:
    """The host that a line is about; empty where it names none."""
    try:
        found = heads.of(line)
    except LineError:
        return ""
    return "" if found is None else found[1].get("host", "")


Head = tuple[str, Mapping[str, str]]
_IDENTITY = ("gpu_uuid=", "host=", "mig_uuid=")
_TAGS = re.compile(r"(?:,[^,=\\]++=[^,=\\]++)++")
"""Tags that need no escapes; what is none is left to the grammar."""
_LABELS = 4096


@remembered(_LABELS)
def _names_nobody(tags: str) -> bool:
    """Whether `tags`, as they stand behind the name of a GPU, leave open nothing of whom the line is about: the link,
    the kind of error, as lines repeat them."""
    return not tags or (_TAGS.fullmatch(tags) is not None and not any(name in tags for name in _IDENTITY))


class _Heads:
    """Measurement and tags of lines that follow each other; of labels nothing, where a line goes on about the GPU of
    the one before, as most do."""

    def __init__(self) -> None:
        self._begin = ""
        self._last: Head | None = None

    def of(self, line: str) -> Head | None:
        """None for what is no record. Raises LineError."""
        if line.endswith((" ", "\r")) or line.startswith(" "):
            line = line.strip(" \r")
        if self._last is not None and line.startswith(self._begin):
            end = line.find(" ", len(self._begin))
            if end > 0 and _names_nobody(line[len(self._begin) : end]):
                return self._last
        # What has no blank has no fields: the commonest junk, without the price of an error.
        if " " not in line or line.isspace() or line.startswith("#"):
            return None
        head = cut_head(line)[0]
        self._last, self._begin = parse_head(head), head
        if "\\" in head:
            self._last = None
            return parse_head(head)
        label, _, _ = head.rpartition(",")
        if label and not head[len(label) + 1 :].startswith(_IDENTITY):
            self._begin = label
        return self._last


def _problem(head: Head, who: Principal, owner_against: Callable[[str, str], str]) -> str:
    measurement, tags = head
    if measurement not in _TELEMETRY:
        return f"{who.name} may write readings and events alone"
    # A MIG instance belongs to the host of its GPU: both names are looked up.
    return foreign(
        who, tags.get("host", ""), [tags[name] for name in ("gpu_uuid", "mig_uuid") if name in tags], owner_against
    )


def foreign(who: Principal, host: str, gpus: Iterable[str], owner_against: Callable[[str, str], str]) -> str:
    """Why `who` may not write for `host` and `gpus` on it; empty where that may be."""
    if not who.hosts and who.role is not Role.AGENT:
        return ""
    if not who.speaks_for(host):
        return f"{who.name} may not write for host {host[:100]!r}"
    for reported in (owner_against(gpu, host) for gpu in gpus):
        if reported and not who.speaks_for(reported):
            return f"{who.name} may not write for a GPU that host {reported[:100]!r} reports"
    return ""


@dataclass(frozen=True, slots=True)
class Upload:
    """Who sends what to whom; `client` is the address."""

    service: Service
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


def pushed_lines(upload: Upload, body: bytes, form: Form[T], tally: Tally, limit: int) -> Iterator[bytes]:
    """Line protocol of the series in `body`, step by step; nothing of what the sender may not say. Raises ApiError."""
    service, who = upload.service, upload.who

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
    while (step := list(islice(series, PUSH_STEP))) or tally.rejected > told:
        taken = service.pushed(step, admits, tally.rejected - told)
        if taken.rejected:
            tally.reject(taken.rejected, taken.problem)
        told = tally.rejected
        yield encode(taken.batch).encode("utf-8", "replace")


class Ingest:
    """Takes bodies on threads of its own, one slice of one caller after the other.

    Whatever a body holds, no other request waits for it; of two callers each gets every second slice, however much the
    other sends.
    """

    def __init__(self, max_body_bytes: int, workers: int = WORKERS, unpackers: int = 2) -> None:
        self._limit = max_body_bytes
        self._threads = CapacityLimiter(workers)
        self._unpacking = asyncio.Semaphore(unpackers)
        self._turns: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    async def take(self, upload: Upload, body: bytes, encoding: str) -> IngestResult:
        """Keep `body`; what was kept is durable, also where a later part of it is refused as a whole.

        Raises ApiError 400, 413 or 415 for a body that cannot be unpacked.
        """
        return await self._kept(upload, slices(unpacked(body, encoding, self._limit)))

    async def push(self, upload: Upload, body: bytes, form: Form[T], tally: Tally) -> IngestResult:
        """Keep the series of `body`, counted in `tally`; of all such bodies two are unpacked at a time.

        Raises ApiError 400 or 413 for a body that cannot be unpacked. One that is broken from some byte on counts as a
        refused sample, and what comes before it is kept.
        """
        async with self._unpacking:
            return await self._kept(
                upload, pushed_lines(upload, body, form, tally, min(self._limit, MAX_UNPACKED_BYTES))
            )

    async def _kept(self, upload: Upload, parts: Iterator[bytes]) -> IngestResult:
        caller = upload.who.name, "" if upload.who.hosts else upload.client
        turn = self._turns.setdefault(caller, asyncio.Lock())
        result, lines = IngestResult(), 0
        while True:
            async with turn:
                found = await to_thread.run_sync(_next, upload, parts, lines, limiter=self._threads)
            if found is None:
                return result
            more, count = found
            lines += count
            result = _together(result, more)


def _next(upload: Upload, parts: Iterator[bytes], before: int) -> tuple[IngestResult, int] | None:
    """What became of the next slice, with its number of lines; None behind the last. `before` are the lines so far."""
    part = next(parts, None)
    if part is None:
        return None
    text, undecodable = decode(part)
    text, foreign = own_lines(text, upload.who, upload.service.owner_against)
    text, misdirected = own_hosts(text, upload.service.cells, sure=upload.sure)
    kept = upload.service.ingest(text, upload.precision)
    refused = undecodable, foreign, misdirected
    found = sorted([*chain(*(one.first for one in refused)), *kept.rejected], key=lambda line: line.number)
    rejected = [RejectedLine(number=line.number + before, problem=line.problem) for line in found[:MAX_REJECTED]]
    more = kept.rejected_more + sum(one.more for one in refused) + len(found) - len(rejected)
    return kept.model_copy(update={"rejected": rejected, "rejected_more": more}), text.count("\n")


def _together(one: IngestResult, other: IngestResult) -> IngestResult:
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

"""The past of GPUs out of a Prometheus-compatible server, window by window.

`query_range` shows at every step the newest sample of up to five minutes before, so that a series that ended seems to
go on. Each query therefore asks for the values and, under one more label, for the instants at which they were really
scraped: a sample is taken once, at its own instant, whatever the step, and a second import gives the same samples.
"""

from __future__ import annotations

import bz2
import contextlib
import json
import os
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Protocol

import numpy as np
import numpy.typing as npt

from tocsin.collector.dcgm.exposition import Head, Use, head_of
from tocsin.collector.dcgm.fields import SXID_FATAL, SXID_NON_FATAL, XID_COUNT, XID_NAMES, field_named
from tocsin.collector.prometheus_history.answers import Line, Matrix
from tocsin.collector.prometheus_history.http import HistoryClient, TooMuch
from tocsin.domain.atomic_file import write_atomically
from tocsin.domain.clock import HOUR, MINUTE, SECOND, to_iso
from tocsin.domain.errors import InputError

NAMES = "DCGM_(FI|EXP)_.+"
AT_LABEL = "tocsin_sampled"
MAX_POINTS = 10_000
"""Most steps of one query; Prometheus refuses more than 11,000."""
MAX_SAMPLES = 2_000_000
"""Most samples of one window: 24 bytes each, and again while readings are made of them."""
TELLING_SAMPLES = 500_000
"""Windows do not grow beyond it: each is a line of progress, and a place to go on from."""
FIRST_SPAN_MS = 6 * HOUR
MIN_SPAN_MS = MINUTE
PRIME_MS = 15 * MINUTE
"""How far before the first window latched codes are looked at, so that its first sample can be an onset."""
MAX_STEP_MS = 5 * MINUTE
"""Beyond it a step would look further back than a server does."""
PROBED_NAMES = 3
PROBE_POINTS = 1200
PROBE_STEP_MS = 5 * SECOND
DEFAULT_STEP_MS = 15 * SECOND
"""Where no scrape interval can be measured: half of dcgm-exporter's collection interval."""


@dataclass(frozen=True, slots=True)
class SeriesSamples:
    """One series within a window: what it is about, its labels, and each sample once; both arrays have n elements."""

    head: Head
    labels: Mapping[str, str]
    at_ms: Ints
    raw: Floats


@dataclass(frozen=True, slots=True)
class QueryWindow:
    """All samples with `after_ms` < instant <= `until_ms`."""

    after_ms: int
    until_ms: int
    runs: list[SeriesSamples]

    @property
    def samples(self) -> int:
        return sum(run.at_ms.size for run in self.runs)


@dataclass(slots=True)
class Survey:
    """What the server has: metric names that Tocsin reads, and dcgm-exporter's others."""

    names: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)


def is_read(name: str) -> bool:
    """Whether anything is made of the metric `name`."""
    special = name in SXID_FATAL or name in SXID_NON_FATAL or name == XID_COUNT
    return special or field_named(name) is not None


def inner_selector(match: str, field: str = "--match") -> str:
    """What stands between the braces of `match`, which `field` gives. Raises InputError where it is no selector."""
    text = match.strip()
    if text and not (text.startswith("{") and text.endswith("}")):
        remedy = "write it as in PromQL, for example '{cluster=\"a\"}'"
        raise InputError(field, match, "is no label selector", remedy)
    return text[1:-1].strip().strip(",") if text else ""


def pair(matrix: Matrix) -> Iterator[tuple[Mapping[str, str], Line, Line]]:
    """Values with their instants: labels without those of the query, the values' line, the instants' line."""
    values: dict[frozenset[tuple[str, str]], Line] = {}
    instants: dict[frozenset[tuple[str, str]], Line] = {}
    for line in matrix.lines:
        labels = {key: value for key, value in line.labels.items() if key not in (AT_LABEL, "__name__")}
        (instants if AT_LABEL in line.labels else values)[frozenset(labels.items())] = line
    for key, line in values.items():
        if key in instants:
            yield dict(key), line, instants[key]


def sampled(values: Line, instants: Line, after_ms: int, until_ms: int) -> tuple[Ints, Floats]:
    """Each sample once, at its own instant: a step without a new instant only repeats."""
    steps, left, right = np.intersect1d(values.at_s, instants.at_s, assume_unique=True, return_indices=True)
    at_ms = np.round(instants.values[right] * SECOND).astype(np.int64)
    raw = values.values[left]
    fresh = np.ones(steps.size, bool)
    fresh[1:] = at_ms[1:] > np.maximum.accumulate(at_ms)[:-1]
    fresh &= (at_ms > after_ms) & (at_ms <= until_ms)
    return at_ms[fresh], raw[fresh]


class PrometheusHistory:
    """The history of the GPUs that `match`, a label selector, finds; every window is bounded in memory."""

    def __init__(self, client: HistoryClient, match: str = "") -> None:
        self._client = client
        self._inner = inner_selector(match)
        self.others: Counter[str] = Counter()
        """Series that are of no GPU, by what they are."""

    def survey(self, start_ms: int, end_ms: int) -> Survey:
        selector = "{" + ",".join(part for part in (f'__name__=~"{NAMES}"', self._inner) if part) + "}"
        found = [n for n in self._client.names(selector, start_ms, end_ms) if re.fullmatch(NAMES, n)]
        return Survey([n for n in found if is_read(n)], [n for n in found if not is_read(n)])

    def step(self, names: Iterable[str], start_ms: int, end_ms: int) -> int:
        """Half of the shortest usual time between two samples, measured at the end, the middle and the start.

        A sample's instant falls anywhere into the grid of steps: at half the interval none can be stepped over.
        """
        first = start_ms + PROBE_POINTS * PROBE_STEP_MS
        ends = [end_ms] if first >= end_ms else [end_ms, max(first, (start_ms + end_ms) // 2), first]
        chosen = list(names)[:PROBED_NAMES]
        gaps = [gap for at_ms in dict.fromkeys(ends) for name in chosen for gap in self._intervals(name, at_ms)]
        if not gaps:
            return DEFAULT_STEP_MS
        return int(max(SECOND, min(min(gaps) / 2, MAX_STEP_MS) // SECOND * SECOND))

    def _intervals(self, name: str, end_ms: int) -> list[float]:
        """The usual time between two samples of each series of `name`; of a large fleet from a shorter stretch."""
        points = PROBE_POINTS
        while points >= PROBE_POINTS // 32:
            start_ms = end_ms - points * PROBE_STEP_MS
            try:
                matrix = self._client.matrix(self._query(name), start_ms, end_ms, PROBE_STEP_MS)
            except TooMuch:
                points //= 2
                continue
            taken = (sampled(values, at, start_ms, end_ms)[0] for _, values, at in pair(matrix))
            return [float(np.median(np.diff(at_ms))) for at_ms in taken if at_ms.size > 2]
        return []

    def windows(self, names: list[str], start_ms: int, end_ms: int, step_ms: int) -> Iterator[QueryWindow]:
        """All samples with `start_ms` < instant <= `end_ms`, in order; a window that is too much is halved.

        Raises InputError where even the shortest span is too much for the server.
        """
        longest = MAX_POINTS * step_ms
        span = min(FIRST_SPAN_MS, longest)
        after = start_ms
        while after < end_ms:
            until = min(after + span, end_ms)
            try:
                window = self.window(names, after, until, step_ms)
            except TooMuch as problem:
                if span <= MIN_SPAN_MS:
                    remedy = "narrow --match, or name a longer --step"
                    raise InputError("query", str(problem), "is too much even for a minute", remedy) from None
                span = max(MIN_SPAN_MS, min(span, until - after) // 2)
                continue
            yield window
            after = until
            if 2 * window.samples <= TELLING_SAMPLES:
                span = min(2 * span, longest)

    def window(self, names: list[str], after_ms: int, until_ms: int, step_ms: int) -> QueryWindow:
        """One window. Raises TooMuch."""
        runs: list[SeriesSamples] = []
        size = 0
        for name in names:
            for run in self._runs(name, after_ms, until_ms, step_ms):
                runs.append(run)
                size += run.at_ms.size
            if size > MAX_SAMPLES and until_ms - after_ms > MIN_SPAN_MS:
                raise TooMuch(f"more than {MAX_SAMPLES} samples in one window")
        return QueryWindow(after_ms, until_ms, runs)

    def prime(self, names: list[str], start_ms: int, step_ms: int) -> Iterator[QueryWindow]:
        """The latched codes and their counts just before `start_ms`."""
        latched = [n for n in names if n in XID_NAMES or n in SXID_FATAL or n in SXID_NON_FATAL or n == XID_COUNT]
        yield from self.windows(latched, start_ms - PRIME_MS, start_ms, step_ms)

    def _query(self, name: str) -> str:
        selector = f"{name}{{{self._inner}}}"
        return f'{selector} or label_replace(timestamp({selector}), "{AT_LABEL}", "1", "", "")'

    def _runs(self, name: str, after_ms: int, until_ms: int, step_ms: int) -> Iterator[SeriesSamples]:
        """Steps go one beyond the end: the last samples before it show there."""
        first = after_ms + step_ms
        matrix = self._client.matrix(self._query(name), min(first, until_ms), until_ms + step_ms, step_ms)
        for labels, values, instants in pair(matrix):
            at_ms, raw = sampled(values, instants, after_ms, until_ms)
            if not at_ms.size:
                continue
            head = head_of(name, labels)
            if head.use in (Use.UNKNOWN, Use.OTHER_ENTITY, Use.FOREIGN):
                self.others[head.use.value] += 1
                continue
            yield SeriesSamples(head, labels, at_ms, raw)


# History is written to a file that `replay` reads: dcgm-exporter's text, each line with its instant. While it grows
# the file is called ``NAME.part``, and ``NAME.part.json`` beside it says how far it is good. A run that was cut off
# is taken up from there; what was written after the last good mark is cut away.


class _Packer(Protocol):
    """A compressed stream that grows."""

    def compress(self, data: bytes, /) -> bytes: ...

    def flush(self) -> bytes: ...


def _packer(path: Path) -> _Packer | None:
    """A stream of its own for each window, so that a file can be cut after any; None where `path` is plain.

    gzip at its fastest: history repeats names and labels, which bz2 takes some fifty times as long to pack.
    """
    if path.suffix == ".gz":
        return zlib.compressobj(1, zlib.DEFLATED, 31)
    return bz2.BZ2Compressor() if path.suffix == ".bz2" else None


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def lines_of(run: SeriesSamples) -> str:
    """The samples of one series as text, a line each."""
    labels = ",".join(f'{name}="{_quoted(value)}"' for name, value in sorted(run.labels.items()) if value)
    start = f"{run.head.name}{{{labels}}} "
    pairs = zip(run.raw.tolist(), run.at_ms.tolist(), strict=True)
    return "".join([f"{start}{raw!r} {at_ms}\n" for raw, at_ms in pairs])


class HistoryFile:
    """A recording that grows by whole windows. A name that ends in ``.gz`` or ``.bz2`` is packed.

    `origin` names what is imported; a rest that another import left behind is refused. Raises InputError where the
    file exists already or cannot be written.
    """

    def __init__(self, path: Path, origin: Mapping[str, str]) -> None:
        self.path = path
        self._part = path.with_name(path.name + ".part")
        self._state = path.with_name(path.name + ".part.json")
        self._origin = dict(origin)
        if path.exists():
            raise InputError("--to", str(path), "exists", "name another file, or remove this one first")
        self._resume = self._rest()
        self._keep_part = self._resume is not None
        try:
            self._file: IO[bytes] = self._part.open("r+b" if self._resume else "wb")
            size = self._resume[1] if self._resume else 0
            self._file.truncate(size)
            self._file.seek(size)
        except OSError as error:
            raise _unwritable(path, error) from None

    @property
    def resume_ms(self) -> int | None:
        """The end of what a run before left; None where there is none."""
        return self._resume[0] if self._resume else None

    def add(self, window: QueryWindow) -> None:
        """Append one window; durable on return."""
        pack = _packer(self.path)
        try:
            self._put(pack, f"# until {to_iso(window.until_ms)}\n")
            for run in window.runs:
                self._put(pack, lines_of(run))
            if pack is not None:
                self._file.write(pack.flush())
            self._file.flush()
            os.fsync(self._file.fileno())
            self._mark(window.until_ms)
            self._keep_part = True
        except OSError as error:
            raise _unwritable(self.path, error) from None

    def finish(self) -> None:
        """Give the file its name: everything is in it."""
        self._file.close()
        self._part.replace(self.path)
        self._keep_part = True
        self._state.unlink(missing_ok=True)

    def close(self) -> None:
        """Leave what is there for a later run, and nothing where no window was written. Safe to repeat, and after
        `finish`."""
        self._file.close()
        if not self._keep_part:
            self._part.unlink(missing_ok=True)
            self._state.unlink(missing_ok=True)

    def _put(self, pack: _Packer | None, text: str) -> None:
        data = text.encode()
        self._file.write(data if pack is None else pack.compress(data))

    def _mark(self, until_ms: int) -> None:
        state = {"origin": self._origin, "until_ms": until_ms, "bytes": self._file.tell()}
        write_atomically(self._state, json.dumps(state))

    def _rest(self) -> tuple[int, int] | None:
        """How far a run before came: instant and bytes; None where it left nothing that can be used."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            state = json.loads(self._state.read_text())
            until_ms, size = int(state["until_ms"]), int(state["bytes"])
            if state["origin"] != self._origin:
                remedy = f"remove {self._part.name} and {self._state.name}, or name another file"
                raise InputError("--to", str(self._part), f"is the rest of another import: {state['origin']}", remedy)
            if self._part.stat().st_size >= size:
                return until_ms, size
        return None


def _unwritable(path: Path, error: OSError) -> InputError:
    return InputError("--to", str(path), f"cannot be written: {error.strerror}", "name a writable place with room")


Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

"""The forms of recorded telemetry: dumps of dcgm-exporter as text, and tidy CSV; plain, gzip or bz2.

Files are read as whole lines in large pieces, never a whole file in memory. Tidy CSV has one sample a line:
``timeUtc,node,metric,value,gpu,uuid,modelName`` in any order, plus others. This is the shape of the GWDG GPU node
telemetry dataset (doi:10.5281/zenodo.19052367). Lines of metrics other than DCGM's are counted, and tell that the node
was observed; the rest of them is dropped while reading.
"""

from __future__ import annotations

import bz2
import importlib.util
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from tocsin.collector.dcgm.exposition import Head, Heads, Sample, samples
from tocsin.collector.dcgm.fields import Field
from tocsin.collector.replay.recording import Samples
from tocsin.domain.clock import SECOND, from_iso
from tocsin.domain.errors import InputError, Unavailable, install_extra
from tocsin.domain.reading import Gpu

if TYPE_CHECKING:
    import polars as pl


READ_BYTES = 1 << 18
PIECE_BYTES = 1 << 23
"""Most decompressed bytes at a time: bz2 packs repetitive telemetry 70 to 1."""


class _Expander(Protocol):
    """One compressed stream, as `bz2.BZ2Decompressor` takes it. `decompress` raises OSError where it is damaged."""

    @property
    def eof(self) -> bool: ...

    @property
    def needs_input(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, max_length: int = -1) -> bytes: ...


class _Gzip:
    def __init__(self) -> None:
        self._stream = zlib.decompressobj(wbits=31)
        self._more = False

    @property
    def eof(self) -> bool:
        return self._stream.eof

    @property
    def needs_input(self) -> bool:
        return not (self.eof or self._more or self._stream.unconsumed_tail)

    @property
    def unused_data(self) -> bytes:
        return self._stream.unused_data

    def decompress(self, data: bytes, max_length: int = -1) -> bytes:
        try:
            piece = self._stream.decompress(self._stream.unconsumed_tail + data, max_length)
        except zlib.error as error:
            raise OSError(str(error)) from None
        # Where there was no room for more, some may wait inside without any input being left.
        self._more = len(piece) == max_length
        return piece


_PACKED: dict[str, Callable[[], _Expander]] = {".bz2": bz2.BZ2Decompressor, ".gz": _Gzip}
PACKED = frozenset(_PACKED)
"""Endings of names whose content is compressed."""


def _plain(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            yield piece


def unreadable(path: Path, error: OSError) -> InputError:
    """What is said of a file that cannot be opened or read."""
    return InputError("path", str(path), f"cannot be read: {error.strerror}", "name a readable file")


def _broken(path: Path, where: int, problem: str) -> InputError:
    return InputError(str(path), f"byte {where}", problem, "fetch the file again; what came before is kept")


def _expanded(path: Path, new: Callable[[], _Expander]) -> Iterator[bytes]:
    """Streams one after the other; InputError where one is cut short or damaged, after what is whole."""
    kind = path.suffix[1:]
    with path.open("rb") as file:
        expander, fed = new(), False
        while True:
            compressed = file.read(READ_BYTES) if expander.eof or expander.needs_input else b""
            if expander.eof:
                if not (compressed := expander.unused_data + compressed):
                    return
                expander, fed = new(), False
            elif not compressed and expander.needs_input:
                if fed:
                    raise _broken(path, file.tell(), f"the {kind} stream ends early")
                return
            try:
                piece = expander.decompress(compressed, PIECE_BYTES)
            except OSError:
                raise _broken(path, file.tell(), f"the {kind} stream is damaged") from None
            fed = True
            if piece:
                yield piece


def pieces(path: Path) -> Iterator[bytes]:
    """Whole lines of `path`, several megabytes at a time; a name in ``.bz2`` or ``.gz`` is expanded.

    The last line may lack its end. Raises InputError where the file cannot be read or ends early; everything before
    has been yielded by then, an unfinished last line of a cut file excepted.
    """
    rest = b""
    try:
        new = _PACKED.get(path.suffix)
        for piece in _plain(path) if new is None else _expanded(path, new):
            whole, newline, tail = piece.rpartition(b"\n")
            if newline:
                yield rest + whole + newline
                rest = tail
            else:
                rest += piece
    except OSError as error:
        raise unreadable(path, error) from None
    if rest:
        yield rest


# A text dump is one scrape, or several one after the other, in one file or many. A line's own timestamp dates it;
# else the instant in the file's name (``...2025-03-14T00:10:00Z...``, with or without separators, or 10 to 13 digits
# of epoch); else the file's modification time. A sample that comes again without a timestamp begins the next scrape,
# `INTERVAL_MS` later.

INTERVAL_MS = 30 * SECOND
"""dcgm-exporter's default collection interval (option ``-c``)."""

_ISO = re.compile(r"(\d{4})-?(\d\d)-?(\d\d)[T_ ](\d\d)[:-]?(\d\d)[:-]?(\d\d)(?:[.]\d+)?")
_EPOCH = re.compile(r"(?<!\d)(\d{13}|\d{10})(?!\d)")
_BLANK_LINE = "value is blank, NaN or infinite"
FLUSH_ROWS = 1 << 18
"""Samples held as Python numbers before they become columns."""


def instant_of_name(name: str) -> int | None:
    """The instant in a file name, UTC; None where there is none."""
    if (match := _ISO.search(name)) is not None:
        year, month, day, hour, minute, second = match.groups()
        try:
            return from_iso(f"{year}-{month}-{day}T{hour}:{minute}:{second}+00:00")
        except ValueError:
            return None
    if (digits := _EPOCH.search(name)) is None:
        return None
    return int(digits.group(1)) * (SECOND if len(digits.group(1)) == 10 else 1)


def _samples(path: Path, counts: Counter[str]) -> Iterator[Sample]:
    """Samples of GPUs' metrics in `path`, in order; counts lines that cannot be parsed."""

    def bad(_line: str) -> None:
        counts["not a sample line"] += 1

    heads = Heads()
    for piece in pieces(path):
        for sample in samples(piece.decode("utf-8", "replace"), heads, bad):
            if sample.head.name.startswith("DCGM_FI_"):
                yield sample


def _modified_ms(path: Path) -> int:
    try:
        return int(path.stat().st_mtime * SECOND)
    except OSError as error:
        raise unreadable(path, error) from None


class _Dater:
    def __init__(self, path: Path) -> None:
        named = instant_of_name(path.name)
        self._at_ms = _modified_ms(path) if named is None else named
        self._seen: set[tuple[str, str]] = set()

    def at_ms(self, sample: Sample, identity: str) -> int:
        if sample.at_ms is not None:
            return sample.at_ms
        key = (sample.head.name, identity)
        if key in self._seen:
            self._seen.clear()
            self._at_ms += INTERVAL_MS
        self._seen.add(key)
        return self._at_ms


def read_prometheus(path: Path, samples: Samples) -> None:
    """Add everything in `path` to `samples`; what cannot be used is counted and reported there.

    Raises InputError where the file cannot be read, ends early or is damaged, after all before that has been added.
    """
    counts: Counter[str] = Counter()
    table = _SampleColumns(samples)
    try:
        dater = _Dater(path)
        for sample in _samples(path, counts):
            samples.rows += 1
            head = sample.head
            if head.gpu is None or head.field is None:
                continue
            gpu, which = head.gpu, head.field
            at_ms = dater.at_ms(sample, f"{gpu.host}|{gpu.uuid}|{head.key}")
            samples.see(gpu.host, at_ms)
            table.add(head, gpu, which, at_ms, sample.raw)
    finally:
        table.flush()
        if table.blank:
            counts[_BLANK_LINE] += table.blank
        samples.report(path, counts)


class _SampleColumns:
    """Single samples on their way into `Samples`, a column at a time."""

    def __init__(self, samples: Samples) -> None:
        self.blank = 0
        self._samples = samples
        self._rows: list[tuple[int, int, int, float]] = []
        self._numbers: dict[int, tuple[Head, int, int]] = {}

    def add(self, head: Head, gpu: Gpu, which: Field, at_ms: int, raw: float) -> None:
        """Take one sample of `gpu`; `raw` is NaN where it is blank."""
        if (known := self._numbers.get(id(head))) is None or known[0] is not head:
            metric = self._samples.metric(head.key, which.spec.dcgm_scale)
            known = self._numbers[id(head)] = (head, self._samples.gpu(gpu), metric)
        self._rows.append((known[1], known[2], at_ms, which.plain(raw)))
        if len(self._rows) >= FLUSH_ROWS:
            self.flush()

    def flush(self) -> None:
        if self._rows:
            gpus, metrics, times, raw = zip(*self._rows, strict=True)
            gpu, metric, at_ms = (np.array(column, np.int64) for column in (gpus, metrics, times))
            self.blank += self._samples.add(gpu, metric, at_ms, np.array(raw, np.float64))
            self._rows.clear()


REQUIRED = ("timeUtc", "node", "metric", "value", "gpu", "uuid")
OPTIONAL = ("modelName",)

_INCOMPLETE = "not a complete line"
_NO_TIME = "timeUtc is no instant"
_BLANK = "value is no finite number"


def read_csv(path: Path, samples: Samples) -> None:
    """Add everything in `path` to `samples`.

    Raises InputError where a required column is missing, and where the file ends early or is damaged; all lines
    before that have been added. Lines that cannot be used are counted and reported by `samples`. Raises Unavailable
    without polars, which the agent alone does not install.
    """
    if importlib.util.find_spec("polars") is None:
        raise Unavailable(f"reading tidy CSV needs polars; {install_extra('brain')}")
    reader = _Reader(path, samples)
    try:
        for piece in _without_header(path, reader):
            reader.piece(piece)
    finally:
        samples.report(path, reader.counts)


def _without_header(path: Path, reader: _Reader) -> Iterator[bytes]:
    for number, piece in enumerate(pieces(path)):
        if number == 0:
            header, _, piece = piece.partition(b"\n")
            reader.header(header.decode("utf-8-sig", "replace").strip())
        if piece:
            yield piece


class _Reader:
    def __init__(self, path: Path, samples: Samples) -> None:
        self.counts: Counter[str] = Counter()
        self._path = path
        self._samples = samples
        self._names: list[str] = []
        self._places: list[int] = []
        self._width = 0
        self._metrics = samples.dcgm_metrics()
        self._instants: dict[str, int | None] = {}

    def header(self, line: str) -> None:
        """Find the columns. Raises InputError that names those that are missing."""
        columns = [name.strip().strip('"') for name in line.split(",")]
        if missing := [name for name in REQUIRED if name not in columns]:
            remedy = f"the header needs {','.join(REQUIRED)}; this file is left out"
            raise InputError(str(self._path), line, f"column {', '.join(missing)} is missing", remedy)
        for name in OPTIONAL:
            if name not in columns:
                self._samples.fail(
                    InputError(str(self._path), line, f"column {name} is missing", "it stays unknown, lines are kept")
                )
        self._names = [name for name in columns if name in (*REQUIRED, *OPTIONAL)]
        self._places = [i for i, name in enumerate(columns) if name in self._names]
        self._width = len(columns)

    def piece(self, piece: bytes) -> None:
        import polars as pl

        frame = self._parse(piece)
        self._samples.rows += frame.height
        complete = frame.drop_nulls(["timeUtc", "node", "metric", "value"])
        if complete.height < frame.height:
            self.counts[_INCOMPLETE] += frame.height - complete.height
        self._times(complete)
        self._gpu_rows(complete.filter(pl.col("metric").is_in(list(self._metrics))))

    def _parse(self, piece: bytes) -> pl.DataFrame:
        import polars as pl

        quoted = b'"' in piece
        if quoted and piece.count(b'"') % 2:
            lines = piece.splitlines(keepends=True)
            good = [line for line in lines if line.count(b'"') % 2 == 0]
            self.counts[_INCOMPLETE] += len(lines) - len(good)
            piece = b"".join(good)
        if not piece.strip():
            return pl.DataFrame(schema=dict.fromkeys(self._names, pl.String))
        # Given the whole width up front, polars neither guesses it from the first line nor refuses a shorter one; a
        # wider one is cut, but refused where it is the first: an empty line of the right width goes before it.
        frame = pl.read_csv(
            b"," * (self._width - 1) + b"\n" + piece,
            has_header=False,
            schema={str(i): pl.String for i in range(self._width)},
            columns=self._places,
            quote_char='"' if quoted else None,
            encoding="utf8-lossy",
            truncate_ragged_lines=True,
            raise_if_empty=False,
        )
        return frame.slice(1).rename({str(i): name for i, name in zip(self._places, self._names, strict=True)})

    def _times(self, frame: pl.DataFrame) -> None:
        """Note when nodes were observed, and remember each text's instant."""
        for node, text in frame.select("node", "timeUtc").unique().iter_rows():
            if (at_ms := self._instant(text)) is not None:
                self._samples.see(node, at_ms)

    def _instant(self, text: str) -> int | None:
        if text not in self._instants:
            try:
                self._instants[text] = from_iso(text.strip())
            except ValueError:
                self._instants[text] = None
        return self._instants[text]

    def _gpu_rows(self, frame: pl.DataFrame) -> None:
        import polars as pl

        owned = frame.drop_nulls(["uuid", "gpu"])
        if owned.height < frame.height:
            self.counts["no gpu or uuid"] += frame.height - owned.height
        numbers = self._gpus(owned)
        timed = owned.with_columns(
            pl.col("timeUtc").replace_strict(self._instants, return_dtype=pl.Int64),
            pl.col("metric").replace_strict(self._metrics, return_dtype=pl.Int64),
            pl.col("value").str.strip_chars().cast(pl.Float64, strict=False),
        ).join(numbers, on=["node", "uuid"], how="left")
        dated = timed.drop_nulls("timeUtc")
        if dated.height < timed.height:
            self.counts[_NO_TIME] += timed.height - dated.height
        if dated.height:
            blank = self._samples.add(
                dated["number"].to_numpy(),
                dated["metric"].to_numpy(),
                dated["timeUtc"].to_numpy(),
                dated["value"].fill_null(np.nan).to_numpy(),
            )
            if blank:
                self.counts[_BLANK] += blank

    def _gpus(self, frame: pl.DataFrame) -> pl.DataFrame:
        """The number of each (node, uuid) in `frame`."""
        import polars as pl

        known = frame.unique(subset=["node", "uuid"], keep="first", maintain_order=True)
        rows = []
        for row in known.iter_rows(named=True):
            index = int(row["gpu"]) if str(row["gpu"]).isdigit() else None
            gpu = Gpu(row["uuid"], row["node"], index, row.get("modelName") or "")
            rows.append((row["node"], row["uuid"], self._samples.gpu(gpu)))
        return pl.DataFrame(rows, schema={"node": pl.String, "uuid": pl.String, "number": pl.Int64}, orient="row")

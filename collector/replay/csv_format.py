"""Tidy CSV telemetry, one sample a line: ``timeUtc,node,metric,value,gpu,uuid,modelName`` in any order, plus others.

This is the shape of the GWDG GPU node telemetry dataset (doi:10.5281/zenodo.19052367). Lines of metrics other than
DCGM's are counted, and tell that the node was observed; the rest of them is dropped while reading.
"""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tocsin.collector.replay.bytes import pieces
from tocsin.collector.replay.samples import Samples
from tocsin.domain.clock import from_iso
from tocsin.domain.errors import InputError, Unavailable
from tocsin.domain.identity import Gpu

if TYPE_CHECKING:
    import polars as pl

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
        raise Unavailable("reading tidy CSV needs polars: install tocsin[brain]")
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
    """Parses pieces of one file."""

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
        missing = [name for name in REQUIRED if name not in columns]
        if missing:
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
        """Add the samples of whole lines."""
        import polars as pl

        frame = self._parse(piece)
        self._samples.rows += frame.height
        known = pl.all_horizontal(pl.col("timeUtc", "node", "metric", "value").is_not_null())
        complete = frame.filter(known)
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
        schema = {str(i): pl.String for i in range(self._width)}
        frame = pl.read_csv(
            b"," * (self._width - 1) + b"\n" + piece,
            has_header=False,
            schema=schema,
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
            at_ms = self._instant(text)
            if at_ms is not None:
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

        owned = frame.filter(pl.col("uuid").is_not_null() & pl.col("gpu").is_not_null())
        if owned.height < frame.height:
            self.counts["no gpu or uuid"] += frame.height - owned.height
        numbers = self._gpus(owned)
        timed = owned.with_columns(
            pl.col("timeUtc").replace_strict(self._instants, return_dtype=pl.Int64),
            pl.col("metric").replace_strict(self._metrics, return_dtype=pl.Int64),
            pl.col("value").str.strip_chars().cast(pl.Float64, strict=False),
        ).join(numbers, on=["node", "uuid"], how="left")
        dated = timed.filter(pl.col("timeUtc").is_not_null())
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
        schema = {"node": pl.String, "uuid": pl.String, "number": pl.Int64}
        return pl.DataFrame(rows, schema=schema, orient="row")

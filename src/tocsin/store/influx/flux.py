"""Flux queries as text, and their annotated CSV answers as points."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

from tocsin.domain.clock import from_iso, to_iso
from tocsin.store import points
from tocsin.store.points import FieldValue

FAR_MS = points.LAST_MS
"""An end behind everything, for queries that have none; Flux would take the server's present."""
_OF_GPUS = frozenset({points.GPU, points.MISSING, points.OWNER, points.INFO})

MAX_NAMED = 100
"""More GPUs than these are not named in a query: all are read, and the others left out here."""

RESULT = "label_result"
"""Name under which a tag called ``result`` comes back: every answer has a column of that name of its own."""

_OWN_COLUMNS = frozenset({"", "result", "table", "_start", "_stop", "_time", "_value", "_field", "_measurement"})


class FluxError(Exception):
    """An answer of status 200 that tells of an error: the query failed after the server had begun to answer."""


Sample = tuple[str, Mapping[str, str], int, str, FieldValue]
"""Measurement, tags, milliseconds since the epoch, field, value."""


def text(value: str) -> str:
    """`value` as a Flux string literal."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("${", "\\${")
    return '"' + escaped.replace("\n", "\\n").replace("\r", "\\r") + '"'


def any_of(column: str, values: Iterable[str]) -> str:
    """A condition: `column` is one of `values`."""
    return "(" + " or ".join(f"r.{column} == {text(value)}" for value in values) + ")"


def of_gpus(uuids: Collection[str]) -> str:
    """A condition: the row is of one of these GPUs, whole ones or MIG instances."""
    chosen = sorted(uuids)
    whole, slices = any_of("gpu_uuid", chosen), any_of("mig_uuid", chosen)
    return f"((not exists r.mig_uuid and {whole}) or (exists r.mig_uuid and {slices}))"


def is_empty(start_ms: int, end_ms: int) -> bool:
    """Whether no instant that a query can ask for lies in [`start_ms`, `end_ms`)."""
    return _bounded(end_ms) <= _bounded(start_ms)


def _bounded(at_ms: int) -> int:
    return min(max(at_ms, 0), FAR_MS)


def _rows_of(bucket: str, start_ms: int, end_ms: int, measurements: Sequence[str], *conditions: str) -> str:
    where = " and ".join([any_of("_measurement", measurements), *conditions])
    return (
        f"from(bucket: {text(bucket)})\n"
        f"  |> range(start: {to_iso(_bounded(start_ms))}, stop: {to_iso(_bounded(end_ms))})\n"
        f"  |> filter(fn: (r) => {where})\n"
    )


def query(
    buckets: Sequence[str], start_ms: int, end_ms: int, measurements: Sequence[str], *conditions: str, then: str = ""
) -> str:
    """The rows of some measurements in [`start_ms`, `end_ms`) that meet all `conditions`; `then` goes on from there.

    Of several buckets, the rows of each. InfluxDB refuses a range that is empty: see `is_empty`.
    """
    streams = [_rows_of(bucket, start_ms, end_ms, measurements, *conditions) + then for bucket in buckets]
    rows = streams[0] if len(streams) == 1 else "union(tables: [\n" + ",\n".join(map(str.rstrip, streams)) + "\n])\n"
    return (
        f'{rows}  |> drop(columns: ["_start", "_stop"])\n'
        f'  |> rename(fn: (column) => if column == "result" then "{RESULT}" else column)'
    )


def instants_query(bucket: str, start_ms: int, end_ms: int, measurements: Sequence[str], *conditions: str) -> str:
    """The instants of each GPU, once each, at which `query` would find a row; `instants` reads the answer."""
    return (
        f"{_rows_of(bucket, start_ms, end_ms, measurements, *conditions)}"
        '  |> keep(columns: ["_time", "gpu_uuid", "mig_uuid"])\n'
        '  |> group(columns: ["gpu_uuid", "mig_uuid"])\n'
        '  |> unique(column: "_time")'
    )


@lru_cache(maxsize=65_536)
def instant(stamp: str) -> int:
    """Milliseconds since the epoch of an RFC 3339 instant; finer steps are cut."""
    head, dot, fraction = stamp.removesuffix("Z").partition(".")
    return from_iso(head + "Z") + (int(fraction[:3].ljust(3, "0")) if dot else 0)


def _typed(kind: str, raw: str) -> FieldValue:
    if kind == "double":
        return float(raw)
    if kind in ("long", "unsignedLong"):
        return int(raw)
    return raw == "true" if kind == "boolean" else raw


def _tables(rows: Iterable[Sequence[str]]) -> Iterator[tuple[Mapping[str, str], Mapping[str, str]]]:
    """Rows of an annotated CSV answer, each as its columns' types and its cells, by name of the column.

    The answer has blocks of ``#datatype`` and other annotations, a header, and rows. Raises FluxError where it ends in
    an error.
    """
    kinds: dict[str, str] = {}
    header: Sequence[str] = ()
    annotation: Sequence[str] = ()
    for row in rows:
        if not row or row == [""]:
            continue
        if row[0].startswith("#"):
            if row[0] == "#datatype":
                annotation, header = row, ()
        elif [cell for cell in row if cell] == ["error", "reference"]:
            header = row
        elif "error" in header and "_time" not in header:
            raise FluxError(row[header.index("error")])
        elif not header:
            header, kinds = row, dict(zip(row, annotation, strict=True))
        else:
            # The server ends lines of its answer, also those within a text, with CR and LF.
            yield kinds, dict(zip(header, [cell.replace("\r\n", "\n") for cell in row], strict=True))


def samples(rows: Iterable[Sequence[str]], refused: Callable[[str], None] = lambda _problem: None) -> Iterator[Sample]:
    """Values in an annotated CSV answer; `refused` is told of each that no store of ours can have written.

    Raises FluxError where the answer ends in an error, ValueError or KeyError where it is none of InfluxDB's.
    """
    for kinds, cells in _tables(rows):
        tags = {name: value for name, value in cells.items() if name not in _OWN_COLUMNS and value}
        if RESULT in tags:
            tags["result"] = tags.pop(RESULT)
        kind = kinds["_value"]
        if cells["_value"] or kind == "string":
            try:
                sample = cells["_measurement"], tags, instant(cells["_time"]), cells["_field"], cells["_value"]
                yield _checked(sample, _typed(kind, cells["_value"]))
            except (ValueError, OverflowError) as error:
                refused(str(error)[:200])


def _checked(sample: tuple[str, Mapping[str, str], int, str, str], value: FieldValue) -> Sample:
    measurement, tags, at_ms, field, _ = sample
    points.check_field(field, value)
    points.check_instant(at_ms)
    if measurement in _OF_GPUS:
        points.gpu_of_tags(tags)
    return measurement, tags, at_ms, field, value


def instants(
    rows: Iterable[Sequence[str]], refused: Callable[[str], None] = lambda _problem: None
) -> Iterator[tuple[str, int]]:
    """UUID and milliseconds since the epoch of each row. Raises and calls `refused` as `samples` does."""
    for _, cells in _tables(rows):
        if uuid := cells.get("mig_uuid") or cells.get("gpu_uuid"):
            try:
                at_ms = instant(cells["_time"])
                points.check_instant(at_ms)
                yield uuid, at_ms
            except (ValueError, OverflowError) as error:
                refused(str(error)[:200])

"""Flux queries as text, and their annotated CSV answers as points."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

from tocsin.domain.clock import from_iso, to_iso
from tocsin.store.points import FieldValue

FAR_MS = 7_258_118_400_000
"""2200-01-01: an end behind everything, for queries that have none; Flux would take the server's present."""

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


def query(
    bucket: str, start_ms: int, end_ms: int, measurements: Sequence[str], *conditions: str, then: str = ""
) -> str:
    """The rows of some measurements in [`start_ms`, `end_ms`) that meet all `conditions`; `then` goes on from there."""
    where = " and ".join([any_of("_measurement", measurements), *conditions])
    start, stop = to_iso(min(max(start_ms, 0), FAR_MS)), to_iso(min(end_ms, FAR_MS))
    return (
        f"from(bucket: {text(bucket)})\n"
        f"  |> range(start: {start}, stop: {stop})\n"
        f"  |> filter(fn: (r) => {where})\n{then}"
        '  |> drop(columns: ["_start", "_stop"])\n'
        f'  |> rename(fn: (column) => if column == "result" then "{RESULT}" else column)'
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
    if kind == "boolean":
        return raw == "true"
    return raw


def samples(rows: Iterable[Sequence[str]]) -> Iterator[Sample]:
    """Values in an annotated CSV answer: blocks of ``#datatype`` and other annotations, a header, and rows.

    Raises FluxError where the answer ends in an error.
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
            continue
        if not header:
            header, kinds = row, dict(zip(row, annotation, strict=True))
            continue
        if header[1:2] == ["error"]:
            raise FluxError(row[1])
        cells = dict(zip(header, row, strict=True))
        tags = {name: value for name, value in cells.items() if name not in _OWN_COLUMNS and value}
        if RESULT in tags:
            tags["result"] = tags.pop(RESULT)
        kind = kinds["_value"]
        if cells["_value"] or kind == "string":
            value = _typed(kind, cells["_value"])
            yield cells["_measurement"], tags, instant(cells["_time"]), cells["_field"], value

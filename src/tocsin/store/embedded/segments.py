"""Segments: Parquet files with the history of some GPUs over an hour or a day, sorted by (GPU, instant).

A segment is written under a temporary name, brought to disk and only then given its name; nothing in it ever changes.
Readings are wide; values of variants lie in a second file beside, one row each, sorted by (GPU, variant, instant), so
that names which come and go, such as those of processes, never widen a schema.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from tocsin.domain.atomic_file import atomic_file
from tocsin.store.embedded.chunks import Block, Extra, Flags, Floats, Notes, empty, held, no_notes

# How the columns of a segment are written: bit for bit the same when read, and as small as was measured best.
# Telemetry is mostly decimal: watts are milliwatts over 1000, ratios are percents over 100. Where every value of a
# column is a whole number over one power of ten, it is kept as that whole number (the idea of ALP, Afroozeh and
# Boncz, "ALP: Adaptive Lossless floating-Point Compression", SIGMOD 2023) and its differences are packed. Columns of
# few different values take a dictionary; the rest are floats, with bytes of equal weight together where that packs
# better.

SCALES = (1.0, 100.0, 1000.0, 1e6)
"""Units over which sources report: whole ones, percent, thousandths, and the six digits that DCGM prints."""

DELTA = "DELTA_BINARY_PACKED"
SPLIT = "BYTE_STREAM_SPLIT"
PLAIN = "PLAIN"

_SAMPLE = 4_096
_FEW = 256
_EXACT = 2.0**53


@dataclass(frozen=True, slots=True)
class Encoded:
    """A column as it is written; `encoding` is empty for a dictionary, `scale` 0 where the values are floats."""

    array: pa.Array
    encoding: str
    scale: float = 0.0


def encode(values: Floats) -> Encoded:
    """`values`, float64[n], NaN where there is none."""
    sample = values[:: max(1, len(values) // _SAMPLE)]
    sample = sample[~np.isnan(sample)]
    if len(np.unique(sample)) <= _FEW:
        return Encoded(pa.array(values), "")
    scale = unit_of(values)
    if scale is not None:
        absent = np.isnan(values)
        whole = np.rint(np.where(absent, 0.0, values) * scale).astype(np.int64)
        return Encoded(pa.array(whole, mask=absent if absent.any() else None), DELTA, scale)
    return Encoded(pa.array(values), _best_for_floats(values[:_SAMPLE]))


def unit_of(values: Floats) -> float | None:
    """The first of `SCALES` over which all of `values`, NaN apart, are whole numbers; None where there is none."""
    there = values[~np.isnan(values)]
    sample = there[:: max(1, len(there) // _SAMPLE)]
    return next((s for s in SCALES if _whole(sample, s) and _whole(there, s)), None)


def decode(array: pa.ChunkedArray, scale: float) -> Floats:
    """The values again, bit for bit."""
    found: Floats
    if not scale:
        # A null becomes NaN here, too.
        found = array.to_numpy()
        return found
    # A null becomes NaN with the conversion to floats.
    found = array.cast(pa.float64(), safe=False).to_numpy()
    return found if scale == 1.0 else found / scale


def encode_mixed(values: Floats) -> dict[str, Encoded]:
    """Values of many metrics, float64[n] and none of them absent: column ``whole`` where they are whole numbers, else
    ``value``. A float of one metric does not cost the counters of another their packing.
    """
    with np.errstate(invalid="ignore"):
        scaled = np.rint(values)
        whole = (scaled == values) & (np.abs(values) < _EXACT) & ~(np.signbit(values) & (values == 0))
    return {
        "whole": Encoded(pa.array(np.where(whole, scaled, 0.0).astype(np.int64), mask=~whole), DELTA),
        "value": Encoded(pa.array(values, mask=whole), ""),
    }


def decode_mixed(table: pa.Table) -> Floats:
    """Inverse of `encode_mixed`."""
    whole, values = (decode(table.column(name), scale) for name, scale in (("whole", 1.0), ("value", 0.0)))
    found: Floats = np.where(np.isnan(whole), values, whole)
    return found


def _whole(values: Floats, scale: float) -> bool:
    """Whether `values` times `scale` are whole numbers that give each value back bit for bit when divided."""
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = np.rint(values * scale)
        fits = bool((np.abs(scaled) < _EXACT).all()) and bool((scaled / scale == values).all())
    return fits and not bool((np.signbit(values) & (values == 0)).any())


def _best_for_floats(sample: Floats) -> str:
    data = np.ascontiguousarray(sample)
    split = np.ascontiguousarray(data.view(np.uint8).reshape(-1, 8).T)
    plain_size, split_size = (len(pa.compress(part.tobytes(), codec="zstd", asbytes=True)) for part in (data, split))
    return SPLIT if split_size <= plain_size else PLAIN


GROUP_ROWS = 8_192
"""Rows of a row group: a day of one GPU at ten seconds. One GPU is read without most of the others."""

SUFFIX = ".parquet"
VARIANTS = ".variants" + SUFFIX

_LEVEL = 3
_SCALES = b"tocsin.scales"
_KEYS = ("gpu", "at_ms")
_REASONS, _OWNERS = "reasons", "owners"


class BadSegment(Exception):
    """A file whose content is not what this module writes."""


def variants_of(path: Path) -> Path:
    """The file of variants beside the segment `path`."""
    return path.with_name(path.name.removesuffix(SUFFIX) + VARIANTS)


# ---------------------------------------------------------------------- writing


def write(path: Path, block: Block) -> int:
    """Write `block`, sorted by (GPU, instant), as segment `path`; returns its size in bytes. Raises OSError."""
    there = [name for name, column in zip(block.names, block.values, strict=True) if not np.isnan(column).all()]
    columns = {name: encode(block.column(name)) for name in there}
    for name, notes in ((_REASONS, block.reasons), (_OWNERS, block.owners)):
        if (notes.of >= 0).any():
            columns[name] = Encoded(_dictionary(notes), "")
    keys = {"gpu": Encoded(pa.array(block.gpu), DELTA), "at_ms": Encoded(pa.array(block.at_ms), DELTA)}
    size = 0
    if len(block.extra.row):
        size += _write(variants_of(path), _variant_columns(block))
    return size + _write(path, {**keys, **columns})


def _dictionary(notes: Notes) -> pa.Array:
    return _text(notes.of, notes.texts)


def _text(of: npt.NDArray[np.int32], texts: Sequence[str]) -> pa.Array:
    """A column of text: `texts[of[i]]`, null where that is -1.

    It is not handed over as a dictionary, which would be written whole into every row group.
    """
    return pa.array(texts, pa.string()).take(pa.array(of, mask=of < 0))


def _variant_columns(block: Block) -> dict[str, Encoded]:
    extra = block.extra
    # By name and not by number: statistics and dictionaries then rule out row groups.
    place = np.argsort(np.argsort(np.array(extra.names))).astype(np.int32)
    order = np.lexsort((extra.row, place[extra.name], block.gpu[extra.row]))
    row = extra.row[order]
    names = _text(place[extra.name][order], sorted(extra.names))
    return {
        "gpu": Encoded(pa.array(block.gpu[row]), DELTA),
        "name": Encoded(names, ""),
        # The same instants again and again, one run for each variant: a dictionary packs them, differences do not.
        "at_ms": Encoded(pa.array(block.at_ms[row]), ""),
        **encode_mixed(extra.value[order]),
    }


def _write(path: Path, columns: Mapping[str, Encoded]) -> int:
    scales = {name: column.scale for name, column in columns.items() if column.scale}
    table = pa.table({name: column.array for name, column in columns.items()})
    table = table.replace_schema_metadata({_SCALES: json.dumps(scales).encode()})
    with atomic_file(path) as file:
        pq.write_table(
            table,
            file,
            row_group_size=GROUP_ROWS,
            compression="zstd",
            compression_level=_LEVEL,
            use_dictionary=[name for name, column in columns.items() if not column.encoding],
            column_encoding={name: column.encoding for name, column in columns.items() if column.encoding},
            write_statistics=[name for name in ("gpu", "at_ms", "name") if name in columns],
            write_page_checksum=True,
            store_schema=True,
        )
    return path.stat().st_size


def remove(path: Path) -> None:
    """Remove a segment and the file beside it, as far as they are there."""
    for one in (path, variants_of(path)):
        one.unlink(missing_ok=True)


# ---------------------------------------------------------------------- reading


@dataclass(frozen=True, slots=True)
class _Footer:
    """What a file says of itself: its columns, their scales, and what its row groups hold, int64[groups] each."""

    metadata: pq.FileMetaData
    names: tuple[str, ...]
    scales: Mapping[str, float]
    first_gpu: npt.NDArray[np.int64]
    last_gpu: npt.NDArray[np.int64]
    first_ms: npt.NDArray[np.int64]
    last_ms: npt.NDArray[np.int64]

    def groups(self, start_ms: int, end_ms: int, gpus: Flags | None) -> list[int]:
        """The row groups in which the wanted rows may lie."""
        found = (self.last_ms >= start_ms) & (self.first_ms < end_ms)
        if gpus is not None:
            before = np.concatenate(([0], np.cumsum(gpus)))
            low, high = (np.clip(edge, 0, len(gpus)) for edge in (self.first_gpu, self.last_gpu + 1))
            found &= before[high] > before[low]
        return [int(number) for number in np.flatnonzero(found)]


def _footer(path: Path) -> _Footer:
    found = path.stat()
    return _footer_once(path, (found.st_ino, found.st_size, found.st_mtime_ns))


@lru_cache(maxsize=64)
def _footer_once(path: Path, _same: tuple[int, int, int]) -> _Footer:
    """The footer of a file, remembered. A file never changes, but a backup may put another one under its name."""
    with pa.OSFile(str(path)) as handle, pq.ParquetFile(handle) as file:
        try:
            return _footer_of(file)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise BadSegment(f"its footer is none of ours: {type(error).__name__}: {error}") from None


def _footer_of(file: pq.ParquetFile) -> _Footer:
    metadata, names = file.metadata, tuple(file.schema_arrow.names)
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    bounds = []
    for key in _KEYS:
        found = [group.column(names.index(key)).statistics for group in groups]
        bounds += [np.array([f.min for f in found], np.int64), np.array([f.max for f in found], np.int64)]
    return _Footer(metadata, names, json.loads(file.schema_arrow.metadata[_SCALES]), *bounds)


def _table(path: Path, footer: _Footer, groups: Sequence[int], columns: Sequence[str] | None) -> pa.Table:
    texts = [name for name in (_REASONS, _OWNERS, "name") if name in footer.names]
    # The page's checksum is asked on every read: a bit that flipped is an error and not another value.
    with (
        pa.OSFile(str(path)) as handle,
        pq.ParquetFile(
            handle, metadata=footer.metadata, read_dictionary=texts, page_checksum_verification=True
        ) as file,
    ):
        return file.read_row_groups(groups, columns=columns)


def read(
    path: Path,
    start_ms: int,
    end_ms: int,
    gpus: Flags | None,
    names: Collection[str] | None,
    *,
    whole: bool,
    variants: bool,
) -> Block:
    """The rows of segment `path` in [`start_ms`, `end_ms`), of the GPUs for whose number `gpus` holds (None: of all).

    `names` are the columns that are read, None for all; with `whole` also reasons and owners, with `variants` also
    what lies in the file beside. Raises OSError, ArrowException or BadSegment where a file cannot be read.
    """
    footer = _footer(path)
    groups = footer.groups(start_ms, end_ms, gpus)
    there = [name for name in footer.names if name not in (*_KEYS, _REASONS, _OWNERS)]
    chosen = tuple(name for name in there if names is None or name in names)
    if not groups:
        return empty(chosen)
    notes = [name for name in (_REASONS, _OWNERS) if whole and name in footer.names]
    block = _block(_table(path, footer, groups, [*_KEYS, *chosen, *notes]), chosen, footer.scales)
    block = block.between(start_ms, end_ms, gpus)
    if variants and len(block):
        return _with_variants(block, variants_of(path), start_ms, end_ms, gpus, names)
    return block


def _block(table: pa.Table, names: Sequence[str], scales: Mapping[str, float]) -> Block:
    height = table.num_rows
    values = np.empty((len(names), height))
    for place, name in enumerate(names):
        values[place] = decode(table.column(name), scales.get(name, 0.0))
    reasons, owners = (_notes(table, name) for name in (_REASONS, _OWNERS))
    return Block(
        table.column("gpu").to_numpy(), table.column("at_ms").to_numpy(), tuple(names), values, reasons, owners
    )


def _notes(table: pa.Table, name: str) -> Notes:
    if name not in table.column_names:
        return no_notes(table.num_rows)
    return Notes(*_coded(table.column(name)))


def _coded(column: Any) -> tuple[npt.NDArray[np.int32], tuple[str, ...]]:
    """A column of text as numbers, -1 for null, and the texts that they number."""
    # Every row group may have a dictionary of its own.
    one = column.unify_dictionaries().combine_chunks()
    if isinstance(one, pa.ChunkedArray):
        one = one.chunk(0)
    index = one.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int32)
    return index, tuple(one.dictionary.to_pylist())


def _with_variants(
    block: Block, path: Path, start_ms: int, end_ms: int, gpus: Flags | None, names: Collection[str] | None
) -> Block:
    footer = _footer(path)
    groups = footer.groups(start_ms, end_ms, gpus)
    if not groups:
        return block
    table = _table(path, footer, groups, None)
    value = decode_mixed(table)
    gpu, at_ms = table.column("gpu").to_numpy(), table.column("at_ms").to_numpy()
    name, texts = _coded(table.column("name"))
    wanted = (at_ms >= start_ms) & (at_ms < end_ms)
    if gpus is not None:
        wanted &= held(gpus, gpu)
    if names is not None:
        wanted &= np.array([text in names for text in texts], dtype=np.bool_)[name]
    if not wanted.any():
        return block
    row = _rows_of(block, gpu[wanted], at_ms[wanted])
    extra = Extra(row, name[wanted], value[wanted], texts)
    return Block(block.gpu, block.at_ms, block.names, block.values, block.reasons, block.owners, extra)


def _rows_of(block: Block, gpu: npt.NDArray[np.int32], at_ms: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    """The row of each (GPU, instant), all of which the block has."""
    low = int(block.at_ms.min())
    span = int(block.at_ms.max()) - low + 1
    keys = block.gpu.astype(np.int64) * span + (block.at_ms - low)
    return np.searchsorted(keys, gpu.astype(np.int64) * span + (at_ms - low)).astype(np.int32)

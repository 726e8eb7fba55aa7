"""Segments: Parquet files with the history of some GPUs over an hour or a day, sorted by (GPU, instant).

A segment is written under a temporary name, brought to disk and only then given its name; nothing in it ever changes.
Readings are wide; values of variants lie in a second file beside, one row each, sorted by (GPU, variant, instant), so
that names which come and go, such as those of processes, never widen a schema.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.parquet import encryption

from tocsin.at_rest.keys import RING, KeyLacks, StateKey
from tocsin.domain.atomic_file import atomic_file
from tocsin.store.embedded.blocks import Block, Extra, Flags, Floats, empty, held
from tocsin.store.embedded.notes import Notes, no_notes

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


# Where this process holds a key, files are encrypted as Parquet defines it ("Parquet Modular Encryption": AES-256-GCM
# over each page, its head and the footer), with a key of the file's own that is derived from its name.

PLAIN_END, SEALED_END = b"PAR1", b"PARE"


class BadSegment(Exception):
    """A file whose content is not what this module writes."""


def variants_of(path: Path) -> Path:
    """The file of variants beside the segment `path`."""
    return path.with_name(path.name.removesuffix(SUFFIX) + VARIANTS)


# ---------------------------------------------------------------------- writing


def write(path: Path, block: Block) -> tuple[int, bytes]:
    """Write `block`, sorted by (GPU, instant), as segment `path`; returns its size in bytes and its sums, see `Sums`.

    Raises OSError.
    """
    there = [name for name, column in zip(block.names, block.values, strict=True) if not np.isnan(column).all()]
    columns = {name: encode(block.column(name)) for name in there}
    for name, notes in ((_REASONS, block.reasons), (_OWNERS, block.owners)):
        if (notes.of >= 0).any():
            columns[name] = Encoded(_dictionary(notes), "")
    keys = {"gpu": Encoded(pa.array(block.gpu), DELTA), "at_ms": Encoded(pa.array(block.at_ms), DELTA)}
    beside, more = 0, b""
    if len(block.extra.row):
        beside, more = _write(variants_of(path), _variant_columns(block))
    size, sums = _write(path, {**keys, **columns})
    return size + beside, sums + more


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
    # By GPU, name and instant: one key, as three sorts of millions of values take three times as long.
    of_gpu = block.gpu[extra.row].astype(np.int64) * len(extra.names) + place[extra.name]
    order = np.argsort(of_gpu * len(block) + extra.row, kind="stable")
    row = extra.row[order]
    names = _text(place[extra.name][order], sorted(extra.names))
    return {
        "gpu": Encoded(pa.array(block.gpu[row]), DELTA),
        "name": Encoded(names, ""),
        # The same instants again and again, one run for each variant: a dictionary packs them, differences do not.
        "at_ms": Encoded(pa.array(block.at_ms[row]), ""),
        **encode_mixed(extra.value[order]),
    }


def _write(path: Path, columns: Mapping[str, Encoded]) -> tuple[int, bytes]:
    scales = {name: column.scale for name, column in columns.items() if column.scale}
    table = pa.table({name: column.array for name, column in columns.items()})
    table = table.replace_schema_metadata({_SCALES: json.dumps(scales).encode()})
    key = _key_of(path, RING.first())
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
            encryption_properties=None if key is None else encryption.create_encryption_properties(key),
        )
    return path.stat().st_size, _sums_of(path, key)


def _key_of(path: Path, key: StateKey | None) -> bytes | None:
    """The key of the file at `path`: its name goes with it into backups, and no name is given twice in one store."""
    return None if key is None else key.derived(b"segment " + path.name.encode())


def _opens(key: bytes | None) -> Any:
    """What Arrow takes to decrypt a file; None for a plain one."""
    return None if key is None else encryption.create_decryption_properties(key)


def is_sealed(path: Path) -> bool:
    """Whether a file is encrypted. Raises OSError."""
    with path.open("rb") as file:
        return file.read(len(SEALED_END)) == SEALED_END


def is_sealed_by(path: Path, key: StateKey | None) -> bool:
    """Whether a file is as it would be written with `key`: encrypted by it, or plain without. Raises OSError."""
    if key is None or not is_sealed(path):
        return key is None and not is_sealed(path)
    try:
        pq.read_metadata(str(path), decryption_properties=_opens(_key_of(path, key)))
    except OSError as error:
        if error.errno is not None:
            raise
        return False
    return True


def _sums_of(path: Path, key: bytes | None) -> bytes:
    """Of a file that was just written: CRC of its footer, then of each column of each row group."""
    metadata = pq.read_metadata(str(path), decryption_properties=_opens(key))
    with path.open("rb") as file:
        data = file.read()
    spans = [span for group in range(metadata.num_row_groups) for span in _spans(metadata, group)]
    sums = [zlib.crc32(data[_footer_start(data[-8:], len(data)) :])]
    sums += [zlib.crc32(memoryview(data)[start : start + length]) for start, length in spans]
    return np.array([len(sums), *sums], "<u4").tobytes()


def _spans(metadata: pq.FileMetaData, group: int) -> list[tuple[int, int]]:
    """Where each column of a row group lies: start and length."""
    found, row_group = [], metadata.row_group(group)
    for number in range(metadata.num_columns):
        column = row_group.column(number)
        starts = (column.dictionary_page_offset, column.data_page_offset)
        found.append((min(start for start in starts if start is not None), column.total_compressed_size))
    return found


def _footer_start(tail: bytes, size: int) -> int:
    """Where the footer of a file of `size` bytes begins that ends in `tail`, 8 bytes. Raises BadSegment."""
    start = size - 8 - int.from_bytes(tail[:4], "little")
    if len(tail) != 8 or tail[4:] not in (PLAIN_END, SEALED_END) or start < 4:
        raise BadSegment("it does not end as a Parquet file")
    return start


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
    key: bytes | None = field(repr=False)
    spans: dict[int, list[tuple[int, int]]] = field(default_factory=dict)

    def spans_of(self, group: int) -> list[tuple[int, int]]:
        """Start and length of each column of a row group."""
        if (found := self.spans.get(group)) is None:
            found = self.spans[group] = _spans(self.metadata, group)
        return found

    def groups(self, start_ms: int, end_ms: int, gpus: Flags | None) -> list[int]:
        """The row groups in which the wanted rows may lie."""
        found = (self.last_ms >= start_ms) & (self.first_ms < end_ms)
        if gpus is not None:
            before = np.concatenate(([0], np.cumsum(gpus)))
            low, high = (np.clip(edge, 0, len(gpus)) for edge in (self.first_gpu, self.last_gpu + 1))
            found &= before[high] > before[low]
        return [int(number) for number in np.flatnonzero(found)]


@dataclass(frozen=True, slots=True)
class Sums:
    """CRCs of a file: of its footer, and of each column of each row group, which Parquet's own leave out in part.

    Its pages have checksums, but neither the heads of pages, which say how values are encoded, nor the footer, which
    has names, units and bounds. `columns` is empty for a file of a version that kept no sums.
    """

    footer: int = 0
    columns: npt.NDArray[np.uint32] = field(default_factory=lambda: np.empty(0, np.uint32))

    @classmethod
    def of(cls, kept: bytes) -> tuple[Sums, Sums]:
        """Those of a segment and of the file beside it; raises BadSegment."""
        words = np.frombuffer(kept, "<u4") if len(kept) % 4 == 0 else np.empty(0, np.uint32)
        found = []
        for _ in range(2):
            count = int(words[0]) if len(words) else 0
            found.append(cls(int(words[1]), words[2 : count + 1]) if count else cls())
            words = words[count + 1 :]
        return found[0], found[1]

    def __bool__(self) -> bool:
        return len(self.columns) > 0


def _footer(path: Path, sums: Sums) -> _Footer:
    found = path.stat()
    return _footer_once(path, (found.st_ino, found.st_size, found.st_mtime_ns), sums.footer if sums else None)


@lru_cache(maxsize=64)
def _footer_once(path: Path, same: tuple[int, int, int], wanted: int | None) -> _Footer:
    """The footer of a file, remembered. A file never changes, but a backup may put another one under its name."""
    if wanted is not None:
        with path.open("rb") as raw:
            raw.seek(max(same[1] - 8, 0))
            start = _footer_start(raw.read(8), same[1])
            raw.seek(start)
            if zlib.crc32(raw.read()) != wanted:
                raise BadSegment("its footer is not as written")
    if not is_sealed(path):
        return _read_footer(path, None)
    for key in RING.held():
        try:
            return _read_footer(path, _key_of(path, key))
        except OSError as error:
            # Arrow tells a wrong key by a text alone; what else is wrong has a number.
            if error.errno is not None:
                raise
    # No damage: who sets the file aside would lose it.
    remedy = "set the key that encrypted it; the file was not touched"
    raise KeyLacks("at_rest.key_file", "...", f"is not the key of {path}, or its footer is damaged", remedy)


def _read_footer(path: Path, key: bytes | None) -> _Footer:
    with pa.OSFile(str(path)) as handle, pq.ParquetFile(handle, decryption_properties=_opens(key)) as file:
        try:
            return _footer_of(file, key)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise BadSegment(f"its footer is none of ours: {type(error).__name__}: {error}") from None


def _check_columns(
    path: Path, footer: _Footer, groups: Sequence[int], columns: Sequence[str] | None, sums: Sums
) -> None:
    """Raises BadSegment where a column of a row group is not as written."""
    width = footer.metadata.num_columns
    places = range(width) if columns is None else [footer.names.index(name) for name in columns]
    if len(sums.columns) != width * footer.metadata.num_row_groups:
        raise BadSegment("its footer is none of those that were written")
    with path.open("rb", buffering=0) as file:
        for group in groups:
            spans = footer.spans_of(group)
            if 2 * len(places) >= width:
                # Columns of a row group lie together.
                first = min(start for start, _ in spans)
                data = memoryview(os.pread(file.fileno(), max(map(sum, spans)) - first, first))
                parts = [data[spans[at][0] - first : sum(spans[at]) - first] for at in places]
            else:
                parts = [memoryview(os.pread(file.fileno(), spans[at][1], spans[at][0])) for at in places]
            if any(
                zlib.crc32(part) != sums.columns[group * width + at] for at, part in zip(places, parts, strict=True)
            ):
                raise BadSegment(f"a column of row group {group} is not as written")


def _footer_of(file: pq.ParquetFile, own: bytes | None) -> _Footer:
    metadata, names = file.metadata, tuple(file.schema_arrow.names)
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    bounds: list[npt.NDArray[np.int64]] = []
    for key in _KEYS:
        found = [group.column(names.index(key)).statistics for group in groups]
        bounds += [np.array([f.min for f in found], np.int64), np.array([f.max for f in found], np.int64)]
    scales = json.loads(file.schema_arrow.metadata[_SCALES])
    return _Footer(metadata, names, scales, bounds[0], bounds[1], bounds[2], bounds[3], own)


def _table(path: Path, footer: _Footer, groups: Sequence[int], columns: Sequence[str] | None, sums: Sums) -> pa.Table:
    texts = [name for name in (_REASONS, _OWNERS, "name") if name in footer.names]
    # Asked on every read: a bit that flipped is an error and not another value.
    if sums:
        _check_columns(path, footer, groups, columns, sums)
    with (
        pa.OSFile(str(path)) as handle,
        pq.ParquetFile(
            handle,
            metadata=footer.metadata,
            read_dictionary=texts,
            page_checksum_verification=not sums,
            decryption_properties=_opens(footer.key),
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
    sums: bytes = b"",
) -> Block:
    """The rows of segment `path` in [`start_ms`, `end_ms`), of the GPUs for whose number `gpus` holds (None: of all).

    `names` are the columns that are read, None for all; with `whole` also reasons and owners, with `variants` also
    what lies in the file beside. `sums` are those of `write`, none where an earlier version kept none. Raises
    OSError, ArrowException or BadSegment where a file cannot be read.
    """
    own, beside = Sums.of(sums)
    footer = _footer(path, own)
    groups = footer.groups(start_ms, end_ms, gpus)
    there = [name for name in footer.names if name not in (*_KEYS, _REASONS, _OWNERS)]
    chosen = tuple(name for name in there if names is None or name in names)
    if not groups:
        return empty(chosen)
    notes = [name for name in (_REASONS, _OWNERS) if whole and name in footer.names]
    block = _block(_table(path, footer, groups, [*_KEYS, *chosen, *notes], own), chosen, footer.scales)
    block = block.between(start_ms, end_ms, gpus)
    if variants and len(block):
        return _with_variants(block, variants_of(path), start_ms, end_ms, gpus, names, beside)
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
    block: Block,
    path: Path,
    start_ms: int,
    end_ms: int,
    gpus: Flags | None,
    names: Collection[str] | None,
    sums: Sums,
) -> Block:
    footer = _footer(path, sums)
    groups = footer.groups(start_ms, end_ms, gpus)
    if not groups:
        return block
    table = _table(path, footer, groups, None, sums)
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

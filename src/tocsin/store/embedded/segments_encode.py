"""How the columns of a segment are written: bit for bit the same when read, and as small as was measured best.

Telemetry is mostly decimal: watts are milliwatts over 1000, ratios are percents over 100. Where every value of a column
is a whole number over one power of ten, it is kept as that whole number (the idea of ALP, Afroozeh and Boncz, "ALP:
Adaptive Lossless floating-Point Compression", SIGMOD 2023) and its differences are packed. Columns of few different
values take a dictionary; the rest are floats, with bytes of equal weight together where that packs better.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tocsin.store.embedded.hot_block import Floats

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

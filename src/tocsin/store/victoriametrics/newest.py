"""The newest reading of each GPU, out of an export in CSV.

A fleet of 10,000 GPUs has 600,000 series with one sample each to look at: as JSON most of the text, and of the time
that it takes, is the labels. Here a sample is a row, and all rows are taken apart at once, in columns.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import csv

from tocsin.domain.metrics import METRICS
from tocsin.domain.reading import Gpu, Missing, Reading
from tocsin.store.points import LAST_MS, PointError
from tocsin.store.samples import reason_of
from tocsin.store.victoriametrics.labels import gpu_of, key_of

_OF_GPU = ("gpu_uuid", "host", "mig_uuid")
_OF_METRIC = ("__name__", *sorted({spec.label for spec in METRICS.values() if spec.label}))
FORMAT = ",".join(("__value__", "__timestamp__:unix_ms", *_OF_GPU, *_OF_METRIC))
"""Columns that ``/api/v1/export/csv`` is asked for; a label that a series does not have is an empty text."""
_TEXT = pa.dictionary(pa.int32(), pa.string())
_READ = csv.ReadOptions(column_names=["value", "at_ms", *_OF_GPU, *_OF_METRIC], use_threads=False)
_PLAIN = csv.ParseOptions(quote_char=False)
_TYPES = csv.ConvertOptions(
    column_types={"value": pa.float64(), "at_ms": pa.int64()} | dict.fromkeys((*_OF_GPU, *_OF_METRIC), _TEXT)
)

_Places = npt.NDArray[np.intp]


def newest_readings(text: bytes, wanted: Collection[str] | None) -> list[Reading] | None:
    """The newest reading of each GPU, or of those in `wanted`, that has a row in `text`, without attributes and owners.

    Samples without a finite number and series that are none of ours are left out. None where `text` is not as plain as
    that of Tocsin's own series always is: labels that need quotes, rows of another length, instants that cannot be.
    """
    if not text.strip():
        return []
    if b'"' in text:
        return None
    try:
        table = csv.read_csv(pa.BufferReader(text), _READ, _PLAIN, _TYPES).unify_dictionaries().combine_chunks()
        metric, labels = _distinct(table, _OF_METRIC)
        gpu, names = _distinct(table, _OF_GPU)
        gpus = [gpu_of(*name) if name[0] else None for name in names]
    except (pa.ArrowInvalid, PointError):
        return None
    at_ms = table["at_ms"].to_numpy()
    if at_ms.dtype != np.int64 or bool(((at_ms < 0) | (at_ms > LAST_MS)).any()):
        return None
    keys = [key_of({"gpu_uuid": "any"} | dict(zip(_OF_METRIC, one, strict=True))) for one in labels]
    value = table["value"].to_numpy()
    ours = np.array([key is not None for key in keys])[metric] & np.isfinite(value)
    ours &= np.array([one is not None and (wanted is None or one.uuid in wanted) for one in gpus])[gpu]
    chosen = np.flatnonzero(ours)
    return list(_readings([key or ("", False) for key in keys], metric, gpus, gpu, at_ms, value, chosen))


def _distinct(table: pa.Table, names: Sequence[str]) -> tuple[_Places, list[tuple[str, ...]]]:
    """For each row the place of its texts in the columns `names` among the distinct ones, and these."""
    columns = [table[name].combine_chunks() for name in names]
    code = np.zeros(len(table), np.int64)
    for column in columns:
        if len(column.dictionary) > 1:
            _, code = np.unique(code * len(column.dictionary) + column.indices.to_numpy(), return_inverse=True)
    _, first, code = np.unique(code, return_index=True, return_inverse=True)
    return code, list(zip(*(column.take(pa.array(first)).to_pylist() for column in columns), strict=True))


def _readings(
    keys: Sequence[tuple[str, bool]],
    metric: _Places,
    gpus: Sequence[Gpu | None],
    gpu: _Places,
    at_ms: npt.NDArray[np.int64],
    value: npt.NDArray[np.float64],
    rows: _Places,
) -> Iterator[Reading]:
    """Readings of the `rows`; of one GPU on two hosts all rows are one reading, of the host that stands last."""
    places: dict[str, int] = {}
    same = np.array([places.setdefault(one.uuid, len(places)) if one else -1 for one in gpus])
    owner = same[gpu]
    newest = np.full(len(places), -1, np.int64)
    np.maximum.at(newest, owner[rows], at_ms[rows])
    rows = rows[at_ms[rows] == newest[owner[rows]]]
    rows = rows[np.argsort(owner[rows], kind="stable")]
    for part in np.split(rows, np.flatnonzero(np.diff(owner[rows])) + 1):
        if not len(part) or (one := gpus[gpu[part[-1]]]) is None:
            continue
        values: dict[str, float] = {}
        missing: dict[str, Missing] = {}
        for place, number in zip(metric[part].tolist(), value[part].tolist(), strict=True):
            key, is_reason = keys[place]
            if is_reason:
                missing[key] = reason_of(number)
            elif key:
                values[key] = number
        missing = {key: why for key, why in missing.items() if key not in values}
        yield Reading(one, int(at_ms[part[0]]), values, missing)

"""Single series, as server stores give them back, put together to `Columns`, and `Columns` taken apart again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tocsin.domain.reading import Reading
from tocsin.store.port import Columns, Series

Instants = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.float64]


class Grid:
    """Collects what is known of some metrics, series by series, in any order."""

    def __init__(self, metrics: Sequence[str]) -> None:
        self._metrics = tuple(metrics)
        self._places: dict[str, list[int]] = {}
        for place, name in enumerate(self._metrics):
            self._places.setdefault(name, []).append(place)
        self._instants: dict[str, Instants] = {}
        self._whole: dict[str, Instants] = {}
        self._series: dict[str, list[tuple[int, Instants, Numbers]]] = {}

    def seen(self, gpu: str, at_ms: Instants) -> None:
        """`gpu` has readings at `at_ms`, whatever they hold."""
        if self._whole.get(gpu) is at_ms:  # nearly all series of a GPU have the same instants
            return
        if (known := self._instants.get(gpu)) is None:
            self._instants[gpu] = np.unique(at_ms)
            if np.array_equal(self._instants[gpu], at_ms):
                self._whole[gpu] = at_ms
        elif not np.array_equal(known, at_ms):
            self._instants[gpu] = np.union1d(known, at_ms)
            self._whole.pop(gpu, None)

    def add(self, gpu: str, key: str, at_ms: Instants, values: Numbers) -> None:
        """Values of the metric or variant `key` of `gpu`; of two at one instant the later in the array wins.

        It is fastest where series of the same instants share one array.
        """
        self.seen(gpu, at_ms)
        for place in self._places.get(key, ()):
            self._series.setdefault(gpu, []).append((place, at_ms, values))

    def columns(self, *, newest: bool = False) -> Columns:
        """All of it, sorted by instant, then UUID; with `newest` only the last row of each GPU, sorted by UUID."""
        gpus = tuple(sorted(uuid for uuid, instants in self._instants.items() if len(instants)))
        if not (tables := [self._table(uuid, newest) for uuid in gpus]):
            return columns_of(self._metrics, ())
        at_ms = np.concatenate([instants for instants, _ in tables])
        gpu = np.repeat(np.arange(len(gpus), dtype=np.int32), [len(instants) for instants, _ in tables])
        values = np.concatenate([table for _, table in tables])
        if newest:
            return Columns(gpus, self._metrics, gpu, at_ms, values)
        order = np.argsort(at_ms, kind="stable")  # the rows of a UUID stand together, UUIDs in order
        return Columns(gpus, self._metrics, gpu[order], at_ms[order], values[order])

    def _table(self, gpu: str, newest: bool) -> tuple[Instants, Numbers]:
        instants = self._instants[gpu][-1:] if newest else self._instants[gpu]
        whole = self._whole.get(gpu)
        table = np.full((len(instants), len(self._metrics)), np.nan)
        for place, at_ms, values in self._series.get(gpu, ()):
            if at_ms is whole:
                table[:, place] = values[-len(instants) :]
                continue
            rows = np.searchsorted(instants, at_ms)
            inside = rows < len(instants)
            inside[inside] = instants[rows[inside]] == at_ms[inside]
            table[rows[inside], place] = values[inside]
        return instants, table


def columns_of(metrics: Sequence[str], readings: Iterable[Reading]) -> Columns:
    """`readings`, in the order in which they come."""
    rows = list(readings)
    gpus = tuple(sorted({reading.gpu.uuid for reading in rows}))
    number = {uuid: place for place, uuid in enumerate(gpus)}
    nan = float("nan")
    values = [[reading.values.get(name, nan) for name in metrics] for reading in rows]
    return Columns(
        gpus,
        tuple(metrics),
        np.array([number[reading.gpu.uuid] for reading in rows], dtype=np.int32),
        np.array([reading.at_ms for reading in rows], dtype=np.int64),
        np.array(values, dtype=np.float64).reshape(len(rows), len(metrics)),
    )


def by_gpu(columns: Columns, gpus: Iterable[str]) -> dict[str, Series]:
    """The rows of each of `gpus`, by UUID; the series of one without a row is empty."""
    order = np.argsort(columns.gpu, kind="stable")
    ends = np.searchsorted(columns.gpu[order], np.arange(len(columns.gpus) + 1))
    rows = {uuid: order[ends[place] : ends[place + 1]] for place, uuid in enumerate(columns.gpus)}
    nothing = np.empty(0, np.intp)
    return {
        uuid: Series(uuid, columns.metrics, columns.at_ms[chosen], columns.values[chosen])
        for uuid, chosen in ((uuid, rows.get(uuid, nothing)) for uuid in gpus)
    }


def within(series: Series, start_ms: int, end_ms: int) -> Series:
    """The rows of `series` in [`start_ms`, `end_ms`)."""
    first, last = np.searchsorted(series.at_ms, [start_ms, end_ms])
    return replace(series, at_ms=series.at_ms[first:last], values=series.values[first:last])

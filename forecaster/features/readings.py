"""From readings to the columns of a plan: what one process alone tells is put together for its GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

import numpy as np

from tocsin.domain.metrics import METRICS, split_variant
from tocsin.domain.reading import Reading
from tocsin.forecaster.features.arrays import Floats
from tocsin.forecaster.features.plan import Plan
from tocsin.store.port import Columns

_REMEMBERED = 4096


@dataclass(frozen=True, slots=True)
class _Shape:
    """How a reading with certain keys becomes a row: columns `places` by `get`, and for each `worst` column the keys
    of which the largest value counts."""

    get: Callable[[Mapping[str, float]], tuple[float, ...]]
    places: tuple[int, ...]
    worst: tuple[tuple[int, tuple[str, ...]], ...]


class Condenser:
    """Makes `Columns` of readings. Of a metric that processes have each, the largest value stands for the GPU.

    Stores cannot be asked for such metrics without the number of each process, so they reach features this way only.
    """

    def __init__(self, plan: Plan) -> None:
        self._metrics = plan.metrics
        self._place = {name: place for place, name in enumerate(self._metrics)}
        self._by_process = {name for name in self._metrics if name in METRICS and METRICS[name].label == "pid"}
        self._shapes: dict[tuple[str, ...], _Shape] = {}

    def columns(self, readings: Iterable[Reading]) -> Columns:
        """One row per reading, by instant, then UUID."""
        rows = sorted(readings, key=lambda reading: (reading.at_ms, reading.gpu.uuid))
        gpus = tuple(sorted({reading.gpu.uuid for reading in rows}))
        number = {uuid: place for place, uuid in enumerate(gpus)}
        return Columns(
            gpus,
            self._metrics,
            np.array([number[reading.gpu.uuid] for reading in rows], dtype=np.int32),
            np.array([reading.at_ms for reading in rows], dtype=np.int64),
            self._values(rows),
        )

    def _values(self, rows: Sequence[Reading]) -> Floats:
        values = np.full((len(rows), len(self._metrics)), np.nan)
        alike: dict[tuple[int, ...], tuple[list[int], list[tuple[float, ...]]]] = {}
        for row, reading in enumerate(rows):
            shape = self._shape(tuple(reading.values))
            members, taken = alike.setdefault(shape.places, ([], []))
            members.append(row)
            taken.append(shape.get(reading.values))
            for place, names in shape.worst:
                values[row, place] = max(reading.values[name] for name in names)
        for places, (members, taken) in alike.items():
            if places:
                values[np.ix_(members, places)] = taken
        return values

    def _shape(self, keys: tuple[str, ...]) -> _Shape:
        found = self._shapes.get(keys)
        if found is None:
            if len(self._shapes) >= _REMEMBERED:
                self._shapes.clear()
            found = self._shapes[keys] = self._new_shape(keys)
        return found

    def _new_shape(self, keys: Sequence[str]) -> _Shape:
        plain = [key for key in keys if key in self._place]
        worst: dict[str, list[str]] = {}
        for key in keys:
            name = split_variant(key)[0] if "{" in key else key
            if name in self._by_process and name != key:
                worst.setdefault(name, []).append(key)
        return _Shape(
            _getter(plain),
            tuple(self._place[key] for key in plain),
            tuple((self._place[name], tuple(names)) for name, names in worst.items()),
        )


def _getter(keys: Sequence[str]) -> Callable[[Mapping[str, float]], tuple[float, ...]]:
    if len(keys) > 1:
        return itemgetter(*keys)
    return lambda values: tuple(values[key] for key in keys)


def jobs_of(readings: Iterable[Reading]) -> dict[str, str]:
    """The job on each GPU, by UUID: a Slurm job, else a pod; none where only processes are known."""
    found = {}
    for reading in readings:
        for owner in reading.owners:
            if owner.slurm_job or owner.pod or owner.pod_uid:
                found[reading.gpu.uuid] = owner.label
                break
    return found

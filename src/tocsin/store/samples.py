"""Single values, as server stores give them back, put together to readings and columns."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

import numpy as np

from tocsin.domain.metrics import BY_FIELD, variant
from tocsin.domain.reading import Gpu, Missing, Owner, Reading
from tocsin.store import points
from tocsin.store.grid import Grid
from tocsin.store.points import FieldValue
from tocsin.store.port import Columns

_REASONS = {reason.value: reason for reason in Missing}


def reason_of(value: float) -> Missing:
    """The reason that a finite sample stands for; a number that is none counts as blank."""
    return _REASONS.get(int(value), Missing.BLANK)


def metric_key(field: str, tags: Mapping[str, str]) -> str | None:
    """Canonical name of `field`, as a variant where the tags have its label; None where it is no metric."""
    if (spec := BY_FIELD.get(field)) is None:
        return None
    value = tags.get(spec.label, "") if spec.label else ""
    return variant(spec.name, spec.label, value) if value else spec.name


class Rows:
    """Collects samples of ``gpu``, ``gpu_missing`` and ``gpu_owner``; within a reading a value outranks a reason."""

    def __init__(self) -> None:
        self._values: dict[tuple[int, str], dict[str, float]] = {}
        self._missing: dict[tuple[int, str], dict[str, Missing]] = {}
        self._owners: dict[tuple[int, str], tuple[Owner, ...]] = {}
        self._gpus: dict[str, Gpu] = {}

    def add(self, gpu: Gpu, key: str, is_reason: bool, at_ms: int, value: float) -> None:
        self._gpus[gpu.uuid] = gpu
        row = (at_ms, gpu.uuid)
        if is_reason:
            self._missing.setdefault(row, {})[key] = reason_of(value)
        else:
            self._values.setdefault(row, {})[key] = float(value)

    def add_series(self, gpu: Gpu, key: str, is_reason: bool, at_ms: Sequence[int], values: Sequence[float]) -> None:
        """Samples of one metric of `gpu`; with an empty `key` nothing but that it was read at these instants."""
        if not key:
            self._gpus[gpu.uuid] = gpu
            for at in at_ms:
                self._values.setdefault((at, gpu.uuid), {})
            return
        for at, value in zip(at_ms, values, strict=True):
            self.add(gpu, key, is_reason, at, value)

    def add_owners(self, gpu: Gpu, at_ms: int, owners: tuple[Owner, ...]) -> None:
        self._gpus.setdefault(gpu.uuid, gpu)
        self._owners[at_ms, gpu.uuid] = owners

    def take(self, samples: Iterable[tuple[str, Mapping[str, str], int, str, FieldValue]]) -> None:
        """Samples as (measurement, tags, instant, field, value); what is no metric's is left out."""
        for measurement, tags, at_ms, field, value in samples:
            key = metric_key(field, tags)
            if measurement == points.OWNER:
                point = points.Point(measurement, tags, {field: value}, at_ms)
                with suppress(points.PointError):
                    self.add_owners(points.gpu_of_tags(tags), at_ms, points.owners_of(point))
            elif key is not None and not isinstance(value, str):
                self.add(points.gpu_of_tags(tags), key, measurement == points.MISSING, at_ms, value)

    def readings(self, known: Mapping[str, Gpu]) -> Iterator[Reading]:
        """Readings by instant, then UUID, with the attributes that `known` has."""
        for row in sorted(self._values.keys() | self._missing.keys() | self._owners.keys()):
            at_ms, uuid = row
            values = self._values.get(row, {})
            missing = {name: why for name, why in self._missing.get(row, {}).items() if name not in values}
            yield Reading(known.get(uuid, self._gpus[uuid]), at_ms, values, missing, self._owners.get(row, ()))


class SampleGrid:
    """Collects samples of measurement ``gpu``, and the instants of readings, into `Columns`."""

    def __init__(self, metrics: Sequence[str], gpus: Collection[str] | None) -> None:
        self._grid = Grid(metrics)
        self._gpus = gpus

    def _is_wanted(self, uuid: str) -> bool:
        return self._gpus is None or uuid in self._gpus

    def take(self, samples: Iterable[tuple[str, Mapping[str, str], int, str, FieldValue]]) -> None:
        found: dict[tuple[str, str], tuple[list[int], list[float]]] = {}
        for _, tags, at_ms, field, value in samples:
            key = metric_key(field, tags)
            uuid = points.gpu_of_tags(tags).uuid
            if key is not None and not isinstance(value, str) and self._is_wanted(uuid):
                instants, values = found.setdefault((uuid, key), ([], []))
                instants.append(at_ms)
                values.append(float(value))
        for (uuid, key), (instants, values) in found.items():
            self._grid.add(uuid, key, np.array(instants, np.int64), np.array(values, np.float64))

    def seen(self, instants: Iterable[tuple[str, int]]) -> None:
        """UUIDs, and the instants at which they have readings."""
        found: dict[str, list[int]] = {}
        for uuid, at_ms in instants:
            if self._is_wanted(uuid):
                found.setdefault(uuid, []).append(at_ms)
        for uuid, times in found.items():
            self._grid.seen(uuid, np.array(times, np.int64))

    def columns(self) -> Columns:
        """What was collected, sorted by instant, then UUID."""
        return self._grid.columns()

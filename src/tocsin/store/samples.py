"""Single values, as server stores give them back, put together to readings and series."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from tocsin.domain.identity import Gpu
from tocsin.domain.metrics import BY_FIELD, variant
from tocsin.domain.missing import Missing
from tocsin.domain.reading import Reading
from tocsin.store import points
from tocsin.store.points import FieldValue
from tocsin.store.port import Series

_REASONS = {reason.value: reason for reason in Missing}


def metric_key(field: str, tags: Mapping[str, str]) -> str | None:
    """Canonical name of `field`, as a variant where the tags have its label; None where it is no metric."""
    spec = BY_FIELD.get(field)
    if spec is None:
        return None
    value = tags.get(spec.label, "") if spec.label else ""
    return variant(spec.name, spec.label, value) if value else spec.name


class Rows:
    """Collects samples of measurements ``gpu`` and ``gpu_missing``; within a reading a value outranks a reason."""

    def __init__(self) -> None:
        self._values: dict[tuple[int, str], dict[str, float]] = {}
        self._missing: dict[tuple[int, str], dict[str, Missing]] = {}
        self._gpus: dict[str, Gpu] = {}

    def add(self, gpu: Gpu, key: str, is_reason: bool, at_ms: int, value: float) -> None:
        """One sample of one metric of `gpu`."""
        self._gpus[gpu.uuid] = gpu
        row = (at_ms, gpu.uuid)
        if is_reason:
            self._missing.setdefault(row, {})[key] = _REASONS.get(int(value), Missing.BLANK)
        else:
            self._values.setdefault(row, {})[key] = float(value)

    def take(self, samples: Iterable[tuple[str, Mapping[str, str], int, str, FieldValue]]) -> None:
        """Samples as (measurement, tags, instant, field, value); what is no metric's is left out."""
        for measurement, tags, at_ms, field, value in samples:
            key = metric_key(field, tags)
            if key is not None and not isinstance(value, str):
                self.add(points.gpu_of_tags(tags), key, measurement == points.MISSING, at_ms, value)

    def readings(self, known: Mapping[str, Gpu]) -> Iterator[Reading]:
        """Readings by instant, then UUID, with the attributes that `known` has."""
        for at_ms, uuid in sorted(self._values.keys() | self._missing.keys()):
            values = self._values.get((at_ms, uuid), {})
            reasons = self._missing.get((at_ms, uuid), {})
            missing = {name: reason for name, reason in reasons.items() if name not in values}
            yield Reading(known.get(uuid, self._gpus[uuid]), at_ms, values, missing)

    def series(self, gpu: str, metrics: Sequence[str], instants: Iterable[int] = ()) -> Series:
        """The values of one GPU, the only one that was collected; at further `instants` it has a row of NaN."""
        found = {reading.at_ms: reading.values for reading in self.readings({})}
        at_ms = sorted(found.keys() | set(instants))
        values = [[found.get(at, {}).get(name, np.nan) for name in metrics] for at in at_ms]
        shaped = np.array(values, np.float64).reshape(len(at_ms), len(metrics))
        return Series(gpu, tuple(metrics), np.array(at_ms, dtype=np.int64), shaped)

"""Marks as points, for stores that charts are drawn from: measurement ``tocsin_entry``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from tocsin.domain.annotation import Annotation
from tocsin.store.points import FieldValue, Point

ENTRY = "tocsin_entry"


@runtime_checkable
class KeepsAnnotations(Protocol):
    """A store that keeps marks beside its readings."""

    def mark(self, marks: Sequence[Annotation]) -> None:
        """Keep `marks`; the same ones again change nothing. Raises StoreUnavailable or StoreRejected."""


def mark_point(mark: Annotation) -> Point:
    """`mark` as a point at its instant; kind, host, GPU and action are tags, empty ones are left out.

    Two marks that agree in all of them within a millisecond are one point: the last one stays.
    """
    tags = {"kind": mark.kind, "host": mark.host, "gpu_uuid": mark.gpu, "pool": mark.pool, "action": mark.action}
    fields: dict[str, FieldValue] = {
        "text": mark.text,
        "actor": mark.actor,
        "key": mark.key,
        "simulated": mark.simulated,
        "end_ms": int(mark.at_ms if mark.end_ms is None else mark.end_ms),
    }
    return Point(ENTRY, tags, fields, mark.at_ms)

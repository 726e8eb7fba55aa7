"""What lines about GPUs have in common from tick to tick: read once, then looked up by their text."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from tocsin.domain.identity import Gpu
from tocsin.domain.metrics import METRICS
from tocsin.store import points
from tocsin.store.lp_line import LineError, cut_head, parse_fields, parse_head
from tocsin.store.points import Point

_LABELS = frozenset(spec.label for spec in METRICS.values() if spec.label)


@dataclass(frozen=True, slots=True)
class GpuHead:
    """Head of a line of measurement ``gpu`` or ``gpu_missing``.

    `label` and `value` are of the variants on the line, empty for plain metrics; `strange` are tags that nobody knows.
    """

    measurement: str
    gpu: Gpu
    label: str
    value: str
    strange: tuple[str, ...]


@lru_cache(maxsize=16_384)
def gpu_head(head: str) -> GpuHead:
    """The head of a line about a GPU. Raises LineError or PointError."""
    measurement, tags = parse_head(head)
    others = [name for name in tags if name not in ("gpu_uuid", "host", "mig_uuid")]
    labels = [name for name in others if name in _LABELS]
    if len(labels) > 1:
        raise LineError(f"tags {' and '.join(labels)} are labels of different metrics")
    label = labels[0] if labels else ""
    strange = tuple(name for name in others if name != label)
    return GpuHead(measurement, points.gpu_of_tags(tags), label, tags.get(label, ""), strange)


@lru_cache(maxsize=16_384)
def info_of(body: str) -> Gpu:
    """Attributes in a line without its timestamp: the same text comes with every tick."""
    head, rest = cut_head(body)
    fields, stamp = parse_fields(rest)
    if stamp:
        raise LineError(f"{stamp[:60]!r} before the timestamp")
    return points.read_info(Point(points.INFO, parse_head(head)[1], fields, 0))

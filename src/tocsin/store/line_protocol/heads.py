"""What lines about GPUs have in common from tick to tick: read once, then looked up by their text."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import le

from tocsin.domain.metrics import BY_FIELD, METRICS, variant
from tocsin.domain.reading import Gpu, Missing, Owner
from tocsin.store import points
from tocsin.store.line_protocol.grammar import LineError, cut_head, parse_fields, parse_head, remembered
from tocsin.store.points import Point

LABELS = frozenset(spec.label for spec in METRICS.values() if spec.label)
BOUNDS = {name: (spec.name, spec.label, spec.minimum, spec.maximum) for name, spec in BY_FIELD.items()}
"""Field to canonical name, label and bounds."""

_CODES = {f"{reason.value}i": reason for reason in Missing}
HEADS = 65_536
"""Two a GPU, for fleets of 10,000 and more."""
LONGEST_FIELDS = 16_384
"""Fields of one line that are remembered: a line of all metrics has a quarter of this."""


@dataclass(slots=True)
class GpuHead:
    """Head of a line of measurement ``gpu`` or ``gpu_missing``.

    `label` and `value` are of the variants on the line, empty for plain metrics; `strange` are tags that nobody knows.
    """

    gpu: Gpu
    label: str
    value: str
    strange: tuple[str, ...]


@remembered(HEADS)
def _whole_head(head: str) -> GpuHead:
    _, tags = parse_head(head)
    others = [name for name in tags if name not in ("gpu_uuid", "host", "mig_uuid")]
    labels = [name for name in others if name in LABELS]
    if len(labels) > 1:
        raise LineError(f"tags {' and '.join(labels)} are labels of different metrics")
    label = labels[0] if labels else ""
    strange = tuple(name for name in others if name != label)
    return GpuHead(points.gpu_of_tags(tags), label, tags.get(label, ""), strange)


def gpu_head(head: str) -> GpuHead:
    """The head of a line about a GPU. Raises LineError or PointError.

    A label that stands last, where our encoder puts it, is read by itself: a GPU may have hundreds of them.
    """
    rest, _, last = head.rpartition(",")
    name, _, raw = last.partition("=")
    if name in LABELS and raw and "=" not in raw and "\\" not in head:
        base = _whole_head(rest)
        if not base.label:
            return GpuHead(base.gpu, name, raw, base.strange)
    return _whole_head(head)


@dataclass(frozen=True, slots=True)
class Fields:
    """A known sequence of fields: their metrics, their bounds, and the text around their numbers."""

    metrics: tuple[str, ...]
    lows: tuple[float, ...]
    highs: tuple[float, ...]
    form: str
    underscores: int

    def holds(self, values: Sequence[float]) -> bool:
        """Whether all `values` are in their bounds; NaN is in none."""
        return all(map(le, self.lows, values)) and all(map(le, values, self.highs))


@lru_cache(maxsize=4_096)
def fields_of(names: tuple[str, ...], label: str) -> Fields | None:
    """The fields `names`, in that order; None where one is not in the metric table, or not with this label."""
    rows = [BOUNDS.get(name) for name in names]
    metrics, lows, highs = [], [], []
    for row in rows:
        if row is None or row[1] != label:
            return None
        metrics.append(row[0])
        lows.append(row[2])
        highs.append(row[3])
    form = ",".join(f"{name}=%s" for name in names)
    return Fields(tuple(metrics), tuple(lows), tuple(highs), form, form.count("_"))


def key_of(metric: str, label: str, value: str) -> str:
    """A variant's key, the same object for as long as anything has it: a process is a key of its own to all that count
    by it, tick after tick."""
    return sys.intern(variant(metric, label, value))


@lru_cache(maxsize=4_096)
def reasons_of(text: str, label: str, value: str) -> Mapping[str, Missing] | None:
    """The reasons of a line of ``gpu_missing``; None where not all of it is known. Not to be changed by the caller."""
    found: dict[str, Missing] = {}
    for item in text.split(","):
        name, _, raw = item.partition("=")
        row = BOUNDS.get(name)
        reason = _CODES.get(raw)
        if row is None or reason is None or (label and row[1] != label):
            return None
        found[key_of(row[0], label, value) if label else row[0]] = reason
    return found


@remembered(HEADS)
def info_of(body: str) -> Gpu:
    """Attributes in a line without its timestamp: the same text comes with every tick."""
    return points.read_info(_point_of(points.INFO, body))


@remembered(HEADS)
def owners_in(body: str) -> tuple[Gpu, tuple[Owner, ...]] | None:
    """The processes on a GPU in a line without its timestamp; None where it repeats them as labels alone."""
    return owners_of_point(_point_of(points.OWNER, body))


def _point_of(measurement: str, body: str) -> Point:
    head, rest = cut_head(body)
    fields, stamp = parse_fields(rest)
    if stamp:
        raise LineError(f"{stamp[:60]!r} before the timestamp")
    return Point(measurement, parse_head(head)[1], fields, 0)


def owners_of_point(point: Point) -> tuple[Gpu, tuple[Owner, ...]] | None:
    """The processes on a GPU; None where the point repeats them as labels alone."""
    if "owners" not in point.fields and "pid" in point.fields:
        return None  # The same as labels, for a store without text; the line of text lies beside it.
    return points.gpu_of_tags(point.tags), points.owners_of(point)

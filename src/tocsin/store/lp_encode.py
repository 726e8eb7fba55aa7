"""Writing line protocol.

Field names of a reading hardly ever change from tick to tick, so the text around the numbers is made once per set of
names and filled by one ``%`` per line.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter

from tocsin.domain.batch import Batch
from tocsin.domain.identity import Gpu
from tocsin.domain.metrics import split_variant
from tocsin.domain.missing import Missing
from tocsin.domain.reading import Reading
from tocsin.store.points import (
    GPU,
    MISSING,
    FieldValue,
    Point,
    event_point,
    finding_point,
    gpu_tags,
    info_point,
    prediction_point,
)

_TAG_SPECIAL = re.compile(r"[,= \n\\]")
_MAX_CACHED_GPUS = 65_536


def tag_text(value: str) -> str:
    """`value` as it stands in a tag.

    The format cannot say a newline in a tag, nor a backslash at its end: they become a space and a slash.
    """
    if _TAG_SPECIAL.search(value) is None:
        return value
    value = value.replace("\n", " ")
    if value.endswith("\\"):
        value = value[:-1] + "/"
    return value.replace(",", "\\,").replace("=", "\\=").replace(" ", "\\ ")


def field_text(value: FieldValue) -> str:
    """`value` as it stands in a field: text quoted, ``i`` behind integers, the shortest exact form of a float."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    if isinstance(value, int):
        return f"{int(value)}i"
    return repr(float(value))


def head_text(measurement: str, tags: Mapping[str, str]) -> str:
    """Measurement and tags; a tag with an empty value is left out, as the format has none."""
    parts = [measurement]
    parts += [f"{tag_text(key)}={tag_text(value)}" for key, value in tags.items() if value]
    return ",".join(parts)


def point_line(point: Point) -> str:
    """One line, without a newline at its end."""
    fields = ",".join(f"{tag_text(key)}={field_text(value)}" for key, value in point.fields.items())
    return f"{head_text(point.measurement, point.tags)} {fields} {point.at_ms}"


@dataclass(frozen=True, slots=True)
class _Group:
    """Names of a reading that share a line: the plain ones, or those of one variant label and value."""

    tag: str
    template: str
    pick: Callable[[tuple[float, ...]], object] | None


@lru_cache(maxsize=4096)
def _plan(names: tuple[str, ...], form: str) -> tuple[_Group, ...]:
    """How values of `names`, in that order, become lines; `form` is the ``%`` form of one value."""
    groups: dict[str, list[tuple[int, str]]] = {}
    for position, key in enumerate(names):
        name, label, value = split_variant(key)
        tag = f",{label}={tag_text(value)}" if label else ""
        groups.setdefault(tag, []).append((position, name.removeprefix("gpu_")))
    whole = len(groups) == 1
    return tuple(
        _Group(
            tag,
            ",".join(tag_text(name).replace("%", "%%") + "=" + form for _, name in members),
            None if whole else itemgetter(*(position for position, _ in members)),
        )
        for tag, members in groups.items()
    )


def _add_lines(lines: list[str], head: str, at: str, fields: Mapping[str, float], form: str) -> None:
    values = tuple(fields.values())
    for group in _plan(tuple(fields), form):
        picked = values if group.pick is None else group.pick(values)
        text = group.template % picked
        if "(" in text or "True" in text or "False" in text:  # NumPy scalars and booleans print their type
            picked = tuple(float(v) for v in (picked if isinstance(picked, tuple) else (picked,)))
            text = group.template % picked
        lines.append(f"{head}{group.tag} {text} {at}")


@dataclass(frozen=True, slots=True)
class _Heads:
    """Texts that depend on the GPU alone; `gpu` is kept so that they are made anew for another object."""

    gpu: Gpu
    values: str
    missing: str
    info: str


_heads: dict[str, _Heads] = {}


def _heads_of(gpu: Gpu) -> _Heads:
    cached = _heads.get(gpu.uuid)
    if cached is not None and cached.gpu is gpu:
        return cached
    if len(_heads) >= _MAX_CACHED_GPUS:
        _heads.clear()
    tags = gpu_tags(gpu)
    info = point_line(info_point(gpu, 0)).removesuffix("0")
    made = _Heads(gpu, head_text(GPU, tags), head_text(MISSING, tags), info)
    _heads[gpu.uuid] = made
    return made


def _encode_reading(lines: list[str], reading: Reading, info: bool) -> None:
    heads = _heads_of(reading.gpu)
    at = str(reading.at_ms)
    values: Mapping[str, float] = reading.values
    missing: Mapping[str, Missing] = reading.missing
    if not all(map(math.isfinite, values.values())):
        blank = {name: Missing.BLANK for name, value in values.items() if not math.isfinite(value)}
        values = {name: value for name, value in values.items() if name not in blank}
        missing = {**missing, **blank}
    if info:
        lines.append(heads.info + at)
    if values:
        _add_lines(lines, heads.values, at, values, "%r")
    if missing:
        _add_lines(lines, heads.missing, at, missing, "%di")


def encode(batch: Batch, *, info: bool = True) -> str:
    """`batch` as InfluxDB line protocol with timestamps in milliseconds; every line ends with a newline.

    A variant's label is a tag, so each label value is a line of its own. `info` adds one line of measurement
    ``gpu_info`` per reading with the GPU's attributes; without it only UUID, parent and host travel, and a reading that
    has neither values nor reasons has no line.
    A value that is not finite travels as blank in ``gpu_missing``.
    """
    lines = encode_lines(batch, info=info)
    return "\n".join(lines) + "\n" if lines else ""


def encode_lines(batch: Batch, *, info: bool = True) -> list[str]:
    """`encode`, one point an item. Text may hold newlines, so the whole must not be cut at them."""
    lines: list[str] = []
    for reading in batch.readings:
        _encode_reading(lines, reading, info)
    lines += encode_points(batch)
    return lines


def encode_points(batch: Batch) -> Iterator[str]:
    """Lines of the batch's events, findings and predictions."""
    yield from (point_line(event_point(event)) for event in batch.events)
    yield from (point_line(finding_point(finding)) for finding in batch.findings)
    yield from (point_line(prediction_point(prediction)) for prediction in batch.predictions)

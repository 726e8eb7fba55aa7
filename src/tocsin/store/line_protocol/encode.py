"""Writing line protocol.

Field names of a reading hardly ever change from tick to tick, so the text around the numbers is made once per set of
names, for all lines of the reading at once, and filled by a single ``%``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from operator import itemgetter

from tocsin.domain.batch import Batch
from tocsin.domain.metrics import split_variant
from tocsin.domain.number_row import NumberRow
from tocsin.domain.reading import Gpu, Missing, Owner, Reading
from tocsin.store.line_protocol.grammar import tag_text
from tocsin.store.line_protocol.packed import MOST_ALIKE, MOST_ROWS, member_of, packings_of, reasons_line, values_line
from tocsin.store.points import (
    GPU,
    MISSING,
    FieldValue,
    Point,
    event_point,
    finding_point,
    gpu_tags,
    info_point,
    owner_label_points,
    owner_point,
    prediction_point,
    with_plain_names,
)

_MAX_CACHED_GPUS = 65_536
_FLOATS = {float}
_CUT = "\n\n"
"""Marks the place of an instant; no line holds an empty one."""


def field_text(value: FieldValue) -> str:
    """`value` as it stands in a field: text quoted, ``i`` behind integers, the shortest exact form of a float."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    return f"{int(value)}i" if isinstance(value, int) else repr(float(value))


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
class _Plan:
    """All lines of a reading as one text; `pick` puts (head, instant, value, ...) into its order."""

    template: str
    pick: Callable[[tuple[object, ...]], object]


@lru_cache(maxsize=4096)
def _plan(names: tuple[str, ...], form: str) -> _Plan:
    """How values of `names`, in that order and in the ``%`` form `form`, become lines: one of the plain names, and one
    of each label value.
    """
    groups: dict[str, list[tuple[int, str]]] = {}
    for position, key in enumerate(names, start=2):
        name, label, value = split_variant(key)
        tag = f",{label}={tag_text(value)}" if label else ""
        groups.setdefault(tag, []).append((position, name.removeprefix("gpu_")))
    template = ""
    order: list[int] = []
    for tag, members in groups.items():
        fields = ",".join(tag_text(name).replace("%", "%%") + "=" + form for _, name in members)
        template += f"%s{tag.replace('%', '%%')} {fields} %s\n"
        order += [0, *(position for position, _ in members), 1]
    return _Plan(template, itemgetter(*order))


def _value_lines(head: str, at: str, values: Mapping[str, float]) -> str:
    plan = _plan(tuple(values), "%r")
    numbers: Iterable[float] = values.values()
    if {*map(type, numbers)} != _FLOATS:  # NumPy scalars and booleans print their type
        numbers = map(float, numbers)
    return plan.template % plan.pick((head, at, *numbers))


@dataclass(slots=True)
class _Memo:
    """What was written of a GPU last and may be written again; `gpu` is kept so that another object has its own.

    `reasons` are the reasons written last, which hardly ever change, and their lines, cut where the instant stands;
    `owners` the owners written last, and their line up to it; `packed` the same of packed lines. `member` is what
    packed lines call the GPU, empty where they cannot.
    """

    gpu: Gpu
    head: str
    info: str = ""
    reasons: tuple[Mapping[str, Missing], tuple[str, ...]] = ({}, ())
    owners: tuple[tuple[Owner, ...], str] = ((), "")
    packed: tuple[Mapping[str, Missing], tuple[str, str] | None] = field(default_factory=lambda: ({}, None))
    member: str = ""

    def info_line(self, at: str) -> str:
        if not self.info:
            self.info = point_line(info_point(with_plain_names(self.gpu), 0)).removesuffix("0")
        return f"{self.info}{at}\n"

    def owner_line(self, at: str, owners: tuple[Owner, ...]) -> str:
        before, line = self.owners
        if before != owners:
            line = point_line(owner_point(self.gpu, owners, 0)).removesuffix("0")
            self.owners = owners, line
        return f"{line}{at}\n"

    def missing_lines(self, at: str, missing: Mapping[str, Missing]) -> str:
        before, pieces = self.reasons
        if missing != before:
            plan = _plan(tuple(missing), "%di")
            head = head_text(MISSING, gpu_tags(self.gpu))
            pieces = tuple((plan.template % plan.pick((head, _CUT, *missing.values()))).split(_CUT))
            self.reasons = dict(missing), pieces
        return at.join(pieces)

    def packed_reasons(self, missing: Mapping[str, Missing]) -> tuple[str, str] | None:
        """Names and reasons of a packed line; None where they need lines of their own."""
        if missing != self.packed[0]:
            packings = packings_of(tuple(missing)) or ()
            alike = len(packings) == 1 and not packings[0].label
            names = (packings[0].names, ",".join(str(int(one)) for one in missing.values())) if alike else None
            self.packed = dict(missing), names
        return self.packed[1]


_memos: dict[str, _Memo] = {}


def _memo_of(gpu: Gpu) -> _Memo:
    if (kept := _memos.get(gpu.uuid)) is not None and kept.gpu is gpu:
        return kept
    if len(_memos) >= _MAX_CACHED_GPUS:
        _memos.clear()
    made = _memos[gpu.uuid] = _Memo(gpu, head_text(GPU, gpu_tags(gpu)), member=member_of(gpu))
    return made


def _finite(reading: Reading) -> tuple[Mapping[str, float], Mapping[str, Missing]]:
    """Values and reasons; a value that is not finite is blank."""
    values, missing = reading.values, reading.missing
    if isinstance(values, NumberRow):
        values = values.plain()
    if math.isfinite(sum(values.values())):
        return values, missing
    blank = {name: Missing.BLANK for name, value in values.items() if not math.isfinite(value)}
    return {name: value for name, value in values.items() if name not in blank}, {**missing, **blank}


def _encode_reading(reading: Reading, info: bool, owner_labels: bool = False) -> str:
    """All lines of one reading, each with its newline; empty where there is nothing to say."""
    memo, at = _memo_of(reading.gpu), str(reading.at_ms)
    values, missing = _finite(reading)
    text = memo.info_line(at) if info else ""
    if values:
        text += _value_lines(memo.head, at, values)
    if missing:
        text += memo.missing_lines(at, missing)
    return text + _owner_lines(reading, memo, at, owner_labels)


def _owner_lines(reading: Reading, memo: _Memo, at: str, owner_labels: bool) -> str:
    text = memo.owner_line(at, reading.owners) if reading.owners else ""
    if owner_labels:
        made = owner_label_points(reading.gpu, reading.owners, reading.at_ms)
        text += "".join(f"{point_line(point)}\n" for point in made)
    return text


class _Packer:
    """Gathers what GPUs of a host say alike at an instant, of readings of different GPUs and instants."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str, str, str], list[tuple[str, bytes]]] = {}
        self._lacking: dict[tuple[str, str, str, str], list[str]] = {}

    def takes(self, reading: Reading, memo: _Memo, at: str) -> bool:
        """Take up values and reasons of a reading; False where something of it cannot be packed."""
        values, missing = _finite(reading)
        packings = packings_of(tuple(values)) if memo.member else None
        reasons = memo.packed_reasons(missing) if missing else ("", "")
        if packings is None or reasons is None:
            return False
        host, numbers = reading.gpu.host, tuple(values.values())
        for one in packings:
            member = f"{memo.member}{{{one.value}}}" if one.label else memo.member
            self._rows.setdefault((host, at, one.label, one.names), []).append((member, one.numbers(numbers)))
        if missing:
            self._lacking.setdefault((host, at, *reasons), []).append(memo.member)
        return True

    def lines(self) -> Iterator[str]:
        for (host, at, label, names), found in self._rows.items():
            for start in range(0, len(found), MOST_ROWS):
                yield values_line(host, label, names, found[start : start + MOST_ROWS], at)
        for (host, at, names, codes), members in self._lacking.items():
            for start in range(0, len(members), MOST_ALIKE):
                yield reasons_line(host, names, codes, members[start : start + MOST_ALIKE], at)


def _encode_packed(readings: Iterable[Reading], info: bool, owner_labels: bool) -> Iterator[str]:
    """The lines of `readings`; what GPUs of a host say alike at an instant is one."""
    packer, met = _Packer(), set[tuple[str, int]]()
    for reading in readings:
        memo, at = _memo_of(reading.gpu), str(reading.at_ms)
        if (reading.gpu.uuid, reading.at_ms) in met:
            # Of two values the later holds: what came before stands before it.
            yield from packer.lines()
            packer, met = _Packer(), set()
        met.add((reading.gpu.uuid, reading.at_ms))
        if packer.takes(reading, memo, at):
            yield (memo.info_line(at) if info else "") + _owner_lines(reading, memo, at, owner_labels)
        else:
            yield _encode_reading(reading, info, owner_labels)
    yield from packer.lines()


def encode(batch: Batch, *, info: bool = True, owner_labels: bool = False, packed: bool = False) -> str:
    """`batch` as InfluxDB line protocol with timestamps in milliseconds; every line ends with a newline.

    A variant's label is a tag, so each label value is a line of its own. `info` adds one line of measurement
    ``gpu_info`` per reading with the GPU's attributes; without it only UUID, parent and host travel, and a reading that
    has neither values nor reasons has no line.
    A value that is not finite travels as blank in ``gpu_missing``, owners as one line of ``gpu_owner``; with
    `owner_labels` also as labels, for a store that keeps no text. `packed` is for a receiver that reads packed lines.
    """
    if packed:
        lines = [*_encode_packed(batch.readings, info, owner_labels)]
    else:
        lines = [_encode_reading(reading, info, owner_labels) for reading in batch.readings]
    lines += [f"{line}\n" for line in encode_points(batch)]
    return "".join(lines)


def encode_lines(batch: Batch) -> list[str]:
    """`encode` without ``gpu_info``, a point an item: text may hold newlines, so the whole must not be cut at them."""
    lines = [line for reading in batch.readings for line in _encode_reading(reading, info=False).split("\n") if line]
    return [*lines, *encode_points(batch)]


def encode_points(batch: Batch) -> Iterator[str]:
    """Lines of the batch's events, findings and predictions."""
    yield from (point_line(event_point(event)) for event in batch.events)
    yield from (point_line(finding_point(finding)) for finding in batch.findings)
    yield from (point_line(prediction_point(prediction)) for prediction in batch.predictions)

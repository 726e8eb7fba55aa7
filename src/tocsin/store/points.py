"""Events, findings, predictions and GPU attributes as points: a measurement with tags, fields and an instant.

Tags name what a point is (they make it unique together with the instant), fields carry what may change. An optional
number that is None is named in field ``absent``: a second write merges fields, and an old number would shine through.

A `PointCodec` writes and reads the points of one dataclass. Which attributes are tags is said here; how each is written
follows from its type, so that a new attribute of a dataclass is stored without a change to this module.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from types import UnionType
from typing import Any, Generic, TypeVar, get_args, get_origin, get_type_hints

from tocsin.domain.clock import DAY
from tocsin.domain.event import Event
from tocsin.domain.finding import Evidence, Finding, Subject, SubjectKind
from tocsin.domain.prediction import Prediction
from tocsin.domain.reading import Gpu, Owner, owners_text, read_owners

FieldValue = float | int | bool | str

GPU = "gpu"
PACKED = "gpu_packed"
MISSING = "gpu_missing"
INFO = "gpu_info"
OWNER = "gpu_owner"
EVENT = "gpu_event"
FINDING = "gpu_finding"
PREDICTION = "gpu_prediction"

LAST_MS = 7_258_118_400_000
"""2200-01-01: no instant lies behind it, and an instant with the longest horizon added is still a date."""
LONGEST_MS = 36_500 * DAY
"""No horizon is longer."""
MAX_TEXT = 256 * 1024
"""Characters of one text."""
MAX_NAME = 1_024
"""Characters of the name of a GPU or host, and of each attribute of a GPU; Prometheus' labels have the same bound."""
MAX_LABELS = 128
"""Labels of one GPU (own choice): those of a series are as many at most."""
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
"""What no name has in it: PostgreSQL takes no zero byte, and a terminal would do as it is told."""

_ABSENT = "absent"
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Point:
    """One point; tags with an empty value are left out on the wire."""

    measurement: str
    tags: Mapping[str, str]
    fields: Mapping[str, FieldValue]
    at_ms: int


class PointError(ValueError):
    """A point that does not hold what its measurement needs; the text says which tag or field."""


# ---------------------------------------------------------------------- bounds
#
# What is read is a stranger's word, whether an agent sends it or a store returns it: whatever passes here can be
# written to any store, added up, shown as a date and sent as JSON.


def _whole(name: str, value: object) -> None:
    if type(value) is not int or not -(2**63) <= value < 2**63:
        raise PointError(f"{name} = {str(value)[:60]} is no 64-bit integer")


def _of_time(name: str, value: object) -> None:
    most = LONGEST_MS if name.startswith("horizon") else LAST_MS
    if type(value) is not int or not 0 <= value <= most:
        raise PointError(f"{name} = {str(value)[:60]} lies outside 0 to {most} ms")


def _finite(name: str, value: object) -> None:
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise PointError(f"{name} = {str(value)[:60]} is no finite number")


def _textual(name: str, value: object) -> None:
    if not isinstance(value, str) or len(value) > MAX_TEXT:
        raise PointError(f"{name} is no text of at most {MAX_TEXT} characters")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise PointError(f"{name} is no text that UTF-8 can carry") from None


def _each_evidence(name: str, value: tuple[Evidence, ...]) -> None:
    for one in value:
        _textual(name, one.name)
        _textual(name, one.text)
        _of_time(f"{name} at_ms", one.at_ms)
        if one.value is not None:
            _finite(name, one.value)


def _each_owner(name: str, value: tuple[Owner, ...]) -> None:
    for one in value:
        _whole(f"{name} pid", one.pid)
        for text in (one.process, one.container, one.pod, one.namespace, one.pod_uid, one.slurm_job, one.user):
            _textual(name, text)


def _each_share(name: str, value: tuple[tuple[Any, float], ...]) -> None:
    for key, share in value:
        (_textual if isinstance(key, str) else _of_time)("horizon_ms" if name == "curve" else name, key)
        _finite(name, share)


def _each_label(name: str, value: Mapping[str, str]) -> None:
    for both in value.items():
        for text in both:
            _textual(name, text)


def _in_subject(name: str, value: Subject) -> None:
    for text in (value.name, value.host, value.pool, value.detail):
        _textual(name, text)


def check_field(name: str, value: FieldValue) -> None:
    """Raises PointError for a value that no field of ours has."""
    if isinstance(value, str):
        _textual(name, value)
    elif isinstance(value, float):
        _finite(name, value)
    else:
        _whole(name, int(value))


def check_instant(at_ms: int) -> None:
    """Raises PointError for an instant before 1970 or behind `LAST_MS`."""
    _of_time("instant", at_ms)


_Check = Callable[[str, Any], None]
_CHECKS: Mapping[Any, _Check] = {
    str: _textual,
    int: _whole,
    float: _finite,
    Subject: _in_subject,
    tuple[Evidence, ...]: _each_evidence,
    tuple[Owner, ...]: _each_owner,
    tuple[tuple[int, float], ...]: _each_share,
    tuple[tuple[str, float], ...]: _each_share,
    Mapping[str, str]: _each_label,
}


@lru_cache(maxsize=32)
def _checks(kind: type) -> tuple[tuple[str, bool, _Check], ...]:
    """Name of each attribute that has bounds, whether it may be None, and the check."""
    found = []
    for name, hint in get_type_hints(kind).items():
        optional = get_origin(hint) is UnionType
        check = _CHECKS.get(get_args(hint)[0] if optional else hint)
        if check is not None:
            found.append((name, optional, _of_time if check is _whole and name.endswith("_ms") else check))
    return tuple(found)


def sound(value: _T) -> _T:
    """`value`, an event, a finding, a prediction or a GPU, once all of it is within bounds; raises PointError."""
    kind: type = type(value)
    for name, optional, check in _checks(kind):
        found = getattr(value, name)
        if found is not None or not optional:
            check(name, found)
    return value


# ---------------------------------------------------------------------- values by their type


def _need(point: Point, name: str, convert: Callable[[str], _T]) -> _T:
    if (raw := point.tags.get(name, point.fields.get(name))) is None:
        raise PointError(f"{point.measurement} needs {name}")
    try:
        return convert(str(raw))
    except (ValueError, OverflowError):
        raise PointError(f"{name} = {str(raw)[:60]!r} is not usable in {point.measurement}") from None


def _text(point: Point, name: str) -> str:
    return str(point.fields.get(name, ""))


def _number(point: Point, name: str) -> float | None:
    if (raw := point.fields.get(name)) is None or name in _text(point, _ABSENT).split(","):
        return None
    if isinstance(raw, str) or not math.isfinite(raw):
        raise PointError(f"{name} = {str(raw)[:60]!r} is no number")
    return float(raw)


def _instant(point: Point, name: str) -> int | None:
    # Of the field itself: a float has no room for every integer.
    return None if _number(point, name) is None else int(point.fields[name])


def _flag(point: Point, name: str) -> bool:
    raw = point.fields.get(name, False)
    if isinstance(raw, str):
        raise PointError(f"{name} = {raw[:60]!r} is not true or false")
    return bool(raw)


def evidence_json(evidence: tuple[Evidence, ...]) -> str:
    """JSON list of ``[name, text, at_ms, value]``."""
    return json.dumps([[e.name, e.text, e.at_ms, e.value] for e in evidence], ensure_ascii=False, separators=(",", ":"))


def read_evidence(text: str) -> tuple[Evidence, ...]:
    """Inverse of `evidence_json`; raises PointError."""
    try:
        rows = json.loads(text or "[]")
        return tuple(Evidence(str(n), str(t), int(a), None if v is None else float(v)) for n, t, a, v in rows)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise PointError(f"evidence is not a list of [name, text, at_ms, value]: {str(error)[:200]}") from None


def owners_of(point: Point, name: str = "owners") -> tuple[Owner, ...]:
    """The owners that field `name` lists; raises PointError."""
    try:
        owners = read_owners(_text(point, name))
        _each_owner(name, owners)
    except (ValueError, RecursionError) as error:
        raise PointError(f"{name} is not usable in {point.measurement}: {error}") from None
    return owners


_LABELS_TEXT = 2_048
"""Characters of labels that are remembered: versions of all software of a node have 600."""


def labels_text(labels: Mapping[str, str]) -> str:
    """JSON object of `labels`."""
    return json.dumps(dict(labels), ensure_ascii=False, separators=(",", ":"))


def read_labels(text: str) -> Mapping[str, str]:
    """Inverse of `labels_text`, the same object for GPUs that are labelled alike; raises PointError."""
    return (_known_labels if len(text) <= _LABELS_TEXT else _labels_in)(text)


def _labels_in(text: str) -> Mapping[str, str]:
    try:
        labels = json.loads(text or "{}")
    except (ValueError, RecursionError):
        labels = None
    # A list or an object as a value has a depth of its own, which its text form would have to walk.
    if not isinstance(labels, dict) or any(isinstance(value, list | dict) for value in labels.values()):
        raise PointError("labels is no JSON object of texts")
    return {str(key): str(value) for key, value in labels.items()}


_known_labels = lru_cache(maxsize=1_024)(_labels_in)


def _shares_text(shares: tuple[tuple[Any, float], ...]) -> str:
    return json.dumps(shares) if shares else ""


def _shares(point: Point, name: str, what: Callable[[Any], Any]) -> tuple[tuple[Any, float], ...]:
    """Pairs of what `what` reads and a number."""
    text = _text(point, name)
    try:
        return tuple((what(key), float(share)) for key, share in json.loads(text or "[]"))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise PointError(f"{name} {text[:60]!r}: {str(error)[:200]}") from None


def _subject_tags(subject: Subject) -> dict[str, str]:
    return {"subject_kind": subject.kind.value, "subject": subject.name, "subject_detail": subject.detail}


def _read_subject(point: Point) -> Subject:
    return Subject(
        kind=_need(point, "subject_kind", SubjectKind),
        name=point.tags.get("subject", ""),
        host=_text(point, "subject_host"),
        pool=_text(point, "subject_pool"),
        detail=point.tags.get("subject_detail", ""),
    )


@dataclass(frozen=True, slots=True)
class _Form:
    """How an attribute is a field: `write` makes the field, `read` takes it from (point, name)."""

    write: Callable[[Any], FieldValue]
    read: Callable[[Point, str], Any]


def _same(value: FieldValue) -> FieldValue:
    return value


_INDEX = _Form(
    lambda index: -1 if index is None else int(index),
    lambda point, name: None if (index := _need(point, name, int)) < 0 else index,
)
"""A number that is counted from 0, -1 where it is not known."""
# InfluxDB gives a field one type for good and refuses the other: instants are integers and measured values floats,
# whatever type the caller's number has.
_OPTIONAL_NUMBERS: Mapping[Any, _Form] = {float | None: _Form(float, _number), int | None: _Form(int, _instant)}
_TEXT = _Form(_same, _text)
_INTEGER = _Form(int, lambda point, name: _need(point, name, int))
_SUBJECT = _Form(str, lambda point, _name: _read_subject(point))
"""Not a field of its own: see `PointCodec`."""
_FORMS: Mapping[Any, _Form] = {
    str: _TEXT,
    int: _INTEGER,
    Subject: _SUBJECT,
    float: _Form(float, lambda point, name: _need(point, name, float)),
    bool: _Form(_same, _flag),
    tuple[Evidence, ...]: _Form(evidence_json, lambda point, name: read_evidence(_text(point, name))),
    tuple[Owner, ...]: _Form(owners_text, owners_of),
    tuple[tuple[int, float], ...]: _Form(_shares_text, lambda point, name: _shares(point, name, int)),
    tuple[tuple[str, float], ...]: _Form(_shares_text, lambda point, name: _shares(point, name, str)),
    Mapping[str, str]: _Form(labels_text, lambda point, name: read_labels(_text(point, name))),
}


def _form_of(hint: Any) -> _Form:
    """Raises TypeError for a type that no field can carry."""
    if hint in _FORMS:
        return _FORMS[hint]
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _Form(lambda value: str(value.value), lambda point, name: _need(point, name, hint))
    if get_origin(hint) is UnionType and isinstance(kind := get_args(hint)[0], type) and issubclass(kind, Enum):
        return _Form(
            lambda value: "" if value is None else str(value.value),
            lambda point, name: _need(point, name, kind) if _text(point, name) else None,
        )
    raise TypeError(f"no field of a point can carry {hint}; add its form to {__name__}._FORMS")


# ---------------------------------------------------------------------- points of a dataclass


class PointCodec(Generic[_T]):
    """Points of the dataclass `kind`.

    `at` is the attribute with the point's instant, and `tags` the names of tags by attribute; a number among them is a
    field as well. A `Subject` is three tags, and its host and pool are fields. `left_out` are attributes that points do
    not carry, `forms` say how odd ones are written. An attribute with a default may be missing from a point.

    Fields stand in the order of the attributes, but those of `after` behind the named one, and optional numbers last:
    a database does not mind, but a point stays the same text from version to version.
    """

    def __init__(
        self,
        kind: type[_T],
        measurement: str,
        at: str = "",
        *,
        tags: Mapping[str, str] | None = None,
        left_out: tuple[str, ...] = (),
        after: Mapping[str, str] | None = None,
        forms: Mapping[str, _Form] | None = None,
    ) -> None:
        self._kind = kind
        self._measurement = measurement
        self._at = at
        self._tags = dict(tags or {})
        self._forms: dict[str, _Form] = {}
        self._numbers: dict[str, _Form] = {}
        self._required: set[str] = set()
        hints = get_type_hints(kind)
        known = {one.name: one for one in dataclasses.fields(kind)}  # type: ignore[arg-type]  # a dataclass, as said
        for name in _ordered([name for name in known if name != at and name not in left_out], after or {}):
            if hints[name] in _OPTIONAL_NUMBERS and name not in (forms or {}):
                self._numbers[name] = _OPTIONAL_NUMBERS[hints[name]]
            else:
                self._forms[name] = (forms or {}).get(name) or _form_of(hints[name])
            if known[name].default is dataclasses.MISSING and known[name].default_factory is dataclasses.MISSING:
                self._required.add(name)

    def tags(self, value: _T) -> dict[str, str]:
        found = {tag: str(self._forms[name].write(getattr(value, name))) for name, tag in self._tags.items()}
        for name, form in self._forms.items():
            if form is _SUBJECT:
                found |= _subject_tags(getattr(value, name))
        return found

    def fields(self, value: _T) -> dict[str, FieldValue]:
        found: dict[str, FieldValue] = {}
        for name, form in self._forms.items():
            if form is _SUBJECT:
                subject: Subject = getattr(value, name)
                found |= {"subject_host": subject.host, "subject_pool": subject.pool}
            elif name not in self._tags or form is _INTEGER:
                found[name] = form.write(getattr(value, name))
        if self._numbers:
            numbers = {name: getattr(value, name) for name in self._numbers}
            there = {name for name, number in numbers.items() if number is not None and math.isfinite(number)}
            found |= {name: form.write(numbers[name]) for name, form in self._numbers.items() if name in there}
            found[_ABSENT] = ",".join(name for name in numbers if name not in there)
        return found

    def point(self, value: _T) -> Point:
        return Point(self._measurement, self.tags(value), self.fields(value), getattr(value, self._at))

    def read(self, point: Point, **given: object) -> _T:
        """The object of `point`, with what is `given` beside, once it is `sound`; raises PointError."""
        found = {**given, self._at: point.at_ms} if self._at else given
        for name, form in (self._forms | self._numbers).items():
            if (tag := self._tags.get(name)) is not None and form is _TEXT:
                found[name] = point.tags.get(tag, "")
            elif tag is not None or name in point.fields or name in self._required:
                found[name] = form.read(point, name)
        return sound(self._kind(**found))


def _ordered(names: Sequence[str], after: Mapping[str, str]) -> list[str]:
    """`names`, those of `after` moved behind the one that it has for them."""
    found: list[str] = []
    for name in names:
        if name not in after:
            found += [name, *(moved for moved, ahead in after.items() if ahead == name)]
    return found


# Kind, GPU, host and code are tags, so that two codes of one instant stay two points.
_EVENTS = PointCodec(Event, EVENT, "at_ms", tags={"kind": "kind", "gpu": "gpu_uuid", "host": "host", "code": "code"})
_FINDINGS = PointCodec(
    Finding,
    FINDING,
    "started_ms",
    tags={"rule": "rule"},
    left_out=("told",),
    after={"subject": "simulated", "owners": "evidence"},
)
_PREDICTIONS = PointCodec(
    Prediction, PREDICTION, "at_ms", tags={"model": "model", "target": "target"}, after={"subject": "simulated"}
)
_INFO_TEXTS = ("model", "serial", "pci_bus_id", "mig_profile", "pool", "rack")
_INFOS = PointCodec(Gpu, INFO, left_out=("uuid", "host", "parent"), forms={"index": _INDEX})

event_point, read_event = _EVENTS.point, _EVENTS.read
finding_point, read_finding = _FINDINGS.point, _FINDINGS.read
prediction_point, read_prediction = _PREDICTIONS.point, _PREDICTIONS.read


def gpu_tags(gpu: Gpu) -> dict[str, str]:
    """Tags that identify `gpu`: its own UUID, or its parent's with ``mig_uuid``, and the host."""
    if gpu.parent:
        return {"gpu_uuid": gpu.parent, "host": gpu.host, "mig_uuid": gpu.uuid}
    return {"gpu_uuid": gpu.uuid, "host": gpu.host}


def gpu_of_tags(tags: Mapping[str, str]) -> Gpu:
    """The bare GPU that `tags` identify; raises PointError without a UUID."""
    uuid = tags.get("gpu_uuid", "")
    mig = tags.get("mig_uuid", "")
    if not uuid:
        raise PointError("tag gpu_uuid is missing")
    for name in ("gpu_uuid", "mig_uuid", "host"):
        if len(tags.get(name, "")) > MAX_NAME:
            raise PointError(f"tag {name} is longer than {MAX_NAME} characters")
    # Lines of five kinds name a GPU, and what is made of each is remembered: it has one name in memory.
    host, parent = sys.intern(tags.get("host", "")), sys.intern(uuid) if mig else ""
    return Gpu(uuid=sys.intern(mig or uuid), host=host, parent=parent)


def info_point(gpu: Gpu, at_ms: int) -> Point:
    """The attributes of `gpu` as a point. `index` is -1 where it is unknown."""
    return Point(INFO, gpu_tags(gpu), _INFOS.fields(gpu), at_ms)


def with_plain_names(gpu: Gpu) -> Gpu:
    """`gpu` with spaces for control characters in its attributes: what a driver says of itself costs no attribute."""
    texts: dict[str, Any] = {name: CONTROL.sub(" ", getattr(gpu, name)) for name in _INFO_TEXTS}
    labels = {CONTROL.sub(" ", name): CONTROL.sub(" ", text) for name, text in gpu.labels.items()}
    same = labels == gpu.labels and all(getattr(gpu, name) == text for name, text in texts.items())
    return gpu if same else dataclasses.replace(gpu, labels=labels, **texts)


def read_info(point: Point) -> Gpu:
    """Inverse of `info_point`; raises PointError."""
    bare = gpu_of_tags(point.tags)
    read = _INFOS.read(point, uuid=bare.uuid, host=bare.host, parent=bare.parent)
    for name in _INFO_TEXTS:
        _named(name, getattr(read, name))
    if len(read.labels) > MAX_LABELS:
        raise PointError(f"labels has {len(read.labels)} labels, more than {MAX_LABELS}; send fewer of them")
    for label, text in read.labels.items():
        _named("the name of a label", label)
        _named(f"label {label[:40]}", text)
    return read


def _named(name: str, text: str) -> None:
    if not text.isprintable() and CONTROL.search(text) is not None:
        raise PointError(f"{name} = {text[:40]!r} has a control character; leave it out")
    if len(text) > MAX_NAME:
        raise PointError(f"{name} = {text[:40]!r}... has {len(text)} characters, more than {MAX_NAME}; shorten it")


def owner_point(gpu: Gpu, owners: tuple[Owner, ...], at_ms: int) -> Point:
    """The processes on `gpu` as a point."""
    return Point(OWNER, gpu_tags(gpu), {"owners": owners_text(owners)}, at_ms)


_OWNER_TAGS = ("process", "namespace", "pod", "pod_uid", "slurm_job", "user")
"""What of an owner is a label where text is lost; a container's identifier would be a new series at each restart."""


def owner_label_points(gpu: Gpu, owners: tuple[Owner, ...], at_ms: int) -> list[Point]:
    """`owners` for a store without text: a point each, with its number of process in field ``pid``.

    Owners that differ in nothing but process and container are one point, of the least number.
    """
    found: dict[tuple[str, ...], Owner] = {}
    for owner in sorted(owners, key=lambda one: one.pid):
        found.setdefault(tuple(getattr(owner, name) for name in _OWNER_TAGS), owner)
    head = gpu_tags(gpu)
    return [
        Point(OWNER, head | dict(zip(_OWNER_TAGS, texts, strict=True)), {"pid": owner.pid}, at_ms)
        for texts, owner in found.items()
    ]


def owner_of_labels(labels: Mapping[str, str], pid: float) -> Owner:
    """Inverse of `owner_label_points` for one point; raises PointError."""
    if not (math.isfinite(pid) and pid == int(pid)):
        raise PointError(f"pid = {pid} is no whole number")
    owner = Owner(int(pid), **{name: labels[name] for name in _OWNER_TAGS if name in labels})
    _each_owner("owner", (owner,))
    return owner

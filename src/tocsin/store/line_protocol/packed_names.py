"""The names and GPUs of packed lines as the brain knows them: a fleet has a few such texts, read once."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from tocsin.domain.metrics import BY_FIELD, variant, variant_ending, variant_opening
from tocsin.domain.number_row import Names, NumberRow, names_of
from tocsin.domain.reading import Gpu, Missing
from tocsin.store import points
from tocsin.store.line_protocol.heads import LABELS
from tocsin.store.line_protocol.packed import FLOAT, MOST_ALIKE, cut_gpu, cut_member, cut_name

_LONGEST = 16_384
"""Text of names that is remembered: those of all metrics and 18 links have 11,000 characters."""
_TEXTS = 256
"""Texts of names that are remembered: each kind of GPU and of source has some."""
_LONGEST_MEMBERS = 1_024
"""Text of GPUs that is remembered, of no more than `MOST_ALIKE`: eight with their processes have 450 characters."""
_MEMBERS = 4_096
"""Texts of GPUs that are remembered, 10 KB each at most: a host sends one, and one of those with processes."""
_NUMBER = np.dtype("<f8")
_REASONS = {str(reason.value): reason for reason in Missing}


class _UnknownError(ValueError):
    """What is not known is not remembered either."""


@dataclass(frozen=True, slots=True, eq=False)
class KnownNames:
    """A text of names that are all in the metric table, each once: their keys, and their bounds float64[n].

    Where the line has a label, names are what comes before its value. `shared` are those that are remembered: of others
    each line would have its own.
    """

    names: tuple[str, ...]
    shared: Names | None
    labelled: bool
    lows: npt.NDArray[np.float64]
    highs: npt.NDArray[np.float64]

    def values(self, value: str, row: bytes) -> dict[str, float] | NumberRow:
        """The numbers in `row`, of a GPU that has `value` of the line's label, by key."""
        numbers = array("d", row)
        if sys.byteorder == "big":
            numbers.byteswap()
        if self.shared is not None:
            return NumberRow(self.shared, numbers)
        if not self.labelled:
            return dict(zip(self.names, numbers, strict=True))
        ending = variant_ending(value)
        # The same objects for as long as anything has them.
        return {sys.intern(f"{opening}{ending}"): each for opening, each in zip(self.names, numbers, strict=True)}

    def rows(self, raw: bytes, count: int) -> Iterator[bytes] | None:
        """The numbers in `raw` of `count` GPUs, one for each key; None where there are more or fewer, or one is not in
        its bounds."""
        width = len(self.names) * FLOAT
        if len(raw) != count * width:
            return None
        found = np.frombuffer(raw, _NUMBER).reshape(count, -1)
        # A NaN is in no bounds.
        if not ((found >= self.lows) & (found <= self.highs)).all():
            return None
        return (raw[start : start + width] for start in range(0, len(raw), width))


@dataclass(frozen=True, slots=True)
class Member:
    """One of the GPUs of a line, and its value of the line's label."""

    gpu: Gpu
    value: str


def known_members(host: str, text: str) -> tuple[Member, ...]:
    """The GPUs that `text` names on a line of `host`. Raises PointError for one without a UUID."""
    few = len(host) + len(text) <= _LONGEST_MEMBERS and text.count(",") < MOST_ALIKE
    return (_known_members if few else _read_members)(host, text)


def _read_members(host: str, text: str) -> tuple[Member, ...]:
    return tuple(_read_member(host, one) for one in text.split(","))


def _read_member(host: str, text: str) -> Member:
    name, value = cut_member(text)
    return Member((_known_gpu if len(host) + len(name) <= points.MAX_NAME else _read_gpu)(host, name), value)


def _read_gpu(host: str, name: str) -> Gpu:
    uuid, parent = cut_gpu(name)
    tags = {"gpu_uuid": parent, "mig_uuid": uuid} if parent else {"gpu_uuid": uuid}
    return points.gpu_of_tags(tags | {"host": host})


_known_gpu = lru_cache(maxsize=65_536)(_read_gpu)
_known_members = lru_cache(maxsize=_MEMBERS)(_read_members)


def known_names(text: str, label: str) -> KnownNames | None:
    """What the names in `text` are, on a line with `label`, empty for none; None where one is in no metric table, has
    another label, or stands twice."""
    if label and label not in LABELS:
        return None
    try:
        return (_known_names if len(text) <= _LONGEST else _read_names)(text, label)
    except _UnknownError:
        return None


def _read_names(text: str, common: str) -> KnownNames:
    keys, lows, highs = [], [], []
    for name in text.split(","):
        field, label, value = cut_name(name)
        spec = BY_FIELD.get(field)
        if spec is None or (label or common) not in ("", spec.label) or (label and common):
            raise _UnknownError(name)
        key = variant(spec.name, label, value) if label else spec.name
        keys.append(variant_opening(key, common) if common else key)
        lows.append(spec.minimum)
        highs.append(spec.maximum)
    if len({*keys}) < len(keys):
        raise _UnknownError(text)
    shared = None if common or len(text) > _LONGEST else names_of(tuple(keys))
    return KnownNames(tuple(keys), shared, bool(common), np.array(lows), np.array(highs))


_known_names = lru_cache(maxsize=_TEXTS)(_read_names)


def known_reasons(names: str, reasons: str) -> Mapping[str, Missing] | None:
    """The reasons by key; None where a name or a reason is not known. Not to be changed by the caller."""
    try:
        return (_known_reasons if len(names) + len(reasons) <= _LONGEST else _read_reasons)(names, reasons)
    except _UnknownError:
        return None


def _read_reasons(names: str, reasons: str) -> Mapping[str, Missing]:
    known, codes = known_names(names, ""), reasons.split(",")
    if known is None or len(known.names) != len(codes) or not _REASONS.keys() >= {*codes}:
        raise _UnknownError(names)
    return dict(zip(known.names, map(_REASONS.__getitem__, codes), strict=True))


_known_reasons = lru_cache(maxsize=_TEXTS)(_read_reasons)


def reason_of(code: str) -> Missing | None:
    """The reason that `code` stands for; None where there is no such."""
    return _REASONS.get(code)

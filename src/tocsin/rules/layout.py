"""How a reading maps to columns, worked out once for each set of names that readings come with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

import numpy as np

from tocsin.domain.metrics import METRICS, spec_of, split_variant
from tocsin.domain.missing import Missing
from tocsin.domain.reading import Reading
from tocsin.rules.table import Ints

FAMILIES: tuple[str, ...] = tuple(dict.fromkeys(spec.family for spec in METRICS.values() if spec.entity == "gpu"))
"""Families of GPU metrics, in the order of their bits in `Layout.families`."""

_MOST_LAYOUTS = 4096
"""Layouts kept at most; process ids come and go, and each new one makes a new layout."""

Getter = Callable[[Mapping[str, float]], Sequence[float]]


def _getter(names: Sequence[str]) -> Getter:
    if not names:
        return lambda values: ()
    if len(names) == 1:
        name = names[0]
        return lambda values: (values[name],)
    return itemgetter(*names)


@dataclass(frozen=True)
class PlainPart:
    """Columns of the GPU itself: `present` (k, 1) are read by `get`, `absent` (m, 1) become unknown."""

    present: Ints
    absent: Ints
    get: Getter


@dataclass(frozen=True)
class VariantPart:
    """Columns of one label's variants: entry i belongs to variant `values[i]` and column `columns[i]`."""

    label: str
    columns: tuple[int, ...]
    values: tuple[str, ...]
    get: Getter


@dataclass(frozen=True)
class Layout:
    """All parts; bit i of `families` says that a metric of `FAMILIES[i]` is present or merely not due."""

    plain: PlainPart
    variants: tuple[VariantPart, ...]
    families: int


class Layouts:
    """The layouts met so far.

    `columns` names the GPU columns that rules use, `variant_columns` for each label the names of its metrics.
    """

    def __init__(self, columns: Sequence[str], variant_columns: Mapping[str, Sequence[str]]) -> None:
        self._columns = {name: i for i, name in enumerate(columns)}
        self._static = {name for name in columns if (spec := spec_of(name)) is not None and spec.static}
        self._variants = {label: {name: i for i, name in enumerate(names)} for label, names in variant_columns.items()}
        self._plain: dict[tuple[tuple[str, ...], tuple[str, ...]], PlainPart] = {}
        self._known: dict[tuple[tuple[str, ...], tuple[str, ...]], Layout] = {}

    def of(self, reading: Reading) -> Layout:
        """The layout of `reading`."""
        names = tuple(reading.values)
        missing = reading.missing
        not_due: tuple[str, ...] = ()
        if missing and Missing.NOT_DUE in missing.values():
            not_due = tuple(name for name, reason in missing.items() if reason is Missing.NOT_DUE)
        layout = self._known.get((names, not_due))
        if layout is None:
            if len(self._known) >= _MOST_LAYOUTS:
                self._known.clear()
            layout = self._known[names, not_due] = self._make(names, not_due)
        return layout

    def _make(self, names: tuple[str, ...], not_due: tuple[str, ...]) -> Layout:
        plain = tuple(sorted(name for name in names if name in self._columns))
        carried = tuple(sorted(name for name in not_due if name in self._columns))
        return Layout(
            plain=self._plain_part(plain, carried),
            variants=tuple(part for label in self._variants if (part := self._variant_part(label, names)).columns),
            families=_families(names) | _families(not_due),
        )

    def _plain_part(self, names: tuple[str, ...], carried: tuple[str, ...]) -> PlainPart:
        part = self._plain.get((names, carried))
        if part is None:
            kept = {*names, *carried, *self._static}
            absent = [i for name, i in self._columns.items() if name not in kept]
            present = [self._columns[name] for name in names]
            part = PlainPart(_column(present), _column(absent), _getter(names))
            self._plain[names, carried] = part
        return part

    def _variant_part(self, label: str, names: tuple[str, ...]) -> VariantPart:
        wanted = self._variants[label]
        found = [
            (key, wanted[name], value)
            for key in names
            if key.endswith("}")
            for name, key_label, value in [split_variant(key)]
            if key_label == label and name in wanted
        ]
        return VariantPart(
            label,
            tuple(column for _, column, _ in found),
            tuple(value for _, _, value in found),
            _getter([key for key, _, _ in found]),
        )


def _column(indices: Sequence[int]) -> Ints:
    return np.array(indices, dtype=np.int64).reshape(-1, 1)


def _families(names: Sequence[str]) -> int:
    bits = 0
    for name in names:
        spec = spec_of(name)
        if spec is not None and spec.family in FAMILIES:
            bits |= 1 << FAMILIES.index(spec.family)
    return bits

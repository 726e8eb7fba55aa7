"""How a reading maps to columns, worked out once for each set of names that readings come with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

import numpy as np

from tocsin.domain.metrics import METRICS, spec_of, split_variant
from tocsin.domain.reading import Missing, Reading
from tocsin.rules.table import Ints

FAMILIES: tuple[str, ...] = tuple(dict.fromkeys(spec.family for spec in METRICS.values() if spec.entity == "gpu"))
"""Families of GPU metrics, in the order of their bits in `Layout.families`."""

_MOST_KEYS = 200_000
"""Keys whose meaning is kept at most; process ids come and go, and each makes new ones."""

_MOST_PARTS = 1_000
"""Parts that layouts may have in common; a rack has some."""

Getter = Callable[[Mapping[str, float]], Sequence[float]]


def _getter(names: Sequence[str]) -> Getter:
    if not names:
        return lambda _: ()
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


@dataclass(frozen=True)
class _Key:
    """What one metric key is: its family's bit and, where rules use it, its place among the variants' columns."""

    family: int
    plain: bool
    label: str = ""
    column: int = 0
    value: str = ""


class Layouts:
    """The layouts met so far.

    `columns` names the GPU columns that rules use, `variant_columns` for each label the names of its metrics. The last
    layout of each GPU is kept, since a GPU's names seldom change, and so is every key's meaning.
    """

    def __init__(self, columns: Sequence[str], variant_columns: Mapping[str, Sequence[str]]) -> None:
        self._columns = {name: i for i, name in enumerate(columns)}
        self._static = {name for name in columns if (spec := spec_of(name)) is not None and spec.static}
        self._variants = {label: {name: i for i, name in enumerate(names)} for label, names in variant_columns.items()}
        self._plain: dict[tuple[tuple[str, ...], tuple[str, ...]], PlainPart] = {}
        self._parts: dict[tuple[str, ...], VariantPart] = {}
        self._keys: dict[str, _Key] = {}
        self._last: dict[str, tuple[tuple[str, ...], tuple[str, ...], Layout]] = {}

    def of(self, reading: Reading) -> Layout:
        names = tuple(reading.values)
        missing = reading.missing
        not_due: tuple[str, ...] = ()
        if missing and Missing.NOT_DUE in missing.values():
            not_due = tuple(name for name, reason in missing.items() if reason is Missing.NOT_DUE)
        last = self._last.get(reading.gpu.uuid)
        if last is not None and last[0] == names and last[1] == not_due:
            return last[2]
        layout = self._make(names, not_due)
        self._last[reading.gpu.uuid] = (names, not_due, layout)
        return layout

    def forget(self, uuids: Iterable[str]) -> None:
        for uuid in uuids:
            self._last.pop(uuid, None)

    def _make(self, names: tuple[str, ...], not_due: tuple[str, ...]) -> Layout:
        families = 0
        plain: list[str] = []
        variants: dict[str, list[tuple[str, _Key]]] = {}
        for name in names:
            key = self._keys.get(name) or self._learn(name)
            families |= key.family
            if key.plain:
                plain.append(name)
            elif key.label:
                variants.setdefault(key.label, []).append((name, key))
        carried = [name for name in not_due if name in self._columns]
        for name in not_due:
            families |= (self._keys.get(name) or self._learn(name)).family
        parts = tuple(self._variant_part(label, variants[label]) for label in sorted(variants))
        return Layout(self._plain_part(tuple(sorted(plain)), tuple(sorted(carried))), parts, families)

    def _learn(self, name: str) -> _Key:
        if len(self._keys) >= _MOST_KEYS:
            self._keys.clear()
        spec = spec_of(name)
        family = 1 << FAMILIES.index(spec.family) if spec is not None and spec.family in FAMILIES else 0
        base, label, value = split_variant(name)
        column = self._variants.get(label, {}).get(base)
        plain = name in self._columns
        key = self._keys[name] = (
            _Key(family, plain) if plain or column is None else _Key(family, False, label, column, value)
        )
        return key

    def _plain_part(self, names: tuple[str, ...], carried: tuple[str, ...]) -> PlainPart:
        part = self._plain.get((names, carried))
        if part is None:
            kept = {*names, *carried, *self._static}
            absent = [i for name, i in self._columns.items() if name not in kept]
            present = [self._columns[name] for name in names]
            part = PlainPart(_column(present), _column(absent), _getter(names))
            self._plain[names, carried] = part
        return part

    def _variant_part(self, label: str, found: Sequence[tuple[str, _Key]]) -> VariantPart:
        """The links of one GPU are called as those of all others; of processes each GPU has its own."""
        names = tuple(name for name, _ in found)
        part = self._parts.get(names)
        if part is None:
            if len(self._parts) >= _MOST_PARTS:
                self._parts.clear()
            columns, values = tuple(key.column for _, key in found), tuple(key.value for _, key in found)
            part = self._parts[names] = VariantPart(label, columns, values, _getter(names))
        return part


def _column(indices: Sequence[int]) -> Ints:
    return np.array(indices, dtype=np.int64).reshape(-1, 1)

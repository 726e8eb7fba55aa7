"""How a reading maps to columns, worked out once for each set of names that readings come with."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tocsin.domain.metrics import METRICS, spec_of, split_variant
from tocsin.domain.number_row import Names, parts_of
from tocsin.domain.reading import Missing, Reading
from tocsin.rules.table import Floats, Ints

FAMILIES: tuple[str, ...] = tuple(dict.fromkeys(spec.family for spec in METRICS.values() if spec.entity == "gpu"))
"""Families of GPU metrics, in the order of their bits in `Layout.families`."""

_MOST_KEYS = 200_000
"""Keys whose meaning is kept at most; process ids come and go, and each makes new ones."""

_MOST_PARTS = 1_000
"""Parts that layouts may have in common; a rack has some."""

_Places = tuple[tuple[str, int], ...]
"""Names with the place of each among its reading's."""


@dataclass(frozen=True)
class PlainPart:
    """Columns of the GPU itself: numbers at `places` (k,) go to `present` (k, 1), `absent` (m, 1) become unknown."""

    present: Ints
    places: Ints
    absent: Ints


@dataclass(frozen=True)
class VariantPart:
    """Variants of one label: the number at `places[i]` belongs to variant `values[i]` and column `columns[i]`."""

    label: str
    columns: Ints
    values: tuple[str, ...]
    places: Ints


@dataclass(frozen=True)
class Layout:
    """All parts; bit i of `families` says that a metric of `FAMILIES[i]` is present or merely not due."""

    plain: PlainPart
    variants: tuple[VariantPart, ...]
    families: int


@dataclass(frozen=True)
class Parts:
    """Readings in parts with a layout each: part i is of row `rows[i]`, its numbers begin at `starts[i]` of `flat`, and
    `first[i]` says that it has what is the GPU's own, not further variants of it."""

    rows: Ints
    layouts: Sequence[Layout]
    first: Sequence[bool]
    starts: Ints
    flat: Floats


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
        self._plain: dict[tuple[_Places, tuple[str, ...]], PlainPart] = {}
        self._parts: dict[_Places, VariantPart] = {}
        self._keys: dict[str, _Key] = {}
        self._shared: dict[tuple[Names, tuple[str, ...]], Layout] = {}
        self._last: dict[str, tuple[tuple[str, ...], tuple[str, ...], Layout]] = {}

    def parts(self, fresh: Sequence[tuple[int, Reading]]) -> Parts:
        """Readings with the row of each."""
        rows, layouts, first = list[int](), list[Layout](), list[bool]()
        numbers: list[array[float]] = []
        for row, reading in fresh:
            not_due = _not_due(reading)
            for place, (keys, found) in enumerate(parts_of(reading.values)):
                rows.append(row)
                layouts.append(self._of(reading.gpu.uuid, keys, () if place else not_due))
                first.append(not place)
                numbers.append(found)
        lengths = np.array([len(one) for one in numbers], dtype=np.int64)
        flat = np.frombuffer(b"".join(numbers), np.float64)
        return Parts(np.array(rows, dtype=np.int64), layouts, first, np.cumsum(lengths) - lengths, flat)

    def _of(self, gpu: str, keys: Names | tuple[str, ...], not_due: tuple[str, ...]) -> Layout:
        """Of some of a reading's values: those that its GPU has in common with others, and those of its own."""
        if isinstance(keys, Names):
            shared = self._shared.get((keys, not_due))
            if shared is None:
                if len(self._shared) >= _MOST_PARTS:
                    self._shared.clear()
                shared = self._shared[keys, not_due] = self._make(keys.keys, not_due)
            return shared
        last = self._last.get(gpu)
        if last is not None and last[0] == keys and last[1] == not_due:
            return last[2]
        layout = self._make(keys, not_due)
        self._last[gpu] = (keys, not_due, layout)
        return layout

    def forget(self, uuids: Iterable[str]) -> None:
        for uuid in uuids:
            self._last.pop(uuid, None)

    def _make(self, names: tuple[str, ...], not_due: tuple[str, ...]) -> Layout:
        families = 0
        plain: list[tuple[str, int]] = []
        variants: dict[str, list[tuple[str, int]]] = {}
        for place, name in enumerate(names):
            key = self._keys.get(name) or self._learn(name)
            families |= key.family
            if key.plain:
                plain.append((name, place))
            elif key.label:
                variants.setdefault(key.label, []).append((name, place))
        carried = [name for name in not_due if name in self._columns]
        for name in not_due:
            families |= (self._keys.get(name) or self._learn(name)).family
        parts = tuple(self._variant_part(label, tuple(variants[label])) for label in sorted(variants))
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

    def _plain_part(self, found: _Places, carried: tuple[str, ...]) -> PlainPart:
        part = self._plain.get((found, carried))
        if part is None:
            if len(self._plain) >= _MOST_PARTS:
                self._plain.clear()
            names = [name for name, _ in found]
            kept = {*names, *carried, *self._static}
            absent = [i for name, i in self._columns.items() if name not in kept]
            present, places = [self._columns[name] for name in names], [place for _, place in found]
            part = PlainPart(_column(present), np.array(places, dtype=np.int64), _column(absent))
            self._plain[found, carried] = part
        return part

    def _variant_part(self, label: str, found: _Places) -> VariantPart:
        """The links of one GPU are called as those of all others; of processes each GPU has its own."""
        part = self._parts.get(found)
        if part is None:
            if len(self._parts) >= _MOST_PARTS:
                self._parts.clear()
            keys = [self._keys.get(name) or self._learn(name) for name, _ in found]
            columns = np.array([key.column for key in keys], dtype=np.int64)
            places = np.array([place for _, place in found], dtype=np.int64)
            part = self._parts[found] = VariantPart(label, columns, tuple(key.value for key in keys), places)
        return part


def _not_due(reading: Reading) -> tuple[str, ...]:
    """What has a slower cadence than the reading: its last value holds."""
    missing = reading.missing
    if not missing or Missing.NOT_DUE not in missing.values():
        return ()
    return tuple(name for name, reason in missing.items() if reason is Missing.NOT_DUE)


def _column(indices: Sequence[int]) -> Ints:
    return np.array(indices, dtype=np.int64).reshape(-1, 1)

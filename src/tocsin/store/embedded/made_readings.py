"""Readings from blocks: values of a GPU as numbers in a row, under names that rows alike have in common."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from functools import lru_cache

import numpy as np

from tocsin.domain.metrics import split_variant
from tocsin.domain.number_row import Names, NumberRow, names_of
from tocsin.domain.reading import Gpu, Missing, Reading
from tocsin.store.embedded.blocks import Block, Flags, Floats
from tocsin.store.embedded.notes import Index, owners_of, reasons_of

_AT_ONCE = 1_000
"""Rows whose values are turned at once: they lie column by column."""
_OF_FEW = frozenset({"pid", "instance"})
"""Labels whose values few GPUs have in common: their variants lie beside a row's names."""


def readings_of(block: Block, known: Mapping[int, Gpu]) -> Iterator[Reading]:
    """A reading for each row of `block`, in its order; `known` has the GPU of each number."""
    rows, missing = _Rows(block), _MissingOf()
    notes = zip(block.reasons.of.tolist(), block.owners.of.tolist(), strict=True)
    heads = zip(block.gpu.tolist(), block.at_ms.tolist(), strict=True)
    for (gpu, at_ms), (reasons, owners), values in zip(heads, notes, rows.values(), strict=True):
        lacks = missing(block.reasons.texts[reasons], values) if reasons >= 0 else {}
        owned = owners_of(block.owners.texts[owners]) if owners >= 0 else ()
        yield Reading(known[gpu], at_ms, values, lacks, owned)


class _Rows:
    """The values of a block, row by row. Variants of a row lie together, in the order in which they were."""

    def __init__(self, block: Block) -> None:
        self._block, extra = block, block.extra
        order = np.argsort(extra.row, kind="stable")
        self._number, self._value = extra.name[order], extra.value[order]
        self._starts = np.searchsorted(extra.row[order], np.arange(len(block) + 1)).tolist()
        self._shared = np.array([_is_shared(name) for name in extra.names], dtype=np.bool_)
        self._names: dict[tuple[bytes, bytes], Names] = {}

    def values(self) -> Iterator[NumberRow]:
        """Of each row, in their order."""
        for first in range(0, len(self._block), _AT_ONCE):
            turned = np.ascontiguousarray(self._block.values[:, first : first + _AT_ONCE].T)
            there = ~np.isnan(turned)
            marks = np.packbits(there, axis=1)
            for place in range(len(turned)):
                start, end = self._starts[first + place : first + place + 2]
                values = turned[place][there[place]]
                yield self._row(values, there[place], marks[place].tobytes(), slice(start, end))

    def _row(self, values: Floats, there: Flags, marks: bytes, variants: slice) -> NumberRow:
        numbers = array("d", values.tobytes())
        number, value, names = self._number[variants], self._value[variants], self._block.extra.names
        if not number.size:
            return NumberRow(self._named(there, marks, number), numbers)
        shared = self._shared[number]
        numbers.frombytes(value[shared].tobytes())
        few = zip(number[~shared].tolist(), value[~shared].tolist(), strict=True)
        return NumberRow(self._named(there, marks, number[shared]), numbers, {names[one]: each for one, each in few})

    def _named(self, there: Flags, marks: bytes, variants: Index) -> Names:
        """The names of a row that has the plain columns `there`, which `marks` stand for, and these variants."""
        key = marks, variants.tobytes()
        if (found := self._names.get(key)) is None:
            plain = (name for name, has in zip(self._block.names, there.tolist(), strict=True) if has)
            beyond = map(self._block.extra.names.__getitem__, variants.tolist())
            found = self._names[key] = names_of((*plain, *beyond))
        return found


class _MissingOf:
    """Why values are missing: the same object for rows of the same names, not to be changed."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], dict[str, Missing]] = {}

    def __call__(self, text: str, values: NumberRow) -> dict[str, Missing]:
        """What `text` says of names that have no value: a value outranks it."""
        if values.rest:
            return _without(text, values)
        key = text, id(values.names)
        if (found := self._known.get(key)) is None:
            found = self._known[key] = _without(text, values)
        return found


def _without(text: str, values: NumberRow) -> dict[str, Missing]:
    return {name: why for name, why in reasons_of(text) if name not in values}


@lru_cache(maxsize=16_384)
def _is_shared(name: str) -> bool:
    return split_variant(name)[1] not in _OF_FEW

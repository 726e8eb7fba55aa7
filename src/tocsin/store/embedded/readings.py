"""Readings to columns and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from tocsin.domain.metrics import METRICS
from tocsin.domain.reading import Gpu, Missing, Owner, Reading
from tocsin.store.embedded.chunks import (
    NO_EXTRA,
    Block,
    Extra,
    Floats,
    Index,
    Notes,
    owners_of,
    owners_text,
    reasons_of,
    reasons_text,
)

_MAX_LAYOUTS = 100_000
"""Sets of names that are remembered; processes come and go, and each makes a new one."""

Places = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where the values of one sequence of names go: those at `plain` to the columns `columns`, the rest to variants."""

    plain: Places
    columns: Places
    special: Places
    variants: Places


class Gatherer:
    """Turns readings into a `Block`; remembers how each set of names that came is laid out. Not for several threads."""

    def __init__(self) -> None:
        self._layouts: dict[tuple[str, ...], _Layout] = {}
        self._columns = {name: number for number, name in enumerate(METRICS)}
        self._variants: dict[str, int] = {}
        self._texts: dict[tuple[tuple[str, Missing], ...], str] = {}

    def gather(self, readings: Sequence[Reading], gpu: Index) -> Block:
        """The block of `readings`, whose GPUs have the numbers `gpu`, int32[n].

        Raises ValueError, TypeError or OverflowError for a value that is no number and an instant beyond int64.
        """
        self._forget()
        height = len(readings)
        at_ms = np.fromiter((reading.at_ms for reading in readings), np.int64, height)
        layouts = [self._layout(reading.values) for reading in readings]
        flat = np.fromiter(chain.from_iterable(reading.values.values() for reading in readings), np.float64)
        names, values = self._plain(flat, layouts)
        extra = self._extra(flat, layouts)
        return Block(gpu, at_ms, names, values, self._reasons(readings), _owners(readings), extra)

    def _forget(self) -> None:
        if max(len(self._layouts), len(self._variants), len(self._texts)) > _MAX_LAYOUTS:
            self._layouts, self._variants, self._texts = {}, {}, {}

    def _layout(self, values: Mapping[str, float]) -> _Layout:
        key = tuple(values)
        return self._layouts.get(key) or self._new_layout(key)

    def _new_layout(self, names: tuple[str, ...]) -> _Layout:
        known, variants = self._columns, self._variants
        plain = [place for place, name in enumerate(names) if name in known]
        special = [place for place, name in enumerate(names) if name not in known]
        layout = _Layout(
            np.array(plain, dtype=np.intp),
            np.array([known[names[place]] for place in plain], dtype=np.intp),
            np.array(special, dtype=np.intp),
            np.array([variants.setdefault(names[place], len(variants)) for place in special], dtype=np.intp),
        )
        self._layouts[names] = layout
        return layout

    def _plain(self, flat: Floats, layouts: Sequence[_Layout]) -> tuple[tuple[str, ...], Floats]:
        table = tuple(self._columns)
        if layouts and all(layout is layouts[0] for layout in layouts) and not len(layouts[0].special):
            # What nearly every write is: one set of names, so that the values lie as a matrix already.
            wide = flat.reshape(len(layouts), -1)
            return tuple(table[column] for column in layouts[0].columns), np.ascontiguousarray(wide.T)
        columns = np.concatenate([layout.columns for layout in layouts]) if layouts else np.empty(0, np.intp)
        rows = np.repeat(np.arange(len(layouts)), [len(layout.columns) for layout in layouts])
        used, local = _dense(columns, len(table))
        values = np.full((len(used), len(layouts)), np.nan)
        values[local, rows] = flat[_offsets(layouts, rows) + _joined([layout.plain for layout in layouts])]
        return tuple(table[column] for column in used), values

    def _extra(self, flat: Floats, layouts: Sequence[_Layout]) -> Extra:
        if not any(len(layout.special) for layout in layouts):
            return NO_EXTRA
        names = tuple(self._variants)
        rows = np.repeat(np.arange(len(layouts), dtype=np.int32), [len(layout.special) for layout in layouts])
        value = flat[_offsets(layouts, rows) + _joined([layout.special for layout in layouts])]
        used, local = _dense(_joined([layout.variants for layout in layouts]), len(names))
        there = ~np.isnan(value)
        return Extra(rows[there], local[there].astype(np.int32), value[there], tuple(names[number] for number in used))

    def _reasons(self, readings: Sequence[Reading]) -> Notes:
        texts: dict[str, int] = {}
        of = np.full(len(readings), -1, np.int32)
        for row, reading in enumerate(readings):
            if reading.missing:
                key = tuple(reading.missing.items())
                text = self._texts.get(key)
                if text is None:
                    text = self._texts[key] = reasons_text(key)
                of[row] = texts.setdefault(text, len(texts))
        return Notes(of, tuple(texts))


def _joined(parts: Sequence[Places]) -> Places:
    return np.concatenate(parts) if parts else np.empty(0, np.intp)


def _offsets(layouts: Sequence[_Layout], rows: npt.NDArray[np.integer]) -> Places:
    """Where in the flat values the reading of each of `rows` starts."""
    widths = np.array([len(layout.plain) + len(layout.special) for layout in layouts], dtype=np.intp)
    starts: Places = (np.cumsum(widths) - widths)[rows]
    return starts


def _dense(numbers: Places, bound: int) -> tuple[Places, Places]:
    """The different ones of `numbers`, which are below `bound`, in order; and the place of each among them."""
    used = np.zeros(bound, dtype=np.bool_)
    used[numbers] = True
    place = np.cumsum(used) - 1
    return np.flatnonzero(used), place[numbers]


def _owners(readings: Sequence[Reading]) -> Notes:
    texts: dict[tuple[Owner, ...], int] = {}
    of = np.full(len(readings), -1, np.int32)
    for row, reading in enumerate(readings):
        if reading.owners:
            of[row] = texts.setdefault(reading.owners, len(texts))
    return Notes(of, tuple(owners_text(owners) for owners in texts))


# ---------------------------------------------------------------------- back to readings


def readings_of(block: Block, known: Mapping[int, Gpu]) -> Iterator[Reading]:
    """A reading for each row of `block`, in its order; `known` has the GPU of each number."""
    names = block.names
    partial = set(np.flatnonzero(np.isnan(block.values).any(axis=0)).tolist())
    special = _variants_by_row(block.extra)
    table: list[list[float]] = list(block.values.T.tolist())
    rows = zip(
        block.gpu.tolist(),
        block.at_ms.tolist(),
        table,
        block.reasons.of.tolist(),
        block.owners.of.tolist(),
        strict=True,
    )
    for number, (gpu, at_ms, values, reasons, owners) in enumerate(rows):
        pairs = zip(names, values, strict=True)
        found = {name: value for name, value in pairs if value == value} if number in partial else dict(pairs)
        if number in special:
            found.update(special[number])
        missing = {}
        if reasons >= 0:
            missing = {name: why for name, why in reasons_of(block.reasons.texts[reasons]) if name not in found}
        owned = owners_of(block.owners.texts[owners]) if owners >= 0 else ()
        yield Reading(known[gpu], at_ms, found, missing, owned)


def _variants_by_row(extra: Extra) -> dict[int, dict[str, float]]:
    found: dict[int, dict[str, float]] = {}
    for row, name, value in zip(extra.row.tolist(), extra.name.tolist(), extra.value.tolist(), strict=True):
        found.setdefault(row, {})[extra.names[name]] = value
    return found

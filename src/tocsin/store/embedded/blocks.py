"""Readings as columns: what the hot window, the segments and the roll-up all work on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from tocsin.domain.clock import MINUTE
from tocsin.store.embedded.notes import Index, Notes, combined_reasons, notes_of

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Extra:
    """Values of variants: `value[i]` belongs to row `row[i]` of the block and to variant `names[name[i]]`.

    There are too many variants, and too few GPUs share one, for a column each.
    """

    row: Index
    name: Index
    value: Floats
    names: tuple[str, ...]


NO_EXTRA = Extra(np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0), ())


@dataclass(frozen=True, slots=True)
class Block:
    """Readings in n rows.

    `gpu` is int32[n], the GPU's number in the store; `at_ms` is int64[n]; `values` is float64[m, n], a row of it for
    each of `names`, NaN where there is no value. `reasons` has what is missing, as JSON from name to code, also for
    names that have a value: the value outranks it. `owners` has the owners as JSON.
    """

    gpu: Index
    at_ms: Ints
    names: tuple[str, ...]
    values: Floats
    reasons: Notes
    owners: Notes
    extra: Extra = NO_EXTRA

    def __len__(self) -> int:
        return len(self.gpu)

    def column(self, name: str) -> Floats:
        """float64[n]; NaN throughout where the block has no such column."""
        if name in self.names:
            found: Floats = self.values[self.names.index(name)]
            return found
        return np.full(len(self), np.nan)

    def take(self, rows: npt.NDArray[np.intp]) -> Block:
        """The rows numbered `rows`, in that order, each at most once."""
        return Block(
            self.gpu[rows],
            self.at_ms[rows],
            self.names,
            np.take(self.values, rows, axis=1, mode="clip"),
            self.reasons.take(rows),
            self.owners.take(rows),
            _taken(self.extra, rows, len(self)),
        )

    def where(self, wanted: Flags) -> Block:
        """The rows for which `wanted`, bool[n], holds."""
        return self if wanted.all() else self.take(np.flatnonzero(wanted))

    def between(self, start_ms: int, end_ms: int, gpus: Flags | None = None) -> Block:
        """The rows in [`start_ms`, `end_ms`), and of the GPUs for whose number `gpus` holds."""
        wanted = (self.at_ms >= start_ms) & (self.at_ms < end_ms)
        return self.where(wanted if gpus is None else wanted & held(gpus, self.gpu))


def held(gpus: Flags, gpu: Index) -> Flags:
    """Whether `gpus`, bool by number, holds for each of `gpu`; a number beyond them it does not hold for."""
    if not len(gpus):
        return np.zeros(len(gpu), np.bool_)
    found: Flags = np.take(gpus, gpu, mode="clip") & (gpu < len(gpus))
    return found


def empty(names: Sequence[str] = ()) -> Block:
    """A block without rows."""
    nothing = Notes(np.empty(0, np.int32), ())
    return Block(
        np.empty(0, np.int32), np.empty(0, np.int64), tuple(names), np.empty((len(names), 0)), nothing, nothing
    )


def _taken(extra: Extra, rows: npt.NDArray[np.intp], height: int) -> Extra:
    if not len(extra.row):
        return extra
    place = np.full(height, -1, np.int32)
    place[rows] = np.arange(len(rows), dtype=np.int32)
    moved = place[extra.row]
    kept = moved >= 0
    return Extra(moved[kept], extra.name[kept], extra.value[kept], extra.names)


# ---------------------------------------------------------------------- putting together


def join(blocks: Sequence[Block]) -> Block:
    """All rows of `blocks`, in their order."""
    if len(blocks) == 1:
        return blocks[0]
    sets = dict.fromkeys(block.names for block in blocks)
    names = tuple(dict.fromkeys(name for some in sets for name in some))
    height = sum(len(block) for block in blocks)
    values = np.full((len(names), height), np.nan)
    at = 0
    for block in blocks:
        values[_places(names, block.names), at : at + len(block)] = block.values
        at += len(block)
    return Block(
        np.concatenate([block.gpu for block in blocks]) if blocks else np.empty(0, np.int32),
        np.concatenate([block.at_ms for block in blocks]) if blocks else np.empty(0, np.int64),
        names,
        values,
        notes_of([block.reasons for block in blocks]),
        notes_of([block.owners for block in blocks]),
        joined_extra([block.extra for block in blocks], map(len, blocks)),
    )


@lru_cache(maxsize=256)
def _places(names: tuple[str, ...], some: tuple[str, ...]) -> npt.NDArray[np.intp]:
    at = {name: number for number, name in enumerate(names)}
    return np.array([at[name] for name in some], dtype=np.intp)


def joined_extra(extras: Sequence[Extra], heights: Iterable[int]) -> Extra:
    """The variants of blocks of so many rows each, one after the other."""
    if not any(len(extra.row) for extra in extras):
        return NO_EXTRA
    numbers: dict[str, int] = {}
    known: dict[tuple[str, ...], Index] = {}
    rows, names, values = [], [], []
    at = 0
    for extra, height in zip(extras, heights, strict=True):
        if len(extra.row):
            number = known.get(extra.names)
            if number is None:
                number = np.array([numbers.setdefault(name, len(numbers)) for name in extra.names], np.int32)
                known[extra.names] = number
            rows.append(extra.row + np.int32(at))
            names.append(number[extra.name])
            values.append(extra.value)
        at += height
    return Extra(np.concatenate(rows), np.concatenate(names), np.concatenate(values), tuple(numbers))


def by_gpu(block: Block) -> npt.NDArray[np.intp]:
    """Row numbers by GPU, then instant; rows alike in both keep their order."""
    return _order(block.gpu, block.at_ms)


def _order(gpu: npt.NDArray[np.integer], at_ms: Ints) -> npt.NDArray[np.intp]:
    if not len(gpu):
        return np.empty(0, np.intp)
    low, high = int(at_ms.min()), int(at_ms.max())
    span = high - low + 1
    if span.bit_length() + int(gpu.max()).bit_length() > 62:
        return np.lexsort((at_ms, gpu))
    key = gpu.astype(np.int64) * span + (at_ms - low)
    # A stable sort of int64 finds the runs that readings come in.
    return np.argsort(key, kind="stable")


def merge(blocks: Iterable[Block]) -> Block:
    """One row per (GPU, instant), sorted by them; of two values of one field the one in the later block or row wins."""
    joined = join(list(blocks))
    order = by_gpu(joined)
    gpu, at_ms = joined.gpu[order], joined.at_ms[order]
    fresh = np.ones(len(order), dtype=np.bool_)
    fresh[1:] = (gpu[1:] != gpu[:-1]) | (at_ms[1:] != at_ms[:-1])
    if bool((order[1:] > order[:-1]).all()):
        ordered = joined
    else:
        ordered = joined.take(order)
    return ordered if fresh.all() else _folded(ordered, np.flatnonzero(fresh))


def _folded(block: Block, first: npt.NDArray[np.intp]) -> Block:
    """`block` with the rows from each of `first` up to the next made one."""
    number = np.zeros(len(block), np.int32)
    number[first[1:]] = 1
    group = np.cumsum(number, dtype=np.int32)
    values = np.empty((len(block.names), len(first)))
    for place, column in enumerate(block.values):
        values[place] = _last(column, ~np.isnan(column), first)
    return Block(
        block.gpu[first],
        block.at_ms[first],
        block.names,
        values,
        combined_reasons(block.reasons, group, len(first)),
        block.owners.last(first),
        last_of_each(Extra(group[block.extra.row], block.extra.name, block.extra.value, block.extra.names)),
    )


def _last(column: Floats, there: Flags, first: npt.NDArray[np.intp]) -> Floats:
    """The last value that is there of each run of rows; NaN where a run has none."""
    place = np.maximum.reduceat(np.where(there, np.arange(len(column)), -1), first)
    return np.where(place >= 0, column[place], np.nan)


def last_of_each(extra: Extra) -> Extra:
    """`extra` with the last of the values that one row has of one variant, by row and variant."""
    if not len(extra.row):
        return extra
    key = extra.row.astype(np.int64) * len(extra.names) + extra.name
    order = np.argsort(key, kind="stable")
    key = key[order]
    last = order[np.append(key[1:] != key[:-1], True)]
    return Extra(extra.row[last], extra.name[last], extra.value[last], extra.names)


def matrix(block: Block, metrics: Sequence[str], order: npt.NDArray[np.intp] | None = None) -> Floats:
    """float64[n, m] of plain metrics and variants in the order of `metrics`; with `order` the rows in that order."""
    values = np.full((len(block), len(metrics)), np.nan)
    plain = {name: number for number, name in enumerate(block.names)}
    special = {name: number for number, name in enumerate(block.extra.names)}
    column_of = np.full(len(special), -1, np.intp)
    again = []
    for place, name in enumerate(metrics):
        if name in plain:
            column = block.values[plain[name]]
            values[:, place] = column if order is None else np.take(column, order, mode="clip")
        elif name in special and column_of[special[name]] >= 0:
            again.append((place, column_of[special[name]]))
        elif name in special:
            column_of[special[name]] = place
    _scatter(block.extra, column_of, values, order)
    for place, before in again:
        values[:, place] = values[:, before]
    return values


def _scatter(extra: Extra, column_of: npt.NDArray[np.intp], values: Floats, order: npt.NDArray[np.intp] | None) -> None:
    """Put what `extra` has of each variant into its column of `values`; those whose column is -1 are left out."""
    columns = column_of[extra.name]
    wanted = columns >= 0
    rows = extra.row[wanted]
    if order is not None:
        place = np.empty(len(values), np.int32)
        place[order] = np.arange(len(values), dtype=np.int32)
        rows = place[rows]
    values[rows, columns[wanted]] = extra.value[wanted]


def windows(at_ms: Ints, width_ms: int = MINUTE) -> Ints:
    """The start of the window of `width_ms` that each instant lies in; windows start at the epoch."""
    found: Ints = at_ms // width_ms * width_ms
    return found

"""Closed steps of the grid. Of 47 channels some 20 have a value for every GPU in every step; errors, losses and waits
are nought nearly everywhere. So a plane is held by what is in it: a month of 10,000 GPUs is 0.3 GB in place of 0.7.
SciPy has matrices for this, but whatever scores would have to load it, which takes more than small fleets' planes do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import groupby, islice
from typing import Any

import numpy as np
import numpy.typing as npt

from tocsin.domain.errors import InputError
from tocsin.forecaster.features.arrays import Bools, Floats, Rows, Singles

Bytes = npt.NDArray[np.uint8]
Counts = npt.NDArray[np.uint16]
State = Mapping[str, npt.NDArray[Any]]

_PLACE_BYTES = 6
"""What the place of one value that stands alone takes."""
_AT_ONCE = 2**22
"""Values that are added up at once: 16 MB of them."""


@dataclass(slots=True)
class Sparse:
    """A matrix [c, g]: the rows `full` as they are in `whole` [k, g]; of the others each `value` that is not nought, at
    its `row` and `column`. A wider matrix has noughts beyond `g`."""

    full: npt.NDArray[np.uint16]
    whole: npt.NDArray[Any]
    row: npt.NDArray[np.uint16]
    column: npt.NDArray[np.int32]
    value: npt.NDArray[Any]

    @classmethod
    def of(cls, matrix: npt.NDArray[Any]) -> Sparse:
        share = matrix.itemsize / (matrix.itemsize + _PLACE_BYTES)
        many = np.count_nonzero(matrix, axis=1) > share * matrix.shape[1]
        few = np.flatnonzero(~many)
        row, column = np.nonzero(matrix[few])
        return cls(
            np.flatnonzero(many).astype(np.uint16),
            matrix[many],
            few[row].astype(np.uint16),
            column.astype(np.int32),
            matrix[few[row], column],
        )

    def put_into(self, found: npt.NDArray[Any], columns: Rows, place: Rows) -> None:
        """Put the values of `columns` [n] into `found` [c, n], which is nought; `place` [g] has the place of each
        column among them, -1 of the others."""
        found[self.full] = self.whole[:, columns]
        moved = place[self.column]
        here = moved >= 0
        found[self.row[here], moved[here]] = self.value[here]

    def take_out(self, rows: Bools, columns: Bools) -> None:
        """Make those of `rows` bool[c] nought in those of `columns` bool[g]."""
        if self.full.size:
            self.whole[np.ix_(rows[self.full], columns)] = 0
        kept = ~(rows[self.row] & columns[self.column])
        if not kept.all():
            self.row, self.column, self.value = self.row[kept], self.column[kept], self.value[kept]

    def add(self, row: int, column: int, value: float) -> None:
        if place := np.flatnonzero(self.full == row).tolist():
            self.whole[place[0], column] += value
            return
        if place := np.flatnonzero((self.row == row) & (self.column == column)).tolist():
            self.value[place[0]] += value
            return
        self.row = np.append(self.row, np.uint16(row))
        self.column = np.append(self.column, np.int32(column))
        self.value = np.append(self.value, self.value.dtype.type(value))

    def widen(self, more: int) -> None:
        self.whole = np.pad(self.whole, ((0, 0), (0, more)))


@dataclass(slots=True)
class Plane:
    """One step of all channels: `values` [c, g], and how many fine steps had a value. Those are for most channels of a
    GPU `base` uint16[g], where the bit in `same` [c / 8, g] says so, else what `other` [c, g] says."""

    values: Sparse
    base: Counts
    same: Bytes
    other: Sparse

    @classmethod
    def of(cls, values: Singles, steps: Counts) -> Plane:
        base = steps.max(axis=0, initial=0)
        same = (steps == base) & (base > 0)
        return cls(Sparse.of(values), base, np.packbits(same, axis=0), Sparse.of(np.where(same, np.uint16(0), steps)))

    def take(self, channels: int, gpus: Rows) -> tuple[Singles, Counts]:
        """float32[c, n] and uint16[c, n] of so many channels of `gpus` [n], each at most once; those that came later
        have nothing here."""
        values, steps = np.zeros((channels, gpus.size), np.float32), np.zeros((channels, gpus.size), np.uint16)
        there = gpus < self.base.size
        inside, place = gpus[there], np.full(self.base.size, -1, np.intp)
        place[inside] = np.arange(inside.size)
        some, counts = np.zeros((2, channels, inside.size)) if not there.all() else (values, steps)
        self.values.put_into(some, inside, place)
        self.other.put_into(counts, inside, place)
        counts += (np.unpackbits(self.same[:, inside], axis=0, count=channels) * self.base[inside]).astype(counts.dtype)
        if not there.all():
            values[:, there], steps[:, there] = some, counts
        return values, steps

    def take_out(self, channels: Bools, gpus: Bools) -> None:
        """Make those of `channels` bool[c] missing in those of `gpus`, bool[g or more]."""
        here = gpus[: self.base.size]
        self.values.take_out(channels, here)
        self.other.take_out(channels, here)
        self.same[:, here] &= ~np.packbits(channels)[:, None]

    def count(self, channel: int, gpu: int, *, seen: bool) -> None:
        """One more happening of a GPU, which may have come later; with `seen` the channel has a value now."""
        if gpu >= self.base.size:
            self._widen(gpu + 1 - self.base.size)
        self.values.add(channel, gpu, 1.0)
        if seen:
            self.base[gpu] = max(int(self.base[gpu]), 1)
            self.same[channel // 8, gpu] |= 128 >> channel % 8

    def _widen(self, more: int) -> None:
        self.values.widen(more)
        self.other.widen(more)
        self.base = np.pad(self.base, (0, more))
        self.same = np.pad(self.same, ((0, 0), (0, more)))


def add_up(planes: Iterable[Plane], total: Floats, steps: Floats, peaks: int) -> None:
    """Add the values of `planes`, in their order, to `total` [c, g], of the channels from `peaks` on the larger ones,
    and the counts to `steps` [c, g]. Neighbours that hold the same rows whole are added up at once."""
    at_once = max(1, _AT_ONCE // max(total.size, 1))
    for _, alike in groupby(planes, key=lambda plane: (plane.base.size, plane.values.full.tobytes())):
        while part := list(islice(alike, at_once)):
            here = slice(part[0].base.size)
            _add_values([plane.values for plane in part], total[:, here], peaks)
            same = np.unpackbits(np.array([plane.same for plane in part]), axis=1, count=len(steps))
            steps[:, here] += (same * np.array([plane.base for plane in part])[:, None]).sum(axis=0, dtype=np.uint64)
            for plane in part:
                if plane.other.full.size or plane.other.row.size:
                    _add_values([plane.other], steps[:, here], len(steps))


def _add_values(parts: Sequence[Sparse], total: Floats, peaks: int) -> None:
    """Add matrices that hold the same rows whole to `total`, of the rows from `peaks` on the larger value."""
    full = parts[0].full
    low = int(np.searchsorted(full, peaks))
    whole = np.array([one.whole for one in parts])
    total[full[:low]] += whole[:, :low].sum(axis=0, dtype=np.float64)
    total[full[low:]] = np.maximum(total[full[low:]], whole[:, low:].max(axis=0))
    row, column, value = (np.concatenate([getattr(one, name) for one in parts]) for name in ("row", "column", "value"))
    below = row < peaks
    np.add.at(total, (row[below], column[below]), value[below])
    np.maximum.at(total, (row[~below], column[~below]), value[~below])


def empty(channels: int) -> Plane:
    """A step in which nothing came, of no GPU yet."""
    return Plane.of(np.zeros((channels, 0), np.float32), np.zeros((channels, 0), np.uint16))


# Planes as arrays by name, to be saved and taken up again.


def saved(planes: Mapping[int, Plane], name: str) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """The arrays of `planes`, by number, each with its name; as they are, not copied."""
    yield name, np.array(sorted(planes), np.int64)
    for number, plane in sorted(planes.items()):
        yield f"{name}.{number}.base", plane.base
        yield f"{name}.{number}.same", plane.same
        for part in ("values", "other"):
            sparse = getattr(plane, part)
            for each in fields(Sparse):
                yield f"{name}.{number}.{part}.{each.name}", getattr(sparse, each.name)


def taken_up(state: State, name: str, channels: int, gpus: int) -> dict[int, Plane]:
    """What `saved` gave of planes with so many channels and GPUs. Raises InputError where that cannot be."""
    try:
        return {number: _plane(state, f"{name}.{number}", channels, gpus) for number in state[name].tolist()}
    except (KeyError, AttributeError, IndexError, TypeError) as error:
        raise InputError("state", name, f"incomplete: {error}", "read the past from the store") from None


def _plane(state: State, name: str, channels: int, gpus: int) -> Plane:
    base, same = state[f"{name}.base"], state[f"{name}.same"]
    values, other = _sparse(state, f"{name}.values", np.float32), _sparse(state, f"{name}.other", np.uint16)
    sound = base.dtype == np.uint16 and same.dtype == np.uint8 and base.shape == (base.size,) and base.size <= gpus
    sound = sound and same.shape == (-(-channels // 8), base.size)
    if not (sound and all(_fits(sparse, channels, base.size) for sparse in (values, other))):
        raise InputError("state", name, f"not of {channels} channels and {gpus} GPUs", "read the past from the store")
    return Plane(values, base, same, other)


def _sparse(state: State, name: str, dtype: npt.DTypeLike) -> Sparse:
    held = {each.name: state[f"{name}.{each.name}"] for each in fields(Sparse)}
    kinds = {"full": np.uint16, "whole": dtype, "row": np.uint16, "column": np.int32, "value": dtype}
    for part, kind in kinds.items():
        if held[part].dtype != kind:
            raise InputError("state", f"{name}.{part}", f"is {held[part].dtype}", "read the past from the store")
    return Sparse(**held)


def _fits(one: Sparse, channels: int, gpus: int) -> bool:
    return (
        one.full.ndim == 1
        and bool((np.diff(one.full.astype(np.int64)) > 0).all())
        and one.whole.shape == (one.full.size, gpus)
        and one.row.shape == one.column.shape == one.value.shape == (one.value.size,)
        and bool((one.full < channels).all() and (one.row < channels).all())
        and bool(((one.column >= 0) & (one.column < gpus)).all())
    )

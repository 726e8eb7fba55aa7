"""Rows of subjects with numpy vectors beside them: what lets one rule judge every GPU in a few array operations."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

ScalarT = TypeVar("ScalarT", bound=np.generic)

_FIRST_CAPACITY = 8


class Vector(Generic[ScalarT]):
    """One value a row, or `depth` of them; grows with its table.

    `v` is the present view, shape (rows,) or (depth, rows). It is replaced when rows are added, so read it anew in each
    step. A new row, and a row that is given back, holds `fill`. Memory is taken when `v` is first read: of a hundred
    rules few ever hold, and what remembers since when would be most of a fleet's state.
    """

    __slots__ = ("_capacity", "_data", "_depth", "_dtype", "_fill", "_rows", "_view", "timeline")

    def __init__(
        self, dtype: type[ScalarT], fill: Any, depth: int | None, capacity: int, rows: int, *, timeline: bool
    ) -> None:
        self._dtype, self._fill, self._depth = dtype, fill, depth
        self._capacity, self._rows = capacity, rows
        self._data: NDArray[ScalarT] | None = None
        self._view: NDArray[ScalarT] | None = None
        self.timeline = timeline

    @property
    def v(self) -> NDArray[ScalarT]:
        view = self._view
        if view is None:
            if self._data is None:
                self._data = self._filled()
            self._view = view = self._data[..., : self._rows]
        return view

    @property
    def taken(self) -> bool:
        """Whether `v` was read before: where it was not, all of it is `fill`."""
        return self._data is not None

    def _filled(self) -> NDArray[ScalarT]:
        shape = (self._capacity,) if self._depth is None else (self._depth, self._capacity)
        return np.full(shape, self._fill, dtype=self._dtype)

    def resize(self, capacity: int, rows: int) -> None:
        """Make room for `capacity` rows, of which `rows` are in use."""
        before, self._capacity, self._rows, self._view = self._data, capacity, rows, None
        if before is not None and capacity != before.shape[-1]:
            self._data = self._filled()
            self._data[..., : before.shape[-1]] = before

    def reset(self, rows: Ints) -> None:
        if self._data is not None:
            self._data[..., rows] = self._fill


class SubjectTable:
    """Subjects of one kind and their vectors.

    `at` is the instant of each row's newest reading in milliseconds, 0 where there is none; `updated` marks rows that
    got one in this step, `arrived` those that got one since the last, `leaving` rows that are given back at its end.
    `version` changes with the set of rows.
    """

    def __init__(self) -> None:
        self.rows: dict[Hashable, int] = {}
        self.keys: list[Hashable | None] = []
        self.version = 0
        self._free: list[int] = []
        self._vectors: list[Vector[Any]] = []
        self._capacity = _FIRST_CAPACITY
        self._settled = 0
        self.at = self.vector(np.int64, 0, timeline=True)
        self.updated = self.vector(np.bool_, False)
        self.arrived = self.vector(np.bool_, False, timeline=True)
        self.leaving = self.vector(np.bool_, False)
        self.any_leaving = False

    def __len__(self) -> int:
        return len(self.keys)

    def vector(
        self, dtype: type[ScalarT], fill: Any, depth: int | None = None, *, timeline: bool = False
    ) -> Vector[ScalarT]:
        """A new vector of this table; one with `timeline` is reset when a row's time goes backwards."""
        vector = Vector(dtype, fill, depth, self._capacity, self._settled, timeline=timeline)
        self._vectors.append(vector)
        return vector

    def row(self, key: Hashable) -> int:
        """The row of `key`, taken anew where it has none; `settle` must follow before a vector is used there."""
        row = self.rows.get(key)
        if row is not None:
            return row
        self.version += 1
        if self._free:
            row = self._free.pop()
            self.keys[row] = key
        else:
            row = len(self.keys)
            self.keys.append(key)
        self.rows[key] = row
        return row

    def settle(self) -> None:
        rows = len(self.keys)
        if rows == self._settled:
            return
        while self._capacity < rows:
            # A table of a hundred thousand links has fifty vectors: what is not in use yet must not double them.
            self._capacity += max(_FIRST_CAPACITY, self._capacity // 4)
        for vector in self._vectors:
            vector.resize(self._capacity, rows)
        self._settled = rows

    def leave(self, rows: Ints) -> None:
        """Mark `rows` to be given back at the end of the step."""
        if rows.size:
            self.leaving.v[rows] = True
            self.any_leaving = True

    def release(self) -> list[int]:
        """Give back the rows marked by `leave` and reset every vector there; returns them."""
        if not self.any_leaving:
            return []
        rows = np.flatnonzero(self.leaving.v)
        self._reset(rows, self._vectors)
        for row in rows.tolist():
            key = self.keys[row]
            if key is not None:
                del self.rows[key]
            self.keys[row] = None
            self._free.append(row)
        self.any_leaving = False
        self.version += 1
        return [int(row) for row in rows]

    def rewind(self, rows: Ints) -> None:
        """Forget what `rows` know of time, because their clock went backwards."""
        self._reset(rows, [vector for vector in self._vectors if vector.timeline])

    @staticmethod
    def _reset(rows: Ints, vectors: Iterable[Vector[Any]]) -> None:
        for vector in vectors:
            vector.reset(rows)

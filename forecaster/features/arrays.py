"""Named arrays whose last axis is the GPU, so that a builder can grow, be saved and be taken up again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tocsin.domain.errors import InputError

Floats = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.intp]

NOT_YET = np.iinfo(np.int64).min // 2
"""An instant before everything: it did not happen yet."""


class Arrays:
    """Arrays of shape (..., size) by name; `add` before use, `grow` where GPUs come."""

    def __init__(self) -> None:
        self.size = 0
        self._arrays: dict[str, npt.NDArray[Any]] = {}
        self._fill: dict[str, float | int | bool] = {}

    def add(self, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike, fill: float | int | bool = 0) -> None:
        """Declare `name` of shape (*shape, size), filled with `fill`."""
        self._fill[name] = fill
        self._arrays[name] = _filled((*shape, self.size), np.dtype(dtype), fill)

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        return self._arrays[name]

    def grow(self, more: int) -> None:
        self.size += more
        for name, old in self._arrays.items():
            new = _filled((*old.shape[:-1], self.size), old.dtype, self._fill[name])
            new[..., : old.shape[-1]] = old
            self._arrays[name] = new

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """The arrays themselves: to be written or copied before anything else is fed."""
        return dict(self._arrays)

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Take up what `state` gave, of an object with the same GPUs. Raises InputError where a shape differs."""
        for name, array in self._arrays.items():
            held = state.get(name)
            if held is None or held.shape != array.shape or held.dtype != array.dtype:
                shape = None if held is None else held.shape
                raise InputError("state", name, f"has shape {shape}, not {array.shape}", "read the past from the store")
            array[...] = held


def _filled(shape: tuple[int, ...], dtype: np.dtype[Any], fill: float | int | bool) -> npt.NDArray[Any]:
    # Zeros of the operating system take no memory before they are written.
    return np.zeros(shape, dtype) if not fill else np.full(shape, fill, dtype)


def rounds(gpus: Rows) -> Iterator[Rows]:
    """Rows in rounds with at most one of each GPU, in the order of time."""
    order = np.argsort(gpus, kind="stable")
    ordered = gpus[order]
    first = np.concatenate(([True], ordered[1:] != ordered[:-1]))
    begin = np.maximum.accumulate(np.where(first, np.arange(order.size), 0))
    turn = np.empty(order.size, np.intp)
    turn[order] = np.arange(order.size) - begin
    if not turn.any():
        yield np.arange(order.size)
        return
    for number in range(int(turn.max()) + 1):
        yield np.flatnonzero(turn == number)

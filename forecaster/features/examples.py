"""The table that every scorer learns from and answers on: one row per device and decision instant.

A device is whatever fails as one: a GPU, a node, a drive. All that a row holds was known at its instant, and `seen_ms`
proves it. What came later is in `event_ms` and `until_ms` alone, and comes from onsets that happened, never from the
features themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tocsin.domain.clock import HOUR
from tocsin.domain.errors import InputError

HORIZONS_MS = (1 * HOUR, 6 * HOUR, 24 * HOUR, 48 * HOUR)
"""What the hazard is asked for, unless said otherwise."""

NEVER = np.iinfo(np.int64).max
"""`event_ms` of a row after which no onset is known."""

Ints = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]


class Sequences(Protocol):
    """The recent past of each row on an even grid, made when asked for: all at once would not fit in memory."""

    channels: tuple[str, ...]
    steps: int

    def take(self, rows: Ints) -> Singles:
        """float32[len(rows), steps, channels], the newest step last; NaN where there is no value. `rows` index the
        rows of the examples that this belongs to."""


@dataclass(frozen=True, slots=True)
class Examples:
    """Rows of devices at decision instants; arrays are [n] unless said, and are never changed by who gets them.

    `device` indexes `devices`, `group` indexes `groups`: what devices share (node, batch, vendor), so that a split can
    keep a group together. `features` is float32[n, f] in the order of `names`, NaN where missing. `seen_ms` is the
    instant of the newest datum in the row's features, `history_ms` the span of past behind it.
    `event_ms` is the first new onset after `at_ms` (`NEVER`: none known), `until_ms` the last instant up to which the
    device was observed, so that "no onset" is known up to there alone. `event_class` names the onset's class, empty
    without one. `weight` undoes sub-sampling: a row stands for so many.
    """

    devices: tuple[str, ...]
    device: Codes
    groups: tuple[str, ...]
    group: Codes
    at_ms: Ints
    names: tuple[str, ...]
    features: Singles
    seen_ms: Ints
    history_ms: Ints
    event_ms: Ints
    until_ms: Ints
    event_class: npt.NDArray[np.str_]
    weight: Floats
    sequences: Sequences | None = None

    def __post_init__(self) -> None:
        rows = self.at_ms.size
        if self.features.shape != (rows, len(self.names)):
            shape = (rows, len(self.names))
            raise InputError("features", self.features.shape, f"not {shape}", "give a row per instant, a column a name")
        for one in fields(self):
            value = getattr(self, one.name)
            if isinstance(value, np.ndarray) and len(value) != rows:
                raise InputError(one.name, len(value), f"{rows} rows are needed", "give as many values as rows")

    def __len__(self) -> int:
        return int(self.at_ms.size)

    def column(self, name: str) -> Singles:
        """One feature. Raises InputError where there is none of that name."""
        if name not in self.names:
            raise InputError("feature", name, "not among the features", f"there are {', '.join(self.names[:20])}")
        return self.features[:, self.names.index(name)]

    def label(self, horizon_ms: int) -> tuple[Mask, Mask]:
        """Whether an onset falls in (at, at + horizon], and whether that is known: it happened, or the device was
        observed to the end of the horizon without one."""
        end_ms = self.at_ms + horizon_ms
        happened = (self.event_ms > self.at_ms) & (self.event_ms <= end_ms)
        return happened, happened | (self.until_ms >= end_ms)

    def take(self, rows: Ints | Mask) -> Examples:
        chosen = np.flatnonzero(rows) if rows.dtype == np.bool_ else np.asarray(rows, dtype=np.int64)
        values: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        arrays = {name: value[chosen] for name, value in values.items() if isinstance(value, np.ndarray)}
        sequences = None if self.sequences is None else _Chosen(self.sequences, chosen)
        return Examples(**{**values, **arrays, "sequences": sequences})


class _Chosen:
    def __init__(self, whole: Sequences, rows: Ints) -> None:
        self._whole: Sequences = whole
        self._rows = rows
        self.channels, self.steps = whole.channels, whole.steps

    def take(self, rows: Ints) -> Singles:
        return self._whole.take(self._rows[rows])


class HeldSequences:
    """Sequences that are in memory: float32[n, steps, channels]."""

    def __init__(self, channels: tuple[str, ...], values: Singles) -> None:
        self.channels, self.steps = channels, values.shape[1]
        self._values = values

    def take(self, rows: Ints) -> Singles:
        return self._values[rows]

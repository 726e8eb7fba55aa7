"""More of the past than a start goes through: values at instants hours apart, for rules that compare weeks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tocsin.domain.clock import HOUR
from tocsin.rules.table import Floats, Ints

SLOT_MS = 2 * HOUR
"""The past is known once in each of these, counted from 1970."""


def instants(start_ms: int, end_ms: int) -> range:
    """The middle of each slot, from `start_ms` up to `end_ms`: readings that come a little late lie in the same."""
    return range(start_ms + (SLOT_MS // 2 - start_ms) % SLOT_MS, end_ms, SLOT_MS)


@dataclass(frozen=True)
class Past:
    """`at_ms` is int64[samples], rising; `gpus` are UUIDs, `rows` int64[gpus] their rows in the table of GPUs.

    `values` has for each metric float64[samples, gpus], NaN where a GPU was not read or the metric not known.
    """

    at_ms: Ints
    gpus: Sequence[str]
    values: Mapping[str, Floats]
    rows: Ints = field(default_factory=lambda: np.empty(0, np.int64))

    def of(self, places: Sequence[int], rows: Ints) -> Past:
        """The past of the GPUs at `places` alone, which have the `rows`."""
        values = {name: found[:, places] for name, found in self.values.items()}
        return replace(self, gpus=[self.gpus[place] for place in places], values=values, rows=rows)


@dataclass(frozen=True)
class Wanted:
    """Metrics whose past rules need, and how far back, in milliseconds."""

    metrics: tuple[str, ...]
    span_ms: int

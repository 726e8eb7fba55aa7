"""What every store offers, and the laws it keeps (``tests/laws/test_store_*_laws.py``)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tocsin.domain.batch import Batch
from tocsin.domain.errors import TocsinError, Unavailable
from tocsin.domain.event import Event
from tocsin.domain.finding import Finding
from tocsin.domain.prediction import Prediction
from tocsin.domain.reading import Gpu, Reading


class StoreUnavailable(Unavailable):
    """The store does not answer; the same write may succeed later."""


class StoreRejected(TocsinError):
    """The store refuses the batch, or part of it; the same write will be refused again."""


class StoreMisconfigured(StoreRejected):
    """A setting is wrong, not the batch: every write is refused until it is corrected, and then the same one passes."""


@dataclass(frozen=True, slots=True)
class Series:
    """Some metrics of one GPU over time.

    `at_ms` is int64[n], rising strictly; `values` is float64[n, m] in the order of `metrics`, NaN where there is no
    value at that instant.
    """

    gpu: str
    metrics: tuple[str, ...]
    at_ms: npt.NDArray[np.int64]
    values: npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Columns:
    """Some metrics of many GPUs over time, one row per reading, sorted by instant, then UUID.

    `gpus` are the UUIDs, sorted, that have a row; `gpu` is int32[n], the row's index into them; `at_ms` is int64[n];
    `values` is float64[n, m] in the order of `metrics` (canonical names or variants), NaN where there is no value.
    """

    gpus: tuple[str, ...]
    metrics: tuple[str, ...]
    gpu: npt.NDArray[np.int32]
    at_ms: npt.NDArray[np.int64]
    values: npt.NDArray[np.float64]


class Store(Protocol):
    """Readings, events, findings and predictions of a fleet.

    Writes are durable on return, in any order, and idempotent: a second write to one (gpu, at_ms) merges fields, the
    last one wins per field; events, findings and predictions are kept once per `id`, the last one wins.
    """

    def init(self) -> None:
        """Create what is missing (file, tables, buckets, retention) and make sure that the store takes a write and
        answers a query; safe to repeat.
        """

    def write(self, batch: Batch) -> None:
        """Keep `batch`. Raises StoreUnavailable or StoreRejected."""

    def gpus(self) -> list[Gpu]:
        """Every GPU that has a reading, by UUID."""

    def latest(self, since_ms: int) -> Iterable[Reading]:
        """The newest reading of each GPU at or after `since_ms`, by UUID; to be gone through once."""

    def readings(self, start_ms: int, end_ms: int, gpus: Collection[str] | None = None) -> Iterator[Reading]:
        """Readings in [`start_ms`, `end_ms`), by instant, then UUID."""

    def series(self, gpu: str, metrics: Sequence[str], start_ms: int, end_ms: int) -> Series:
        """Values of `metrics` of one GPU in [`start_ms`, `end_ms`)."""

    def columns(
        self, metrics: Sequence[str], start_ms: int, end_ms: int, gpus: Collection[str] | None = None
    ) -> Columns:
        """Values of `metrics` of all GPUs, or of `gpus`, in [`start_ms`, `end_ms`).

        There is a row for each reading, also where it holds none of `metrics`. A name that no reading has, known or
        not, is a column of NaN; a name that is given twice has two columns.
        """

    def latest_columns(self, metrics: Sequence[str], since_ms: int) -> Columns:
        """The same of the newest reading of each GPU at or after `since_ms`: one row per GPU, by UUID."""

    def events(self, start_ms: int, end_ms: int, gpu: str | None = None) -> list[Event]:
        """Events in [`start_ms`, `end_ms`), by instant."""

    def findings(self, start_ms: int, end_ms: int) -> list[Finding]:
        """Findings whose `last_ms` lies in [`start_ms`, `end_ms`), by `last_ms`."""

    def predictions(self, start_ms: int, end_ms: int, gpu: str | None = None) -> list[Prediction]:
        """Predictions made in [`start_ms`, `end_ms`), by instant; `gpu` is the subject's name."""

    def prune(self, before_ms: int) -> int:
        """Remove readings and events before `before_ms`; returns how many rows went (0 where the server does it)."""

    def close(self) -> None:
        """Let go of files and connections; safe to repeat."""

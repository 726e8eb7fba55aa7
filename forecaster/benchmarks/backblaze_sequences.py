"""The last weeks of a drive in daily steps, looked up when a batch asks for them."""

from __future__ import annotations

import numpy as np

from tocsin.forecaster.benchmarks.backblaze_drives import ATTRIBUTES, HOURS_PER_DAY
from tocsin.forecaster.benchmarks.backblaze_features import Ledger
from tocsin.forecaster.features.examples import Codes, Ints, Singles

STEPS = 30
"""Days of past."""


class DriveSequences:
    """SMART values as log(1 + x), and their changes since the day before on the same scale; NaN before the first
    reading and where an attribute is not reported."""

    channels = (*(f"{name}_log" for name in ATTRIBUTES), *(f"{name}_change" for name in ATTRIBUTES))
    steps = STEPS

    def __init__(self, book: Ledger, drive: Codes, hour: Ints) -> None:
        self._book, self._drive, self._hour = book, drive, hour

    def take(self, rows: Ints) -> Singles:
        book = self._book
        ago = np.arange(self.steps, -1, -1) * HOURS_PER_DAY
        drive = np.broadcast_to(self._drive[rows, None], (rows.size, self.steps + 1))
        row = book.drives.rows_at(drive, self._hour[rows, None] - ago, book.keys)
        level = np.where(row[:, :, None] < 0, np.nan, book.value[np.maximum(row, 0)])
        change = np.diff(level, axis=1)
        logs = np.log1p(level[:, 1:])
        return np.concatenate([logs, np.sign(change) * np.log1p(np.abs(change))], axis=2).astype(np.float32)

"""The record of each drive model: how many there were and how many had failed, as far as was known on a day."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from tocsin.forecaster.features.examples import Floats, Singles
from tocsin_benchmarks.backblaze.drives import Drives

PRIOR_DAYS = 50_000.0
"""Drive-days at the overall rate that each model starts with (own choice): about three failures' worth."""

RECENT_DAYS = 180


@dataclass(frozen=True, slots=True)
class Record:
    """Failures and drive-days of the models [m, days + 1] up to the start of each day since `first_day`, of the
    drives that were counted alone; the last row of models sums up all. A day after the record's end reads its end."""

    names: ClassVar[tuple[str, ...]] = ("model_rate_log", "model_recent_rate_log", "model_drives_log")

    models: npt.NDArray[np.str_]
    first_day: int
    failures: Floats
    days: Floats

    def look(self, model: npt.NDArray[np.str_], day: Floats) -> Singles:
        """float32[n, 3]: log failure rate per drive-day of the model up to each day, the same over `RECENT_DAYS`, and
        log drive-days. A model never seen has missing values."""
        at = np.clip(np.floor(day).astype(np.int64) - self.first_day, 0, self.days.shape[1] - 1)
        index = np.minimum(np.searchsorted(self.models, model), self.models.size - 1)
        known = self.models[index] == model
        before = np.maximum(at - RECENT_DAYS, 0)
        rate = self._rate(index, at, np.zeros_like(at))
        recent = self._rate(index, at, before)
        seen = np.log1p(self.days[index, at])
        return np.where(known[:, None], np.stack([rate, recent, seen], axis=1), np.nan).astype(np.float32)

    def _rate(self, index: npt.NDArray[np.int64], at: npt.NDArray[np.int64], since: npt.NDArray[np.int64]) -> Floats:
        failed = self.failures[index, at] - self.failures[index, since]
        days = self.days[index, at] - self.days[index, since]
        all_failed, all_days = self.failures[-1, at], self.days[-1, at]
        overall = (all_failed + 1.0) / (all_days + PRIOR_DAYS)
        return np.asarray(np.log((failed + PRIOR_DAYS * overall) / (days + PRIOR_DAYS)))


def record(drives: Drives) -> Record:
    """Count over the histories of `drives`."""
    models, code = np.unique(drives.model, return_inverse=True)
    every = np.arange(len(drives))
    start, end = drives.day(every, drives.first_hour), drives.end_day
    first, last = int(np.floor(start.min())), int(np.ceil(end.max()))
    shape = (models.size + 1, last - first + 1)
    running, failed = np.zeros(shape), np.zeros(shape)
    for row, which in ((code, every), (np.full_like(code, models.size), every)):
        np.add.at(running, (row, np.floor(start[which]).astype(np.int64) - first), 1.0)
        np.add.at(running, (row, np.ceil(end[which]).astype(np.int64) - first), -1.0)
        hit = drives.failed
        np.add.at(failed, (row[hit], np.ceil(end[hit]).astype(np.int64) - first), 1.0)
    active = np.cumsum(running, axis=1)
    days = np.concatenate([np.zeros((shape[0], 1)), np.cumsum(active, axis=1)[:, :-1]], axis=1)
    return Record(models, first, np.cumsum(failed, axis=1), days)

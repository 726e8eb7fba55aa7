"""Collects single samples of many GPUs from any reader and makes tracks of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tocsin.collector.dcgm.fields import FP64_BLANK, INT32_BLANK, INT64_BLANK
from tocsin.collector.replay.recording import Recording, Track, build_track
from tocsin.domain.errors import InputError
from tocsin.domain.identity import Gpu
from tocsin.domain.metrics import BY_DCGM_NAME

# DCGM's blank sentinels over whole columns, which older exporters print as if they were values.


def is_blank(raw: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Which raw values, before any scaling, stand for nothing: a sentinel, a NaN or an infinity."""
    small = ((raw >= FP64_BLANK) & (raw <= FP64_BLANK + 3)) | ((raw >= INT32_BLANK) & (raw <= INT32_BLANK + 3))
    return small | (raw >= float(INT64_BLANK)) | ~np.isfinite(raw)


Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class Samples:
    """Grows while files are read; `recording` turns it into tracks.

    `add` takes columns of equal length: GPU and metric as the numbers that `gpu` and `metric` gave, instants, and raw
    values as DCGM prints them.
    """

    def __init__(self) -> None:
        self.rows = 0
        self._gpus: list[Gpu] = []
        self._gpu_numbers: dict[tuple[str, str], int] = {}
        self._metrics: list[str] = []
        self._scales: list[float] = []
        self._metric_numbers: dict[tuple[str, float], int] = {}
        self._parts: list[tuple[Ints, Ints, Ints, Floats]] = []
        self._observed: dict[str, set[int]] = {}
        self._problems: list[InputError] = []

    def gpu(self, gpu: Gpu) -> int:
        """The number of `gpu`; one UUID on two hosts is two GPUs, as a moved board has two histories."""
        key = (gpu.host, gpu.uuid)
        if key not in self._gpu_numbers:
            self._gpu_numbers[key] = len(self._gpus)
            self._gpus.append(gpu)
        return self._gpu_numbers[key]

    def metric(self, name: str, scale: float) -> int:
        """The number of canonical metric or variant `name` whose raw values are to be multiplied by `scale`."""
        key = (name, scale)
        if key not in self._metric_numbers:
            self._metric_numbers[key] = len(self._metrics)
            self._metrics.append(name)
            self._scales.append(scale)
        return self._metric_numbers[key]

    def dcgm_metrics(self) -> dict[str, int]:
        """Number of every metric that DCGM has, by DCGM's field name, old or new."""
        return {name: self.metric(spec.name, spec.dcgm_scale) for name, spec in BY_DCGM_NAME.items()}

    def add(self, gpu: Ints, metric: Ints, at_ms: Ints, raw: Floats) -> int:
        """Keep samples; returns how many are blank (these are kept as such)."""
        blank = is_blank(raw)
        scaled = np.where(blank, np.nan, raw) * np.array(self._scales)[metric]
        self._parts.append((gpu.astype(np.int32), metric.astype(np.int32), at_ms, scaled))
        return int(blank.sum())

    def see(self, host: str, at_ms: int) -> None:
        """Note that `host` had telemetry of any kind."""
        self._observed.setdefault(host, set()).add(at_ms)

    def report(self, path: Path, counts: Counter[str]) -> None:
        """Note what was lost in `path`: one problem for each kind, with its number of lines."""
        for problem, count in sorted(counts.items()):
            remedy = "all other lines are kept"
            self._problems.append(InputError(str(path), f"{count} lines", problem, remedy))

    def fail(self, error: InputError) -> None:
        """Note that the rest of a file could not be read."""
        self._problems.append(error)

    def recording(self) -> Recording:
        """Everything so far."""
        observed = {host: np.array(sorted(times), np.int64) for host, times in sorted(self._observed.items())}
        return Recording(tuple(self._tracks()), observed, self.rows, tuple(self._problems))

    def _tracks(self) -> list[Track]:
        if not self._parts:
            return []
        gpu, metric, at_ms, values = (np.concatenate(column) for column in zip(*self._parts, strict=True))
        names = sorted(set(self._metrics))
        places = np.array([names.index(name) for name in self._metrics], np.int64)
        order = np.argsort(gpu, kind="stable")
        numbers, starts = np.unique(gpu[order], return_index=True)
        parts = np.split(order, starts[1:])
        tracks = [
            build_track(self._gpus[number], names, at_ms[part], places[metric[part]], values[part])
            for number, part in zip(numbers, parts, strict=True)
        ]
        return sorted(tracks, key=lambda track: (track.gpu.host, track.gpu.uuid))

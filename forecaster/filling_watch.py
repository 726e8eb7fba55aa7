"""The same for a running service: fed with every batch, it keeps the newest hours and says what fills up."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tocsin.domain.clock import to_iso
from tocsin.domain.finding import Evidence
from tocsin.domain.identity import Gpu
from tocsin.domain.metrics import split_variant
from tocsin.domain.prediction import Prediction, PredictionStatus
from tocsin.domain.reading import Reading
from tocsin.domain.subject import Subject, SubjectKind
from tocsin.forecaster.filling import HOLES, INSTANCE, LAYOUT, MEMORY, PAST, STEP_MS, Floats, Limit, outlook, stepped_up
from tocsin.forecaster.statements import hours

NAME, VERSION = "filling", "1"
IN_A_ROW = 2
"""Minutes in a row that must say so before it is said."""
OUT_OF_MEMORY, FRAGMENTATION = "out_of_memory", "fragmentation"
_WORDS = {
    MEMORY.metric: ("memory", "显存"),
    INSTANCE.metric: ("memory of a MIG instance", "MIG 实例的显存"),
    HOLES.metric: ("allocator fragmentation", "分配器碎片率"),
    LAYOUT.metric: ("MIG fragmentation", "MIG 碎片率"),
}
_TARGETS = {MEMORY: OUT_OF_MEMORY, INSTANCE: OUT_OF_MEMORY, HOLES: FRAGMENTATION, LAYOUT: FRAGMENTATION}
_PLACE = {limit.metric: place for place, limit in enumerate(_TARGETS)}


class FillingWatch:
    """Rows of the newest `PAST` minutes for every GPU that was ever read.

    Of several readings of a GPU within a minute the last counts; of several processes or instances the fullest.
    """

    def __init__(self) -> None:
        self._gpus: list[Gpu] = []
        self._numbers: dict[str, int] = {}
        self._kept = np.full((len(_TARGETS), 0, PAST), np.nan)
        self._said = np.zeros((len(_TARGETS), 0), np.int64)
        self._step: int | None = None

    def take(self, readings: Sequence[Reading]) -> None:
        """Readings in the order of time; one older than the minute in progress is left out."""
        for reading in sorted(readings, key=lambda one: one.at_ms):
            step = reading.at_ms // STEP_MS
            if self._step is not None and step < self._step:
                continue
            self._go_on(step)
            row = self._row(reading.gpu)
            self._kept[:, row, -1] = _values(reading)

    def _go_on(self, step: int) -> None:
        passed = 0 if self._step is None else min(step - self._step, PAST)
        self._step = step
        for _ in range(passed):
            self._count()
            self._kept[:, :, :-1] = self._kept[:, :, 1:]
            self._kept[:, :, -1] = np.nan

    def _row(self, gpu: Gpu) -> int:
        row = self._numbers.get(gpu.uuid)
        if row is None:
            row = self._numbers[gpu.uuid] = len(self._gpus)
            self._gpus.append(gpu)
            more = np.full((len(_TARGETS), 1, PAST), np.nan)
            self._kept = np.concatenate([self._kept, more], axis=1)
            self._said = np.concatenate([self._said, np.zeros((len(_TARGETS), 1), np.int64)], axis=1)
        return row

    def _count(self) -> None:
        """The minute in progress is over: how many in a row have said so."""
        for place, limit in enumerate(_TARGETS):
            due = _due(self._kept[place], limit)[0]
            self._said[place] = np.where(due, self._said[place] + 1, 0)

    def predictions(self, now_ms: int) -> list[Prediction]:
        """What is expected to fill up, a statement for each GPU and target: nothing is said of the others."""
        found: dict[tuple[int, str], Prediction] = {}
        for place, (limit, target) in enumerate(_TARGETS.items()):
            due, steps, slope = _due(self._kept[place], limit)
            for row in np.flatnonzero(due & (self._said[place] + 1 >= IN_A_ROW)).tolist():
                value = float(self._kept[place, row, -1])
                made = _statement(self._gpus[row], limit, target, now_ms, value, float(steps[row]), float(slope[row]))
                found.setdefault((row, target), made)
        return list(found.values())


def _values(reading: Reading) -> list[float]:
    """The largest value of each watched metric, NaN without one."""
    largest = [float("nan")] * len(_PLACE)
    for key, value in reading.values.items():
        place = _PLACE.get(split_variant(key)[0])
        if place is not None and not value <= largest[place]:
            largest[place] = value
    return largest


def _due(values: Floats, limit: Limit) -> tuple[npt.NDArray[np.bool_], Floats, Floats]:
    """Which rows are to be warned of, in how many minutes (NaN: not known) and how fast they rise."""
    newest = values[:, -1]
    below = np.isfinite(newest) & (newest < limit.limit)
    if limit is LAYOUT:
        unknown = np.full(len(values), np.nan)
        return np.asarray(below & stepped_up(values)), unknown, unknown
    told = outlook(values, limit.limit)
    return np.asarray(below & (told.steps <= limit.ahead_steps)), told.steps, told.slope


def _statement(
    gpu: Gpu, limit: Limit, target: str, now_ms: int, value: float, steps: float, slope: float
) -> Prediction:
    english, chinese = _WORDS[limit.metric]
    where = f"{gpu.host} GPU {'?' if gpu.index is None else gpu.index}"
    eta_ms = None if np.isnan(steps) else now_ms + round(steps * STEP_MS)
    if eta_ms is None:
        now = f"now {value:.1%}; from {limit.limit:.0%} on larger instances stay out"
        text = f"{where}: {english} has begun to grow ({now})."
        text_zh = f"{where}：{chinese}开始上升（当前 {value:.1%}）；超过 {limit.limit:.0%} 后较大的实例将无法创建。"
    else:
        ahead = hours(eta_ms - now_ms)
        text = (
            f"{where}: {english} grows without a plateau and reaches {limit.limit:.1%} in {ahead}, at {to_iso(eta_ms)}."
        )
        text_zh = f"{where}：{chinese}持续上升、没有平台，预计在 {to_iso(eta_ms)} 达到 {limit.limit:.1%}。"
    rise = "in steps" if np.isnan(slope) else f"{slope * 60:.1%} an hour"
    return Prediction(
        subject=Subject(SubjectKind.GPU, gpu.uuid, gpu.host, gpu.pool),
        target=target,
        at_ms=now_ms,
        horizon_ms=max(limit.ahead_steps, 1) * STEP_MS,
        status=PredictionStatus.CROSSING,
        model=NAME,
        model_version=VERSION,
        sentence=text,
        sentence_zh=text_zh,
        metric=limit.metric,
        threshold=limit.limit,
        value=value,
        eta_ms=eta_ms,
        evidence=(Evidence(limit.metric, f"rises {rise}", now_ms, value),),
        simulated=gpu.simulated,
    )

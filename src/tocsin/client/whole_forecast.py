"""What lies ahead in all cells as one: the most urgent of all lists, counts added up, pools by cell."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from tocsin.client.models_capacity import CapacityOut, CourseOut, FillingOut, ForecastOut, RiskCalendar
from tocsin.client.whole import by_reason

T = TypeVar("T")

_REASONS = 5
"""Reasons for saying nothing that are kept, the commonest."""


def whole_forecast(answers: Mapping[str, ForecastOut], most: int) -> ForecastOut:
    """The most urgent `most` of each list over all cells; `answers` has at least one."""
    every = [answers[name] for name in sorted(answers)]
    return ForecastOut(
        now=max(one.now for one in every),
        simulated=any(one.simulated for one in every),
        risk=_risk({name: one.risk for name, one in answers.items()}, most),
        memory=_soonest((one.memory for one in every), most),
        memory_statuses=_added(one.memory_statuses for one in every),
        fragmentation=_soonest((one.fragmentation for one in every), most),
        fragmentation_total=sum(one.fragmentation_total for one in every),
    )


def whole_capacity(answers: Mapping[str, CapacityOut]) -> CapacityOut:
    """The pools of all cells, the largest first, each named ``cell/pool``; `answers` has at least one. Nothing is said
    of the fragmentation of the whole: the next job goes to one cell."""
    every = [answers[name] for name in sorted(answers)]
    pools = [
        pool.model_copy(update={"pool": f"{name}/{pool.pool}"})
        for name in sorted(answers)
        for pool in answers[name].pools
    ]
    return CapacityOut(
        now=max(one.now for one in every),
        at=min(one.at for one in every),
        simulated=any(one.simulated for one in every),
        horizon_s=min(one.horizon_s for one in every),
        pools=sorted(pools, key=lambda one: (-one.gpus, one.pool)),
        pools_total=sum(one.pools_total for one in every),
        fragmented=CourseOut(coverage=every[0].fragmented.coverage),
    )


def _soonest(lists: Iterable[Sequence[FillingOut]], most: int) -> list[FillingOut]:
    found = [one for each in lists for one in each]
    found.sort(key=lambda one: math.inf if one.prediction.eta_ms is None else one.prediction.eta_ms)
    return found[:most]


def _risk(by_cell: Mapping[str, RiskCalendar], most: int) -> RiskCalendar:
    """Of the records, which cannot be added up, that of the cell which watched longest."""
    every = [by_cell[name] for name in sorted(by_cell)]
    spoken = [one for one in every if one.model]
    expected = Counter[float]()
    for one in every:
        expected.update(dict(one.expected))
    reasons = Counter(_added(one.reasons for one in every))
    return RiskCalendar(
        model=", ".join(sorted({one.model for one in spoken})),
        sentence=by_reason({name: one.sentence for name, one in by_cell.items()}),
        sentence_zh=by_reason({name: one.sentence_zh for name, one in by_cell.items()}),
        because=by_reason({name: one.because for name, one in by_cell.items()}),
        at=max((one.at for one in every if one.at), default=None),
        horizon_s=max((one.horizon_s for one in spoken), default=0.0),
        warn_from=min((one.warn_from for one in every if one.warn_from is not None), default=None),
        statuses=_added(one.statuses for one in every),
        reasons=dict(reasons.most_common(_REASONS)),
        reasons_zh={reason: chinese for one in every for reason, chinese in one.reasons_zh.items()},
        expected=sorted(expected.items()),
        gpus=sorted((gpu for one in every for gpu in one.gpus), key=lambda one: -one.probability)[:most],
        hosts=sorted((host for one in every for host in one.hosts), key=lambda one: -one.probability)[:most],
        record=max((one.record for one in every), key=lambda found: sum(one.gpu_days for one in found), default=[]),
    )


def _added(counts: Iterable[Mapping[T, int]]) -> dict[T, int]:
    total = Counter[T]()
    for one in counts:
        total.update(one)
    return dict(total)

"""What came of statements: a fault that did not come counts only where the GPU was still observed."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pytest

from tocsin.domain.batch import Batch
from tocsin.domain.clock import DAY, HOUR, MINUTE
from tocsin.domain.finding import Subject, SubjectKind
from tocsin.domain.prediction import HARDWARE_FAULT, Prediction, PredictionStatus
from tocsin.domain.reading import Gpu, Reading
from tocsin.forecaster.live.outcomes import TAIL_MS, TOGETHER, outcomes
from tocsin.store.memory import MemoryStore
from tocsin.store.port import Columns
from tocsin_testing.builders import T0, gpu, xid
from tocsin_testing.law_words import finding

AHEAD = 48 * HOUR


def risk(of: Gpu, at_ms: int = T0, status: PredictionStatus = PredictionStatus.UNLIKELY) -> Prediction:
    subject = Subject(SubjectKind.GPU, of.uuid, of.host)
    return Prediction(subject, HARDWARE_FAULT, at_ms, AHEAD, status, "hazard", "1", "", probability=0.01)


class Reads(MemoryStore):
    """Notes the spans (ms) of columns that are read, and of how many GPUs."""

    def __init__(self) -> None:
        super().__init__()
        self.spans: list[tuple[int, int]] = []

    def columns(
        self, metrics: Sequence[str], start_ms: int, end_ms: int, gpus: Collection[str] | None = None
    ) -> Columns:
        self.spans.append((end_ms - start_ms, len(gpus or ())))
        return super().columns(metrics, start_ms, end_ms, gpus)


def reads(of: Gpu, *at_ms: int) -> Batch:
    return Batch(readings=[Reading(of, at, {}) for at in at_ms])


@pytest.mark.parametrize(
    ("seen_ms", "came"),
    [
        ([T0 + AHEAD], False),
        ([T0 + AHEAD // 2], False),
        ([T0 + AHEAD // 2 - 1], None),
        ([T0 + AHEAD // 2 - 1, T0 + AHEAD + 1], None),
        ([], None),
    ],
)
def test_a_fault_that_did_not_come_is_known_where_the_gpu_was_observed_in_the_second_half(
    seen_ms: list[int], came: bool | None
) -> None:
    store = MemoryStore()
    store.write(reads(gpu(1), T0, *seen_ms))
    assert outcomes(store, [risk(gpu(1))]) == [came]


def test_a_fault_came_whether_or_not_the_gpu_is_observed_after_it() -> None:
    store = MemoryStore()
    store.write(reads(gpu(1), T0))
    store.write(Batch(events=[xid(79, gpu(1), T0 + HOUR), xid(79, gpu(3), T0 + AHEAD + 1)]))
    assert outcomes(store, [risk(gpu(1)), risk(gpu(2)), risk(gpu(3))]) == [True, None, None]


def test_heat_at_which_hardware_slows_a_gpu_is_a_fault_that_came_however_long_it_stays() -> None:
    store, started_ms = MemoryStore(), (T0 + HOUR, T0 + AHEAD + MINUTE, T0 - 2 * DAY)
    for n, at_ms in enumerate(started_ms):
        store.write(reads(gpu(n), T0 + AHEAD))
        last_ms = max(at_ms, T0) + 10 * DAY
        store.write(Batch(findings=[finding(gpu(n), at_ms, last_ms, rule="thermal_slowdown")]))
    assert outcomes(store, [risk(gpu(n)) for n in range(3)]) == [True, False, False]


def test_what_a_fault_of_the_day_before_goes_on_to_report_is_no_new_one() -> None:
    store = MemoryStore()
    store.write(reads(gpu(1), T0 + AHEAD))
    store.write(Batch(events=[xid(79, gpu(1), T0 - HOUR), xid(79, gpu(1), T0 + HOUR)]))
    alone = outcomes(store, [risk(gpu(1))])
    beside = outcomes(store, [risk(gpu(1)), risk(gpu(2), T0 - DAY)])
    assert alone[0] is beside[0] is False, "whatever else is judged in the same pass"


def test_whether_many_are_observed_is_asked_of_all_at_once_and_further_back_of_the_silent_alone() -> None:
    store, fleet = Reads(), [gpu(n) for n in range(2 * TOGETHER)]
    for one in fleet[1:]:
        store.write(reads(one, T0 + AHEAD - MINUTE))
    store.write(reads(fleet[0], T0 + AHEAD // 2 + HOUR))
    assert outcomes(store, [risk(one) for one in fleet]) == [False] * len(fleet)
    assert sorted(store.spans) == [(TAIL_MS + 1, TOGETHER)] * 2 + [(AHEAD // 2 + 1, 1)]

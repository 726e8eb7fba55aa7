"""Statements against what came: only windows that are over count, and what is said again is no new case."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tocsin.domain.alert_level import AlertLevel
from tocsin.domain.clock import DAY, HOUR, MINUTE
from tocsin.domain.finding import Subject, SubjectKind
from tocsin.domain.prediction import Prediction, PredictionStatus
from tocsin.queries.pager_score import Cause, PagerAlert, Truth
from tocsin.queries.statement_score import cases_of, score_rules, score_statements
from tocsin.store.port import Series

T0 = 1_760_000_000_000
METRIC = "gpu_memory_used_ratio"


def said(at_ms: int, probability: float | None, gpu: str = "GPU-a", **changes: object) -> Prediction:
    crossing = probability is None or probability >= 0.5
    made: dict[str, object] = {
        "subject": Subject(SubjectKind.GPU, gpu),
        "target": "memory",
        "at_ms": at_ms,
        "horizon_ms": 2 * HOUR,
        "status": PredictionStatus.CROSSING if crossing else PredictionStatus.NO_CROSSING,
        "model": "line",
        "model_version": "1",
        "sentence": "",
        "metric": METRIC,
        "threshold": 0.9,
        "value": 0.8,
        "probability": probability,
    }
    if crossing:
        made |= {
            "eta_ms": at_ms + HOUR,
            "eta_low_ms": at_ms + HOUR // 2,
            "eta_high_ms": at_ms + 2 * HOUR,
            "coverage": 0.8,
        }
    return Prediction(**(made | changes))  # type: ignore[arg-type]


def rising(crossed_ms: int | None) -> object:
    """A series that stands at 0.8 and, from `crossed_ms` on, at 0.95."""
    at_ms = np.arange(T0, T0 + 12 * HOUR, MINUTE)
    values = np.where(at_ms >= crossed_ms, 0.95, 0.8) if crossed_ms is not None else np.full(at_ms.size, 0.8)

    def between(_gpu: str, metric: str, start_ms: int, end_ms: int) -> Series:
        inside = (at_ms >= start_ms) & (at_ms < end_ms)
        return Series(_gpu, (metric,), at_ms[inside], values[inside, None])

    return between


def test_a_window_that_is_not_over_settles_nothing_even_where_it_has_crossed() -> None:
    made = [said(T0, 0.9)]
    for now_ms, settled in ((T0 + HOUR + MINUTE, 0), (T0 + 2 * HOUR, 1)):
        (score,) = score_statements(cases_of(made, rising(T0 + HOUR), now_ms), {})  # type: ignore[arg-type]
        assert (score.settled, score.pending) == (settled, 1 - settled)
        assert score.right == settled
    assert score.coverage == 1.0


def test_what_is_said_again_within_its_window_is_one_case() -> None:
    made = [said(T0 + n * 5 * MINUTE, 0.9) for n in range(24)] + [said(T0 + 3 * HOUR, 0.9)]
    (score,) = score_statements(cases_of(made, rising(None), T0 + 12 * HOUR), {})  # type: ignore[arg-type]
    assert (score.settled, score.right) == (2, 0)


def test_stated_against_observed_has_both_what_comes_and_what_does_not() -> None:
    sure = [said(T0, 0.9, f"GPU-{n}") for n in range(10)]
    unlikely = [said(T0, 0.1, f"GPU-{n}") for n in range(10, 20)]
    came = rising(T0 + HOUR)
    none = rising(None)

    def between(gpu: str, metric: str, start_ms: int, end_ms: int) -> Series:
        number = int(gpu.removeprefix("GPU-"))
        return (came if number != 0 and number < 10 else none)(gpu, metric, start_ms, end_ms)  # type: ignore[operator, no-any-return]

    (score,) = score_statements(cases_of([*sure, *unlikely], between, T0 + 3 * HOUR), {"memory by line": 0.25})
    assert (score.settled, score.right, score.muted_share) == (10, 9, 0.25)
    assert score.stated == pytest.approx(0.5)
    assert score.observed == pytest.approx(0.45)
    assert score.brier_skill == pytest.approx(1 - (18 * 0.01 + 0.01 + 0.81) / 20 / (0.45 * 0.55))
    assert [(one.cases, one.observed) for one in score.bins] == [(10, 0.0), (10, 0.9)]


def test_an_interval_without_an_end_is_counted_apart() -> None:
    made = [said(T0, 0.9, "GPU-a"), said(T0, 0.9, "GPU-b", eta_high_ms=None)]
    (score,) = score_statements(cases_of(made, rising(T0 + 10 * MINUTE), T0 + 3 * HOUR), {})  # type: ignore[arg-type]
    assert score.open_intervals == 0.5
    assert score.coverage == 0.0  # it came before the low end of the one that is closed


def test_a_crossing_that_is_past_is_no_statement() -> None:
    assert not cases_of([said(T0, 0.9, eta_ms=T0)], rising(None), T0 + 3 * HOUR)  # type: ignore[arg-type]


def test_a_fault_is_settled_by_the_truth_alone() -> None:
    risk = said(T0, 0.7, metric="", status=PredictionStatus.LIKELY, eta_ms=None, target="hardware_fault")
    fault = Cause("row_remap", frozenset({"GPU-a"}), T0, T0 + HOUR, T0 + HOUR, None, hard=True)
    beside = replace(fault, places=frozenset({"GPU-a", "GPU-b"}), own=frozenset({"GPU-b"}))
    assert not cases_of([risk], rising(None), T0 + 3 * HOUR)  # type: ignore[arg-type]
    for causes, right in (([fault], 1), ([], 0), ([beside], 0), ([replace(beside, own=beside.places)], 1)):
        truth = Truth(causes, T0 + 3 * HOUR)
        (score,) = score_statements(cases_of([risk], rising(None), T0 + 3 * HOUR, truth), {})  # type: ignore[arg-type]
        assert (score.settled, score.right) == (1, right)


def test_rules_are_kinds_of_statement_too() -> None:
    fault = Cause("row_remap", frozenset({"GPU-a"}), T0, T0 + HOUR, T0 + HOUR, None, hard=True)
    alerts = [
        PagerAlert(T0 + HOUR, AlertLevel.PAGE, "xid_memory", frozenset({"GPU-a"})),
        PagerAlert(T0 + HOUR, AlertLevel.PAGE, "xid_memory", frozenset({"GPU-b"})),
        PagerAlert(T0 + HOUR, AlertLevel.NOTE, "xid_memory", frozenset({"GPU-b"})),
    ]
    (score,) = score_rules(alerts, Truth([fault], T0 + 6 * HOUR))
    assert (score.kind, score.settled, score.right) == ("rule xid_memory", 2, 1)


def test_a_rule_that_foretells_has_its_share_of_notes_though_it_told_nothing_more() -> None:
    warned = PagerAlert(T0, AlertLevel.WARNING, "pcie_crc_errors", frozenset({"GPU-b"}))
    muted = {"rule pcie_crc_errors": 0.25, "rule nvlink_crc_grows": 0.6, "rule memory_errors_grow": 0.0}
    found = score_rules([warned], Truth([], T0 + 2 * DAY), muted)
    assert [(one.kind, one.settled, one.muted_share) for one in found] == [
        ("rule nvlink_crc_grows", 0, 0.6),
        ("rule pcie_crc_errors", 1, 0.25),
    ]


def test_the_coverage_of_intervals_counts_claims_that_did_not_come() -> None:
    made = [said(T0, 0.9), said(T0 + 3 * HOUR, 0.9)]
    (score,) = score_statements(cases_of(made, rising(T0 + 4 * HOUR), T0 + 9 * HOUR), {})  # type: ignore[arg-type]
    assert (score.settled, score.right, score.coverage) == (2, 1, 0.5)


def test_a_gpu_that_stops_reporting_shows_nothing() -> None:
    whole = rising(None)

    def ends_soon(gpu: str, metric: str, start_ms: int, end_ms: int) -> Series:
        return whole(gpu, metric, start_ms, min(end_ms, T0 + 20 * MINUTE))  # type: ignore[operator, no-any-return]

    assert not cases_of([said(T0, 0.9)], ends_soon, T0 + 3 * HOUR)


def test_a_finite_interval_stands_beside_that_of_the_last_hours_line() -> None:
    at_ms = np.arange(T0 - HOUR, T0 + 3 * HOUR, MINUTE)
    noise = np.where(np.arange(at_ms.size) % 2, 0.002, -0.002)
    steady = 0.8 + 0.1 * (at_ms - T0) / HOUR + noise

    def of(values: np.ndarray) -> object:
        def between(gpu: str, metric: str, start_ms: int, end_ms: int) -> Series:
            inside = (at_ms >= start_ms) & (at_ms < end_ms)
            return Series(gpu, (metric,), at_ms[inside], values[inside, None])

        return between

    (rising_one,) = score_statements(cases_of([said(T0, 0.9)], of(steady), T0 + 3 * HOUR), {})  # type: ignore[arg-type]
    (interval,) = rising_one.intervals
    assert (interval.held, interval.minutes) == (True, 90.0)
    assert interval.last_slope_minutes is not None
    assert 0.0 < interval.last_slope_minutes < 10.0
    assert interval.last_slope_stretch is not None
    assert interval.last_slope_stretch == pytest.approx(0.0, abs=2.0), "it comes after an hour, as the line says"
    (flat,) = score_statements(cases_of([said(T0, 0.9)], of(0.8 + noise), T0 + 3 * HOUR), {})  # type: ignore[arg-type]
    assert [one.last_slope_minutes for one in flat.intervals] == [None], "a line that might not rise has no end"
    assert rising_one.brier == pytest.approx(0.01)

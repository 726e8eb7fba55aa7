"""Reading the past for the rules: which instants, which values, and what happens while the store is away."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.domain.clock import DAY, HOUR, MINUTE
from tocsin.rules.past import SLOT_MS, Past, Wanted, instants
from tocsin.runtime.brain.past_reader import PastReader
from tocsin.runtime.brain.periodic import LONGEST_REST
from tocsin.store.port import Columns, Store, StoreUnavailable
from tocsin_testing.builders import T0

METRICS = ("a_total", "b_total")
WANTED = Wanted(METRICS, 2 * DAY)
NAN = float("nan")
Asked = Callable[[int], Columns]


def rows(*found: tuple[str, float, float]) -> Columns:
    """A row for each (UUID, first metric, second metric), a minute apart."""
    gpus = tuple(sorted({uuid for uuid, *_ in found}))
    return Columns(
        gpus,
        METRICS,
        np.array([gpus.index(uuid) for uuid, *_ in found], dtype=np.int32),
        np.arange(len(found), dtype=np.int64) * MINUTE,
        np.array([values for _, *values in found], dtype=np.float64).reshape(-1, len(METRICS)),
    )


def store_of(answer: Asked) -> Store:
    return Mock(spec=Store, columns=Mock(side_effect=lambda _metrics, start, _end: answer(start)))


def told(answer: Asked, wanted: Wanted = WANTED) -> Past:
    found: list[Past] = []
    reader = PastReader(store_of(answer), wanted, T0, found.append)
    for _ in range(200):
        reader.look()
    (past,) = found
    return past


@given(start=st.integers(0, 3 * DAY), span=st.integers(0, 3 * DAY))
def test_each_slot_has_one_instant_far_from_its_ends(start: int, span: int) -> None:
    found = list(instants(start, start + span))
    assert all(start <= at_ms < start + span and at_ms % SLOT_MS == SLOT_MS // 2 for at_ms in found)
    assert len(found) in (span // SLOT_MS, span // SLOT_MS + 1)


def test_the_past_ends_with_the_first_sample_that_a_start_has_read() -> None:
    past = told(lambda _start: rows(("GPU-1", 1.0, 2.0)))
    assert past.at_ms.tolist() == list(instants(T0 - 2 * DAY, T0 - DAY + SLOT_MS))
    assert 0 <= past.at_ms[-1] - (T0 - DAY) < SLOT_MS


def test_the_oldest_known_value_of_each_metric_counts() -> None:
    past = told(lambda _start: rows(("GPU-1", NAN, 2.0), ("GPU-2", 7.0, NAN), ("GPU-1", 4.0, 3.0), ("GPU-1", 5.0, NAN)))
    assert past.gpus == ["GPU-1", "GPU-2"]
    assert past.values["a_total"][0].tolist() == [4.0, 7.0]
    np.testing.assert_array_equal(past.values["b_total"][0], [2.0, NAN])


def test_what_comes_and_goes_is_unknown_meanwhile() -> None:
    def answer(start: int) -> Columns:
        return rows(("GPU-2", 1.0, 1.0)) if start < T0 - DAY - 6 * HOUR else rows(("GPU-1", 2.0, 2.0))

    past = told(answer)
    early = past.at_ms < T0 - DAY - 6 * HOUR
    assert past.gpus == ["GPU-2", "GPU-1"]
    np.testing.assert_array_equal(np.isnan(past.values["a_total"]), np.column_stack([~early, early]))


def test_nothing_is_read_where_no_rule_asks() -> None:
    store = store_of(lambda _start: pytest.fail("asked"))
    PastReader(store, Wanted((), 0), T0, lambda _past: pytest.fail("told")).look()


def test_a_store_that_is_away_is_asked_ever_less_often_and_nothing_is_left_out() -> None:
    away = True
    asked: list[int] = []
    found: list[Past] = []

    def answer(start: int) -> Columns:
        asked.append(start)
        if away:
            raise StoreUnavailable("the store is away")
        return rows(("GPU-1", 1.0, 1.0))

    reader = PastReader(store_of(answer), WANTED, T0, found.append)
    failures = 0
    for _ in range(1_000):
        try:
            reader.look()
        except StoreUnavailable:
            failures += 1
    assert failures == len(asked) < 1_000 / LONGEST_REST + 7
    away = False
    for _ in range(2 * LONGEST_REST):
        reader.look()
    (past,) = found
    assert asked[failures - 1] == past.at_ms[0]
    assert asked[failures:] == past.at_ms.tolist()

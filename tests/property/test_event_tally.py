"""Counts of the past against counting by hand, and blind to what comes later."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.domain.clock import DAY
from tocsin_benchmarks.tally import Tally, numbered, pairs

EVENTS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40 * DAY)), max_size=30)
ASKED = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 45 * DAY)), min_size=1, max_size=10)


def _split(rows: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    table = np.asarray(rows, dtype=np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


@given(EVENTS, ASKED, st.integers(1, 20))
def test_counts_and_ages_by_hand(events: list[tuple[int, int]], asked: list[tuple[int, int]], days: int) -> None:
    tally, rows = Tally(*_split(events)), _split(asked)
    count, recent = tally.count(*rows), tally.count(*rows, window_ms=days * DAY)
    since, faded = tally.days_since(*rows), tally.decayed(*rows, days)
    newest, following = tally.newest(*rows), tally.next(*rows)
    for place, (entity, at_ms) in enumerate(asked):
        past = [ms for who, ms in events if who == entity and ms <= at_ms]
        later = [ms for who, ms in events if who == entity and ms > at_ms]
        assert count[place] == len(past)
        assert recent[place] == sum(ms > at_ms - days * DAY for ms in past)
        assert faded[place] == pytest.approx(sum(np.exp(-(at_ms - ms) / (days * DAY)) for ms in past))
        if past:
            assert since[place] == (at_ms - max(past)) / DAY
            assert events[newest[place]] == (entity, max(past))
        else:
            assert np.isnan(since[place])
            assert newest[place] == -1
        assert (events[following[place]] == (entity, min(later))) if later else following[place] == -1


@given(EVENTS, EVENTS, ASKED)
def test_what_comes_later_changes_nothing(
    events: list[tuple[int, int]], more: list[tuple[int, int]], asked: list[tuple[int, int]]
) -> None:
    rows = _split(asked)
    end_ms = int(rows[1].max())
    later = [(who, ms + end_ms + 1) for who, ms in more]
    plain, perturbed = Tally(*_split(events)), Tally(*_split(events + later))
    np.testing.assert_array_equal(plain.count(*rows), perturbed.count(*rows))
    np.testing.assert_array_equal(plain.days_since(*rows), perturbed.days_since(*rows))
    np.testing.assert_array_equal(plain.decayed(*rows, 7.0), perturbed.decayed(*rows, 7.0))


@given(st.lists(st.integers(0, 5), max_size=12), st.lists(st.integers(0, 6), max_size=12))
def test_pairs_are_all_equal_ones(keys: list[int], wanted: list[int]) -> None:
    left, right = pairs(np.asarray(keys, dtype=np.int64), np.asarray(wanted, dtype=np.int64))
    expected = {(i, j) for i, key in enumerate(keys) for j, one in enumerate(wanted) if key == one}
    assert set(zip(left.tolist(), right.tolist(), strict=True)) == expected
    assert left.size == len(expected)


def test_numbered_tells_combinations_apart() -> None:
    first, second = np.array([0, 0, 1, 1, 0]), np.array([5, 6, 5, 6, 5])
    assert numbered(first, second).tolist() == [0, 1, 2, 3, 0]

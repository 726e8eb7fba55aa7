"""The bounded past of rows, of which only those with samples have a place."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tocsin.rules.history import SLOTS, Ring
from tocsin.rules.table import SubjectTable

ROWS, WINDOW = 40, 12 * SLOTS
step = st.tuples(
    st.sampled_from(("push", "push", "push", "leave", "cut")),
    st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=ROWS, unique=True),
    st.integers(1, WINDOW),
)


@given(st.lists(step, max_size=30))
def test_a_row_has_its_own_past_whoever_had_its_place_before(steps: list[tuple[str, list[int], int]]) -> None:
    table = SubjectTable()
    ring = Ring(table, WINDOW)
    for row in range(ROWS):
        table.row(row)
    table.settle()
    past: dict[int, list[tuple[int, float]]] = {}
    now = 10_000
    for what, chosen, later in steps:
        now += later
        rows = np.array(chosen, np.int64)
        if what == "push":
            fresh = [row for row in chosen if all(at // SLOTS != now // SLOTS for at, _ in past.get(row, []))]
            ring.push(rows, np.full(rows.size, now), rows * 1000.0 + now)
            for row in fresh:
                past.setdefault(row, []).append((now, row * 1000.0 + now))
        elif what == "leave":
            for row in chosen:
                # One at a time, so that its number is the next that is taken.
                table.leave(np.array([row]))
                table.release()
                past.pop(row, None)
                table.row(row)
        else:
            assert ring.cut(chosen[0], None) is None
            past.pop(chosen[0], None)
        values, at = ring.reference(np.arange(ROWS), np.full(ROWS, now + 1), 10**9)
        for row in range(ROWS):
            # What is older than the slots hold may have been written over.
            kept = [one for one in past.get(row, []) if one[0] // SLOTS > now // SLOTS - SLOTS]
            old = [one for one in kept if now + 1 - one[0] >= WINDOW]
            if kept and not old and len(kept) == len(past[row]):
                assert (at[row], values[row]) == kept[0]
            elif not past.get(row):
                assert at[row] == 0
                assert np.isnan(values[row])


def test_places_are_taken_for_what_has_samples_and_given_back() -> None:
    table = SubjectTable()
    ring = Ring(table, WINDOW)
    for number in range(10_000):
        table.row(number)
    table.settle()
    for turn in range(20):
        rows = np.arange(turn * 30, turn * 30 + 30)
        ring.push(rows, np.full(30, 1 + turn), np.zeros(30))
        table.leave(rows)
        table.release()
    assert ring._x.shape[1] < 100

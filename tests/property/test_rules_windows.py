"""Windows against sums made by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin.domain.finding import Finding
from tocsin.rules.fleet import gang_ratio, group_means, idle
from tocsin.rules.peer_values import group_medians
from tocsin_testing.rule_runs import Run, rule

WINDOW = 12


def value(found: list[Finding]) -> float:
    return found[0].value or 0.0 if found else 0.0


@settings(max_examples=40)
@given(st.lists(st.integers(0, 4), min_size=2, max_size=50))
def test_increase_over_a_window_is_the_sum_of_the_steps_in_it(steps: list[int]) -> None:
    run = Run(rule(f'all = [{{ kind = "rate", metric = "gpu_pcie_replay_total", over = "{WINDOW}m", above = 0 }}]'))
    total = 0
    run.step(0, {"pcie_replay_total": total})
    for minute, step in enumerate(steps, start=1):
        total += step
        run.step(minute, {"pcie_replay_total": total})
        least = sum(steps[max(0, minute - WINDOW) : minute])
        most = sum(steps[max(0, minute - WINDOW - 2) : minute])
        assert least <= value(run.last.active) <= most


@settings(max_examples=40)
@given(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=16, max_size=50))
def test_mean_over_a_window_lies_between_the_means_of_its_neighbours(values: list[float]) -> None:
    condition = f'{{ kind = "threshold", metric = "gpu_utilization_ratio", over = "{WINDOW}m", at_least = 0 }}'
    run = Run(rule(f"all = [{condition}]"))
    for minute, utilization in enumerate(values):
        run.step(minute, {"utilization_ratio": utilization})
        if minute < WINDOW:
            continue
        means = []
        for length in (WINDOW, WINDOW + 1, WINDOW + 2):
            part = values[max(0, minute - length) : minute + 1]
            means.append(float(np.trapezoid(part)) / (len(part) - 1))
        assert min(means) - 1e-9 <= value(run.last.active) <= max(means) + 1e-9


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(-50, 150), st.booleans()), min_size=1, max_size=40))
def test_group_medians_are_numpys(rows: list[tuple[int, float, bool]]) -> None:
    _, groups = np.unique([group for group, _, _ in rows], return_inverse=True)
    values = np.array([number for _, number, _ in rows])
    counted = np.array([one for _, _, one in rows])
    medians, sizes = group_medians(values, groups, counted)
    for i, group in enumerate(groups):
        mine = values[(groups == group) & counted]
        assert medians[i] == pytest.approx(float(np.median(mine)) if mine.size else math.nan, nan_ok=True)
        assert sizes[i] == mine.size


@pytest.mark.parametrize(
    ("free", "sizes", "expected"),
    [
        ([4, 5], [8, 8], 1.0),
        ([8, 1], [8, 8], 1 / 9),
        ([8, 8], [8, 8], 0.0),
        ([3, 4], [8, 8], 0.0),
        ([2, 3, 4], [4, 4, 4], 5 / 9),
        ([], [], 0.0),
        ([0, 0], [8, 8], 0.0),
    ],
)
def test_stranded_share(free: list[int], sizes: list[int], expected: float) -> None:
    found = gang_ratio(np.array(free, dtype=np.int64), np.array(sizes, dtype=np.int64))
    assert found == pytest.approx(expected)


def test_idle_needs_no_load_and_no_process() -> None:
    nan = float("nan")
    utilization = np.array([0.0, 0.0, 0.0, 0.0, 0.5, nan, 0.0])
    processes = np.array([0.0, 1.0, nan, nan, 0.0, 0.0, nan])
    memory = np.array([0.9, 0.0, 0.01, 0.5, 0.0, 0.0, nan])
    assert idle(utilization, processes, memory).tolist() == [True, False, True, False, False, False, True]


def test_group_means_need_half_of_the_members() -> None:
    values = np.array([1.0, 3.0, float("nan"), 5.0, 9.0])
    groups = np.array([0, 0, 1, 1, -1])
    means = group_means(values, groups, np.array([2, 3, 0]), 3)
    assert means[0] == 2.0
    assert np.isnan(means[1:]).all()

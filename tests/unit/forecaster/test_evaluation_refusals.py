"""Splits that leak are refused, and what the leak would have claimed stands beside the honest figure."""

from __future__ import annotations

import numpy as np
import pytest

from tocsin.domain.clock import DAY
from tocsin.domain.errors import InputError
from tocsin.forecaster.evaluation.leak import HONEST, LEAK, leak_factor, out_of_fold
from tocsin.forecaster.evaluation.split import (
    Split,
    SplitKind,
    by_device,
    by_time,
    by_time_and_device,
    check,
    check_instants,
    check_parts,
    until,
    walk_forward,
)
from tocsin.forecaster.features.examples import NEVER, Examples, Floats
from tocsin_testing.eval_data import HORIZON, START, fleet, rows


@pytest.mark.parametrize("kind", list(SplitKind))
def test_a_row_random_split_is_refused_whatever_it_calls_itself(kind: SplitKind) -> None:
    examples = fleet()
    order = np.random.default_rng(0).permutation(len(examples))
    half = len(order) // 2
    with pytest.raises(InputError, match=r"row-random.*split by time with a gap"):
        check(examples, Split(order[:half], order[half:], kind), HORIZON)


def test_train_labels_that_look_into_the_test_are_refused() -> None:
    examples = fleet()
    with pytest.raises(InputError, match=r"train labels look 24.0 h into the test"):
        check(examples, by_time(examples, START + 20 * DAY, DAY), HORIZON)
    check(examples, by_time(examples, START + 20 * DAY, HORIZON), HORIZON)


def test_a_device_in_both_parts_needs_the_order_of_time() -> None:
    examples = fleet()
    split = by_time(examples, START + 20 * DAY, HORIZON)
    with pytest.raises(InputError, match="devices are in train and test"):
        check(examples, Split(split.train, split.test, SplitKind.DEVICE), HORIZON)
    with pytest.raises(InputError, match="row-random"):
        check(examples, Split(split.test, split.train, SplitKind.TIME), HORIZON)


def test_features_dated_after_the_decision_are_refused() -> None:
    good = rows([0, 1], [0, 10])
    late = rows([0, 1], [0, 10], seen_ms=good.at_ms + np.array([0, 1]))
    with pytest.raises(InputError, match="1 rows have features dated after the decision, row 1 by 1 ms"):
        check_instants(late)
    with pytest.raises(InputError, match="features dated after"):
        check(late, by_time(late, START + 9 * DAY, HORIZON), HORIZON)
    with pytest.raises(InputError, match="an onset that is not after the decision"):
        check_instants(rows([0], [3], [3]))


def test_rows_that_are_no_rows_are_refused() -> None:
    examples = rows([0, 1, 2], [0, 10, 20])
    for train, test, problem in (
        ([], [1], "no rows"),
        ([0, 0], [1], "distinct"),
        ([0], [7], "distinct"),
        ([0, 1], [1, 2], "rows are in train and test"),
    ):
        with pytest.raises(InputError, match=problem):
            check(examples, Split(np.array(train, int), np.array(test, int), SplitKind.TIME), HORIZON)


def test_parts_that_come_apart_are_told_by_device_names() -> None:
    train, test = rows([0, 1], [0, 1]), rows([1, 2], [9, 9])
    check_parts(train, test, HORIZON, SplitKind.TIME)
    with pytest.raises(InputError, match="1 devices are in train and test, such as d1"):
        check_parts(train, test, HORIZON, SplitKind.DEVICE)
    check_parts(train, rows([2, 3], [0, 0]).take(np.array([0])), HORIZON, SplitKind.DEVICE)


def test_train_forgets_what_came_after_the_test_began() -> None:
    known = until(rows([0, 0], [0, 1], [5, 15]), START + 10 * DAY)
    assert known.event_ms.tolist() == [START + 5 * DAY, NEVER]
    assert known.event_class.tolist() == ["bus", ""]
    assert known.until_ms.tolist() == [START + 10 * DAY] * 2
    examples = fleet()
    train, test = by_time(examples, START + 20 * DAY, HORIZON).parts(examples, HORIZON)
    assert train.until_ms.max() == test.at_ms.min()
    assert train.event_ms[train.event_ms != NEVER].max() <= test.at_ms.min()


def test_sliding_forward_needs_enough_past() -> None:
    examples = fleet(days=8)
    with pytest.raises(InputError, match=r"too little history for 3 folds with a gap of 48 h.*more than 192 h"):
        list(walk_forward(examples, 3, HORIZON))
    with pytest.raises(InputError, match="only 24 devices"):
        list(by_device(examples, 30, 0))


def test_time_and_device_at_once() -> None:
    examples = fleet()
    splits = list(by_time_and_device(examples, START + 20 * DAY, HORIZON, 3, 0, group=True))
    assert [split.kind for split in splits] == [SplitKind.TIME_AND_DEVICE] * 3
    for split in splits:
        check(examples, split, HORIZON)
        assert not set(examples.group[split.train]) & set(examples.group[split.test])


def recogniser(train: Examples, test: Examples) -> Floats:
    """Tells a device by a constant feature and repeats what its nearest row in train had: the sin itself."""
    label, _ = train.label(HORIZON)
    score = np.zeros(len(test))
    for row in range(len(test)):
        same = np.flatnonzero(train.device == test.device[row])
        if same.size:
            score[row] = label[same[np.argmin(np.abs(train.at_ms[same] - test.at_ms[row]))]]
    return score


def test_leak_factor_shows_what_a_random_split_would_have_claimed() -> None:
    examples = fleet(devices=16, days=24, every=0.25)
    honest = list(by_device(examples, 4, 0))
    told = leak_factor(recogniser, examples, honest, HORIZON, draws=20)
    assert "leak" in told.title
    assert "No claim" in told.notes[0]
    assert told.models[HONEST]["roc_auc"].value == 0.5
    assert told.models[LEAK]["roc_auc"].value > 0.95
    assert told.models[LEAK]["leak_factor"].value > 5
    assert told.models[LEAK]["balanced_accuracy"].value > 0.9


def test_out_of_fold_and_leak_refuse_a_leaking_split() -> None:
    examples = fleet(devices=8, days=10, every=0.25)
    order = np.random.default_rng(0).permutation(len(examples))
    split = Split(order[:50], order[50:], SplitKind.TIME_AND_DEVICE)
    for run in (out_of_fold, leak_factor):
        with pytest.raises(InputError, match="row-random"):
            run(recogniser, examples, [split], HORIZON)
    with pytest.raises(InputError, match="no split to compare with"):
        leak_factor(recogniser, examples, [], HORIZON)

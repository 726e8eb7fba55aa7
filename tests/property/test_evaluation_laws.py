"""Laws of splits and figures over random tables."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tocsin.domain.clock import DAY, HOUR
from tocsin.domain.errors import InputError
from tocsin.forecaster.evaluation.bootstrap import clusters
from tocsin.forecaster.evaluation.ranking import order_figures
from tocsin.forecaster.evaluation.split import Split, SplitKind, by_device, by_time, check, fold_numbers, walk_forward
from tocsin.forecaster.features.examples import Examples
from tocsin_testing.eval_data import START, rows

MANY = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def tables(draw: st.DrawFn) -> Examples:
    count = draw(st.integers(8, 60))
    device = draw(st.lists(st.integers(0, 7), min_size=count, max_size=count))
    day = draw(st.lists(st.integers(0, 60), min_size=count, max_size=count))
    return rows(device, day)


@MANY
@given(tables(), st.integers(0, 60), st.integers(1, 96))
def test_by_time_gives_what_check_accepts(examples: Examples, day: int, gap_h: int) -> None:
    split = by_time(examples, START + day * DAY, gap_h * HOUR)
    if split.train.size and split.test.size:
        check(examples, split, gap_h * HOUR)
        assert (examples.at_ms[split.train].max() + gap_h * HOUR) <= examples.at_ms[split.test].min()


@MANY
@given(tables(), st.integers(2, 4), st.integers(0, 5), st.booleans())
def test_by_device_tests_every_row_once(examples: Examples, folds: int, seed: int, group: bool) -> None:
    code = examples.group if group else examples.device
    if np.unique(code).size < folds:
        return
    splits = list(by_device(examples, folds, seed, group=group))
    tested = np.sort(np.concatenate([split.test for split in splits]))
    assert tested.tolist() == list(range(len(examples)))
    for split in splits:
        check(examples, split, 48 * HOUR)
        assert not set(code[split.train]) & set(code[split.test])


@MANY
@given(tables(), st.integers(0, 5))
def test_folds_do_not_depend_on_the_order_of_rows(examples: Examples, seed: int) -> None:
    back = np.arange(len(examples))[::-1]
    folds = min(2, np.unique(examples.device).size)
    forth = fold_numbers(examples, folds, seed)
    assert fold_numbers(examples.take(back), folds, seed).tolist() == forth[back].tolist()


@MANY
@given(tables(), st.integers(1, 3), st.integers(1, 3))
def test_walking_forward_is_accepted_and_tests_no_row_twice(examples: Examples, folds: int, devices: int) -> None:
    try:
        splits = list(walk_forward(examples, folds, 24 * HOUR, devices))
    except InputError:
        return
    tested = np.concatenate([split.test for split in splits])
    assert np.unique(tested).size == tested.size
    for split in splits:
        if split.train.size and split.test.size:
            check(examples, split, 24 * HOUR)


@MANY
@given(tables(), st.data())
def test_a_split_with_a_later_train_row_of_a_tested_device_is_refused(examples: Examples, data: st.DataObject) -> None:
    order = np.asarray(data.draw(st.permutations(range(len(examples)))))
    cut = data.draw(st.integers(1, len(order) - 1))
    train, test = order[:cut], order[cut:]
    shared = np.intersect1d(examples.device[train], examples.device[test])
    mixed = any(
        examples.at_ms[train][examples.device[train] == one].max()
        >= examples.at_ms[test][examples.device[test] == one].min()
        for one in shared
    )
    if mixed:
        for kind in SplitKind:
            with pytest.raises(InputError):
                check(examples, Split(train, test, kind), 48 * HOUR)


@MANY
@given(st.lists(st.tuples(st.integers(0, 6), st.booleans(), st.integers(1, 4)), min_size=3, max_size=40))
def test_weights_are_copies(table: list[tuple[int, bool, int]]) -> None:
    score, label, weight = (np.array(column) for column in zip(*table, strict=True))
    if not label.any() or label.all():
        return
    copies = np.repeat(np.arange(label.size), weight)
    drawn, every = (clusters(np.arange(size), 0, 0) for size in (label.size, copies.size))
    weighted = order_figures(score.astype(float), label, weight.astype(float), drawn, [0.1, 0.5])
    copied = order_figures(score[copies].astype(float), label[copies], np.ones(copies.size), every, [0.1, 0.5])
    for name, one in weighted.items():
        assert one[0] == pytest.approx(copied[name][0]), name


@MANY
@given(st.integers(0, 10_000))
def test_a_draw_is_the_figure_of_the_drawn_devices(seed: int) -> None:
    rng = np.random.default_rng(seed)
    device = rng.integers(0, 6, 50)
    score, label = rng.integers(0, 5, 50).astype(float), rng.random(50) < 0.4
    drawn = clusters(device, 3, seed)
    found = order_figures(score, label, np.ones(50), drawn)
    for draw in range(4):
        weight = drawn.times[drawn.code, draw]
        again = order_figures(score, label, weight, clusters(np.arange(50), 0, 0))
        for name, values in found.items():
            assert values[draw] == pytest.approx(again[name][0], nan_ok=True), (name, draw)

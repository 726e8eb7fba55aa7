"""Signs in the shape of a node's telemetry, on made-up recordings."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tocsin.domain.clock import DAY, HOUR, MINUTE, from_iso
from tocsin.forecaster.anomaly.structural import (
    FROZEN,
    LOST,
    SIGNS,
    SILENT,
    XID,
    NodeRecord,
    code_onsets,
    is_hardware,
    signs,
)

T0 = from_iso("2025-03-01")
STEP = 10 * MINUTE
ROWS = 4 * 144


def record(rows: int = ROWS, gpus: int = 2, metrics: int = 3, step_ms: int = STEP) -> NodeRecord:
    values = np.random.default_rng(0).normal(100, 5, (rows, gpus, metrics)).round(1)
    return NodeRecord(
        "n",
        T0 + np.arange(rows, dtype=np.int64) * step_ms,
        tuple(f"n:{gpu}" for gpu in range(gpus)),
        tuple("abcdef"[:metrics]),
        values,
        np.zeros((rows, gpus)),
        np.ones(rows, np.bool_),
    )


def rows_of(held: np.ndarray) -> tuple[int, int]:
    found = np.flatnonzero(held)
    return int(found[0]), int(found[-1])


def test_a_quiet_node_shows_no_sign() -> None:
    assert not any(held.any() for held in signs(record()).values())
    assert tuple(signs(record())) == SIGNS


def test_a_metric_is_lost_after_half_an_hour_until_it_is_back() -> None:
    made = record()
    made.values[300:320, 1, 2] = np.nan
    found = signs(made)
    assert rows_of(found[LOST]) == (302, 319)
    assert found[LOST].sum() == 18
    assert not found[SILENT].any()


def test_two_missed_scrapes_are_no_loss() -> None:
    made = record()
    made.values[300:302, 1, 2] = np.nan
    made.values[400:402] = np.nan
    found = signs(made)
    assert not found[LOST].any()
    assert not found[SILENT].any()


def test_a_metric_that_came_and_went_is_not_missed() -> None:
    made = record()
    made.values[::2, 0, 0] = np.nan
    made.values[300:, 0, 0] = np.nan
    assert not signs(made)[LOST].any()


def test_a_whole_gpu_that_is_gone_is_a_loss() -> None:
    made = record()
    made.values[300:, 1] = np.nan
    assert rows_of(signs(made)[LOST]) == (302, ROWS - 1)


def test_all_gpus_silent_on_a_node_that_answers() -> None:
    made = record()
    made.values[300:350] = np.nan
    found = signs(made)
    assert rows_of(found[SILENT]) == (302, 349)
    assert not found[LOST].any()


def test_silence_of_a_node_that_is_switched_off_is_none() -> None:
    made = record()
    made.values[300:350] = np.nan
    made.powered[300:350] = False
    assert not signs(made)[SILENT].any()


def test_nothing_is_known_across_a_pause_of_the_recording() -> None:
    made = record()
    at_ms = made.at_ms.copy()
    at_ms[300:] += DAY
    made = replace(made, at_ms=at_ms)
    made.values[300:, 0, 0] = np.nan
    made.code[300:, 0] = 79
    assert not any(held.any() for held in signs(made).values())
    assert code_onsets(made) == []


def test_what_is_missing_for_a_week_is_no_longer_missed() -> None:
    made = record(rows=12 * 144)
    made.values[300:, 0, 0] = np.nan
    first, last = rows_of(signs(made)[LOST])
    assert first == 302
    assert made.at_ms[last] - made.at_ms[299] == 7 * DAY


def test_values_are_frozen_only_when_no_gpu_moves() -> None:
    made = record()
    made.values[300:340, 0] = made.values[300, 0]
    assert not signs(made)[FROZEN].any()
    made.values[300:340] = made.values[300]
    assert rows_of(signs(made)[FROZEN]) == (312, 339)


@pytest.mark.parametrize(("code", "hardware"), [(79, True), (31, False), (13, False), (48, True)])
def test_a_hardware_code_holds_until_it_changes(code: int, hardware: bool) -> None:
    made = record()
    made.code[300:330, 0] = code
    held = signs(made)[XID]
    assert is_hardware(code) is hardware
    assert held.any() == hardware
    if hardware:
        assert rows_of(held) == (300, 329)
    events = code_onsets(made)
    assert [(event.at_ms, event.gpu, event.code) for event in events] == [(int(made.at_ms[300]), "n:0", code)]


def test_the_first_code_of_a_recording_may_be_days_old() -> None:
    made = record()
    made.code[:, 0] = 79
    assert not signs(made)[XID].any()
    assert code_onsets(made) == []


def test_a_code_is_seen_past_missing_samples() -> None:
    made = record()
    made.code[290:300, 0] = np.nan
    made.code[300:, 0] = 79
    assert rows_of(signs(made)[XID]) == (300, ROWS - 1)


def test_signs_know_nothing_of_what_comes_after() -> None:
    made = record()
    made.values[200:230, 0, 0] = np.nan
    made.values[300:350] = np.nan
    made.values[400:440] = made.values[400]
    made.code[450:470, 1] = 79
    whole = signs(made)
    for end in (202, 231, 303, 351, 414, 455, 480):
        for name, held in signs(made.cut(0, end)).items():
            np.testing.assert_array_equal(held, whole[name][:end], err_msg=f"{name} at {end}")


def test_a_slower_cadence_needs_fewer_missed_scrapes() -> None:
    made = record(step_ms=15 * MINUTE)
    made.values[300:, 0, 0] = np.nan
    assert rows_of(signs(made)[LOST])[0] == 301
    made = record(step_ms=HOUR)
    made.values[300:, 0, 0] = np.nan
    assert rows_of(signs(made)[LOST])[0] == 300


def test_an_empty_recording_has_no_rows() -> None:
    assert all(held.size == 0 for held in signs(record(rows=0)).values())

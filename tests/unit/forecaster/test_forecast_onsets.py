"""Onsets from events, and labels from onsets."""

from __future__ import annotations

import numpy as np
import pytest

from tocsin.domain.clock import DAY, HOUR, MINUTE
from tocsin.domain.event import Event, EventKind
from tocsin.domain.finding import Severity
from tocsin.forecaster.features.examples import NEVER
from tocsin.forecaster.features.onsets import EVENT_CLASSES, Onset, event_class, label, onsets_of
from tocsin_testing.builders import T0, gpu, xid

A, B, C = gpu(0), gpu(1), gpu(2, host="node-2")


def other(kind: EventKind, at_ms: int, code: int = 0, which: str = A.uuid, **more: object) -> Event:
    return Event(kind, which, "node-1", at_ms, code, "", "test", **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (79, "bus"),
        (48, "memory"),
        (63, "memory"),
        (94, "memory"),
        (92, "warning"),
        (74, "nvlink"),
        (119, "firmware"),
        (54, "power"),
        (109, "other"),
        (31, "application"),
        (13, "application"),
        (154, ""),
        (9999, ""),
    ],
)
def test_class_of_an_xid(code: int, expected: str) -> None:
    assert event_class(xid(code)) == expected
    assert expected in (*EVENT_CLASSES, "")


def test_class_of_other_events() -> None:
    assert event_class(other(EventKind.GPU_LOST, T0)) == "bus"
    assert event_class(other(EventKind.RECOVERY_ACTION, T0, 1)) == "other"
    assert event_class(other(EventKind.RECOVERY_ACTION, T0, 0)) == ""
    assert event_class(other(EventKind.SXID, T0, 22003)) == "nvlink"
    assert event_class(other(EventKind.SXID, T0, 11012)) == "warning"
    assert event_class(other(EventKind.SXID, T0, 10004)) == "thermal"
    assert event_class(other(EventKind.ALLOCATOR_OOM, T0)) == "application"
    assert event_class(other(EventKind.GPU_FOUND, T0)) == ""


def test_an_event_is_judged_by_its_own_severity() -> None:
    mild = other(EventKind.XID, T0, 149, severity=Severity.WARNING)
    assert event_class(mild) == "warning"


def test_a_burst_is_one_onset_with_the_class_of_its_cause() -> None:
    burst = [
        other(EventKind.RECOVERY_ACTION, T0, 1),
        xid(48, A, T0 + 1000),
        xid(63, A, T0 + 2000),
        xid(94, A, T0 + 3 * HOUR),
    ]
    assert onsets_of(burst) == [Onset(A.uuid, T0, "memory", T0 + 3 * HOUR + DAY)]


def test_the_next_fault_after_the_quiet_time_is_new() -> None:
    events = [xid(79, A, T0), xid(79, A, T0 + 20 * HOUR), xid(79, A, T0 + 44 * HOUR)]
    assert [one.at_ms for one in onsets_of(events)] == [T0, T0 + 44 * HOUR]
    assert len(onsets_of(events, quiet_ms=HOUR)) == 3
    assert len(onsets_of(events, quiet_ms=7 * DAY)) == 1


def test_what_programs_cause_is_no_onset() -> None:
    assert onsets_of([xid(31, A), xid(13, B), xid(45, A), xid(92, A)]) == []


def test_a_device_is_faulted_until_it_comes_back() -> None:
    events = [xid(79, A, T0), other(EventKind.GPU_LOST, T0 + MINUTE), other(EventKind.GPU_FOUND, T0 + 5 * HOUR)]
    assert onsets_of(events) == [Onset(A.uuid, T0, "bus", T0 + 5 * HOUR)]


def test_an_event_of_a_host_is_one_of_each_of_its_gpus() -> None:
    found = onsets_of([other(EventKind.SXID, T0, 22003, "")], [A, B, C])
    assert [(one.device, one.fault_class) for one in found] == [(A.uuid, "nvlink"), (B.uuid, "nvlink")]


def test_order_of_events_does_not_matter() -> None:
    events = [xid(79, A, T0 + 9 * DAY), xid(48, B, T0), xid(74, A, T0 + DAY)]
    assert onsets_of(events) == onsets_of(events[::-1])


def labelled(
    at: list[int], onsets: list[Onset], observed: int = 100 * DAY, gap: int = 3 * DAY
) -> list[tuple[object, ...]]:
    rows = np.array(at, dtype=np.int64)
    found = label(rows, np.zeros(rows.size, np.int32), ("a",), onsets, np.array([observed]), gap_ms=gap)
    return list(zip(found.keep.tolist(), found.event_ms.tolist(), found.event_class.tolist(), strict=True))


def test_a_row_has_the_next_onset_and_its_class() -> None:
    onsets = [Onset("a", 10 * DAY, "bus"), Onset("a", 30 * DAY, "memory"), Onset("b", 11 * DAY, "power")]
    assert labelled([9 * DAY, 20 * DAY, 40 * DAY], onsets) == [
        (True, 10 * DAY, "bus"),
        (True, 30 * DAY, "memory"),
        (True, NEVER, ""),
    ]


def test_rows_in_a_fault_and_in_the_gap_behind_it_are_left_out() -> None:
    onsets = [Onset("a", 10 * DAY, "bus", ended_ms=15 * DAY)]
    kept = [row[0] for row in labelled([10 * DAY - 1, 10 * DAY, 14 * DAY, 15 * DAY], onsets)]
    assert kept == [True, False, False, True]
    kept = [row[0] for row in labelled([13 * DAY - 1, 13 * DAY], [Onset("a", 10 * DAY)])]
    assert kept == [False, True]
    assert labelled([10 * DAY + 1], [Onset("a", 10 * DAY)], gap=0)[0][0]


def test_rows_after_the_last_observation_are_left_out_and_the_tail_is_unknown() -> None:
    rows = labelled([10 * DAY, 21 * DAY], [], observed=20 * DAY)
    assert [row[0] for row in rows] == [True, False]
    found = label(np.array([10 * DAY]), np.zeros(1, np.int32), ("a",), [], np.array([20 * DAY]))
    assert found.until_ms.tolist() == [20 * DAY]


def test_rows_may_come_in_any_order() -> None:
    rng = np.random.default_rng(1)
    at = rng.integers(0, 50 * DAY, 200)
    device = rng.integers(0, 3, 200).astype(np.int32)
    onsets = [Onset(name, int(day) * DAY, "bus") for name in "abc" for day in (5, 17, 33)]
    whole = label(at, device, tuple("abc"), onsets, np.full(3, 50 * DAY))
    order = rng.permutation(200)
    mixed = label(at[order], device[order], tuple("abc"), onsets[::-1], np.full(3, 50 * DAY))
    np.testing.assert_array_equal(whole.event_ms[order], mixed.event_ms)
    np.testing.assert_array_equal(whole.keep[order], mixed.keep)

"""Early warnings of a family of faults, beside a fixed level and every rise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tocsin.domain.clock import DAY, HOUR, MINUTE
from tocsin.queries.early_warnings import SignalTable, Warned, rises, score_early
from tocsin.queries.pager_score import Cause, Truth

T0 = 1_760_000_000_000
KINDS = frozenset({"memory_leak"})
GPUS = tuple(f"GPU-{n}" for n in range(20))


def leak(gpu: int, *, benign: bool = False, precursor: bool = True) -> Cause:
    first, onset = T0 + HOUR, T0 + 5 * HOUR
    return Cause("memory_leak", frozenset({GPUS[gpu]}), first, onset, None, onset, False, benign, precursor)


def signal(leaking: set[int]) -> SignalTable:
    at_ms = np.arange(T0, T0 + 6 * HOUR, MINUTE)
    grown = np.clip((at_ms - T0 - HOUR) / (4 * HOUR), 0.0, 1.0)
    columns = [0.5 + 0.45 * grown if gpu in leaking else np.full(at_ms.size, 0.93) for gpu in range(len(GPUS))]
    return SignalTable(at_ms, GPUS, np.column_stack(columns), 0.01)


def test_a_warning_counts_with_half_the_possible_lead() -> None:
    truth = Truth([leak(0), leak(1), leak(2, benign=True), leak(3, precursor=False)], T0 + 6 * HOUR)
    warnings = [
        Warned(T0 + 2 * HOUR, GPUS[0]),
        Warned(T0 + 4 * HOUR, GPUS[1]),  # right, but with less than half of four hours left
        Warned(T0 + 2 * HOUR, GPUS[2]),
        Warned(T0 + 30 * MINUTE, GPUS[0]),  # before the first symptom
    ]
    found = score_early("leaks", warnings, KINDS, truth, signal({0, 1}), seed=1)
    assert (found.service.faults, found.service.warned, found.service.recall) == (2, 1, 0.5)
    assert (found.service.warnings, found.service.right) == (4, 2)


def test_the_simple_ways_are_wrong_where_memory_is_full_and_sound() -> None:
    truth = Truth([leak(n) for n in range(8)], T0 + 6 * HOUR)
    mine = [Warned(T0 + 2 * HOUR, GPUS[n]) for n in range(8)]
    found = score_early("leaks", mine, KINDS, truth, signal(set(range(8))), seed=1)
    level, rise = found.policies
    assert (level.name, rise.name) == ("best fixed level", "warn at every rise")
    assert found.service.precision == 1.0
    # Above what is full and sound nothing is left of the lead, below it everything sound is warned of.
    assert level.recall == 0.0
    better = found.better_recall["best fixed level"]
    assert better is not None
    assert better[0] > 0.0
    assert rise.precision == 1.0  # nothing else rises here
    assert found.better_recall["warn at every rise"] == (0.0, 0.0)


def test_a_rise_is_one_alarm_however_long_it_lasts() -> None:
    assert [one.gpu for one in rises(signal({4, 5}))] == [GPUS[4], GPUS[5]]


@pytest.mark.parametrize("warnings", [[], [Warned(T0, GPUS[0])]])
def test_without_faults_there_is_no_recall(warnings: list[Warned]) -> None:
    found = score_early("leaks", warnings, KINDS, Truth([], T0 + 6 * HOUR), signal(set()), seed=1)
    assert found.service.recall is None
    assert found.better_recall["best fixed level"] is None


def test_what_is_said_of_a_place_that_has_failed_is_nobody_s_early_warning() -> None:
    truth = Truth([leak(0)], T0 + 6 * HOUR)
    struck = [Cause("fallen_off_bus", frozenset(GPUS[1:3]), T0, T0 + HOUR, T0 + HOUR, T0 + 6 * HOUR, True)]
    mine = [Warned(T0 + 2 * HOUR, GPUS[0]), Warned(T0 + 2 * HOUR, GPUS[1]), Warned(T0 + 30 * MINUTE, GPUS[2])]
    found = score_early("leaks", mine, KINDS, truth, signal({0, 1, 2}), seed=1, struck=struck)
    (rise,) = (one for one in found.policies if one.name == "warn at every rise")
    assert (found.service.warnings, found.service.right) == (2, 1)
    assert (rise.warnings, rise.right) == (1, 1), "the rises of the two that failed come after their fault"
    unexcused = score_early("leaks", mine, KINDS, truth, signal({0, 1, 2}), seed=1)
    assert (unexcused.service.warnings, unexcused.policies[1].warnings) == (3, 3)


def struck(first_ms: int, ended_ms: int | None, gpu: int = 0) -> Cause:
    """A fault of a GPU and its host that strikes four hours after its first sign."""
    places, onset_ms = frozenset({GPUS[gpu], "host-0"}), first_ms + 4 * HOUR
    return Cause("nvlink_recovery", places, first_ms, onset_ms, onset_ms, ended_ms, True, precursor=True)


def score_links(truth: Truth, warnings: list[Warned]) -> tuple[int, int, int, int]:
    """Warnings, right ones, faults and those that were warned of, with every fault as one that excuses."""
    found = score_early(
        "links", warnings, frozenset({"nvlink_recovery"}), truth, signal(set()), seed=1, struck=truth.causes
    )
    return found.service.warnings, found.service.right, found.service.faults, found.service.warned


def test_a_place_that_was_repaired_is_judged_anew() -> None:
    first = struck(T0, T0 + 7 * HOUR)
    again = struck(T0 + 5 * DAY, T0 + 5 * DAY + 7 * HOUR)
    truth = Truth([first, again], T0 + 14 * DAY)
    before = [Warned(T0 + HOUR, GPUS[0]), Warned(T0 + 5 * HOUR, GPUS[0]), Warned(T0 + 7 * HOUR, "host-0")]
    assert score_links(truth, before) == (1, 1, 2, 1), "from onset to repair nothing is judged, of GPU and host alike"
    false = [Warned(T0 + 2 * DAY, GPUS[0]), Warned(T0 + 8 * HOUR, "host-0")]
    assert score_links(truth, [*before, *false]) == (3, 1, 2, 1), "a false warning after the repair counts"
    true = Warned(T0 + 5 * DAY + HOUR, GPUS[0])
    assert score_links(truth, [*before, *false, true]) == (4, 2, 2, 2), "as does a right one of the next fault"
    lasting = Truth([replace(first, ended_ms=None)], T0 + 14 * DAY)
    assert score_links(lasting, [*before, *false]) == (1, 1, 1, 1), "what is not repaired excuses to the end"


@pytest.mark.parametrize(("repaired", "faults"), [(5 * HOUR, 2), (7 * HOUR, 1), (None, 1)])
def test_a_fault_that_shows_while_its_place_has_failed_is_not_one_to_foresee(repaired: int | None, faults: int) -> None:
    """Of the second fault a warning would count in the first two hours of its sign, which begins with the outage."""
    first = struck(T0, None if repaired is None else T0 + repaired)
    within = struck(T0 + 4 * HOUR, T0 + 20 * HOUR)
    assert score_links(Truth([first, within], T0 + DAY), [])[2] == faults
    elsewhere = struck(T0 + 4 * HOUR, T0 + 20 * HOUR, gpu=1)
    assert score_links(Truth([first, elsewhere], T0 + DAY), [])[2] == 2, "another GPU of the host works"


@pytest.mark.parametrize(("start_ms", "faults"), [(T0, 1), (T0 + 2 * HOUR, 1), (T0 + 3 * HOUR, 0)])
def test_a_fault_of_which_nobody_could_have_warned_in_time_is_not_one_to_foresee(start_ms: int, faults: int) -> None:
    """Half of its lead is left until two hours after its first sign; a later warning is right all the same."""
    truth = Truth([struck(T0, None)], T0 + DAY, start_ms=start_ms)
    late = Warned(T0 + 3 * HOUR + 30 * MINUTE, GPUS[0])
    found = score_links(truth, [late])
    assert found == (1, 1, faults, 0)


@pytest.mark.parametrize("benign", [False, True])
def test_what_goes_on_at_the_end_judges_nobody_whatever_it_will_come_to(benign: bool) -> None:
    end_ms = T0 + 4 * HOUR
    open_one = Cause("memory_leak", frozenset({GPUS[0]}), T0 + HOUR, T0 + 9 * HOUR, None, None, False, benign, True)
    truth = Truth([open_one, leak(1, benign=True)], end_ms)
    mine = [Warned(T0 + 30 * MINUTE, GPUS[0]), Warned(T0 + 3 * HOUR, GPUS[0]), Warned(T0 + 3 * HOUR, GPUS[1])]
    found = score_early("leaks", mine, KINDS, truth, signal({0}), seed=1)
    assert (found.service.warnings, found.service.right, found.service.faults) == (2, 0, 0)
    assert found.policies[1].warnings == 0, "nor the rises of the same sign"

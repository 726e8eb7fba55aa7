"""Latched codes and windowed counts become onsets: once each, never from a restart."""

from __future__ import annotations

from tocsin.collector.dcgm.readings import MAX_CODES, Counted, SxidOnsets, XidOnsets, XidState
from tocsin.domain.clock import MINUTE
from tocsin.domain.event import EventKind
from tocsin.domain.finding import Severity
from tocsin_testing.builders import T0, gpu

G = gpu(0)
STEP = MINUTE // 2


def run(*looks: tuple[int | None, dict[int, int]]) -> list[list[int]]:
    """Codes of the events of each look, half a minute apart."""
    onsets = XidOnsets("test")
    out = []
    for step, (latched, counts) in enumerate(looks):
        counted = {code: Counted(count, 5 * MINUTE) for code, count in counts.items()}
        out.append([event.code for event in onsets.note(XidState(G, latched, counted), T0 + step * STEP)])
    return out


def test_the_first_look_is_no_onset() -> None:
    assert run((79, {79: 2})) == [[]]


def test_a_change_of_the_gauge_is_an_onset_and_its_clearing_is_not() -> None:
    assert run((0, {}), (79, {}), (79, {}), (0, {}), (31, {})) == [[], [79], [], [], [31]]


def test_a_gauge_that_is_absent_for_a_while_changes_nothing() -> None:
    assert run((31, {}), (None, {}), (31, {}), (None, {}), (13, {})) == [[], [], [], [], [13]]


def test_a_gauge_that_appears_is_no_onset() -> None:
    assert run((None, {}), (31, {})) == [[], []]


def test_the_count_shows_repeats() -> None:
    assert run((31, {31: 1}), (31, {31: 2}), (31, {31: 2}), (31, {31: 4})) == [[], [31], [], [31]]


def test_a_falling_count_is_time_passing() -> None:
    assert run((31, {31: 3}), (31, {31: 1}), (31, {})) == [[], [], []]


def test_gauge_and_count_in_one_scrape_are_one_event() -> None:
    assert run((0, {}), (79, {79: 1})) == [[], [79]]


def test_gauge_first_and_count_in_the_next_scrape_are_one_event() -> None:
    assert run((0, {}), (79, {}), (79, {79: 1}), (79, {79: 2})) == [[], [79], [], [79]]


def test_count_first_and_gauge_in_the_next_scrape_are_one_event() -> None:
    assert run((0, {}), (0, {79: 1}), (79, {79: 1})) == [[], [79], []]


def test_what_was_told_longer_than_the_window_ago_excuses_nothing() -> None:
    looks = [(0, {}), (79, {}), *[(79, {})] * 11, (79, {79: 1})]
    assert run(*looks)[-1] == [79]


def test_after_forgetting_the_next_look_is_the_first() -> None:
    onsets = XidOnsets("test")
    onsets.note(XidState(G, 0), T0)
    onsets.forget(G)
    assert onsets.note(XidState(G, 79), T0 + STEP) == []
    (event,) = onsets.note(XidState(G, 31), T0 + 2 * STEP)
    assert (event.kind, event.gpu, event.code, event.at_ms) == (EventKind.XID, G.uuid, 31, T0 + 2 * STEP)


def unsettled(before: XidState, after: XidState) -> tuple[list[int], list[tuple[str, int]]]:
    """Codes of the events, and what may be new, where `after` may come from another process than `before`."""
    onsets = XidOnsets("test")
    onsets.note(before, T0)
    events = onsets.note(after, T0 + STEP, settled=False)
    return [event.code for event in events], onsets.unsettled


def counted(window_s: int, **counts: int) -> dict[int, Counted]:
    return {int(code[1:]): Counted(count, window_s * 1000) for code, count in counts.items()}


def test_a_change_that_proves_nothing_is_told_apart() -> None:
    assert unsettled(XidState(G, 31), XidState(G, 79)) == ([], [(G.uuid, 79)])
    assert unsettled(XidState(G, 31), XidState(G, 31)) == ([], [])
    assert unsettled(XidState(G, 31), XidState(G, 0)) == ([], [])
    assert unsettled(XidState(G, None), XidState(G, 79)) == ([], [])


def test_a_count_that_rose_over_the_same_window_is_proof() -> None:
    assert unsettled(XidState(G, 31, counted(300, x31=1)), XidState(G, 79, counted(300, x31=1, x79=1))) == ([79], [])
    assert unsettled(XidState(G, 31, counted(300, x31=1)), XidState(G, 31, counted(300, x31=2))) == ([31], [])


def test_a_count_over_another_window_is_none_and_is_told_once() -> None:
    longer = XidState(G, 79, counted(3_600, x79=1))
    assert unsettled(XidState(G, 31, counted(300, x31=1)), longer) == ([], [(G.uuid, 79)])
    assert unsettled(XidState(G, 31), longer) == ([], [(G.uuid, 79)])


def test_what_proved_nothing_is_known_from_then_on() -> None:
    onsets = XidOnsets("test")
    onsets.note(XidState(G, 31), T0)
    onsets.note(XidState(G, 79), T0 + STEP, settled=False)
    assert onsets.note(XidState(G, 79), T0 + 2 * STEP) == []
    assert [event.code for event in onsets.note(XidState(G, 48), T0 + 3 * STEP)] == [48]


def test_fatal_switch_errors_say_so() -> None:
    onsets = SxidOnsets("test")
    onsets.note("n1", [("0", "fatal", 0), ("1", "non-fatal", 0)], T0)
    events = onsets.note("n1", [("0", "fatal", 99_999), ("1", "non-fatal", 11_004)], T0 + STEP)
    assert {event.code: event.severity for event in events} == {99_999: Severity.CRITICAL, 11_004: None}
    assert onsets.note("n1", [("0", "fatal", 20_034)], T0 + 2 * STEP, settled=False) == []
    assert onsets.unsettled == [("0", 20_034)]


def test_switches_share_one_event_of_one_code() -> None:
    onsets = SxidOnsets("test")
    assert onsets.note("n1", [("0", "fatal", 0), ("1", "fatal", 0)], T0) == []
    (event,) = onsets.note("n1", [("0", "fatal", 12028), ("1", "fatal", 12028)], T0 + STEP)
    assert (event.kind, event.gpu, event.host, event.code) == (EventKind.SXID, "", "n1", 12028)
    assert "NVSwitch 0" in event.message
    assert "NVSwitch 1" in event.message
    assert onsets.note("n1", [("0", "fatal", 12028), ("1", "fatal", 0)], T0 + 2 * STEP) == []


def test_a_host_s_switches_can_be_forgotten() -> None:
    onsets = SxidOnsets("test")
    onsets.note("n1", [("0", "fatal", 0)], T0)
    onsets.forget("n1")
    assert onsets.note("n1", [("0", "fatal", 12028)], T0 + STEP) == []


def test_one_switch_is_forgotten_without_the_others_of_its_host() -> None:
    onsets = SxidOnsets("test")
    onsets.note("n1", [("0", "fatal", 0), ("1", "fatal", 0)], T0)
    onsets.forget("n1", "0")
    (event,) = onsets.note("n1", [("0", "fatal", 12028), ("1", "fatal", 12029)], T0 + STEP)
    assert event.code == 12029


def test_codes_without_number_fill_no_memory() -> None:
    onsets = XidOnsets("test")
    for code in range(4 * MAX_CODES):
        onsets.note(XidState(G, code), T0 + code)
    (memory,) = onsets._known.values()
    assert len(memory.reported) == MAX_CODES
    assert onsets.note(XidState(G, code, counted(300, **{f"x{code}": 1})), T0 + code) == []

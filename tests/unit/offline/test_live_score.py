"""What was said, by both clocks: what reaches the joint bar, and that what knows nothing does not."""

from __future__ import annotations

import numpy as np
import pytest

from tocsin.domain.clock import DAY, HOUR, MINUTE
from tocsin.domain.event import Event, EventKind
from tocsin.domain.finding import Category
from tocsin.domain.reading import Gpu
from tocsin.forecaster.evaluation.ticket_clock import Instants, LoggedIncident
from tocsin.offline.live_score import (
    LiveScore,
    Said,
    Statement,
    event_clock,
    live_bar,
    node_onsets,
    score_json,
    score_lines,
    ticket_clock,
)

STEP = 10 * MINUTE
DAYS = 60
NODES = ("a", "b", "c", "d")
OBSERVED: dict[str, Instants] = {node: np.arange(0, DAYS * DAY, STEP, dtype=np.int64) for node in NODES}
LOG = [LoggedIncident(node, day * DAY) for node, day in (("a", 12), ("a", 40), ("b", 20), ("b", 50), ("c", 30))]
"""Far apart on each node, so that a start elsewhere finds nothing."""
TRUE = [(one.node, one.day_ms - 60 * HOUR) for one in LOG]
DRAWS = 200


def said(starts: list[tuple[str, int]], hours: int = 10, category: Category = Category.HARDWARE) -> Said:
    """Statements at `starts`, each of which holds for `hours`."""
    told = [Statement(at, (node,), "r", "critical", category, f"{node} fails") for node, at in starts]
    alarm: dict[str, list[int]] = {}
    for node, at in starts:
        alarm.setdefault(node, []).extend(range(at, at + hours * HOUR, STEP))
    return Said(
        tuple(sorted(told, key=lambda one: one.at_ms)),
        {node: np.unique(np.array(at, np.int64)) for node, at in alarm.items()},
    )


def always_on() -> Said:
    return said([(node, at) for node in NODES for at in range(0, DAYS * DAY, HOUR)], hours=1)


def stuck() -> Said:
    """It begins once, and never ends."""
    return said([(node, 3 * DAY) for node in NODES], hours=(DAYS - 3) * 24)


def at_random(seed: int) -> Said:
    rng = np.random.default_rng(seed)
    return said([(str(rng.choice(NODES)), int(rng.integers(DAYS * DAY // STEP)) * STEP) for _ in TRUE])


def test_what_is_told_in_time_reaches_the_bar_and_chance_does_not() -> None:
    found = ticket_clock(said(TRUE), LOG, OBSERVED, draws=DRAWS)
    assert (found.score.count(), found.score.count(48 * HOUR), found.score.precision) == (5, 5, 1.0)
    assert found.held
    assert found.verdict
    assert max(found.null_shares().values()) <= 0.1


@pytest.mark.parametrize("alarm", [always_on(), stuck(), *(at_random(seed) for seed in range(3))])
def test_a_stuck_a_random_and_an_always_on_alarm_fail(alarm: Said) -> None:
    found = ticket_clock(alarm, LOG, OBSERVED, draws=50)
    assert not found.held
    assert not found.verdict


def test_a_bar_that_chance_reaches_as_well_is_no_verdict() -> None:
    """One node of which something is logged every week: whatever is said finds it."""
    log = [LoggedIncident("a", day * DAY) for day in range(7, 60, 5)]
    found = ticket_clock(said([("a", at * DAY) for at in range(1, 58, 5)]), log, {"a": OBSERVED["a"]}, draws=DRAWS)
    assert found.held
    assert not found.verdict


def test_the_bar_asks_for_all_and_rounds_up() -> None:
    assert live_bar(7) == {"found": 7.0, "found_24h": 6.0, "found_48h": 4.0, "precision": 0.9}
    assert live_bar(1) == {"found": 1.0, "found_24h": 1.0, "found_48h": 1.0, "precision": 0.9}


def test_statements_that_are_not_about_machines_are_shown_and_not_scored() -> None:
    memory = said(TRUE, category=Category.MEMORY)
    assert memory.times() == {}
    assert not ticket_clock(memory, LOG, OBSERVED, draws=5).held


def xid(gpu: str, at_ms: int) -> Event:
    return Event(EventKind.XID, gpu, gpu[0], at_ms, 79)


GPUS = [Gpu(f"{node}{n}", node) for node in NODES for n in range(2)]


def test_events_of_all_gpus_of_a_node_within_a_day_are_one() -> None:
    found = node_onsets([xid("a0", 5 * DAY), xid("a1", 5 * DAY + HOUR), xid("a0", 8 * DAY), xid("b0", DAY)], GPUS)
    assert {node: times.tolist() for node, times in found.items()} == {"a": [5 * DAY, 8 * DAY], "b": [DAY]}


def test_the_event_clock_tells_warnings_from_announcements() -> None:
    onsets = node_onsets([xid("a0", 10 * DAY), xid("b0", 20 * DAY), xid("c0", 30 * DAY)], GPUS)
    told = said([("a", 9 * DAY), ("b", 20 * DAY + 20 * MINUTE), ("d", 5 * DAY)], hours=1)
    found = event_clock(told, onsets, OBSERVED, draws=50)
    assert (found.events, found.warned, found.announced, found.delay_minutes) == (3, 1, 1, 20.0)
    assert (found.warnings, found.followed) == (2, 1)
    assert found.nulls["coin of equal budget"][0] < 1


def test_by_the_event_clock_a_stuck_and_a_random_alarm_warn_of_next_to_nothing() -> None:
    onsets = node_onsets([xid("a0", 10 * DAY), xid("b0", 20 * DAY), xid("c0", 30 * DAY)], GPUS)
    assert event_clock(stuck(), onsets, OBSERVED, draws=5).warned == 0
    lucky = [event_clock(at_random(seed), onsets, OBSERVED, draws=5).warned for seed in range(20)]
    assert np.mean(lucky) < 0.5


def test_an_always_on_alarm_warns_of_all_and_its_warnings_are_wrong() -> None:
    onsets = node_onsets([xid("a0", 10 * DAY)], GPUS)
    found = event_clock(always_on(), onsets, OBSERVED, draws=5)
    assert (found.warned, found.followed) == (1, 0)


def test_the_score_in_words_and_as_json() -> None:
    both = said(TRUE)
    found = LiveScore(both, event_clock(both, {}, OBSERVED, draws=5), ticket_clock(both, LOG, OBSERVED, draws=50), 240)
    text = "\n".join(score_lines(found))
    assert "said: 5 notifications over 240.0 node-days" in text
    assert "joint bar reached" in text
    document = score_json(found)
    ticket = document["ticket"]
    assert isinstance(ticket, dict)
    assert ticket["held"] is True
    assert ticket["incidents"][0] == {
        "node": "a", "incident_date": "1970-01-13", "start": "1970-01-10T12:00:00.000Z", "lead_hours": 60.0,
    }  # fmt: skip


def test_a_reminder_every_twelve_hours_warns_of_no_more_than_chance_does() -> None:
    reminder = said([("a", at) for at in range(0, DAYS * DAY, 12 * HOUR)], hours=1)
    onsets: dict[str, Instants] = {"a": np.array([29 * DAY], np.int64)}
    told = event_clock(reminder, onsets, OBSERVED, draws=50)
    assert (told.events, told.warned) == (1, 1)
    assert told.nulls["shifted starts"][0] > 0.9

"""What comes and goes and breaks nothing is one incident for each rule and pool, and told of once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tocsin.domain.alert_level import AlertLevel
from tocsin.domain.clock import HOUR, MINUTE, to_minute
from tocsin.domain.finding import ActionKind, Category, Finding, Incident, Severity, Subject, SubjectKind
from tocsin.domain.place import Place, PlaceKind
from tocsin.rules.incidents import REST_MS, OpenIncidents, collapse
from tocsin.topology.topology import NO_TOPOLOGY
from tocsin_testing.builders import T0


def full(n: int, minute: float = 0, pool: str = "train", level: AlertLevel = AlertLevel.NOTE) -> Finding:
    subject = Subject(SubjectKind.GPU, f"GPU-{n}", f"node-{n // 4}", pool)
    said = f"node-{n // 4} GPU-{n}: memory is at 95%."
    at_ms = T0 + round(minute * MINUTE)
    memory = (Severity.WARNING, Category.MEMORY, ActionKind.NOTIFY)
    return Finding("memory_full", subject, *memory, at_ms, at_ms, said, level=level)


def fragmented(minute: float = 0) -> Finding:
    at_ms, subject = T0 + round(minute * MINUTE), Subject(SubjectKind.FLEET, "fleet")
    kind = (Severity.WARNING, Category.FRAGMENTATION, ActionKind.DEFRAGMENT)
    return Finding("fleet_fragmented", subject, *kind, at_ms, at_ms, "The fleet is in pieces.")


def test_full_memory_of_a_pool_is_one_incident_however_far_apart() -> None:
    found = [full(n, 60 * n) for n in range(6)]
    (incident,) = collapse(found, ())
    assert (incident.id, incident.place) == (found[0].id, Place(PlaceKind.POOL, "train"))
    assert incident.sentence == (
        "Pool train: 6 GPUs of 2 hosts show the same. Longest: node-0 GPU-0: memory is at 95%."
    )
    assert len(collapse([*found, full(6, pool="serve")], ())) == 2


def test_what_is_more_than_a_note_stands_alone() -> None:
    found = [full(n, level=AlertLevel.WARNING) for n in range(3)]
    assert [one.sentence for one in collapse(found, ())] == [one.sentence for one in found]


def test_one_gpu_speaks_for_itself() -> None:
    (incident,) = collapse([full(3)], ())
    assert incident.sentence == "node-0 GPU-3: memory is at 95%."


class Life:
    """Open incidents, stepped once a minute."""

    def __init__(self) -> None:
        self.open = OpenIncidents()

    def at(self, minute: float, *findings: Finding) -> list[Incident]:
        return self.open.step(findings, (), NO_TOPOLOGY, T0 + round(minute * MINUTE))


def test_what_is_back_within_a_day_is_the_same() -> None:
    life = Life()
    (first,) = life.at(0, fragmented())
    assert life.open.resting == frozenset()
    assert life.at(1) == []
    assert life.open.resting == {first.id}
    for minute in range(60, 1380, 60):
        (again,) = life.at(minute, fragmented(minute))
        assert (again.id, again.opened_ms, life.open.resting) == (first.id, first.opened_ms, frozenset())
        assert life.at(minute + 1) == []


@pytest.mark.parametrize(("after", "same"), [(REST_MS, True), (REST_MS + HOUR, False)])
def test_after_a_day_of_rest_it_is_new(after: int, same: bool) -> None:
    life = Life()
    (first,) = life.at(0, fragmented())
    life.at(1)
    minute = after / MINUTE
    life.at(minute)
    assert bool(life.open.resting) is same
    (again,) = life.at(minute, fragmented(minute))
    assert (again.id == first.id) is same


def test_another_gpu_of_the_pool_goes_on_where_the_first_ended() -> None:
    life = Life()
    (first,) = life.at(0, full(0))
    assert [one.id for one in life.at(1, full(1, 1))] == [first.id]
    life.at(2)
    (again,) = life.at(60, full(2, 60))
    assert again.id == first.id
    assert [one.subject.name for one in again.members] == ["GPU-0", "GPU-2"]
    assert again.cleared == (first.id,)
    assert again.sentence == "node-0 GPU-2: memory is at 95%."


def hot(
    n: int,
    minute: float,
    *,
    rule: str = "thermal_margin_low",
    page: bool = False,
    action: ActionKind = ActionKind.THROTTLE,
) -> Finding:
    at_ms, subject = T0 + round(minute * MINUTE), Subject(SubjectKind.GPU, f"GPU-{n}", f"node-{n // 4}", "train")
    kind = (Severity.CRITICAL if page else Severity.WARNING, Category.THERMAL, action)
    return Finding(rule, subject, *kind, at_ms, at_ms, f"node-{n // 4} GPU-{n}: hot.")


def test_heat_that_comes_and_goes_is_one_incident() -> None:
    life = Life()
    (first,) = life.at(0, hot(1, 0))
    for minute in range(30, 600, 30):
        assert life.at(minute - 5) == []
        assert life.open.resting == {first.id}
        (again,) = life.at(minute, hot(1, minute), hot(1, minute, rule="temperature_high"))
        assert (again.id, again.opened_ms, again.place) == (first.id, first.opened_ms, Place(PlaceKind.GPU, "GPU-1"))
        assert again.sentence == f"node-0 GPU-1: hot. It has come and gone since {to_minute(T0)}."
        assert len(again.members) - len(again.cleared) == 2


def test_heat_that_stays_elsewhere_has_not_come_and_gone() -> None:
    life = Life()
    life.at(0, *(hot(n, 0) for n in range(3)))
    still = [replace(hot(n, 0), last_ms=T0 + 10 * MINUTE) for n in range(3)]
    life.at(10, *still)
    (left,) = life.at(11, *still[1:])
    assert left.cause_cleared
    assert left.sentence.endswith("It has cleared; 2 of what it explains have not.")


def test_heat_that_pages_is_news_after_a_warning() -> None:
    life = Life()
    (first,) = life.at(0, hot(1, 0))
    life.at(10)
    (page,) = life.at(60, hot(1, 60, rule="thermal_slowdown", page=True), hot(1, 60))
    assert (page.id != first.id, page.alert_level, len(page.members)) == (True, AlertLevel.PAGE, 2)
    assert life.open.resting == {first.id}


@pytest.mark.parametrize(("after", "same"), [(50, True), (70, False)])
def test_heat_that_paged_is_the_same_for_an_hour(after: int, same: bool) -> None:
    life = Life()
    (first,) = life.at(0, hot(1, 0, rule="thermal_slowdown", page=True))
    life.at(1)
    life.at(1 + after)
    (again,) = life.at(1 + after, hot(1, 1 + after, rule="thermal_slowdown", page=True))
    assert (again.id == first.id) is same


def test_heat_where_there_was_none_before_is_another_cause() -> None:
    life = Life()
    (first,) = life.at(0, hot(1, 0))
    life.at(10)
    other = life.at(60, hot(1, 60), hot(2, 60))
    assert first.id not in {one.id for one in other}
    assert [one.id for one in life.at(61, hot(1, 60), hot(2, 60), hot(5, 61))][: len(other)] == [o.id for o in other]


def told(rule: str, minute: float, *, page: bool = False) -> Finding:
    """What a host's management controller reports of its cooling."""
    at_ms, subject = T0 + round(minute * MINUTE), Subject(SubjectKind.HOST, "node-0", "node-0")
    kind = (Severity.CRITICAL if page else Severity.WARNING, Category.THERMAL, ActionKind.NOTIFY)
    return Finding(rule, subject, *kind, at_ms, at_ms, f"node-0: {rule}.", told=True)


def test_what_cools_does_not_come_and_go() -> None:
    life = Life()
    (first,) = life.at(0, told("coolant_flow", 0), hot(1, 0, rule="thermal_slowdown", page=True))
    life.at(20)
    (leak,) = life.at(40, told("leak_detected", 40, page=True))
    assert (leak.id != first.id, leak.alert_level) == (True, AlertLevel.PAGE)
    life.at(41)
    (fan,) = life.at(300, told("fan_failed", 300))
    (again,) = life.at(310) or life.at(320, told("fan_failed", 320))
    assert len({first.id, leak.id, fan.id, again.id}) == 4


def test_heat_that_asks_for_something_else_is_news() -> None:
    life = Life()
    (first,) = life.at(0, hot(1, 0, rule="temperature_above_node_mates", action=ActionKind.NOTIFY))
    life.at(10)
    (other,) = life.at(60, hot(1, 60))
    assert (other.id != first.id, other.root.action) == (True, ActionKind.THROTTLE)


def test_another_gpu_of_the_place_that_pages_for_the_first_time_is_news() -> None:
    life = Life()
    (first,) = life.at(0, hot(1, 0, rule="thermal_slowdown", page=True), hot(2, 0), hot(3, 0))
    assert len(first.members) == 3
    life.at(10)
    (page,) = life.at(40, hot(3, 40, rule="thermal_slowdown", page=True))
    assert (page.id != first.id, page.alert_level) == (True, AlertLevel.PAGE)


def test_heat_that_comes_and_goes_for_a_week_is_told_of_again() -> None:
    life = Life()
    (first,) = life.at(0, hot(1, 0))
    seen = set()
    for day in range(1, 10):
        life.at(day * 1440 - 60)
        (again,) = life.at(day * 1440, hot(1, day * 1440))
        seen.add(again.id)
    assert first.id in seen
    assert len(seen) == 2


def test_other_faults_do_not_rest() -> None:
    life = Life()
    life.at(0, full(0, level=AlertLevel.WARNING))
    assert life.at(1) == []
    assert life.open.resting == frozenset()

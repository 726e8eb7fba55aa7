"""What changed lately: one line a card, one a run of an action, and the rest of the journal in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from tocsin.actions.model.ledger_entry import DecisionStatus
from tocsin.client.models_changes import ChangeKind, Changes
from tocsin.domain.alert_level import AlertLevel
from tocsin.domain.clock import HOUR, MINUTE, to_iso
from tocsin.domain.decision import Decision, DecisionState, Mode, Ruling
from tocsin.domain.entry import Entry, EntryKind
from tocsin.domain.finding import ActionKind, Category, Finding, Incident, Severity, Subject, SubjectKind
from tocsin.domain.place import Place, PlaceKind
from tocsin.journal.page import Wanted
from tocsin.queries.card_life import CardLife, record_of, record_payload
from tocsin.queries.card_words import Names, clock
from tocsin.queries.changes import _SAID, KINDS, ChangeInputs, changes, changes_now
from tocsin_testing.builders import T0, gpu, reading

FLEET = [reading(gpu(n), T0) for n in range(4)]
SUBJECTS = [Subject(SubjectKind.GPU, one.gpu.uuid, one.gpu.host, one.gpu.pool) for one in FLEET]
START = T0 - HOUR


def entry(kind: EntryKind, minute: int, actor: str = "tocsin", **payload: Any) -> Entry:
    return Entry(minute, 1, START + minute * MINUTE, kind, actor, payload, False, "", "")


def incident(
    number: int,
    minute: int,
    *members: int,
    place: Place | None = None,
    level: AlertLevel | None = None,
    category: Category = Category.THERMAL,
) -> Incident:
    at_ms = START + minute * MINUTE
    found = [
        Finding(
            "hot",
            SUBJECTS[n],
            Severity.CRITICAL,
            category,
            ActionKind.THROTTLE,
            at_ms,
            at_ms,
            "It is hot.",
            level=level,
        )
        for n in (number, *members)
    ]
    where = place or Place(PlaceKind.GPU, SUBJECTS[number].name)
    return Incident(found[0], tuple(found), at_ms, at_ms, "It is hot.", where)


def opened(number: int, minute: int, name: str, kind: EntryKind = EntryKind.INCIDENT_OPENED, **more: Any) -> Entry:
    return entry(kind, minute, id=name, card=record_payload(incident(number, minute, **more)))


def over(name: str, minute: int, **more: str) -> Entry:
    return entry(EntryKind.INCIDENT_CLOSED, minute, id=name, **more)


def made(*entries: Entry, limit: int = 50, **more: Any) -> Changes:
    base: dict[str, Any] = {"statuses": (), "ended": {}, "standing": {}, "joined": {}}
    return changes(ChangeInputs(entries, names=Names(FLEET), start_ms=START, end_ms=T0, **(base | more)), limit)


def said(found: Changes) -> list[str]:
    return [one.text for one in found.items]


def test_the_causes_of_one_place_are_one_card_that_is_over_when_all_are() -> None:
    found = made(opened(0, 1, "a"), opened(0, 2, "b"), over("a", 3), opened(1, 4, "c"), over("b", 5))
    assert said(found) == ["Over: node-1 GPU 0: too hot", "node-1 GPU 1: too hot", "node-1 GPU 0: too hot"]
    assert found.items[0].text_zh.startswith("已结束：")
    assert {one.kind for one in found.items} == {ChangeKind.CARD}


def test_a_cause_that_grows_is_in_its_new_place_and_what_joins_another_is_not_over() -> None:
    rack = Place(PlaceKind.RACK, "r1")
    grown = opened(0, 2, "a", EntryKind.INCIDENT_UPDATED, place=rack)
    found = made(opened(0, 1, "a"), grown, opened(0, 3, "b"), over("b", 4, into="a"), over("a", 5))
    assert said(found) == ["Over: rack r1: too hot", "node-1 GPU 0: too hot", "node-1 GPU 0: too hot"]


def test_what_stood_before_the_span_is_neither_new_nor_over_while_it_stands() -> None:
    before = record_of(incident(0, -30))
    again = (opened(0, 1, "b"), over("b", 2))
    assert said(made(*again, standing={"a": before})) == []
    ended = replace(before, id="a", ended_ms=START + 3 * MINUTE)
    assert said(made(*again, over("a", 3), ended={"a": ended})) == ["Over: node-1 GPU 0: too hot"]
    # What was only expected, and did not come, left nothing to be read.
    assert said(made(over("forgotten", 3))) == []


def test_a_card_that_gets_worse_is_told_once_and_is_over_under_its_worst_name() -> None:
    hot, page = {"level": AlertLevel.WARNING}, {"level": AlertLevel.PAGE, "category": Category.POWER}
    found = made(
        opened(0, 1, "a", **hot), opened(0, 2, "b", **page), opened(0, 3, "c", **page), over("b", 4), over("c", 5),
        over("a", 6), opened(0, 7, "d", **hot), opened(0, 8, "d", EntryKind.INCIDENT_UPDATED, **page),
    )  # fmt: skip
    what = "node-1 GPU 0: slowed down for want of power"
    again = "node-1 GPU 0: too hot"
    assert said(found)[::-1] == [again, f"Worse: {what}", f"Over: {what}", again, f"Worse: {what}"]
    assert found.items[0].text_zh.startswith("加重：")


class Journal:
    def __init__(self, entries: Sequence[Entry]) -> None:
        self._entries = entries

    def newest(self, limit: int, wanted: Wanted) -> list[Entry]:
        start_ms, end_ms = wanted.start_ms or 0, wanted.end_ms or T0 + 1
        found = [one for one in self._entries if one.kind in wanted.kinds and start_ms <= one.at_ms < end_ms]
        return found[::-1][:limit]


def in_the_last(hours: int, entries: Sequence[Entry], life: CardLife) -> list[tuple[str, str]]:
    brain = SimpleNamespace(
        clock=SimpleNamespace(now_ms=lambda: T0), journal=Journal(entries), statuses=tuple, card_life=life,
        incidents=(), owners=SimpleNamespace(joined=lambda _: {}), memory=SimpleNamespace(latest=lambda: FLEET),
    )  # fmt: skip
    return [(one.at, one.text) for one in changes_now(brain, hours, 500).items]  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(20))
def test_a_card_is_told_alike_however_long_the_span_is(seed: int) -> None:
    draw, entries, open_now, life = Random(seed), list[Entry](), list[str](), CardLife()
    for minute in range(-7 * 60, 60, 7):
        if open_now and draw.random() < 0.4:
            name = open_now.pop(draw.randrange(len(open_now)))
            into = {"into": draw.choice(open_now)} if open_now and draw.random() < 0.4 else {}
            entries.append(over(name, minute, **into))
        else:
            level, category = draw.choice(list(AlertLevel)), draw.choice([Category.THERMAL, Category.POWER])
            entries.append(opened(draw.randrange(2), minute, f"i{minute}", level=level, category=category))
            open_now.append(f"i{minute}")
        life.apply(entries[-1])
    whole = in_the_last(8, entries, life)
    for hours in range(1, 8):
        assert in_the_last(hours, entries, life) == [one for one in whole if one[0] >= to_iso(T0 - hours * HOUR)]


def test_old_entries_have_their_sentence() -> None:
    found = made(entry(EntryKind.INCIDENT_OPENED, 1, id="a", sentence=f"{SUBJECTS[1].name} is hot"))
    assert [(one.text, one.text_zh) for one in found.items] == [("node-1 GPU 1 is hot", "node-1 GPU 1 is hot")]


def status(number: int, action: ActionKind = ActionKind.DRAIN) -> DecisionStatus:
    decision = Decision(
        "hot", SUBJECTS[number], action, Mode.ACT, Severity.CRITICAL, Category.THERMAL, START, T0, f"{number}", "Do it."
    )
    return DecisionStatus(decision, (), Ruling.ALLOW, DecisionState.EXECUTING, None, "", START)


def test_an_action_is_one_line_that_has_its_end_and_notifications_are_none() -> None:
    drained, running, told = status(0), status(1), status(2, ActionKind.NOTIFY)

    def run(one: DecisionStatus, minute: int, ended: str = "") -> Entry:
        kind = EntryKind.OUTCOME if ended else EntryKind.EXECUTION_STARTED
        more = {"outcome": {"status": ended}} if ended else {"action": str(one.decision.action)}
        return entry(kind, minute, decision=one.decision.id, **more)

    found = made(
        run(drained, 1), run(running, 2), run(told, 3), run(drained, 4, "goal_not_reached"),
        entry(EntryKind.EXECUTION_STARTED, 5, decision="gone", action="reset_gpu", subject=f"gpu:{SUBJECTS[3].name}"),
        entry(EntryKind.OUTCOME, 6, decision="long gone", outcome={"status": "failed"}),
        statuses=[drained, running, told],
    )  # fmt: skip
    assert said(found) == [
        "reset gpu node-1 GPU 3 runs",
        "drain node-1 GPU 0: done, goal not reached",
        "drain node-1 GPU 1 runs",
    ]
    assert [one.text_zh for one in found.items][:2] == [
        "复位 node-1 GPU 3 执行中",
        "排空 node-1 GPU 0：已执行，目标未达成",
    ]


def test_what_people_and_the_service_did() -> None:
    drained = status(0)
    found = made(
        entry(EntryKind.SERVICE_STARTED, 1, mode="act"),
        entry(EntryKind.SERVICE_STARTED, 2, mode="act"),
        entry(EntryKind.PAUSE, 3, "ann", reason="rack move"),
        entry(EntryKind.REJECTION, 4, "ann", decision=drained.decision.id),
        entry(EntryKind.HOLD_OFF, 4, "ann", subject="host:node-1", until_ms=T0),
        entry(EntryKind.HOLD_OFF, 5, "ann", subject="host:node-1", until_ms=T0, released=[]),
        entry(EntryKind.SNOOZED, 6, "ben", subject="rack:r1", until_ms=T0 + HOUR),
        entry(EntryKind.MANUAL_ACTION, 7, "ben", phase="begun", action="drain"),
        entry(EntryKind.MANUAL_ACTION, 8, "ben", phase="ended", action="drain", status="succeeded",
              subject={"kind": "host", "name": "node-2"}),
        statuses=[drained], mode_before="propose",
    )  # fmt: skip
    assert said(found)[::-1] == [
        "The brain started in mode act, before it was propose",
        "The brain started in mode act",
        "ann paused all actions: rack move",
        "ann rejected: drain node-1 GPU 0",
        "ann gave back host node-1",
        f"ben snoozed rack r1 until {clock(T0 + HOUR, T0)}",
        "ben by hand: drain host node-2: done",
    ]


def test_new_hosts_are_named_and_many_are_counted() -> None:
    few = made(joined={"b": T0 - 2, "a": T0 - 2, "c": T0 - 1})
    assert said(few) == ["Host c is new", "Host b is new", "Host a is new"]
    many = made(joined={f"n{n}": T0 - n for n in range(5)})
    assert said(many) == ["5 hosts are new: n4, n3, n2, …"]


def test_the_newest_come_first_and_the_rest_is_counted() -> None:
    found = made(*(entry(EntryKind.RESUME, n, "ann") for n in range(30)), limit=12, cut=True)
    assert (found.total, len(found.items), found.at_least) == (30, 12, True)
    assert [one.at for one in found.items] == sorted((one.at for one in found.items), reverse=True)


def test_every_kind_that_is_read_has_words() -> None:
    payload = {"subject": "odd", "decision": "?", "until_ms": None, "outcome": "odd"}
    for kind in KINDS:
        found = made(entry(kind, 1, "ann", id="x", **payload), entry(kind, 2))
        assert all(one.text_zh or not one.text for one in found.items), kind
    assert set(_SAID) < KINDS

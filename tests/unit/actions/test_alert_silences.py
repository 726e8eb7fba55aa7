"""Silences of Alertmanager: what their matchers cover, what of an answer is used, and which notifications wait."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.actions.model.alert_silences import AlertMatcher, AlertSilence, AlertSilences, matcher_of
from tocsin.actions.notifications.alertmanager_silences import (
    MAX_BYTES,
    MAX_MATCHERS,
    MAX_STANDING,
    MAX_VALUES,
    MOST_COMMENT,
    AlertmanagerClient,
    NotAlertmanager,
    Refused,
    TooLong,
    answer_of,
)
from tocsin.domain.clock import HOUR, SECOND, ManualClock, to_iso
from tocsin.domain.decision import Decision, Ruling
from tocsin.domain.errors import InputError, Unavailable
from tocsin.domain.finding import ActionKind, Category, Severity, Subject, SubjectKind
from tocsin.domain.reading import Gpu
from tocsin_testing.action_world import World
from tocsin_testing.builders import T0
from tocsin_testing.notify_world import DECISION, FakeChannel, NotifyWorld

GPU = Gpu("GPU-5d1f0b7c", "node-7", index=3)


def matcher(text: str) -> AlertMatcher:
    """`text` as amtool writes it: name, operator, value."""
    for operator, regex, equal in (("!~", True, False), ("=~", True, True), ("!=", False, False), ("=", False, True)):
        name, found, value = text.partition(operator)
        if found:
            return matcher_of(name, value, is_regex=regex, is_equal=equal)
    raise AssertionError(text)


def silence(*matchers: str, until_ms: int = T0 + HOUR, **more: Any) -> AlertSilence:
    return AlertSilence("s1", tuple(map(matcher, matchers)), T0 - HOUR, until_ms, **({"by": "ann"} | more))


def covers(*matchers: str, decision: Decision = DECISION, gpus: Iterable[Gpu] = (GPU,), **labels: str) -> bool:
    known = AlertSilences((silence(*matchers),), {name: (value,) for name, value in labels.items()})
    return known.over(decision, (), lambda _subject: gpus, T0) is not None


@pytest.mark.parametrize(
    ("matchers", "covered"),
    [
        (["alertname=TocsinTemperatureHigh"], True),
        (["alertname=TocsinTemperature"], False),
        (["alertname=~Tocsin.*", "severity=critical"], True),
        (["alertname=~Tocsin"], False),
        (["alertname=~Tocsin.*", "severity!=critical"], False),
        (["alertname=~Tocsin.*", "severity!~warn.*|info"], True),
        (["host=node-7"], True),
        (["Hostname=node-7"], True),
        (["instance=node-7:9400"], True),
        (["instance=node-7:12345"], True),
        (["instance=~node-7:\\d+"], True),
        (["instance=~node-7(:9100)?"], True),
        (["instance=~node-.:9400", "instance!=node-7:9400"], False),
        (["node=node-8"], False),
        (["UUID=GPU-5d1f0b7c"], True),
        (["gpu=GPU-5d1f0b7c"], True),
        (["gpu=3", "Hostname=node-7"], True),
        (["gpu=4", "Hostname=node-7"], False),
        (["host=node-7", "gpu!=3"], False),
        (["cluster=a", "pool=train"], True),
        (["cluster=b", "pool=train"], False),
        (["job=dcgm-exporter", "Hostname=node-7"], False),
        (["alertname=GpuHot", "Hostname=node-7"], False),
        (["team=", "Hostname=node-7"], True),
        (["team!=x", "Hostname=node-7"], True),
        ([], False),
    ],
)
def test_what_a_silence_covers(matchers: list[str], covered: bool) -> None:
    assert covers(*matchers, cluster="a") is covered


def test_an_index_alone_is_of_the_gpu_and_not_of_its_host() -> None:
    host = replace(DECISION, subject=Subject(SubjectKind.HOST, "node-7", "node-7", "train"))
    assert covers("gpu=3")
    assert not covers("gpu=3", decision=host)
    assert not covers("gpu=3", gpus=())
    assert covers("node=node-7", decision=host)


def test_a_cause_that_touches_more_is_silenced_where_all_of_it_is() -> None:
    known = AlertSilences((silence("host=node-7"), replace(silence("pool=train"), id="s2")))
    other = Subject(SubjectKind.GPU, "GPU-9", "node-9", "train")
    found = known.over(DECISION, (DECISION.subject, other), lambda _subject: (), T0)
    assert found is not None
    assert found.id == "s2"
    outside = replace(other, pool="infer")
    assert known.over(DECISION, (DECISION.subject, outside), lambda _subject: (), T0) is None


def test_it_stands_from_its_start_to_its_end() -> None:
    known = AlertSilences((replace(silence("host=node-7"), starts_ms=T0, until_ms=T0 + HOUR),))
    found = [known.over(DECISION, (), lambda _s: (), T0 + at) is not None for at in (-1, 0, HOUR - 1, HOUR)]
    assert found == [False, True, True, False]
    assert known.over_alert({"host": "node-7"}, T0) is not None
    assert known.over_alert({"instance": "node-7:9400"}, T0) is None, "an alert of others has its own labels alone"


@given(st.text(alphabet="ab.*|", max_size=5), st.text(alphabet="ab\ud800", max_size=4))
def test_an_expression_holds_for_the_whole_value(value: str, text: str) -> None:
    try:
        one = matcher_of("x", value, is_regex=True, is_equal=True)
    except InputError:
        return
    if "\ud800" not in text:
        assert one.matches([text]) is (re.fullmatch(f"(?:{value})", text) is not None)
    assert matcher_of("x", value, is_regex=True, is_equal=False).matches([text]) is not one.matches([text])


@pytest.mark.parametrize("value", ["(", "(?=a)", "a{1001}", "(.{0,900}){1,1}" * 60, "x" * 1_025, "\ud800"])
def test_what_cannot_be_evaluated_within_bounds_is_refused(value: str) -> None:
    with pytest.raises(InputError) as refused:
        matcher_of("host", value, is_regex=True, is_equal=True)
    assert refused.value.field == "matcher"


# ---------------------------------------------------------------------- the answer


def told(**more: Any) -> dict[str, Any]:
    """A silence as Alertmanager 0.25 tells of it."""
    base = {
        "id": "6aeb3c6f-ff26-4c60-bb66-ce2ab3f9eb5d",
        "status": {"state": "active"},
        "updatedAt": to_iso(T0 - HOUR),
        "comment": "power works",
        "createdBy": "ann",
        "endsAt": to_iso(T0 + HOUR),
        "startsAt": to_iso(T0 - HOUR),
        "matchers": [{"name": "host", "value": "node-7", "isRegex": False, "isEqual": True}],
    }
    return base | more


def answer(*silences: object) -> Any:
    return answer_of(json.dumps(silences).encode(), T0)


def test_a_bad_silence_costs_no_good_one_and_is_said() -> None:
    broken = {"name": "host", "value": "(", "isRegex": True}
    many = [{"name": "host", "value": "node-7", "isRegex": False}] * (MAX_MATCHERS + 1)
    bad = [
        told(matchers=[broken]), told(matchers=many), told(matchers=[]), told(endsAt="soon"), told(matchers="x"),
        {}, None, 5, told(id=""), told(endsAt="9" * 64),
    ]  # fmt: skip
    found = answer(*bad, told(id="good"))
    assert [one.id for one in found.standing] == ["good"]
    assert len(found.problems) == len(bad)
    assert "RE2 refuses" in found.problems[0]


def test_what_is_over_or_to_come_is_passed_over() -> None:
    assert not answer(told(status={"state": "expired"}), told(status={"state": "pending"})).standing
    assert not answer(told(endsAt=to_iso(T0))).standing, "its state may be older than this look"
    assert answer(told(endsAt="9999-12-31T23:59:59.999999999Z")).standing


def test_so_many_are_looked_at_and_no_more() -> None:
    found = answer(*(told(id=str(n)) for n in range(MAX_STANDING + 7)))
    assert (len(found.standing), found.beyond) == (MAX_STANDING, 7)


def test_an_author_and_a_comment_are_cleaned_and_clipped() -> None:
    (one,) = answer(told(createdBy="ann\n\u202eeve", comment="a\x00b" + "c" * 5_000)).standing
    assert one.by == "ann eve"
    assert (one.comment[:3], len(one.comment)) == ("a b", MOST_COMMENT)


def test_matchers_of_old_servers_are_positive() -> None:
    (one,) = answer(told(matchers=[{"name": "host", "value": "node-7", "isRegex": False}])).standing
    assert one.covers({"host": ["node-7"]})


@pytest.mark.parametrize("body", [b"", b"{}", b"<html>", b"[" * 100_000, b'"x"', b"\xff", b"[" + b"9" * 5_000 + b"]"])
def test_what_is_no_list_of_silences_is_refused(body: bytes) -> None:
    with pytest.raises(NotAlertmanager):
        answer_of(body, T0, "http://am")


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5), st.lists))
def test_any_silence_is_used_or_said(found: object) -> None:
    told_of = answer_of(json.dumps([found]).encode(), T0)
    assert len(told_of.standing) + len(told_of.problems) == 1


def client(handler: Any, clock: ManualClock | None = None) -> AlertmanagerClient:
    transport, clock = httpx2.MockTransport(handler), clock or ManualClock(T0)
    return AlertmanagerClient("http://am/x/", {"A": "b"}, clock, timeout_seconds=5, transport=transport)


def test_it_asks_for_what_stands_with_its_headers() -> None:
    seen: list[httpx2.Request] = []

    def handler(request: httpx2.Request) -> httpx2.Response:
        seen.append(request)
        return httpx2.Response(200, json=[told()])

    assert len(client(handler).silences(T0).standing) == 1
    assert str(seen[0].url) == "http://am/x/api/v2/silences?active=true&pending=false&expired=false"
    assert seen[0].headers["A"] == "b"


@pytest.mark.parametrize(
    ("status", "error"),
    [(401, Refused), (403, Refused), (404, NotAlertmanager), (302, NotAlertmanager), (500, Unavailable)],
)
def test_what_else_is_answered_is_an_error(status: int, error: type[Exception]) -> None:
    with pytest.raises(error):
        client(lambda _request: httpx2.Response(status, text="no")).silences(T0)


def test_an_answer_is_bounded_in_bytes_and_in_time() -> None:
    with pytest.raises(TooLong):
        client(lambda _request: httpx2.Response(200, content=b"[" + b" " * MAX_BYTES)).silences(T0)
    with pytest.raises(TooLong):
        client(lambda _request: httpx2.Response(200, content=b"[" + b"[]," * MAX_VALUES + b"0]")).silences(T0)
    clock = ManualClock(T0)

    def drip() -> Iterable[bytes]:
        for _ in range(10):
            clock.advance(SECOND)
            yield b"["

    with pytest.raises(Unavailable, match="in full within 5 s"):
        client(lambda _request: httpx2.Response(200, content=drip()), clock).silences(T0)


# ---------------------------------------------------------------------- notifications


def test_a_silenced_notification_waits_is_counted_and_is_told_where_the_fault_still_stands() -> None:
    channel = FakeChannel("chat")
    rig = NotifyWorld(channel)
    world = rig.world
    world.alert_silences = AlertSilences((silence("Hostname=node-0", comment="fans"),))
    world.break_gpu("GPU-0-0", severity=Severity.WARNING)
    world.break_gpu("GPU-1-0", severity=Severity.WARNING)
    counts = world.step().counts
    assert [one.decisions[0].subject.host for one in channel.taken] == ["node-1"]
    assert counts["withheld_alertmanager"] == 1
    (held,) = [s for s in world.loop.statuses() if s.decision.action is ActionKind.NOTIFY and s.overall is Ruling.HOLD]
    (said,) = [v for v in held.verdicts if v.ruling is Ruling.HOLD]
    assert said.reason == f"silenced at Alertmanager by ann until {to_iso(T0 + HOUR)}: fans"
    rig.restart()
    world.alert_silences = AlertSilences()
    world.step()
    assert [one.decisions[0].subject.host for one in channel.taken] == ["node-1", "node-0"]


def test_a_page_about_a_hard_fault_waits_too_and_is_counted_apart() -> None:
    world = World()
    world.alert_silences = AlertSilences((silence("pool=default"),))
    world.break_gpu("GPU-0-0", category=Category.HARDWARE)
    counts = world.step().counts
    assert counts["withheld_alertmanager_hard_fault"] == 1
    assert not world.notifier.told
    assert "though something is broken now" in world.verdict("silence", ActionKind.NOTIFY).reason


def test_actions_go_on_and_the_journal_has_all_of_it() -> None:
    world = World()
    world.alert_silences = AlertSilences((silence("alertname=~.+"),))
    world.break_gpu("GPU-0-0")
    for _ in range(3):
        world.step()
    assert world.executor.done
    assert not world.notifier.told
    assert len([one for one in world.loop.statuses() if one.decision.action is ActionKind.NOTIFY]) == 1

"""The morning report as a notification: when it is due, who gets it, and that it goes out once a day."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from zoneinfo import ZoneInfo

import pytest
from pydantic import ValidationError

from tocsin.actions.notifications.fanout import wants
from tocsin.actions.notifications.report import LATE_MS, due_day, key_of, notice_of
from tocsin.config.notify import NotifySettings
from tocsin.domain.clock import HOUR, MINUTE
from tocsin.domain.decision import Decision, Mode
from tocsin_testing.builders import T0
from tocsin_testing.notify_world import FakeChannel, NotifyWorld, channel_settings

DAY = date(2026, 3, 29)


def at(*moment: int) -> int:
    return round(datetime(*moment, tzinfo=UTC).timestamp() * 1000)


def report(cell: str = "") -> Decision:
    return notice_of(DAY, "Nothing broke.", "没有新故障。", T0, mode=Mode.OBSERVE, simulated=False, cell=cell)


def test_it_is_due_from_its_time_on_and_not_when_it_is_late() -> None:
    seven = at(2026, 3, 29, 7)
    assert due_day(seven - MINUTE, time(7), UTC) is None
    assert due_day(seven, time(7), UTC) == DAY
    assert due_day(seven + LATE_MS - 1, time(7), UTC) == DAY
    assert due_day(seven + LATE_MS, time(7), UTC) is None


def test_the_zone_decides_also_on_the_day_of_the_change() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    assert due_day(at(2026, 3, 28, 6), time(7), berlin) == date(2026, 3, 28)
    assert due_day(at(2026, 3, 29, 5), time(7), berlin) == DAY
    assert due_day(at(2026, 3, 29, 4, 59), time(7), berlin) is None


def test_it_goes_to_rooms_and_mailboxes_and_calls_nobody() -> None:
    assert wants(channel_settings("slack", min_level="page", pools=["train"]), report())
    assert wants(channel_settings("email"), report())
    assert not wants(channel_settings("pagerduty"), report())
    assert not wants(channel_settings("alertmanager"), report())
    assert not wants(channel_settings("slack", rules=["xid_*"]), report())
    assert wants(channel_settings("slack", rules=["morning_*"]), report())


def test_it_is_told_once_also_after_a_restart_and_uses_up_no_page() -> None:
    room = FakeChannel("room", keyed=True)
    site = NotifyWorld(room, pages=0)
    for _ in range(2):
        site.world.loop.tell(report())
        site.world.step()
        site.restart()
    assert room.told() == [key_of(DAY)]
    assert site.world.loop.knows(key_of(DAY))
    site.world.step(advance=LATE_MS + HOUR)
    assert len(room.taken) == 1  # it has no end that must be told


def test_cells_that_tell_one_receiver_are_told_apart() -> None:
    east, west = report("east"), report("west")
    assert (east.sentence, east.parameters.sentence_zh) == ("In cell east: Nothing broke.", "单元 east：没有新故障。")
    assert (west.sentence, west.parameters.sentence_zh) == ("In cell west: Nothing broke.", "单元 west：没有新故障。")
    # The key is the id of the event: who has had one drops the next of that id.
    assert len({key_of(DAY), key_of(DAY, "east"), key_of(DAY, "west")}) == 3
    assert east.key == key_of(DAY, "east")
    alone = report()
    assert (alone.sentence, alone.parameters.sentence_zh) == ("Nothing broke.", "没有新故障。")


def test_a_brain_that_does_not_act_sends_none() -> None:
    room = FakeChannel("room")
    world = NotifyWorld(room).world
    world.loop.tell(report())
    world.active = False
    world.step()
    world.active = True
    world.step()
    assert room.taken == []
    assert not world.loop.knows(key_of(DAY))


@pytest.mark.parametrize("wrong", [{"report_at": "7:00"}, {"report_at": "24:00"}, {"report_zone": "Europe/Atlantis"}])
def test_a_wrong_time_or_zone_is_one_error(wrong: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        NotifySettings.model_validate(wrong)


def test_off_is_the_default() -> None:
    assert NotifySettings().report_time is None
    assert NotifySettings(report_at="07:30", report_zone="Asia/Shanghai").report_time == time(7, 30)

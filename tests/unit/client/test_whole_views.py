"""Cards, decisions and maps of several cells as those of one fleet."""

from __future__ import annotations

from tocsin.client.models import FleetMap, GpuState, HostLabel, Timeline, TimelineQuery
from tocsin.client.models_cards import Card, Cards, CardState, CardTouches
from tocsin.client.whole_cards import fleet_cards
from tocsin.client.whole_views import CELL_LABEL, whole_map, whole_timeline
from tocsin.domain.alert_level import AlertLevel
from tocsin.domain.finding import Subject, SubjectKind
from tocsin_testing.fake_service import FakeService


def card(identity: str, place: str, level: AlertLevel = AlertLevel.WARNING, **more: object) -> Card:
    subject = Subject(kind=SubjectKind.FLEET, name="fleet")
    given = {"state": CardState.OPEN, "health": GpuState.WARNING, "subject": subject, "headline": identity}
    return Card(id=identity, place=place, level=level, **(given | more))  # type: ignore[arg-type]


def cards(*items: Card) -> Cards:
    return Cards(total=len(items), items=list(items))


def test_a_cause_that_cells_share_is_one_card_with_what_all_of_them_touch() -> None:
    here = CardTouches(gpus=4, hosts=1, jobs=1, gpu_names=["a/0"], job_names=["train-7"])
    there = CardTouches(gpus=8, hosts=2, jobs=1, gpu_names=["b/0"], job_names=["train-7"])
    early, late = "2026-11-26T10:00:00.000Z", "2026-11-26T10:01:00.000Z"
    found, total = fleet_cards(
        {
            "east": cards(card("1", "job:train-7", since=early, touches=here, waiting_gpu_hours=1.5)),
            "west": cards(
                card("2", "job:train-7", AlertLevel.PAGE, since=late, touches=there,
                     waiting_gpu_hours=2.0),
                card("3", "rack:r1"),
            ),
        },
        10,
    )  # fmt: skip
    assert total == 2
    assert [one.cells for one in found] == ["east, west", "west"]
    assert [(cell, one.id) for cell, one in found[0].members] == [("west", "2"), ("east", "1")]
    joined = found[0].card
    assert (joined.id, joined.level, joined.since) == ("2", AlertLevel.PAGE, early)
    assert (joined.touches.gpus, joined.touches.hosts, joined.touches.jobs) == (12, 3, 1)
    assert joined.touches.gpu_names == ["b/0", "a/0"]
    assert joined.waiting_gpu_hours == 3.5


def test_what_only_has_the_same_name_stays_each_cells_own() -> None:
    for place in ("pool:default", "rail:3", "fleet:fleet", ""):
        found, total = fleet_cards({"east": cards(card("1", place)), "west": cards(card("1", place))}, 10)
        assert (len(found), total) == (2, 2), place
    over = card("1", "rack:r1", state=CardState.RESOLVED)
    assert len(fleet_cards({"east": cards(over), "west": cards(card("2", "rack:r1"))}, 10)[0]) == 2


def test_a_shared_card_is_taken_on_where_it_is_in_every_cell() -> None:
    taken = card("1", "rack:r1", AlertLevel.PAGE, state=CardState.ACKNOWLEDGED, acknowledged_by="ann")
    free = card("2", "rack:r1")
    (one,), _ = fleet_cards({"east": cards(taken), "west": cards(free)}, 10)
    assert (one.card.id, one.card.state, one.card.acknowledged_by) == ("1", CardState.OPEN, "")
    (one,), _ = fleet_cards({"east": cards(taken), "west": cards(taken)}, 10)
    assert (one.card.state, one.card.acknowledged_by) == (CardState.ACKNOWLEDGED, "ann")


def fleet_map(host: str, uuids: list[str], states: list[int], **more: object) -> FleetMap:
    nothing = [None] * len(uuids)
    given = {
        "hosts": [host], "racks": ["r"], "pools": ["p"], "models": ["H100"], "uuid": uuids, "host": [0] * len(uuids),
        "model": [0] * len(uuids), "index": list(range(len(uuids))), "state": states, "temperature": nothing,
        "utilization": nothing, "memory": nothing, "power": nothing, "risk": nothing,
    }  # fmt: skip
    return FleetMap.model_validate(given | more)


def test_the_map_of_all_cells_has_each_gpu_once_and_tells_the_cells_apart() -> None:
    east = fleet_map(
        "a", ["G1", "G2"], [4, 0], jobs=["train"], job=[None, 0], labels={"row": {"values": ["x"], "of": [0]}}
    )
    west = fleet_map("b", ["G1", "G3"], [0, 2], jobs=["other", "train"], job=[1, 0])
    found = whole_map({"east": east, "west": west})
    FleetMap.model_validate(found.model_dump())
    # G1 has moved: east has lost it, west sees it.
    assert [(uuid, found.hosts[host]) for uuid, host in zip(found.uuid, found.host, strict=True)] == [
        ("G2", "a"), ("G1", "b"), ("G3", "b")
    ]  # fmt: skip
    assert found.state == [0, 0, 2]
    assert [None if n is None else found.jobs[n] for n in found.job] == ["train", "train", "other"]
    assert found.labels == {
        CELL_LABEL: HostLabel(values=["east", "west"], of=[0, 1]), "row": HostLabel(values=["x", ""], of=[0, 1])
    }  # fmt: skip


def test_pages_of_decisions_of_all_cells_follow_each_other() -> None:
    every: Timeline = FakeService().timeline(TimelineQuery(), 0, 50)
    shared = {
        "east": every.model_copy(update={"items": every.items[::2]}),
        "west": every.model_copy(update={"items": every.items[1::2]}),
    }
    first, homes = whole_timeline(shared, 0, 3)
    second, _ = whole_timeline(shared, 3, 3)
    in_order = sorted(every.items, key=lambda one: (one.at_ms, one.id), reverse=True)
    assert [one.id for one in (*first.items, *second.items)] == [one.id for one in in_order[:6]]
    assert first.total == 2 * every.total
    assert first.waiting == 2 * every.waiting
    assert {homes[one.id] for one in first.items} == {"east", "west"}

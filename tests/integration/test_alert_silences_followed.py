"""A brain that follows the silences of an Alertmanager: notifications, cards, and what comes without answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tocsin.actions.notifications.fanout import ChannelQueue, FanOut
from tocsin.config.settings import Settings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import HOUR, SECOND, ManualClock, to_iso
from tocsin.domain.event import Event, EventKind
from tocsin.domain.reading import Gpu, Reading
from tocsin.queries.service import BrainService
from tocsin.runtime.brain.alert_silences import HELD_ROUNDS, open_alert_silences
from tocsin.runtime.brain.assembly import open_brain
from tocsin_testing.builders import T0
from tocsin_testing.notify_world import FakeChannel

DATA = Path(__file__).parents[1] / "data" / "alertmanager"
GPUS = [Gpu(f"GPU-{n}", f"node-{1 + n // 2}", index=n % 2) for n in range(4)]
EVERY = 15 * SECOND


def silence(name: str, value: str, **more: Any) -> dict[str, Any]:
    base = {
        "id": f"{name}={value}",
        "status": {"state": "active"},
        "comment": "fans",
        "createdBy": "ann",
        "startsAt": to_iso(T0 - HOUR),
        "endsAt": to_iso(T0 + HOUR),
        "matchers": [{"name": name, "value": value, "isRegex": False, "isEqual": True}],
    }
    return base | more


class Site:
    """Two nodes of two GPUs; GPU 1 of node-1 has an XID 79. `answer` is what Alertmanager says, None: nothing."""

    def __init__(self, folder: Path) -> None:
        wanted = {
            "store": {"path": folder / "store.db"},
            "journal": {"path": folder / "journal.db"},
            "forecast": {"worker": False},
            "alertmanager": {"url": "http://am:9093", "token": "secret"},
        }
        self.clock = ManualClock(T0)
        self.channel = FakeChannel("chat")
        fan = FanOut([ChannelQueue(self.channel, self.clock)], threads=False)
        self.running = open_brain(Settings.model_validate(wanted), self.clock, notifier=fan)
        self.brain, self.service = self.running.brain, BrainService(self.running.brain)
        self.answer: Any = []
        made = open_alert_silences(self.brain, httpx2.MockTransport(self._serve))
        assert made is not None
        self.follower = made

    def _serve(self, request: httpx2.Request) -> httpx2.Response:
        assert request.headers["Authorization"] == "Bearer secret"
        if self.answer is None:
            raise httpx2.ConnectError("refused")
        return httpx2.Response(200, json=self.answer)

    def fail(self) -> None:
        """An XID 79 on GPU-1."""
        now = self.clock.now_ms()
        readings = [Reading(gpu, now, {"gpu_temperature_celsius": 50.0}) for gpu in GPUS]
        self.brain.accept(Batch(readings, [Event(EventKind.XID, "GPU-1", "node-1", now, 79, "fallen")]))
        self.turn(SECOND)

    def turn(self, advance: int = EVERY) -> None:
        """Time passes; Alertmanager is asked, then the brain judges."""
        self.clock.advance(advance)
        self.follower.look()
        self.brain.tick()

    def said(self) -> list[tuple[str, str]]:
        cards = self.service.cards(10).items
        return [(one.name, one.text) for card in cards for one in card.evidence if one.kind == "silence"]

    def value(self, name: str, **labels: str) -> float:
        return self.brain.metrics.value(name, **labels)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.follower.close()
    made.running.stop()


def test_a_silenced_page_waits_is_on_the_card_and_goes_out_at_the_end(site: Site) -> None:
    site.answer = [silence("Hostname", "node-1"), silence("host", "node-9")]
    site.fail()
    assert site.channel.taken == []
    until = to_iso(T0 + HOUR)
    text = f"silenced at Alertmanager by ann until {until}, though something is broken now: fans"
    assert site.said() == [("ann", text)]
    assert site.value("tocsin_notifications_withheld_total", reason="alertmanager_hard_fault") == 1
    assert site.value("tocsin_alertmanager_silences", state="standing") == 2
    (card,) = site.service.cards(10).items
    assert (card.hidden, card.action is not None or card.obstacle != "") == (None, True), "it hides no card"
    site.answer = []
    site.turn()
    assert len(site.channel.taken) == 1
    assert site.said() == []


def test_without_answers_notifications_go_out_after_a_while(site: Site) -> None:
    site.answer = [silence("host", "node-1")]
    site.fail()
    site.answer = None
    for _ in range(HELD_ROUNDS):
        site.turn()
    assert (site.channel.taken, site.value("tocsin_alertmanager_up", server="http://am:9093")) == ([], 0)
    site.turn()
    assert len(site.channel.taken) == 1
    assert (site.said(), site.value("tocsin_alertmanager_silences", state="standing")) == ([], 0)
    assert site.value("tocsin_alertmanager_looks_total", outcome="unreachable") >= 2


def test_a_server_that_never_answered_silences_nobody(site: Site) -> None:
    site.answer = None
    site.fail()
    assert len(site.channel.taken) == 1


def test_a_silence_that_cannot_be_used_is_counted_and_holds_nothing_back(site: Site) -> None:
    broken = [{"name": "host", "value": "(", "isRegex": True, "isEqual": True}]
    site.answer = [silence("host", "x", matchers=broken)]
    site.fail()
    assert len(site.channel.taken) == 1
    assert site.value("tocsin_alertmanager_silences", state="unusable") == 1


def test_an_alert_of_others_that_is_silenced_after_it_was_told_leaves_the_card(site: Site) -> None:
    site.fail()
    body = json.loads((DATA / "webhook_firing.json").read_text())
    site.service.take_alerts(body["alerts"], lambda _host, _gpus: "")

    def alerts() -> list[str]:
        return [one.name for card in site.service.cards(10).items for one in card.evidence if one.kind == "alert"]

    assert alerts() == ["GPUHot"]
    site.answer = [silence("alertname", "GPUHot")]
    site.turn()
    assert alerts() == []
    assert site.said() == [], "Tocsin's own have another name"
    site.answer = []
    site.turn()
    assert alerts() == ["GPUHot"]

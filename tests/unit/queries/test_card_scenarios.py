"""One cause, one card: what befalls real fleets, through the shipped rules, told by readings and events alone."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

import pytest

from tocsin.actions.model.controls import Controls
from tocsin.client.models_cards import Card
from tocsin.config.settings import CostSettings
from tocsin.domain.clock import MINUTE, SECOND
from tocsin.domain.event import Event, EventKind
from tocsin.domain.finding import Finding, Incident
from tocsin.domain.place import Place, PlaceKind
from tocsin.domain.reading import Gpu, Owner, Reading
from tocsin.domain.usage import Prices
from tocsin.queries.card_life import CardLife
from tocsin.queries.cards import CardInputs, forecast_levels, make_cards
from tocsin.queries.fleet_map import snapshot_of
from tocsin.rules.engine import Inputs, RuleEngine
from tocsin.rules.incidents import OpenIncidents
from tocsin.rules.load import load_rules
from tocsin.topology.claims import Claim, ClaimSource
from tocsin.topology.topology import Topology
from tocsin_testing.builders import T0, gpu

HOSTS, PER_HOST, PER_RACK = 12, 8, 4
FRESH_MS = 2 * MINUTE
JOB = Owner(pid=7, slurm_job="4711.0", user="ann")
BRAKE = 0x80


class Scene:
    """96 GPUs on 12 hosts in 3 racks, each rack on a feed and behind a coolant unit of its own; a job on the first 64.

    `minute` steps; `cards` are those of the newest step.
    """

    def __init__(self) -> None:
        self.rules = load_rules(None)
        self.engine = RuleEngine(self.rules)
        self.open = OpenIncidents()
        self.levels = forecast_levels(self.rules)
        self.gpus = [
            gpu(n, host=f"n{n // PER_HOST:02d}", rack=f"r{n // PER_HOST // PER_RACK}") for n in range(HOSTS * PER_HOST)
        ]
        self.topology = _topology(self.gpus)
        self.newest: dict[str, Reading] = {}
        self.events: list[Event] = []
        self.cards: list[Card] = []
        self.most = 0
        self.now = 0

    def on(self, *hosts: int) -> list[Gpu]:
        return [one for one in self.gpus if int(one.host[1:]) in hosts]

    def minute(
        self,
        *,
        hot: Collection[Gpu] = (),
        braked: Collection[Gpu] = (),
        silent: Collection[Gpu] = (),
        events: Iterable[Event] = (),
    ) -> list[Card]:
        self.now += 1
        at_ms, told = T0 + self.now * MINUTE, list(events)
        for number, one in enumerate(self.gpus):
            if one not in silent:
                self.newest[one.uuid] = _reading(one, at_ms, one in hot, one in braked, number < 64)
        self.events += told
        found = self.engine.step(Inputs(at_ms, tuple(self.newest.values()), told)).active
        incidents = self.open.step(found, self.events, self.topology, at_ms)
        self.cards = self._cards(incidents, found, at_ms)
        self.most = max(self.most, len(self.cards))
        return self.cards

    def _cards(self, incidents: list[Incident], found: list[Finding], at_ms: int) -> list[Card]:
        snapshot = snapshot_of(self.newest.values(), found, (), at_ms, FRESH_MS)
        inputs = CardInputs(
            snapshot,
            incidents,
            (),
            (),
            self.levels,
            self.rules.foretelling,
            CardLife(),
            Controls(),
            CostSettings(),
            Prices(),
            FRESH_MS,
        )
        return [one.card for one in make_cards(inputs)]

    def event(self, kind: EventKind, on: Gpu, code: int = 0, *, host: bool = False, after_s: float = 0.0) -> Event:
        at_ms = T0 + (self.now + 1) * MINUTE - 30 * SECOND + round(after_s * SECOND)
        return Event(kind, "" if host else on.uuid, on.host, at_ms, code, f"{kind} {code}")


def _topology(gpus: list[Gpu]) -> Topology:
    claims = []
    for one in gpus:
        host = Place(PlaceKind.HOST, one.host)
        for kind, name in ((PlaceKind.RACK, one.rack), (PlaceKind.POWER_ZONE, f"pdu-{one.rack}"),
                           (PlaceKind.COOLING_ZONE, f"cdu-{one.rack}")):  # fmt: skip
            claims.append(Claim(host, Place(kind, name), ClaimSource.SITE_FILE))
    made = Topology({one.uuid: one.host for one in gpus}, claims)
    return made.with_jobs({one.uuid: "slurm 4711" for one in gpus[:64]})


def _reading(one: Gpu, at_ms: int, hot: bool, braked: bool, busy: bool) -> Reading:
    values = {
        "gpu_temperature_celsius": 92.0 + at_ms % 3 if hot else 61.0 + at_ms % 3,
        "gpu_temperature_slowdown_celsius": 95.0,
        "gpu_utilization_ratio": 0.7,
        "gpu_sm_active_ratio": 0.6,
        "gpu_power_watts": 300.0 + at_ms % 7,
        "gpu_power_limit_default_watts": 400.0,
        "gpu_clocks_event_reasons_bitmask": float(BRAKE if braked else 0),
    }
    return Reading(one, at_ms, values, {}, (JOB,) if busy else ())


@pytest.fixture
def scene() -> Scene:
    made = Scene()
    for _ in range(3):
        assert made.minute() == []
    return made


def only(scene: Scene) -> Card:
    assert len(scene.cards) == 1, [card.headline for card in scene.cards]
    assert scene.most == 1, "there never were two"
    return scene.cards[0]


def test_a_fan_of_a_host(scene: Scene) -> None:
    for _ in range(6):
        scene.minute(hot=scene.on(2))
    card = only(scene)
    assert (card.place, card.touches.gpus) == ("host:n02", 8)
    assert card.headline == "8 GPUs of host n02: too hot"


def test_a_pump_of_a_coolant_unit(scene: Scene) -> None:
    for _ in range(6):
        scene.minute(hot=scene.on(0, 1, 2, 3))
    card = only(scene)
    assert card.touches.hosts == 4
    assert "too hot" in card.headline


def test_a_pdu_of_a_rack(scene: Scene) -> None:
    headlines = set()
    for _ in range(25):
        scene.minute(silent=scene.on(4, 5, 6, 7))
        headlines |= {card.headline for card in scene.cards}
    card = only(scene)
    assert card.touches.gpus == 32
    assert all("reports nothing" in headline for headline in headlines)


def test_a_feed_that_brakes_a_rack(scene: Scene) -> None:
    for _ in range(8):
        scene.minute(braked=scene.on(8, 9, 10, 11))
    card = only(scene)
    assert "want of power" in card.headline
    assert "power supplies" in card.obstacle


def test_a_switch_tray(scene: Scene) -> None:
    hit = scene.on(3)
    told = [scene.event(EventKind.SXID, hit[0], 12020, host=True)]
    told += [scene.event(EventKind.XID, one, 74, after_s=1 + n / 10) for n, one in enumerate(hit)]
    scene.minute(events=told)
    for _ in range(5):
        scene.minute()
    assert only(scene).subject.host == "n03"


def test_a_link_and_what_its_other_end_sees(scene: Scene) -> None:
    one, other = scene.on(5)[:2]
    told = [scene.event(EventKind.XID, one, 74), scene.event(EventKind.XID, other, 74, after_s=1)]
    scene.minute(events=[*told, scene.event(EventKind.XID, one, 45, after_s=2)])
    for _ in range(5):
        scene.minute()
    card = only(scene)
    assert "NVLink" in card.headline
    assert {item.xid for item in card.evidence} >= {74}


def test_a_host_that_reboots(scene: Scene) -> None:
    for _ in range(5):
        scene.minute(silent=scene.on(6))
    assert only(scene).headline == "8 GPUs of host n06: reports nothing"
    scene.minute(events=[scene.event(EventKind.DRIVER_RELOAD, scene.on(6)[0], host=True)])
    assert scene.minute() == []


def test_a_wave_of_driver_upgrades(scene: Scene) -> None:
    for host in range(HOSTS):
        for _ in range(4):
            scene.minute(silent=scene.on(host))
            assert len(scene.cards) <= 1
        scene.minute(events=[scene.event(EventKind.DRIVER_RELOAD, scene.on(host)[0], host=True)])
    assert scene.minute() == []
    assert scene.most == 1


def test_a_job_that_crashes_on_64_gpus(scene: Scene) -> None:
    told = []
    for n, one in enumerate(scene.gpus[:64]):
        told += [scene.event(EventKind.XID, one, code, after_s=n / 20 + k) for k, code in enumerate((31, 45, 43))]
    scene.minute(events=told)
    for _ in range(5):
        scene.minute()
    card = only(scene)
    assert card.place == "job:slurm 4711"
    assert (card.touches.gpus, card.touches.owner_names) == (64, ["ann"])
    assert card.headline.endswith("a program crashed; the GPU is sound")
    assert card.obstacle == "Nothing to do to the GPU: look at the program."


def test_two_causes_are_two_cards(scene: Scene) -> None:
    other = scene.on(9)[3]
    scene.minute(hot=scene.on(2), events=[replace(scene.event(EventKind.XID, other, 79))])
    for _ in range(5):
        scene.minute(hot=scene.on(2))
    assert sorted(card.subject.host for card in scene.cards) == ["n02", "n09"]

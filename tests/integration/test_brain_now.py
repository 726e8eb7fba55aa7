"""The first look at a running brain: the board is kept until something changes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tocsin.client.models import PeerGroup
from tocsin.config.settings import Settings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import DAY, HOUR, MINUTE, ManualClock
from tocsin.domain.finding import Subject, SubjectKind
from tocsin.domain.prediction import Prediction, PredictionStatus
from tocsin.queries.heard import least_heard
from tocsin.queries.morning_report import report_now
from tocsin.queries.service import BrainService
from tocsin.rules.load import load_rules
from tocsin.runtime.brain.assembly import open_brain
from tocsin.runtime.brain.brain import Brain
from tocsin_testing.builders import T0, gpu, reading


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(T0)


@pytest.fixture
def brain(tmp_path: Path, clock: ManualClock) -> Iterator[Brain]:
    wanted = {
        "store": {"path": tmp_path / "store.db"},
        "journal": {"path": tmp_path / "journal.db"},
        "forecast": {"worker": False},
        "prices": {"currency": "EUR", "gpu_hour_default": 2.0},
    }
    running = open_brain(Settings.model_validate(wanted), clock, propose=True)
    yield running.brain
    running.stop()


def read(brain: Brain, clock: ManualClock, **hot: float) -> None:
    clock.advance(MINUTE)
    at = clock.now_ms()
    readings = [
        reading(gpu(n, host=f"node-{n // 4}"), at, temperature_celsius=hot.get(f"gpu{n}", 50.0 + n), power_watts=200.0)
        for n in range(8)
    ]
    brain.accept(Batch(readings=readings))
    brain.tick()


def test_the_map_is_the_same_object_until_something_changes(brain: Brain, clock: ManualClock) -> None:
    service = BrainService(brain)
    assert service.fleet_map().uuid == []
    read(brain, clock)
    first = service.fleet_map()
    assert service.fleet_map() is first
    clock.advance(2_000)
    assert service.fleet_map() is first
    read(brain, clock, gpu3=80.0)
    assert service.fleet_map() is not first
    assert service.fleet_map().temperature[3] == 80.0


def test_summary_and_map_agree(brain: Brain, clock: ManualClock) -> None:
    read(brain, clock)
    service = BrainService(brain)
    summary = service.summary()
    assert (summary.gpus, summary.hosts, summary.power_watts) == (8, 2, 1600.0)
    assert sum(summary.states.values()) == 8
    assert summary.states == {state: n for state, n in summary.states.items() if n}
    clock.advance(HOUR)
    assert set(service.fleet_map().state) == {1}


def test_a_rule_whose_signs_nothing_followed_is_told_of(brain: Brain, clock: ManualClock) -> None:
    def count(errors: float) -> None:
        clock.advance(MINUTE)
        at = clock.now_ms()
        made = [reading(gpu(n, host=f"node-{n}"), at, temperature_celsius=50.0) for n in range(6)]
        lcrc = {'gpu_pcie_errors_total{kind="lcrc"}': errors}
        brain.accept(Batch(readings=[replace(one, values={**one.values, **lcrc}) for one in made]))
        brain.tick()

    count(0.0)
    count(5.0)
    service = BrainService(brain)
    assert [one.open for one in service.scoreboard().kinds if one.kind == "rule pcie_crc_errors"] == [6]
    assert not [line for line in service.summary().muted if line.startswith("rule ")]
    clock.advance(8 * DAY)
    count(5.0)
    line = "rule pcie_crc_errors: a failure followed 0 of 6 signs in 30 days, told as notes"
    assert line in service.summary().muted
    (kind,) = (one for one in service.scoreboard().kinds if one.kind == "rule pcie_crc_errors")
    assert (kind.settled, kind.right, kind.muted, kind.sentence) == (6, 0, True, line)


def test_silent_hosts_need_attention(brain: Brain, clock: ManualClock) -> None:
    read(brain, clock)
    service = BrainService(brain)
    assert service.attention(5).items == []
    clock.advance(HOUR)
    assert {item.subject.name for item in service.attention(5).items} == {"node-0", "node-1"}


def test_peers_come_from_the_store(brain: Brain, clock: ManualClock) -> None:
    for _ in range(10):
        read(brain, clock)
    now = clock.now_ms()
    metrics = ["gpu_temperature_celsius"]
    band = BrainService(brain).peers("GPU-00000000", PeerGroup.NODE, metrics, now - 10 * MINUTE, now, 10)
    assert (band.peers, band.group) == (3, 3)
    middle = [value for value in band.middle["gpu_temperature_celsius"] if value is not None]
    assert middle == pytest.approx([52.0] * len(middle))
    assert len(middle) >= 9


def test_what_changed_is_read_from_the_journal_and_the_owners(brain: Brain, clock: ManualClock) -> None:
    service = BrainService(brain)
    clock.advance(2 * HOUR)
    read(brain, clock)
    brain.actions.operator.pause("ann", "rack move")
    found = service.changes(1, 12)
    assert [one.text for one in found.items] == [
        "ann paused all actions: rack move",
        "Host node-1 is new",
        "Host node-0 is new",
    ]
    assert [one.text for one in service.changes(4, 1).items] == ["ann paused all actions: rack move"]
    assert service.changes(4, 1).total == 4


@pytest.mark.parametrize("chance", [0.006, 0.49, 0.5])
def test_cards_reports_and_the_map_tell_of_a_fault_what_its_rule_would(
    brain: Brain, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, chance: float
) -> None:
    read(brain, clock)
    now_ms = clock.now_ms()
    about = Subject(SubjectKind.GPU, gpu(0).uuid, "node-0")
    coming = Prediction(
        about, "hardware_fault", now_ms, 48 * HOUR, PredictionStatus.LIKELY, "m", "1", "It may fail.",
        probability=chance, threshold=0.005,
    )  # fmt: skip
    shifted = replace(coming, subject=Subject(SubjectKind.FLEET, "fleet"), target="model_drift", probability=None)
    monkeypatch.setattr(brain.forecasts, "current", lambda now_ms: [coming, shifted])
    service = BrainService(brain)
    told = int(chance >= 0.5)
    assert (service.cards(5).total, service.attention(5).total) == (told, told)
    assert report_now(brain, [], [], 24).figures.expected == told
    found = service.fleet_map()
    assert found.risk[found.uuid.index(about.name)] == (chance if told else None)


def test_of_several_rules_the_first_to_speak_counts_and_without_one_no_fault_is_told() -> None:
    shipped = load_rules()
    assert least_heard(shipped)["hardware_fault"] == 0.5
    none = replace(shipped, rules=tuple(one for one in shipped if one.name != "gpu_fault_predicted"))
    assert least_heard(none)["hardware_fault"] > 1.0

"""Versions in a running brain: one card for each component of a group, and a restart forgets no roll-out."""

from __future__ import annotations

from pathlib import Path

import pytest

from tocsin.config.settings import Settings
from tocsin.domain.alert_level import AlertLevel
from tocsin.domain.batch import Batch
from tocsin.domain.clock import HOUR, MINUTE, ManualClock
from tocsin.domain.decision import DecisionState
from tocsin.domain.errors import InputError
from tocsin.domain.finding import ActionKind
from tocsin.domain.reading import Gpu, Reading
from tocsin.domain.versions import Standing
from tocsin.queries.service import BrainService
from tocsin.runtime.brain.assembly import RunningBrain, open_brain
from tocsin_testing.builders import T0

MODEL = "NVIDIA H100 80GB HBM3"
OLD, NEW = "550.163.01", "580.95.05"


class Site:
    """A brain over eight hosts, whose drivers are in `drivers`."""

    def __init__(self, folder: Path) -> None:
        self.settings = Settings.model_validate(
            {
                "store": {"path": folder / "store.db"},
                "journal": {"path": folder / "journal.db"},
                "forecast": {"worker": False, "models": folder / "models"},
            }
        )
        self.clock = ManualClock(T0)
        self.drivers = [OLD] * 8
        self.kernels = ["6.8.0"] * 8
        self.running: RunningBrain = open_brain(self.settings, self.clock)

    def live(self, hours: float, every: int = 10 * MINUTE) -> None:
        """Readings and evaluations for so long."""
        end = self.clock.now_ms() + round(hours * HOUR)
        while self.clock.now_ms() < end:
            now = self.clock.now_ms()
            readings = [Reading(gpu, now, {"gpu_power_watts": 300.0 + n}) for n, gpu in enumerate(self._gpus())]
            self.running.brain.accept(Batch(readings=readings))
            self.running.brain.tick()
            self.clock.advance(every)

    def _gpus(self) -> list[Gpu]:
        return [
            Gpu(
                f"GPU-{n}",
                f"node-{n}",
                0,
                MODEL,
                pool="training",
                labels={
                    "driver_version": self.drivers[n],
                    "gsp_firmware_version": self.drivers[n],
                    "kernel_version": self.kernels[n],
                },
            )
            for n in range(8)
        ]

    def restart(self) -> None:
        self.running.stop()
        self.running = open_brain(self.settings, self.clock)

    @property
    def service(self) -> BrainService:
        return BrainService(self.running.brain)

    def cards(self) -> list[str]:
        """Headlines of cards about versions."""
        found = [card.headline for card in self.service.cards(50).items]
        return sorted(one for one in found if "differs between" in one)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_each_component_is_one_card_however_many_gpus(site: Site) -> None:
    site.live(1)
    site.drivers[3] = "535.1"
    site.kernels[5] = "5.15.0"
    site.restart()
    # A restart takes up what changed meanwhile: for a day it may be the start of a roll-out.
    site.live(23)
    assert site.cards() == []
    site.live(4)
    assert site.cards() == [
        f"pool training: driver differs between hosts with {MODEL}",
        f"pool training: kernel differs between hosts with {MODEL}",
    ]
    told = [one for one in site.running.brain.statuses() if one.decision.rule == "version_drift"]
    assert {one.decision.subject.detail for one in told} == {f"driver {MODEL}", f"kernel {MODEL}"}
    assert {(one.decision.action, one.state) for one in told} == {(ActionKind.NOTIFY, DecisionState.DONE)}
    driver = next(card for card in site.service.cards(50).items if "driver differs" in card.headline)
    assert driver.level is AlertLevel.WARNING
    assert driver.action is None
    assert "535.1 on node-3 differs from its pool: 7 of 8 hosts" in " ".join(one.text for one in driver.evidence)
    found = site.service.drift("training", ["driver", "gsp_firmware"])
    assert [(one.standing, one.because) for one in found.groups[0].components] == [
        (Standing.DRIFT, ""),
        (Standing.DRIFT, "driver"),
    ]
    site.drivers[3] = OLD
    site.kernels[5] = "6.8.0"
    site.live(1)
    assert site.cards() == []
    site.running.stop()


def test_a_roll_out_is_no_drift_also_over_a_restart(site: Site) -> None:
    site.live(1)
    for n in range(8):
        site.drivers[n] = NEW
        site.live(5, every=30 * MINUTE)
        site.restart()
        assert site.cards() == []
        found = site.service.drift("", ["driver"])
        assert found.groups[0].components[0].standing in (Standing.ROLLOUT, Standing.SAME), n
    changes = site.service.changes(24, 50).items
    assert "driver of node-7: 550.163.01 became 580.95.05" in [one.text for one in changes]
    assert "node-7 的驱动：550.163.01 变为 580.95.05" in [one.text_zh for one in changes]
    site.running.stop()


def test_a_component_that_there_is_not_is_refused(site: Site) -> None:
    with pytest.raises(InputError, match="has no version"):
        site.service.drift("", ["drivers"])
    site.running.stop()

"""Hard faults at distinct places in a simulated fleet: each has its own card, and hardly any card is beside them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tocsin.client.models_cards import CardState
from tocsin.config.settings import Settings
from tocsin.domain.clock import HOUR
from tocsin.domain.errors import InputError
from tocsin.runtime.demo import Demo, demo_settings, only_faults
from tocsin.runtime.demo_terminal import DemoTerminal
from tocsin_testing.builders import T0

FAULTS, STEPS = 6, 25
"""Faults in 64 GPUs, and minutes after which all of these have struck and show."""


def demo_of(tmp_path: Path, faults: int, seed: int) -> Demo:
    simulation = {"gpus": 64, "seed": seed}
    wanted = Settings.model_validate(
        {"simulation": simulation, "forecast": {"worker": False, "models": tmp_path / "m"}}
    )
    return Demo(demo_settings(only_faults(wanted, faults), tmp_path), T0, faults)


@pytest.mark.parametrize("seed", [7, 11])
def test_each_fault_has_its_own_card(tmp_path: Path, seed: int) -> None:
    demo = demo_of(tmp_path, FAULTS, seed)
    try:
        for _ in range(STEPS):
            demo.step()
        report = demo.report()
        assert report["faults_injected"] == FAULTS
        assert report["cards_true"] == FAULTS, [card.headline for card in demo.service.cards(100).items]
        assert int(str(report["cards_beyond"])) <= 2
        answered, explained = int(str(report["cards_answerable"])), int(str(report["cards_explained"]))
        assert answered + explained == FAULTS
        # In so small a fleet the limits hold the rest, and the cards say so.
        assert answered >= 3
        found = demo.service.cards(100)
        assert found.waiting == demo.service.summary().decisions_approvable
        for card in found.items:
            assert (card.action is None) == bool(card.obstacle), card.headline
            assert demo.service.card(card.id).headline == card.headline
        assert all(card.proof for card in demo.service.cards(100, CardState.RESOLVED).items)
    finally:
        demo.running.stop()


def test_faults_want_a_host_each(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has 8 hosts"):
        demo_of(tmp_path, 9, 7)


@pytest.mark.parametrize("hour", [0, 9, 17])
def test_a_demo_of_its_own_faults_predicts_within_twenty_evaluations_at_any_hour(tmp_path: Path, hour: int) -> None:
    """A newcomer is promised a prediction within a minute: what runs in the fleet follows the hour of the day."""
    wanted = Settings.model_validate({"forecast": {"worker": False, "models": tmp_path / "m"}})
    demo = Demo(demo_settings(wanted, tmp_path), T0 + hour * HOUR)
    said: list[str] = []
    terminal = DemoTerminal(said.append)
    try:
        assert demo.injected == 1, "the leak has begun"
        for _ in range(20):
            demo.step()
            demo.brain.forecast()
            now_ms = demo.brain.clock.now_ms()
            terminal.look(now_ms, demo.brain.incidents, demo.brain.forecasts.current(now_ms), demo.brain.statuses())
        assert any(" predicted: " in line and "memory" in line for line in said), said
    finally:
        demo.running.stop()

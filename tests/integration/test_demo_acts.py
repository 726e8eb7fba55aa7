"""The demo's fleet feels what a person approves."""

from __future__ import annotations

from pathlib import Path

import pytest

from tocsin.config.settings import Settings
from tocsin.domain.decision import DecisionState, OutcomeStatus
from tocsin.domain.finding import ActionKind
from tocsin.runtime.demo import Demo, demo_settings
from tocsin_testing.builders import T0


@pytest.fixture
def demo(tmp_path: Path) -> Demo:
    wanted = Settings.model_validate(
        {
            "simulation": {"gpus": 16, "fault_rate_scale": 0.0},
            "forecast": {"worker": False, "models": tmp_path / "models"},
            "actions": {"confirmations": 1, "boot_grace_seconds": 0, "settle_seconds": 60},
        }
    )
    return Demo(demo_settings(wanted, tmp_path), T0)


def test_a_decision_waits_a_quarter_of_an_hour_of_wall_time(tmp_path: Path) -> None:
    wanted = Settings.model_validate({"simulation": {"speed": 60.0}, "actions": {"time_box_seconds": 60.0}})
    assert demo_settings(wanted, tmp_path).actions.time_box_seconds == 15 * 60 * 60.0
    longer = Settings.model_validate({"simulation": {"speed": 1.0}, "actions": {"time_box_seconds": 7200.0}})
    assert demo_settings(longer, tmp_path).actions.time_box_seconds == 7200.0


def test_an_approved_action_happens_in_the_simulated_fleet_and_is_verified(demo: Demo) -> None:
    before = {gpu.uuid: _limit(demo, gpu.uuid) for gpu in demo.fleet.gpus}
    demo.service.inject("fan_failure", "9", "ann")
    approved: dict[str, str] = {}
    ended = []
    for _ in range(240):
        demo.step()
        for status in demo.brain.statuses():
            one = status.decision
            if one.action is ActionKind.THROTTLE and status.state is DecisionState.HELD and one.id not in approved:
                demo.brain.actions.operator.approve(one.id, "ann")
                approved[one.id] = one.subject.name
        ended = [s for s in demo.brain.statuses() if s.decision.id in approved and s.outcome is not None]
        if ended:
            break
    outcome = ended[0].outcome
    assert outcome is not None
    assert outcome.executor == "simulated"
    assert outcome.status in (OutcomeStatus.SUCCEEDED, OutcomeStatus.UNVERIFIED)
    uuid = approved[ended[0].decision.id]
    assert _limit(demo, uuid) < before[uuid]
    demo.running.stop()


def _limit(demo: Demo, uuid: str) -> float:
    reading = demo.brain.memory.reading(uuid)
    if reading is None:
        demo.step()
        reading = demo.brain.memory.reading(uuid)
    assert reading is not None
    return reading.values["gpu_power_limit_watts"]

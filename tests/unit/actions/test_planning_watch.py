"""The planners' look at a running brain: plans of a simulated fleet become decisions of its loop, and nothing more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tocsin.actions.planning.foresight import PLANNED
from tocsin.config.settings import Settings
from tocsin.domain.decision import MigrateParameters, Mode
from tocsin.domain.finding import ActionKind, Subject, SubjectKind
from tocsin.runtime.brain.plan_watch import PlanWatch
from tocsin.runtime.demo import Demo, demo_settings
from tocsin_testing.builders import T0

GPUS = 16


def demo(folder: Path, **planning: Any) -> Demo:
    wanted = Settings.model_validate(
        {
            "simulation": {"gpus": GPUS},
            "forecast": {"worker": False, "models": folder / "models"},
            "planning": {"effort": 500, **planning},
            "actions": {
                "mode": Mode.ACT,
                "earn_waived": ["*"],
                "boot_grace_seconds": 0,
                "settle_seconds": 0,
                "confirmations": 1,
            },
        }
    )
    made = Demo(demo_settings(wanted, folder), T0)
    made.brain.actions.operator.resume("test")
    return made


def watts(made: Demo) -> float:
    return sum(one.values.get("gpu_power_limit_watts", 0.0) for one in made.brain.memory.latest())


def targets(made: Demo) -> set[str]:
    """Hosts to which the work on any GPU would go."""
    foresight = made.brain.proposals.foresight
    assert foresight.state is not None
    subjects = [Subject(SubjectKind.GPU, slot.uuid, slot.host) for slot in foresight.state.gpus.values()]
    places = [foresight.leaving(one).parameters for one in subjects]
    return {host for one in places if isinstance(one, MigrateParameters) for hosts in one.to_host for host in hosts}


@pytest.fixture
def closing() -> Any:
    made: list[Demo] = []
    yield made.append
    for one in made:
        one.running.stop()


def test_without_the_setting_plans_make_no_finding(tmp_path: Path, closing: Any) -> None:
    made = demo(tmp_path, facility_watts=1000.0)
    closing(made)
    watch = PlanWatch(made.brain)
    for _ in range(3):
        made.step()
        watch.look()
    assert not [one for one in made.brain.active if one.rule in PLANNED]
    assert made.brain.proposals.foresight.state is not None


def test_a_power_budget_is_kept_on_the_simulated_fleet(tmp_path: Path, closing: Any) -> None:
    made = demo(tmp_path, follow=["power"], mode="act", facility_watts=1.0)
    closing(made)
    made.step()
    before = watts(made)
    made.brain.settings.planning.facility_watts = round(0.9 * before)
    watch = PlanWatch(made.brain)
    for _ in range(12):
        watch.look()
        made.step()
    assert watts(made) <= 0.9 * before + 1
    own = [one for one in made.brain.statuses() if one.decision.rule == "plan_power"]
    done = [one for one in own if one.outcome is not None]
    assert done
    assert {one.decision.action for one in own} == {ActionKind.THROTTLE}
    assert all(one.decision.simulated for one in own)
    found = [one for one in made.brain.active if one.rule == "plan_power"]
    assert {one.subject.key for one in found} >= {one.decision.subject.key for one in done}
    assert len({one.decision.key for one in own}) == len(own)


def test_a_host_that_waits_for_its_reboot_takes_no_work(tmp_path: Path, closing: Any) -> None:
    wanted = Settings.model_validate(
        {
            "simulation": {"gpus": 128},
            "forecast": {"worker": False, "models": tmp_path / "models"},
            "planning": {"effort": 500},
        }
    )
    made = Demo(demo_settings(wanted, tmp_path), T0)
    closing(made)
    watch = PlanWatch(made.brain)
    for _ in range(12):
        made.step()
    watch.look()
    open_before = made.brain.proposals.foresight.state
    assert "sim-node-0003" in targets(made)
    made.service.inject("fallen_off_bus", "26", "ann")
    reboots: set[str] = set()
    for _ in range(30):
        made.step()
        waiting = (one for one in made.brain.statuses() if not one.outcome)
        reboots = {one.decision.subject.host for one in waiting if one.decision.action is ActionKind.REBOOT_NODE}
        if "sim-node-0003" in reboots:
            break
    assert "sim-node-0003" in reboots
    watch.look()
    state = made.brain.proposals.foresight.state
    assert open_before is not None
    assert state is not None
    assert not any(node.leaving for node in open_before.nodes.values())
    assert {host for host, node in state.nodes.items() if node.leaving} == reboots
    assert "sim-node-0003" not in targets(made)


def test_a_step_that_is_only_proposed_changes_nothing(tmp_path: Path, closing: Any) -> None:
    made = demo(tmp_path, follow=["power"], facility_watts=1.0)
    closing(made)
    made.step()
    before = watts(made)
    made.brain.settings.planning.facility_watts = round(0.9 * before)
    watch = PlanWatch(made.brain)
    for _ in range(5):
        watch.look()
        made.step()
    own = [one for one in made.brain.statuses() if one.decision.rule == "plan_power"]
    assert own
    assert all(one.decision.mode is Mode.PROPOSE and one.outcome is None for one in own)
    assert watts(made) == before

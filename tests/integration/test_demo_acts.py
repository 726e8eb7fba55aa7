"""The demo's fleet feels what a person approves."""

from __future__ import annotations

from pathlib import Path

import pytest

from tocsin.config.settings import Settings
from tocsin.domain.decision import DecisionState, OutcomeStatus, Ruling
from tocsin.domain.entry import EntryKind
from tocsin.domain.finding import ActionKind
from tocsin.runtime.brain.plan_watch import PlanWatch
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
    assert outcome.status in (OutcomeStatus.SUCCEEDED, OutcomeStatus.GOAL_NOT_REACHED)
    uuid = approved[ended[0].decision.id]
    assert _limit(demo, uuid) < before[uuid]
    demo.running.stop()


def test_a_fault_that_is_begun_is_told_with_the_name_that_its_card_will_have(demo: Demo) -> None:
    told = demo.service.inject("fan_failure", "9", "ann")
    assert told.sentence == "fan_failure starts in sim-node-0001 GPU 1"
    assert told.gpu == demo.fleet.gpus[9].uuid
    demo.running.stop()


def test_all_that_a_simulated_fleet_has_on_record_is_marked_so(demo: Demo) -> None:
    demo.service.inject("fallen_off_bus", "2", "ann")
    for number in range(45):
        demo.step()
        if number > 30:
            for one in [s for s in demo.brain.statuses() if s.waits_for_person]:
                demo.brain.actions.operator.approve(one.decision.id, "ann")
    kinds = {EntryKind.FINDING_OPENED, EntryKind.FINDING_CLEARED, EntryKind.INCIDENT_OPENED, EntryKind.INCIDENT_CLOSED}
    found = list(demo.brain.journal.entries(kinds=kinds))
    assert {entry.kind for entry in found} == kinds
    assert all(entry.simulated for entry in found), [entry.kind for entry in found if not entry.simulated]
    demo.running.stop()


def test_each_decision_that_waits_starts_once_it_is_approved(demo: Demo) -> None:
    """The demo's own faults, in a fleet as full as it comes: approving one after the other, each begins."""
    plans = PlanWatch(demo.brain)
    for kind, gpu in (("memory_leak", "5"), ("fan_failure", "9"), ("row_remap", "12"), ("fallen_off_bus", "2")):
        demo.service.inject(kind, gpu, "ann")
    started: list[str] = []
    for number in range(60):
        demo.step()
        if number % 5 == 4:
            plans.look()
            demo.brain.tick()
        while number % 10 == 9 and (waiting := [s for s in demo.brain.statuses() if s.waits_for_person]):
            assert demo.service.attention(1).waiting == demo.service.summary().decisions_approvable == len(waiting)
            one = waiting[0].decision.id
            demo.brain.actions.operator.approve(one, "ann")
            demo.brain.tick()
            stands = demo.service.decision(one).state
            assert stands in BEGUN, (stands, waiting[0].decision.sentence, demo.service.decision(one).held_by)
            started.append(one)
    assert len(started) >= 3
    held = [s for s in demo.brain.statuses() if s.state is DecisionState.HELD and not s.waits_for_person]
    assert all(v.reason for s in held for v in s.verdicts if v.ruling is not Ruling.ALLOW)
    demo.running.stop()


BEGUN = {DecisionState.EXECUTING, DecisionState.VERIFYING, DecisionState.DONE, DecisionState.FAILED}


def _limit(demo: Demo, uuid: str) -> float:
    reading = demo.brain.memory.reading(uuid)
    if reading is None:
        demo.step()
        reading = demo.brain.memory.reading(uuid)
    assert reading is not None
    return reading.values["gpu_power_limit_watts"]

"""An event is judged and acted upon without a look at the whole fleet, and comes to what a whole look comes to."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tocsin.actions.model.ledger_entry import DecisionStatus
from tocsin.config.settings import Settings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import MINUTE, SECOND, ManualClock
from tocsin.domain.entry import EntryKind
from tocsin.domain.event import Event, EventKind
from tocsin.domain.reading import Gpu
from tocsin.runtime.brain.assembly import RunningBrain, open_brain
from tocsin.runtime.brain.brain import Brain
from tocsin.runtime.brain.periodic import Periodic
from tocsin_testing.builders import T0, gpu, reading, xid

FLEET = [gpu(n, host=f"node-{n // 8}", pool="default") for n in range(16)]
NEW = gpu(99, host="node-9", pool="default")


@pytest.fixture
def running(tmp_path: Path) -> Iterator[RunningBrain]:
    settings = Settings.model_validate(
        {
            "store": {"path": tmp_path / "store.db"},
            "journal": {"path": tmp_path / "journal.db"},
            "forecast": {"worker": False},
            "actions": {"mode": "propose", "boot_grace_seconds": 0, "managed_pools": ["default"]},
        }
    )
    made = open_brain(settings, ManualClock(T0), propose=True)
    yield made
    made.stop()


def _clock(brain: Brain) -> ManualClock:
    assert isinstance(brain.clock, ManualClock)
    return brain.clock


def _feed(brain: Brain, *events: Event, gpus: object = FLEET) -> None:
    now = brain.clock.now_ms()
    readings = [reading(one, now, temperature_celsius=55, power_watts=300) for one in gpus]  # type: ignore[attr-defined]
    brain.accept(Batch(readings=readings, events=list(events)))


def _whole(brain: Brain) -> None:
    _feed(brain)
    brain.tick()


def _held_by(status: DecisionStatus) -> set[str]:
    return {verdict.guard for verdict in status.verdicts if verdict.ruling != "allow"}


def _kinds(brain: Brain) -> list[str]:
    return [entry.kind for entry in brain.journal.entries()]


def test_an_event_alone_is_found_and_decided(running: RunningBrain) -> None:
    brain = running.brain
    _whole(brain)
    _clock(brain).advance(10 * SECOND)
    brain.accept(Batch(events=[xid(79, FLEET[3], brain.clock.now_ms())]))
    brain.judge_events()
    assert {EntryKind.FINDING_OPENED, EntryKind.INCIDENT_OPENED, EntryKind.DECISION} <= set(_kinds(brain))
    (incident,) = brain.incidents
    assert incident.root.subject.name == FLEET[3].uuid
    drains = [one for one in brain.statuses() if one.decision.action != "notify"]
    assert [one.decision.subject.pool for one in drains] == ["default"]
    told = {one.decision.key: (one.state, one.overall) for one in brain.statuses()}
    _clock(brain).advance(SECOND)
    brain.tick()
    assert {one.decision.key: (one.state, one.overall) for one in brain.statuses()} == told


def _drain_of_a_gpu_that_fails_as_it_comes(brain: Brain, new: Gpu, beside: list[Gpu]) -> DecisionStatus:
    _whole(brain)
    _clock(brain).advance(10 * SECOND)
    _feed(brain, xid(79, new, brain.clock.now_ms()), gpus=[*beside, new])
    brain.judge_events()
    (drain,) = [one for one in brain.statuses() if one.decision.action != "notify"]
    assert drain.decision.subject.name == new.uuid
    return drain


def test_nothing_is_done_to_a_gpu_more_of_a_known_host_until_the_next_evaluation(running: RunningBrain) -> None:
    brain = running.brain
    drain = _drain_of_a_gpu_that_fails_as_it_comes(brain, gpu(98, host="node-1", pool="default"), FLEET[8:])
    assert _held_by(drain) == {"approval", "managed"}


def test_the_first_node_of_a_fleet_is_judged_like_others(running: RunningBrain) -> None:
    brain = running.brain
    brain.tick()
    _feed(brain, xid(79, NEW, brain.clock.now_ms()), gpus=[NEW])
    brain.judge_events()
    (drain,) = [one for one in brain.statuses() if one.decision.action != "notify"]
    assert "managed" not in _held_by(drain)


def test_a_node_that_has_just_come_is_judged_like_others(running: RunningBrain) -> None:
    brain = running.brain
    drain = _drain_of_a_gpu_that_fails_as_it_comes(brain, NEW, [])
    assert _held_by(drain) == {"approval"}
    _clock(brain).advance(SECOND)
    brain.tick()
    (after,) = [one for one in brain.statuses() if one.decision.action != "notify"]
    assert _held_by(after) == {"approval"}


def test_a_reload_of_the_driver_ends_the_finding_at_once(running: RunningBrain) -> None:
    brain = running.brain
    _whole(brain)
    brain.accept(Batch(events=[xid(79, FLEET[3], brain.clock.now_ms())]))
    brain.judge_events()
    _clock(brain).advance(SECOND)
    reload = Event(EventKind.DRIVER_RELOAD, "", FLEET[3].host, brain.clock.now_ms())
    brain.accept(Batch(events=[reload]))
    brain.judge_events()
    assert brain.active == []
    assert EntryKind.FINDING_CLEARED in _kinds(brain)


def test_without_a_recent_look_at_the_fleet_all_of_it_is_judged(running: RunningBrain) -> None:
    brain = running.brain
    _feed(brain)
    brain.judge_events()
    assert brain.evaluations == 1
    hot = [reading(FLEET[0], brain.clock.now_ms() + MINUTE, temperature_celsius=99, power_watts=300)]
    for _ in range(6):
        _clock(brain).advance(MINUTE)
        brain.accept(Batch(readings=[reading(one.gpu, brain.clock.now_ms(), temperature_celsius=99) for one in hot]))
        brain.judge_events()
    assert {one.subject.name for one in brain.active} == {FLEET[0].uuid}


def test_a_thread_that_is_woken_before_its_time_does_what_it_was_woken_for() -> None:
    clock, wake = ManualClock(T0), threading.Event()
    done: list[str] = []
    woken = threading.Event()

    def alone() -> None:
        done.append("alone")
        woken.set()

    first = threading.Event()

    def whole() -> None:
        done.append("whole")
        first.set()

    thread = Periodic("evaluate", whole, 15.0, clock, wake=wake, on_wake=alone)
    thread.start()
    try:
        assert first.wait(10)
        wake.set()
        assert woken.wait(10)
    finally:
        thread.stop()
    assert done == ["whole", "alone"]

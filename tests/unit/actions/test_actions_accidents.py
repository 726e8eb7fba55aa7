"""Accidents that fleet automation is known for, each kept from happening again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tocsin.actions.loop.decide import chosen_action
from tocsin.actions.loop.loop import OUTSIDE
from tocsin.actions.model.executor import ExecutionResult
from tocsin.actions.model.scope import available, out_of_service
from tocsin.actions.model.view import Confirmations
from tocsin.actions.planning.facts import NodeState
from tocsin.domain.clock import DAY, HOUR, MINUTE
from tocsin.domain.decision import DecisionState, OutcomeStatus, Ruling
from tocsin.domain.entry import EntryKind
from tocsin.domain.event import Event, EventKind
from tocsin.domain.finding import ActionKind, Category, Finding, Severity, Subject, SubjectKind
from tocsin.domain.order import OrderState
from tocsin.domain.reading import NVLINK_DOMAIN, Gpu, Reading
from tocsin.rules.engine import Inputs, RuleEngine
from tocsin.rules.incidents import collapse
from tocsin.rules.load import load_rules
from tocsin.runtime.brain.lease import FileLease
from tocsin.topology.topology import topology_of
from tocsin_testing.action_world import World, fleet, incident, settings
from tocsin_testing.builders import T0
from tocsin_testing.node_world import Node

LIMITS = {
    "max_concurrent": 5,
    "max_concurrent_ratio": 1.0,
    "max_per_host": 1,
    "max_per_rack": 2,
    "min_available_ratio": 0.0,
    "attempts_per_day": 3,
}


def _nodes(world: World, *cordoned: str) -> None:
    hosts = {gpu.host for gpu in world.gpus.values()}
    world.nodes = {host: NodeState(host, host not in cordoned, ours=host in cordoned) for host in hosts}


def _executed(world: World) -> int:
    return len(world.journal.of(EntryKind.EXECUTION_STARTED))


def test_accident_one_poll_shows_most_links_down() -> None:
    """One poll flagged 214 of 288 healthy nodes: one look is no evidence, and a crowd of causes trips the breaker."""
    world = World(settings(confirmations=3, breaker_root_causes=3, limits=LIMITS), fleet(288, 1))
    for host in range(214):
        world.break_gpu(f"GPU-{host}-0", category=Category.HARDWARE, action=ActionKind.DRAIN)
    world.step()
    assert _executed(world) == 0
    world.faults.clear()
    for _ in range(5):
        world.step()
    assert _executed(world) == 0
    assert world.loop.controls().breaker is None


LINK_DOWN = """
[[rules]]
name = "nvlink_down"
summary = "A link is down."
severity = "critical"
category = "hardware"
action = "drain"
alert = "{where}: a link is down."
all = [{ kind = "threshold", metric = "gpu_nvlink_up{link}", below = 1 }]
"""


@pytest.mark.parametrize("polls", [1, 2])
def test_accident_one_poll_of_links_through_the_rules(tmp_path: Path, polls: int) -> None:
    """The same from the readings on: a poll or two in which the links of 214 nodes look down drains none of them."""
    rules = tmp_path / "rules.toml"
    rules.write_text(LINK_DOWN)
    world = World(settings(confirmations=3, limits=LIMITS), fleet(288, 1))
    engine, confirmations = RuleEngine(load_rules(rules)), Confirmations()
    flagged = 0
    for poll in range(10):
        world.clock.advance(15_000)
        now = world.clock.now_ms()
        readings = [
            Reading(gpu, now, {'gpu_nvlink_up{link="0"}': 0.0 if 2 <= poll < 2 + polls and host < 214 else 1.0})
            for host, gpu in enumerate(world.gpus.values())
        ]
        active = engine.step(Inputs(now, readings)).active
        flagged = max(flagged, len(active))
        incidents = collapse(active, [])
        seen = confirmations.update(active, now)
        view = replace(world.view(), findings={f.id: f for f in active}, incidents=tuple(incidents), confirmations=seen)
        world.loop.step(view, incidents, [])
    assert flagged == 214
    assert _executed(world) == 0


def test_accident_the_same_poll_again_and_again() -> None:
    """Where the wrong state stays, what runs before the breaker latches is bounded by number, not by share alone."""
    world = World(settings(confirmations=3, breaker_root_causes=3, limits=LIMITS), fleet(288, 1))
    for host in range(214):
        world.break_gpu(f"GPU-{host}-0", category=Category.HARDWARE, action=ActionKind.DRAIN)
    for _ in range(20):
        world.step()
    assert world.loop.controls().breaker is not None
    assert _executed(world) <= LIMITS["max_concurrent"]


def test_accident_a_restart_replays_an_old_event() -> None:
    """A healthy node was rebooted for an event of the day before: what is not seen now moves nothing."""
    world = World(settings())
    old = world.break_gpu("GPU-0-0", action=ActionKind.REBOOT_NODE, category=Category.HARDWARE)
    world.clock.advance(DAY)
    world.restart()
    view = replace(world.view(), findings={old.id: old}, incidents=(incident(old),))
    for _ in range(3):
        world.loop.step(view, view.incidents, [])
    assert _executed(world) == 0
    live = next(v for v in world.only(ActionKind.REBOOT_NODE).verdicts if v.guard == "still_live")
    assert "may be over" in live.reason


@pytest.mark.parametrize(
    ("age", "reloaded", "acts"),
    [(DAY, None, False), (HOUR, 50 * MINUTE, False), (12 * HOUR, 11 * HOUR, False), (HOUR, None, True)],
)
def test_accident_an_old_event_through_the_rules(age: int, reloaded: int | None, acts: bool) -> None:
    """A brain that starts reads the events of the day before again: a node that was rebooted since, or whose event is
    a day old, is left alone; one that still has what it reported is not."""
    gpu = fleet(1, 1)["GPU-0-0"]
    world = World(settings(boot_grace_seconds=60.0, confirmations=3), {gpu.uuid: gpu})
    events = [Event(EventKind.XID, gpu.uuid, gpu.host, T0 - age, 79, severity=Severity.CRITICAL)]
    if reloaded is not None:
        events.insert(0, Event(EventKind.DRIVER_RELOAD, gpu.uuid, gpu.host, T0 - reloaded))
    for _ in range(2):
        engine, confirmations = RuleEngine(load_rules(None)), Confirmations()
        world.restart()
        for _ in range(20):
            world.clock.advance(15_000)
            now = world.clock.now_ms()
            active = engine.step(Inputs(now, [Reading(gpu, now, {"gpu_temperature_celsius": 50.0})], events)).active
            incidents = collapse(active, events)
            view = replace(
                world.view(),
                findings={f.id: f for f in active},
                incidents=tuple(incidents),
                confirmations=confirmations.update(active, now),
            )
            world.loop.step(view, incidents, [])
    assert bool(_executed(world)) is acts
    keys = [entry.payload["key"] for entry in world.journal.of(EntryKind.EXECUTION_STARTED)]
    assert len(keys) == len(set(keys))


def test_accident_closing_the_breaker_replays_days() -> None:
    """What waited while the breaker was open is over: only what is there now may run, within the limits."""
    world = World(settings(breaker_root_causes=3, limits=LIMITS), fleet(40, 1))
    for host in range(30):
        world.break_gpu(f"GPU-{host}-0")
    world.step()
    before = _executed(world)
    world.faults.clear()
    for _ in range(48):
        world.step(advance=HOUR)
    world.loop.operator.reset_breaker("ann")
    for _ in range(5):
        world.step()
    assert _executed(world) == before
    world.break_gpu("GPU-39-0")
    world.step()
    assert _executed(world) == before + 1


def test_accident_resets_without_end() -> None:
    """A GPU that no reset cures is not reset again and again."""
    world = World(settings(settle_seconds=0.0, limits={"attempts_per_day": 3}))
    world.executor.seen = False
    for _ in range(200):
        world.break_gpu("GPU-0-0", action=ActionKind.RESET_GPU, category=Category.HARDWARE)
        world.step(advance=5 * MINUTE)
        world.faults.clear()
        world.step(advance=MINUTE)
    resets = [e for e in world.journal.of(EntryKind.EXECUTION_STARTED) if e.payload["action"] == "reset_gpu"]
    assert 1 <= len(resets) <= 3
    assert len(world.journal.of(EntryKind.EXECUTION_STARTED)) <= 12


def test_accident_a_share_cannot_say_five_nodes() -> None:
    """Ten per cent of a thousand nodes are a hundred: the absolute number holds beside the share."""
    limits = LIMITS | {"max_concurrent_ratio": 0.1, "max_per_rack": 1000}
    world = World(settings(limits=limits), fleet(1000, 1))
    for host in range(100):
        world.break_gpu(f"GPU-{host}-0")
    for _ in range(4):
        world.step()
    assert _executed(world) == 5


def test_accident_a_tripped_breaker_blocks_uncordon() -> None:
    """What gives back runs also while the breaker is tripped, and while it is tripped nothing else begins."""
    world = World(settings(breaker_root_causes=3, settle_seconds=0.0))
    world.break_gpu("GPU-0-0")
    world.step()
    world.step()
    for host in (1, 2, 3):
        world.break_gpu(f"GPU-{host}-0")
    world.step()
    assert world.loop.controls().breaker is not None
    begun = _executed(world)
    world.faults = {key: fault for key, fault in world.faults.items() if "GPU-0-0" not in key}
    for _ in range(4):
        world.step()
    actions = [entry.payload["action"] for entry in world.journal.of(EntryKind.EXECUTION_STARTED)]
    assert actions[begun:] == ["uncordon"]


@pytest.mark.parametrize("trouble", ["stale", "sick", "blind"])
def test_accident_a_check_that_fails_open(trouble: str) -> None:
    """A wedged GPU shows no fault: its node stays out until it is read, healthy, and shows what was wrong."""
    world = World(settings(settle_seconds=0.0))
    world.break_gpu("GPU-0-0", metric="gpu_temperature_celsius")
    world.values["GPU-0-0"] = {"gpu_temperature_celsius": 91.0}
    for _ in range(3):
        world.step()
    world.faults.clear()
    if trouble == "blind":
        world.values.clear()
    else:
        getattr(world, trouble).add("GPU-0-0")
    for _ in range(20):
        world.step()
    assert _executed(world) == 1
    (back,) = (s for s in world.loop.statuses() if s.decision.action is ActionKind.UNCORDON)
    proof = next(v for v in back.verdicts if v.guard == "proof")
    assert (back.state, proof.ruling) == (DecisionState.HELD, Ruling.HOLD)
    assert "GPU-0-0" in proof.reason
    if trouble != "blind":
        now = world.clock.now_ms()
        assert available("default", world.view(), now, out_of_service(world.view())) < len(world.gpus)
    world.stale.clear()
    world.sick.clear()
    world.values["GPU-0-0"] = {"gpu_temperature_celsius": 60.0}
    for _ in range(3):
        world.step()
    assert _executed(world) == 2


@pytest.mark.parametrize("code", [13, 31, 43, 45])
def test_accident_a_program_condemns_a_gpu(code: int) -> None:
    """XID 13, 31, 43 and 45 are the program's: however often, they take no GPU out of service."""
    gpu = Gpu("GPU-a", "node-a", index=0)
    engine = RuleEngine(load_rules(None))
    events = [Event(EventKind.XID, gpu.uuid, gpu.host, T0 + i * 1000, code) for i in range(40)]
    found: list[Finding] = []
    for i in range(40):
        now = T0 + i * 15_000
        reading = Reading(gpu, now, {"gpu_temperature_celsius": 50.0})
        found = engine.step(Inputs(now, [reading], events[: i + 1])).active
    assert found
    for one in collapse(found, events):
        assert chosen_action(one) in {ActionKind.NOTIFY, ActionKind.CHECKPOINT}
    condemned = Finding(
        "own_rule",
        Subject(SubjectKind.GPU, gpu.uuid, gpu.host),
        Severity.CRITICAL,
        Category.APPLICATION,
        ActionKind.RESET_GPU,
        T0,
        T0,
        "A rule of the operator's own.",
    )
    assert chosen_action(incident(condemned)) is ActionKind.NOTIFY


def test_accident_a_burst_in_sympathy() -> None:
    """One fault of the fabric echoed on 63 GPUs is one incident with one action."""
    gpus = [Gpu(f"GPU-{h}-{i}", f"node-{h}", index=i, rack="rack-0") for h in range(8) for i in range(8)]
    engine = RuleEngine(load_rules(None))
    events = [
        Event(EventKind.XID, gpu.uuid, gpu.host, T0 + i, 149 if i == 0 else 145, severity=Severity.CRITICAL)
        for i, gpu in enumerate(gpus)
    ]
    readings = [Reading(gpu, T0 + 100, {"gpu_temperature_celsius": 50.0}) for gpu in gpus]
    active = engine.step(Inputs(T0 + 1000, readings, events)).active
    assert len({one.subject.name for one in active}) == 64
    fabric = [replace(gpu, labels={NVLINK_DOMAIN: "u.1"}) for gpu in gpus]
    incidents = collapse(active, events, topology_of(fabric))
    assert len(incidents) == 1
    assert incidents[0].root.subject.name == "GPU-0-0"
    world = World(settings(limits=LIMITS), {gpu.uuid: gpu for gpu in gpus})
    world.clock.set(T0 + 1000)
    view = replace(
        world.view(), findings={f.id: f for f in active}, confirmations=dict.fromkeys([f.id for f in active], 9)
    )
    report = world.loop.step(view, incidents, [])
    (acted,) = (s for s in report.decisions if s.decision.action is not ActionKind.NOTIFY)
    assert acted.decision.subject.name == "GPU-0-0"
    assert len(world.notifier.told) == 1


def test_accident_a_person_is_overruled() -> None:
    """A person uncordons at the manager: the cause is cancelled and the node left alone, though the fault goes on."""
    world = World(settings(settle_seconds=0.0))
    _nodes(world)
    world.break_gpu("GPU-0-0")
    world.step()
    _nodes(world, "node-0")
    world.step()
    assert world.loop.controls().confirmed
    _nodes(world)
    for _ in range(20):
        world.step()
    assert _executed(world) == 1
    assert not world.loop.controls().effects
    note = world.journal.of(EntryKind.HOLD_OFF)[0]
    assert (note.actor, note.payload["subject"]) == (OUTSIDE, "host:node-0")


def test_accident_two_brains(tmp_path: Path) -> None:
    """Of two brains on one fleet only the one that holds the lease acts or speaks, and agents follow no other."""
    first, second = World(), World()
    leases = [FileLease(tmp_path / "lease", name) for name in ("first", "second")]
    for turn in range(4):
        for world, lease in zip((first, second), leases, strict=True):
            world.break_gpu("GPU-0-0")
            lease.tick()
            world.active = lease.held()
            world.step()
        assert [lease.held() for lease in leases] == [True, False], turn
    assert (_executed(first), len(first.notifier.told)) == (1, 1)
    assert (_executed(second), len(second.notifier.told)) == (0, 0)
    leases[0].release()
    for world, lease in zip((first, second), leases, strict=True):
        if lease is leases[1]:
            lease.tick()
        world.active = lease.held()
        world.faults.clear()
        world.break_gpu("GPU-1-0", rule="later")
        world.step()
    leases[1].release()
    assert _executed(first) == 1
    assert _executed(second) == 1
    # What the first had asked of an agent counts for nothing once the second has been heard of.
    node = Node(tmp_path / "limits")
    node.power.celsius["GPU-a"] = 84.0
    node.worker.receive([replace(node.order(ActionKind.RESTORE), epoch=2)])
    late = replace(node.order(), epoch=1)
    node.worker.receive([late])
    node.seconds(10)
    assert (node.state(late), node.watts) == (OrderState.OUTRANKED, 700)


@pytest.mark.parametrize("by", [-30 * DAY, -HOUR, HOUR, 30 * DAY])
def test_accident_the_clock_jumps(by: int) -> None:
    """A step of the clock gives no action its rest, no finding its age and no key a second run."""
    world = World(settings(cooldown_seconds=1800.0, limits={"attempts_per_day": 3}))
    world.break_gpu("GPU-0-0")
    for _ in range(4):
        world.step()
    begun = _executed(world)
    world.clock.set(world.clock.now_ms() + by)
    stale = world.view()
    old = {key: replace(f, last_ms=f.last_ms - by) for key, f in stale.findings.items()}
    world.loop.step(replace(stale, findings=old), stale.incidents, [])
    assert _executed(world) == begun == 1
    keys = [entry.payload["key"] for entry in world.journal.of(EntryKind.EXECUTION_STARTED)]
    assert len(keys) == len(set(keys))


def test_accident_a_manager_accepts_and_does_nothing() -> None:
    """It answers that all is well and the node goes on as before: that is reported, and counts as nobody's uncordon."""
    world = World(settings(settle_seconds=30.0, cooldown_seconds=1800.0))
    _nodes(world)
    world.executor.seen = False
    world.break_gpu("GPU-0-0")
    for _ in range(5):
        world.step()
    outcomes = [status.outcome for status in world.loop.statuses() if status.decision.action is ActionKind.CORDON]
    assert [outcome.status for outcome in outcomes if outcome is not None] == [OutcomeStatus.GOAL_NOT_REACHED]
    assert any(told.key.endswith("|escalate") for told in world.notifier.told)
    assert not world.journal.of(EntryKind.HOLD_OFF)


def test_accident_a_node_is_deleted_while_it_drains() -> None:
    """The drain ends, and the node that is gone takes no place among those that may be out."""
    world = World(settings(limits=LIMITS | {"max_concurrent": 1}))
    _nodes(world)
    world.executor.resumable = True
    world.executor.result = ExecutionResult(True, "1 pod left", pending=True)
    world.break_gpu("GPU-0-0", action=ActionKind.DRAIN)
    world.step()
    assert world.only(ActionKind.DRAIN).state is DecisionState.EXECUTING
    del world.nodes["node-0"]
    world.stale.update({"GPU-0-0", "GPU-0-1"})
    world.faults.clear()
    world.executor.result = ExecutionResult(True, "the node is gone")
    for _ in range(5):
        world.step()
    assert world.only(ActionKind.DRAIN).state in {DecisionState.DONE, DecisionState.FAILED}
    assert not world.loop.controls().effects
    world.break_gpu("GPU-1-0", action=ActionKind.CORDON)
    world.step()
    assert _executed(world) == 2

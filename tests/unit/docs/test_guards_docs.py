"""docs/guards.md names every guard and its real default; runbooks have a reason as the guard really gives it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tocsin.actions.guards.base import Guard, evaluate, guards
from tocsin.actions.loop.loop import ActionLoop
from tocsin.actions.model.catalogue import is_disruptive, is_recovery
from tocsin.actions.model.executor import PRE_CHECK
from tocsin.actions.model.ledger_entry import SELECTION
from tocsin.actions.planning.facts import NodeState
from tocsin.actions.planning.foresight import Foresight
from tocsin.config.settings import ActionSettings
from tocsin.domain.alert_level import AlertLevel
from tocsin.domain.clock import HOUR, MINUTE
from tocsin.domain.decision import Ruling
from tocsin.domain.finding import ActionKind, Severity
from tocsin.domain.reading import Gpu
from tocsin.domain.silence import Matcher, MatcherKind, SilenceKind
from tocsin_testing import runbook_pages
from tocsin_testing.action_world import World, fleet, settings
from tocsin_testing.planning import fleet as planned_fleet
from tocsin_testing.planning import on, work
from tocsin_testing.runbook_pages import point
from tocsin_testing.runbooks import GUARD_VERDICTS

DOC = Path(__file__).parents[3] / "docs" / "guards.md"
SECTIONS: dict[str, str] = dict(re.findall(r"(?ms)^## `(\w+)`\n(.*?)(?=^## |\Z)", DOC.read_text("utf-8")))
NAMES = [*(guard.name for guard in guards()), SELECTION, PRE_CHECK]


def _world(**more: object) -> World:
    world = World(settings(**more))
    world.break_gpu("GPU-0-0")
    return world


def _after(world: World, steps: int = 1) -> World:
    for _ in range(steps):
        world.step()
    return world


def _paused() -> World:
    world = _world()
    world.loop.operator.pause("ann", "power works")
    return _after(world)


def _stale() -> World:
    world = _world()
    world.stale.add("GPU-0-0")
    return _after(world)


def _history() -> World:
    world = _world()
    view = world.view()
    old = {key: replace(f, last_ms=f.last_ms - 10 * MINUTE) for key, f in view.findings.items()}
    world.loop.step(replace(view, findings=old), view.incidents, [])
    return world


def _busy() -> World:
    world = World()
    world.break_gpu("GPU-0-0", action=ActionKind.THROTTLE)
    world.step()
    world.break_gpu("GPU-0-0", rule="b")
    return _after(world)


def _cooling() -> World:
    world = World(settings(cooldown_seconds=1800.0, settle_seconds=0.0))
    world.break_gpu("GPU-0-0", action=ActionKind.THROTTLE)
    _after(world, 2)
    world.faults.clear()
    world.break_gpu("GPU-0-0", action=ActionKind.THROTTLE)
    return _after(world)


def _tried() -> World:
    world = World(settings(settle_seconds=0.0, limits={"attempts_per_day": 3}))
    world.executor.result = replace(world.executor.result, ok=False)
    world.break_gpu("GPU-0-0")
    return _after(world, 5)


def _opted_out() -> World:
    world = World(gpus=fleet(labels={"tocsin.io/opt-out": "true"}))
    world.break_gpu("GPU-0-0")
    return _after(world)


def _left_alone() -> World:
    world = _after(_world(mode="propose"))
    world.loop.operator.reject(world.only().decision.id, "ann")
    world.break_gpu("GPU-0-0", rule="b")
    return _after(world)


def _several(where: list[str], action: ActionKind = ActionKind.CORDON, **limits: float) -> World:
    world = World(settings(limits=limits), fleet(hosts=8))
    for uuid in where:
        world.break_gpu(uuid, action=action)
    return _after(world)


def _tripped() -> World:
    world = World(settings(breaker_root_causes=3))
    for host in range(3):
        world.break_gpu(f"GPU-{host}-0")
    return _after(world)


def _outranked() -> World:
    world = World(settings(confirmations=9))
    world.break_gpu("GPU-0-0", rule="mild", severity=Severity.WARNING)
    world.step()
    world.break_gpu("GPU-0-0", rule="grave")
    return _after(world)


def _unsupported() -> World:
    world = _world()
    world.loop = ActionLoop(world.journal, [], world.clock, world.policy)
    return _after(world)


def _outside() -> World:
    world = World(settings(maintenance=[{"start": "00:00", "end": "00:10"}]))
    world.break_gpu("GPU-0-0")
    return _after(world)


def _not_active() -> World:
    world = _world()
    world.active = False
    return _after(world)


def _unproven() -> World:
    """A cordon for heat whose cause has gone, on a host of which one GPU does not answer."""
    world = _after(_world(), 4)
    world.faults.clear()
    world.stale.add("GPU-0-1")
    return _after(world)


def _unknown() -> World:
    world = _world()
    world.nodes = {"node-9": NodeState("node-9", schedulable=True)}
    return _after(world)


def _full() -> World:
    """A migration off a GPU of a fleet in which nothing is free."""
    state = planned_fleet(1, [work("4711", on("n0", *range(8)))])
    world = World(gpus={slot.uuid: Gpu(slot.uuid, slot.host) for slot in state.gpus.values()})
    world.break_gpu("n0/0", action=ActionKind.MIGRATE)
    view = world.view()
    world.loop.step(replace(view, foresight=Foresight(state=state)), view.incidents, [])
    return world


def _silenced(kind: SilenceKind) -> World:
    world, where = _world(), Matcher(MatcherKind.HOST, "node-0")
    if kind is SilenceKind.SNOOZE:
        world.loop.silences.snooze(where, "ann", HOUR, "new fans", levels={"x": AlertLevel.PAGE})
    else:
        world.loop.silences.plan(where, "ann", None, HOUR, "new fans")
    return _after(world)


SCENES: dict[str, Callable[[], World]] = {
    "mode": lambda: _after(_world(mode="observe")),
    "active": _not_active,
    "proof": _unproven,
    "known_node": _unknown,
    "pause": _paused,
    "fresh_data": _stale,
    "still_live": _history,
    "not_done": _busy,
    "evidence": lambda: _after(_world(confirmations=3)),
    "boot_grace": lambda: _after(_world(boot_grace_seconds=300.0)),
    "cooldown": _cooling,
    "silence": lambda: _silenced(SilenceKind.SNOOZE),
    "planned_maintenance": lambda: _silenced(SilenceKind.MAINTENANCE),
    "maintenance": _outside,
    "managed": lambda: _after(_world(managed_pools=[])),
    "opt_out": _opted_out,
    "hold_off": _left_alone,
    "max_concurrent": lambda: _several([f"GPU-{h}-0" for h in range(6)], max_concurrent=5),
    "place": _full,
    "max_share": lambda: _several(["GPU-0-0", "GPU-1-0"], max_concurrent_ratio=0.2),
    "max_per_host": lambda: _several(["GPU-0-0", "GPU-0-1"], ActionKind.RESET_GPU, max_per_host=1),
    "max_per_rack": lambda: _several(["GPU-0-0", "GPU-0-1", "GPU-1-0"], ActionKind.RESET_GPU, max_per_rack=2),
    "capacity": lambda: _several(["GPU-0-0", "GPU-1-0"], min_available_ratio=0.8),
    "attempts": _tried,
    "breaker": _tripped,
    "approval": lambda: _after(_world(mode="propose")),
    "selection": _outranked,
    "executor": _unsupported,
}


def _shape(text: str) -> str:
    """A reason without its numbers and ids."""
    text = re.sub(r"\b[0-9a-f]{16}\b", "<id>", text)
    return re.sub(r"\d+", "#", text)


def test_every_guard_has_a_section_and_nothing_else_has() -> None:
    assert list(SECTIONS) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_section_says_what_it_asks_and_its_default(name: str) -> None:
    for word in ("Asks", "Default"):
        assert point(SECTIONS[name], word), word


@pytest.mark.parametrize("guard", guards(), ids=lambda guard: guard.name)
def test_what_it_is_asked_for_is_as_written(guard: Guard) -> None:
    assert runbook_pages.guards()[guard.name][1].startswith(str(guard.applies))


@pytest.mark.parametrize("name", NAMES)
def test_named_defaults_are_those_of_the_settings(name: str) -> None:
    defaults = ActionSettings()
    for key, written in re.findall(r"`([\w.]+) = ([^`]+)`", SECTIONS[name]):
        value: object = defaults
        for part in key.split("."):
            value = getattr(value, part)
        shown = f'"{value}"' if isinstance(value, str) else str(value)
        assert shown in (written, f"{written}.0"), key


def test_every_setting_of_actions_that_a_guard_reads_is_named() -> None:
    text = "".join(SECTIONS.values())
    elsewhere = {"limits", "elastic_pools", "settle_seconds", "goal_seconds", "execution_seconds", "escalate_after"}
    elsewhere |= {"cost", "lease_file", "dry_run"}
    for key in (*ActionSettings.model_fields.keys() - elsewhere, *type(ActionSettings().limits).model_fields):
        assert key in text, key


@pytest.mark.parametrize("name", sorted(SCENES))
def test_the_example_is_what_the_guard_says(name: str) -> None:
    verdicts = [v for s in SCENES[name]().loop.statuses() for v in s.verdicts if v.guard == name]
    reasons = {_shape(v.reason) for v in verdicts if v.ruling is not Ruling.ALLOW}
    assert _shape(GUARD_VERDICTS[name]) in reasons


def test_the_example_of_the_time_box() -> None:
    world = _after(_world(mode="observe"))
    said = evaluate(world.only().decision, world.view(), world.clock.now_ms() + HOUR)
    reason = next(v.reason for v in said if v.guard == "time_box")
    assert _shape(reason) == _shape(GUARD_VERDICTS["time_box"])
    assert {*SCENES, "time_box"} == set(NAMES) == set(GUARD_VERDICTS)


def test_the_disruptive_actions_are_named() -> None:
    text = DOC.read_text("utf-8")
    disruptive = {action for action in ActionKind if is_disruptive(action)}
    words = {"defragment", "scale in", "migrate", "cordon", "drain", "reset", "reboot"}
    assert {a.value.replace("_gpu", "").replace("_node", "").replace("_", " ") for a in disruptive} == words
    assert all(word in text for word in words)
    assert {a.value for a in ActionKind if is_recovery(a)} == {"restore", "uncordon", "uncordon_gpu"}

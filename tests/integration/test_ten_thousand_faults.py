"""Ten thousand faults through one loop: none missed, none answered twice, and what was held says by which guard."""

from __future__ import annotations

import random
from collections import Counter

from tocsin.actions.guards.base import guards
from tocsin.domain.clock import SECOND
from tocsin.domain.decision import Ruling
from tocsin.domain.entry import EntryKind
from tocsin.domain.finding import ActionKind, Category
from tocsin_testing.action_world import World, fleet, settings

FAULTS, GPUS, PER_STEP = 10_000, 400, 50
ACTIONS = [
    (ActionKind.THROTTLE, Category.THERMAL),
    (ActionKind.CORDON, Category.THERMAL),
    (ActionKind.DRAIN, Category.HARDWARE),
    (ActionKind.RESET_GPU, Category.HARDWARE),
    (ActionKind.CHECKPOINT, Category.MEMORY),
]
LIMITS = {
    "max_concurrent": 20,
    "max_concurrent_ratio": 0.2,
    "max_per_host": 1,
    "max_per_rack": 2,
    "min_available_ratio": 0.7,
    "attempts_per_day": 5,
    "attempts_per_host_per_day": 20,
}


def test_ten_thousand_faults_are_each_answered_once() -> None:
    world = World(
        settings(limits=LIMITS, settle_seconds=0.0, cooldown_seconds=60.0, breaker_root_causes=FAULTS),
        fleet(GPUS // 2, 2),
    )
    draw = random.Random(7)
    uuids = sorted(world.gpus)
    wanted: set[str] = set()
    for _ in range(0, FAULTS, PER_STEP):
        world.faults.clear()
        for i in range(PER_STEP):
            action, category = draw.choice(ACTIONS)
            found = world.break_gpu(draw.choice(uuids), rule=f"fault-{i}", action=action, category=category)
            wanted.add(found.id)
        for _ in range(2):
            world.step(advance=30 * SECOND)
    assert len(wanted) == FAULTS
    _none_missed(world, wanted)
    keys = Counter(entry.payload["key"] for entry in world.journal.of(EntryKind.EXECUTION_STARTED))
    assert len(keys) > FAULTS // 20
    assert max(keys.values()) == 1
    _held_by_name(world)


def _none_missed(world: World, wanted: set[str]) -> None:
    """Each is told of and decided on, once, but where its subject had a graver one at that time."""
    # What is about to run is put on record a second time, with its goal.
    made = list({entry.payload["id"]: entry.payload for entry in world.journal.of(EntryKind.DECISION)}.values())
    told = {payload["findings"][0]: payload for payload in made if payload["action"] == "notify"}
    decided = Counter(payload["findings"][0] for payload in made if payload["action"] != "notify")
    first = Counter(
        payload["parameters"]["cause"] for payload in made if payload["key"] == payload["parameters"].get("cause")
    )
    assert wanted <= told.keys()
    assert max(first.values()) == 1
    place = {found: (payload["subject"]["name"], payload["at_ms"]) for found, payload in told.items()}
    busy = {place[found] for found in decided if found in place}
    assert all(place[found] in busy for found in wanted - decided.keys())


def _held_by_name(world: World) -> None:
    names = {guard.name for guard in guards()} | {"selection", "executor"}
    begun = {entry.payload["key"] for entry in world.journal.of(EntryKind.EXECUTION_STARTED)}
    last = {entry.payload["key"]: entry.payload for entry in world.journal.of(EntryKind.VERDICT)}
    held = [payload for key, payload in last.items() if key not in begun and "|notify|" not in key]
    assert held
    for payload in held:
        says = [v for v in payload["verdicts"] if v["ruling"] != Ruling.ALLOW]
        assert says, payload["key"]
        assert all(v["guard"] in names and v["reason"] for v in says)

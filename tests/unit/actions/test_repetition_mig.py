"""Tries on MIG instances count for their host."""

from __future__ import annotations

from tocsin.domain.entry import EntryKind
from tocsin.domain.finding import ActionKind
from tocsin.domain.reading import Gpu
from tocsin_testing.action_world import World, settings


def test_disruptive_actions_on_instances_count_for_their_host() -> None:
    whole = Gpu("GPU-0", "node-0", index=0)
    parts = [Gpu(f"MIG-{n}", "node-0", index=0, parent="GPU-0", mig_profile="1g.10gb") for n in range(7)]
    world = World(
        settings(settle_seconds=0.0, limits={"attempts_per_host_per_day": 2}),
        {gpu.uuid: gpu for gpu in [whole, *parts]},
    )
    for part in parts:
        world.break_gpu(part.uuid, action=ActionKind.DEFRAGMENT)
        world.step()
        world.faults.clear()
        world.step()
    assert len(world.journal.of(EntryKind.EXECUTION_STARTED)) == 2

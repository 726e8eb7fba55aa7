"""What a brain does with GPUs that another cell of the fleet reads by now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from tocsin.actions.model.budget import WholeFleet
from tocsin.domain.batch import Batch
from tocsin.domain.clock import DAY, HOUR, MINUTE, SECOND
from tocsin.domain.entry import EntryKind
from tocsin.domain.reading import Reading
from tocsin.queries.service import BrainService
from tocsin_testing.builders import T0, gpu
from tocsin_testing.lone_brain import lone_brain

MOVED = gpu(1)


class OtherCell(WholeFleet):
    """Another cell of the fleet, which reads GPUs `at` their hosts."""

    def __init__(self, at: Mapping[str, str]) -> None:
        self.at = at

    def elsewhere(self, silent: Mapping[str, str]) -> Mapping[str, str]:
        return {uuid: "west" for uuid, host in silent.items() if self.at.get(uuid) == host}


def broken(at_ms: int) -> Batch:
    return Batch(readings=[Reading(MOVED, at_ms, {"gpu_row_remap_failure": 1.0})])


def test_a_start_warns_of_nothing_that_moved_before_it(tmp_path: Path) -> None:
    with lone_brain(tmp_path) as running:
        running.brain.accept(broken(T0))
    with lone_brain(tmp_path) as running:
        brain = running.brain
        brain.actions._budget = OtherCell({MOVED.uuid: MOVED.host})
        brain.clock.advance(20 * MINUTE)
        brain.tick()
        assert brain.gpus == []
        assert brain.active == []
        assert list(brain.journal.entries(kinds=[EntryKind.FINDING_OPENED])) == []


def test_what_others_read_stays_while_it_is_read_here(tmp_path: Path) -> None:
    with lone_brain(tmp_path) as running:
        brain = running.brain
        brain.actions._budget = OtherCell({MOVED.uuid: MOVED.host})
        brain.accept(broken(T0))
        brain.clock.advance(110 * SECOND)
        brain.tick()
        assert brain.gpus == [MOVED]
        assert [one.rule for one in brain.active] == ["row_remap_failed"]
        brain.clock.advance(20 * SECOND)
        brain.tick()
        assert brain.gpus == []
        assert brain.active == []


def test_a_gpu_that_comes_back_is_no_newcomer(tmp_path: Path) -> None:
    """A cell that was away for a while has its hosts back soon, and they count as before."""
    with lone_brain(tmp_path) as running:
        brain, other = running.brain, OtherCell({MOVED.uuid: MOVED.host})
        brain.actions._budget = other
        brain.accept(Batch(readings=[Reading(MOVED, T0, {})]))
        brain.clock.advance(HOUR)
        brain.tick()
        assert brain.gpus == []
        brain.accept(Batch(readings=[Reading(replace(MOVED, host="node-9"), brain.clock.now_ms(), {})]))
        assert brain.gpus == [], "the other host may not have it"
        brain.accept(Batch(readings=[Reading(MOVED, brain.clock.now_ms(), {})]))
        brain.tick()
        assert brain.gpus == [MOVED]
        assert brain.owners.counts(MOVED.uuid, brain.clock.now_ms())
        assert brain.owners.age_ms(MOVED.uuid, brain.clock.now_ms()) == HOUR
        brain.clock.advance(HOUR)
        brain.tick()
        assert brain.gpus == []
        brain.clock.advance(DAY)
        brain.tick()
        assert brain.owners.host_of(MOVED.uuid) == "", "as any that was silent for a day"


@pytest.mark.parametrize(("kind", "name"), [("gpu", MOVED.uuid), ("host", MOVED.host)])
def test_a_person_gives_what_moved_to_another_host(tmp_path: Path, kind: Literal["host", "gpu"], name: str) -> None:
    with lone_brain(tmp_path) as running:
        brain = running.brain
        brain.actions._budget = OtherCell({MOVED.uuid: MOVED.host})
        brain.accept(Batch(readings=[Reading(MOVED, T0, {})]))
        brain.clock.advance(HOUR)
        brain.tick()
        done = BrainService(brain).release(kind, name, "ann", "put into node-9")
        assert (done.given_up, done.still_reported, done.subject.pool) == (1, 0, MOVED.pool)
        brain.accept(Batch(readings=[Reading(replace(MOVED, host="node-9"), brain.clock.now_ms(), {})]))
        assert [one.host for one in brain.gpus] == ["node-9"]


def test_time_of_a_gpu_that_moves_stays_its_pools(tmp_path: Path) -> None:
    """It is written some minutes after it was counted, and counted anew where a reading was late."""
    with lone_brain(tmp_path) as running:
        brain = running.brain
        brain.actions._budget = OtherCell({MOVED.uuid: MOVED.host})
        for second in (0, 60):
            brain.accept(Batch(readings=[Reading(MOVED, T0 + second * SECOND, {"gpu_power_watts": 100.0})]))
        brain.clock.advance(4 * MINUTE)
        brain.tick()
        assert brain.gpus == []

        def places() -> list[tuple[str, str]]:
            return brain.usage.table._db.execute("SELECT DISTINCT pool, model FROM gpu_day").fetchall()

        brain.usage.write()
        assert places() == [(MOVED.pool, MOVED.model)]
        brain.clock.advance(DAY)
        brain.tick()
        assert brain.memory.gpu(MOVED.uuid) is None
        brain.accept(Batch(readings=[Reading(MOVED, T0 + 30 * SECOND, {"gpu_power_watts": 100.0})]))
        brain.tick()
        assert brain.gpus == []
        brain.usage.look()
        assert places() == [(MOVED.pool, MOVED.model)]

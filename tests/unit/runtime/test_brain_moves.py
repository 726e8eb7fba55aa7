"""What a brain does with GPUs that another cell of the fleet reads by now."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tocsin.actions.model.budget import WholeFleet
from tocsin.domain.batch import Batch
from tocsin.domain.clock import MINUTE, SECOND
from tocsin.domain.entry import EntryKind
from tocsin.domain.reading import Reading
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

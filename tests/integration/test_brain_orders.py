"""The order queue of a brain that was put together from settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from tocsin.actions.planning.facts import NodeState
from tocsin.config.settings import Settings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import MINUTE, ManualClock
from tocsin.domain.reading import Gpu, Owner, Reading
from tocsin.queries.service import BrainService
from tocsin.runtime.brain import assembly
from tocsin.runtime.brain.assembly import open_brain
from tocsin.runtime.brain.managers import Managers
from tocsin_testing.action_world import FakeExecutor
from tocsin_testing.builders import T0


def settings_in(folder: Path) -> Settings:
    return Settings.model_validate(
        {
            "store": {"path": folder / "store.db"},
            "journal": {"path": folder / "journal.db"},
            "forecast": {"worker": False},
            "actions": {"executors": ["node", "journal_only"]},
        }
    )


def test_a_brain_with_a_new_journal_is_followed_after_the_old_one(tmp_path: Path) -> None:
    clock, epochs = ManualClock(T0), []
    for folder in ("first", "first", "second"):
        running = open_brain(settings_in(tmp_path / folder), clock)
        epochs.append(running.brain.orders.queue.epoch)
        running.stop()
        clock.advance(MINUTE)
    assert epochs == [T0, T0 + MINUTE, T0 + 2 * MINUTE]


def test_the_queue_sees_the_nodes_that_the_managers_see(tmp_path: Path) -> None:
    running = open_brain(settings_in(tmp_path), ManualClock(T0))
    managers, queue = running.brain.managers, running.brain.orders.queue
    assert queue.nodes() == {}
    assert queue.nodes == managers.nodes
    running.stop()


class Shows(FakeExecutor):
    """A manager with pods p0 and p1 of one job on two nodes, and p2 by itself."""

    def nodes(self) -> dict[str, NodeState]:
        jobs = [{"p0": "ns/job/train"}, {"p1": "ns/job/train", "p2": ""}]
        return {f"node-{n}": NodeState(f"node-{n}", schedulable=True, jobs=one) for n, one in enumerate(jobs)}


def test_pods_of_one_job_on_two_nodes_are_one_job_to_the_brain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembly, "Managers", lambda _executors, *rest: Managers([Shows()], *rest))
    clock = ManualClock(T0)
    running = open_brain(settings_in(tmp_path), clock)
    brain = running.brain
    readings = [
        Reading(Gpu(f"GPU-{n}", host, index=n), T0, {"gpu_temperature_celsius": 50.0}, owners=(Owner(1, pod_uid=pod),))
        for n, (host, pod) in enumerate((("node-0", "p0"), ("node-1", "p1"), ("node-1", "p2")))
    ]
    brain.accept(Batch(readings=readings))
    service = BrainService(brain)
    assert service.same_jobs(["GPU-0"]) == {"GPU-0"}
    brain.managers.look()
    assert service.same_jobs(["GPU-0"]) == {"GPU-0", "GPU-1"}
    assert service.same_jobs(["GPU-2"]) == {"GPU-2"}
    brain.tick()
    assert brain._sight.seen is not None
    gpus = brain._sight.seen.groups.gpus
    assert [gpus[f"GPU-{n}"].job for n in range(3)] == ["pods ns/job/train"] * 2 + ["pod p2"]
    running.stop()

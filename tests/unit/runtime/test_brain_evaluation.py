"""An evaluation gives the rules ahead what is new, and they see the same as if they were given all."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tocsin.domain.batch import Batch
from tocsin.domain.reading import Owner, Reading
from tocsin.queries.fleet_state import running_mix, workloads_of
from tocsin_testing.builders import T0, gpu
from tocsin_testing.lone_brain import lone_brain


def test_only_new_readings_are_loaded_ahead_and_all_are_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def told(number: int, at_ms: int, job: str) -> Reading:
        return Reading(gpu(number), at_ms, {"gpu_power_watts": 100.0}, {}, (Owner(number, slurm_job=job),))

    with lone_brain(tmp_path) as running:
        brain, loaded = running.brain, list[list[str]]()
        load, step = brain.rules.engine.load_ahead, brain.rules.engine.step
        steps = []

        def watch(now_ms: int, readings: Sequence[Reading]) -> None:
            loaded.append([one.gpu.uuid for one in readings])
            load(now_ms, readings)

        monkeypatch.setattr(brain.rules.engine, "load_ahead", watch)
        monkeypatch.setattr(brain.rules.engine, "step", lambda inputs: steps.append(inputs) or step(inputs))
        for second, numbers in enumerate([(1, 2, 3), (), (2,), (2, 4)], 1):
            brain.accept(Batch(readings=[told(n, T0 + second, str(n % second)) for n in numbers]))
            brain.tick()
            readings = brain.memory.latest()
            seen = brain._sight.seen
            assert seen is not None
            assert steps[-1].readings == readings
            assert steps[-1].mix == running_mix(readings)
            assert seen.workloads == workloads_of(readings, {}, blind=False)
            jobs = {uuid: view.job for uuid, view in seen.groups.gpus.items()}
            assert jobs == {uuid: work.job for uuid, work in seen.workloads.items()}
    every = [gpu(n).uuid for n in (1, 2, 3, 4)]
    assert loaded == [every[:3], every[1:2], every], "all where a GPU has come: then no place is the same"

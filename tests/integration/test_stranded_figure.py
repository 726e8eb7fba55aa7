"""The word stranded is one figure: usage, cost, fragmentation, plans and metrics have the same of one fleet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tocsin.config.settings import Settings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import DAY, HOUR, MINUTE, ManualClock
from tocsin.domain.reading import Owner, Reading
from tocsin.queries.service import BrainService
from tocsin.runtime.brain.assembly import open_brain
from tocsin_testing.builders import T0, gpu, reading

START = T0 // DAY * DAY
HOURS = 2
HOSTS = {"half": (8, 3), "whole": (8, 8), "full": (8, 0), "small": (4, 2), "small-whole": (4, 4), "large": (16, 9)}
"""GPUs, and free ones, of each host; each is a pool of its own, which has no room for a whole node elsewhere."""
STRANDED = 5.0


def readings(at_ms: int) -> list[Reading]:
    """Every GPU, free or at work for a job of its own."""
    found, number = [], 0
    for host, (gpus, free) in HOSTS.items():
        for n in range(gpus):
            where = gpu(number, host=host, pool=f"pool-{host}")
            number += 1
            if n < free:
                found.append(reading(where, at_ms, utilization_ratio=0, processes=0, power_watts=60))
            else:
                busy = reading(where, at_ms, utilization_ratio=0.9, processes=1, power_watts=300)
                found.append(replace(busy, owners=(Owner(1, slurm_job=str(number)),)))
    return found


@pytest.fixture
def service(tmp_path: Path) -> Iterator[BrainService]:
    settings = Settings.model_validate(
        {
            "store": {"path": tmp_path / "store.db"},
            "journal": {"path": tmp_path / "journal.db"},
            "forecast": {"worker": False},
            # Every free GPU is of use to some job: what is unusable is another figure.
            "fragmentation": {"task_mix": [{"gpus": 1, "share": 1}, {"gpus": 8, "share": 1}]},
        }
    )
    clock = ManualClock(START)
    running = open_brain(settings, clock)
    try:
        for _ in range(HOURS * 60):
            running.brain.accept(Batch(readings=readings(clock.now_ms())))
            clock.advance(MINUTE)
        running.brain.accept(Batch(readings=readings(clock.now_ms())))
        running.brain.tick()
        running.brain.usage.look()
        yield BrainService(running.brain)
    finally:
        running.stop()


def test_stranded_is_one_figure_wherever_it_is_told(service: BrainService) -> None:
    brain, day = service._brain, START // DAY
    now = service.fragmentation(100)
    told = {
        "fragmentation": now.fleet.stranded,
        "its pools": sum(one.stranded for one in now.pools),
        "its hosts": sum(one.stranded for one in now.hosts),
        "usage": service.usage(day, day + 1, ["pool"], 50).total.stranded / HOURS,
        "cost": service.cost(START, START + HOURS * HOUR).usage.stranded / HOURS,
        "metric": brain.metrics.value("tocsin_fleet_stranded_gpus"),
    }
    assert told == dict.fromkeys(told, pytest.approx(STRANDED))
    assert now.fleet.unusable == brain.metrics.value("tocsin_fleet_unusable_gpus") == 0.0
    assert {one.host: one.stranded for one in now.hosts if one.stranded} == {"half": 3.0, "small": 2.0}

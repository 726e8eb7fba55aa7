"""A brain that counts who uses its GPUs, from a reading that is pushed to what the API answers, over restarts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tocsin.config.settings import Settings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import DAY, MINUTE, ManualClock
from tocsin.domain.errors import InputError
from tocsin.domain.reading import Owner
from tocsin.queries.service import BrainService
from tocsin.runtime.brain.assembly import RunningBrain, open_brain
from tocsin_testing.builders import T0, gpu, reading

START = T0 // DAY * DAY
TODAY = START // DAY
JOB, POD = Owner(1, slurm_job="7", user="ann"), Owner(2, pod="web", namespace="shop")


class Site:
    """A brain on files, and the minutes that pass."""

    def __init__(self, folder: Path, **usage: Any) -> None:
        self.settings = Settings.model_validate(
            {
                "store": {"path": folder / "store.db"},
                "journal": {"path": folder / "journal.db"},
                "forecast": {"worker": False},
                "usage": usage,
            }
        )
        self.clock = ManualClock(START)
        self.running: RunningBrain = open_brain(self.settings, self.clock)

    def minutes(self, count: int) -> None:
        for _ in range(count):
            self.clock.advance(MINUTE)
            at_ms = self.clock.now_ms()
            busy = {"utilization_ratio": 0.9, "processes": 1, "power_watts": 300}
            held = [replace(reading(gpu(n), at_ms, **busy), owners=(one,)) for n, one in enumerate((JOB, POD))]
            free = reading(gpu(2), at_ms, utilization_ratio=0, processes=0, power_watts=60)
            self.running.brain.accept(Batch(readings=[*held, free]))

    def restart(self) -> None:
        self.running.brain.close()
        self.running = open_brain(self.settings, self.clock)

    def crash(self) -> None:
        """The brain dies, and writes nothing; a new one begins."""
        brain = self.running.brain
        for part in (brain.usage.table, brain.store, brain.journal):
            part.close()
        self.running = open_brain(self.settings, self.clock)

    def hours(self, by: str) -> dict[str, float]:
        self.running.brain.usage.look()
        found = BrainService(self.running.brain).usage(TODAY, TODAY + 1, [by], 50)  # type: ignore[list-item]
        assert sum(row.gpu_hours for row in found.rows) == pytest.approx(found.total.gpu_hours)
        return {row.group[by] if row.held else "nobody": round(row.gpu_hours, 6) for row in found.rows}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path, capacity=[{"kind": "own", "pool": "*"}])
    yield made
    made.running.brain.close()


def test_what_agents_push_is_counted_and_served(site: Site) -> None:
    site.minutes(61)
    assert site.hours("job") == {"Slurm job 7": 1.0, "shop/web": 1.0, "nobody": 1.0}
    assert site.hours("namespace") == {"no namespace (Slurm)": 1.0, "shop": 1.0, "nobody": 1.0}
    assert site.hours("kind") == {"own": 2.0, "nobody": 1.0}
    found = BrainService(site.running.brain).usage(TODAY, TODAY, ["user"], 50)
    assert found.total.kwh == pytest.approx(0.66)
    assert (found.total.cost, found.total.unpriced) == (None, pytest.approx(3.0))
    assert found.total.stranded == pytest.approx(1.0)


def test_a_restart_goes_on_and_the_time_without_a_brain_is_not_seen(site: Site) -> None:
    site.minutes(31)
    site.restart()
    site.minutes(10)
    site.restart()
    site.clock.advance(60 * MINUTE)
    site.minutes(1)
    assert site.hours("job") == {"Slurm job 7": round(40 / 60, 6), "shop/web": round(40 / 60, 6), "nobody": 3.716667}
    found = BrainService(site.running.brain).usage(TODAY, TODAY, ["job"], 50)
    assert found.total.not_seen == pytest.approx(3 * 61 / 60)


def test_a_crash_before_the_second_write_of_a_new_file_loses_nothing(site: Site) -> None:
    assert not site.running.brain.usage.wake.is_set()
    site.minutes(1)
    (thread,) = [one for one in site.running.threads if one.name == "usage"]
    assert site.running.brain.usage.wake.is_set(), "its thread is not to wait for five minutes"
    thread.once()
    site.minutes(4)
    site.crash()
    site.minutes(1)
    assert site.hours("job") == {
        "Slurm job 7": round(5 / 60, 6),
        "shop/web": round(5 / 60, 6),
        "nobody": round(5 / 60, 6),
    }
    assert not site.running.brain.usage.wake.is_set(), "a file that has begun is written as ever"


def test_the_file_lies_beside_the_store(site: Site, tmp_path: Path) -> None:
    assert (tmp_path / "store.db.usage.db").exists()


def test_a_mistake_in_the_prices_stops_the_start_before_anything_is_opened(tmp_path: Path) -> None:
    prices = tmp_path / "prices.csv"
    prices.write_text("model,gpu_hour\nH100,cheap\n")
    with pytest.raises(InputError, match=r"prices\.csv, line 2, gpu_hour = 'cheap'"):
        Site(tmp_path, price_file=prices)
    assert not (tmp_path / "store.db").exists()
    with pytest.raises(ValueError, match="it fits every node"):
        Site(tmp_path, capacity=[{"kind": "own"}])

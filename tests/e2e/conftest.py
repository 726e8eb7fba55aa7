"""One browser for all browser tests, and one dashboard over several fleets; none outlives the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, sync_playwright

from tocsin.config.settings import Settings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import MINUTE, ManualClock
from tocsin.queries.service import BrainService
from tocsin.runtime.brain.assembly import open_brain
from tocsin_testing.browsing import Shown, Worlds, dashboard, launch
from tocsin_testing.builders import T0, gpu, reading
from tocsin_testing.fake_service import FakeService, serving


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """One for all browser tests, and gone before any other test: Playwright keeps an event loop running meanwhile."""
    with sync_playwright() as playwright:
        started = launch(playwright)
        yield started
        started.close()


@pytest.fixture(scope="package")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worlds]:
    """Fleets that are small (64 GPUs), large (10,000 on 1,250 hosts), empty (none yet) or young (five minutes), and a
    brain that is busy (asked for more than it answers) or broken (its answer has a defect)."""
    clock, brains = ManualClock(T0), {}
    for name in ("empty", "young"):
        folder = tmp_path_factory.mktemp(name)
        stored = {"store": {"path": folder / "store.db"}, "journal": {"path": folder / "journal.db"}}
        settings = Settings.model_validate({**stored, "forecast": {"worker": False}})
        brains[name] = open_brain(settings, clock, propose=True)
    _five_minutes(clock, brains["young"].brain)
    services: dict[str, Any] = {"small": FakeService(), "large": FakeService(hosts=1_250)}
    services |= {name: BrainService(one.brain) for name, one in brains.items()}
    services |= {"busy": _failing("busy"), "broken": _failing("broken")}
    found = Worlds(services)
    try:
        with serving(found) as api, dashboard(api, tmp_path_factory.mktemp("worlds")) as found.url:  # type: ignore[arg-type]
            yield found
    finally:
        for one in brains.values():
            one.stop()


def _five_minutes(clock: ManualClock, brain: Any) -> None:
    for _ in range(5):
        clock.advance(MINUTE)
        seen = [
            reading(gpu(n, host="node-1"), clock.now_ms(), temperature_celsius=50.0 + n, utilization_ratio=0.5)
            for n in range(8)
        ]
        brain.accept(Batch(readings=seen))
        brain.tick()


def _failing(how: str) -> FakeService:
    service = FakeService()
    setattr(service, how, True)
    return service


@pytest.fixture
def small(worlds: Worlds) -> Shown:
    """64 GPUs."""
    return worlds.be("small")


@pytest.fixture
def large(worlds: Worlds) -> Shown:
    """10,000 GPUs on 1,250 hosts."""
    return worlds.be("large")

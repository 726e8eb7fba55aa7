"""The rules that come along, fed by a Prometheus-compatible server alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest

from tocsin.config.settings import Settings
from tocsin.domain.clock import MINUTE, SECOND, ManualClock
from tocsin.runtime.brain.assembly import open_brain
from tocsin.runtime.brain.promql_follower import open_promql
from tocsin_testing.builders import T0
from tocsin_testing.dcgm_site import Point, labels_of
from tocsin_testing.fake_prometheus import FakePrometheus

STEP = 30 * SECOND
HEALTHY = {
    "DCGM_FI_DEV_GPU_TEMP": 50.0,
    "DCGM_FI_DEV_FB_USED": 20_000.0,
    "DCGM_FI_DEV_FB_FREE": 60_000.0,
    "DCGM_FI_DEV_XID_ERRORS": 0.0,
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": 0.0,
}


def rules_of(folder: Path, values: Callable[[int], dict[str, float]], steps: int) -> set[str]:
    """Rules that hold of a GPU after so many scrapes, half a minute apart."""
    settings = Settings.model_validate(
        {
            "store": {"path": folder / "store.db"},
            "journal": {"path": folder / "journal.db"},
            "forecast": {"worker": False},
            "promql": {"url": "http://prometheus:9090"},
        }
    )
    clock, fake = ManualClock(T0), FakePrometheus([])
    running = open_brain(settings, clock)
    follower = open_promql(running.brain, httpx2.MockTransport(fake))
    assert follower is not None
    for step in range(steps):
        clock.advance(STEP)
        now = clock.now_ms() - 7 * SECOND
        shown = {**HEALTHY, "DCGM_FI_DEV_POWER_USAGE": 200.0 + step, **values(step)}
        fake.scrape(Point(name, labels_of(1, 0), value, now) for name, value in shown.items())
        follower.look()
        running.brain.tick()
    found = {finding.rule for finding in running.brain.active}
    follower.close()
    running.stop()
    return found


@pytest.mark.parametrize(
    ("rule", "values", "steps"),
    [
        ("temperature_high", lambda _: {"DCGM_FI_DEV_GPU_TEMP": 87.0}, 5),
        ("memory_full", lambda _: {"DCGM_FI_DEV_FB_USED": 76_000.0, "DCGM_FI_DEV_FB_FREE": 4_000.0}, 33),
        ("ecc_uncorrectable", lambda step: {"DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": float(step // 2)}, 4),
        ("xid_memory", lambda step: {"DCGM_FI_DEV_XID_ERRORS": 48.0 * (step > 1)}, 4),
    ],
)
def test_a_rule_holds_from_what_the_server_has(
    tmp_path: Path, rule: str, values: Callable[[int], dict[str, float]], steps: int
) -> None:
    assert rule in rules_of(tmp_path, values, steps)


def test_a_counter_that_starts_again_is_no_new_error(tmp_path: Path) -> None:
    found = rules_of(tmp_path, lambda step: {"DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": 5.0 if step < 3 else 0.0}, 6)
    assert found == set()


def test_a_server_that_stops_scraping_makes_its_gpus_silent(tmp_path: Path) -> None:
    settings = Settings.model_validate(
        {
            "store": {"path": tmp_path / "store.db"},
            "journal": {"path": tmp_path / "journal.db"},
            "forecast": {"worker": False},
            "promql": {"url": "http://prometheus:9090"},
        }
    )
    clock, fake = ManualClock(T0), FakePrometheus([])
    running = open_brain(settings, clock)
    follower = open_promql(running.brain, httpx2.MockTransport(fake))
    assert follower is not None
    for _ in range(4):
        clock.advance(STEP)
        fake.scrape(Point(name, labels_of(1, 0), value, clock.now_ms()) for name, value in HEALTHY.items())
        follower.look()
        running.brain.tick()
    for _ in range(40):
        clock.advance(STEP)
        follower.look()
        running.brain.tick()
    assert clock.now_ms() - running.brain.memory.latest()[0].at_ms == 20 * MINUTE
    assert {finding.rule for finding in running.brain.active} == {"gpu_silent"}
    follower.close()
    running.stop()

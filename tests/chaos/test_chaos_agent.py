"""What must not cost a reading: a store that is away, kill -9, a full disk, a clock that is set.

A reading is acknowledged when the spool has taken it (`Spool.put` returned). The agent is the real command on the mock
library; the store is a real VictoriaMetrics, behind a gate that refuses, or takes the lines and loses the answer.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tocsin.collector.spool import Spool
from tocsin.domain.clock import SystemClock
from tocsin_testing.chaos import (
    AgentProcess,
    Gate,
    WallClock,
    agent,
    check,
    fill,
    gate,
    series_of,
    small_disk,
    until,
)
from tocsin_testing.mock_nvml import MockFleet

pytestmark = pytest.mark.server

KILLS = 8


@pytest.fixture
def before_store(store: str) -> Iterator[Gate]:
    with gate(store) as made:
        yield made


def drained(running: AgentProcess) -> None:
    """Wait until nothing waits, then end the agent."""
    until(lambda: running.metric("tocsin_spool_batches") == 0, f"an empty spool: {running.tail()}")
    running.stop()


def test_a_store_that_is_away_and_answers_that_are_lost(
    tmp_path: Path, fleet: MockFleet, uuids: list[str], store: str, before_store: Gate
) -> None:
    before_store.mode = "refuse"
    with agent(tmp_path, fleet, before_store.url) as running:
        running.wait_for_spooled(30)
        assert running.metric("tocsin_spool_batches") >= 30
        before_store.mode = "cut"
        until(lambda: before_store.requests["cut"] >= 1, "a push whose answer is lost", 60)
        before_store.mode = "pass"
        drained(running)
        acknowledged = running.acknowledged()
    assert before_store.requests["refuse"] >= 2
    check(store, running.spool, acknowledged, uuids, further=0)


def test_kill_at_any_instant(
    tmp_path: Path, fleet: MockFleet, uuids: list[str], store: str, before_store: Gate
) -> None:
    chance = random.Random(20261121)
    acknowledged: set[int] = set()
    for number in range(KILLS):
        before_store.mode = chance.choice(["pass", "refuse", "cut"])
        with agent(tmp_path, fleet, before_store.url) as running:
            running.wait_for_spooled(chance.randint(1, 12))
            running.kill()
        acknowledged |= running.acknowledged()
        assert len(acknowledged) > number
    before_store.mode = "pass"
    with agent(tmp_path, fleet, before_store.url) as running:
        running.wait_for_spooled(1)
        drained(running)
        acknowledged |= running.acknowledged()
    check(store, running.spool, acknowledged, uuids, further=KILLS)


def test_a_disk_that_is_full(
    tmp_path: Path, fleet: MockFleet, uuids: list[str], store: str, before_store: Gate
) -> None:
    before_store.mode = "refuse"
    with (
        small_disk(tmp_path / "disk", 1) as disk,
        agent(tmp_path, fleet, before_store.url, TOCSIN_AGENT__SPOOL=str(disk / "spool.db")) as running,
    ):
        running.wait_for_spooled(5)
        filler = fill(disk)
        until(lambda: running.metric("tocsin_spool_memory_batches") >= 5, "batches in memory")
        assert running.metric("gpu_power_watts") > 0, "/metrics goes on"
        filler.unlink()
        until(lambda: running.metric("tocsin_spool_memory_batches") == 0, "batches moved to the disk")
        fill(disk)
        until(lambda: running.metric("tocsin_spool_memory_batches") >= 3, "batches in memory again")
        before_store.mode = "pass"
        until(lambda: running.metric("tocsin_spool_batches") <= 1, f"an empty spool: {running.tail()}", 90)
        assert not running.samples("tocsin_dropped_total")
        (disk / "filler").unlink()
        drained(running)
        instants = {at_ms for entry in running.entries("spooled") for at_ms in entry["at_ms"]}
        assert len(instants) > len(running.acknowledged()) > 0
        check(store, running.spool, instants, uuids, further=0)


def test_a_start_on_a_full_disk(
    tmp_path: Path, fleet: MockFleet, uuids: list[str], store: str, before_store: Gate
) -> None:
    with small_disk(tmp_path / "disk", 1) as disk:
        place = {"TOCSIN_AGENT__SPOOL": str(disk / "spool.db")}
        before_store.mode = "refuse"
        with agent(tmp_path, fleet, before_store.url, **place) as running:
            running.wait_for_spooled(10)
            running.kill()
        acknowledged = running.acknowledged()
        fill(disk)
        before_store.mode = "pass"
        with agent(tmp_path, fleet, before_store.url, **place) as running:
            running.wait_for_spooled(5)
            until(lambda: running.metric("tocsin_spool_batches") <= 1, "an empty spool", 60)
            (disk / "filler").unlink()
            until(lambda: running.acknowledged(), "the disk in use again", 60)
            drained(running)
            acknowledged |= {at_ms for entry in running.entries("spooled") for at_ms in entry["at_ms"]}
        check(store, running.spool, acknowledged, uuids, further=1)


def test_what_the_bound_costs_is_counted(tmp_path: Path, fleet: MockFleet, uuids: list[str], store: str) -> None:
    bound = {"TOCSIN_AGENT__SPOOL_MAX_BYTES": str(1024 * 1024)}
    clock = SystemClock()
    filler = Spool(tmp_path / "spool.db", 1 << 30, clock)
    chance = random.Random(1)
    while filler.size < 1024 * 1024 - 20_000:
        padding = "".join(chance.choices("0123456789", k=20_000))
        filler.put(f'old,n={filler.batches} v=1,padding="{padding}" {clock.now_ms()}', 1)
    before = filler.batches
    filler.close()
    with gate(store) as away:
        away.mode = "refuse"
        with agent(tmp_path, fleet, away.url, **bound) as running:
            running.wait_for_spooled(1)
            until(lambda: running.metric("tocsin_dropped_total", what="reading") >= 3, "the bound")
            assert running.metric("tocsin_spool_bytes") <= 1024 * 1024
            early = running.metric("tocsin_dropped_total", what="batch")
            away.mode = "pass"
            until(lambda: running.metric("tocsin_spool_batches") == 0, f"an empty spool: {running.tail()}")
            lost = {sample.labels["what"]: sample.value for sample in running.samples("tocsin_dropped_total")}
            running.stop()
    assert lost["reading"] == lost["batch"], "the oldest had one reading each"
    check(store, running.spool, running.acknowledged(), uuids, further=0)
    kept = {int(series["n"]) for series in series_of(store, "old_v")}
    gone = before - len(kept)
    assert kept == set(range(gone, before)), "the oldest went, and no other"
    # What the bound took while it was on its way to the store is counted, and may have come there.
    assert early <= gone <= lost["batch"]


def test_a_clock_that_is_set(tmp_path: Path, fleet: MockFleet, uuids: list[str], store: str) -> None:
    wall = WallClock(tmp_path)
    # Beyond two days ahead the server takes nothing. At last the clock stands still for readings on end.
    offsets = [(-3_600_000, 0), (0, 0), (3_600_000, 0), (-100, 0), (86_400_000, 0), (-1_000, 0), (-1_000, 600)]
    with agent(tmp_path, fleet, store, **wall.environment) as running:
        for number, offset in enumerate(offsets):
            running.wait_for_spooled(10 * (number + 1))
            wall.set(*offset)
        running.wait_for_spooled(10 * (len(offsets) + 2))
        drained(running)
        entries = running.entries("spooled")
        acknowledged = running.acknowledged()
        steps = running.entries("the wall clock was set; readings are dated by its new time")
    assert len(acknowledged) == len(entries), "no instant was given twice"
    assert [entry["seconds"] > 0 for entry in steps][:3] == [False, True, True]
    check(store, running.spool, acknowledged, uuids, further=0)

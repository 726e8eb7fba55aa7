"""The keeper of usage where the file or the store fails it, and what it does with what comes too late."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tocsin.accounting.prices import PriceList
from tocsin.accounting.table import UsageTable
from tocsin.actions.planning.facts import WorkloadFacts
from tocsin.config.usage import CapacityRule, UsageSettings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import DAY, HOUR, MINUTE, ManualClock
from tocsin.domain.reading import Gpu, Owner, Reading
from tocsin.runtime.brain import usage_keeper
from tocsin.runtime.brain.usage_keeper import Counted, UsageKeeper, UsageParts
from tocsin.store.memory import MemoryStore
from tocsin.store.port import StoreUnavailable
from tocsin.telemetry.metrics import OwnMetrics
from tocsin_testing.builders import T0, gpu, reading

START = T0 // DAY * DAY
JOB = (Owner(1, slurm_job="7"),)


class Site:
    """A store and a keeper of its usage."""

    def __init__(self, facts: dict[str, WorkloadFacts] | None = None, path: Path | None = None, **more: Any) -> None:
        self.store, self.table, self.clock = MemoryStore(), UsageTable(path), ManualClock(START)
        self.metrics, self.facts = OwnMetrics(), facts or {}
        self.known: dict[str, Gpu] = {one.uuid: one for one in (gpu(n, pool="spot-a") for n in range(2))}
        self.settings = UsageSettings(**more)
        self.keeper = self.kept(None)

    def kept(self, counted: Counted | None) -> UsageKeeper:
        parts = UsageParts(self.table, PriceList())
        return UsageKeeper(
            self.store, parts, self.settings, self.clock, self.metrics, self.known.get, lambda: self.facts, counted
        )

    def next_one(self, path: Path) -> None:
        """The keeper ends, and another goes on from what it has counted."""
        self.keeper.close()
        counted = self.keeper.counted()
        self.table = UsageTable(path)
        self.keeper = self.kept(counted)

    def read(self, at_ms: int, number: int = 0) -> Reading:
        return replace(reading(gpu(number), at_ms, utilization_ratio=0.9), owners=JOB)

    def accept(self, *at_ms: int, number: int = 0) -> None:
        for one in at_ms:
            self.clock.set(max(self.clock.now_ms(), one))
            self.store.write(Batch(readings=[self.read(one, number)]))
            self.keeper.take([self.read(one, number)])

    def used(self) -> float:
        return sum(one.row.seconds[0] for one in self.table.groups(0, 10**6, ["job"]))

    def dropped(self) -> float | None:
        labels = {"what": "usage", "reason": "closed_day"}
        return self.metrics.registry.get_sample_value("tocsin_dropped_total", labels)


def test_what_cannot_be_written_waits_and_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    site, whole = Site(), UsageTable.add

    def full(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    site.accept(START, START + MINUTE)
    monkeypatch.setattr(UsageTable, "add", full)
    site.keeper.look()
    site.accept(START + 2 * MINUTE, START + MINUTE // 2)
    site.keeper.write()
    monkeypatch.setattr(UsageTable, "add", whole)
    site.keeper.write()
    assert site.used() == 120
    assert site.table.late() == [(gpu().host, START // DAY - 1), (gpu().host, START // DAY)]
    site.keeper.look()
    assert (site.used(), site.table.late()) == (120, [])


def test_a_store_that_does_not_answer_leaves_late_days_on_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site()
    site.accept(START, START + 10 * MINUTE, *(START + n * MINUTE for n in range(1, 10)))
    with monkeypatch.context() as broken:
        broken.setattr(site.store, "readings", _silent)
        with pytest.raises(StoreUnavailable):
            site.keeper.look()
        assert site.table.late()
    site.keeper.look()
    assert (site.used(), site.table.late()) == (600, [])


def test_a_new_file_has_the_open_days_that_the_store_had_before_it() -> None:
    """The page of cost reads the store: a brain that counted from its own start alone would tell another energy."""
    site = Site(open_days=1)
    before = [START - 3 * DAY, START - 3 * DAY + MINUTE, START - MINUTE, START, START + HOUR, START + HOUR + MINUTE]
    site.store.write(Batch(readings=[site.read(one) for one in before]))
    site.clock.set(START + 2 * HOUR)
    site.keeper.recover(site.clock.now_ms())
    # The first look comes before the first reading.
    site.keeper.look()
    assert (site.used(), site.table.late()) == (120, [])
    assert site.table.first_day() == START // DAY - 1
    site.accept(START + 2 * HOUR, START + 2 * HOUR + MINUTE)
    site.keeper.look()
    assert (site.used(), site.table.late()) == (180, [])


def _silent(*_: object) -> None:
    raise StoreUnavailable("no answer")


def test_who_goes_on_from_what_was_counted_asks_the_store_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(path=tmp_path / "usage.db")
    site.accept(START, START + MINUTE)
    monkeypatch.setattr(site.store, "readings", _silent)
    site.next_one(tmp_path / "usage.db")
    site.keeper.recover(site.clock.now_ms())
    site.accept(START + 2 * MINUTE)
    site.keeper.write()
    assert site.used() == 120, "the minute between the two is counted, and once"
    site.keeper.close()


def test_what_could_not_be_written_goes_on_with_the_next_keeper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    site = Site(path=tmp_path / "usage.db")
    site.accept(START, START + MINUTE)
    site.keeper.write()
    site.accept(START + 2 * MINUTE)
    with monkeypatch.context() as broken:
        broken.setattr(UsageTable, "add", full)
        site.next_one(tmp_path / "usage.db")
    site.keeper.recover(site.clock.now_ms())
    site.keeper.write()
    assert site.used() == 120
    site.keeper.close()


def test_where_the_file_is_gone_the_store_is_asked(tmp_path: Path) -> None:
    site = Site(path=tmp_path / "usage.db", open_days=1)
    site.accept(START, START + MINUTE)
    site.next_one(tmp_path / "another.db")
    site.keeper.recover(site.clock.now_ms())
    site.keeper.look()
    assert site.used() == 60
    site.keeper.close()


def test_late_days_are_counted_a_bounded_number_at_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_keeper, "LATE_AT_ONCE", 1)
    site = Site()
    site.accept(START + HOUR, START + HOUR + MINUTE, START + HOUR + 1)
    counts = []
    for _ in range(3):
        site.keeper.look()
        counts.append(len(site.table.late()))
    assert counts == [1, 0, 0]


def test_what_comes_for_a_closed_day_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(open_days=1)
    site.accept(START, START + MINUTE)
    site.keeper.look()
    site.clock.set(START + 3 * DAY)
    site.accept(START + 3 * DAY)
    site.keeper.look()
    site.accept(START + MINUTE // 2)
    site.keeper.look()
    assert site.used() == 60
    assert site.dropped() == 2


def test_team_and_account_are_those_that_a_manager_tells_while_the_work_runs() -> None:
    site = Site({"slurm/7": WorkloadFacts(account="physics", user="ann"), "slurm/8": WorkloadFacts(team="x")})
    site.accept(START, START + MINUTE)
    site.keeper.write()
    site.facts = {}
    site.accept(START + 2 * MINUTE)
    site.keeper.write()
    (found,) = site.table.groups(0, 10**6, ["account", "user", "job"])
    assert (found.names, found.row.seconds[0]) == (("physics", "ann", "Slurm job 7"), 120)


def test_a_gpu_without_a_reading_for_a_day_is_let_go() -> None:
    site = Site()
    site.accept(START, START + MINUTE)
    site.accept(START, number=1)
    site.keeper.look()
    site.clock.set(START + 2 * DAY)
    site.accept(START + 2 * DAY)
    site.keeper.look()
    assert {uuid for _, uuid in site.table.cursors()} == {gpu(0).uuid}
    assert site.used() == 60


def test_a_bare_reading_of_an_instance_has_the_share_that_is_known_of_it() -> None:
    site = Site()
    bare = Gpu("MIG-1", "node-1", parent=gpu().uuid)
    site.known["MIG-1"] = replace(bare, model=gpu().model, mig_profile="3g.40gb")
    for at_ms in (START, START + 70_000):
        part = Reading(bare, at_ms, {"gpu_graphics_engine_active_ratio": 0.5}, owners=JOB)
        site.keeper.take([reading(gpu(), at_ms, mig_mode=1), part])
    site.keeper.write()
    assert site.used() == pytest.approx(30)


def test_the_kind_of_capacity_is_that_of_the_first_rule_that_fits() -> None:
    rules = [
        CapacityRule(kind="reserved", label="lifecycle=res*"),
        CapacityRule(kind="spot", pool="spot-*", host="node-*"),
        CapacityRule(kind="own", pool="*"),
    ]
    settings = UsageSettings(capacity=rules)
    assert settings.kind_of("spot-a", "node-1", {"lifecycle": "reserved"}) == "reserved"
    assert settings.kind_of("spot-a", "node-1", {"lifecycle": "spot"}) == "spot"
    assert settings.kind_of("spot-a", "other", {}) == "own"
    assert UsageSettings().kind_of("spot-a", "node-1", {}) == ""
    site = Site(capacity=rules)
    site.accept(START, START + MINUTE)
    site.keeper.write()
    assert [one.kind for one in site.table.groups(0, 10**6, [])] == ["spot"]
    with pytest.raises(ValueError, match="no name=pattern"):
        CapacityRule(kind="own", label="gpu")

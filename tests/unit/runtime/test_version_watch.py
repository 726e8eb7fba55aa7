"""What hosts had a day ago is known from the journal, also after a restart and on standby."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tocsin.domain.clock import DAY, HOUR, MINUTE, ManualClock
from tocsin.domain.entry import EntryKind
from tocsin.domain.reading import Gpu, Reading
from tocsin.domain.versions import VersionBefore
from tocsin.journal.journal import Journal
from tocsin.runtime.brain.version_watch import MOST_HOSTS, VersionWatch
from tocsin_testing.builders import T0


class World:
    """A journal with its clock, and a watch over it."""

    def __init__(self, path: Path) -> None:
        self.clock = ManualClock(T0)
        self.path = path
        self.journal = Journal.open(path, self.clock)
        self.watch = VersionWatch(self.journal)
        self.watch.recall([], T0, T0)

    def look(self, *hosts: tuple[str, str], passed: int = 10 * MINUTE, simulated: bool = False) -> list[VersionBefore]:
        """One look `passed` milliseconds later at `hosts` with their drivers."""
        self.clock.advance(passed)
        return list(
            self.watch.look(readings(*hosts, at_ms=self.clock.now_ms(), simulated=simulated), self.clock.now_ms())
        )

    def entries(self) -> list[list[dict[str, object]]]:
        found = self.journal.entries(kinds={EntryKind.VERSIONS_CHANGED})
        return [entry.payload["changes"] for entry in found]  # type: ignore[misc]

    def restart(self, *hosts: tuple[str, str]) -> None:
        self.journal.close()
        self.journal = Journal.open(self.path, self.clock)
        self.watch = VersionWatch(self.journal)
        self.watch.recall(readings(*hosts, at_ms=self.clock.now_ms()), self.clock.now_ms(), T0)


def readings(*hosts: tuple[str, str], at_ms: int = T0, simulated: bool = False) -> list[Reading]:
    return [
        Reading(
            Gpu(
                f"GPU-{host}",
                host,
                0,
                "H100",
                labels=dict([("driver_version", version)] if version else []),
                simulated=simulated,
            ),
            at_ms,
            {},
        )
        for host, version in hosts
    ]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "journal.db")
    yield made
    made.journal.close()


def had(host: str, version: str) -> VersionBefore:
    return VersionBefore(host, "H100", "driver", version)


def test_a_change_is_on_record_once_and_known_for_a_day(world: World) -> None:
    assert world.look(("a", "1"), ("b", "1")) == []
    assert world.look(("a", "2"), ("b", "1")) == [had("a", "1")]
    assert world.entries() == [[{"component": "driver", "model": "H100", "before": "1", "after": "2", "hosts": ["a"]}]]
    assert world.look(("a", "2"), ("b", "1"), passed=23 * HOUR) == [had("a", "1")]
    assert world.look(("a", "2"), ("b", "1"), passed=1 * HOUR) == []
    assert len(world.entries()) == 1


def test_of_several_changes_within_a_day_the_first_version_counts(world: World) -> None:
    world.look(("a", "1"))
    world.look(("a", "2"))
    assert world.look(("a", "3")) == [had("a", "1")]


def test_like_changes_are_one_part_of_an_entry_and_bounded(world: World) -> None:
    hosts = [f"n{i:04d}" for i in range(MOST_HOSTS + 1)]
    world.look(*((host, "1") for host in hosts))
    world.look(*((host, "2") for host in hosts))
    ((first, second),) = world.entries()
    assert first["hosts"] == hosts[:MOST_HOSTS]
    assert second["hosts"] == hosts[MOST_HOSTS:]


def test_it_looks_every_ten_minutes_whatever_hosts_say_between(world: World) -> None:
    world.look(("a", "1"))
    for n in range(20):
        world.look(("a", str(n)), passed=30_000)
    assert len(world.entries()) == 1


def test_it_outlives_a_restart_and_sees_what_changed_meanwhile(world: World) -> None:
    world.look(("a", "1"), ("b", "1"))
    world.look(("a", "2"), ("b", "1"))
    world.restart(("a", "2"), ("b", "1"))
    assert list(world.watch.before) == [had("a", "1")]
    assert world.look(("a", "2"), ("b", "2")) == [had("a", "1"), had("b", "1")]


def test_new_hosts_were_not_there_a_day_ago(world: World) -> None:
    world.look(("a", "1"))
    assert world.look(("a", "1"), ("b", "1")) == [], "the first hour of a site"
    assert world.look(("a", "1"), ("b", "1"), ("c", "1"), passed=HOUR) == [had("c", "")]
    assert world.look(("a", "1"), ("b", "1"), ("c", "2")) == [had("c", "")]
    world.restart(("a", "1"), ("b", "1"), ("c", "2"))
    assert list(world.watch.before) == [had("c", "")]


def test_a_version_that_is_told_later_or_no_more_is_no_change(world: World) -> None:
    world.look(("a", ""))
    assert world.look(("a", "1")) == []
    assert world.look(("a", "")) == []
    assert world.look(("a", "1")) == []
    assert world.look(("a", "2")) == [had("a", "1")]


def test_the_same_answer_is_the_same_object(world: World) -> None:
    world.look(("a", "1"))
    world.look(("a", "2"))
    before = world.watch.before
    world.look(("a", "2"))
    assert world.watch.before is before


def test_a_standby_follows(world: World) -> None:
    other = VersionWatch(world.journal)
    other.recall(readings(("a", "1")), T0, T0)
    world.look(("a", "1"))
    world.look(("a", "2"))
    other.follow(world.journal.entries())
    now = world.clock.now_ms()
    assert list(other.look(readings(("a", "2")), now)) == [had("a", "1")]
    assert len(world.entries()) == 1


def test_simulated_hosts_are_marked(world: World) -> None:
    world.look(("a", "1"), simulated=True)
    world.look(("a", "2"), simulated=True)
    (entry,) = world.journal.entries(kinds={EntryKind.VERSIONS_CHANGED})
    assert entry.simulated


def test_one_host_cannot_fill_the_journal(world: World) -> None:
    def many(version: str) -> list[Reading]:
        return [
            Reading(Gpu(f"GPU-{n}", "a", n, f"model {n}", labels={"driver_version": version}), T0, {})
            for n in range(64)
        ]

    for version in ("1", "2"):
        world.clock.advance(10 * MINUTE)
        world.watch.look(many(version), world.clock.now_ms())
    ((*parts,),) = world.entries()
    assert len(parts) == 26


@pytest.mark.parametrize(
    "payload",
    [
        {},
        {"changes": 1},
        {"changes": [1, {}, {"component": "driver"}]},
        {"changes": [{"component": "x", "model": "", "before": "", "after": "", "hosts": ["a"]}]},
    ],
)
def test_entries_in_another_form_are_passed_over(world: World, payload: dict[str, object]) -> None:
    world.journal.append(EntryKind.VERSIONS_CHANGED, payload)
    world.restart(("a", "1"))
    assert list(world.watch.before) == []


def test_a_clock_that_goes_back_does_no_harm(world: World) -> None:
    world.look(("a", "1"))
    world.look(("a", "2"))
    world.clock.set(world.clock.now_ms() - DAY)
    assert world.look(("a", "3")) == [had("a", "2")]

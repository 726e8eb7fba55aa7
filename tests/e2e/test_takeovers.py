"""Brains on one real PostgreSQL that are killed, stopped and cut off at random: what is done twice, and who is active.

By hand `make takeovers` does it 1,000 times with ten brains a cell at default settings. Here the lease is short.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import statistics
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from tocsin.config.settings import JournalSettings
from tocsin.domain.entry import EntryKind
from tocsin.journal.postgres.connections import CellDatabase, DatabaseTrouble
from tocsin.journal.postgres.fleet import FleetDatabase
from tocsin.journal.postgres.past import PostgresPast
from tocsin_testing import servers, takeover_child
from tocsin_testing.tcp_proxy import TcpProxy

TAKEOVERS = int(os.environ.get("TOCSIN_TAKEOVERS", "50"))
BY_HAND = "TOCSIN_TAKEOVERS" in os.environ
BRAINS = 10 if BY_HAND else 4
CELLS = ("west", "east") if BY_HAND else ("west", "east", "north")
"""Cells that are harmed beside each other, each with its share of the takeovers: most of the time is waiting."""
EACH = -(-TAKEOVERS // len(CELLS))
"""Takeovers of each cell."""
LEASE_SECONDS = JournalSettings().lease_seconds if BY_HAND else 1.2
STOP_SECONDS = 30.0 if BY_HAND else 2.5
"""How long a process is stopped, beyond the time at which another takes over."""
FAULT_SECONDS = 2
HARMED_FAULT_SECONDS = 30 if BY_HAND else FAULT_SECONDS
"""How long each GPU's fault stands. A cell of 64 GPUs with 32 new faults a second, for hours and with ten brains that
all follow on two cores, would measure how fast they read what no fleet writes. In half a minute brains of some four
epochs execute a fifth of the 64 that there are, so there is always one under way to harm them in."""
RESTORES = max(2, TAKEOVERS // 50)
"""How often an older database is put back."""
PATIENCE = 90.0
NEVER = threading.Event()


class Brain:
    """A process with a way of its own to the database."""

    def __init__(self, site: Site, fault_seconds: int) -> None:
        self._site = site
        self._fault_seconds = fault_seconds
        self.proxy = TcpProxy(site.server.port)
        self.process: BaseProcess = self.started()
        self.back_at = 0.0

    def started(self) -> BaseProcess:
        site = self._site
        url = site.server.url.replace(f":{site.server.port}/", f":{self.proxy.url_port}/")
        values = (url, site.cell, site.fleet, LEASE_SECONDS, site.calls, self._fault_seconds)
        process = site.start.Process(target=takeover_child.run, args=values, daemon=True)
        process.start()
        return process

    def harm(self, how: str, seconds: float) -> None:
        self.back_at = time.monotonic() + seconds
        assert self.process.pid is not None
        if how == "kill":
            self.process.kill()
            self.process.join()
        elif how == "stop":
            os.kill(self.process.pid, signal.SIGSTOP)
        else:
            self.proxy.cut()

    def heal(self, how: str) -> None:
        assert self.process.pid is not None
        if how == "kill":
            self.process = self.started()
        elif how == "stop":
            os.kill(self.process.pid, signal.SIGCONT)
        else:
            self.proxy.mend()

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.proxy.close()


class Site:
    """Brains, their database and the file that stands for the world."""

    def __init__(self, folder: Path, server: servers.Postgres, cell: str, fleet: str, fault_seconds: int) -> None:
        self.server = server
        self.cell, self.fleet = cell, fleet
        self.calls = folder / f"calls-{cell}"
        self.calls.touch()
        self.start = multiprocessing.get_context("forkserver")
        self.start.set_forkserver_preload(["tocsin_testing.takeover_child"])
        self.past = PostgresPast(CellDatabase(server.url, f"tocsin_{cell}"))
        self._line = self.past.database.line()
        self.brains = [Brain(self, fault_seconds) for _ in range(BRAINS)]
        self.harmed: list[tuple[str, Brain]] = []
        self.chance = random.Random(f"20261125 {cell}")
        self.took: dict[str, list[float]] = {"kill": [], "stop": [], "cut": []}
        self.leased, self.opened = list[float](), list[float]()
        """Parts of each takeover: up to the first lease after the harm, and from there to the first entry."""
        self.taken: dict[int, float] = {}
        """When each epoch was first seen in the lease."""
        self.leases_lost = 0
        """Leases that ended before their holder had put an entry on record."""

    def active(self) -> tuple[int, int]:
        """Epoch and process of the brain that began last; zeros before the first."""
        # One statement: this looks a hundred times a second beside what it measures.
        asked = (
            "SELECT (SELECT epoch FROM lease), epoch, payload::json->>'pid' FROM entry "
            "WHERE kind = 'service_started' ORDER BY seq DESC LIMIT 1"
        )
        with contextlib.suppress(DatabaseTrouble):
            for leased, epoch, pid in self._line.ask(asked):
                self.taken.setdefault(int(leased), time.monotonic())
                return int(epoch), int(pid)
        return 0, 0

    def after(self, epoch: int, killed: int = 0) -> tuple[int, int]:
        """The brain that became active after `epoch`; those whose harm is over are healed while that is waited for.

        One that took its own lease over just before it was `killed` is not the one.
        """
        ended = time.monotonic() + PATIENCE
        while time.monotonic() < ended:
            self.heal()
            found = self.active()
            if found[0] > epoch and found[1] != killed:
                return found
            NEVER.wait(0.01)
        raise AssertionError(f"nobody took over after epoch {epoch}")

    def heal(self, *, all_of_them: bool = False) -> None:
        for how, brain in list(self.harmed):
            if all_of_them or time.monotonic() >= brain.back_at:
                brain.heal(how)
                self.harmed.remove((how, brain))

    def run(self, takeovers: int) -> None:
        epoch, pid = self.after(0)
        for number in range(takeovers):
            self._let_work(number, epoch)
            epoch, pid = self._acting(epoch, pid)
            brain = next(one for one in self.brains if one.process.pid == pid)
            how = self.chance.choice(list(self.took))
            while len(self.harmed) > BRAINS // 2:
                self.heal()
                NEVER.wait(0.02)
            begun = time.monotonic()
            brain.harm(how, STOP_SECONDS * self.chance.uniform(0.5, 1.5))
            self.harmed.append((how, brain))
            before = epoch
            epoch, pid = self.after(before, pid if how == "kill" else 0)
            self._note(how, begun, range(before + 1, epoch + 1))
            if (number + 1) % 50 == 0:
                print(f"takeover {number + 1}: {self.said()}", flush=True)

    def _note(self, how: str, begun: float, epochs: range) -> None:
        """The takeover that followed a harm, of which the last of `epochs` has an entry now."""
        ended = time.monotonic()
        # The lease of one that was killed just after it took its own over again is not of this takeover.
        leases = [self.taken[one] for one in epochs if self.taken.get(one, 0.0) >= begun]
        leased = min(leases, default=ended)
        self.took[how].append(ended - begun)
        self.leased.append(leased - begun)
        self.opened.append(ended - leased)
        self.leases_lost += max(0, len(leases) - 1)

    def _acting(self, epoch: int, pid: int) -> tuple[int, int]:
        """The brain that is active; where it has been started anew since, the next one."""
        while True:
            epoch, pid = max(self.active(), (epoch, pid))
            if any(one.process.pid == pid for one in self.brains):
                return epoch, pid
            epoch, pid = self.after(epoch)

    def _let_work(self, number: int, epoch: int) -> None:
        """Two of three are harmed in the middle of executions, the third at any instant, its start among them."""
        if number % 3 == 0:
            NEVER.wait(self.chance.uniform(0.0, 0.3))
            return
        wanted = self.chance.randint(1, 5)
        ended = time.monotonic() + PATIENCE
        while sum(one[1] == epoch for one in self.executed()) < wanted and self.active()[0] == epoch:
            assert time.monotonic() < ended, f"the brain of epoch {epoch} does nothing"
            self.heal()
            NEVER.wait(0.01)

    def said(self) -> str:
        words = [f"{how} {len(took)}: p50 {at(took, 0.5):.2f} s" for how, took in self.took.items() if took]
        every = [one for took in self.took.values() for one in took]
        parts = {"": every, "to the lease ": self.leased, "from there to the first entry ": self.opened}
        said = [
            f"{name}p50 {at(took, 0.5):.2f} s, p99 {at(took, 0.99):.2f} s, most {max(took):.2f} s"
            for name, took in parts.items()
        ]
        return f"{'; '.join(said)}; {self.leases_lost} leases lost before it ({', '.join(words)})"

    def executed(self) -> list[tuple[str, int]]:
        """Key and epoch of each call."""
        lines = [line.split(" ") for line in self.calls.read_text().splitlines()]
        return [(line[0], int(line[1])) for line in lines]

    def end(self) -> None:
        for brain in self.brains:
            brain.end()
        self._line.close()
        self.past.database.close()


def at(took: list[float], share: float) -> float:
    """The quantile of `share`."""
    return sorted(took)[min(len(took) - 1, round(share * len(took)))] if len(took) > 1 else statistics.fmean(took)


@pytest.fixture(scope="module")
def server() -> Iterator[servers.Postgres]:
    with servers.postgres() as made:
        yield made


class FleetWatch:
    """Looks again and again at how many subjects of all cells are under action, by what the cells share."""

    def __init__(self, server: servers.Postgres, fleet: str) -> None:
        self._fleet = FleetDatabase(server.url, fleet)
        self._fleet.prepare()
        self._ended = threading.Event()
        self._looking = threading.Thread(target=self._look, daemon=True)
        self.looks, self.most, self.of_several = 0, 0, 0
        self._looking.start()

    def _look(self) -> None:
        query = "SELECT count(*), count(DISTINCT cells) FROM occupied"
        while not self._ended.wait(0.02):
            with contextlib.suppress(DatabaseTrouble), self._fleet.database.steady() as ask:
                subjects, cells = map(int, ask(query)[0])
                self.looks += 1
                self.most = max(self.most, subjects)
                self.of_several += cells > 1

    def end(self) -> None:
        """Look no more; safe to repeat."""
        self._ended.set()
        self._looking.join()
        self._fleet.close()


@contextlib.contextmanager
def sites(
    folder: Path, server: servers.Postgres, fleet: str, *cells: str, fault_seconds: int = FAULT_SECONDS
) -> Iterator[list[Site]]:
    made = [Site(folder, server, cell, fleet, fault_seconds) for cell in cells]
    try:
        yield made
    finally:
        for site in made:
            site.end()


def audit(site: Site) -> None:
    """Every promise, over the journal and the world."""
    # The brains go on: what was done before the journal is read has begun in it.
    executed, entries = site.executed(), list(site.past.entries())
    found = site.past.verify()
    assert found.ok, found.problem
    starts = {str(one.payload["key"]): one.epoch for one in entries if one.kind == EntryKind.EXECUTION_STARTED}
    begun = Counter(str(one.payload["key"]) for one in entries if one.kind == EntryKind.EXECUTION_STARTED)
    ended = Counter(str(one.payload["key"]) for one in entries if one.kind == EntryKind.OUTCOME)
    assert executed, "nothing was done at all"
    assert [key for key, times in Counter(key for key, _ in executed).items() if times > 1] == []
    assert [key for key, times in begun.items() if times > 1] == []
    assert [key for key, times in ended.items() if times > 1] == []
    assert all(starts.get(key) == epoch for key, epoch in executed), "done by another brain than the one that began it"
    epochs = [one.epoch for one in entries]
    assert epochs == sorted(epochs)
    under_way: set[str] = set()
    most = 0
    for entry in entries:
        if entry.kind == EntryKind.EXECUTION_STARTED:
            under_way.add(str(entry.payload["key"]))
        elif entry.kind == EntryKind.OUTCOME:
            under_way.discard(str(entry.payload["key"]))
        most = max(most, len(under_way))
    assert most <= takeover_child.MOST_AT_ONCE, "the limit of the fleet is that of each cell, too"
    print(f"{len(entries)} entries, {len(executed)} executions, {len(begun) - len(executed)} begun and not done")


@pytest.mark.server
def test_brains_that_die_sleep_or_are_cut_off_do_nothing_twice(tmp_path: Path, server: servers.Postgres) -> None:
    cells = sites(tmp_path, server, "harmed", *CELLS, fault_seconds=HARMED_FAULT_SECONDS)
    with cells as made, ThreadPoolExecutor(len(CELLS)) as pool:
        watch = FleetWatch(server, "harmed")
        try:
            list(pool.map(lambda site: site.run(EACH), made))
        finally:
            watch.end()
        print(f"{watch.looks} looks at the fleet, at most {watch.most} subjects under action at once")
        assert watch.most == takeover_child.MOST_AT_ONCE, "the limit of the fleet is reached, and never passed"
        assert watch.of_several > watch.looks / 20, "cells share it"
        for site in made:
            print(f"{EACH} takeovers by {BRAINS} brains, lease {LEASE_SECONDS:g} s: {site.said()}")
            site.heal(all_of_them=True)
        NEVER.wait(2 * LEASE_SECONDS)
        for site in made:
            audit(site)
        # A machine with other work to do takes longer, and must do nothing twice either.
        for site in made if BY_HAND else ():
            assert at([one for took in site.took.values() for one in took], 0.99) < 10.0


def dump(site: Site, to: Path) -> None:
    tool(site, ["pg_dump", "-n", f"tocsin_{site.cell}", "-f", str(to), site.server.url])


def put_back(site: Site, dumped: Path) -> None:
    """As an administrator restores a database: what was there is gone, in one transaction."""
    drop = site.calls.with_name("drop.sql")
    drop.write_text(f"SET client_min_messages = warning; DROP SCHEMA tocsin_{site.cell} CASCADE;\n")
    command = ["psql", "-q", "-v", "ON_ERROR_STOP=1", "--single-transaction", "-f", str(drop), "-f", str(dumped)]
    tool(site, [*command, site.server.url])


def tool(site: Site, command: list[str]) -> None:
    program = str(site.server.programs / command[0])
    subprocess.run([program, *command[1:]], check=True, timeout=60, stdout=subprocess.DEVNULL)


def pauses(site: Site) -> list[str]:
    with contextlib.suppress(DatabaseTrouble):
        return [str(one.payload["reason"]) for one in site.past.entries(kinds=[EntryKind.PAUSE])]
    return []


@pytest.mark.server
def test_brains_that_find_an_older_database_do_nothing(tmp_path: Path, server: servers.Postgres) -> None:
    """Apart from the harms: a brain that is started anew over an older journal cannot know it, and would repeat."""
    with sites(tmp_path, server, "restored_fleet", "restored") as (site,):
        for number in range(RESTORES):
            restore_an_older_one(site, tmp_path, by_another=number % 2 == 1)
        print(f"{RESTORES} restores of an older database under {BRAINS} brains")


def restore_an_older_one(site: Site, tmp_path: Path, *, by_another: bool) -> None:
    """Put back what was a while ago, at a random instant; with `by_another` a takeover lies between."""
    before = len(site.executed())
    until(lambda: len(site.executed()) > before, "executions")
    NEVER.wait(site.chance.uniform(0.0, FAULT_SECONDS))
    epoch, pid = site.active()
    dump(site, tmp_path / "older.sql")
    # So many that all brains have seen something of what the older state lacks.
    before, wanted = len(site.executed()), site.chance.randint(10, 15)
    until(lambda: len(site.executed()) > before + wanted, "executions after the dump")
    living = list(site.brains)
    if by_another:
        dead = next(one for one in living if one.process.pid == pid)
        dead.harm("kill", 0.0)
        living.remove(dead)
        site.after(epoch, pid)
    for brain in living:
        os.kill(brain.process.pid or 0, signal.SIGSTOP)
    dump(site, tmp_path / "newest.sql")
    put_back(site, tmp_path / "older.sql")
    for brain in living:
        os.kill(brain.process.pid or 0, signal.SIGCONT)
    until(lambda: bool(pauses(site)), "a pause")
    assert "is not what this brain has seen" in pauses(site)[0]
    done = site.executed()
    NEVER.wait(3 * FAULT_SECONDS / 2)
    assert site.executed() == done, "it acts on what it does not remember"
    assert site.past.verify().ok
    for brain in site.brains:
        brain.process.kill()
        brain.process.join()
    put_back(site, tmp_path / "newest.sql")
    for brain in site.brains:
        brain.process = brain.started()
    until(lambda: len(site.executed()) > len(done) + 10, "executions on the newest state")
    audit(site)


def until(done: Callable[[], bool], what: str) -> None:
    ended = time.monotonic() + PATIENCE
    while time.monotonic() < ended:
        if done():
            return
        NEVER.wait(0.02)
    raise AssertionError(f"no {what} within {PATIENCE:g} s")

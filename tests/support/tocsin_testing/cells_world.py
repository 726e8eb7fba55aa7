"""Cells of one fleet over a real PostgreSQL, each with its loop, and an account of what is in effect in all of them."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from contextlib import closing

from tocsin.actions.loop.loop import ActionLoop
from tocsin.actions.model.catalogue import is_disruptive
from tocsin.actions.model.decision_log import Ledger
from tocsin.actions.model.view import Confirmations
from tocsin.config.settings import ActionSettings
from tocsin.domain.decision import Decision
from tocsin.domain.entry import Entry
from tocsin.domain.finding import ActionKind
from tocsin.domain.reading import Gpu
from tocsin.journal.postgres.connections import CellDatabase
from tocsin.journal.postgres.fleet import FleetDatabase, PostgresBudget
from tocsin.journal.postgres.journal import PostgresJournal
from tocsin.journal.postgres.lease import DatabaseLease
from tocsin.journal.postgres.schema import prepare
from tocsin_testing.action_world import FakeExecutor, World
from tocsin_testing.journals import leased


class Killed(BaseException):
    """The process is gone: nothing behind this line happens."""


class DeadlyExecutor(FakeExecutor):
    """Dies now and then in the middle of a reset; what a cordon left behind would wait for a person."""

    def __init__(self, chance: random.Random, share: float) -> None:
        super().__init__()
        self._chance = chance
        self.share = share

    def execute(self, decision: Decision) -> object:  # type: ignore[override]
        if decision.action is ActionKind.RESET_GPU and self._chance.random() < self.share:
            raise Killed
        return super().execute(decision)


class Account:
    """What the journals of all cells say is in effect, checked at every entry. `problems` has what passed a limit."""

    def __init__(self, most: int, per_rack: int, racks: dict[str, str]) -> None:
        self.most, self.per_rack, self.racks = most, per_rack, racks
        self.problems: list[str] = []
        self.peak = 0
        self.starts = 0
        self._lock = threading.Lock()
        self._effects: dict[str, dict[str, Decision]] = {}

    def take(self, cell: str, ledger: Ledger, entries: Sequence[Entry]) -> None:
        with self._lock:
            for entry in entries:
                ledger.apply(entry)
            self.starts += sum(entry.kind == "execution_started" for entry in entries)
            effects = ledger.controls().effects
            self._effects[cell] = {key: one for key, one in effects.items() if is_disruptive(one.action)}
            every = {
                (one.subject.kind, one.subject.name): one for all_ in self._effects.values() for one in all_.values()
            }
            self.peak = max(self.peak, len(every))
            if len(every) > self.most:
                self.problems.append(f"{len(every)} subjects at once: {sorted(every)}")
            by_rack: dict[str, int] = {}
            for one in every.values():
                rack = self.racks[one.subject.host or one.subject.name]
                by_rack[rack] = by_rack.get(rack, 0) + 1
            if max(by_rack.values(), default=0) > self.per_rack:
                self.problems.append(f"racks: {by_rack}")


class CellWorld(World):
    """One cell: its own hosts, in racks that others have hosts in too, and a brain that can be killed."""

    def __init__(
        self,
        url: str,
        fleet: str,
        name: str,
        gpus: dict[str, Gpu],
        account: Account | None = None,
        actions: ActionSettings | None = None,
        deadly: tuple[random.Random, float] | None = None,
    ) -> None:
        self.cell, self.fleet_name, self.url = name, fleet, url
        self.account = account
        self.database = CellDatabase(url, f"tocsin_{name}")
        prepare(self.database)
        self.fleet = FleetDatabase(url, fleet)
        self.fleet.prepare()
        self._deadly = deadly
        self._open: list[PostgresJournal | PostgresBudget] = []
        self._leases: list[DatabaseLease] = []
        super().__init__(actions, gpus)

    def restart(self) -> None:
        """A new brain that takes the lease over, whatever became of the one before."""
        if self._deadly is not None:
            self.executor, self._deadly = DeadlyExecutor(*self._deadly), None
        with closing(self.database.line()) as line:
            line.ask("UPDATE lease SET until = clock_timestamp() - interval '1 second'")
        # Long enough for a busy machine: a successor ends it by hand, above.
        self.lease = leased(self.database, 60.0)
        journal = PostgresJournal.open(self.database, self.clock, self.lease)
        self.journal = journal  # type: ignore[assignment]
        self.budget = PostgresBudget(self.fleet, self.cell, self.lease, self.clock, f"http://{self.cell}.test")
        journal.fleet = self.fleet.database.schema, self.cell
        self._open += [journal, self.budget]
        self._leases.append(self.lease)
        if self.account is not None:
            ledger, account = Ledger(), self.account
            account.take(self.cell, ledger, list(journal.entries()))
            journal.on_append = lambda entries: account.take(self.cell, ledger, entries)
        self.started_ms, self._begun = self.clock.now_ms(), self.clock.monotonic()
        self._confirmations = Confirmations()
        self.loop = ActionLoop(
            self.journal, [self.executor], self.clock, self.policy, self.notifier, budget=self.budget
        )

    def end(self) -> None:
        """In order."""
        for lease in self._leases:
            lease.release()
        for one in self._open:
            one.close()
        self.fleet.close()

    def age(self, seconds: float) -> None:
        """The cell has told of itself that long ago."""
        with closing(self.fleet.database.line()) as line:
            query = "UPDATE cell SET counted_at = clock_timestamp() - make_interval(secs => %s) WHERE name = %s"
            line.ask(query, (seconds, self.cell))


def cell_gpus(cell: str, hosts: int = 4, per_host: int = 2, racks: int = 2) -> dict[str, Gpu]:
    """GPUs of a cell by UUID; its hosts are in racks that every cell has."""
    found = [
        Gpu(f"GPU-{cell}-{h}-{i}", f"{cell}-{h}", index=i, rack=f"rack-{h % racks}")
        for h in range(hosts)
        for i in range(per_host)
    ]
    return {gpu.uuid: gpu for gpu in found}

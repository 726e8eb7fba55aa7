"""One active brain among several that share a journal in a database: the others stand by, and one of them follows.

On standby a brain judges the fleet as far as its store is shared, follows the journal and answers what is read. Once it
has the lease it is opened anew from the journal, in the lease's epoch; once it has lost that it stands by again.
"""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog

from tocsin.config.settings import Settings, StoreKind
from tocsin.domain.clock import Clock
from tocsin.domain.entry import Entry, EntryKind
from tocsin.domain.errors import InputError, TocsinError, Unavailable
from tocsin.journal.page import Wanted
from tocsin.journal.port import JournalPast, LiveJournal
from tocsin.journal.postgres.connections import CellDatabase, DatabaseTrouble, open_database
from tocsin.journal.postgres.fleet import FleetDatabase, PostgresBudget
from tocsin.journal.postgres.journal import FollowedJournal, JournalReplaced, PostgresJournal, must_have_key
from tocsin.journal.postgres.lease import DatabaseLease
from tocsin.journal.postgres.schema import prepare
from tocsin.journal.witness import Seen, problem_of
from tocsin.runtime.brain.brain import Handover
from tocsin.runtime.brain.lease import LEASE_LOOK_SECONDS
from tocsin.runtime.brain.periodic import Periodic
from tocsin.runtime.service_manager import ServiceManager

log = structlog.get_logger()

NOTIFIED_SECONDS = 0.5
"""Longest that a follower waits for the database to tell of an entry before it looks by itself."""
NOT_SEEN = "the journal is not what this brain has seen"
"""Begins the reason for which a brain pauses that finds an older journal."""
MOST_PAUSES = 20
"""Newest pauses among which that is looked for."""
_PAUSES = Wanted(kinds=(EntryKind.PAUSE,))
AGAIN_SECONDS = 1.0
"""Time between two tries to open a journal whose database is away."""


class Borrowed:
    """The lease for a brain, which asks for it; the succession renews and releases it."""

    def __init__(self, lease: DatabaseLease) -> None:
        self._lease = lease
        self.epoch = lease.epoch

    def tick(self) -> None:
        """The succession does that."""

    def held(self) -> bool:
        return self._lease.held()

    def holder(self) -> str:
        return self._lease.holder()

    def release(self) -> None:
        """The succession does that, once the end is on record."""


@dataclass(frozen=True, slots=True)
class SharedJournal:
    """The journal as one of several brains has it, with the lease; `doubt` is why it must not act on its own. `fleet`
    and `budget` are None where this cell is the whole fleet, `budget` on standby too. `handover` is what the brain on
    standby had seen by the time it took over, None where it has seen nothing."""

    journal: LiveJournal
    lease: Borrowed
    doubt: str = ""
    fleet: FleetDatabase | None = None
    budget: PostgresBudget | None = None
    handover: Handover | None = None


class Memory:
    """The newest entry that this process has seen, through all its turns on standby and in service.

    A database that was restored to an older state is found by it, as by a witness. What another process saw is for the
    witnesses.
    """

    def __init__(self) -> None:
        self._seen: dict[str, Seen] = {}
        self._lock = threading.Lock()

    def problem(self, journal: JournalPast) -> str:
        """Why `journal` is not what was seen or its continuation; empty where it is."""
        with self._lock:
            found = problem_of(journal, self._seen)
        if not found:
            return ""
        return (
            f"{NOT_SEEN}: {found}; the database was restored or lost entries: find "
            "out what was done since then, and resume"
        )

    def of(self, journal: JournalPast) -> Callable[[Sequence[Entry]], None]:
        """What takes note of entries of `journal`, the newest last; once it has one."""
        known: list[str] = []

        def note(entries: Sequence[Entry]) -> None:
            if entries and not known:
                # It was empty when it was opened: its writer tells of its first entry, who follows may begin later.
                known.append(entries[0].hash if entries[0].seq == 1 else next(iter(journal.entries(limit=1))).hash)
            if entries:
                with self._lock:
                    self._seen = {known[0]: Seen(entries[-1].epoch, entries[-1].seq, entries[-1].hash)}

        # Here, and not when a writer tells of its first entry: reading may fail.
        known += [entry.hash for entry in journal.entries(limit=1)]
        return note


class Turn(Protocol):
    """A brain with its API, on standby or in service."""

    def evaluations(self) -> int:
        """How many evaluations have begun."""

    def follow(self) -> None:
        """On standby: take in what the active brain has put on record."""

    def stop(self) -> None:
        """End it."""

    def handover(self) -> Handover | None:
        """What it has seen of the fleet, once it has ended; None where that is less than the store has."""


Begin = Callable[[SharedJournal], Turn]
"""Opens a brain, with its API in place of the one before it."""


class Succession:
    """Turns on standby and in service, one after the other, until `stop` is set."""

    def __init__(self, settings: Settings, clock: Clock, stop: threading.Event, begin: Begin) -> None:
        self._settings = settings
        self._clock = clock
        self._stop = stop
        self._begin = begin
        self._memory = Memory()
        self._manager = ServiceManager()
        self._told = False
        self._seen: Handover | None = None
        self.database: CellDatabase = open_database(settings.journal)
        self.fleet = open_fleet(settings)

    def run(self) -> None:
        """Raises InputError and JournalBroken where the journal cannot be used, and Unavailable where its database is
        away at the first try; later it is waited for."""
        prepare(self.database)
        if self.fleet is not None:
            self.fleet.prepare()
        must_have_key(self.database, self._settings.journal.key_file)
        while not self._stop.is_set():
            try:
                self._one()
            except Unavailable as error:
                log.warning("the journal's database or the store is away", problem=str(error))
                self._stop.wait(AGAIN_SECONDS)
        self._manager.stopping()
        self.database.close()
        if self.fleet is not None:
            self.fleet.close()

    def _one(self) -> None:
        """A wait for the lease, and the time that it is held."""
        identity = f"{socket.gethostname()}-{secrets.token_hex(4)}"
        lease = DatabaseLease(self.database, identity, self._settings.journal.lease_seconds, self._clock)
        lease.tick()
        keeper = Periodic("lease", lease.tick, LEASE_LOOK_SECONDS, self._clock)
        keeper.start()
        try:
            if not lease.held():
                self._seen = None
                self._seen = self._stand_by(lease)
            if lease.held() and not self._stop.is_set():
                self._serve(lease)
        finally:
            keeper.stop()
            lease.release()

    def _stand_by(self, lease: DatabaseLease) -> Handover | None:
        """Wait for the lease; what has been seen meanwhile."""
        journal = FollowedJournal(self.database, lease.holder)
        turn = self._begin(SharedJournal(journal, Borrowed(lease), fleet=self.fleet))
        follows = _Follower(self.database, turn, journal, self._memory)
        follower = Periodic("follow", follows.look, 0.0, self._clock)
        follower.start()
        try:
            log.info("on standby", active=lease.holder(), journal=self.database.name)
            if self._settings.store.kind is StoreKind.SQLITE:
                log.warning("the store is on this host alone: no GPU is seen, and a takeover begins without their past")
            # What was folded of a journal that is there no longer cannot be followed on: another turn begins.
            self._wait(lambda: lease.held() or follows.replaced, turn)
        finally:
            follower.signal()
            follows.end()
            follower.stop()
            follows.close()
            turn.stop()
        return None if follows.replaced else turn.handover()

    def _serve(self, lease: DatabaseLease) -> None:
        self._manager.alive()
        journal = PostgresJournal.open(self.database, self._clock, lease, self._settings.journal.key_file)
        doubt = self._memory.problem(journal)
        journal.on_append = self._memory.of(journal)
        budget = None if self.fleet is None else budget_of(self._settings, self.fleet, journal, self._clock)
        turn = self._begin(SharedJournal(journal, Borrowed(lease), doubt, self.fleet, budget, self._seen))
        # Until here: where the store is away at the takeover, the next try goes on from it too.
        self._seen = None
        try:
            log.info("active", epoch=lease.epoch, journal=self.database.name)
            self._wait(lambda: lease.lost, turn)
        finally:
            turn.stop()
            if budget is not None:
                budget.close()
        if lease.lost:
            log.warning("no longer the active brain", journal=self.database.name)

    def _wait(self, done: Callable[[], bool], turn: Turn) -> None:
        """Wait until it is `done` or the service ends; signs of life go out for as long as it evaluates."""
        if not self._told:
            self._told = True
            self._manager.ready()
        before, due = -1, 0.0
        while not done() and not self._stop.wait(LEASE_LOOK_SECONDS / 2):
            now = self._clock.monotonic()
            if now >= due and (turns := turn.evaluations()) != before:
                before, due = turns, now + (self._manager.beat_seconds or 1.0)
                self._manager.alive()


class _Follower:
    """Waits for entries of the active brain, and hands them to the one on standby."""

    def __init__(self, database: CellDatabase, turn: Turn, journal: FollowedJournal, memory: Memory) -> None:
        self._line = database.line()
        self._channel = f"{database.schema}_appended"
        self._turn = turn
        self._journal = journal
        self._memory = memory
        self._note = memory.of(journal)
        self._away = False
        self._ended = threading.Event()
        self.replaced = False
        """Whether the journal that was followed is there no longer."""

    def look(self) -> None:
        """Wait for the next entry and take in all that are there."""
        try:
            self._line.notified(self._channel, NOTIFIED_SECONDS)
            self._turn.follow()
            # What was restored must not pass for what was seen, until a person has said so.
            if not self._memory.problem(self._journal) or _resumed(self._journal):
                self._note(list(self._journal.entries(after=max(self._journal.head - 1, 0), limit=1)))
            self._away = False
        except JournalReplaced as error:
            log.warning("another journal is in the place of the one that was followed", problem=str(error))
            self.replaced = True
            self._ended.wait(AGAIN_SECONDS)
        except (DatabaseTrouble, TocsinError) as error:
            if not self._away and not self._ended.is_set():
                log.warning("the journal cannot be followed", problem=str(error))
            self._away = True
            self._ended.wait(AGAIN_SECONDS)

    def end(self) -> None:
        """Wait for nothing more: who has the lease is not to wait for entries of the one before."""
        self._ended.set()
        self._line.cut()

    def close(self) -> None:
        """Let go of the connection."""
        self._line.close()


def _resumed(journal: JournalPast) -> bool:
    """Whether a person has resumed since a brain found the journal to be an older one."""
    last = list(journal.newest(1, Wanted(kinds=(EntryKind.RESUME,))))
    found = [one for one in journal.newest(MOST_PAUSES, _PAUSES) if NOT_SEEN in str(one.payload.get("reason"))]
    return bool(last and found) and last[0].seq > found[0].seq


def open_fleet(settings: Settings) -> FleetDatabase | None:
    """What the cells of the fleet share; None where this cell is the whole of it. Raises InputError."""
    if not settings.cell.fleet:
        return None
    if not settings.cell.url:
        remedy = "set cell.url to where the other cells reach this one, such as https://tocsin-a.example:8470"
        raise InputError("cell.url", "", "is needed beside cell.fleet", remedy)
    return FleetDatabase(settings.journal.url.get_secret_value(), settings.cell.fleet)


def budget_of(settings: Settings, fleet: FleetDatabase, journal: PostgresJournal, clock: Clock) -> PostgresBudget:
    """The fleet's budget for the writer of `journal`, whose entries take of it from here on."""
    cell = settings.journal.cell
    journal.fleet = fleet.database.schema, cell
    mine = settings.cell
    spread = mine.gone_seconds if mine.hash else None
    return PostgresBudget(fleet, cell, journal.lease, clock, mine.url, mine.hosts, spread)


def refuse_other_leases(settings: Settings) -> None:
    """Raise InputError where a file is to make a brain the active one, and its journal is in a database."""
    if settings.actions.lease_file is not None:
        remedy = "unset actions.lease_file: the lease is in the database"
        raise InputError("actions.lease_file", str(settings.actions.lease_file), "goes with a journal file", remedy)

"""What the cells of a fleet share in PostgreSQL: who they are, and the one budget of their limits."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import structlog

from tocsin.domain.clock import SECOND, Clock
from tocsin.domain.errors import Conflict
from tocsin.domain.fleet_share import CellShare, PastRow, PoolShare, RestOfFleet
from tocsin.journal.postgres.connections import Ask, CellDatabase, DatabaseTrouble, jsonb
from tocsin.journal.postgres.fleet_schema import STALE_SECONDS, scripts_of
from tocsin.journal.postgres.lease import DatabaseLease
from tocsin.journal.postgres.schema import prepare

log = structlog.get_logger()

ASK_SECONDS = 5.0
"""Longest that one question may take: a step of the loop waits for it."""
MOST_PLACES = 10_000
"""GPUs whose places are told, or asked for, at a time: half a second of a database on a busy core. All of a cell of
100,000 at once take longer than a question may."""
MOST_PAST = 5_000
"""Rows of what people said in other cells that are read, the last to end first (own choice)."""
_SUM = "SELECT name, sum(counted), sum(usable) FROM pool_now WHERE cell <> %s GROUP BY name"
_PLACES = (
    "SELECT place, count(*) FROM occupied, unnest({}) AS place "
    "WHERE NOT %s = ANY (cells) AND place <> '' GROUP BY place"
)
_PAST = (
    "SELECT cell, kind, name, extract(epoch FROM starts - clock_timestamp())::float8, "
    "extract(epoch FROM until - clock_timestamp())::float8, content FROM past "
    f"WHERE cell <> %s AND until > clock_timestamp() ORDER BY until DESC, cell, kind, name LIMIT {MOST_PAST}"
)
_SINCE = "extract(epoch FROM clock_timestamp() - at)::float8"


@dataclass(frozen=True, slots=True)
class KnownCell:
    """A cell as it last told of itself, `age_seconds` ago; `held` is whether a brain has its lease. `hosts` are
    patterns of the hosts that it has; empty where it has those that push there. Where it takes a share of the others by
    hashing, `spread` is after how many seconds it counts as gone."""

    name: str
    url: str
    gpus: int
    age_seconds: float
    held: bool
    hosts: tuple[str, ...] = ()
    spread: float | None = None

    @property
    def stale(self) -> bool:
        """Whether its figures are too old to widen any limit."""
        return self.age_seconds > STALE_SECONDS


class FleetDatabase:
    """The schema of a fleet, in the database of its cells' journals."""

    def __init__(self, url: str, fleet: str) -> None:
        self.fleet = fleet
        self.database = CellDatabase(url, f"fleet_{fleet}")

    def prepare(self) -> None:
        """Make what is missing of it. Raises InputError for one of a newer version, and Unavailable."""
        prepare(self.database, scripts_of(self.database.schema))

    def cells(self) -> list[KnownCell]:
        """The cells that have told of themselves, by name. Raises Unavailable."""
        with self.database.steady() as ask:
            since = "extract(epoch FROM clock_timestamp() - counted_at)::float8"
            rows = ask(f"SELECT name, url, gpus, hosts, spread, {since} FROM cell ORDER BY name")
            return [
                KnownCell(name, url, int(gpus), float(age), _held(ask, name), tuple(map(str, hosts)), spread)
                for name, url, gpus, hosts, spread, age in rows
            ]

    def forget(self, name: str) -> bool:
        """Take a cell that is gone for good out of the fleet, with all that it has taken; False where it is unknown.

        Raises Unavailable, and Conflict while a brain has its lease.
        """
        with self.database.steady() as ask:
            if _held(ask, name):
                raise Conflict(f"a brain has the lease of cell {name}; stop it first")
        line = self.database.line(ASK_SECONDS)
        try:
            return bool(line.ask("SELECT forget_cell(%s)", (name,))[0][0])
        finally:
            line.close()

    def close(self) -> None:
        """Safe to repeat."""
        self.database.close()


def _held(ask: Ask, name: str) -> bool:
    schema = "tocsin_" + name
    if not ask("SELECT to_regclass(format('%%I.lease', %s::text)) IS NOT NULL", (schema,))[0][0]:
        return False
    # Names of cells are letters, digits and low lines: `CellSettings` and `JournalSettings` hold them to that.
    return bool(ask(f"SELECT until > clock_timestamp() AND holder <> '' FROM \"{schema}\".lease")[0][0])


class PostgresBudget:
    """A `tocsin.actions.model.budget.FleetBudget` of the cell whose journal `lease` lets this process write.

    `url` is where it tells the others that it is reached, `hosts` the patterns of what it has; `spread` is that of
    `KnownCell`.
    """

    shared = True

    def __init__(
        self,
        fleet: FleetDatabase,
        cell: str,
        lease: DatabaseLease,
        clock: Clock,
        url: str,
        hosts: Sequence[str] = (),
        spread: float | None = None,
    ) -> None:
        self.fleet = fleet
        self.cell = cell
        self._lease = lease
        self._clock = clock
        self._about = {"url": url}
        self._hosts: str | None = jsonb(list(hosts))
        self._spread = spread
        self._line = fleet.database.line(ASK_SECONDS)
        self._lock = threading.Lock()
        self._rest = RestOfFleet()
        self._causes: Mapping[str, int] = {}
        self._away = False
        self._past: tuple[PastRow, ...] | None = None
        self._heard: dict[str, str] = {}
        self._heard_epoch: int | None = None
        self._looked_up = ""

    def publish(self, share: CellShare) -> RestOfFleet:
        content = self._about | {
            "managed": share.managed,
            "gpus": share.gpus,
            "pools": {name: [pool.counted, pool.usable] for name, pool in share.pools.items()},
            "outside": [[key, host, list(racks)] for key, host, racks in share.outside],
            "takings": list(share.takings),
            "limits": dict(share.limits),
        }
        values = (self.cell, self._lease.epoch, self._lease.identity, jsonb(content))
        try:
            with self._lock:
                if self._line.ask("SELECT publish(%s, %s, %s, %s::jsonb)", values)[0][0]:
                    return self._rest
                if self._hosts is not None:
                    self._line.ask("SELECT tell_hosts(%s, %s, %s::jsonb)", (self.cell, self._lease.epoch, self._hosts))
                    self._line.ask("SELECT tell_spread(%s, %s, %s)", (self.cell, self._lease.epoch, self._spread))
                    self._hosts = None
                self._tell_past(share.past)
                self._tell_heard(share.heard)
                with self._line.steady() as ask:
                    self._rest = self._asked(ask, share)
            self._away = False
        except DatabaseTrouble as error:
            self._tell(error)
        return self._rest

    def elsewhere(self, silent: Mapping[str, str]) -> Mapping[str, str]:
        if self._away:
            # The next `publish` finds out whether it is back: one wait for each step is enough.
            return {}
        names = sorted(silent)
        start = bisect_right(names, self._looked_up)
        part = names[start : start + MOST_PLACES] or names[:MOST_PLACES]
        asked = jsonb({gpu: silent[gpu] for gpu in part})
        try:
            with self._lock:
                rows = self._line.ask("SELECT gpu, cell FROM places_elsewhere(%s, %s::jsonb)", (self.cell, asked))
        except DatabaseTrouble as error:
            self._tell(error)
            return {}
        self._looked_up = part[-1] if len(names) > MOST_PLACES else ""
        return {str(gpu): str(cell) for gpu, cell in rows}

    def tell_causes(self, causes: Mapping[str, int]) -> Mapping[str, int]:
        now_ms = self._clock.now_ms()
        ages = {cause: max(0, now_ms - at_ms) / SECOND for cause, at_ms in causes.items()}
        try:
            with self._lock:
                values = (self.cell, self._lease.epoch, jsonb(ages))
                self._line.ask("SELECT tell_causes(%s, %s, %s::jsonb)", values)
                rows = self._line.ask(f"SELECT name, {_SINCE} FROM cause WHERE cell <> %s", (self.cell,))
            self._causes = {str(name): now_ms - round(age * SECOND) for name, age in rows}
        except DatabaseTrouble as error:
            self._tell(error)
        return self._causes

    def forget_causes(self) -> None:
        with self._lock:
            self._line.ask("SELECT forget_causes()")
        self._causes = {}

    def close(self) -> None:
        """Let go of the connection; safe to repeat."""
        with self._lock:
            self._line.close()

    def _tell_past(self, past: tuple[PastRow, ...]) -> None:
        """Told where it has changed: by the database's clock, for that of another cell may be another."""
        if past == self._past:
            return
        now_ms = self._clock.now_ms()
        rows = [
            [one.kind, one.name, (one.starts_ms - now_ms) / SECOND, (one.until_ms - now_ms) / SECOND, dict(one.content)]
            for one in past
        ]
        self._line.ask("SELECT tell_past(%s, %s, %s::jsonb)", (self.cell, self._lease.epoch, jsonb(rows)))
        self._past = past

    def _tell_heard(self, heard: Mapping[str, str] | None) -> None:
        """What has changed since it was told last, as much as fits; the rest next time. All of it after another brain
        may have told something."""
        anew = self._heard_epoch != self._lease.epoch
        if heard is None or (not anew and heard == self._heard):
            return
        told = {} if anew else self._heard
        changed = ((gpu, host) for gpu, host in heard.items() if told.get(gpu) != host)
        come = dict(islice(changed, MOST_PLACES))
        gone = [*islice((gpu for gpu in told if gpu not in heard), MOST_PLACES)]
        self._heard_epoch = None
        values = (self.cell, self._lease.epoch, anew, jsonb(come), jsonb(gone))
        self._line.ask("SELECT tell_places(%s, %s, %s, %s::jsonb, %s::jsonb)", values)
        told |= come
        for gpu in gone:
            del told[gpu]
        self._heard, self._heard_epoch = told, values[1]

    def _tell(self, error: DatabaseTrouble) -> None:
        if not self._away:
            # Nothing can begin without it: what was known of the others only shows why something waits.
            log.warning("the other cells of the fleet cannot be asked", problem=str(error))
        self._away = True

    def _asked(self, ask: Ask, share: CellShare) -> RestOfFleet:
        me, now_ms = self.cell, self._clock.now_ms()
        fresh = f"counted_at > clock_timestamp() - interval '{STALE_SECONDS} seconds'"
        cells = ask(f"SELECT name, managed, limits, {fresh} FROM cell WHERE name <> %s ORDER BY name", (me,))
        tried = ask(
            f"SELECT slot, action, hosts, disruptive, {_SINCE} FROM attempt "
            "WHERE cell <> %s AND hosts && texts(%s::jsonb)",
            (me, jsonb(share.hosts)),
        )
        attempts: dict[tuple[str, str], tuple[int, ...]] = {}
        by_host: dict[str, tuple[int, ...]] = {}
        for slot, action, hosts, disruptive, age in tried:
            at_ms = now_ms - round(age * SECOND)
            attempts[slot, action] = (*attempts.get((slot, action), ()), at_ms)
            for host in hosts if disruptive else ():
                by_host[host] = (*by_host.get(host, ()), at_ms)
        return RestOfFleet(
            cells=tuple(str(name) for name, *_ in cells),
            managed=sum(int(managed) for _, managed, _, is_fresh in cells if is_fresh),
            out=_count(ask, "gone", me),
            subjects=_count(ask, "occupied", me),
            hosts={str(place): int(n) for place, n in ask(_PLACES.format("hosts"), (me,))},
            racks={str(place): int(n) for place, n in ask(_PLACES.format("racks"), (me,))},
            pools={str(name): PoolShare(int(counted), int(usable)) for name, counted, usable in ask(_SUM, (me,))},
            attempts=attempts,
            host_attempts=by_host,
            limits=_strictest([limits for _, _, limits, _ in cells]),
            past=tuple(
                (str(cell), PastRow(str(kind), str(name), _at(now_ms, starts), _at(now_ms, until), content))
                for cell, kind, name, starts, until, content in ask(_PAST, (me,))
            ),
        )


def _at(now_ms: int, seconds: float) -> int:
    """The instant `seconds` from now, to the second: asked for again it is the same."""
    return round((now_ms / SECOND) + seconds) * SECOND


def _count(ask: Ask, table: str, me: str) -> int:
    return int(ask(f"SELECT count(*) FROM {table} WHERE NOT %s = ANY (cells)", (me,))[0][0])


def _strictest(limits: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    names = {name for one in limits for name in one}
    least = {"min_available_ratio", "breaker_window_seconds"}
    return {name: (max if name in least else min)(float(one[name]) for one in limits if name in one) for name in names}

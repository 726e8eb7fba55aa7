"""The file of sums: rows of each GPU while a day may still change, and of pools and models once it is closed.

One transaction writes sums together with the instant up to which each GPU is counted, so that a process that dies
counts no second twice and loses none that the store has.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tocsin.accounting.holders import NOBODY, OTHER, Holder, Said
from tocsin.accounting.meter import Row, RowKey, Use
from tocsin.accounting.profile import Profile
from tocsin.at_rest.database import connect
from tocsin.domain.atomic_file import make_folder, make_private
from tocsin.domain.clock import DAY
from tocsin.domain.errors import InputError

MOST_HOLDERS = 1_000
"""Holders that one day of one host keeps apart; the work of all further ones is one, `OTHER`.

Own choice: a new job on each of eight GPUs every 12 minutes. Hosts share nothing here, so that none takes the room of
another."""
MOST_OF_SITE = 100_000
"""Holders that one day keeps apart of all hosts together; from there on each host has an equal share of it, if it had
less. Own choice: some 30 MB of file a day, where a hundred hosts name all that they may."""
CLOSED_DAY, MANY_HOLDERS, SITE_HOLDERS = "closed_day", "many_holders", "many_holders_of_site"
"""Why rows are left out, or booked to `OTHER`, as ``tocsin_dropped_total`` names it."""
OTHER_WORK = "other work"
"""What a person calls `OTHER`."""
_MOST_IDS = 20_000
_ALL = ""
"""Stands for all hosts among those where work is shown."""
PROFILE_DAYS = 35
"""Days whose profiles are kept: as many as one question about right sizes may span, and some more."""
_SUMS = ("used_s", "idle_s", "untold_s", "free_s", "stranded_s", "not_seen_s", "joules", "unmetered_s")
"""Columns of a row: the seconds by `Use`, then energy."""
SLURM_NAMESPACE = "no namespace (Slurm)"
"""Stands for the namespace of Slurm's work, which has none and is known all the same; no namespace is called so."""
_DIMENSIONS = {
    "namespace": f"iif(h.namespace = '' AND h.key GLOB 'slurm/*', '{SLURM_NAMESPACE}', h.namespace)",
    "team": "h.team",
    "account": "h.account",
    "user": "iif(h.told_user = '', h.user, h.told_user)",
    "job": "iif(h.told_job = '', h.job, h.told_job)",
    "pool": "r.pool",
    "model": "r.model",
    "kind": "r.kind",
}
GROUPS = tuple(_DIMENSIONS)
"""What rows can be summed by."""
_NAMES = ", ".join(["h.key", *(_DIMENSIONS[name] for name in ("job", "namespace", "user", "team", "account"))])
"""Columns of a `Holder`: the word of a manager counts before that of hosts."""
VERSION = 3
_COLUMNS = ", ".join(f"{name} REAL NOT NULL" for name in _SUMS)
# A row of `holder` is a piece of work in the words of hosts: those that say the same of it have one row together, and
# those where its manager has shown it another one, `shown`. What its manager tells of it is beside them, there alone.
_HOLDER = """
CREATE TABLE holder (
    id INTEGER PRIMARY KEY, key TEXT NOT NULL, job TEXT NOT NULL, namespace TEXT NOT NULL, user TEXT NOT NULL,
    team TEXT NOT NULL, account TEXT NOT NULL, told_job TEXT NOT NULL DEFAULT '', told_user TEXT NOT NULL DEFAULT '',
    shown INTEGER NOT NULL DEFAULT 0, UNIQUE (key, job, namespace, user, shown)
) STRICT;
"""
_SCHEMA = f"""{_HOLDER}
CREATE TABLE gpu_day (
    day INTEGER NOT NULL, host TEXT NOT NULL, gpu TEXT NOT NULL, holder INTEGER NOT NULL, pool TEXT NOT NULL,
    model TEXT NOT NULL, kind TEXT NOT NULL, {_COLUMNS}, profile BLOB NOT NULL,
    PRIMARY KEY (day, host, gpu, holder)
) STRICT, WITHOUT ROWID;
CREATE TABLE closed_day (
    day INTEGER NOT NULL, pool TEXT NOT NULL, model TEXT NOT NULL, kind TEXT NOT NULL, holder INTEGER NOT NULL,
    {_COLUMNS}, profile BLOB NOT NULL,
    PRIMARY KEY (day, pool, model, kind, holder)
) STRICT, WITHOUT ROWID;
CREATE TABLE cursor (
    host TEXT NOT NULL, gpu TEXT NOT NULL, at_ms INTEGER NOT NULL, PRIMARY KEY (host, gpu)
) STRICT, WITHOUT ROWID;
CREATE TABLE late (host TEXT NOT NULL, day INTEGER NOT NULL, PRIMARY KEY (host, day)) STRICT, WITHOUT ROWID;
"""
_FROM = {
    version: f"""
ALTER TABLE holder RENAME TO holder_old;{_HOLDER}
INSERT INTO holder (id, {columns}, shown) SELECT id, {columns}, {told} != '' FROM holder_old;
DROP TABLE holder_old;
"""
    for version, columns, told in (
        (1, "key, job, namespace, user, team, account", "team || account"),
        (
            2,
            "key, job, namespace, user, team, account, told_job, told_user",
            "team || account || told_job || told_user",
        ),
    )
}
"""What brings a file of an earlier version up: in 1 all hosts had one word of a piece of work, in 2 what a manager told
of it was for all of them. What such a file has stays as it was told."""
_Words = tuple[str, str, str, str, bool]
"""What hosts say of a piece of work: its key, job, namespace and user; and whether its manager has shown it there."""


@dataclass(frozen=True, slots=True)
class Place:
    """What a GPU is, for sums: its pool, model and kind of capacity."""

    pool: str = ""
    model: str = ""
    kind: str = ""


@dataclass(frozen=True, slots=True)
class DayGroup:
    """Sums of one day, model and kind of capacity of what has the same values in `names`, in the order asked for.

    `held` is False for time that nobody holds: free, stranded, not seen.
    """

    day: int
    model: str
    kind: str
    names: tuple[str, ...]
    held: bool
    row: Row


@dataclass(frozen=True, slots=True)
class JobProfile:
    """How a holder used the cards of one model that it had to itself over some days."""

    holder: Holder
    model: str
    first_day: int
    last_day: int
    profile: Profile


class UsageTable:
    """Sums by day in a SQLite file, or in memory where `path` is None. Safe to use from several threads.

    A damaged file is put aside, as `<path>.damaged`, and a new one begun: `damaged` says so. A file that another
    process keeps is left to it, and the sums are in memory: `kept_elsewhere`. Raises InputError for a file of a newer
    version, or one that cannot be opened.
    """

    def __init__(self, path: Path | None) -> None:
        self._lock = threading.Lock()
        self._claim = None if path is None else _claim(path)
        self.kept_elsewhere = path is not None and self._claim is None
        path = None if self.kept_elsewhere else path
        self.damaged = False
        try:
            self._db = _opened(path)
        except InputError:
            self._give_up()
            raise
        except sqlite3.OperationalError as error:
            self._give_up()
            raise InputError("usage.file", str(path), f"cannot be opened: {error}", "give a file of its own") from None
        except sqlite3.DatabaseError:
            if path is None:
                raise
            path.replace(path.with_name(f"{path.name}.damaged"))
            self.damaged, self._db = True, _opened(path)
        self._shown: set[tuple[str, str]] = set()
        self._learn_numbers()

    def _learn_numbers(self) -> None:
        self._ids: dict[_Words, int] = {}
        self._of_day: dict[tuple[int, str], set[int]] = {}
        self._of_site, self._hosts = Counter[int](), Counter[int]()
        for day, host, number in self._db.execute("SELECT DISTINCT day, host, holder FROM gpu_day"):
            self._known(day, host).add(number)
            self._of_site[day] += 1
        shown = self._db.execute("SELECT id, key FROM holder WHERE shown")
        names: dict[int, str] = dict(shown.fetchall())
        self._shown |= {
            (host, names[one]) for (_, host), known in self._of_day.items() for one in known if one in names
        }

    def _known(self, day: int, host: str) -> set[int]:
        """The numbers of the holders that a day of a host has."""
        known = self._of_day.get((day, host))
        if known is None:
            known = self._of_day[day, host] = set()
            self._hosts[day] += 1
        return known

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """All that is done to the connection, or nothing, the numbers in memory among it."""
        with self._lock:
            try:
                with self._db:
                    self._db.execute("BEGIN IMMEDIATE")
                    yield self._db
            except BaseException:
                self._learn_numbers()
                raise

    def _give_up(self) -> None:
        """Let another process have the file."""
        if self._claim is not None:
            os.close(self._claim)
            self._claim = None

    def close(self) -> None:
        """Let go of the file; safe to repeat."""
        with self._lock:
            self._db.close()
            self._give_up()

    # ---------------------------------------------------------------------- writing

    def add(
        self,
        rows: Mapping[RowKey, Row],
        holders: Said,
        cursors: Mapping[tuple[str, str], int],
        late: Collection[tuple[str, int]],
        place_of: Callable[[RowKey], Place],
    ) -> Counter[str]:
        """Add `rows` to what is there, with the instants up to which GPUs are counted, and put the hosts and days
        `late` on the list of those to count anew: all or nothing.

        Returns how many rows and late days came for a day that is closed, and were left out (`CLOSED_DAY`), and how
        many rows lost their holder (`MANY_HOLDERS`, `SITE_HOLDERS`).
        """
        with self._transaction():
            lost = self._merge(rows, holders, place_of)
            lost[CLOSED_DAY] += self._mark_late(late)
            self._db.executemany(
                "INSERT OR REPLACE INTO cursor VALUES (?, ?, ?)", [(*key, at_ms) for key, at_ms in cursors.items()]
            )
        return lost

    def replace(
        self,
        host: str,
        days: Collection[int],
        rows: Mapping[RowKey, Row],
        holders: Said,
        place_of: Callable[[RowKey], Place],
    ) -> None:
        """Put `rows` in the place of all that is there of `days` of a host, which are late no more then."""
        with self._transaction():
            for day in days:
                self._db.execute("DELETE FROM gpu_day WHERE day = ? AND host = ?", (day, host))
                self._db.execute("DELETE FROM late WHERE day = ? AND host = ?", (day, host))
            self._merge({key: row for key, row in rows.items() if key.day in days}, holders, place_of)

    def _merge(self, rows: Mapping[RowKey, Row], holders: Said, place_of: Callable[[RowKey], Place]) -> Counter[str]:
        closed, lost = self._closed_to(), Counter[str]()
        for key, row in rows.items():
            if key.day <= closed:
                lost[CLOSED_DAY] += 1
                continue
            number, why = self._number(key, holders)
            if why:
                lost[why] += 1
            found = self._db.execute(_ONE, (key.day, key.host, key.gpu, number)).fetchone()
            if found is not None:
                kept = _row(found)
                kept.merge(row)
                row = kept
            place = place_of(key)
            names = (place.pool, place.model, place.kind)
            self._db.execute(_PUT, (key.day, key.host, key.gpu, number, *names, *_values(row)))
        return lost

    def _number(self, key: RowKey, holders: Said) -> tuple[int, str]:
        """The number that a row is booked to, and why it is not its own holder's, empty where it is: a host that has
        its share of a day's holders has the rest as one."""
        known = self._known(key.day, key.host)
        one = holders.get((key.host, key.holder), Holder(key.holder))
        words = _words(one, not self._shown.isdisjoint({(key.host, one.key), (_ALL, one.key)}))
        number = self._id_of(words)
        why = "" if number in known or one.key == NOBODY else self._no_room(key.day, len(known))
        if why:
            words = _words(Holder(OTHER, OTHER_WORK))
            number = self._id_of(words)
        if number is None:
            number = self._made(words)
        self._of_site[key.day] += number not in known
        known.add(number)
        return number, why

    def _no_room(self, day: int, has: int) -> str:
        """Why a host that `has` so many holders on a day may not have one more; empty where it may."""
        if has >= MOST_HOLDERS:
            return MANY_HOLDERS
        full = self._of_site[day] >= MOST_OF_SITE
        return SITE_HOLDERS if full and has >= MOST_OF_SITE // self._hosts[day] else ""

    def _made(self, words: _Words) -> int:
        """The number of a holder that is new on file."""
        made = self._db.execute(
            "INSERT INTO holder (key, job, namespace, user, shown, team, account) VALUES (?, ?, ?, ?, ?, '', '')", words
        )
        number = self._ids[words] = int(made.lastrowid or 0)
        return number

    def learn(self, told: Iterable[Holder], where: Mapping[str, Collection[str]] = MappingProxyType({})) -> None:
        """Take what managers tell of holders on file, for the hosts where they show them alone, `where` by key; one
        that is not in it is shown on all. There its job and user are those that hosts said no more, team and account
        stay what they were first. Of namespaces only hosts speak."""
        with self._transaction():
            places: dict[str, list[int]] = {}
            for day, host in self._of_day:
                places.setdefault(host, []).append(day)
            for one in told:
                hosts = where.get(one.key, places)
                self._show(one.key, [(day, host) for host in hosts for day in places.get(host, ())])
                self._shown |= {(host, one.key) for host in where.get(one.key, (_ALL,))}
                self._db.execute(
                    "UPDATE holder SET told_job = iif(?1 = '', told_job, ?1), told_user = iif(?2 = '', told_user, ?2),"
                    " team = iif(team = '', ?3, team), account = iif(account = '', ?4, account)"
                    " WHERE key = ?5 AND shown",
                    (one.job, one.user, one.team, one.account, one.key),
                )

    def _show(self, key: str, places: Iterable[tuple[int, str]]) -> None:
        """Book what hosts said of a holder, on days of hosts where its manager shows it, to it as shown there."""
        said = self._db.execute("SELECT id, job, namespace, user FROM holder WHERE key = ? AND NOT shown", (key,))
        numbers = {number: (key, *names, True) for number, *names in said}
        for place in places:
            known = self._of_day[place]
            for number in known & numbers.keys():
                words: _Words = numbers[number]
                shown = self._id_of(words) or self._made(words)
                self._rebook(*place, number, shown)
                known.remove(number)
                self._of_site[place[0]] -= shown in known
                known.add(shown)

    def _rebook(self, day: int, host: str, number: int, to: int) -> None:
        """Book the rows that a host has of one holder on a day to another one."""
        query = f"SELECT gpu, pool, model, kind, {', '.join(_SUMS)}, profile FROM gpu_day"
        moved = self._db.execute(f"{query} WHERE day = ? AND host = ? AND holder = ?", (day, host, number)).fetchall()
        self._db.execute("DELETE FROM gpu_day WHERE day = ? AND host = ? AND holder = ?", (day, host, number))
        for gpu, pool, model, kind, *sums in moved:
            row, found = _row(sums), self._db.execute(_ONE, (day, host, gpu, to)).fetchone()
            if found is not None:
                row.merge(_row(found))
            self._db.execute(_PUT, (day, host, gpu, to, pool, model, kind, *_values(row)))

    def _id_of(self, words: _Words) -> int | None:
        """The number of a holder on file; those of the last days are in memory, all others are looked up."""
        if words not in self._ids:
            found = self._db.execute(
                "SELECT id FROM holder WHERE key = ? AND job = ? AND namespace = ? AND user = ? AND shown = ?", words
            ).fetchone()
            if found is None:
                return None
            if len(self._ids) >= _MOST_IDS:
                self._ids.clear()
            self._ids[words] = int(found[0])
        return self._ids[words]

    def words_of(self, key: str) -> int:
        """How many rows a holder has in the words of hosts; 0 where it is not on file."""
        return int(self._read("SELECT count(*) FROM holder WHERE key = ?", (key,))[0][0])

    def _mark_late(self, late: Collection[tuple[str, int]]) -> int:
        closed = self._closed_to()
        open_ = [(host, day) for host, day in late if day > closed]
        self._db.executemany("INSERT OR IGNORE INTO late VALUES (?, ?)", open_)
        return len(late) - len(open_)

    def forget_cursors(self, gone: Iterable[tuple[str, str]]) -> None:
        """Remove the instants of GPUs, by host and UUID, that have left."""
        with self._transaction():
            self._db.executemany("DELETE FROM cursor WHERE host = ? AND gpu = ?", list(gone))

    def close_days(self, before_day: int, keep_from: int) -> int:
        """Sum up days before `before_day` by pool, model, kind and holder, and remove those before `keep_from`.

        Returns how many days were closed. A day that is on the list of late ones is closed with the others: it is too
        old for the store to be asked again.
        """
        days = [day for (day,) in self._read("SELECT DISTINCT day FROM gpu_day WHERE day < ?", (before_day,))]
        for day in days:
            with self._transaction():
                self._close(day)
                self._db.execute(f"DELETE FROM late WHERE day <= {int(day)}")
        with self._transaction():
            gone = self._db.execute("DELETE FROM closed_day WHERE day < ?", (keep_from,)).rowcount
            if days:
                old = (before_day - PROFILE_DAYS,)
                self._db.execute("UPDATE closed_day SET profile = x'' WHERE day < ? AND length(profile) > 0", old)
            if days:
                self._shown.clear()
            if gone or days:
                self._drop_holders()
        return len(days)

    def _close(self, day: int) -> None:
        sums: dict[tuple[str, str, str, int], Row] = {}
        query = f"SELECT {', '.join(_SUMS)}, profile, pool, model, kind, holder FROM gpu_day WHERE day = ?"
        for found in self._db.execute(query, (day,)):
            sums.setdefault(found[-4:], Row()).merge(_row(found))
        self._db.executemany(
            f"INSERT OR REPLACE INTO closed_day VALUES (?, ?, ?, ?, ?, {_marks(len(_SUMS) + 1)})",
            [(day, *key, *_values(row)) for key, row in sums.items()],
        )
        self._db.execute("DELETE FROM gpu_day WHERE day = ?", (day,))

    def _drop_holders(self) -> None:
        self._db.execute(
            "DELETE FROM holder WHERE id NOT IN (SELECT holder FROM gpu_day UNION SELECT holder FROM closed_day)"
        )
        self._learn_numbers()

    def _closed_to(self) -> int:
        return int(self._db.execute("SELECT coalesce(max(day), -1) FROM closed_day").fetchone()[0])

    # ---------------------------------------------------------------------- reading

    def cursors(self) -> dict[tuple[str, str], int]:
        """The instant up to which each GPU is counted, by host and UUID."""
        return {(host, gpu): at_ms for host, gpu, at_ms in self._read("SELECT host, gpu, at_ms FROM cursor")}

    def late(self) -> list[tuple[str, int]]:
        """Hosts and days to count anew, the oldest first."""
        return [(host, day) for host, day in self._read("SELECT host, day FROM late ORDER BY day, host")]

    def first_day(self) -> int | None:
        """The first day on file; None where there is none."""
        query = "SELECT min(day) FROM (SELECT min(day) AS day FROM gpu_day UNION ALL SELECT min(day) FROM closed_day)"
        found: int | None = self._read(query)[0][0]
        return found

    def groups(
        self, first_day: int, last_day: int, by: Sequence[str], whose: Collection[str] | None = None
    ) -> list[DayGroup]:
        """Sums of the days from `first_day` to `last_day` by day, model, kind and what `by` names, of `GROUPS`.

        `whose` are the namespaces and accounts whose work alone counts; None: everybody's.
        """
        only, names_of = _only(whose)
        names = "".join(f", {_DIMENSIONS[name]}" for name in by)
        numbers = ", ".join(str(place + 1) for place in range(4 + len(by)))
        sums = ", ".join(f"sum(r.{name})" for name in _SUMS)
        found = self._read(
            f"SELECT r.day, r.model, r.kind, h.key != ''{names}, {sums} FROM ({_BOTH}) r"
            f" JOIN holder h ON h.id = r.holder{only} GROUP BY {numbers}",
            (first_day, last_day, first_day, last_day, *names_of),
        )
        end = 4 + len(by)
        return [
            DayGroup(one[0], one[1], one[2], tuple(one[4:end]), bool(one[3]), _row((*one[end:], b""))) for one in found
        ]

    def holders(self) -> list[Holder]:
        """Everybody on file."""
        return [Holder(*one) for one in self._read(f"SELECT {_NAMES} FROM holder h")]

    def profiles(self, first_day: int, last_day: int, whose: Collection[str] | None = None) -> list[JobProfile]:
        """The profile of each holder and model over some days, by key, then model; `whose` as for `groups`.

        Where hosts differ in what they say of a holder, each word is one for itself.
        """
        only, names_of = _only(whose)
        found = self._read(
            f"SELECT {_NAMES}, r.model, r.day, r.profile FROM ({_BOTH}) r"
            " JOIN holder h ON h.id = r.holder AND length(r.profile) > 0 AND h.key NOT IN ('', '?', '+')"
            f"{only} ORDER BY h.key, r.model, r.day",
            (first_day, last_day, first_day, last_day, *names_of),
        )
        made: dict[tuple[Holder, str], JobProfile] = {}
        for *names, model, day, raw in found:
            holder, profile = Holder(*names), Profile.from_bytes(raw)
            before = made.get((holder, model))
            if before is not None:
                profile.merge(before.profile)
            first = day if before is None else before.first_day
            made[holder, model] = JobProfile(holder, model, first, day, profile)
        return list(made.values())

    def _read(self, query: str, values: Sequence[object] = ()) -> list[Any]:
        with self._lock:
            return self._db.execute(query, values).fetchall()


def _words(one: Holder, shown: bool = False) -> _Words:
    return one.key, one.job, one.namespace, one.user, shown


def _only(whose: Collection[str] | None) -> tuple[str, list[str]]:
    """The clause for the work of these namespaces and accounts, and its values; without `whose` there is none."""
    if whose is None:
        return "", []
    marks, names = _marks(len(whose)), sorted(whose)
    return f" WHERE h.key != '' AND (h.namespace IN ({marks}) OR h.account IN ({marks}))", [*names, *names]


def _claim(path: Path) -> int | None:
    """The descriptor that holds the file for this process until it is closed; None where another one has it."""
    make_folder(path.parent)
    lock = path.with_name(f"{path.name}.lock")
    make_private(lock)
    try:
        file = os.open(lock, os.O_WRONLY | os.O_CLOEXEC)
    except OSError as error:
        problem = f"cannot be opened: {error.strerror}"
        raise InputError("usage.file", str(path), problem, "give a file in a folder that can be written") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    return file


def _opened(path: Path | None) -> sqlite3.Connection:
    """A connection to a file with the tables. Raises InputError, and sqlite3.DatabaseError."""
    if path is not None:
        make_private(path)
    if path is None:
        db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    else:
        db = connect(path)
    try:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        version = int(db.execute("PRAGMA user_version").fetchone()[0])
        if version > VERSION:
            raise InputError("usage.file", str(path), f"has version {version}", "use the Tocsin that wrote it")
        if path is not None:
            _look_through(db, version)
        if version < VERSION:
            with db:
                db.execute("BEGIN IMMEDIATE")
                for statement in _FROM.get(version, _SCHEMA).split(";"):
                    db.execute(statement)
                db.execute(f"PRAGMA user_version = {VERSION}")
    except (sqlite3.DatabaseError, InputError):
        db.close()
        raise
    return db


def _look_through(db: sqlite3.Connection, version: int) -> None:
    """Raise sqlite3.DatabaseError where a file of a version is not what Tocsin writes: what it has is a stranger's
    word, a view that never ends or a trigger among it."""
    found = _shapes(db)
    if version < 1 and not found.keys() & _shapes_of(VERSION).keys():
        return
    if version < 1 or found != _shapes_of(version):
        raise sqlite3.DatabaseError("its tables are others")
    if db.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
        raise sqlite3.DatabaseError("pages are damaged")
    if not all(_is_text(db, table, columns) for table, columns in found.items()):
        raise sqlite3.DatabaseError("texts are damaged")
    if any(db.execute(f"SELECT 1 FROM {table} WHERE {wrong}").fetchone() for table, wrong in _WRONG):
        raise sqlite3.DatabaseError("days or sums are damaged")


def _is_text(db: sqlite3.Connection, table: str, columns: Sequence[tuple[object, ...]]) -> bool:
    """Whether what a table has of texts can be read."""
    texts = ", ".join(str(one[0]) for one in columns if one[1:2] == ("TEXT",))
    try:
        for _ in db.execute(f"SELECT {texts} FROM {table}"):
            pass
    except sqlite3.OperationalError as error:
        if "decode" not in str(error):
            raise
        return False
    return True


_NO_SUM = " OR ".join(f"NOT abs({name}) < 1e18" for name in _SUMS)
_LAST_DAY = 100_000
"""No day of anybody's readings: the year 2243."""
_WRONG = (
    *((table, f"day NOT BETWEEN 0 AND {_LAST_DAY}") for table in ("gpu_day", "closed_day", "late")),
    ("cursor", f"at_ms NOT BETWEEN 0 AND {_LAST_DAY * DAY}"),
    *((table, _NO_SUM) for table in ("gpu_day", "closed_day")),
)
"""What no row has."""


def _shapes(db: sqlite3.Connection) -> dict[str, list[tuple[object, ...]]]:
    """The columns of each table, with whether it is strict; of what is no table nothing."""
    found: dict[str, list[tuple[object, ...]]] = {}
    query = "SELECT type, name FROM sqlite_master WHERE name NOT LIKE 'sqlite^_%' ESCAPE '^'"
    for kind, name in db.execute(query).fetchall():
        columns = 'SELECT name, type, "notnull", pk, hidden FROM pragma_table_xinfo(?)'
        strict = db.execute("SELECT strict FROM pragma_table_list WHERE name = ?", (name,)).fetchone()
        found[name] = [*db.execute(columns, (name,)).fetchall(), strict] if kind == "table" else []
    return found


def _shapes_of(version: int) -> dict[str, list[tuple[object, ...]]]:
    """Those of a file of a version."""
    db = sqlite3.connect(":memory:")
    try:
        db.executescript(_SCHEMA)
        found = _shapes(db)
    finally:
        db.close()
    found["holder"] = [one for one in found["holder"] if _SINCE.get(str(one[0]), 0) <= version]
    return found


_SINCE = {"told_job": 2, "told_user": 2, "shown": 3}
"""The version from which on a holder has a column."""


_ONE = f"SELECT {', '.join(_SUMS)}, profile FROM gpu_day WHERE day = ? AND host = ? AND gpu = ? AND holder = ?"
_PUT = f"INSERT OR REPLACE INTO gpu_day VALUES (?, ?, ?, ?, ?, ?, ?, {', '.join('?' * (len(_SUMS) + 1))})"
_PART = f"SELECT day, pool, model, kind, holder, {', '.join(_SUMS)}, profile FROM"
_BOTH = f"{_PART} gpu_day WHERE day BETWEEN ? AND ? UNION ALL {_PART} closed_day WHERE day BETWEEN ? AND ?"


def _marks(count: int) -> str:
    return ", ".join("?" * count)


def _values(row: Row) -> tuple[object, ...]:
    return (*row.seconds, row.joules, row.unmetered_s, b"" if row.profile is None else row.profile.to_bytes())


def _row(found: Sequence[object]) -> Row:
    """Inverse of `_values`; what follows in `found` is left out."""
    sums = [float(value) for value in found[: len(_SUMS)]]  # type: ignore[arg-type]
    raw = found[len(_SUMS)]
    profile = Profile.from_bytes(raw) if isinstance(raw, bytes) and raw else None
    return Row(sums[: len(Use)], sums[len(Use)], sums[len(Use) + 1], profile)

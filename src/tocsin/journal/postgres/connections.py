"""The one way to PostgreSQL: connections that give up in time, and answers as rows.

Every call ends within its seconds, whatever becomes of the network: a server that was cut off answers nothing, and a
client that waits for it would be no brain any more.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tocsin.config.settings import JournalSettings
from tocsin.domain.errors import InputError, Unavailable, install_extra

if TYPE_CHECKING:
    import psycopg

Answer = list[tuple[Any, ...]]
Ask = Callable[..., Answer]
"""Runs one statement with its values and gives its rows."""
READ_SECONDS = 20.0
"""Longest that one statement of a reader may take: a page of entries takes milliseconds."""
LOCK_SECONDS = 2.0
"""Longest that a statement waits for another transaction's lock."""
IDLE_SECONDS = 5.0
"""Longest that a transaction may wait for its next statement; the database ends it then."""
MOST_IDLE = 4
"""Connections of readers that are kept for the next one."""
SPENT = "TB001"
"""The state of the errors by which a fleet's budget refuses (`fleet_schema`)."""
_MISSING = ("3F000", "42P01", "42883")
"""No such schema, table or function (PostgreSQL, appendix A)."""
_PASSING = ("08", "25", "40", "53", "55", "57")
"""Classes of errors that a later try may not meet: connection, state of the transaction, rollback, resources, locks,
shutdown."""


_DISTRUSTED = ("certificate verify failed", "does not match host name", "root certificate file")
"""What libpq says where it does not trust the server."""

_ESCAPE = re.compile(r"\\\\|\\u0000")


def jsonb(value: object) -> str:
    """`value` as JSON that PostgreSQL takes: a zero byte, which it refuses with all that is around it, becomes U+FFFD.
    One sender's odd name must not keep a cell from telling of itself."""
    return _ESCAPE.sub(lambda found: found[0].replace("\\u0000", "\\ufffd"), json.dumps(value))


class DatabaseTrouble(Unavailable):
    """What is wrong with the database; one of the kinds below."""


class DatabaseAway(DatabaseTrouble):
    """It does not answer, or ends or cannot begin its work now: a later try may do. Whether a statement that changes
    something was carried out is not known."""


class DatabaseRefused(DatabaseTrouble):
    """It answers and does not do it, nor will it at the next try."""


class NotThere(DatabaseRefused):
    """It has no such table: there is no journal of that cell."""


class NoRoom(DatabaseRefused):
    """A limit of the fleet leaves no room for what was to be taken; the statement has changed nothing."""


class Line:
    """One connection, made when it is first needed and again after it broke; for one thread at a time.

    A statement outside `steady` is a transaction of its own: no lock outlives it, also where this process is stopped.
    """

    def __init__(self, url: str, schema: str, seconds: float) -> None:
        self._url = url
        self._schema = schema
        self.seconds = seconds
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None

    def ask(self, query: str, values: Sequence[object] = ()) -> Answer:
        """The rows of one statement; without `values` it may be several. Raises DatabaseTrouble, at the latest
        when its seconds are over."""
        library = _psycopg()
        try:
            connection = self._connection or self._open()
            with _cut_after(self.seconds, connection.fileno()):
                cursor = connection.execute(query.encode(), tuple(values) or None)
                return cursor.fetchall() if cursor.description else []
        except library.Error as error:
            self.close()
            raise _as_trouble(error) from None
        except OSError as error:
            self.close()
            raise DatabaseAway(f"the database: {error}") from None

    @contextlib.contextmanager
    def steady(self) -> Iterator[Ask]:
        """One state of the database for all that is asked within."""
        self.ask("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            yield self.ask
        except BaseException:
            # A connection in the middle of a transaction is of no use to the next one.
            self.close()
            raise
        # All was read by now: that the database ended the transaction of one that came late to its end takes nothing.
        with contextlib.suppress(DatabaseTrouble):
            self.ask("COMMIT")

    def notified(self, channel: str, seconds: float) -> bool:
        """Wait for a notification, `seconds` at most; whether one came. Raises DatabaseTrouble."""
        library = _psycopg()
        self.ask(f'LISTEN "{channel}"')
        connection = self._connection
        if connection is None:
            return False
        try:
            with _cut_after(seconds + self.seconds, connection.fileno()):
                return any(True for _ in connection.notifies(timeout=seconds, stop_after=1))
        except (library.Error, OSError) as error:
            self.close()
            raise _as_trouble(error) from None

    def cut(self) -> None:
        """From another thread: whoever waits for an answer or a notification is told at once that there is none."""
        connection = self._connection
        if connection is not None:
            with contextlib.suppress(Exception):
                _shut(connection.fileno())

    def close(self) -> None:
        """Safe to repeat."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.close()

    def _open(self) -> psycopg.Connection[tuple[Any, ...]]:
        library = _psycopg()
        made: psycopg.Connection[tuple[Any, ...]] = library.connect(
            self._url, autocommit=True, prepare_threshold=None, connect_timeout=max(2, round(self.seconds))
        )
        self._connection = made
        settings = {
            "search_path": f'"{self._schema}"',
            "statement_timeout": f"{round(self.seconds * 1000)}",
            "lock_timeout": f"{round(min(self.seconds, LOCK_SECONDS) * 1000)}",
            # A transaction of a process that was stopped in it must hold up nobody.
            "idle_in_transaction_session_timeout": f"{round(min(self.seconds, IDLE_SECONDS) * 1000)}",
            "client_min_messages": "warning",
            "standard_conforming_strings": "on",
        }
        with _cut_after(self.seconds, made.fileno()):
            for name, value in settings.items():
                made.execute(b"SELECT set_config(%s, %s, false)", (name, value))
            # An entry is durable when its statement is answered, whatever the database's default is.
            made.execute(
                b"SELECT set_config('synchronous_commit', 'on', false) "
                b"WHERE current_setting('synchronous_commit') = 'off'"
            )
        return made


class CellDatabase:
    """The database that `url` names, and one schema in it."""

    def __init__(self, url: str, schema: str) -> None:
        self.url = url
        self.schema = schema
        self.name = f"{_shown(url)}, schema {schema}"
        self._lock = threading.Lock()
        self._idle: list[Line] = []

    def line(self, seconds: float = READ_SECONDS) -> Line:
        """A connection of the caller's own."""
        return Line(self.url, self.schema, seconds)

    @contextlib.contextmanager
    def steady(self) -> Iterator[Ask]:
        """One state of the database to read from."""
        with self._lock:
            line = self._idle.pop() if self._idle else None
        if line is not None:
            try:
                line.ask("SELECT 1")
            except DatabaseTrouble:
                # It broke while it lay idle, as all of them do when a server starts anew.
                line = None
        line = line or self.line()
        with line.steady() as ask:
            yield ask
        with self._lock:
            kept = len(self._idle) < MOST_IDLE
            if kept:
                self._idle.append(line)
        if not kept:
            line.close()

    def close(self) -> None:
        """Close what lies idle; safe to repeat."""
        with self._lock:
            idle, self._idle = self._idle, []
        for line in idle:
            line.close()


def open_database(settings: JournalSettings) -> CellDatabase:
    """The database of the cell's journal that `settings` name. Raises InputError for an address that is none, and
    Unavailable where the library lacks."""
    return CellDatabase(settings.url.get_secret_value(), f"tocsin_{settings.cell}")


def _psycopg() -> Any:
    try:
        import psycopg as library
    except ImportError as error:
        raise Unavailable(f"journal.url needs psycopg ({error}); {install_extra('postgres')}") from None
    return library


def _as_trouble(error: Exception) -> DatabaseTrouble:
    text, state = " ".join(str(error).split()) or type(error).__name__, str(getattr(error, "sqlstate", "") or "")
    if state in _MISSING:
        return NotThere(f"the database: {text}")
    if state == SPENT:
        return NoRoom(text.partition(" CONTEXT:")[0])
    if not state and any(one in text for one in _DISTRUSTED):
        remedy = "sslrootcert in journal.url must name the authority of its certificate, and the host the name in it"
        return DatabaseRefused(f"the database is not trusted: {text}; {remedy}")
    passes = isinstance(error, _psycopg().OperationalError | _psycopg().InterfaceError) or state[:2] in _PASSING
    return (DatabaseAway if passes else DatabaseRefused)(f"the database: {text}")


def _shown(url: str) -> str:
    """`url` for people: without its password. Raises InputError where it is none."""
    library = _psycopg()
    try:
        parts = library.conninfo.conninfo_to_dict(url)
    except library.Error as error:
        remedy = "write postgresql://USER@HOST:5432/DATABASE?sslmode=verify-full"
        raise InputError("journal.url", "...", f"is no address of a database: {str(error).strip()}", remedy) from None
    host, port = parts.get("host") or "local socket", parts.get("port") or 5432
    return f"PostgreSQL {host}:{port}/{parts.get('dbname') or parts.get('user') or ''}"


def _shut(handle: int) -> None:
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(handle)) as sock:
        sock.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def _cut_after(seconds: float, handle: int) -> Iterator[None]:
    """Shut the socket `handle` down where the block takes longer: whoever waits for it is told at once."""

    # A second more: the server itself ends a statement in time, and says so better.
    timer = threading.Timer(seconds + 1.0, _shut, (handle,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()

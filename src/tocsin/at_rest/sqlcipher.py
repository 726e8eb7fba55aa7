"""SQLCipher as `sqlite3`: its connections raise the errors of that module, so that nothing else has to know of them."""

from __future__ import annotations

import sqlite3
from types import TracebackType
from typing import Any, NoReturn

from sqlcipher3 import dbapi2


def _raise(error: dbapi2.Error) -> NoReturn:
    told: Exception = getattr(sqlite3, type(error).__name__, sqlite3.DatabaseError)(*error.args)
    for name in ("sqlite_errorcode", "sqlite_errorname"):
        if (value := getattr(error, name, None)) is not None:
            setattr(told, name, value)
    raise told from None


class Cursor(dbapi2.Cursor):  # type: ignore[misc]
    """A cursor that raises what sqlite3 would."""

    def execute(self, *args: Any) -> Cursor:
        """As of sqlite3."""
        try:
            super().execute(*args)
        except dbapi2.Error as error:
            _raise(error)
        return self

    def executemany(self, *args: Any) -> Cursor:
        """As of sqlite3."""
        try:
            super().executemany(*args)
        except dbapi2.Error as error:
            _raise(error)
        return self

    def executescript(self, script: str) -> Cursor:
        """As of sqlite3."""
        try:
            super().executescript(script)
        except dbapi2.Error as error:
            _raise(error)
        return self

    def fetchone(self) -> Any:
        """As of sqlite3."""
        try:
            return super().fetchone()
        except dbapi2.Error as error:
            _raise(error)

    def fetchmany(self, size: int = 1) -> list[Any]:
        """As of sqlite3."""
        try:
            return list(super().fetchmany(size))
        except dbapi2.Error as error:
            _raise(error)

    def fetchall(self) -> list[Any]:
        """As of sqlite3."""
        try:
            return list(super().fetchall())
        except dbapi2.Error as error:
            _raise(error)

    def __next__(self) -> Any:
        try:
            return super().__next__()
        except dbapi2.Error as error:
            _raise(error)


class Connection(dbapi2.Connection):  # type: ignore[misc]
    """A connection that raises what sqlite3 would."""

    def cursor(self, factory: type[Cursor] = Cursor) -> Cursor:
        """As of sqlite3."""
        try:
            made: Cursor = super().cursor(factory)
        except dbapi2.Error as error:
            _raise(error)
        return made

    def commit(self) -> None:
        """As of sqlite3."""
        try:
            super().commit()
        except dbapi2.Error as error:
            _raise(error)

    def rollback(self) -> None:
        """As of sqlite3."""
        try:
            super().rollback()
        except dbapi2.Error as error:
            _raise(error)

    def backup(self, target: Connection, **options: Any) -> None:
        """As of sqlite3; `target` must be of this kind, too."""
        try:
            super().backup(target, **options)
        except dbapi2.Error as error:
            _raise(error)

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # By the methods above, so that a commit that fails raises what sqlite3 would.
        if kind is not None:
            self.rollback()
            return
        try:
            self.commit()
        except sqlite3.Error:
            self.rollback()
            raise


def connect(name: str, **options: Any) -> Connection:
    """A connection without a key yet; `options` are those of sqlite3."""
    try:
        made: Connection = dbapi2.connect(name, factory=Connection, **options)
    except dbapi2.Error as error:
        _raise(error)
    # Its log of a wrong key on standard error says no more than the error itself.
    made.execute("PRAGMA cipher_log_level = NONE")
    return made

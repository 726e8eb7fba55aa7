"""Encrypting the state that is there, or with another key, while neither brain nor agent runs."""

from __future__ import annotations

import fcntl
import sqlite3
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from tocsin.at_rest.convert import convert_blob, convert_database
from tocsin.at_rest.keys import RING, StateKey, header_of, is_header
from tocsin.config.settings import Settings, StoreKind
from tocsin.domain.errors import Conflict, InputError
from tocsin.journal.files import lock
from tocsin.journal.verify import verify
from tocsin.runtime.state_files import Form, StateFile, agent_files, brain_files


def reseal(settings: Settings, to: StateKey | None, seal: bytes = b"") -> tuple[int, list[Path]]:
    """Bring every file of the state to the key `to`, plain where that is None; `RING` has the keys that read them.

    What is so already stays, so that a run that was cut off is gone on with. `seal` is the key of the journal's seal:
    the chain is checked before and after. Returns how many files were written, and what was put aside earlier and
    stays as it is. Raises Conflict where a program has a file open, and InputError.
    """
    files = _existing([*brain_files(settings), *agent_files(settings)])
    with ExitStack() as held:
        path = settings.journal.path
        own = not settings.journal.url.get_secret_value() and path.exists()
        if own:
            held.enter_context(lock(path))
            _check(path, seal)
        written = _segments(settings, to) if settings.store.kind == StoreKind.SQLITE else 0
        for file in files:
            if file.form in (Form.DATABASE, Form.BLOB) and not _is_by(file.path, to):
                _convert(file, to)
                written += 1
        _forget_first_page(settings.store.path)
        if own:
            _check(path, seal)
    remains = [file.path for file in files if file.form is Form.REMAINS and not _is_by(file.path, to)]
    return written, remains


def _forget_first_page(store: Path) -> None:
    """What is kept of the store's first page is of the file as it was; the next start keeps it again."""
    kept = store.with_name(store.name + ".head")
    if kept.exists():
        kept.write_bytes(b"")


def _existing(files: Sequence[StateFile]) -> list[StateFile]:
    return [file for file in files if file.path.exists() and file.path.stat().st_size]


def _is_by(path: Path, key: StateKey | None) -> bool:
    start = header_of(path)
    return not is_header(start) if key is None else key.made(start)


def _convert(file: StateFile, to: StateKey | None) -> None:
    try:
        if file.form is Form.DATABASE:
            convert_database(file.path, to, file.page_bytes)
        else:
            convert_blob(file.path, to)
    except sqlite3.OperationalError as error:
        raise Conflict(f"{file.path} is in use, or its disk takes nothing ({error}); stop what uses it first") from None
    except sqlite3.DatabaseError as error:
        raise InputError("file", str(file.path), f"cannot be read: {error}", "restore a backup of it first") from None


def _check(path: Path, seal: bytes) -> None:
    found = verify(path, seal)
    if not found.ok:
        raise InputError("journal", str(path), found.problem, "restore it from a backup")


def _segments(settings: Settings, to: StateKey | None) -> int:
    """Write the store's segments anew; its database comes later, so that it still names the key that reads them."""
    # They bring the libraries of the store, which an agent goes without.
    from tocsin.store.embedded.database import locked
    from tocsin.store.embedded.store import SqliteStore

    path = settings.store.path
    if not path.exists():
        return 0
    assert RING.first() == to
    locked(path, ".lock", fcntl.LOCK_EX).close()
    with closing(SqliteStore(path)) as store:
        store.init()
        return store.reseal()

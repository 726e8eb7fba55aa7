"""Files that are replaced whole: whoever reads sees the old content or the new, and a power loss keeps one of the two.

The content is written and synced under a name of its own in the same folder, then renamed; the folder is synced last,
because a rename that is only in the page cache can be undone by a power loss. A process that is killed before the
rename leaves `.NAME.xxxxxxxx.new` behind, which nothing reads.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

PRIVATE = 0o600
"""Mode of what programs keep for themselves: its owner may read and write it, nobody else, whatever the umask."""
SUFFIX = ".new"
"""Suffix of the name a file has until it is whole."""


@contextmanager
def atomic_file(path: Path, mode: int = PRIVATE, *, durable: bool = True) -> Iterator[BinaryIO]:
    """A file to write that takes the place of `path` when the block ends; when the block fails, `path` is unchanged.

    `mode` is limited by the umask, as that of any new file. Without `durable` a power loss may bring the old content
    back, whole. The folder of `path` must exist. Raises OSError.
    """
    # A name of its own, opened exclusively: two processes that write at once each rename a whole file.
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}{SUFFIX}")
    try:
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(path.absolute().parent)


def write_atomically(path: Path, content: str | bytes, mode: int = PRIVATE, *, durable: bool = True) -> None:
    """Put `content` in place of what `path` holds; durable on return, as `atomic_file` says. Text is UTF-8. Raises
    OSError."""
    with atomic_file(path, mode, durable=durable) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def make_private(path: Path) -> None:
    """Create the empty file `path` for its owner alone, before a library opens it that knows no modes.

    A file that is there is closed to all but its owner and group. SQLite gives the files beside a database the mode of
    the database; those of an earlier run are closed too. What cannot be done here is told by who opens the file.
    """
    with suppress(OSError):
        # Never one that is there: to close it would end the locks that SQLite holds on it in this process.
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE))
    for suffix in ("", "-wal", "-shm"):
        beside = path.with_name(path.name + suffix)
        with suppress(OSError):
            mode = stat.S_IMODE(beside.stat().st_mode)
            if mode & stat.S_IRWXO:
                beside.chmod(mode & ~stat.S_IRWXO)


def make_folder(folder: Path) -> None:
    """Create `folder` and its missing parents; durable on return. Raises OSError."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` durable. Raises OSError."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

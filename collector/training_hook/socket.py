"""Opening the agent's Unix socket, and only where nobody else's is."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from pathlib import Path

from tocsin.domain.errors import Conflict, InputError

MODE = 0o666
"""Anybody on the node may connect: training runs under any user, and a peer can only speak of itself. Who wants less
puts the socket into a folder that only a group may enter."""
BACKLOG = 128

Inode = tuple[int, int]
"""Device and number of a file: which one stands at a path."""


def listen(path: Path) -> tuple[socket.socket, Inode]:
    """A listening SEQPACKET socket at `path`, and its file; a dead agent's leftover is replaced.

    A missing folder is made, open to all. Raises Conflict where another agent listens there, InputError where the path
    cannot be used.
    """
    _clear(path)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        _folder(path.parent)
        made.bind(str(path))
        path.chmod(MODE)
        made.listen(BACKLOG)
        made.setblocking(False)
        return made, _inode(path.lstat())
    except OSError as error:
        made.close()
        raise InputError(
            "agent.hook_socket",
            str(path),
            f"cannot be listened on ({error.strerror or error})",
            'name a path of up to 100 characters in a folder that the agent may write to, or "" to go without',
        ) from None


def remove(path: Path, inode: Inode) -> None:
    """Remove `path` where it is still the file `inode`: an agent that came after may have put its own there."""
    with contextlib.suppress(OSError):
        if _inode(path.lstat()) == inode:
            path.unlink()


def _inode(found: os.stat_result) -> Inode:
    return found.st_dev, found.st_ino


def _folder(path: Path) -> None:
    try:
        path.mkdir(parents=True)
    except FileExistsError:
        return
    # The agent's umask may be narrower than its socket is meant to be.
    path.chmod(0o755)


def _clear(path: Path) -> None:
    try:
        found = path.lstat()
    except OSError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise InputError("agent.hook_socket", str(path), "is there and no socket", "name another path")
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except OSError as error:
            if error.errno == errno.ECONNREFUSED:
                path.unlink(missing_ok=True)
            elif error.errno == errno.EAGAIN:
                raise _taken(path) from None
        else:
            raise _taken(path)


def _taken(path: Path) -> Conflict:
    return Conflict(f"agent.hook_socket = {str(path)!r}: another agent listens there; stop it or name another path")

"""Which processes stand behind a TCP port of this node: the listener and its descendants, from ``/proc``."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path

_LISTEN = "0A"
"""State of a listening socket in ``/proc/net/tcp``."""


def behind_port(port: int, proc: Path = Path("/proc")) -> frozenset[int]:
    """Processes that listen on `port` and all their descendants; empty where none is found or none may be looked into.

    A server often listens in one process and computes in children of it.
    """
    inodes = _inodes(port, proc)
    if not inodes:
        return frozenset()
    parents = _parents(proc)
    listening = {pid for pid in parents if _holds(proc / str(pid), inodes)}
    children: dict[int, list[int]] = defaultdict(list)
    for pid, parent in parents.items():
        children[parent].append(pid)
    found: set[int] = set()
    waiting = list(listening)
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting += children[pid]
    return frozenset(found)


def _inodes(port: int, proc: Path) -> set[str]:
    found = set()
    for name in ("tcp", "tcp6"):
        try:
            lines = (proc / "net" / name).read_text(encoding="ascii", errors="replace").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            cells = line.split()
            if len(cells) > 9 and cells[3] == _LISTEN and cells[1].rpartition(":")[2] == f"{port:04X}":
                found.add(cells[9])
    return found


def _parents(proc: Path) -> dict[int, int]:
    found = {}
    for entry in proc.iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text(encoding="utf-8", errors="replace")
                # The name in brackets may itself hold brackets and blanks.
                found[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
            except (OSError, ValueError, IndexError):
                continue
    return found


def _holds(process: Path, inodes: set[str]) -> bool:
    wanted = {f"socket:[{inode}]" for inode in inodes}
    try:
        with os.scandir(process / "fd") as entries:
            for entry in entries:
                try:
                    target = os.readlink(entry.path)  # noqa: PTH115  # Path.readlink would make a path of no file
                except OSError:
                    continue
                if target in wanted:
                    return True
    except OSError:
        return False
    return False

"""Files of a node below the folder where its root is mounted, read within bounds and never outside of it.

Links are followed as the node itself would: an absolute one begins at the node's root, not at that of this container.
Only regular files are opened: a pipe or a device in the place of one would hold up the reader.
"""

from __future__ import annotations

import os
import stat
from collections import deque
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from tocsin.collector.sysfs import entries

MOST_LINKS = 40
"""Links on the way to one file; as Linux has it (path_resolution(7))."""
MOST_NAMES = 20_000
"""Names of one folder that are looked at; a full /usr/lib64 has some thousands."""
_LONGEST_LINE = 8_192


class Node:
    """The files of the node whose root is `root`. Names of files begin without a slash."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def place(self, name: str) -> Path | None:
        """Where the file `name` of the node lies; None where links go round in circles."""
        todo, done, links = deque(PurePosixPath(name).parts), list[str](), 0
        while todo:
            part = todo.popleft()
            if part in ("/", "."):
                continue
            if part == "..":
                done = done[:-1]
                continue
            target = self._link(self.root.joinpath(*done, part))
            if target is None:
                done.append(part)
                continue
            links += 1
            if links > MOST_LINKS:
                return None
            if target.startswith("/"):
                done = []
            todo.extendleft(reversed(PurePosixPath(target).parts))
        return self.root.joinpath(*done)

    @staticmethod
    def _link(path: Path) -> str | None:
        try:
            return str(path.readlink())
        except (OSError, ValueError):
            return None

    def text(self, name: str, most: int = 65_536) -> str | None:
        """The first `most` bytes of a file as text; None where there is none that can be read."""
        made = b""
        for piece in self._pieces(name, most):
            made += piece
        return made.decode("utf-8", errors="replace") if made else None

    def lines(self, name: str, most: int) -> Iterator[str]:
        """Lines of a file within its first `most` bytes; of a longer line than any that counts, the beginning."""
        rest = b""
        for piece in self._pieces(name, most):
            *whole, rest = (rest + piece).split(b"\n")
            for line in whole:
                yield line[:_LONGEST_LINE].decode("utf-8", errors="replace")
            rest = rest[:_LONGEST_LINE]
        if rest:
            yield rest.decode("utf-8", errors="replace")

    def _pieces(self, name: str, most: int) -> Iterator[bytes]:
        path = self.place(name)
        if path is None:
            return
        try:
            number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
        except (OSError, ValueError):
            return
        if not stat.S_ISREG(os.fstat(number).st_mode):
            os.close(number)
            return
        with os.fdopen(number, "rb", buffering=0) as file:
            left = most
            while left > 0:
                try:
                    piece = file.read(min(left, 65_536))
                except OSError:
                    return
                if not piece:
                    return
                left -= len(piece)
                yield piece

    def names(self, folder: str) -> list[str]:
        """Names in a folder, in order; none where there is no such folder."""
        path = self.place(folder)
        return [] if path is None else entries(path, MOST_NAMES)

    def link_name(self, name: str) -> str:
        """The last part of what the link `name` points to; empty where it is no link."""
        folder, _, last = name.rpartition("/")
        place = self.place(folder)
        target = None if place is None else self._link(place / last)
        return PurePosixPath(target).name if target else ""

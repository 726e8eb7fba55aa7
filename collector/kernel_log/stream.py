"""Lines from a file descriptor, waited for without blocking whoever wants to stop."""

from __future__ import annotations

import errno
import os
import select

READ_BYTES = 65_536
"""One read; a record of ``/dev/kmsg`` must fit, and has 8 KiB at most."""
MOST_READS = 1_024
"""Reads before what was found is handed on."""
MAX_LINE_BYTES = 1 << 20
"""A line beyond this is given up."""


class Bell:
    """Wakes a waiting reader from another thread."""

    def __init__(self) -> None:
        self._hear, self._ring = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def ring(self) -> None:
        """Wake it, now and from now on."""
        try:
            os.write(self._ring, b"!")
        except (BlockingIOError, OSError):
            return

    def wait(self, seconds: float, fd: int | None = None) -> None:
        """Wait until rung, until `fd` can be read, or until `seconds` have passed."""
        poll = select.poll()
        poll.register(self._hear, select.POLLIN)
        if fd is not None:
            poll.register(fd, select.POLLIN)
        poll.poll(max(0, round(seconds * 1000)))

    def close(self) -> None:
        """Let go of it, once nobody waits any more."""
        for fd in (self._hear, self._ring):
            os.close(fd)
        self._hear = self._ring = -1


class LineStream:
    """Splits what `fd` gives into lines without their ends.

    `overruns` counts reads that said that records had been overwritten, `given_up` lines that were too long. `ended`
    is set when a read found the end, which for a file may pass.
    """

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._rest = b""
        self._skipping = False
        self.overruns = 0
        self.given_up = 0
        self.ended = False

    def lines(self) -> list[bytes]:
        """The lines that are there now, without waiting. Raises OSError for what neither waiting nor going on mends."""
        found: list[bytes] = []
        self.ended = False
        for _ in range(MOST_READS):
            try:
                data = os.read(self._fd, READ_BYTES)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno != errno.EPIPE:
                    raise
                self.overruns += 1
                continue
            if not data:
                self.ended = True
                break
            self._split(data, found)
        return found

    def _split(self, data: bytes, found: list[bytes]) -> None:
        parts = data.split(b"\n")
        if len(parts) > 1:
            if not self._skipping:
                found.append(self._rest + parts[0])
            self._skipping = False
            found.extend(parts[1:-1])
            self._rest = parts[-1]
        elif not self._skipping:
            self._rest += data
        if len(self._rest) > MAX_LINE_BYTES:
            self.given_up += 1
            self._rest = b""
            self._skipping = True

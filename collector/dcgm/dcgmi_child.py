"""The processes of source `dcgmi`: short ones that are asked once, and the one `dmon` that runs on."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
from collections.abc import Sequence

from tocsin.domain.clock import Clock

READ_BYTES = 1 << 16
MAX_LINE = 1 << 16
MOST_READS = 64
"""Most pieces taken at a time: a program that never stops printing must not keep the reader."""
_GRACE_SECONDS = 1.0


def ask(command: Sequence[str], arguments: Sequence[str], seconds: float) -> str | None:
    """What a run printed on either channel, whatever its status; None where it did not end in time.

    Raises OSError where the program cannot be run.
    """
    child = subprocess.Popen(
        [*command, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        out, _ = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        # subprocess.run would go on waiting: for one that sits in the driver, or for a child of it that has the pipe.
        child.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_GRACE_SECONDS)
        if child.stdout is not None:
            child.stdout.close()
        return None
    return out.decode("utf-8", "replace")


class Child:
    """A running process whose output is taken without ever waiting for it. Raises OSError where it cannot be run."""

    def __init__(self, command: Sequence[str]) -> None:
        self._fd, writing = os.pipe()
        os.set_blocking(self._fd, False)
        try:
            self._process = subprocess.Popen(
                list(command), stdin=subprocess.DEVNULL, stdout=writing, stderr=subprocess.STDOUT
            )
        except OSError:
            os.close(self._fd)
            raise
        finally:
            os.close(writing)
        self._rest = b""
        self._ended = False

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Whether it ended and all that it printed was taken."""
        return self._ended

    def wait_for_output(self, seconds: float) -> bool:
        """Wait until there is something to take, its end included; whether there is."""
        return self._ended or bool(select.select([self._fd], [], [], max(0.0, seconds))[0])

    def lines(self) -> list[str]:
        """Whole lines printed since the last call; the last unfinished one too once the process has ended."""
        pieces = [self._rest]
        for _ in range(MOST_READS):
            if self._ended:
                break
            try:
                piece = os.read(self._fd, READ_BYTES)
            except BlockingIOError:
                break
            self._ended = not piece
            pieces.append(piece)
        whole, _, self._rest = b"".join(pieces).rpartition(b"\n")
        if self._ended or len(self._rest) > MAX_LINE:
            whole, self._rest = whole + b"\n" + self._rest, b""
        return [line for line in whole.decode("utf-8", "replace").split("\n") if line]

    def stop(self) -> None:
        """End it; one that sits in the driver and does not even die is left behind. Safe to repeat."""
        for end in (self._process.terminate, self._process.kill):
            end()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_GRACE_SECONDS)
                break
        self._ended = True
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Backoff:
    """When a child may be started again: at once, then after 1, 2, 4 ... `most` seconds."""

    def __init__(self, clock: Clock, most: float = 60.0) -> None:
        self._clock = clock
        self._most = most
        self._pause = 0.0
        self._due = clock.monotonic()

    def is_due(self) -> bool:
        """Whether the pause is over."""
        return self._clock.monotonic() >= self._due

    def failed(self) -> None:
        """Begin a pause, longer than the one before."""
        self._due = self._clock.monotonic() + self._pause
        self._pause = min(self._most, 2 * self._pause or 1.0)

    def worked(self) -> None:
        """Begin anew: what was started does its work."""
        self._pause = 0.0

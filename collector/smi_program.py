"""Running a vendor's command line tool: within a time, at most so many bytes, and one at a time while one hangs."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Protocol

MOST_BYTES = 16 << 20
"""Of either stream; the XML of 16 GPUs has less than 1 MiB. What is beyond is read and dropped."""
_CHUNK_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class SmiAnswer:
    """What the program printed, and its exit status."""

    status: int
    out: str
    err: str = ""


class Program(Protocol):
    """Running the tool."""

    def run(self, arguments: Sequence[str], seconds: float) -> SmiAnswer | None:
        """Its answer; None where it has not ended in time, or an earlier run still has not. Raises OSError."""

    def close(self) -> None:
        """Let go of a run that has not ended."""


class SmiProgram:
    """The real one. A run that hangs is asked to end and then left alone: to kill it inside the driver can wedge a GPU.

    While it hangs no other is started.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._command = tuple(command)
        self._stuck: subprocess.Popen[bytes] | None = None

    def run(self, arguments: Sequence[str], seconds: float) -> SmiAnswer | None:
        if self._stuck is not None:
            if self._stuck.poll() is None:
                return None
            self.close()
        child = subprocess.Popen(
            [*self._command, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        streams = [_Stream(stream) for stream in (child.stdout, child.stderr) if stream is not None]
        try:
            status = child.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            child.terminate()
            self._stuck = child
            return None
        out, err = (stream.text(seconds) for stream in streams)
        return SmiAnswer(status, out, err)

    def close(self) -> None:
        if self._stuck is not None:
            self._stuck.poll()
            self._stuck = None


class _Stream:
    """Reads a stream of the program to its end on a thread of its own, which also closes it."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._kept = bytearray()
        self._thread = threading.Thread(target=self._drain, name="smi", daemon=True)
        self._thread.start()

    def text(self, seconds: float) -> str:
        """What was kept; a child of the program may hold the stream open, so not for ever."""
        self._thread.join(seconds)
        return bytes(self._kept).decode("utf-8", errors="replace")

    def _drain(self) -> None:
        with self._stream:
            while chunk := self._stream.read1(_CHUNK_BYTES):  # type: ignore[attr-defined]  # a pipe is buffered
                self._kept += chunk[: MOST_BYTES - len(self._kept)]

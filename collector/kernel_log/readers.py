"""Where the kernel log is read: ``/dev/kmsg``, or journald through ``journalctl``."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from tocsin.collector.kernel_log.position import Position, boot_instant
from tocsin.collector.kernel_log.records import KernelRecord, decode_journal, decode_kmsg, kmsg_sequence
from tocsin.collector.kernel_log.stream import Bell, LineStream
from tocsin.domain.clock import Clock
from tocsin.domain.errors import Unavailable
from tocsin.telemetry.log import logger

_log = logger("kernel_log")

KMSG = Path("/dev/kmsg")
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
JOURNALCTL = ("journalctl",)

_MARKS = (b"NVRM", b"SXid")
_BYTES_MESSAGE = b'"MESSAGE":['
"""Marks a journald object whose message is a list of bytes: marks cannot be found in it as they are."""
_BYTES_MESSAGE_SPACED = b'"MESSAGE" : ['

_REST_SECONDS = (1.0, 2.0, 5.0, 15.0, 60.0)
"""Pauses before journalctl is started again."""
_FRUITLESS = 3
"""Starts without a line after which the cursor is taken for the reason: a journal that was made anew has none of it."""
_END_SECONDS = 5.0
"""How long a child that was told to end may take."""


@dataclass(slots=True)
class Chunk:
    """What one read gave: the driver's records, how many lines were looked at, and how many lost or unreadable."""

    records: list[KernelRecord] = field(default_factory=list)
    lines: int = 0
    overrun: int = 0
    malformed: int = 0


class Reader(Protocol):
    """Reads the kernel log on. `position` is behind the last line that was read."""

    name: str
    position: Position
    starts: int
    """Times that it was opened."""

    def read(self, seconds: float) -> Chunk:
        """What is there; waits up to `seconds` where there is nothing. Raises OSError."""
        ...

    def wake(self) -> None:
        """End a wait in `read`, from another thread."""
        ...

    def close(self) -> None:
        """Let go of files and children, once nobody reads any more."""
        ...


class KmsgReader:
    """``/dev/kmsg``: every record of this boot that the kernel still holds, then new ones.

    Sequence numbers have no gaps, so that what the kernel overwrote before it was read is known to the record, also
    what went while nobody read. Raises Unavailable where `path` cannot be opened.
    """

    name = "kmsg"

    def __init__(
        self, clock: Clock, before: Position | None = None, path: Path = KMSG, boot_id: Path = BOOT_ID
    ) -> None:
        self._clock = clock
        try:
            boot = boot_id.read_text().strip()
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            remedy = "give the agent CAP_SYSLOG and the device, or set agent.kernel_log to journald or off"
            raise Unavailable(f"{path} cannot be read: {error.strerror}; {remedy}") from None
        same = before is not None and before.boot_id == boot
        kept = before if same and before is not None else Position(boot)
        cursor = before.cursor if before is not None else ""
        self.position = replace(kept, boot_ms=boot_instant(clock, kept.boot_ms), cursor=cursor)
        self.starts = 1
        self._bell = Bell()
        self._stream = LineStream(self._fd)

    def read(self, seconds: float) -> Chunk:
        lines = self._stream.lines()
        if not lines:
            # The end of a file stays readable: only the bell may end that wait.
            self._bell.wait(seconds, None if self._stream.ended else self._fd)
            lines = self._stream.lines()
        chunk = Chunk(malformed=self._stream.given_up)
        self._stream.given_up = 0
        last = self.position.seq
        boot_ms = boot_instant(self._clock, self.position.boot_ms)
        for line in lines:
            seq = kmsg_sequence(line)
            if seq is None:
                chunk.malformed += not line.startswith(b" ") and bool(line)
                continue
            if last is not None and seq <= last:
                continue
            chunk.overrun += seq - last - 1 if last is not None else 0
            last = seq
            chunk.lines += 1
            if _MARKS[0] in line or _MARKS[1] in line:
                record = decode_kmsg(line, boot_ms)
                if record is not None:
                    chunk.records.append(record)
        if self._stream.overruns:
            # A gap in the numbers says how much was lost; without one before there is only the fact.
            chunk.overrun = max(chunk.overrun, 1)
            self._stream.overruns = 0
        if last != self.position.seq or boot_ms != self.position.boot_ms:
            self.position = replace(self.position, seq=last, boot_ms=boot_ms)
        return chunk

    def wake(self) -> None:
        self._bell.ring()

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._bell.close()
            self._fd = -1


class JournalReader:
    """journald, through a child process ``journalctl`` that follows the kernel's messages.

    Without a position it begins with this boot, with one behind its cursor, be that in an earlier boot: what the kernel
    said just before a crash is read after it. A child that ends is started again after a growing pause, behind the last
    line that was read. Raises Unavailable where `command` cannot be started at all.
    """

    name = "journald"

    def __init__(self, clock: Clock, before: Position | None = None, command: Sequence[str] = JOURNALCTL) -> None:
        self._clock = clock
        self._command = tuple(command)
        self.position = before if before is not None else Position()
        self.starts = 0
        self._bell = Bell()
        self._tries = 0
        self._due = 0.0
        self._newest_ms = self._again_ms = 0
        self._child: subprocess.Popen[bytes] | None = None
        try:
            self._start()
        except OSError as error:
            self._bell.close()
            remedy = "install systemd's journalctl, or set agent.kernel_log to kmsg or off"
            raise Unavailable(f"{self._command[0]} cannot be started: {error.strerror}; {remedy}") from None

    def _start(self) -> None:
        # Not --dmesg: that means this boot only.
        begin = [f"--after-cursor={self.position.cursor}"] if self.position.cursor else ["--boot"]
        options = ["--output=json", "--follow", "--no-tail", "--quiet", *begin, "_TRANSPORT=kernel"]
        self._child = subprocess.Popen(
            [*self._command, *options], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert self._child.stdout is not None
        self._stream = LineStream(self._child.stdout.fileno())
        self.starts += 1

    def read(self, seconds: float) -> Chunk:
        if self._child is None and not self._revive(seconds):
            return Chunk()
        assert self._child is not None
        assert self._child.stdout is not None
        lines = self._stream.lines()
        if not lines and not self._stream.ended:
            self._bell.wait(seconds, self._child.stdout.fileno())
            lines = self._stream.lines()
        chunk = Chunk(lines=len(lines), malformed=self._stream.given_up)
        self._stream.given_up = 0
        for line in lines:
            if _MARKS[0] in line or _MARKS[1] in line or _BYTES_MESSAGE in line or _BYTES_MESSAGE_SPACED in line:
                record = decode_journal(line)
                if record is None:
                    chunk.malformed += 1
                elif record.at_ms is None or record.at_ms > self._again_ms:
                    chunk.records.append(record)
                    self._newest_ms = max(self._newest_ms, record.at_ms or 0)
        if lines:
            self._tries = 0
            self._mark(lines)
        if self._stream.ended:
            self._bury()
        return chunk

    def _mark(self, lines: Sequence[bytes]) -> None:
        """Move `position` behind the last of `lines` that is whole."""
        for line in reversed(lines):
            with suppress(ValueError, RecursionError):
                row = json.loads(line)
                cursor = row.get("__CURSOR") if isinstance(row, dict) else None
                if isinstance(cursor, str) and cursor:
                    self.position = replace(self.position, cursor=cursor)
                    return

    def _revive(self, seconds: float) -> bool:
        left = self._due - self._clock.monotonic()
        if left > 0:
            self._bell.wait(min(left, seconds))
            return False
        self._start()
        return True

    def _bury(self) -> None:
        self._end()
        if self._tries == _FRUITLESS and self.position.cursor:
            _log.warning("journald does not go on from where it was read last, this boot is read anew")
            self.position = replace(self.position, cursor="")
            self._again_ms = self._newest_ms
        self._due = self._clock.monotonic() + _REST_SECONDS[min(self._tries, len(_REST_SECONDS) - 1)]
        self._tries += 1

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        child.terminate()
        try:
            child.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        if child.stdout is not None:
            child.stdout.close()

    def wake(self) -> None:
        self._bell.ring()

    def close(self) -> None:
        if self._due != float("inf"):
            self._end()
            self._bell.close()
            self._due = float("inf")

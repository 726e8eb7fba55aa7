"""The kernel log as it is read: ``/dev/kmsg``, journald through ``journalctl``, or lines of a text log."""

from __future__ import annotations

import errno
import json
import os
import re
import select
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Protocol

from tocsin.collector.kernel_log.host_lines import HOST_MARKS
from tocsin.collector.kernel_log.parser import MARKS, KernelRecord
from tocsin.domain.atomic_file import write_atomically
from tocsin.domain.clock import SECOND, Clock, from_iso
from tocsin.domain.errors import Unavailable
from tocsin.telemetry.log import logger

_SAME_BOOT_MS = 5 * SECOND
"""The start of a boot is computed anew at every start, from two clocks; within this it is the same instant."""


@dataclass(frozen=True, slots=True)
class Position:
    """`seq` is the last record of ``/dev/kmsg`` within boot `boot_id`, None before the first; `cursor` is journald's.

    `boot_ms` is the instant that the stamps of that boot count from. It is kept because an event's name follows from
    its instant: a line that is read twice must give the same one.
    """

    boot_id: str = ""
    boot_ms: int = 0
    seq: int | None = None
    cursor: str = ""


def boot_instant(clock: Clock, known_ms: int = 0) -> int:
    """The instant at which this boot's monotonic clock was zero, from which the kernel log's stamps count.

    The one place where they are tied to wall time. `known_ms`, the answer to an earlier call, is kept until the wall
    clock has been stepped.
    """
    now_ms = clock.now_ms() - round(clock.monotonic() * SECOND)
    return known_ms if known_ms and abs(now_ms - known_ms) <= _SAME_BOOT_MS else now_ms


def load_position(path: Path) -> Position | None:
    """What `path` holds; None where there is none or it cannot be used, which is said in the log."""
    try:
        row = json.loads(path.read_bytes())
        boot_id, boot_ms, seq, cursor = row["boot_id"], row["boot_ms"], row["seq"], row["cursor"]
        whole = isinstance(boot_ms, int) and (seq is None or isinstance(seq, int))
        if not (isinstance(boot_id, str) and isinstance(cursor, str) and whole):
            raise TypeError
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        _log.warning("position in the kernel log cannot be read, this boot's log is read anew", path=str(path))
        return None
    return Position(boot_id, boot_ms, seq, cursor)


def save_position(path: Path, position: Position) -> None:
    """Put `position` in place of what `path` holds, whole or not at all. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(asdict(position)))


READ_BYTES = 65_536
"""One read; a record of ``/dev/kmsg`` must fit, and has 8 KiB at most."""
MOST_READS = 1_024
"""Reads before what was found is handed on."""
MAX_LINE_BYTES = 1 << 20
"""A line beyond this is given up."""


class WakePipe:
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


_ESCAPE = re.compile(rb"\\x([0-9a-fA-F]{2})")
_ISO = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d(?:[.,]\d{1,6})?)\s?(Z|[+-]\d\d:?\d\d)?")
_START = re.compile(r"NVRM|nvidia-nvswitch")


def kmsg_sequence(raw: bytes) -> int | None:
    """The sequence number of a line of ``/dev/kmsg``; None where it is no record, such as a continuation line."""
    parts = raw.split(b",", 2)
    return int(parts[1][:18]) if len(parts) == 3 and parts[0].isdigit() and parts[1].isdigit() else None


def decode_kmsg(raw: bytes, boot_ms: int) -> KernelRecord | None:
    """A line ``priority,sequence,microseconds,flags;text`` (kernel's Documentation/ABI/testing/dev-kmsg).

    The stamp counts from the boot, at `boot_ms`. Lines that start with a space belong to the record before and carry
    nothing that is needed; they and anything malformed give None.
    """
    head, found, body = raw.partition(b";")
    parts = head.split(b",")
    if not found or len(parts) < 4 or not (parts[0].isdigit() and parts[1].isdigit() and parts[2].isdigit()):
        return None
    text = _ESCAPE.sub(lambda match: bytes([int(match[1], 16)]), body)
    at_ms = boot_ms + int(parts[2][:18]) // 1000
    return KernelRecord(text.decode("utf-8", "replace").rstrip("\n"), at_ms, int(parts[1][:18]))


def decode_journal(raw: bytes) -> KernelRecord | None:
    """An object of ``journalctl -o json``; None where it is none or has no message.

    journald writes a message that is not UTF-8 as a list of bytes, and one that is too long as null.
    """
    try:
        row = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, Mapping):
        return None
    text = _journal_message(row.get("MESSAGE"))
    if not text:
        return None
    stamp = row.get("__REALTIME_TIMESTAMP")
    known = isinstance(stamp, str) and stamp.isascii() and stamp.isdigit() and len(stamp) < 19
    cursor = row.get("__CURSOR")
    return KernelRecord(
        text, int(str(stamp)) // 1000 if known else None, cursor=cursor if isinstance(cursor, str) else ""
    )


def _journal_message(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        if value and all(isinstance(item, str) for item in value):
            return str(value[0])
        if all(isinstance(item, int) and 0 <= item < 256 for item in value):
            return bytes(value).decode("utf-8", "replace")
    return ""


def decode_text(line: str) -> KernelRecord:
    """A line of dmesg, syslog or any other text log: what stands before the driver's words is its prefix.

    `at_ms` is known only where the prefix has an ISO 8601 date; `when` is the prefix without host and process.
    """
    found = _START.search(line)
    if found is None:
        return KernelRecord(line.rstrip())
    prefix = line[: found.start()].strip()
    iso = _ISO.search(prefix)
    at_ms = None
    if iso is not None:
        day, time, offset = iso.groups()
        try:
            at_ms = from_iso(f"{day}T{time.replace(',', '.')}{offset or ''}")
        except (ValueError, OverflowError):
            at_ms = None
    return KernelRecord(line[found.start() :].rstrip(), at_ms, when=iso[0] if iso is not None else _when(prefix))


def _when(prefix: str) -> str:
    """``Nov 21 03:54:16 host kernel: [12.5]`` becomes ``Nov 21 03:54:16``, ``[ 12.5]`` becomes ``12.5``."""
    syslog = re.match(r"\w{3} [ \d]\d \d\d:\d\d:\d\d", prefix)
    if syslog is not None:
        return syslog[0]
    bracket = re.search(r"\[\s*([^\]]{1,40}?)\s*\]", prefix)
    return bracket[1] if bracket is not None else ""


def decode_any(line: bytes) -> KernelRecord:
    """A line of any of the three kinds; the stamp of a kmsg line, which counts from an unknown boot, becomes `when`."""
    if line.startswith(b"{"):
        record = decode_journal(line)
        if record is not None:
            return record
    record = decode_kmsg(line, 0)
    if record is not None and record.at_ms is not None:
        return KernelRecord(record.text, seq=record.seq, when=f"{record.at_ms / 1000:.3f}")
    return decode_text(line.decode("utf-8", "replace"))


_log = logger("kernel_log")

KMSG = Path("/dev/kmsg")
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
JOURNALCTL = ("journalctl",)

_MARKED = re.compile(b"|".join(re.escape(mark.encode()) for mark in (*MARKS, *HOST_MARKS)))
"""What a line must hold to be looked at."""
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


class KernelLogReader(Protocol):
    """Reads the kernel log on. `position` is behind the last line that was read."""

    name: str
    position: Position
    starts: int
    """Times that it was opened."""

    def read(self, seconds: float) -> Chunk:
        """What is there; waits up to `seconds` where there is nothing. Raises OSError."""

    def wake(self) -> None:
        """End a wait in `read`, from another thread."""

    def close(self) -> None:
        """Let go of files and children, once nobody reads any more."""


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
        known = before if same and before is not None else Position(boot)
        cursor = before.cursor if before is not None else ""
        self.position = replace(known, boot_ms=boot_instant(clock, known.boot_ms), cursor=cursor)
        self.starts = 1
        self._bell = WakePipe()
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
            if _MARKED.search(line):
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
        self._bell = WakePipe()
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
            if _MARKED.search(line) or _BYTES_MESSAGE in line or _BYTES_MESSAGE_SPACED in line:
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

"""How far the kernel log has been read, kept in a small file so that a restart neither repeats nor misses a line."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from tocsin.domain.atomic_file import write_atomically
from tocsin.domain.clock import SECOND, Clock
from tocsin.telemetry.log import logger

_log = logger("kernel_log")

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

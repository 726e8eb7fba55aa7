"""Demos that this user runs: a file each, by which commands in another shell find the newest one that lives."""

from __future__ import annotations

import json
import os
import socket
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from tocsin.domain.atomic_file import write_atomically

_LARGEST = 4096
"""Bytes of such a file at most; a larger one is not ours."""


@dataclass(frozen=True, slots=True)
class DemoFile:
    """Where a demo answers. `started_ticks` tells its process from a later one with the same `pid` (0: not known).

    `host`, `boot` and `pid_namespace` say where `pid` is one: the folder may be shared with other hosts and containers.
    """

    api_url: str
    pid: int
    started_ticks: int
    started_ms: int
    host: str
    boot: str
    pid_namespace: str


def demo_folder(environ: Mapping[str, str] | None = None) -> Path:
    """``$XDG_STATE_HOME/tocsin``, else ``~/.local/state/tocsin``."""
    environ = os.environ if environ is None else environ
    base = Path(environ["XDG_STATE_HOME"]) if environ.get("XDG_STATE_HOME") else Path.home() / ".local" / "state"
    return base / "tocsin"


def process_start(pid: int) -> int:
    """When process `pid` began, in clock ticks since boot (field 22 of ``/proc/PID/stat``); 0 where nobody knows."""
    try:
        fields = Path("/proc", str(pid), "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2]
        return int(fields.split()[19])
    except (OSError, ValueError, IndexError):
        return 0


def here() -> tuple[str, str, str]:
    """Host name, boot and namespace of process ids; empty where the system does not say."""
    boot = namespace = ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    with suppress(OSError):
        namespace = str(Path("/proc/self/ns/pid").readlink())
    return socket.gethostname(), boot, namespace


@contextmanager
def announced(api_url: str, started_ms: int, folder: Path | None = None) -> Iterator[bool]:
    """This process runs a demo at `api_url` meanwhile. Yields whether others can find it: not on a read-only disk."""
    folder = folder or demo_folder()
    path = folder / f"demo-{os.getpid()}.json"
    written = DemoFile(api_url, os.getpid(), process_start(os.getpid()), started_ms, *here())
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(path, json.dumps(asdict(written)), durable=False)
    except OSError:
        yield False
        return
    try:
        yield True
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def running_demo(folder: Path | None = None) -> DemoFile | None:
    """The newest demo of this user that still runs here; None without one.

    Files of those that have ended are removed, but for those of other hosts and containers, of which nobody here knows.
    """
    found: list[DemoFile] = []
    try:
        paths = sorted((folder or demo_folder()).glob("demo-*.json"))
    except (OSError, RuntimeError):
        return None
    for path in paths:
        known = _read(path)
        if known is None or not _is_of_here(known):
            continue
        if _lives(known):
            found.append(known)
        else:
            with suppress(OSError):
                path.unlink()
    return max(found, key=lambda one: (one.started_ms, one.pid), default=None)


def _read(path: Path) -> DemoFile | None:
    """What `path` says; None for a file that is not this user's own, or is none of ours."""
    try:
        about = path.lstat()
        if not stat.S_ISREG(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & 0o022:
            return None
        with path.open("rb") as file:
            told = json.loads(file.read(_LARGEST + 1)[: _LARGEST + 1])
        pid, started_ticks, started_ms = (int(told[name]) for name in ("pid", "started_ticks", "started_ms"))
        host, boot, namespace = (str(told.get(name, "")) for name in ("host", "boot", "pid_namespace"))
        return DemoFile(str(told["api_url"]), pid, started_ticks, started_ms, host, boot, namespace)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _is_of_here(known: DemoFile) -> bool:
    """Whether its process id is one of ours, or was before this host started anew."""
    host, boot, namespace = here()
    return known.host == host and (known.pid_namespace == namespace or known.boot != boot)


def _lives(known: DemoFile) -> bool:
    if known.pid <= 0 or known.started_ticks <= 0 or known.boot != here()[1]:
        return False
    try:
        os.kill(known.pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        # A process of somebody else has the number now.
        return False
    return process_start(known.pid) == known.started_ticks

"""Who is the active brain: one process holds a lease, the others wait until it has run out.

A lease in Kubernetes is judged as client-go does it: the clocks of two hosts are never compared. Who waits counts its
own monotonic seconds since it saw the lease change last; who holds counts its own since before its last renewal that
succeeded, and stops at two thirds of the duration, so that it has stopped before another can begin.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Protocol

from tocsin.actions.kubernetes.api import Json, KubeError
from tocsin.actions.kubernetes.client import connect
from tocsin.actions.kubernetes.cluster import Cluster
from tocsin.config.settings import Settings
from tocsin.domain.atomic_file import PRIVATE
from tocsin.domain.clock import SECOND, Clock

RENEW_SHARE = 2 / 3
"""Part of the duration after which a holder that could not renew stops (client-go: 10 s of 15 s)."""
RETRY_SHARE = 2 / 15
"""Part of the duration between two renewals or looks (client-go: 2 s of 15 s)."""


LEASE_LOOK_SECONDS = 0.25
"""Time between two calls of `Lease.tick`, which knows itself what is due."""


class Lease(Protocol):
    """The right to act. `epoch` grows with every change of holder: what carries a smaller one is out of date."""

    epoch: int

    def tick(self) -> None:
        """Acquire, renew or look, whichever is due; never raises because a server is away."""

    def held(self) -> bool:
        """Whether this process may act now."""

    def holder(self) -> str:
        """Who held it when it was last looked at; empty where nobody did."""

    def release(self) -> None:
        """Let another take it over at once; safe to repeat."""


@dataclass(slots=True)
class _SeenLease:
    """The lease as it was when it last changed; `since` is when that was seen, in own monotonic seconds."""

    since: float
    raw: Json

    @property
    def spec(self) -> dict[str, Any]:
        found: dict[str, Any] = self.raw.get("spec") or {}
        return found


class KubernetesLease:
    """A Lease object. `identity` must be another one for every process, or a restart would pass for the old holder."""

    def __init__(self, cluster: Cluster, place: str, identity: str, seconds: float, clock: Clock) -> None:
        self._cluster = cluster
        self._namespace, _, self._name = place.partition("/")
        self.identity = identity
        self._seconds = seconds
        self._clock = clock
        self._seen: _SeenLease | None = None
        self._renewed: float | None = None
        self._next = float("-inf")
        self.epoch = 0
        self.trouble = ""

    def held(self) -> bool:
        return self._renewed is not None and self._clock.monotonic() - self._renewed < self._seconds * RENEW_SHARE

    def holder(self) -> str:
        return "" if self._seen is None else str(self._seen.spec.get("holderIdentity") or "")

    def tick(self) -> None:
        now = self._clock.monotonic()
        if now < self._next:
            return
        self._next = now + self._seconds * RETRY_SHARE
        try:
            self._try(now)
            self.trouble = ""
        except KubeError as error:
            # 409: another process was faster; what it wrote is seen at the next look.
            self.trouble = str(error)
        if self._seen is not None and self._renewed is None:
            # A lease that nobody renews is taken when it runs out, not at the look after that.
            runs_out = self._runs_out(self._seen)
            self._next = min(self._next, runs_out) if runs_out > now else self._next

    def release(self) -> None:
        if self._renewed is None or self._seen is None:
            return
        self._renewed = None
        try:
            # Others write to the object too, such as the journal's witness: what was seen last may be an old version.
            found = self._cluster.lease(self._namespace, self._name)
            spec = found.get("spec") or {}
            if spec.get("holderIdentity") == self.identity:
                spec = spec | {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": self._time()}
                self._cluster.update_lease(self._namespace, found, spec)
        except KubeError as error:
            self.trouble = str(error)

    def _try(self, now: float) -> None:
        try:
            found = self._cluster.lease(self._namespace, self._name)
        except KubeError as error:
            if error.status != 404:
                raise
            made = self._cluster.create_lease(self._namespace, self._name, self._spec(0, self._time()))
            self._won(made, now)
            return
        self._look(found, now)
        if self._seen is None or not self._mine_to_take(self._seen, now):
            self._renewed = None
            return
        spec = self._seen.spec
        again = spec.get("holderIdentity") == self.identity
        epoch = int(spec.get("leaseTransitions") or 0) + (0 if again else 1)
        since = str(spec.get("acquireTime")) if again else self._time()
        self._won(self._cluster.update_lease(self._namespace, self._seen.raw, self._spec(epoch, since)), now)

    def _look(self, found: Json, now: float) -> None:
        if self._seen is None or self._seen.spec != (found.get("spec") or {}):
            self._seen = _SeenLease(now, found)
        self._seen.raw = found

    def _mine_to_take(self, seen: _SeenLease, now: float) -> bool:
        holder = seen.spec.get("holderIdentity")
        if not holder or holder == self.identity:
            return True
        return now >= self._runs_out(seen)

    def _runs_out(self, seen: _SeenLease) -> float:
        """When another may take it, in own monotonic seconds."""
        return seen.since + float(seen.spec.get("leaseDurationSeconds") or self._seconds)

    def _won(self, lease: Json, now: float) -> None:
        """`now` is from before the request: the others saw the renewal no earlier."""
        self._look(lease, now)
        self.epoch = int((lease.get("spec") or {}).get("leaseTransitions") or 0)
        self._renewed = now

    def _spec(self, epoch: int, acquired: str) -> Json:
        return {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": round(self._seconds),
            "acquireTime": acquired,
            "renewTime": self._time(),
            "leaseTransitions": epoch,
        }

    def _time(self) -> str:
        """Now in microseconds: the server refuses a time without them."""
        return datetime.fromtimestamp(self._clock.now_ms() / SECOND, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class FileLease:
    """A lock on a file, for brains that share a host or a volume with working locks; the kernel frees it at exit."""

    def __init__(self, path: Path, identity: str) -> None:
        self._path = path
        self.identity = identity
        self._file: IO[str] | None = None
        self.epoch = 0

    def held(self) -> bool:
        return self._file is not None

    def holder(self) -> str:
        if self._file is not None:
            return self.identity
        try:
            return self._path.read_text(encoding="utf-8").partition(" ")[2].strip()
        except FileNotFoundError:
            return ""

    def tick(self) -> None:
        if self._file is not None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        file = os.fdopen(os.open(self._path, os.O_RDWR | os.O_CREAT, PRIVATE), "r+", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return
        before = file.read().partition(" ")[0]
        self.epoch = int(before) + 1 if before.isdecimal() else 0
        self._write(file, self.identity)
        os.fsync(file.fileno())
        self._file = file

    def release(self) -> None:
        if self._file is None:
            return
        self._write(self._file, "")
        self._file.close()
        self._file = None

    def _write(self, file: IO[str], holder: str) -> None:
        file.seek(0)
        file.truncate()
        file.write(f"{self.epoch} {holder}\n")
        file.flush()


def looking(lease: Lease, wake: threading.Event) -> Callable[[], None]:
    """`lease.tick`, with `wake` set when this process gets the lease: it then acts at once, not at its next turn."""

    def look() -> None:
        before = lease.held()
        lease.tick()
        if lease.held() and not before:
            wake.set()

    return look


def open_lease(settings: Settings, clock: Clock) -> Lease | None:
    """The lease of ``kubernetes.lease``, else of ``actions.lease_file``; None where neither is set.

    Raises InputError as the connection does.
    """
    identity = f"{socket.gethostname()}-{secrets.token_hex(4)}"
    wanted = settings.kubernetes
    if wanted.lease:
        # A request that hangs must not use up the time in which the holder could renew.
        longest = wanted.lease_seconds * RENEW_SHARE / 2
        wanted = wanted.model_copy(update={"timeout_seconds": min(wanted.timeout_seconds, longest)})
        return KubernetesLease(Cluster(connect(wanted)), wanted.lease, identity, wanted.lease_seconds, clock)
    return None if settings.actions.lease_file is None else FileLease(settings.actions.lease_file, identity)

"""The agent's record of one connected training process, and of what it was asked."""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass, field

from tocsin.collector.training_hook.protocol import Stats

MESSAGES_PER_SECOND = 20.0
BURST = 40.0
"""A process speaks once in some seconds; this leaves room for a burst of failed allocations."""
USER_MESSAGES_PER_SECOND = 100.0
USER_BURST = 1000.0
"""All processes of one user together: reading the largest packet takes a millisecond, so that this is a tenth of a
core. The burst is for a node's processes that all come back to a restarted agent."""
FLOOD = 1000
"""Messages above the rate after which a connection is closed."""

MIN_STALE_SECONDS = 30.0
STALE_SAMPLES = 3.0
LONGEST_EVERY = 300.0
"""A process is stale that was silent for three of its intervals, for this long at least; intervals are cut at the
last of the three."""

_CREDENTIALS = struct.Struct("3i")


def credentials(connection: socket.socket) -> tuple[int, int]:
    """Process and user of the other end as the kernel knows them; process 0 where it lives in another namespace."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _gid = _CREDENTIALS.unpack(raw)
    return pid, uid


@dataclass(slots=True)
class Allowance:
    """Messages that may still be taken: `rate` a second, and up to `burst` saved up."""

    rate: float
    burst: float
    filled: float
    tokens: float = field(init=False)

    def __post_init__(self) -> None:
        self.tokens = self.burst

    def take(self, now: float) -> bool:
        """Whether one more message is within it."""
        self.tokens = min(self.burst, self.tokens + (now - self.filled) * self.rate)
        self.filled = now
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True


@dataclass(slots=True)
class Peer:
    """One connection. Times are seconds on the agent's monotonic scale."""

    connection: socket.socket
    pid: int
    uid: int
    own: Allowance
    of_user: Allowance
    process: str = ""
    every: float = 0.0
    stats: Stats | None = None
    heard: float = 0.0
    excess: int = 0
    asked: set[str] = field(default_factory=set)

    def admit(self, now: float) -> bool:
        """Whether one more message is within its rate and that of its user."""
        if self.own.take(now) and self.of_user.take(now):
            return True
        self.excess += 1
        return False

    def fresh(self, now: float) -> bool:
        """Whether its last sample may still be taken for the present."""
        patience = max(MIN_STALE_SECONDS, STALE_SAMPLES * min(self.every, LONGEST_EVERY))
        return self.stats is not None and now - self.heard <= patience


@dataclass(frozen=True, slots=True)
class ProcessState:
    """A process that reports, and its newest sample."""

    pid: int
    uid: int
    process: str
    stats: Stats


@dataclass(frozen=True, slots=True)
class HookOutcome:
    """How request `id` ended in process `pid`: one of `tocsin.hook.wire.OUTCOMES`.

    `seconds` is what it took, `at_ms` when the agent heard of it.
    """

    id: str
    pid: int
    kind: str
    outcome: str
    seconds: float
    detail: str
    at_ms: int

"""The agent's end of the hook: training processes tell of their memory and steps and are asked for small favours.

Who speaks is what the kernel says (SO_PEERCRED), not what the message says. Messages are bounded in size and rate;
what cannot be read is counted and dropped. A thread of its own serves all connections.

The agent may run as root and its peers are users' jobs: nothing that a peer does may cost the agent or another peer
more than its share: packets are taken in turns of bounded length, rates are limited per process and per user (a user
may fork at will), and a peer that floods is cut off. Every request that was sent has exactly one outcome: the process's
own answer, or `lost` when it goes away first; whoever asked must never wait for a job that has ended.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import stat
import struct
import threading
import uuid
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tocsin.collector.training_hook.protocol import Ack, Bye, Hello, OutOfMemory, Stats, parse
from tocsin.domain.clock import SECOND, Clock
from tocsin.domain.errors import Conflict, InputError, Unavailable
from tocsin.hook.wire import LOST, MAX_MESSAGE, REQUESTS, pack
from tocsin.telemetry.log import logger
from tocsin.telemetry.metrics import OwnMetrics

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
class HookConnection:
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


MODE = 0o666
"""Anybody on the node may connect: training runs under any user, and a peer can only speak of itself. Who wants less
puts the socket into a folder that only a group may enter."""
BACKLOG = 128

Inode = tuple[int, int]
"""Device and number of a file: which one stands at a path."""


def listen(path: Path) -> tuple[socket.socket, Inode]:
    """A listening SEQPACKET socket at `path`, and its file; a dead agent's leftover is replaced.

    A missing folder is made, open to all. Raises Conflict where another agent listens there, InputError where the path
    cannot be used.
    """
    _clear(path)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        _folder(path.parent)
        made.bind(str(path))
        path.chmod(MODE)
        made.listen(BACKLOG)
        made.setblocking(False)
        return made, _inode(path.lstat())
    except OSError as error:
        made.close()
        raise InputError(
            "agent.hook_socket",
            str(path),
            f"cannot be listened on ({error.strerror or error})",
            'name a path of up to 100 characters in a folder that the agent may write to, or "" to go without',
        ) from None


def remove(path: Path, inode: Inode) -> None:
    """Remove `path` where it is still the file `inode`: an agent that came after may have put its own there."""
    with contextlib.suppress(OSError):
        if _inode(path.lstat()) == inode:
            path.unlink()


def _inode(found: os.stat_result) -> Inode:
    return found.st_dev, found.st_ino


def _folder(path: Path) -> None:
    try:
        path.mkdir(parents=True)
    except FileExistsError:
        return
    # The agent's umask may be narrower than its socket is meant to be.
    path.chmod(0o755)


def _clear(path: Path) -> None:
    try:
        found = path.lstat()
    except OSError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise InputError("agent.hook_socket", str(path), "is there and no socket", "name another path")
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except OSError as error:
            if error.errno == errno.ECONNREFUSED:
                path.unlink(missing_ok=True)
            elif error.errno == errno.EAGAIN:
                raise _taken(path) from None
        else:
            raise _taken(path)


def _taken(path: Path) -> Conflict:
    return Conflict(f"agent.hook_socket = {str(path)!r}: another agent listens there; stop it or name another path")


_log = logger("hook")

MAX_CONNECTIONS = 512
MAX_PER_USER = 256
"""Connections at once; no user can shut out the others."""
PACKETS_PER_TURN = 16
"""Packets taken from one connection before the next has its turn."""
TURN_SECONDS = 0.5
FULL_SECONDS = 0.1
"""Pause where the agent has no descriptor left for a connection that waits, which would else be tried without end."""
OUTCOMES_KEPT = 256
OOMS_KEPT = 256


class HookServer:
    """Listens at `path`; `start` begins to serve.

    `outcomes` and `processes` may be asked from any thread. Raises what `hook_socket.listen` raises.
    """

    def __init__(self, path: Path, clock: Clock, own: OwnMetrics) -> None:
        self.path = path
        self._clock = clock
        self._own = own
        self._lock = threading.Lock()
        self._peers: dict[int, HookConnection] = {}
        self._users: dict[int, Allowance] = {}
        self._asked: dict[tuple[str, int], str] = {}
        self._outcomes: deque[HookOutcome] = deque(maxlen=OUTCOMES_KEPT)
        self._ooms: deque[tuple[int, int, OutOfMemory]] = deque(maxlen=OOMS_KEPT)
        self._logged_problems: set[str] = set()
        self.placed: Mapping[str, frozenset[int]] = {}
        """GPU UUID to the processes on it, as the companion last found them."""
        self._closing = threading.Event()
        self._listener, self._inode = listen(path)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="hook-server", daemon=True)
        own.set("tocsin_hook_processes", 0)

    def start(self) -> None:
        """Serve from a thread of its own until `close`."""
        self._thread.start()

    def close(self) -> None:
        """Stop serving and remove the socket; safe to repeat."""
        if self._closing.is_set():
            return
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()
        with self._lock:
            for peer in self._peers.values():
                peer.connection.close()
            self._peers.clear()
        self._selector.close()
        self._listener.close()
        remove(self.path, self._inode)

    def processes(self) -> list[ProcessState]:
        """Processes with a sample that is not stale, by pid; of several connections of one, that last heard of."""
        now = self._clock.monotonic()
        found: dict[int, ProcessState] = {}
        with self._lock:
            for peer in sorted(self._peers.values(), key=lambda peer: peer.heard):
                if peer.stats is not None and peer.fresh(now):
                    found[peer.pid] = ProcessState(peer.pid, peer.uid, peer.process, peer.stats)
        return [found[pid] for pid in sorted(found)]

    def take_ooms(self) -> list[tuple[int, int, OutOfMemory]]:
        """Failed allocations since the last call, as (instant of hearing in ms, pid, what failed)."""
        with self._lock:
            found = list(self._ooms)
            self._ooms.clear()
        return found

    def request(self, target: int | str, kind: str, expires_ms: int) -> str:
        """Ask process `target` (pid), or all processes on GPU `target` (UUID), for `kind`; returns the request's id.

        `kind` is one of `tocsin.hook.wire.REQUESTS`; it is begun at the end of a step before `expires_ms` or not at
        all. How it ended is in `outcomes`, once per process. Raises InputError for an unknown kind, Conflict where
        `expires_ms` has passed and Unavailable where no such process reports.
        """
        if kind not in REQUESTS:
            raise InputError("hook.request", kind, "is no request", f"known are {', '.join(sorted(REQUESTS))}")
        seconds = (expires_ms - self._clock.now_ms()) / SECOND
        if seconds <= 0:
            raise Conflict(f"request {kind} to {target} has expired before it was made")
        pids = frozenset({target}) if isinstance(target, int) else self.placed.get(target, frozenset())
        name = uuid.uuid4().hex[:16]
        packet = pack({"kind": "request", "id": name, "do": kind, "expires_s": seconds})
        with self._lock:
            if not (peers := [peer for peer in self._peers.values() if peer.pid in pids]):
                raise Unavailable(f"no process on {target} reports to this agent")
            for peer in peers:
                self._asked[name, peer.pid] = kind
                peer.asked.add(name)
                try:
                    peer.connection.send(packet)
                except OSError as error:
                    self._end(peer, name, LOST, 0.0, f"the process takes no message ({error.strerror or error})")
        return name

    def outcomes(self) -> list[HookOutcome]:
        """The newest ended requests, oldest first; `OUTCOMES_KEPT` at most."""
        with self._lock:
            return list(self._outcomes)

    def turn(self, timeout: float) -> None:
        """Serve what is there, waiting up to `timeout` seconds for it."""
        for key, _ in self._selector.select(timeout):
            if key.data is None:
                self._accept()
            else:
                self._hear(key.data)

    def _serve(self) -> None:
        while not self._closing.is_set():
            try:
                self.turn(TURN_SECONDS)
            except Exception:  # noqa: BLE001  # the supervisor of the server's loop
                self._own.count("tocsin_loop_failures_total", loop="hook")
                _log.exception("unexpected error, the hook goes on")
                self._closing.wait(TURN_SECONDS)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):
            return
        except OSError:
            self._closing.wait(FULL_SECONDS)
            return
        pid, uid = credentials(connection)
        if problem := self._unwelcome(pid, uid):
            connection.close()
            self._own.count("tocsin_dropped_total", what="connection", reason=problem)
            if problem not in self._logged_problems:
                self._logged_problems.add(problem)
                _log.warning("connections refused (said once)", reason=problem, uid=uid)
            return
        connection.setblocking(False)
        now = self._clock.monotonic()
        peer = HookConnection(connection, pid, uid, Allowance(MESSAGES_PER_SECOND, BURST, now), self._of_user(uid, now))
        with self._lock:
            self._peers[connection.fileno()] = peer
        self._selector.register(connection, selectors.EVENT_READ, peer)
        self._own.set("tocsin_hook_processes", len(self._peers))

    def _of_user(self, uid: int, now: float) -> Allowance:
        if len(self._users) >= MAX_CONNECTIONS:
            self._users = {peer.uid: peer.of_user for peer in self._peers.values()}
        return self._users.setdefault(uid, Allowance(USER_MESSAGES_PER_SECOND, USER_BURST, now))

    def _unwelcome(self, pid: int, uid: int) -> str:
        if pid <= 0:
            return "pid_of_another_namespace"
        if len(self._peers) >= MAX_CONNECTIONS:
            return "too_many"
        if sum(peer.uid == uid for peer in self._peers.values()) >= MAX_PER_USER:
            return "too_many_of_one_user"
        return ""

    def _hear(self, peer: HookConnection) -> None:
        for _ in range(PACKETS_PER_TURN):
            try:
                packet, _, flags, _ = peer.connection.recvmsg(MAX_MESSAGE)
            except BlockingIOError:
                return
            except OSError:
                packet, flags = b"", 0
            if not packet:
                self._drop(peer)
                return
            if not peer.admit(self._clock.monotonic()):
                self._own.count("tocsin_hook_messages_total", outcome="too_fast")
                if peer.excess >= FLOOD:
                    self._drop(peer)
                    return
                continue
            try:
                if flags & socket.MSG_TRUNC:
                    raise ValueError("the packet is too large")
                message = parse(packet)
            except ValueError:
                self._own.count("tocsin_hook_messages_total", outcome="malformed")
                continue
            self._own.count("tocsin_hook_messages_total", outcome="taken")
            if isinstance(message, Bye):
                self._drop(peer)
                return
            self._take(peer, message)

    def _take(self, peer: HookConnection, message: Hello | Stats | OutOfMemory | Ack) -> None:
        with self._lock:
            if isinstance(message, Stats):
                peer.stats, peer.heard = message, self._clock.monotonic()
            elif isinstance(message, Hello):
                peer.process, peer.every = message.process, message.every_seconds
            elif isinstance(message, OutOfMemory):
                self._ooms.append((self._clock.now_ms(), peer.pid, message))
            else:
                self._end(peer, message.id, message.outcome, message.seconds, message.detail)

    def _end(self, peer: HookConnection, name: str, outcome: str, seconds: float, detail: str) -> None:
        kind = self._asked.pop((name, peer.pid), None)
        peer.asked.discard(name)
        if kind is None:
            return
        self._outcomes.append(HookOutcome(name, peer.pid, kind, outcome, seconds, detail, self._clock.now_ms()))
        self._own.count("tocsin_hook_requests_total", kind=kind, outcome=outcome)

    def _drop(self, peer: HookConnection) -> None:
        self._selector.unregister(peer.connection)
        with self._lock:
            self._peers.pop(peer.connection.fileno(), None)
            for name in sorted(peer.asked):
                self._end(peer, name, LOST, 0.0, "the process has gone")
        with contextlib.suppress(OSError):
            peer.connection.close()
        self._own.set("tocsin_hook_processes", len(self._peers))

    def place(self, found: Mapping[str, Iterable[int]]) -> None:
        """Remember which processes are on which GPU, so that `request` can be told a GPU."""
        self.placed = {gpu: frozenset(pids) for gpu, pids in found.items()}

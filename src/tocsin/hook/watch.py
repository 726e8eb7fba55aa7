"""The hook itself: counts steps, samples allocators at step boundaries, talks to the agent from a thread of its own.

Two rules keep a training job safe from it. Nothing here waits for the agent or raises into the script: a socket that is
away, full or slow costs a sample, never a step. And whatever touches the allocator or the job's own state (samples,
emptying the cache, a checkpoint) runs in the training thread at a step boundary, where no kernel launch of the job is
half done; the thread of the hook only sends and receives.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import sys
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from tocsin.domain.clock import Clock, SystemClock
from tocsin.hook.memory import JaxMemory, TorchMemory, capturing, name_of, torch_loaded
from tocsin.hook.wire import (
    CHECKPOINT,
    DONE,
    EMPTY_CACHE,
    EXPIRED,
    FAILED,
    MAX_MESSAGE,
    REFUSED,
    REQUESTS,
    VERSION,
    pack,
    unpack,
)

FIRST_PAUSE = 1.0
LAST_PAUSE = 30.0
"""Seconds between two attempts to reach an agent that is not there: doubled from the first to the last."""
MOST_AT_ONCE = 32
"""Packets taken in one go; more wait for the next."""


class Link:
    """A connection to the agent at `path` that may or may not be there.

    Not safe for two threads at once. `lost` counts messages that could not be sent.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.lost = 0
        self._socket: socket.socket | None = None
        self._pause = FIRST_PAUSE
        self._next = float("-inf")

    @property
    def connected(self) -> bool:
        """Whether there is a connection, as far as is known."""
        return self._socket is not None

    def fileno(self) -> int:
        """The descriptor to wait on, -1 where there is none."""
        return -1 if self._socket is None else self._socket.fileno()

    def ensure(self, now: float) -> bool:
        """Try to connect where that is due at `now` (seconds, monotonic); whether a new connection was made."""
        if self._socket is not None or now < self._next or not hasattr(socket, "AF_UNIX"):
            return False
        made: socket.socket | None = None
        try:
            made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            made.setblocking(False)
            made.connect(self.path)
        except OSError:
            if made is not None:
                made.close()
            self._next = now + self._pause
            self._pause = min(2 * self._pause, LAST_PAUSE)
            return False
        self._socket = made
        self._pause = FIRST_PAUSE
        return True

    def send(self, message: dict[str, Any]) -> bool:
        """Send without waiting; a message that the socket does not take at once is lost and counted."""
        if self._socket is None:
            self.lost += 1
            return False
        try:
            self._socket.send(pack(message))
        except (BlockingIOError, ValueError):
            self.lost += 1
            return False
        except OSError:
            self.lost += 1
            self.close()
            return False
        return True

    def receive(self) -> list[dict[str, Any]]:
        """What has come in; what cannot be read is left out."""
        found: list[dict[str, Any]] = []
        for _ in range(MOST_AT_ONCE):
            if self._socket is None:
                break
            try:
                packet = self._socket.recv(MAX_MESSAGE + 1)
            except BlockingIOError:
                break
            except OSError:
                packet = b""
            if not packet:
                self.close()
                break
            try:
                found.append(unpack(packet))
            except ValueError:
                continue
        return found

    def close(self) -> None:
        """Give up the connection; the next attempt is due at once. Safe to repeat."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
            self._next = float("-inf")


REMEMBERED = 64
"""Requests whose outcome is kept, so that one that comes twice is carried out once."""
WAITING = 16
"""Requests that may wait for a boundary at once."""
LONGEST_WAIT = 7 * 86_400.0
"""Seconds after which no request may still be begun."""
LONGEST_DETAIL = 200


@dataclass(frozen=True, slots=True)
class HookOrder:
    """One request, to be begun before `deadline` (seconds, monotonic)."""

    id: str
    kind: str
    deadline: float


class Orders:
    """Requests between their coming and their acknowledgement.

    `take` and `expire` belong to the hook's own thread, `carry_out` to the training thread; what passes between them
    is a deque, whose ends are safe. `acknowledge` gets each acknowledgement.
    """

    def __init__(
        self, now: Callable[[], float], empty_cache: Callable[[], int], acknowledge: Callable[[dict[str, Any]], None]
    ) -> None:
        self.on_checkpoint: list[Callable[[], object]] = []
        self._now = now
        self._empty_cache = empty_cache
        self._acknowledge = acknowledge
        self._waiting: deque[HookOrder] = deque()
        self._known: OrderedDict[str, dict[str, Any] | None] = OrderedDict()

    @property
    def waiting(self) -> bool:
        return bool(self._waiting)

    def take(self, message: dict[str, Any]) -> None:
        """Accept a request, or answer at once that it cannot be."""
        name, kind = message.get("id"), message.get("do")
        seconds: Any = message.get("expires_s")
        if not isinstance(name, str) or not name:
            return
        if name in self._known:
            if (known := self._known[name]) is not None:
                self._acknowledge(known)
            return
        known_kind = isinstance(kind, str) and kind in REQUESTS
        numeric = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if not known_kind or not numeric or not 0 <= seconds <= LONGEST_WAIT:
            self._end(name, REFUSED, "unknown request")
        elif kind == CHECKPOINT and not self.on_checkpoint:
            self._end(name, REFUSED, "the script has registered no function with on_checkpoint")
        elif len(self._waiting) >= WAITING:
            self._end(name, REFUSED, "too many requests wait")
        else:
            self._remember(name, None)
            self._waiting.append(HookOrder(name, str(kind), self._now() + seconds))

    def expire(self) -> None:
        """Answer what has waited too long for a boundary."""
        for _ in range(len(self._waiting)):
            try:
                order = self._waiting.popleft()
            except IndexError:
                break
            if self._now() >= order.deadline:
                self._end(order.id, EXPIRED, "no step ended in time")
            else:
                self._waiting.append(order)

    def carry_out(self) -> None:
        """Do all that waits. What a script's own function raises is its outcome and goes no further."""
        while self._waiting:
            try:
                order = self._waiting.popleft()
            except IndexError:
                break
            begun = self._now()
            if begun >= order.deadline:
                self._end(order.id, EXPIRED, "no step ended in time")
                continue
            try:
                detail = self._do(order.kind)
            except Exception as error:  # noqa: BLE001  # a script's function may raise anything; training goes on
                self._end(order.id, FAILED, f"{type(error).__name__}: {error}", self._now() - begun)
            else:
                self._end(order.id, DONE, detail, self._now() - begun)

    def forget(self) -> None:
        """Drop all: in a forked child they are the parent's."""
        self._waiting.clear()
        self._known.clear()

    def _do(self, kind: str) -> str:
        if kind == EMPTY_CACHE:
            gc.collect()
            return f"{self._empty_cache()} bytes returned"
        for function in tuple(self.on_checkpoint):
            function()
        return f"{len(self.on_checkpoint)} function{'s' if len(self.on_checkpoint) != 1 else ''} called"

    def _end(self, name: str, outcome: str, detail: str, seconds: float = 0.0) -> None:
        known = {
            "kind": "ack",
            "id": name,
            "outcome": outcome,
            "seconds": round(seconds, 6),
            "detail": detail[:LONGEST_DETAIL],
        }
        self._remember(name, known)
        self._acknowledge(known)

    def _remember(self, name: str, known: dict[str, Any] | None) -> None:
        self._known[name] = known
        while len(self._known) > REMEMBERED:
            self._known.popitem(last=False)


SAMPLE_SECONDS = 5.0
"""Time between two samples where nothing else is asked for."""
SNAPSHOT_SAMPLES = 6
"""A look at free blocks is due every so many samples."""
TURN_SECONDS = 1.0
"""Longest sleep of the hook's thread: how soon it sees that PyTorch was imported."""
STEP_WEIGHT = 0.1
"""Weight of the newest step in the mean step time."""
OUTBOX = 128
"""Messages that may wait for the socket; the oldest go first."""
_OPTIMIZER = "torch.optim.optimizer"


class ProcessWatch:
    """One per process.

    `step` is all that runs in the training thread, and all that it usually does is count. Once a sample interval, and
    only while an agent is connected, it also reads the allocators: between two steps their figures mean something.
    Nothing here raises into the script or waits for the agent.
    """

    def __init__(self, path: str, sample_seconds: float = SAMPLE_SECONDS, clock: Clock | None = None) -> None:
        self._now: Callable[[], float] = (clock or SystemClock()).monotonic
        self._every = sample_seconds
        self._link = Link(path)
        self._torch = TorchMemory(self._now, SNAPSHOT_SAMPLES * sample_seconds)
        self._jax = JaxMemory()
        self._outbox: deque[dict[str, Any]] = deque(maxlen=OUTBOX)
        self.orders = Orders(self._now, self._torch.empty_cache, self._post)
        self.steps = 0
        self.failures = 0
        self.explicit = False
        """Whether the script tells its steps; steps of optimizers then no longer count."""
        self._last = 0.0
        self._mean = 0.0
        self._due = False
        self._asked: float | None = None
        self._next_sample = float("-inf")
        self._optimizer: weakref.ref[Any] | None = None
        self._handle: Any = None
        self._observed = False
        self._busy = False
        self._stopped = False
        self._orphan = False
        self._thread: threading.Thread | None = None
        self._wake: tuple[socket.socket, socket.socket] | None = None

    # in the training thread

    def step(self) -> None:
        self.explicit = True
        self._count()

    def after_optimizer(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        """PyTorch's hook after every optimizer's step: the steps of the first optimizer that is alive count."""
        if self.explicit or self._stopped:
            return
        known = self._optimizer
        first = None if known is None else known()
        if first is None:
            self._optimizer = weakref.ref(optimizer)
        elif first is not optimizer:
            return
        self._count()

    def _count(self) -> None:
        now = self._now()
        last = self._last
        self._last = now
        self.steps += 1
        if last:
            took = now - last
            self._mean = took if not self._mean else self._mean + STEP_WEIGHT * (took - self._mean)
        if self._due and not self._busy:
            self._boundary()
        elif self._orphan:
            self._revive()

    def _boundary(self) -> None:
        self._due = False
        self._busy = True
        try:
            # What a CUDA graph records must hold neither a device synchronisation nor anybody's checkpoint.
            if not capturing():
                self.orders.carry_out()
            self._sample()
        except Exception:  # noqa: BLE001  # the script trains on whatever its allocator answers
            self.failures += 1
        finally:
            self._busy = False
            self._last = self._now()

    def _sample(self) -> None:
        if self._now() < self._next_sample:
            return
        self._next_sample = self._now() + self._every
        message: dict[str, Any] = {"v": VERSION, "kind": "stats", "steps": self.steps, "lost": self._link.lost}
        message["checkpoint"] = bool(self.orders.on_checkpoint)
        if self._mean:
            message["step_s"] = round(self._mean, 6)
        self._post(message | {"devices": self._devices()})

    def _devices(self) -> list[dict[str, Any]]:
        try:
            if not self._observed:
                self._observe()
            return [*self._torch.read(), *self._jax.read()]
        except Exception:  # noqa: BLE001  # a device in error raises anything from every call; steps still count
            self.failures += 1
            return []

    def _observe(self) -> None:
        if (torch := torch_loaded()) is not None:
            self._observed = True
            if (attach := getattr(torch._C, "_cuda_attach_out_of_memory_observer", None)) is not None:
                # Only the native allocator has observers; the others raise.
                with contextlib.suppress(RuntimeError):
                    attach(self.out_of_memory)

    def out_of_memory(self, device: int, requested: int, limit: int, free: int) -> None:
        """PyTorch's observer: an allocation of `requested` bytes failed on `device` with `free` bytes left there."""
        try:
            torch = torch_loaded()
            name = name_of(torch, device) if torch is not None else {}
            self._post({"v": VERSION, "kind": "oom", **name, "requested": requested, "limit": limit, "free": free})
        except Exception:  # noqa: BLE001  # called while an error is already on its way to the script
            self.failures += 1

    def _post(self, message: dict[str, Any]) -> None:
        self._outbox.append(message)
        self._wake_up()

    def _wake_up(self) -> None:
        if (wake := self._wake) is not None:
            # Full means that the thread is about to wake; closed, that it has ended.
            with contextlib.suppress(OSError):
                wake[1].send(b"x")

    # in the hook's own thread

    def start(self) -> None:
        """Start the thread; safe to repeat."""
        if self._thread is not None or self._stopped:
            return
        self._attach()
        self._wake = socket.socketpair()
        for end in self._wake:
            end.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="tocsin-hook", daemon=True)
        self._thread.start()

    def _revive(self) -> None:
        """After a fork, the first step of the child starts a thread of its own; without one the child is unwatched."""
        self._orphan = False
        try:
            self.start()
        except (OSError, RuntimeError):
            self._stopped = True

    def stop(self) -> None:
        """Take the hooks out, say what waits and end the thread; a stopped watch stays stopped."""
        self._post({"v": VERSION, "kind": "bye"})
        self._stopped = True
        if self._handle is not None and not _in_optimizer_step():
            self._handle.remove()
            self._handle = None
        thread, self._thread = self._thread, None
        self._wake_up()
        if thread is not None and thread is not threading.current_thread():
            thread.join(2 * TURN_SECONDS)
        self._close()

    def forked(self) -> None:
        """In a forked child: the connection, the thread and the requests are the parent's. A step starts anew."""
        self._thread = None
        self._orphan = not self._stopped
        self._close()
        self._outbox.clear()
        self.orders.forget()
        self.steps = 0
        self._last = self._mean = 0.0
        self._due = self._busy = False
        self._next_sample = float("-inf")

    def _close(self) -> None:
        self._link.close()
        if self._wake is not None:
            for end in self._wake:
                end.close()
            self._wake = None

    def _run(self) -> None:
        if hasattr(signal, "pthread_sigmask"):
            # A script that blocks a signal to wait for it would otherwise die of the one that this thread gets.
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while not self._stopped:
            try:
                self.turn()
                self._sleep()
            except Exception:  # noqa: BLE001  # the supervisor of the hook's only loop
                self.failures += 1
                threading.Event().wait(TURN_SECONDS)
        self._flush()

    def turn(self) -> None:
        """One round of the thread: find PyTorch, connect, take requests, ask for a sample, send what waits."""
        now = self._now()
        self._attach()
        if self._link.ensure(now):
            self._outbox.appendleft(
                {
                    "v": VERSION,
                    "kind": "hello",
                    "process": Path(sys.argv[0] if sys.argv else "").name[:64],
                    "every_s": self._every,
                }
            )
            self._next_sample = float("-inf")
        for message in self._link.receive():
            if message.get("kind") == "request":
                self.orders.take(message)
        self.orders.expire()
        if self._link.connected:
            self._ask(now)
        self._flush()

    def _ask(self, now: float) -> None:
        """Ask the next boundary for a sample and for what waits; take a sample here where no boundary comes."""
        if now < self._next_sample:
            self._asked = None
        elif self._asked is None:
            self._asked = now
        self._due = self._asked is not None or self.orders.waiting
        waited = self._asked is not None and now - self._asked >= min(self._every, TURN_SECONDS)
        # A boundary is to be expected soon where the script steps and its present step is not unduly long.
        expected = bool(self._mean) and now - self._last < max(10.0 * self._mean, self._every)
        if waited and not expected:
            self._sample()

    def _attach(self) -> None:
        register = getattr(sys.modules.get(_OPTIMIZER), "register_optimizer_step_post_hook", None)
        if self._handle is None and register is not None and not _in_optimizer_step():
            self._handle = register(self.after_optimizer)

    def _flush(self) -> None:
        if not self._link.connected:
            return
        while self._outbox:
            self._link.send(self._outbox.popleft())

    def _sleep(self) -> None:
        if (wake := self._wake) is None:
            return
        # Not select(): a training process may have more descriptors open than that can count.
        ends = select.poll()
        ends.register(wake[0], select.POLLIN)
        if self._link.connected:
            ends.register(self._link.fileno(), select.POLLIN)
        ends.poll(1000.0 * min(TURN_SECONDS, self._every))
        with contextlib.suppress(BlockingIOError):
            wake[0].recv(4096)


def _in_optimizer_step() -> bool:
    """Whether a thread is within a step of an optimizer.

    It may then be walking PyTorch's hooks, and a change of them would raise in the script.
    """
    for top in sys._current_frames().values():
        frame: FrameType | None = top
        while frame is not None:
            if frame.f_globals.get("__name__") == _OPTIMIZER:
                return True
            frame = frame.f_back
    return False


def enabled() -> bool:
    """Whether ``TOCSIN_HOOK`` leaves the hook on: ``off``, ``0`` and ``no`` turn it into nothing."""
    return os.environ.get("TOCSIN_HOOK", "").lower() not in ("off", "0", "no")


# Without the mark PyTorch's compiler traces into the function and warns of the clock that it finds there.
setattr(ProcessWatch.after_optimizer, "_torchdynamo_disable", True)  # noqa: B010  # functions have no such attribute by type

"""Threads that may be left behind: a call that hangs in the driver costs its GPU alone."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from tocsin.domain.clock import SystemClock

T = TypeVar("T")
Task = Callable[[], T]

PATIENCE_SECONDS = 0.05
"""How long one task may hold up the next before another thread goes on with the rest."""
_CLOCK = SystemClock()
"""Waiting for threads takes real time, whatever clock a test runs on."""


class WaitBudget:
    """The real time that several waits for threads may take together."""

    def __init__(self, seconds: float) -> None:
        self._until = _CLOCK.monotonic() + seconds

    def left(self, least: float = 0.0) -> float:
        """Seconds that are left, `least` in any case."""
        return max(self._until - _CLOCK.monotonic(), least)


@dataclass(eq=False, slots=True)
class _DriverCall(Generic[T]):
    """One task of one round."""

    key: str
    task: Task[T]
    results: dict[str, T] = field(repr=False)
    pending: set[str] = field(repr=False)


class DriverThreads(Generic[T]):
    """Runs tasks one after the other on a thread of their own, and waits for a bounded time.

    While every task is quick one thread does them all, which spares the hand-over between threads; as soon as one takes
    longer than `patience` seconds, another thread goes on with the rest. A task that does not come back in time has no
    result, and its key takes no new task until it does or is abandoned; one that raises has no result either, and its
    error goes to `threading.excepthook`.
    A result counts only for the round that asked for it: `run` gives a copy of what was there in time, and a task that
    comes back later only frees its key, so that no old value is ever dated to a new instant.
    A thread stuck in the driver cannot be stopped: killing its process in the middle of a call can wedge a GPU.
    """

    def __init__(self, patience: float = PATIENCE_SECONDS, name: str = "nvml") -> None:
        self._name = name
        self._patience = patience
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._done = threading.Condition(self._lock)
        self._queue: deque[_DriverCall[T]] = deque()
        self._busy: dict[str, _DriverCall[T]] = {}
        self._abandoned: set[_DriverCall[T]] = set()
        self._idle = 0
        self._closed = False

    @property
    def stuck(self) -> frozenset[str]:
        """Keys whose task is still out, those that were abandoned apart."""
        with self._lock:
            return frozenset(self._busy)

    @property
    def left_behind(self) -> int:
        """How many abandoned tasks have not come back."""
        with self._lock:
            return len(self._abandoned)

    def run(self, tasks: Mapping[str, Task[T]], seconds: float) -> dict[str, T]:
        """Results by key of the tasks that came back within `seconds`; a key that is stuck is not asked again."""
        results: dict[str, T] = {}
        until = _CLOCK.monotonic() + seconds
        with self._lock:
            pending = {key for key in tasks if key not in self._busy}
            jobs = [_DriverCall(key, tasks[key], results, pending) for key in tasks if key in pending]
            if not jobs:
                return results
            self._busy.update((job.key, job) for job in jobs)
            self._queue.extend(jobs)
            self._engage()
            while pending and (left := until - _CLOCK.monotonic()) > 0:
                before = len(pending)
                self._done.wait(min(left, self._patience))
                if len(pending) == before and self._queue:
                    self._engage()
            # What no thread came to is not stuck: it may be asked again at once.
            for job in jobs:
                if job in self._queue:
                    self._queue.remove(job)
                    self._busy.pop(job.key, None)
            return dict(results)

    def wait(self, keys: Collection[str], seconds: float) -> None:
        """Wait until no task of `keys` is out, for so long at most."""
        budget = WaitBudget(seconds)
        with self._lock:
            while not self._busy.keys().isdisjoint(keys) and (left := budget.left()) > 0:
                self._done.wait(min(left, self._patience))

    def abandon(self, key: str) -> None:
        """Let `key` take tasks again although one is still out; that one's result counts for nothing."""
        with self._lock:
            job = self._busy.pop(key, None)
            if job is not None:
                self._abandoned.add(job)

    def close(self) -> None:
        """Let idle threads end; a stuck one ends when its call returns."""
        with self._lock:
            self._closed = True
            self._work.notify_all()

    def _engage(self) -> None:
        """Set one more thread to work; the lock is held."""
        if self._idle:
            self._idle -= 1
            self._work.notify()
        else:
            threading.Thread(target=self._serve, name=self._name, daemon=True).start()

    def _serve(self) -> None:
        while (job := self._next()) is not None:
            try:
                result = job.task()
            except BaseException:
                self._finish(job)
                raise
            self._finish(job, result)

    def _next(self) -> _DriverCall[T] | None:
        with self._lock:
            while not self._queue:
                if self._closed:
                    return None
                self._idle += 1
                self._work.wait()
            return self._queue.popleft()

    def _finish(self, job: _DriverCall[T], *result: T) -> None:
        with self._lock:
            self._abandoned.discard(job)
            if self._busy.get(job.key) is job:
                del self._busy[job.key]
                for value in result:
                    job.results[job.key] = value
            job.pending.discard(job.key)
            if not job.pending:
                self._done.notify_all()

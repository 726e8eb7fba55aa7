"""Long calculations for queries: each in a process of its own, bounded in time, its answer kept for a while."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Generic, TypeVar, cast

from tocsin.domain.clock import Clock
from tocsin.domain.errors import TocsinError, Unavailable

P = TypeVar("P")
R = TypeVar("R")

AT_ONCE = 2
"""Calculations that may run side by side: each takes a core."""
_NICE = 10
"""They give way to all that the service does itself."""


@dataclass(frozen=True, slots=True)
class Made(Generic[R]):
    """An answer, and how many seconds it took."""

    value: R
    took_s: float


@dataclass
class _Calculation:
    """`begun_s` and `ended_s` are on the monotonic clock; `error` says why there is no `made`."""

    begun_s: float
    done: threading.Event = field(default_factory=threading.Event)
    made: Made[Any] | None = None
    error: str = "it failed; the service's error output says why"
    ended_s: float = 0.0


class BackgroundTasks:
    """One calculation of each name at a time; safe to use from several threads.

    An answer is given for `keep_s` seconds; after that the old one is given once more while the new one is made. A
    calculation that takes longer than `limit_s` is ended. Without `apart` it is done in the caller's thread.
    """

    def __init__(
        self, clock: Clock, *, apart: bool, wait_s: float = 2.0, limit_s: float = 120.0, keep_s: float = 60.0
    ) -> None:
        self._clock = clock
        self._apart = apart
        self._wait_s, self._limit_s, self._keep_s = wait_s, limit_s, keep_s
        self._lock = threading.Lock()
        self._running: dict[str, _Calculation] = {}
        self._ended: dict[str, _Calculation] = {}

    def ask(self, name: str, work: Callable[[P], R], part: Callable[[], P]) -> Made[R]:
        """What `work` makes of `part()`; both it and the answer must be fit to be sent to another process.

        Raises Unavailable where it is not ready within `wait_s`, did not end in time, or its process died.
        """
        with self._lock:
            last, job = self._ended.get(name), self._running.get(name)
            fresh = last is not None and self._clock.monotonic() - last.ended_s < self._keep_s
            if not fresh and job is None and len(self._running) < AT_ONCE:
                job = self._running[name] = _Calculation(self._clock.monotonic())
                self._start(name, job, work, part)
        if last is not None and (fresh or (last.made is not None and (job is None or not job.done.is_set()))):
            return _answer(last)
        if job is None:
            raise Unavailable("other plans and forecasts are being worked out; ask again in a few seconds")
        if not job.done.wait(self._wait_s):
            raise Unavailable(self._progress(name, job, last))
        return _answer(job)

    def _progress(self, name: str, job: _Calculation, last: _Calculation | None) -> str:
        so_far = f"{name} is being worked out, for {self._clock.monotonic() - job.begun_s:.0f} s so far"
        before = f", the last one took {last.made.took_s:.0f} s" if last is not None and last.made is not None else ""
        return f"{so_far}{before}, at most {self._limit_s:.0f} s; ask again in a few seconds"

    def _start(self, name: str, job: _Calculation, work: Callable[[P], R], part: Callable[[], P]) -> None:
        if self._apart:
            threading.Thread(
                target=self._do, args=(name, job, work, part), name=f"background-{name}", daemon=True
            ).start()
        else:
            self._settle(job, lambda: work(part()))
            self._end(name, job)

    def _do(self, name: str, job: _Calculation, work: Callable[[P], R], part: Callable[[], P]) -> None:
        try:
            self._settle(job, lambda: _in_process(work, part(), self._limit_s))
        finally:
            with self._lock:
                self._end(name, job)

    def _settle(self, job: _Calculation, make: Callable[[], object]) -> None:
        begun = self._clock.monotonic()
        try:
            job.made = Made(make(), self._clock.monotonic() - begun)
        except TocsinError as error:
            job.error = str(error)

    def _end(self, name: str, job: _Calculation) -> None:
        job.ended_s = self._clock.monotonic()
        self._running.pop(name, None)
        self._ended[name] = job
        job.done.set()


def _answer(job: _Calculation) -> Made[Any]:
    if job.made is None:
        raise Unavailable(job.error)
    return job.made


def _in_process(work: Callable[[P], R], part: P, limit_s: float) -> R:
    """What `work` answers. Raises Unavailable where it fails, does not end in time, or its process dies."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(there, work, part), daemon=True)
    process.start()
    there.close()
    try:
        if not here.poll(limit_s):
            raise Unavailable(f"it took longer than {limit_s:.0f} s and was ended; lower planning.effort")
        ready, value = here.recv()
    except EOFError as error:
        raise Unavailable("its process died; the service's error output says why") from error
    finally:
        here.close()
        process.terminate()
        process.join()
    if not ready:
        raise Unavailable(value)
    return cast("R", value)


def _child(answers: Connection, work: Callable[[P], R], part: P) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(_NICE)
    try:
        answers.send((True, work(part)))
    except TocsinError as error:
        answers.send((False, str(error)))

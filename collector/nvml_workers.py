"""Threads that may be left behind: one per GPU, so that a call that hangs in the driver costs that GPU alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")
Task = Callable[[], T]


class Workers(Generic[T]):
    """Runs tasks side by side, each key on a daemon thread of its own, and waits for a bounded time.

    A task that does not come back in time has no result, and its key takes no new task until it does; one that raises
    has no result either, and its error goes to `threading.excepthook`.
    A thread stuck in the driver cannot be stopped: killing its process in the middle of a call can wedge a GPU.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._round = 0
        self._results: dict[str, T] = {}
        self._inboxes: dict[str, SimpleQueue[tuple[int, Task[T]] | None]] = {}
        self._busy: set[str] = set()

    @property
    def stuck(self) -> bool:
        """Whether a task is still out."""
        with self._changed:
            return bool(self._busy)

    def run(self, tasks: Mapping[str, Task[T]], seconds: float) -> dict[str, T]:
        """Results by key of the tasks that came back within `seconds`."""
        with self._changed:
            self._round += 1
            self._results = {}
            started = [key for key in tasks if key not in self._busy]
            for key in started:
                self._busy.add(key)
                self._inbox(key).put((self._round, tasks[key]))
            self._changed.wait_for(lambda: len(self._results) == len(started), seconds)
            return dict(self._results)

    def close(self) -> None:
        """Let idle threads end; a stuck one ends when its call returns."""
        with self._changed:
            for inbox in self._inboxes.values():
                inbox.put(None)
            self._inboxes.clear()

    def _inbox(self, key: str) -> SimpleQueue[tuple[int, Task[T]] | None]:
        inbox = self._inboxes.get(key)
        if inbox is None:
            inbox = self._inboxes[key] = SimpleQueue()
            threading.Thread(target=self._work, args=(key, inbox), name=f"nvml {key}", daemon=True).start()
        return inbox

    def _work(self, key: str, inbox: SimpleQueue[tuple[int, Task[T]] | None]) -> None:
        while (job := inbox.get()) is not None:
            number, task = job
            try:
                result = task()
            except BaseException:
                with self._changed:
                    self._busy.discard(key)
                    self._inboxes.pop(key, None)
                raise
            with self._changed:
                self._busy.discard(key)
                if number == self._round:
                    self._results[key] = result
                    self._changed.notify_all()

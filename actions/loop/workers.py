"""Where executors are called: a manager that answers slowly must not hold up the decisions about other subjects."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol, TypeVar

T = TypeVar("T")


class Workers(Protocol):
    """Runs executions and post-checks."""

    def submit(self, work: Callable[[], T], /) -> Future[T]:
        """Begin `work`, now or soon."""
        ...

    def close(self) -> None:
        """Begin nothing more; what has not begun is given up."""
        ...


class Inline:
    """Runs them at once, in the thread that asks; what they raise goes through."""

    def submit(self, work: Callable[[], T], /) -> Future[T]:
        done: Future[T] = Future()
        done.set_result(work())
        return done

    def close(self) -> None:
        """Nothing to end."""


class Threads:
    """Runs up to `count` of them beside each other."""

    def __init__(self, count: int = 8) -> None:
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="execution")

    def submit(self, work: Callable[[], T], /) -> Future[T]:
        return self._pool.submit(work)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

"""How far long work is, told to whoever listens: nobody, unless the command line shows a bar."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol, TypeVar

Item = TypeVar("Item")


class ProgressBar(Protocol):
    """One piece of work that goes on."""

    def advance(self, steps: float = 1.0) -> None:
        """So many more steps are done."""

    def close(self) -> None:
        """It has ended, done or not."""


class Listener(Protocol):
    """Who shows bars."""

    def begin(self, what: str, total: float | None) -> ProgressBar:
        """Work called `what` begins; `total` steps, or None where that is not known."""


class _Nobody:
    """Work that nobody watches, or that is a part of work that is watched already."""

    def advance(self, steps: float = 1.0) -> None:  # noqa: ARG002  # nobody counts
        return

    def close(self) -> None:
        return


_listener: ContextVar[Listener | None] = ContextVar("progress", default=None)


@contextmanager
def heard_by(listener: Listener | None) -> Iterator[None]:
    """Within, `listener` hears of long work in this thread; None: nobody does."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def is_heard() -> bool:
    """Whether anybody would see a bar now."""
    return _listener.get() is not None


@contextmanager
def work(what: str, total: float | None = None) -> Iterator[ProgressBar]:
    """A piece of long work, of `total` steps where that is known. Work within it is a part of it and has no bar."""
    listener = _listener.get()
    if listener is None:
        yield _Nobody()
        return
    bar = listener.begin(what, total)
    try:
        with heard_by(None):
            yield bar
    finally:
        bar.close()


def track(items: Iterable[Item], what: str, total: float | None = None) -> Iterator[Item]:
    """`items`, each a step of the work `what` once the next is asked for."""
    if total is None and isinstance(items, Sized):
        total = len(items)
    with work(what, total) as bar:
        for item in items:
            yield item
            bar.advance()

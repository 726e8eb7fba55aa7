"""The bar that commands show while long work goes on: on standard error, on a terminal alone, never beside JSON."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tocsin.domain.clock import Clock, SystemClock
from tocsin.domain.progress import heard_by

if TYPE_CHECKING:
    from click._termui_impl import ProgressBar

F = TypeVar("F", bound=Callable[..., Any])
DRAW_SECONDS = 0.1
"""Shortest time between two drawings."""
TOTAL = 10_000
"""Steps of the bar itself, whatever the work counts."""
WIDTH = 24


class TerminalBar:
    """One line on standard error: name, share done, rate, time that is left."""

    def __init__(self, what: str, total: float | None, clock: Clock) -> None:
        self._what = what
        self._total = total or None
        self._clock = clock
        self._begun = self._drawn = clock.monotonic()
        self._done = 0.0
        self._shown = 0
        self._bar: ProgressBar[int] = click.progressbar(
            iter(()),
            length=TOTAL if self._total else None,
            label=f"{what:<16}",
            width=WIDTH,
            file=sys.stderr,
            show_eta=False,  # click's own starts with the second second, and by a clock of its own
            show_percent=self._total is not None,
            item_show_func=self._pace,
        )
        self._bar.__enter__()

    def advance(self, steps: float = 1.0) -> None:
        """So many more are done; drawn ten times a second at most."""
        self._done += steps
        now = self._clock.monotonic()
        if now - self._drawn >= DRAW_SECONDS:
            self._drawn = now
            self._draw()

    def _draw(self) -> None:
        reached = int(TOTAL * min(1.0, self._done / self._total)) if self._total else int(self._done)
        self._bar.update(reached - self._shown, reached)
        self._shown = reached

    def _pace(self, _item: int | None) -> str:
        seconds = self._clock.monotonic() - self._begun
        rate = self._done / seconds if seconds > 0 else 0.0
        pace = f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.2g}/s"
        if self._total is None or rate <= 0 or self._done >= self._total:
            return pace
        return f"{pace}  {_clock(round((self._total - self._done) / rate))} left"

    def close(self) -> None:
        """Draw how far it came, and end the line."""
        self._draw()
        self._bar.__exit__(None, None, None)


def _clock(seconds: int) -> str:
    return f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


class Terminal:
    """Shows bars on standard error."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()

    def begin(self, what: str, total: float | None) -> TerminalBar:
        return TerminalBar(what, total, self._clock)


@contextmanager
def bars(as_json: bool) -> Iterator[None]:
    """Within, long work shows a bar where standard error is a terminal and no JSON was asked for."""
    with heard_by(None if as_json or not sys.stderr.isatty() else Terminal()):
        yield


def with_bars(function: F) -> F:
    """A command whose long work shows bars, unless its option ``--json`` was given."""

    @wraps(function)
    def run(*arguments: Any, **options: Any) -> Any:
        with bars(bool(options.get("as_json"))):
            return function(*arguments, **options)

    return run  # type: ignore[return-value]  # the signature is that of `function`

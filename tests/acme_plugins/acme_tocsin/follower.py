"""Follower ``acme_board``: temperatures that the site's building management writes into a file beside the store."""

from __future__ import annotations

from pathlib import Path

from tocsin.domain.batch import Batch
from tocsin.domain.reading import MAX_FUTURE_MS, Gpu, Reading
from tocsin.runtime.brain.brain import Brain

FILE = "acme_board.txt"
"""A line each: UUID, host, Celsius and milliseconds since 1970."""
MOST_BYTES = 1_000_000


class Board:
    """Implements `tocsin.runtime.brain.follower.Follower`."""

    name = "acme_board"
    every_seconds = 10.0
    on_standby = False
    before_start = False

    def __init__(self, brain: Brain, path: Path) -> None:
        self._brain = brain
        self._path = path
        self._newest_ms = 0

    def look(self) -> None:
        try:
            if self._path.stat().st_size > MOST_BYTES:
                raise ValueError("the file is too long")
            lines = [line.split() for line in self._path.read_text().splitlines()]
            found = [self._reading(*line) for line in lines]
        except (OSError, TypeError, ValueError):  # a line of another length is a TypeError
            self._brain.metrics.count("tocsin_source_failures_total", source=self.name)
            return
        new = [one for one in found if one.at_ms > self._newest_ms]
        if new:
            self._brain.accept(Batch(readings=new))
            self._newest_ms = max(one.at_ms for one in new)

    def _reading(self, uuid: str, host: str, celsius: str, at_ms: str) -> Reading:
        """Raises ValueError for a time or a temperature that cannot be."""
        when, value = int(at_ms), float(celsius)
        if not 0 <= when <= self._brain.clock.now_ms() + MAX_FUTURE_MS or not -50 < value < 200:
            raise ValueError("out of range")
        return Reading(Gpu(uuid, host), when, {"gpu_temperature_celsius": value})

    def close(self) -> None:
        """Nothing is held."""


def open_board(brain: Brain) -> Board | None:
    """What the entry point names; None where the site has no such file."""
    path = brain.settings.store.path.parent / FILE
    return Board(brain, path) if path.exists() else None

"""Follower ``acme_board``: temperatures that the site's building management writes into a file beside the store."""

from __future__ import annotations

from pathlib import Path

from tocsin.domain.batch import Batch
from tocsin.domain.reading import Gpu, Reading
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
            found = [
                Reading(Gpu(uuid, host), int(at_ms), {"gpu_temperature_celsius": float(celsius)})
                for uuid, host, celsius, at_ms in lines
            ]
        except (OSError, ValueError):
            self._brain.metrics.count("tocsin_source_failures_total", source=self.name)
            return
        new = [one for one in found if one.at_ms > self._newest_ms]
        if new:
            self._brain.accept(Batch(readings=new))
            self._newest_ms = max(one.at_ms for one in new)

    def close(self) -> None:
        """Nothing is held."""


def open_board(brain: Brain) -> Board | None:
    """What the entry point names; None where the site has no such file."""
    path = brain.settings.store.path.parent / FILE
    return Board(brain, path) if path.exists() else None

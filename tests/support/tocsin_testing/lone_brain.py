"""A brain over the embedded store without an API, a worker or a simulated fleet."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tocsin.config.settings import Settings
from tocsin.domain.clock import ManualClock
from tocsin.runtime.brain.assembly import RunningBrain, open_brain
from tocsin_testing.builders import T0


@contextmanager
def lone_brain(folder: Path) -> Iterator[RunningBrain]:
    """One with its files in `folder`, at `T0`, stopped at the end."""
    wanted = {
        "store": {"path": folder / "s.db"},
        "journal": {"path": folder / "j.db"},
        "forecast": {"worker": False},
    }
    running = open_brain(Settings.model_validate(wanted), ManualClock(T0))
    try:
        yield running
    finally:
        running.stop()

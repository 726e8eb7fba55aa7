"""What a brain's start over a store costs, in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from tocsin.config.settings import Settings
from tocsin.domain.clock import ManualClock
from tocsin.runtime.brain.assembly import open_brain
from tocsin_testing.process_cost import peak_bytes


@dataclass(frozen=True, slots=True)
class StartCost:
    """`gpus` are those it knows of then; times in seconds, `bytes` the most that it held."""

    gpus: int
    wall: float
    cpu: float
    bytes: int


def settings_in(folder: Path) -> Settings:
    """A brain with all its files in `folder`."""
    plain = Settings()
    return plain.model_copy(
        update={
            "store": plain.store.model_copy(update={"path": folder / "store.db"}),
            "journal": plain.journal.model_copy(update={"path": folder / "journal.db"}),
            "forecast": plain.forecast.model_copy(update={"worker": False, "models": folder / "models"}),
        }
    )


def cost_of_start(folder: Path, now_ms: int) -> StartCost:
    """Of a brain over `folder` at `now_ms`."""
    start = multiprocessing.get_context("spawn")
    here, there = start.Pipe(duplex=False)
    process = start.Process(target=_start, args=(folder, now_ms, there))
    process.start()
    there.close()
    try:
        found = here.recv()
    finally:
        here.close()
        process.join()
    assert isinstance(found, StartCost)
    return found


def _start(folder: Path, now_ms: int, pipe: Connection) -> None:
    begun, cpu = time.monotonic(), time.process_time()
    running = open_brain(settings_in(folder), ManualClock(now_ms))
    wall, own = time.monotonic() - begun, time.process_time() - cpu
    pipe.send(StartCost(len(running.brain.gpus), wall, own, peak_bytes(os.getpid())))
    running.stop()

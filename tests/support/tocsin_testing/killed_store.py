"""An embedded store in a process that can be killed at any instant: it writes, compacts, joins and rolls up."""

from __future__ import annotations

import os
from multiprocessing.process import BaseProcess
from pathlib import Path

from tocsin.domain.batch import Batch
from tocsin.domain.clock import DAY, MINUTE
from tocsin.domain.metrics import variant
from tocsin.domain.reading import Gpu, Reading
from tocsin.store.embedded.store import SqliteStore
from tocsin.store.upkeep import Retention
from tocsin_testing.brain_child import context

GPUS = 4
STEP = 10
"""Minutes between two readings."""
KEEP = Retention(DAY // 4, 10**6 * DAY, 10**6 * DAY)


def start_store(path: Path, number: int, start_ms: int, told: Path) -> BaseProcess:
    """Write readings from minute `number` after `start_ms` on without an end; each that is kept is a line in `told`."""
    process = context().Process(target=_work, args=(path, number, start_ms, told))
    process.start()
    return process


def _work(path: Path, number: int, start_ms: int, told: Path) -> None:
    store = SqliteStore(path)
    fleet = [Gpu(f"GPU-{n}", "node-1", n) for n in range(GPUS)]
    link = variant("gpu_nvlink_up", "link", "0")
    file = os.open(told, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    while True:
        for _ in range(6):
            now = start_ms + number * MINUTE
            values = {"gpu_power_watts": float(number), link: 1.0}
            store.write(Batch(readings=[Reading(gpu, now, values) for gpu in fleet]))
            # One call of the system: a process that is killed leaves a whole line or none.
            os.write(file, f"{number}\n".encode())
            number += STEP
        store.maintain(now, KEEP)

"""Whole brains of several cells of one fleet, each in a thread, over a real PostgreSQL."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import httpx2

from tocsin.config.settings import Settings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import SystemClock
from tocsin.runtime.brain.assembly import run_brain
from tocsin.store.line_protocol.encode import encode
from tocsin_testing import servers

PATIENCE = 30.0


class ThreadedBrain:
    """A brain over a PostgreSQL, in a thread; `sections` of its settings go before those that it has here."""

    def __init__(self, folder: Path, database: str, port: int, sections: dict[str, object]) -> None:
        folder.mkdir(exist_ok=True)
        self.url = f"http://127.0.0.1:{port}"
        self.settings = Settings.model_validate(
            {
                "store": {"kind": "memory"},
                "journal": {"url": database, "lease_seconds": 1.5, "path": folder / "none.db"},
                "api": {"listen": f"127.0.0.1:{port}"},
                "forecast": {"worker": False, "models": folder / "models"},
                "rules": {"evaluate_seconds": 0.2},
            }
            | sections
        )
        self._stop = threading.Event()
        self._announced = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._announced.wait(PATIENCE)

    def _run(self) -> None:
        run_brain(self.settings, SystemClock(), self._stop, lambda _line: self._announced.set())

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(PATIENCE)


class Cell(ThreadedBrain):
    """A brain of a cell of its own."""

    def __init__(
        self, folder: Path, database: str, name: str, settings: dict[str, object] | None = None, **more: object
    ) -> None:
        port = servers.free_port()
        journal = {"url": database, "cell": name, "lease_seconds": 1.5, "path": folder / "none.db"}
        cell = {"fleet": "gpus", "url": f"http://127.0.0.1:{port}", "answer_seconds": 5.0, **more}
        super().__init__(folder, database, port, {"journal": journal, "cell": cell} | (settings or {}))

    def send(self, batch: Batch) -> None:
        """Tell it what an agent would tell."""
        httpx2.post(f"{self.url}/api/v2/write", content=encode(batch), params={"precision": "ms"}).raise_for_status()

    def write(self, host: str, fields: str = "temperature_celsius=40") -> int:
        line = f"gpu,gpu_uuid=GPU-{host},host={host} {fields}"
        return httpx2.post(f"{self.url}/api/v2/write", content=line).status_code


def until(done: Callable[[], bool], pause: float = 0.1) -> None:
    """Look every `pause` seconds; longer where a look is many requests, which an address has so many of in a minute."""
    never = threading.Event()
    for _ in range(round(PATIENCE / pause)):
        if done():
            return
        never.wait(pause)
    raise AssertionError("it does not come to that")

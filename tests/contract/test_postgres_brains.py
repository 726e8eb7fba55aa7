"""Two whole brains on one real PostgreSQL: one acts, the other answers what is read, and takes over with the past."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest

from tocsin.client.client import Client
from tocsin.config.settings import Settings
from tocsin.domain.clock import SystemClock
from tocsin.domain.entry import EntryKind
from tocsin.runtime.brain.assembly import run_brain
from tocsin_testing import servers

pytestmark = pytest.mark.server
PATIENCE = 30.0


class Running:
    """A brain in a thread, over an address of its own."""

    def __init__(self, folder: Path, url: str) -> None:
        folder.mkdir()
        self.url = f"http://127.0.0.1:{(port := servers.free_port())}"
        self.settings = Settings.model_validate(
            {
                "store": {"kind": "memory"},
                "journal": {"url": url, "lease_seconds": 1.5, "path": folder / "none.db"},
                "api": {"listen": f"127.0.0.1:{port}"},
                "forecast": {"worker": False, "models": folder / "models"},
                "rules": {"evaluate_seconds": 0.2},
            }
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

    def ready(self) -> bool:
        return httpx2.get(f"{self.url}/readyz").status_code == 200


def until(done: Callable[[], bool]) -> None:
    never = threading.Event()
    for _ in range(round(PATIENCE / 0.05)):
        if done():
            return
        never.wait(0.05)
    raise AssertionError("it does not come to that")


@pytest.fixture
def database() -> Iterator[servers.Postgres]:
    with servers.postgres() as server:
        yield server


def test_one_acts_and_the_other_reads_and_takes_over(tmp_path: Path, database: servers.Postgres) -> None:
    first = Running(tmp_path / "one", database.url)
    until(first.ready)
    second = Running(tmp_path / "two", database.url)
    with Client(first.url) as one, Client(second.url) as two:
        one.pause("somebody works on the power")
        until(lambda: two.summary().paused)
        assert two.journal_page(limit=5).entries[0].kind == EntryKind.PAUSE
        assert two.verify_journal().problem == ""
        refused = httpx2.post(f"{second.url}/v1/resume", json={})
        assert refused.status_code == 503
        assert "this brain is on standby" in refused.json()["error"]["message"]
        assert "is the active one" in refused.json()["error"]["message"]
        line = "gpu,gpu_uuid=GPU-1,host=node-1 gpu_temperature_celsius=40"
        assert httpx2.post(f"{first.url}/api/v2/write", content=line).status_code == 204
        assert httpx2.post(f"{second.url}/api/v2/write", content=line).status_code == 503
        assert httpx2.get(f"{first.url}/v1/orders", params={"host": "node-1"}).status_code == 200
        assert httpx2.get(f"{second.url}/v1/orders", params={"host": "node-1"}).status_code == 503
        reason = httpx2.get(f"{second.url}/readyz").json()["reasons"][0]
        assert "standby" in reason
        first.stop()
        until(second.ready)
        assert two.summary().paused, "what a person forbade is still forbidden"
        two.resume()
        kinds = [entry.kind for entry in two.journal_page(limit=5).entries]
        assert kinds[0] == EntryKind.RESUME
        assert EntryKind.SERVICE_STARTED in kinds
    second.stop()
    assert not list(tmp_path.rglob("none.db*")), "nothing of the journal is on this host"

"""kill -9 of the brain at random instants under load."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from tocsin.actions.notifications.webhook import REQUESTED
from tocsin.client.client import Client
from tocsin.config.settings import Settings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import HOUR, SystemClock
from tocsin.domain.reading import Reading
from tocsin.journal.files import read_entries
from tocsin.journal.verify import verify
from tocsin.store.embedded.store import SqliteStore
from tocsin.store.line_protocol.encode import encode
from tocsin_testing.brain_child import start_brain
from tocsin_testing.builders import gpu

KILLS = 50
GPUS = 60
RULES = """
[[rules]]
name = "hot"
severity = "critical"
category = "thermal"
action = "throttle"
mode = "act"
alert = "{where}: {value}"
all = [{kind = "threshold", metric = "gpu_temperature_celsius", above = 85}]
"""


def brain_settings(folder: Path, webhook: str) -> Settings:
    (folder / "rules.toml").write_text(RULES)
    (folder / "elsewhere").mkdir()
    return Settings.model_validate(
        {
            "store": {"path": folder / "store.db"},
            # No kill makes the journal look restored: what comes after it is executed without a person.
            "journal": {"path": folder / "journal.db", "witness": folder / "elsewhere" / "witness.json"},
            "api": {"listen": "127.0.0.1:0"},
            "rules": {"path": folder / "rules.toml", "evaluate_seconds": 0.02},
            "forecast": {"worker": False},
            "webhook": {"url": webhook},
            "actions": {
                "mode": "act",
                "executors": ["webhook"],
                "managed_pools": ["default"],
                "confirmations": 1,
                "boot_grace_seconds": 0,
                "settle_seconds": 0,
                "breaker_root_causes": 1000,
                "limits": {
                    "max_concurrent": GPUS,
                    "max_concurrent_ratio": 1,
                    "max_per_host": GPUS,
                    "max_per_rack": GPUS,
                    "min_available_ratio": 0,
                },
            },
        }
    )


class Load:
    """Writes readings until the brain is gone, and remembers what was acknowledged."""

    def __init__(self) -> None:
        self.acknowledged: list[tuple[str, int]] = []
        self.clock = SystemClock()
        self.last_ms = 0

    def run(self, url: str, hot: int, first: Callable[[], object]) -> None:
        """`first` is called once the first write of this run is acknowledged."""
        told = False
        with httpx2.Client(base_url=url, trust_env=False, timeout=10) as client:
            while True:
                # Every write has an instant of its own, so that each is a row that can be missed.
                self.last_ms = max(self.last_ms + 1, self.clock.now_ms())
                readings = [
                    Reading(gpu(n), self.last_ms, {"gpu_temperature_celsius": 95.0 if n < hot else 40.0})
                    for n in range(GPUS)
                ]
                try:
                    answer = client.post(
                        "/api/v2/write",
                        params={"precision": "ms"},
                        content=encode(Batch(readings=readings)),
                        headers={"Content-Type": "text/plain"},
                    )
                except httpx2.HTTPError:
                    return
                if answer.status_code == 204:
                    self.acknowledged += [(reading.gpu.uuid, reading.at_ms) for reading in readings]
                    if not told:
                        told = True
                        first()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_kill_at_fifty_random_instants(tmp_path: Path, httpserver: HTTPServer) -> None:
    executed: Counter[str] = Counter()

    def receive(request: Request) -> Response:
        body = request.get_json()
        if body["type"] == REQUESTED:
            executed[body["id"]] += 1
        return Response(status=204)

    httpserver.expect_request("/hook").respond_with_handler(receive)
    settings = brain_settings(tmp_path, httpserver.url_for("/hook"))
    start = SystemClock().now_ms()
    chance, load = random.Random(20261121), Load()
    for number in range(KILLS):
        process, url = start_brain(settings)
        if number == 0:
            # A brain that may act and has a new journal starts paused.
            with Client(url) as client:
                client.resume()
        killer = threading.Timer(chance.uniform(0.0, 0.4), process.kill)
        if number % 2:
            # Half of the kills come while a brain takes readings, however slow the machine is.
            load.run(url, hot=1 + number, first=killer.start)
        else:
            killer.start()
            load.run(url, hot=1 + number, first=lambda: None)
        if killer.ident is None:
            process.kill()
        else:
            killer.join()
        process.join()
        result = verify(settings.journal.path)
        assert result.ok, f"after kill {number + 1}: {result.problem}"

    store = SqliteStore(settings.store.path)
    kept = {(reading.gpu.uuid, reading.at_ms) for reading in store.readings(start - HOUR, start + 10 * HOUR)}
    store.close()
    assert len(load.acknowledged) >= KILLS * GPUS / 2
    assert [key for key in load.acknowledged if key not in kept] == []
    assert len(executed) >= 5
    assert [name for name, times in executed.items() if times > 1] == []
    starts = Counter(str(e.payload["key"]) for e in read_entries(settings.journal.path, kinds=["execution_started"]))
    assert [key for key, times in starts.items() if times > 1] == []
    # The one of the new journal.
    assert len(list(read_entries(settings.journal.path, kinds=["pause"]))) == 1

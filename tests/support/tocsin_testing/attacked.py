"""A brain under attack, in a process of its own with 1,000 GPUs; a person and a node must not notice."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess

import httpx2

from tocsin.config.settings import Settings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import SystemClock
from tocsin.domain.reading import Gpu, Reading
from tocsin.store.line_protocol.encode import encode
from tocsin_testing.brain_child import start_brain
from tocsin_testing.process_cost import peak_bytes
from tocsin_testing.signed import desks_and_slack

HOSTS, PER_HOST = 125, 8
HOSTILE, HONEST = "node-0", "node-1"
MOST_BYTES = 1_500_000_000
PAUSE_SECONDS, WRITE_SECONDS, PATIENCE_SECONDS = 2.0, 10.0, 60.0


def secret(name: str) -> str:
    return f"{name}-secret-of-sixteen"


def settings_in(folder: str) -> Settings:
    tokens = [
        {"name": f"node-{n}", "role": "agent", "secret": secret(f"node-{n}"), "host": f"node-{n}"} for n in (0, 1)
    ]
    fleet = {"name": "fleet", "role": "agent", "secret": secret("fleet")}
    person = {"name": "anna", "role": "operator", "secret": secret("anna")}
    return Settings.model_validate(
        {
            "store": {"path": f"{folder}/store.db"},
            "journal": {"path": f"{folder}/journal.db"},
            "api": {"listen": "127.0.0.1:0", "tokens": [*tokens, fleet, person], **desks_and_slack()},
            "forecast": {"worker": False},
        }
    )


def readings(host: int, at_ms: int) -> str:
    gpus = [Gpu(uuid=f"GPU-{host:04d}-{n}", host=f"node-{host}", index=n) for n in range(PER_HOST)]
    values = {"gpu_temperature_celsius": 60.0, "gpu_power_watts": 300.0, "gpu_utilization_ratio": 0.5}
    return encode(Batch(readings=[Reading(gpu, at_ms, values) for gpu in gpus]))


@dataclass
class Victim:
    """The brain under attack."""

    url: str
    process: BaseProcess
    clock: SystemClock = field(default_factory=SystemClock)

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.url.removeprefix("http://").split(":")
        return host, int(port)

    def post(self, path: str, who: str, seconds: float, **options: object) -> httpx2.Response:
        """One request on a connection of its own, as a person's command makes it."""
        headers = {"Authorization": f"Bearer {secret(who)}"}
        return httpx2.post(f"{self.url}{path}", headers=headers, timeout=seconds, trust_env=False, **options)  # type: ignore[arg-type]

    def get(self, path: str, who: str) -> httpx2.Response:
        headers = {"Authorization": f"Bearer {secret(who)}"}
        return httpx2.get(f"{self.url}{path}", headers=headers, timeout=WRITE_SECONDS, trust_env=False)

    def pause(self) -> None:
        """A person pauses and resumes, each in time. A pause that came late is over after it: what is tried next starts
        as anew."""
        try:
            for path, body in (("/v1/pause", {"reason": "under attack"}), ("/v1/resume", {})):
                answer = self.post(path, "anna", PAUSE_SECONDS, json=body)
                assert answer.status_code == 200, answer.text
        except httpx2.TimeoutException:
            self.post("/v1/resume", "anna", PATIENCE_SECONDS, json={})
            raise

    def write(self, who: str = HONEST) -> None:
        """The honest node pushes what it read, in time."""
        host = int(HONEST.removeprefix("node-"))
        body = readings(host, self.clock.now_ms())
        answer = self.post("/api/v2/write?precision=ms", who, WRITE_SECONDS, content=body)
        assert answer.status_code == 204, answer.text

    def serves(self) -> None:
        """What must hold through every attack."""
        for _ in range(3):
            self.pause()
            self.write()
        held = peak_bytes(self.process.pid or 0)
        assert held < MOST_BYTES, f"{held:,} bytes since it started"

    def hold(self, stack: ExitStack, count: int, head: str) -> None:
        """Open `count` connections from eight addresses, send `head` on each, and keep them open."""
        for number in range(count):
            source = f"127.0.0.{2 + number % 8}", 0
            sock = stack.enter_context(socket.create_connection(self.address, timeout=20, source_address=source))
            sock.sendall(head.encode())


@contextmanager
def attacked(folder: str) -> Iterator[Victim]:
    """The brain, once all nodes have reported."""
    process, url = start_brain(settings_in(folder))
    made = Victim(url, process)
    try:
        for host in range(HOSTS):
            body = readings(host, made.clock.now_ms())
            assert made.post("/api/v2/write?precision=ms", "fleet", 20, content=body).status_code == 204
        yield made
    finally:
        process.terminate()
        process.join(20)

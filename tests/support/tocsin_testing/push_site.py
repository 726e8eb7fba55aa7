"""A brain over the embedded store that takes what others push, and its API in this process."""

from __future__ import annotations

from pathlib import Path

import httpx2
from fastapi.testclient import TestClient
from pydantic import SecretStr

from tocsin.api.app import create_app
from tocsin.config.access import ApiSettings, RequestLimits, Role, Token
from tocsin.config.settings import Settings
from tocsin.domain.clock import ManualClock
from tocsin.queries.service import BrainService
from tocsin.runtime.brain.assembly import open_brain
from tocsin_testing.builders import T0
from tocsin_testing.pushes import Series

LIMITS = RequestLimits(
    requests_per_second=1e6,
    request_burst=10**6,
    agent_requests_per_second=1e6,
    agent_request_burst=10**6,
    refused_per_second=1e6,
    refused_burst=10**6,
)


def secret(name: str) -> str:
    return f"{name}-secret-of-sixteen"


def series(uuid: str = "GPU-a", host: str = "node-a", temperature: float = 50, at_ms: int = T0) -> Series:
    labels = {"__name__": "DCGM_FI_DEV_GPU_TEMP", "UUID": uuid, "Hostname": host, "gpu": "0"}
    return labels, [(at_ms, temperature)]


class PushSite:
    """A brain over the embedded store, and its API."""

    def __init__(self, folder: Path) -> None:
        wanted = {
            "store": {"path": folder / "store.db"},
            "journal": {"path": folder / "journal.db"},
            "forecast": {"worker": False},
        }
        self.clock = ManualClock(T0)
        self.running = open_brain(Settings.model_validate(wanted), self.clock, propose=True)
        tokens = [
            Token(name=name, role=role, secret=SecretStr(secret(name)), host=host)
            for name, role, host in (
                ("node-a", Role.AGENT, "node-a"),
                ("fleet", Role.AGENT, ""),
                ("anna", Role.OPERATOR, ""),
            )
        ]
        app = create_app(BrainService(self.running.brain), ApiSettings(tokens=tokens, limits=LIMITS), self.clock)
        self.http = TestClient(app, base_url="http://127.0.0.1", client=("127.0.0.1", 1), raise_server_exceptions=False)

    def post(self, path: str, kind: dict[str, str], body: bytes, who: str = "fleet") -> httpx2.Response:
        headers = {**kind, "Authorization": f"Bearer {secret(who)}"} if who else kind
        return self.http.post(path, headers=headers, content=body)  # type: ignore[return-value]

    def temperature(self, uuid: str) -> float | None:
        reading = self.running.brain.memory.reading(uuid)
        return None if reading is None else reading.values.get("gpu_temperature_celsius")

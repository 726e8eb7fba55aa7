"""Two whole brains on one real PostgreSQL: one acts, the other answers what is read, and takes over with the past."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tocsin.client.client import Client
from tocsin.domain.entry import EntryKind
from tocsin_testing import servers
from tocsin_testing.cell_brains import ThreadedBrain, until

pytestmark = pytest.mark.server


class Running(ThreadedBrain):
    """A brain over an address of its own."""

    def __init__(self, folder: Path, database: str) -> None:
        super().__init__(folder, database, servers.free_port(), {})

    def ready(self) -> bool:
        return httpx2.get(f"{self.url}/readyz").status_code == 200


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

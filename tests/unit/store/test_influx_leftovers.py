"""A run of the laws against an InfluxDB leaves neither bucket nor task there, however it ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tocsin.config.settings import StoreSettings
from tocsin.store.port import StoreUnavailable
from tocsin_testing import stores
from tocsin_testing.influx_double import influx_double

SOMEBODY_ELSES = {"name": "grafana", "orgID": "11ab04ec3ecd2000", "retentionRules": []}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[httpx2.Client]:
    """A server with a bucket of somebody else, which the laws are told to use."""
    with influx_double() as url, httpx2.Client(base_url=url) as client:
        for name, value in {"URL": url, "TOKEN": "secret", "ORG": "gpu"}.items():
            monkeypatch.setenv(f"TOCSIN_TEST_INFLUX_{name}", value)
        client.post("/api/v2/buckets", json=SOMEBODY_ELSES).raise_for_status()
        yield client


def names(server: httpx2.Client, kind: str) -> list[str]:
    found: list[dict[str, Any]] = server.get(f"/api/v2/{kind}").json()[kind]
    return [one["name"] for one in found]


def test_what_a_law_makes_is_gone_after_it(server: httpx2.Client, tmp_path: Path) -> None:
    with stores.influx(tmp_path):
        assert len(names(server, "buckets")) > 1
        assert names(server, "tasks")
    assert (names(server, "buckets"), names(server, "tasks")) == (["grafana"], [])


def test_so_is_what_a_law_made_that_failed(
    server: httpx2.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = stores._opened

    def broken(settings: StoreSettings) -> None:
        real(settings).close()
        raise StoreUnavailable("the server went away in the middle of the start")

    monkeypatch.setattr(stores, "_opened", broken)
    with pytest.raises(StoreUnavailable), stores.influx(tmp_path):
        pass
    assert (names(server, "buckets"), names(server, "tasks")) == (["grafana"], [])

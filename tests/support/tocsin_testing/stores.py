"""Every kind of store behind one fixture's interface, with what each of them can promise."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest
from pydantic import SecretStr

from tocsin.config.settings import StoreKind, StoreSettings
from tocsin.store.factory import open_store
from tocsin.store.port import Store
from tocsin_testing import servers


@dataclass(frozen=True)
class Harness:
    """A fresh store. `settle` returns when all that was written can be read."""

    store: Store
    reopen: Callable[[], Store] | None = None
    settle: Callable[[], None] = lambda: None
    rewrites: bool = True
    """A second value of a field at one instant replaces the first."""
    exact: bool = True
    """A float64 comes back bit for bit; else within a part in 1e9."""
    prunes: bool = True
    """`prune` removes readings; else the server does it by its own retention."""


@contextlib.contextmanager
def memory(folder: Path) -> Iterator[Harness]:
    """The store in memory."""
    yield Harness(_opened(StoreSettings(kind=StoreKind.MEMORY)))


@contextlib.contextmanager
def sqlite(folder: Path) -> Iterator[Harness]:
    """The embedded store in a new file."""
    settings = StoreSettings(kind=StoreKind.SQLITE, path=folder / "store.db")
    store = _opened(settings)
    try:
        yield Harness(store, reopen=lambda: _opened(settings))
    finally:
        store.close()


@contextlib.contextmanager
def victoria_metrics(folder: Path) -> Iterator[Harness]:
    """A VictoriaMetrics of its own."""
    with servers.victoria_metrics(folder) as url:
        settings = StoreSettings(kind=StoreKind.VICTORIAMETRICS, url=url, path=folder / "store.db")
        store = _opened(settings)

        def settle() -> None:
            httpx2.get(f"{url}/internal/force_flush").raise_for_status()

        try:
            yield Harness(store, lambda: _opened(settings), settle=settle, rewrites=False, exact=False, prunes=False)
        finally:
            store.close()


@contextlib.contextmanager
def influx(folder: Path) -> Iterator[Harness]:
    """A bucket of its own on the server that TOCSIN_TEST_INFLUX_URL names."""
    settings = influx_from_environment()
    if settings is None:
        pytest.skip("TOCSIN_TEST_INFLUX_URL names no InfluxDB 2 server; no package registry has one to install")
    store = _opened(settings)
    try:
        yield Harness(store, lambda: _opened(settings))
    finally:
        store.close()
        _delete_bucket(settings)


def influx_from_environment() -> StoreSettings | None:
    """Settings for a bucket of its own on the InfluxDB 2 server that TOCSIN_TEST_INFLUX_URL names; None without one."""
    url = os.environ.get("TOCSIN_TEST_INFLUX_URL")
    if not url:
        return None
    return StoreSettings(
        kind=StoreKind.INFLUXDB,
        url=url,
        token=SecretStr(os.environ["TOCSIN_TEST_INFLUX_TOKEN"]),
        org=os.environ["TOCSIN_TEST_INFLUX_ORG"],
        bucket=f"laws-{uuid.uuid4().hex}",
    )


def _delete_bucket(settings: StoreSettings) -> None:
    headers = {"Authorization": f"Token {settings.token.get_secret_value()}"}
    with httpx2.Client(base_url=settings.url, headers=headers) as http:
        for bucket in http.get("/api/v2/buckets", params={"name": settings.bucket}).json()["buckets"]:
            http.delete(f"/api/v2/buckets/{bucket['id']}").raise_for_status()


def _opened(settings: StoreSettings) -> Store:
    store = open_store(settings)
    store.init()
    return store


HARNESSES = {"memory": memory, "sqlite": sqlite, "victoriametrics": victoria_metrics, "influxdb": influx}
"""Kind to maker, each a context manager over an empty folder."""

"""Every kind of store behind one fixture's interface, with what each of them can promise."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx2
from pydantic import SecretStr

from tocsin.config.settings import StoreKind, StoreSettings
from tocsin.plugins import Kind, plugins
from tocsin.store.factory import open_store
from tocsin.store.port import Store
from tocsin_testing.influx_double import influx_double


@dataclass(frozen=True)
class Harness:
    """A fresh store. `settle` returns when all that was written can be read."""

    store: Store
    reopen: Callable[[], Store] | None = None
    settle: Callable[[], None] = lambda: None
    rewrites: bool = True
    """A second value of a field at one instant replaces the first."""
    exact: bool = True
    """A float64 comes back bit for bit; else whole numbers up to 2**53 do, and others within a part in 1e11."""
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
def victoria_metrics(folder: Path, url: str) -> Iterator[Harness]:
    """The VictoriaMetrics at `url`, emptied."""
    httpx2.post(f"{url}/api/v1/admin/tsdb/delete_series", data={"match[]": '{__name__=~".+"}'}).raise_for_status()
    settings = StoreSettings(kind=StoreKind.VICTORIAMETRICS, url=url, path=folder / "words.db")
    store = _opened(settings)

    def settle() -> None:
        httpx2.get(f"{url}/internal/force_flush").raise_for_status()

    try:
        yield Harness(store, lambda: _opened(settings), settle=settle, rewrites=False, exact=False, prunes=False)
    finally:
        store.close()


@contextlib.contextmanager
def influx(folder: Path) -> Iterator[Harness]:
    """A bucket of its own on the server that TOCSIN_TEST_INFLUX_URL names, else on a double."""
    settings = influx_from_environment()
    if settings is None:
        with doubled() as ready:
            yield ready
        return
    with nothing_left(settings):
        store = _opened(settings)
        try:
            yield Harness(store, lambda: _opened(settings), prunes=False)
        finally:
            store.close()


@contextlib.contextmanager
def doubled() -> Iterator[Harness]:
    """A store over a double, whose buckets keep everything."""
    with influx_double() as url:
        days = {"raw_days": 36_500.0, "minute_days": 36_500.0, "ten_minute_days": 36_500.0}
        settings = StoreSettings(kind=StoreKind.INFLUXDB, url=url, token=SecretStr("secret"), org="gpu", **days)
        store = _opened(settings)
        try:
            yield Harness(store, lambda: _opened(settings), prunes=False)
        finally:
            store.close()


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


@contextlib.contextmanager
def nothing_left(settings: StoreSettings) -> Iterator[None]:
    """Removes every bucket and task of `settings` at the end, also those of a start that failed, and makes sure."""
    try:
        yield
    finally:
        headers = {"Authorization": f"Token {settings.token.get_secret_value()}"}
        with httpx2.Client(base_url=settings.url, headers=headers, trust_env=False) as http:
            # Tasks first: one that runs would write to a bucket that is gone.
            for kind in ("tasks", "buckets"):
                for number in _made(http, kind, settings):
                    http.delete(f"/api/v2/{kind}/{number}").raise_for_status()
            left = [number for kind in ("tasks", "buckets") for number in _made(http, kind, settings)]
        assert not left, f"{settings.bucket} left {left} behind"


def _made(http: httpx2.Client, kind: str, settings: StoreSettings) -> list[str]:
    """Numbers of the tasks or buckets that a store of `settings` makes."""
    found: list[str] = []
    for bucket in (settings.bucket, f"{settings.bucket}_1m", f"{settings.bucket}_10m"):
        name = bucket if kind == "buckets" else f"tocsin {bucket}"
        answer = http.get(f"/api/v2/{kind}", params={"name": name, "org": settings.org})
        # A bucket that is not there is an error to release 2.0 and an empty list to later ones.
        there = answer.json().get(kind) or [] if answer.status_code != 404 else []
        found += [str(one["id"]) for one in there if one["name"] == name]
    return found


def _opened(settings: StoreSettings) -> Store:
    store = open_store(settings)
    store.init()
    return store


KINDS = tuple(plugins(Kind.STORE))
"""Every kind of store, those of other packages too; VictoriaMetrics needs a server."""


@contextlib.contextmanager
def of_another_package(kind: str) -> Iterator[Harness]:
    """A store that an installed package adds, by default settings."""
    store = _opened(StoreSettings(kind=kind))
    try:
        yield Harness(store)
    finally:
        store.close()


@contextlib.contextmanager
def harness(kind: str, folder: Path, victoria_url: Callable[[], str]) -> Iterator[Harness]:
    """A fresh store of `kind` over an empty folder."""
    known: dict[str, Callable[[Path], contextlib.AbstractContextManager[Harness]]] = {
        "memory": memory,
        "sqlite": sqlite,
        "victoriametrics": lambda path: victoria_metrics(path, victoria_url()),
        "influxdb": influx,
    }
    with known[kind](folder) if kind in known else of_another_package(kind) as ready:
        yield ready

"""Every store that can be had here, for the laws of `tocsin.store.port.Store`, and both back ends of the journal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tocsin_testing import journals, servers
from tocsin_testing.at_rest import KEY, holding
from tocsin_testing.stores import KINDS, Harness, harness

ENCRYPTED = "sqlite_encrypted"
_MARKS = {
    "victoriametrics": [pytest.mark.server],
    "influxdb": [pytest.mark.server],
}


@pytest.fixture(scope="session")
def victoria_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with servers.victoria_metrics(tmp_path_factory.mktemp("victoria-metrics")) as url:
        yield url


@pytest.fixture(params=[pytest.param(kind, marks=_MARKS.get(kind, [])) for kind in (*KINDS, ENCRYPTED)])
def h(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Harness]:
    if request.param == ENCRYPTED:
        with holding(KEY), harness("sqlite", tmp_path, str) as ready:
            yield ready
        assert b"SQLite format" not in b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
        return
    with harness(request.param, tmp_path, lambda: str(request.getfixturevalue("victoria_url"))) as ready:
        yield ready


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    with servers.postgres() as server:
        yield server.url


@pytest.fixture(params=["sqlite", ENCRYPTED, pytest.param("postgres", marks=[pytest.mark.server])])
def j(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[journals.Harness]:
    if request.param != "postgres":
        with holding(*([KEY] if request.param == ENCRYPTED else [])):
            yield journals.FileHarness(tmp_path)
        return
    made = journals.DatabaseHarness(tmp_path, str(request.getfixturevalue("postgres_url")))
    yield made
    made.database.close()

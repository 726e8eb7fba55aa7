"""The paths of a VictoriaMetrics cluster, in front of a real server: one address writes, another reads."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
import numpy as np
import pytest
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from tocsin.config.settings import StoreKind, StoreSettings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import MINUTE, SystemClock
from tocsin.store.factory import open_store
from tocsin.store.port import Store, StoreUnavailable
from tocsin_testing import servers
from tocsin_testing.builders import gpu, reading

pytestmark = pytest.mark.server
NOW = SystemClock().now_ms() // 1_000 * 1_000
INSERT, SELECT = "/insert/7/influx", "/select/7/prometheus"


@dataclass
class Cluster:
    """A double of vminsert and vmselect of tenant 7: each knows its own paths, and one server is behind."""

    server: str
    front: HTTPServer
    asked: list[str] = field(default_factory=list)
    partial: bool = False

    def serve(self) -> None:
        self.front.expect_request(re.compile(".*")).respond_with_handler(self._answer)

    def _answer(self, request: Request) -> Response:
        self.asked.append(request.path)
        for prefix, paths in (
            (INSERT, r"/api/v2/write|/write"),
            (SELECT, r"/api/v1/(query|query_range|series|export)"),
        ):
            rest = request.path.removeprefix(prefix)
            if rest != request.path and re.fullmatch(paths, rest):
                return self._pass_on(request, rest)
        return Response(f"unsupported path requested: {request.path}", 400)

    def _pass_on(self, request: Request, rest: str) -> Response:
        kind = {"Content-Type": request.content_type} if request.content_type else {}
        found = httpx2.request(
            request.method, self.server + rest, params=request.args, content=request.get_data(), headers=kind
        )
        body = found.content
        if self.partial and rest.endswith("query"):
            body = body.replace(b'"status":"success"', b'"status":"success","isPartial":true')
        return Response(body, found.status_code)

    def settings(self, folder: Path) -> StoreSettings:
        base = self.front.url_for("")
        return StoreSettings(
            kind=StoreKind.VICTORIAMETRICS, url=base + INSERT, read_url=base + SELECT, path=folder / "beside.db"
        )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with servers.victoria_metrics(tmp_path_factory.mktemp("vm")) as base:
        yield base


@pytest.fixture
def cluster(server: str, httpserver: HTTPServer) -> Cluster:
    made = Cluster(server, httpserver)
    made.serve()
    return made


@pytest.fixture
def store(cluster: Cluster, tmp_path: Path) -> Iterator[Store]:
    made = open_store(cluster.settings(tmp_path))
    made.init()
    yield made
    made.close()


def test_what_was_written_to_one_address_is_read_from_the_other(cluster: Cluster, store: Store, server: str) -> None:
    store.write(Batch([reading(gpu(n), NOW, temperature_celsius=40 + n) for n in range(3)]))
    httpx2.get(f"{server}/internal/force_flush").raise_for_status()
    found = store.columns(["gpu_temperature_celsius"], NOW - MINUTE, NOW + MINUTE)
    assert list(found.gpus) == [gpu(n).uuid for n in range(3)]
    np.testing.assert_array_equal(found.values[:, 0], [40, 41, 42])
    assert [one.gpu.uuid for one in store.latest(NOW - MINUTE)] == [gpu(n).uuid for n in range(3)]
    assert len(store.gpus()) == 3
    prefixes = {path.rpartition("/api/")[0] for path in cluster.asked}
    assert prefixes == {INSERT, SELECT}


def test_half_an_answer_is_no_answer(cluster: Cluster, store: Store) -> None:
    cluster.partial = True
    with pytest.raises(StoreUnavailable, match="only a part of the cluster"):
        store.latest(NOW - MINUTE)


def test_an_address_that_only_writes_is_found_out_at_once(cluster: Cluster, tmp_path: Path) -> None:
    wrong = cluster.settings(tmp_path).model_copy(update={"read_url": ""})
    made = open_store(wrong)
    with pytest.raises(Exception, match="unsupported path"):
        made.init()
    made.close()


@pytest.mark.parametrize("kind", [StoreKind.SQLITE, StoreKind.INFLUXDB])
def test_other_stores_have_one_address(kind: StoreKind) -> None:
    with pytest.raises(ValueError, match="read_url is for kind victoriametrics"):
        StoreSettings(kind=kind, read_url="http://elsewhere.example")

"""What servers that Tocsin asks may answer: bounded in bytes and time, and never unpacked unasked."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from tocsin import http_client
from tocsin.actions.kubernetes import client as kubernetes_client
from tocsin.actions.kubernetes.api import KubeError
from tocsin.config.kubernetes import KubernetesSettings
from tocsin_testing.quick_server import QuickHttpServer

SMALL, MOST = 1_000, 10_000
Ask = Callable[[], object]
Answer = Callable[[Request], Response]


@pytest.fixture
def server() -> Iterator[HTTPServer]:
    with QuickHttpServer() as made:
        yield made


@pytest.fixture(params=["http_client", "kubernetes"])
def ask(
    request: pytest.FixtureRequest, server: HTTPServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Ask]:
    """Asks `server` once, with `MOST` bytes for an answer; raises HTTPError or KubeError."""
    if request.param == "http_client":
        with http_client.http_client(5.0, base_url=server.url_for(""), most_bytes=MOST) as made:
            yield lambda: made.get("/").json()
        return
    monkeypatch.setattr(kubernetes_client, "MOST_BYTES", MOST)
    named = {
        "cluster": {"server": server.url_for("").rstrip("/")},
        "context": {"cluster": "c", "user": "u"},
        "user": {},
    }
    lists = {f"{kind}s": [{"name": kind[0], kind: content}] for kind, content in named.items()}
    (tmp_path / "config").write_text(json.dumps({"kind": "Config", "current-context": "c", **lists}))
    cluster = kubernetes_client.connect(KubernetesSettings(kubeconfig=tmp_path / "config"))
    yield lambda: cluster.ask("GET", "/")
    cluster.close()


def text_of(size: int) -> bytes:
    return json.dumps({"pad": "x" * size}).encode()


def answers(server: HTTPServer, answer: Answer) -> None:
    server.expect_request("/").respond_with_handler(answer)


def test_an_answer_of_a_usual_size_is_taken(server: HTTPServer, ask: Ask) -> None:
    answers(server, lambda _: Response(text_of(SMALL), content_type="application/json"))
    assert ask() == {"pad": "x" * SMALL}


def test_a_long_answer_is_left_off_though_it_does_not_end(server: HTTPServer, ask: Ask) -> None:
    sent = []

    def endless() -> Iterator[bytes]:
        while len(sent) < 100_000:
            sent.append(1)
            yield b" " * 1_000

    answers(server, lambda _: Response(endless(), content_type="application/json"))
    with pytest.raises((httpx2.HTTPError, KubeError), match=f"larger than {MOST} bytes"):
        ask()
    server.stop()
    assert len(sent) < 100_000


def test_an_answer_that_is_compressed_unasked_is_not_unpacked(server: HTTPServer, ask: Ask) -> None:
    asked = []

    def packed(request: Request) -> Response:
        asked.append(request.headers["Accept-Encoding"])
        headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
        return Response(gzip.compress(text_of(100 * MOST)), headers=headers)

    answers(server, packed)
    with pytest.raises((httpx2.HTTPError, KubeError), match="compressed"):
        ask()
    assert asked == ["identity"]


def test_an_answer_that_comes_too_slowly_ends(server: HTTPServer, monkeypatch: pytest.MonkeyPatch) -> None:
    answers(server, lambda _: Response((b" " * 10 for _ in range(1_000)), content_type="application/json"))
    with http_client.http_client(5.0, base_url=server.url_for("")) as made:
        ended = iter([0.0, 1.0, 10 * 5.0 + 1])
        monkeypatch.setattr(
            http_client, "time", type("Clock", (), {"monotonic": staticmethod(lambda: next(ended, 99.0))})
        )
        with pytest.raises(httpx2.ReadTimeout, match="does not end"):
            made.get("/")

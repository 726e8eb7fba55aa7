"""The API's server starts on the port that it says, and leaves nothing behind."""

from __future__ import annotations

import socket
import subprocess
import sys
import textwrap
import threading

import httpx2
import pytest
from starlette.types import Receive, Scope, Send

from tocsin import http_client
from tocsin.api import server as api_server
from tocsin.api.app import create_app
from tocsin.api.server import ApiServer
from tocsin.config.access import ApiSettings
from tocsin.domain.errors import Unavailable
from tocsin_testing.fake_service import FakeService


def app() -> object:
    return create_app(FakeService(), ApiSettings())


def test_port_0_takes_a_free_one() -> None:
    server = ApiServer(app())  # type: ignore[arg-type]
    port = server.start()
    try:
        assert port > 0
        assert server.url == f"http://127.0.0.1:{port}"
        assert httpx2.get(f"{server.url}/healthz").json()["status"] == "ok"
    finally:
        server.stop()
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(f"{server.url}/healthz")
    assert "api" not in {thread.name for thread in threading.enumerate()}


def test_a_client_closes_an_idle_connection_before_the_server_does() -> None:
    assert 60 < http_client.KEPT_SECONDS < api_server.KEPT_SECONDS, "and an agent's usual interval is shorter"


def test_stopping_twice_and_without_start() -> None:
    server = ApiServer(app())  # type: ignore[arg-type]
    server.stop()
    second = ApiServer(app())  # type: ignore[arg-type]
    second.start()
    second.stop()
    second.stop()


def test_a_port_can_be_taken_again_at_once() -> None:
    first = ApiServer(app())  # type: ignore[arg-type]
    port = first.start()
    with httpx2.Client(base_url=first.url) as http:
        assert http.get("/healthz").status_code == 200
        first.stop()
    second = ApiServer(app(), port=port)  # type: ignore[arg-type]
    assert second.start() == port
    second.stop()


def test_a_taken_port_is_one_clear_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(Unavailable, match=f"cannot listen on 127.0.0.1 port {port}: Address already in use"):
            ApiServer(app(), port=port).start()  # type: ignore[arg-type]


def test_a_request_that_runs_is_answered_before_the_server_ends() -> None:
    entered, leave = threading.Event(), threading.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        import asyncio

        entered.set()
        await asyncio.get_running_loop().run_in_executor(None, leave.wait, 10)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})

    server = ApiServer(slow)
    server.start()
    answers: list[str] = []
    asking = threading.Thread(target=lambda: answers.append(httpx2.get(server.url).text))
    asking.start()
    assert entered.wait(10)
    stopping = threading.Thread(target=server.stop)
    stopping.start()
    leave.set()
    stopping.join(10)
    asking.join(10)
    assert answers == ["done"]


def test_a_process_that_served_ends_without_a_warning() -> None:
    script = """
        import httpx2
        from tocsin.api.server import ApiServer
        from tocsin.api.app import create_app
        from tocsin.config.access import ApiSettings
        from tocsin_testing.fake_service import FakeService
        server = ApiServer(create_app(FakeService(), ApiSettings()))
        server.start()
        print(httpx2.get(server.url + "/v1/fleet").status_code)
        server.stop()
    """
    ran = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": "tests/support"},
        timeout=60,
        check=False,
    )
    assert (ran.stdout, ran.stderr, ran.returncode) == ("200\n", "", 0)

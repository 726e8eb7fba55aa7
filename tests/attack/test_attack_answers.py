"""What a client must know of an answer that is an error: whether the connection goes on, and when to come back."""

from __future__ import annotations

import socket
import time

import httpx2
import pytest

from tocsin.config.access import ApiSettings, RequestLimits
from tocsin_testing.fake_service import FakeService, serving

SIZE = 900


def test_after_a_500_the_connection_is_closed_and_the_answer_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise RuntimeError("a fault of the brain")

    service = FakeService()
    monkeypatch.setattr(service, "gpus", broken)
    with serving(service) as url:
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=20) as sock:
            sock.sendall(f"GET /v1/gpus HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            answer = b""
            while part := sock.recv(65536):
                answer += part
    head = answer.partition(b"\r\n\r\n")[0].lower().split(b"\r\n")
    assert head[0] == b"http/1.1 500 internal server error"
    assert b"connection: close" in head


def test_bodies_past_the_bytes_in_flight_are_told_when_to_come_back() -> None:
    """One caller holds most of its part of the budget with a body that does not end."""
    settings = ApiSettings(max_body_bytes=1024, limits=RequestLimits(body_bytes_in_flight=1024))
    service = FakeService()
    with serving(service, settings) as url:
        host, port = url.removeprefix("http://").split(":")
        head = f"POST /api/v2/write HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Length: {SIZE + 1}\r\n\r\n"
        with socket.create_connection((host, int(port)), timeout=20) as sock:
            sock.sendall(head.encode() + b"#" * SIZE)
            until = time.monotonic() + 5
            # The first body is counted once the server has read it.
            while (answer := httpx2.post(f"{url}/api/v2/write", content=b"#" * SIZE)).status_code == 204:
                assert time.monotonic() < until
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "too_many_bytes")
    assert int(answer.headers["retry-after"]) >= 1
    assert service.refusals == {"too_many_bytes": 1}

"""Bytes that are no honest HTTP/1.1: each costs its connection, a bounded number of bytes, and nobody else anything."""

from __future__ import annotations

import re
import socket
import tracemalloc
from collections.abc import Iterator
from http.client import HTTPConnection

import pytest

from tocsin.api.http_protocol import MOST_AHEAD
from tocsin.config.access import ApiSettings, RequestLimits
from tocsin_testing.fake_service import FakeService, serving

HOST = b"Host: 127.0.0.1\r\n"
GET = b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n"
CHUNKED = b"POST /v1/pause HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
HEADER_BYTES = 2_048
MEGABYTE = 2**20


@pytest.fixture(scope="module")
def place() -> Iterator[tuple[str, int]]:
    limits = RequestLimits(header_seconds=2, body_seconds=2, header_bytes=HEADER_BYTES)
    with serving(FakeService(), ApiSettings(limits=limits)) as url:
        host, port = url.removeprefix("http://").split(":")
        yield host, int(port)


def answers(place: tuple[str, int], *parts: bytes) -> list[int]:
    """The status of each answer to `parts`, until the server closes."""
    received = b""
    with socket.create_connection(place, timeout=20) as sock:
        try:
            for part in parts:
                sock.sendall(part)
            while chunk := sock.recv(65536):
                received += chunk
        except OSError:
            pass
    return [int(code) for code in re.findall(rb"HTTP/1\.1 (\d{3}) ", received)]


def test_some_requests_may_be_ahead_of_their_answers(place: tuple[str, int]) -> None:
    last = GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    assert answers(place, GET * MOST_AHEAD + last) == [200] * (MOST_AHEAD + 1)


@pytest.mark.parametrize("split", [False, True])
def test_too_many_requests_ahead_end_the_connection(place: tuple[str, int], split: bool) -> None:
    parts = [GET] * 5_000 if split else [GET * 5_000]
    assert 400 in (found := answers(place, *parts)) or split
    assert len(found) < 5_000


@pytest.mark.parametrize("hosts", [b"", HOST * 2])
def test_a_request_names_one_host(place: tuple[str, int], hosts: bytes) -> None:
    assert answers(place, b"GET /healthz HTTP/1.1\r\n" + hosts + b"\r\n") == [400]


def test_a_request_of_http_1_0_needs_no_host(place: tuple[str, int]) -> None:
    assert answers(place, b"GET /healthz HTTP/1.0\r\n\r\n") == [200]


ENDLESS = {
    "one header": b"GET /healthz HTTP/1.1\r\n" + HOST + b"X-Long: ",
    "a path": b"GET /",
    "a query": b"GET /healthz?",
    "a method": b"",
    "blank lines": b"\r\n",
    "a chunk's extension": CHUNKED + b"1;",
    "a trailer": CHUNKED + b"0\r\nX-Long: ",
}


@pytest.mark.parametrize("begin", ENDLESS.values(), ids=list(ENDLESS))
def test_what_never_ends_costs_some_kilobytes(place: tuple[str, int], begin: bytes) -> None:
    tracemalloc.start()
    try:
        found = answers(place, begin, *[(b"\r\n" if begin == b"\r\n" else b"xx") * 4_096] * 2_000)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert all(400 <= code < 500 for code in found)
    assert most < 4 * MEGABYTE, "16 MB were sent"


MANY = {
    "headers": (b"GET /healthz HTTP/1.1\r\n" + HOST, b"A: b\r\n"),
    "trailers": (CHUNKED + b"0\r\n", b"A: b\r\n"),
}


@pytest.mark.parametrize(("begin", "each"), MANY.values(), ids=list(MANY))
def test_many_short_headers_are_too_long_together(place: tuple[str, int], begin: bytes, each: bytes) -> None:
    found = answers(place, begin + each * 100_000)
    assert all(400 <= code < 500 for code in found)


def test_a_trailer_is_no_header_of_its_request() -> None:
    service = FakeService()
    with serving(service, ApiSettings()) as url:
        host, port = url.removeprefix("http://").split(":")
        body = b'{"reason": "x"}'
        rest = b"%x\r\n%b\r\n0\r\nOrigin: http://elsewhere\r\n\r\n" % (len(body), body)
        head = CHUNKED.replace(b"\r\n\r\n", b"\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n")
        assert answers((host, int(port)), head + rest) == answers((host, int(port)), head, rest)


@pytest.mark.parametrize("lengths", [b"Content-Length: 4\r\nContent-Length: 5\r\n", b"Content-Length: +4\r\n"])
def test_a_body_of_two_lengths_is_refused(place: tuple[str, int], lengths: bytes) -> None:
    assert answers(place, b"POST /v1/pause HTTP/1.1\r\n" + HOST + lengths + b"\r\nabcd" + GET)[:1] == [400]


def test_a_length_beside_chunks_smuggles_nothing(place: tuple[str, int]) -> None:
    head = CHUNKED.replace(b"\r\n\r\n", b"\r\nContent-Length: 4\r\n\r\n")
    assert answers(place, head + b"0\r\n\r\n" + GET) == [400]


def test_who_asks_for_another_protocol_is_answered_in_this_one(place: tuple[str, int]) -> None:
    """As Java's client does with every first request."""
    upgrade = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAMAAABk"}
    http = HTTPConnection(*place, timeout=20)
    for method, path, headers in (
        ("GET", "/healthz", upgrade),
        ("POST", "/v1/login", upgrade),
        ("GET", "/healthz", {}),
    ):
        http.request(method, path, b"{}" if method == "POST" else None, headers)
        answer = http.getresponse()
        assert answer.read()
        assert answer.status == 200 if method == "GET" else 400 <= answer.status < 500
    http.close()


def test_what_trickles_in_behind_an_answer_is_ended(place: tuple[str, int]) -> None:
    """The answer does not wait for this body; its connection must not either."""
    head = b"GET /healthz HTTP/1.1\r\n" + HOST + b"Content-Length: 100000\r\n\r\n"
    assert answers(place, head + b"x") == [200]

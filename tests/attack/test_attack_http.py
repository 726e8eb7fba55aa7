"""Bytes that are no honest HTTP/1.1: each costs its connection, a bounded number of bytes, and nobody else anything."""

from __future__ import annotations

import re
import socket
import time
import tracemalloc
from collections.abc import Iterator
from http.client import HTTPConnection

import pytest

from tocsin.config.access import ApiSettings, RequestLimits
from tocsin_testing.fake_service import FakeService, serving

HOST = b"Host: 127.0.0.1\r\n"
JSON = b"Content-Type: application/json\r\n"
GET = b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n"
LOGIN = b"POST /v1/login HTTP/1.1\r\n" + HOST + JSON
CHUNKED = LOGIN + b"Transfer-Encoding: chunked\r\n\r\n"
HEADER_BYTES = 2_048
MEGABYTE = 2**20
UPGRADE = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAMAAABk"}
"""What Java's client says with its first request."""


@pytest.fixture(scope="module")
def place() -> Iterator[tuple[str, int]]:
    limits = RequestLimits(header_seconds=2, body_seconds=2, header_bytes=HEADER_BYTES)
    with serving(FakeService(), ApiSettings(limits=limits)) as url:
        host, port = url.removeprefix("http://").split(":")
        yield host, int(port)


def answers(place: tuple[str, int], *parts: bytes) -> list[int]:
    """The status of each answer to `parts`, until the server closes; raises TimeoutError where it does not."""
    received = b""
    with socket.create_connection(place, timeout=20) as sock:
        try:
            for part in parts:
                sock.sendall(part)
            while chunk := sock.recv(65536):
                received += chunk
        except ConnectionError:
            pass
    return [int(code) for code in re.findall(rb"HTTP/1\.1 (\d{3}) ", received)]


def test_requests_ahead_of_their_answers_are_answered_in_turn(place: tuple[str, int]) -> None:
    last = GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    assert answers(place, GET * 8 + last) == [200] * 9


@pytest.mark.parametrize("hosts", [b"", HOST * 2])
def test_a_request_names_one_host(place: tuple[str, int], hosts: bytes) -> None:
    assert answers(place, b"GET /healthz HTTP/1.1\r\n" + hosts + b"\r\n") == [400]


def test_a_request_of_http_1_0_needs_no_host(place: tuple[str, int]) -> None:
    assert answers(place, b"GET /healthz HTTP/1.0\r\n\r\n") == [200]


ENDLESS = {
    "one header": b"GET /healthz HTTP/1.1\r\n" + HOST + b"X-Long: ",
    "a path": b"GET /",
    "a method": b"",
    "a chunk's extension": CHUNKED + b"1;",
    "a trailer": CHUNKED + b"0\r\nX-Long: ",
}


@pytest.mark.parametrize("begin", ENDLESS.values(), ids=list(ENDLESS))
def test_what_never_ends_costs_some_kilobytes(place: tuple[str, int], begin: bytes) -> None:
    tracemalloc.start()
    try:
        found = answers(place, begin, *[b"x" * 8_192] * 2_000)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert all(400 <= code < 500 for code in found)
    assert most < 4 * MEGABYTE, "16 MB were sent"


MANY = {"headers": b"GET /healthz HTTP/1.1\r\n" + HOST, "trailers": CHUNKED + b"0\r\n"}


@pytest.mark.parametrize("begin", MANY.values(), ids=list(MANY))
def test_many_short_headers_are_too_long_together(place: tuple[str, int], begin: bytes) -> None:
    found = answers(place, *[begin, *[b"A: b\r\n" * 100] * 1_000])
    assert all(400 <= code < 500 for code in found)


def test_a_trailer_is_no_header_of_its_request() -> None:
    with serving(FakeService(), ApiSettings()) as url:
        host, port = url.removeprefix("http://").split(":")
        foreign, body = b"Origin: http://elsewhere\r\n", b'{"username": "x", "password": "y"}'
        chunks = b"%x\r\n%b\r\n0\r\n" % (len(body), body)
        head = CHUNKED.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n")
        place = host, int(port)
        plain = answers(place, head + b"\r\n" + chunks + b"\r\n")
        behind = answers(place, head + b"\r\n", chunks + foreign + b"\r\n")
        before = answers(place, head + foreign + b"\r\n" + chunks + b"\r\n")
    assert behind == plain
    assert len(plain) == 1
    assert before == [403] != plain


@pytest.mark.parametrize("lengths", [b"Content-Length: 4\r\nContent-Length: 5\r\n", b"Content-Length: +4\r\n"])
def test_a_body_of_two_lengths_is_refused(place: tuple[str, int], lengths: bytes) -> None:
    assert answers(place, LOGIN + lengths + b"\r\nabcd" + GET) == [400]


def test_a_length_beside_chunks_smuggles_nothing(place: tuple[str, int]) -> None:
    head = CHUNKED.replace(b"\r\n\r\n", b"\r\nContent-Length: 4\r\nConnection: close\r\n\r\n")
    assert len(answers(place, head + b"0\r\n\r\n" + GET)) == 1


def test_a_body_behind_a_wish_for_another_protocol_is_read() -> None:
    with serving(FakeService(), ApiSettings()) as url:
        http = HTTPConnection(url.removeprefix("http://"), timeout=20)
        for method, path, body in (
            ("GET", "/healthz", None),
            ("POST", "/v1/pause", '{"reason": "asked by Java"}'),
            ("GET", "/healthz", None),
        ):
            http.request(method, path, body, UPGRADE | ({"Content-Type": "application/json"} if body else {}))
            answer = http.getresponse()
            told = answer.read().decode()
            assert answer.status == 200
            assert ("asked by Java" in told) is (body is not None)
        http.close()


def test_a_request_inside_such_a_body_is_none(place: tuple[str, int]) -> None:
    inner = b"GET /openapi.json HTTP/1.1\r\n" + HOST + b"\r\n"
    wish = b"Upgrade: h2c\r\nContent-Length: %d\r\n" % len(inner)
    ask = b"GET /healthz HTTP/1.1\r\n" + HOST + b"Connection: close, Upgrade\r\n" + wish + b"\r\n"
    assert answers(place, ask, inner) == [200]


def test_what_trickles_in_behind_an_answer_is_ended(place: tuple[str, int]) -> None:
    """The answer does not wait for this body; its connection must not either."""
    head = b"GET /healthz HTTP/1.1\r\n" + HOST + b"Content-Length: 100000\r\n\r\n"
    begun = time.monotonic()
    with socket.create_connection(place, timeout=0.1) as sock:
        sock.sendall(head)
        while is_open(sock):
            assert time.monotonic() < begun + 20


def is_open(sock: socket.socket) -> bool:
    """Whether one byte more is taken, or looked at for a moment."""
    try:
        sock.sendall(b"x")
        return bool(sock.recv(65536))
    except TimeoutError:
        return True
    except ConnectionError:
        return False

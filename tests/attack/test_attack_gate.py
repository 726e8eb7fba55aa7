"""What can be sent without a token, or with that of one node, keeps nobody from pausing and no node from reporting."""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import httpx2
import pytest

from tocsin.actions.notifications.delivery import SIGNATURE_HEADER, sign
from tocsin.api.gate import SIGNED_PATHS
from tocsin_testing.attacked import HOSTILE, Victim, secret
from tocsin_testing.signed import press_headers

FORM = "HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/x-www-form-urlencoded\r\n"
HEAD = "HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
TOKEN = f"Authorization: Bearer {secret(HOSTILE)}\r\n"


@pytest.mark.parametrize(
    ("count", "head"),
    [
        pytest.param(500, "", id="idle"),
        pytest.param(300, "GET /v1/fleet HTTP/1.1\r\nX-Slow: ", id="headers that never end"),
        pytest.param(300, f"POST /v1/login {HEAD}Content-Length: 100\r\n\r\n", id="log-ins without a body"),
        pytest.param(300, f"POST /v1/login {HEAD}Transfer-Encoding: chunked\r\n\r\n", id="log-ins without an end"),
        pytest.param(300, f"POST /v1/desk {HEAD}Content-Length: 100\r\n\r\n", id="calls of desks without a body"),
        pytest.param(300, f"POST /v1/slack/interactive {FORM}Content-Length: 9999\r\n\r\np", id="presses that stop"),
        pytest.param(300, f"POST /v1/pause {HEAD}{TOKEN}Content-Length: 100\r\n\r\n", id="pauses by an agent"),
        pytest.param(300, f"POST /api/v2/write {HEAD}{TOKEN}Content-Length: 1000000\r\n\r\ngpu", id="writes that stop"),
    ],
)
def test_connections_that_are_held(victim: Victim, count: int, head: str) -> None:
    with ExitStack() as stack:
        victim.hold(stack, count, head)
        victim.serves()


PLAIN = "HTTP/1.1\r\nHost: 127.0.0.1\r\n"


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(f"GET /openapi.json {PLAIN}\r\n", id="the document"),
        pytest.param(f"GET /healthz {PLAIN}\r\n", id="probes"),
        pytest.param(f"DELETE /healthz {PLAIN}\r\n", id="methods that a path does not take"),
        pytest.param(f"GET /readyz {PLAIN}\r\n", id="readiness"),
        pytest.param(f"GET /v1/fleet {PLAIN}\r\n", id="questions without a token"),
        pytest.param(f"GET /v1/fleet {PLAIN}Authorization: Bearer wrong\r\n\r\n", id="wrong tokens"),
        pytest.param(f"POST /v1/pause {PLAIN}Origin: http://evil.example\r\n\r\n", id="pages of another origin"),
        pytest.param(f"POST /v1/login {PLAIN}Content-Length: 99999999\r\n\r\n", id="bodies that are too large"),
        pytest.param(f"GET /v1/me {PLAIN}{TOKEN}\r\n", id="a node that asks who it is"),
        pytest.param(f"GET /v1/orders?host={HOSTILE} {PLAIN}{TOKEN}\r\n", id="a node that asks for orders"),
        pytest.param(f"GET /v1/fleet {PLAIN}{TOKEN}\r\n", id="a node that asks for what is not its own"),
    ],
)
def test_requests_in_rows_whose_answers_nobody_reads(victim: Victim, head: str) -> None:
    """300 connections, each with 200 requests behind one another."""
    with ExitStack() as stack:
        victim.hold(stack, 300, head * 200)
        victim.serves()
        assert victim.get("/readyz", "anna").status_code == 200


@pytest.mark.parametrize("path", ["/v1/desk", "/v1/slack/interactive"])
def test_wrong_signatures_by_the_thousand(victim: Victim, path: str) -> None:
    size = SIGNED_PATHS[path]
    desk, slack = (sign("no-key-that-anybody-has", b"", 0), press_headers(b"", victim.clock.now_ms(), "none"))
    headers = slack if path.endswith("interactive") else {SIGNATURE_HEADER: desk, "Content-Type": "application/json"}
    statuses: Counter[int] = Counter()

    def send(_number: int) -> None:
        with httpx2.Client(trust_env=False, timeout=5) as client:
            for _ in range(25):
                try:
                    answer = client.post(f"{victim.url}{path}", content=b"x" * size, headers=headers)
                except httpx2.TransportError:
                    continue
                statuses[answer.status_code] += 1

    with ThreadPoolExecutor(40) as pool:
        sent = [pool.submit(send, number) for number in range(40)]
        victim.serves()
        for one in sent:
            one.result()
    assert statuses[401]
    assert statuses.keys() <= {401, 429, 503}


def quadratic(size: int) -> bytes:
    return b'm a="' + b'\n",b="' * (size // 6)


def fields(size: int) -> bytes:
    return b"gpu,gpu_uuid=a " + b",".join(b"t%d=1" % n for n in range(size // 8))


def junk(size: int) -> bytes:
    return b"x\n" * (size // 2)


def rows(size: int) -> bytes:
    return b"".join(b"gpu,gpu_uuid=GPU-0000-0,host=node-0 power_watts=1 %d\n" % n for n in range(size // 60))


@pytest.mark.parametrize("make", [quadratic, fields, junk, rows])
@pytest.mark.parametrize("size", [60_000, 32_000_000])
def test_bodies_that_cost_much(victim: Victim, make: Callable[[int], bytes], size: int) -> None:
    body = gzip.compress(make(size), 9)
    headers = {"Authorization": f"Bearer {secret(HOSTILE)}", "Content-Encoding": "gzip"}

    def send(_number: int) -> None:
        try:
            httpx2.post(f"{victim.url}/api/v2/write", content=body, headers=headers, timeout=5, trust_env=False)
        except httpx2.TransportError:
            return

    with ThreadPoolExecutor(40) as pool:
        sent = [pool.submit(send, number) for number in range(40)]
        victim.serves()
        for one in sent:
            one.result()
    victim.serves()

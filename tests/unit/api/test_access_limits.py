"""Limits against abuse: rates, numbers, sizes and slowness."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from tocsin.api import gate
from tocsin.api.app import create_app
from tocsin.api.buckets import MAX_KEYS, Lockout, TokenBuckets
from tocsin.config.access import ApiSettings, RequestLimits, Role, Token
from tocsin.domain.clock import SECOND, ManualClock
from tocsin_testing.fake_service import FakeService, serving

SECRETS = {role: f"{role.value}-secret-0123456789" for role in Role}
TOKENS = [Token(name=role.value, role=role, secret=SecretStr(SECRETS[role])) for role in Role]


def bearer(role: Role) -> dict[str, str]:
    return {"Authorization": f"Bearer {SECRETS[role]}"}


def http_for(service: FakeService, clock: ManualClock, address: str = "127.0.0.1", **limits: float) -> TestClient:
    settings = ApiSettings(tokens=TOKENS, limits=RequestLimits.model_validate(limits))
    return TestClient(create_app(service, settings, clock), base_url="http://127.0.0.1", client=(address, 1))


# ---------------------------------------------------------------------- buckets


def test_a_bucket_gives_its_burst_and_then_its_rate() -> None:
    clock = ManualClock()
    buckets = TokenBuckets(clock, rate=2.0, burst=3)
    assert [buckets.take("a") for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]
    assert buckets.take("b") == 0.0
    clock.advance(500)
    assert [buckets.take("a") > 0 for _ in range(2)] == [False, True]
    clock.advance(3_600 * SECOND)
    assert [buckets.take("a") > 0 for _ in range(4)] == [False, False, False, True]


@given(st.lists(st.integers(0, 3_000), max_size=60), st.floats(0.1, 20), st.integers(1, 10))
def test_no_bucket_ever_gives_more_than_burst_and_rate(pauses: list[int], rate: float, burst: int) -> None:
    clock = ManualClock()
    buckets = TokenBuckets(clock, rate, burst)
    given_out = 0
    for pause in pauses:
        clock.advance(pause)
        given_out += buckets.take("x") == 0.0
    assert given_out <= burst + rate * clock.monotonic() + 1e-6


def test_the_number_of_keys_is_bounded() -> None:
    buckets = TokenBuckets(ManualClock(), 1.0, 1)
    for number in range(MAX_KEYS + 10):
        buckets.take(str(number))
    assert len(buckets) == MAX_KEYS


def test_waits_double_up_to_the_longest_and_end_with_a_success() -> None:
    clock = ManualClock()
    lockout = Lockout(clock, attempts=3, first=10.0, longest=60.0)
    assert [lockout.failed("a") for _ in range(6)] == [0.0, 0.0, 10.0, 20.0, 40.0, 60.0]
    assert (lockout.wait("a"), lockout.wait("b")) == (60.0, 0.0)
    clock.advance(59 * SECOND)
    assert lockout.wait("a") == 1.0
    lockout.succeeded("a")
    assert (lockout.wait("a"), lockout.failed("a")) == (0.0, 0.0)


def test_slips_that_lie_far_apart_do_not_add_up() -> None:
    clock = ManualClock()
    lockout = Lockout(clock, attempts=2, first=10.0, longest=60.0)
    for _ in range(5):
        assert lockout.failed("a") == 0.0
        clock.advance(61 * SECOND)


# ---------------------------------------------------------------------- rates of the API


def test_too_many_requests_are_told_when_to_come_back() -> None:
    service, clock = FakeService(), ManualClock()
    http = http_for(service, clock, requests_per_second=0.5, request_burst=2)
    answers = [http.get("/v1/me", headers=bearer(Role.VIEWER)) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[2].headers["retry-after"] == "2"
    assert answers[2].json()["error"]["code"] == "rate_limited"
    assert service.refusals == {"rate_limited": 1}
    assert http.get("/v1/me", headers=bearer(Role.ADMIN)).status_code == 200
    clock.advance(2 * SECOND)
    assert http.get("/v1/me", headers=bearer(Role.VIEWER)).status_code == 200


def test_agents_have_a_bucket_of_their_own() -> None:
    http = http_for(FakeService(), ManualClock(), request_burst=1, agent_request_burst=5)
    codes = [http.post("/api/v2/write", content="gpu x=1 1", headers=bearer(Role.AGENT)).status_code for _ in range(6)]
    assert codes == [204] * 5 + [429]


def asked(token: Token, addresses: list[str], path: str = "/v1/me", **limits: float) -> list[int]:
    """What the API answers to one request of each address."""
    app = create_app(
        FakeService(), ApiSettings(tokens=[token], limits=RequestLimits.model_validate(limits)), ManualClock()
    )
    head = {"Authorization": f"Bearer {token.secret.get_secret_value()}"}
    return [TestClient(app, client=(address, 1)).get(path, headers=head).status_code for address in addresses]


def test_a_token_of_one_node_has_one_rate_wherever_it_comes_from_and_a_shared_one_has_one_at_each_address() -> None:
    shared = Token(name="all", role=Role.AGENT, secret=SecretStr(SECRETS[Role.AGENT]))
    own = shared.model_copy(update={"host": "node-1"})
    addresses = [f"10.0.0.{number}" for number in range(4)]
    assert asked(own, addresses, agent_request_burst=2 * gate.NODE_PART) == [200, 200, 429, 429]
    assert asked(shared, addresses, agent_request_burst=1) == [200] * 4


def test_addresses_of_ipv6_count_by_what_one_subscriber_has() -> None:
    addresses = ["2001:db8:0:1::1", "2001:db8:0:1::2", "2001:db8:0:1:ffff::1", "2001:db8:0:2::1"]
    wanted = Token(name="v", role=Role.VIEWER, secret=SecretStr(SECRETS[Role.VIEWER]))
    assert asked(wanted, addresses, request_burst=2) == [200, 200, 429, 200]
    assert asked(wanted, addresses, "/openapi.json", request_burst=2) == [200, 200, 429, 200]
    strange = wanted.model_copy(update={"secret": SecretStr("no-such-token-0123456789")})
    app = create_app(FakeService(), ApiSettings(tokens=[wanted], limits=RequestLimits(refused_burst=2)), ManualClock())
    head = {"Authorization": f"Bearer {strange.secret.get_secret_value()}"}
    codes = [TestClient(app, client=(one, 1)).get("/v1/me", headers=head).status_code for one in addresses]
    assert codes == [401, 401, 429, 401]


def test_every_operation_documents_what_any_body_may_bring() -> None:
    http = http_for(FakeService(), ManualClock())
    sent = http.request("GET", "/v1/me", headers=bearer(Role.VIEWER), content=b"x" * 3_000_000)
    assert sent.status_code == 413
    paths = http.get("/openapi.json").json()["paths"]
    lacking = [
        (path, method)
        for path, methods in paths.items()
        for method, operation in methods.items()
        if not {"408", "413"} <= operation["responses"].keys()
    ]
    assert lacking == []


def test_what_the_gate_refuses_closes_its_connection() -> None:
    http = http_for(FakeService(), ManualClock(), request_burst=1)
    head = bearer(Role.VIEWER)
    answers = [
        http.get("/v1/fleet"),
        http.get("/v1/me", headers=head),
        http.get("/v1/me", headers=head),
        http.post("/v1/login", headers={"Origin": "http://evil.example"}),
        http.post("/v1/login", content=b"x" * (gate.MAX_CONTROL_BYTES + 1)),
    ]
    assert [one.status_code for one in answers] == [401, 200, 429, 403, 413]
    assert [one.headers.get("connection") for one in answers] == ["close", None, "close", "close", "close"]


@pytest.mark.parametrize("path", sorted(gate.PROBES))
def test_probes_beyond_their_rate_are_answered_each_on_a_connection_of_its_own(path: str) -> None:
    http = http_for(FakeService(), ManualClock())
    answers = [http.get(path) for _ in range(gate.PROBE_BURST + 1)]
    assert {one.status_code for one in answers} == {200}
    assert [one.headers.get("connection") for one in answers] == [*[None] * gate.PROBE_BURST, "close"]


def test_guessing_tokens_is_slowed_and_locks_nobody_out() -> None:
    service = FakeService()
    http = http_for(service, ManualClock(), refused_burst=3)
    wrong = {"Authorization": "Bearer no-such-token-0123456789"}
    assert [http.get("/v1/fleet", headers=wrong).status_code for _ in range(5)] == [401] * 3 + [429] * 2
    assert http.get("/v1/fleet", headers=bearer(Role.VIEWER)).status_code == 200
    assert service.refusals == {"token_unknown": 3, "rate_limited": 2}


def test_open_pages_are_limited_by_address_and_the_probe_is_not() -> None:
    http = http_for(FakeService(), ManualClock(), request_burst=2)
    assert [http.get("/readyz").status_code for _ in range(3)] == [200, 200, 429]
    assert {http.get("/healthz").status_code for _ in range(5)} == {200}


def test_more_requests_at_once_than_allowed_are_refused() -> None:
    service = FakeService()
    entered, leave = threading.Event(), threading.Event()
    verify = service.verify_journal

    def slow(after: int, previous: str) -> object:
        entered.set()
        leave.wait(20)
        return verify(after, previous)

    service.verify_journal = slow  # type: ignore[method-assign,assignment]
    settings = ApiSettings(limits=RequestLimits(concurrent_requests=1))
    with serving(service, settings) as url, httpx2.Client(base_url=url) as http:
        first = threading.Thread(target=lambda: httpx2.get(f"{url}/v1/journal/verify", timeout=30))
        first.start()
        assert entered.wait(20)
        answer = http.get("/v1/me")
        assert http.get("/healthz").status_code == 200
        leave.set()
        first.join(20)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "busy")
        assert answer.headers["retry-after"] == "1"
        assert http.get("/v1/me").status_code == 200


def test_reads_of_many_people_take_no_place_of_what_a_person_changes() -> None:
    service = FakeService()
    entered, leave = threading.Semaphore(0), threading.Event()
    gpus = service.gpus

    def slow() -> object:
        entered.release()
        leave.wait(20)
        return gpus()

    service.gpus = slow  # type: ignore[method-assign,assignment]
    readers = [Token(name=name, role=Role.VIEWER, secret=SecretStr(name * 16)) for name in "abcd"]
    settings = ApiSettings(tokens=[*TOKENS, *readers], limits=RequestLimits(concurrent_requests=8))
    with serving(service, settings) as url, ThreadPoolExecutor(4) as pool:
        try:
            for name in "abcd":
                one = {"Authorization": f"Bearer {name * 16}"}
                pool.submit(httpx2.get, f"{url}/v1/gpus", headers=one, timeout=30)
                assert entered.acquire(timeout=20)
            assert httpx2.get(f"{url}/v1/me", headers=bearer(Role.VIEWER)).status_code == 503
            answer = httpx2.post(f"{url}/v1/pause", headers=bearer(Role.OPERATOR), json={"reason": "x"}, timeout=20)
        finally:
            leave.set()
    assert answer.status_code == 200, answer.text


# ---------------------------------------------------------------------- slow and large clients


@pytest.fixture(scope="module")
def impatient() -> Iterator[tuple[str, int]]:
    limits = RequestLimits(header_seconds=0.3, body_seconds=0.3, header_bytes=1024)
    with serving(FakeService(), ApiSettings(limits=limits)) as url:
        host, port = url.removeprefix("http://").split(":")
        yield host, int(port)


def answer_to(address: tuple[str, int], *parts: bytes) -> bytes:
    """What comes back after `parts`, until the server closes."""
    with socket.create_connection(address, timeout=20) as sock:
        for part in parts:
            sock.sendall(part)
        received = b""
        try:
            while chunk := sock.recv(65536):
                received += chunk
        except ConnectionResetError:
            pass
        return received


def test_a_client_that_says_nothing_is_dropped(impatient: tuple[str, int]) -> None:
    assert answer_to(impatient) == b""


def test_headers_that_never_end_are_dropped(impatient: tuple[str, int]) -> None:
    assert answer_to(impatient, b"GET /healthz HTTP/1.1\r\n", b"Host: 127.0.0.1\r\n", b"X-Slow: ") == b""


def test_headers_that_never_end_after_a_first_request_are_dropped_too(impatient: tuple[str, int]) -> None:
    whole = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with socket.create_connection(impatient, timeout=20) as sock:
        sock.sendall(whole)
        first = sock.recv(65536)
        sock.sendall(b"GET /healthz HT")
        assert first.startswith(b"HTTP/1.1 200")
        try:
            while sock.recv(65536):
                pass
        except ConnectionResetError:
            pass


def test_a_body_that_trickles_is_answered_408(impatient: tuple[str, int]) -> None:
    head = (
        b"POST /v1/pause HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
    )
    answer = answer_to(impatient, head)
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"body_too_slow" in answer


def test_a_body_that_comes_slower_than_its_rate_is_answered_long_before_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gate, "_GRACE_SECONDS", 0.2)
    settings = ApiSettings(limits=RequestLimits(body_seconds=600, body_bytes_per_second=1000))
    head = (
        b"POST /v1/pause HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
    )
    with serving(FakeService(), settings) as url:
        host, port = url.removeprefix("http://").split(":")
        try:
            answer = answer_to((host, int(port)), head)
        except TimeoutError:
            answer = b"none"
    assert answer.startswith(b"HTTP/1.1 408"), answer
    assert b"body_bytes_per_second" in answer


def test_headers_that_are_too_long_are_refused(impatient: tuple[str, int]) -> None:
    answer = answer_to(impatient, b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Long: " + b"x" * 4096)
    assert answer.startswith(b"HTTP/1.1 400")


def test_what_is_no_http_is_refused(impatient: tuple[str, int]) -> None:
    assert answer_to(impatient, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n").startswith(b"HTTP/1.1 400")


def test_connections_have_a_limit() -> None:
    settings, service = ApiSettings(limits=RequestLimits(connections=2)), FakeService()
    with serving(service, settings) as url:
        host, port = url.removeprefix("http://").split(":")
        idle = [socket.create_connection((host, int(port)), timeout=20) for _ in range(2)]
        answers = [httpx2.get(f"{url}/v1/fleet") for _ in range(3)]
        alive = httpx2.get(f"{url}/healthz")
        for sock in idle:
            sock.close()
    assert [answer.status_code for answer in answers] == [503] * 3
    assert answers[0].json()["error"]["code"] == "too_many_connections"
    assert (answers[0].headers["connection"], answers[0].headers["retry-after"]) == ("close", "1")
    # A probe must not take a busy process for a dead one.
    assert alive.status_code == 200
    assert service.refusals == {"too_many_connections": 3}


def test_an_idle_keep_alive_connection_costs_no_request(impatient: tuple[str, int]) -> None:
    async def ask() -> list[int]:
        async with httpx2.AsyncClient(base_url=f"http://{impatient[0]}:{impatient[1]}") as http:
            return [(await http.get("/healthz")).status_code for _ in range(3)]

    assert asyncio.run(ask()) == [200] * 3

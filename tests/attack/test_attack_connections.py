"""Connections that stand idle, by the thousand, leave the process the file descriptors that everybody else needs."""

from __future__ import annotations

import contextlib
import gc
import http.client
import io
import resource
import socket
import time
from asyncio import sslproto
from contextlib import ExitStack
from pathlib import Path

import httpx2
import pytest
import trustme

from tocsin.api.connections import LEAST_SHARE, RESERVED_FILES, TOLD, OpenConnections, room_for
from tocsin.config.access import ApiSettings, RequestLimits
from tocsin_testing.fake_service import FakeService, serving

FILES = 512
"""File descriptors that the process may have."""
IDLE = 600
SECONDS = 20.0
IN_A_ROW = 20
"""Refusals, from which on a place is held."""


@pytest.fixture
def few_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (FILES, FILES))


@pytest.fixture(params=["plain", "tls"])
def settings(request: pytest.FixtureRequest, tmp_path: Path, few_files: None) -> ApiSettings:
    """What stands idle is still there at the end."""
    limits = RequestLimits(header_seconds=600)
    if request.param == "plain":
        return ApiSettings(limits=limits)
    issued, pair = trustme.CA().issue_cert("127.0.0.1"), (tmp_path / "cert.pem", tmp_path / "key.pem")
    issued.cert_chain_pems[0].write_to_path(pair[0])
    issued.private_key_pem.write_to_path(pair[1])
    return ApiSettings(limits=limits, tls_certificate=pair[0], tls_key=pair[1])


def is_open(sock: socket.socket) -> bool:
    try:
        return bool(sock.recv(1))
    except BlockingIOError:
        return True
    except OSError:
        return False


def stays_open(place: tuple[str, int]) -> bool:
    """Whether one more connection from the same address is taken."""
    with socket.create_connection(place, timeout=0.2, source_address=("127.0.0.2", 0)) as sock:
        try:
            return bool(sock.recv(1))
        except TimeoutError:
            return True
        except OSError:
            return False


def left(held: list[socket.socket], most: int) -> int:
    """How many of `held` are still open, once that is `most` or time is up."""
    until = time.monotonic() + SECONDS
    while (found := sum(map(is_open, held))) > most and time.monotonic() < until:
        pass
    return found


def test_one_address_holds_its_share_and_the_rest_is_closed_at_once(settings: ApiSettings) -> None:
    most = LEAST_SHARE + TOLD
    with serving(FakeService(), settings) as url, ExitStack() as stack:
        place = ("127.0.0.1", int(url.rpartition(":")[2]))
        held = []
        for _ in range(IDLE):
            made = socket.create_connection(place, timeout=SECONDS, source_address=("127.0.0.2", 0))
            held.append(stack.enter_context(made))
            made.setblocking(False)
        assert left(held, most) == most
        # Who comes from elsewhere is served meanwhile, before any time is up.
        assert httpx2.get(f"{url}/v1/fleet", verify=False, trust_env=False, timeout=SECONDS).status_code == 200
        for one in held:
            one.close()
        until = time.monotonic() + SECONDS
        while not (again := stays_open(place)) and time.monotonic() < until:
            pass
        assert again, "what is closed is counted no more"


def test_all_addresses_together_leave_what_the_process_needs(settings: ApiSettings) -> None:
    most = FILES - RESERVED_FILES
    with serving(FakeService(), settings) as url, ExitStack() as stack:
        place = ("127.0.0.1", int(url.rpartition(":")[2]))
        held = []
        for number in range(IDLE):
            source = f"127.0.0.{2 + number % 20}", 0
            held.append(stack.enter_context(socket.create_connection(place, timeout=SECONDS, source_address=source)))
            held[-1].setblocking(False)
        assert left(held, most) == most


@pytest.mark.parametrize(
    "sent", [b"", b"\x16\x03\x01\x02\x00\x01", b"\x16\x03\x01\x00\x00" * 20], ids=["nothing", "half", "empty"]
)
def test_a_handshake_has_as_long_as_headers_have(settings: ApiSettings, sent: bytes) -> None:
    """Before: a minute, in which it had a place that nobody else could have."""
    short = settings.model_copy(update={"limits": RequestLimits(header_seconds=0.5)})
    with serving(FakeService(), short) as url:
        place = ("127.0.0.1", int(url.rpartition(":")[2]))
        with socket.create_connection(place, timeout=SECONDS) as sock:
            sock.sendall(sent if url.startswith("https") else b"")
            with contextlib.suppress(ConnectionResetError):
                while sock.recv(4_096):
                    pass


def _asked(place: tuple[str, int], source: str, stack: ExitStack) -> tuple[http.client.HTTPConnection, int]:
    """A connection that stays open after its first answer, and what that was."""
    made = http.client.HTTPConnection(*place, timeout=SECONDS, source_address=(source, 0))
    stack.callback(made.close)
    made.request("GET", "/v1/fleet")
    answer = made.getresponse()
    answer.read()
    return made, answer.status


def test_connections_between_two_requests_make_room_for_others(few_files: None) -> None:
    """Agents keep theirs, more of them than there are places: nobody is refused for it, whoever comes next."""
    limits = RequestLimits(requests_per_second=1e6, request_burst=10**6)
    most = FILES - RESERVED_FILES - TOLD
    with serving(FakeService(), ApiSettings(limits=limits)) as url, ExitStack() as stack:
        place = ("127.0.0.1", int(url.rpartition(":")[2]))
        sources = [f"127.0.0.{2 + number % 20}" for number in range(2 * most)]
        kept = [_asked(place, source, stack) for source in sources]
        assert {status for _, status in kept} == {200}
        oldest = kept[0][0]
        assert oldest.sock is not None
        oldest.sock.setblocking(False)
        assert is_open(oldest.sock), "of those that are idle the newest makes room"


def test_of_an_address_with_too_many_its_own_makes_room(few_files: None) -> None:
    limits = RequestLimits(requests_per_second=1e6, request_burst=10**6)
    with serving(FakeService(), ApiSettings(limits=limits)) as url, ExitStack() as stack:
        place = ("127.0.0.1", int(url.rpartition(":")[2]))
        other, _ = _asked(place, "127.0.0.3", stack)
        assert {_asked(place, "127.0.0.2", stack)[1] for _ in range(2 * LEAST_SHARE)} == {200}
        assert other.sock is not None
        other.sock.setblocking(False)
        assert is_open(other.sock)


def test_an_answer_that_is_still_on_its_way_is_not_cut_off(few_files: None) -> None:
    limits = RequestLimits(connections=LEAST_SHARE, requests_per_second=1e6, request_burst=10**6)
    with serving(FakeService(), ApiSettings(limits=limits)) as url, ExitStack() as stack, socket.socket() as slow:
        place = ("127.0.0.1", int(url.rpartition(":")[2]))
        whole = len(httpx2.get(f"{url}/openapi.json", trust_env=False).content)
        for _ in range(LEAST_SHARE // 2):
            _asked(place, "127.0.0.2", stack)
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.settimeout(SECONDS)
        slow.connect(place)
        slow.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        begun = slow.recv(1)
        assert {_asked(place, "127.0.0.2", stack)[1] for _ in range(LEAST_SHARE)} == {200}
        assert begun == b"H"
        assert _body_of(slow.makefile("rb")) == whole


def _body_of(rest: io.BufferedReader) -> int:
    """Bytes of the body of the answer that is read from `rest`."""
    length = 0
    while (line := rest.readline()) not in (b"\r\n", b""):
        name, _, value = line.partition(b":")
        length = int(value) if name.lower() == b"content-length" else length
    return len(rest.read(length))


class _Told:
    """A connection between two requests."""

    def __init__(self) -> None:
        self.ended = False

    def end_idle(self) -> None:
        self.ended = True


def test_who_has_most_makes_room_and_what_is_being_closed_counts_no_more() -> None:
    connections = OpenConnections(4 * LEAST_SHARE)
    kept: dict[str, list[_Told]] = {"crowd": [], "node": []}
    for name, count in (("crowd", LEAST_SHARE), ("node", LEAST_SHARE // 2)):
        for _ in range(count):
            assert connections.add(name)
            connections.idle(one := _Told(), name)
            kept[name].append(one)
    for number in range(4 * LEAST_SHARE - 3 * LEAST_SHARE // 2):
        assert connections.add(f"busy-{number % 8}")
    for number in range(10):
        assert connections.add(f"new-{number}")
        assert connections.has_room_for(f"new-{number}")
    assert (sum(one.ended for one in kept["crowd"]), sum(one.ended for one in kept["node"])) == (10, 0)
    # All ten are still open, and an eleventh needs one place alone.
    assert connections.add("new-10")
    assert connections.has_room_for("new-10")
    assert sum(one.ended for one in kept["crowd"]) == 11


def test_a_connection_over_tls_takes_little_memory(settings: ApiSettings) -> None:
    with serving(FakeService(), settings) as url:
        if url.startswith("https"):
            with httpx2.Client(verify=False, trust_env=False) as client:
                assert client.get(f"{url}/v1/fleet").status_code == 200
                held = [one for one in gc.get_objects() if isinstance(one, sslproto.SSLProtocol)]
                assert held
                assert max(len(one._ssl_buffer) for one in held) <= 32 * 1024


def test_an_answer_that_nobody_reads_holds_no_place_for_ever() -> None:
    """There is one place for what anyone may read."""
    limits = RequestLimits(body_seconds=1, concurrent_requests=8, requests_per_second=1e6, request_burst=10**6)
    with serving(FakeService(), ApiSettings(limits=limits)) as url, socket.socket() as sock:
        # Making the document takes a while, in which the place is held as well.
        assert httpx2.get(f"{url}/openapi.json", trust_env=False).status_code == 200
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", int(url.rpartition(":")[2])))
        sock.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 100)
        until = time.monotonic() + SECONDS
        # Between two answers it is free for a moment, until one is not read on.
        taken = 0
        while time.monotonic() < until:
            free = httpx2.get(f"{url}/v1/login/methods", trust_env=False).status_code == 200
            if free and taken >= IN_A_ROW:
                return
            taken = 0 if free else taken + 1
    raise AssertionError(f"refused {taken} times in a row to the end")


def test_the_limit_of_file_descriptors_is_raised_as_far_as_it_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    soft, asked = [1_024], list[tuple[int, int]]()

    def raised(_which: int, wanted: tuple[int, int]) -> None:
        asked.append(wanted)
        soft[0] = wanted[0]

    monkeypatch.setattr(resource, "getrlimit", lambda _which: (soft[0], 524_288))
    monkeypatch.setattr(resource, "setrlimit", raised)
    assert room_for(4_000) == 4_000
    assert room_for(4_000) == 4_000
    assert asked == [(4_000 + TOLD + RESERVED_FILES, 524_288)]

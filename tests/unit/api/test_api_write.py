"""The InfluxDB-compatible write."""

from __future__ import annotations

import asyncio
import gzip
import random
import threading
from collections.abc import Sequence

import pytest
from fastapi.testclient import TestClient
from influxdb_client.client.exceptions import InfluxDBError
from influxdb_client.client.influxdb_client import InfluxDBClient
from influxdb_client.client.write_api import SYNCHRONOUS
from pydantic import SecretStr

from tocsin.api.app import create_app
from tocsin.api.errors import ApiError
from tocsin.api.ingest import MAX_MEMBERS, SLICE, SMALL, Ingest, Upload, is_small, slices, unpacked
from tocsin.api.principal import Grant, Principal
from tocsin.api.service import LineBody
from tocsin.client.control import IngestResult
from tocsin.config.access import ApiSettings, Role, Token
from tocsin.store.line_protocol.packed import ACCEPTS_PACKED
from tocsin_testing.fake_service import FakeService, serving

LIMIT = 64 * 1024
GOOD = "gpu,gpu_uuid=GPU-1 power_watts=300 1795000000000"


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
def http(service: FakeService) -> TestClient:
    app = create_app(service, ApiSettings(max_body_bytes=LIMIT))
    return TestClient(app, base_url="http://127.0.0.1", client=("127.0.0.1", 1))


def write(http: TestClient, body: bytes, query: str = "", **headers: str) -> tuple[int, dict[str, object]]:
    answer = http.post(
        f"/api/v2/write{query}", content=body, headers={k.replace("_", "-"): v for k, v in headers.items()}
    )
    return answer.status_code, answer.json()["error"] if answer.content else {}


def test_good_lines_are_kept(http: TestClient, service: FakeService) -> None:
    assert write(http, f"{GOOD}\n{GOOD}\n".encode(), "?org=o&bucket=b&precision=ms") == (204, {})
    assert (service.lines, service.precisions) == ([GOOD, GOOD], ["ms"])


@pytest.mark.parametrize(("body", "status"), [(GOOD, 204), ("nonsense", 400)])
def test_every_answer_about_lines_says_that_packed_ones_are_read(http: TestClient, body: str, status: int) -> None:
    answer = http.post("/api/v2/write?precision=ms", content=body.encode())
    assert (answer.status_code, answer.headers[ACCEPTS_PACKED]) == (status, "1")


def test_precision_is_nanoseconds_unless_told(http: TestClient, service: FakeService) -> None:
    write(http, GOOD.encode())
    assert service.precisions == ["ns"]
    assert write(http, GOOD.encode(), "?precision=h")[0] == 422


def test_a_misspelt_precision_is_not_taken_for_nanoseconds(http: TestClient, service: FakeService) -> None:
    status, error = write(http, GOOD.encode(), "?precison=ms")
    assert (status, error["code"], service.lines) == (422, "invalid_request", [])


def test_an_empty_write_is_no_error(http: TestClient) -> None:
    assert write(http, b"") == (204, {})


def test_bad_lines_are_numbered_and_the_good_ones_kept(http: TestClient, service: FakeService) -> None:
    status, error = write(http, f"{GOOD}\nnonsense\n{GOOD}\ngpu x=1 soon\n".encode())
    assert (status, error["code"]) == (400, "lines_rejected")
    details = error["details"]
    assert isinstance(details, dict)
    assert [line["number"] for line in details["rejected"]] == [2, 4]
    assert (details["kept"], details["rejected_total"], service.lines) == (2, 2, [GOOD, GOOD])


def test_a_line_that_is_no_utf8_costs_only_itself(http: TestClient, service: FakeService) -> None:
    status, error = write(http, GOOD.encode() + b"\ngpu,host=\xff\xfe x=1 1\nnonsense\n" + GOOD.encode())
    details = error["details"]
    assert status == 400
    assert isinstance(details, dict)
    assert [(line["number"], line["problem"][:9]) for line in details["rejected"]] == [
        (2, "not UTF-8"),
        (3, "no timest"),
    ]
    assert service.lines == [GOOD, GOOD]


def test_gzip_is_unpacked_also_in_several_members(http: TestClient, service: FakeService) -> None:
    body = gzip.compress(f"{GOOD}\n".encode()) + gzip.compress(GOOD.encode())
    assert write(http, body, Content_Encoding="gzip") == (204, {})
    assert service.lines == [GOOD, GOOD]


def test_a_gzip_bomb_is_stopped(http: TestClient, service: FakeService) -> None:
    bomb = gzip.compress(b"\0" * (40 * LIMIT))
    assert len(bomb) < LIMIT / 10
    status, error = write(http, bomb, Content_Encoding="gzip")
    assert (status, error["code"], service.precisions) == (413, "content_too_large", [])
    members = gzip.compress(b"\0" * (LIMIT - 1)) * 3
    assert write(http, members, Content_Encoding="gzip")[0] == 413


def test_gzip_up_to_the_limit_is_read(http: TestClient, service: FakeService) -> None:
    lines = (GOOD + "\n").encode() * (LIMIT // (len(GOOD) + 1))
    exact = lines + b"\n" * (LIMIT - len(lines))
    assert write(http, gzip.compress(exact), Content_Encoding="gzip")[0] == 204
    assert write(http, gzip.compress(exact + b"\n"), Content_Encoding="gzip")[0] == 413


@pytest.mark.parametrize("cut", [1, 8, 12])
def test_gzip_that_is_cut_short_is_refused_whole(http: TestClient, service: FakeService, cut: int) -> None:
    status, error = write(http, gzip.compress(GOOD.encode())[:-cut], Content_Encoding="gzip")
    assert (status, error["code"], service.lines) == (400, "broken_gzip", [])


def test_what_is_not_gzip_and_other_encodings(http: TestClient) -> None:
    assert write(http, b"hello", Content_Encoding="gzip")[0] == 400
    assert write(http, GOOD.encode(), Content_Encoding="br")[1]["code"] == "unsupported_encoding"


def test_a_body_beyond_the_limit_is_refused(http: TestClient) -> None:
    status, error = write(http, b"x" * (LIMIT + 1))
    assert (status, error["code"]) == (413, "content_too_large")


def test_without_its_store_the_agent_is_told_to_retry(http: TestClient, service: FakeService) -> None:
    service.store_down = True
    answer = http.post("/api/v2/write", content=GOOD)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert answer.json()["error"]["code"] == "unavailable"


def test_influxdb_client_writes_to_it() -> None:
    service = FakeService()
    with serving(service) as url, InfluxDBClient(url, token="unused", org="o", enable_gzip=True) as influx:
        assert influx.ping() is True
        with influx.write_api(write_options=SYNCHRONOUS) as api:
            api.write("b", record=[GOOD, GOOD], write_precision="ms")
            with pytest.raises(InfluxDBError, match="lines_rejected"):
                api.write("b", record=[GOOD, "nonsense"], write_precision="ms")
    assert service.lines == [GOOD] * 3
    assert service.precisions == ["ms", "ms"]


class BusyService(FakeService):
    """Keeps readings once `free` is set, and an event at once."""

    def __init__(self) -> None:
        super().__init__()
        self.at_work, self.free = threading.Event(), threading.Event()

    def ingest(self, bodies: Sequence[LineBody]) -> list[IngestResult | Exception]:
        if any(len(body.text) >= SMALL for body in bodies):
            self.at_work.set()
            assert self.free.wait(30)
        return super().ingest(bodies)


def test_an_event_waits_for_no_readings_of_the_same_sender() -> None:
    async def sent(service: BusyService) -> IngestResult:
        ingest = Ingest(service, LIMIT)
        upload = Upload(Principal("proxy", (Grant(Role.AGENT),)), "127.0.0.1", "ms")
        readings = asyncio.create_task(ingest.take(upload, f"{GOOD}\n".encode() * SMALL, ""))
        assert await asyncio.to_thread(service.at_work.wait, 30)
        try:
            return await asyncio.wait_for(ingest.take(upload, GOOD.encode(), ""), 30)
        finally:
            service.free.set()
            assert (await readings).readings == SMALL

    assert asyncio.run(sent(BusyService())).readings == 1


@pytest.mark.parametrize(
    ("body", "encoding", "small"),
    [
        (GOOD.encode(), "", True),
        (gzip.compress(GOOD.encode()), "gzip", True),
        (gzip.compress(f"{GOOD}\n".encode() * 2_000), "gzip", False),
        (gzip.compress(GOOD.encode()) * 2, "gzip", False),
        (b"no gzip", "gzip", False),
        (b"x" * SMALL, "", False),
    ],
    ids=["plain", "gzip", "much of one text", "two members", "no gzip", "long"],
)
def test_small_is_what_is_small_once_it_is_unpacked(body: bytes, encoding: str, small: bool) -> None:
    assert len(body) <= SMALL
    assert is_small(body, encoding) is small


def test_a_gzip_body_of_very_many_members_is_refused(http: TestClient, service: FakeService) -> None:
    empty = gzip.compress(b"", 9)
    few = gzip.compress(GOOD.encode()) + empty * 1000
    assert write(http, few, Content_Encoding="gzip") == (204, {})
    assert b"".join(unpacked(empty * MAX_MEMBERS, "gzip", LIMIT)) == b""
    with pytest.raises(ApiError, match="more than 4096 members"):
        list(unpacked(empty * (MAX_MEMBERS + 1), "gzip", LIMIT))


def test_a_member_may_be_larger_than_what_is_read_at_once() -> None:
    noise = random.Random(1).randbytes(100_000)
    assert b"".join(unpacked(gzip.compress(noise) + gzip.compress(b"end"), "gzip", 200_000)) == noise + b"end"


def test_a_long_body_is_cut_between_lines_and_numbers_go_on() -> None:
    service, lines = FakeService(), [GOOD] * 30_000
    lines[20_000] = "nonsense"
    app = create_app(service, ApiSettings())
    local = TestClient(app, base_url="http://127.0.0.1", client=("127.0.0.1", 1))
    body = gzip.compress("\n".join(lines).encode())
    status, error = write(local, body, Content_Encoding="gzip")
    details = error["details"]
    assert isinstance(details, dict)
    assert (status, [line["number"] for line in details["rejected"]], details["kept"]) == (400, [20_001], 29_999)
    assert len(service.lines) == 29_999


def test_quoted_text_is_not_cut() -> None:
    line = b'gpu_event,kind=xid message="a\ngpu" 1\n'
    parts = list(slices([line * (2 * SLICE // len(line))]))
    assert len(parts) > 1
    assert all(part.startswith(b"gpu_event") and part.endswith(b"1\n") for part in parts)


def test_a_line_without_an_end_is_refused_and_costs_no_other() -> None:
    parts = [*slices([b"gpu,a=", b"x" * (3 * SLICE), b"\n", GOOD.encode()])]
    assert b"is longer than" in parts[0]
    assert max(map(len, parts)) < SLICE
    assert b"".join(parts[1:]).strip().decode() == GOOD


@pytest.mark.parametrize("measurement", ["gpu_prediction", "gpu_finding"])
def test_no_agent_writes_what_is_acted_on(measurement: str) -> None:
    service = FakeService()
    line = f'{measurement},rule=r,target=t,subject_kind=gpu sentence="x" 1'
    app = create_app(service, ApiSettings(tokens=[Token(name="a", role=Role.AGENT, secret=SecretStr("s" * 16))]))
    local = TestClient(app, base_url="http://127.0.0.1", client=("127.0.0.1", 1))
    status, error = write(local, f"{line}\n{GOOD}".encode(), Authorization=f"Bearer {'s' * 16}")
    assert (status, service.lines) == (400, [GOOD])
    details = error["details"]
    assert isinstance(details, dict)
    assert details["rejected"] == [{"number": 1, "problem": "a may write readings and events alone"}]

"""The uplink before receivers that answer in every way; time is injected, nothing sleeps."""

from __future__ import annotations

import gzip
import random
import sqlite3
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from email.utils import format_datetime
from itertools import pairwise
from pathlib import Path

import httpx2
import pytest

from tocsin.collector.spool import Spool
from tocsin.collector.uplink import MAX_PAUSE_SECONDS, MAX_REQUESTS_PER_BATCH, PushTarget, Uplink
from tocsin.domain.batch import Batch
from tocsin.domain.clock import SECOND, ManualClock
from tocsin.domain.errors import InputError
from tocsin.domain.reading import Owner, Reading
from tocsin.store.line_protocol.decode import decode
from tocsin.store.line_protocol.encode import encode
from tocsin.telemetry.metrics import OwnMetrics
from tocsin_testing.builders import T0, gpu, reading

Handler = Callable[[list[str]], httpx2.Response]


class Receiver:
    """Answers with what `handler` makes of the lines; keeps requests and what it accepted."""

    def __init__(self) -> None:
        self.requests: list[httpx2.Request] = []
        self.bodies: list[list[str]] = []
        self.accepted: list[str] = []
        self.handler: Handler = self.accept

    def accept(self, lines: list[str]) -> httpx2.Response:
        self.accepted += lines
        return httpx2.Response(204)

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        assert request.headers["Content-Encoding"] == "gzip"
        lines = gzip.decompress(request.content).decode().splitlines()
        self.bodies.append(lines)
        return self.handler(lines)


class Bench:
    """A spool, an uplink and a receiver on one clock."""

    def __init__(self, folder: Path, url: str = "http://brain.test:8470/") -> None:
        self.clock = ManualClock(T0)
        self.spool = Spool(folder / "spool.db", 1 << 30, self.clock)
        self.own = OwnMetrics()
        self.receiver = Receiver()
        self.uplink = Uplink(
            self.spool,
            PushTarget(url, "org one", "b&b", "s3cret"),
            self.clock,
            self.own,
            transport=httpx2.MockTransport(self.receiver),
            jitter=random.Random(1),
        )

    def put(self, *lines: str) -> None:
        self.spool.put("".join(f"{line}\n" for line in lines), len(lines))

    def pushes(self, outcome: str) -> float:
        return self.own.value("tocsin_push_requests_total", outcome=outcome)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.uplink.close()
    made.spool.close()


def test_a_push_is_an_influxdb_write(bench: Bench) -> None:
    bench.put("a v=1 1", "b v=2 2")
    bench.put("c v=3 3")
    assert bench.uplink.push() == 2
    (request,) = bench.receiver.requests
    assert request.method == "POST"
    assert request.url.path == "/api/v2/write"
    assert dict(request.url.params) == {"org": "org one", "bucket": "b&b", "precision": "ms"}
    assert request.headers["Authorization"] == "Token s3cret"
    assert bench.receiver.accepted == ["a v=1 1", "b v=2 2", "c v=3 3"], "oldest first, joined in one body"
    assert bench.spool.batches == 0
    assert bench.uplink.push() == 0
    assert len(bench.receiver.requests) == 1, "nothing waits, nothing is sent"


def test_large_queues_go_in_several_requests(bench: Bench) -> None:
    for n in range(5):
        bench.put(*(f"m v={n} {k:0200d}" for k in range(2_000)))
    assert bench.uplink.push() == 5
    assert len(bench.receiver.requests) == 3, "bodies of up to a mebibyte"
    assert len(bench.receiver.accepted) == 10_000


def test_a_receiver_that_does_not_answer_in_time_gets_smaller_bodies(bench: Bench) -> None:
    """One that needs longer than the time-out for a full body would never take any."""
    for n in range(60):
        bench.put(*(f"m v={n} {k:0200d}" for k in range(200)))

    def slow(lines: list[str]) -> httpx2.Response:
        if len(lines) > 1_500:
            raise httpx2.ReadTimeout("no answer")
        return bench.receiver.accept(lines)

    bench.receiver.handler = slow
    for _ in range(200):
        bench.uplink.push()
        bench.clock.advance(SECOND)
    assert bench.spool.batches == 0
    assert len(set(bench.receiver.accepted)) == len(bench.receiver.accepted) == 60 * 200
    assert bench.pushes("again") < 20


def test_a_receiver_that_cannot_be_reached_gets_bodies_as_before(bench: Bench) -> None:
    for n in range(10):
        bench.put(*(f"m v={n} {k:0200d}" for k in range(2_000)))

    def away(_: list[str]) -> httpx2.Response:
        raise httpx2.ConnectTimeout("no route")

    bench.receiver.handler = away
    for _ in range(10):
        bench.uplink.push()
        bench.clock.advance(60 * SECOND)
    bench.receiver.handler = bench.receiver.accept
    bench.receiver.bodies.clear()
    bench.uplink.push()
    assert len(bench.receiver.bodies) == 5


@pytest.mark.parametrize("status", [401, 403, 404, 408, 429, 500, 502, 503, 504])
def test_what_may_work_later_stays_in_the_spool(bench: Bench, status: int) -> None:
    bench.put("a v=1 1")
    bench.receiver.handler = lambda _: httpx2.Response(status)
    assert bench.uplink.push() == 0
    assert bench.spool.batches == 1
    assert bench.spool.parked_lines() == 0
    assert bench.pushes("again") == 1
    bench.receiver.handler = bench.receiver.accept
    bench.clock.advance(60 * SECOND)
    assert bench.uplink.push() == 1
    assert bench.receiver.accepted == ["a v=1 1"]


@pytest.mark.parametrize("error", [httpx2.ConnectError, httpx2.ReadTimeout, httpx2.RemoteProtocolError])
def test_network_errors_are_tried_again(bench: Bench, error: type[httpx2.TransportError]) -> None:
    bench.put("a v=1 1")

    def fail(_: list[str]) -> httpx2.Response:
        raise error("no")

    bench.receiver.handler = fail
    assert bench.uplink.push() == 0
    assert bench.spool.batches == 1
    assert bench.pushes("again") == 1


def test_pauses_grow_with_jitter_up_to_a_limit(bench: Bench) -> None:
    bench.put("a v=1 1")
    bench.receiver.handler = lambda _: httpx2.Response(503)
    tried: list[float] = []
    while len(tried) < 10:
        before = len(bench.receiver.requests)
        bench.uplink.push()
        if len(bench.receiver.requests) > before:
            tried.append(bench.clock.monotonic())
        bench.clock.advance(100)
    pauses = [later - earlier for earlier, later in pairwise(tried)]
    for n, pause in enumerate(pauses):
        full = min(2.0**n, MAX_PAUSE_SECONDS)
        assert full / 2 <= pause <= full + 0.2
    assert len({round(pause / min(2.0**n, 60.0), 2) for n, pause in enumerate(pauses)}) > 3, "jitter"
    bench.receiver.handler = bench.receiver.accept
    bench.clock.advance(60 * SECOND)
    assert bench.uplink.push() == 1
    bench.put("b v=1 1")
    assert bench.uplink.push() == 1, "success ends all pauses"


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("17", 17),
        (format_datetime(datetime.fromtimestamp(T0 / SECOND + 42, UTC), usegmt=True), 42),
        ("99999999", 3600),
    ],
)
def test_retry_after_is_kept_to(bench: Bench, header: str, seconds: int) -> None:
    bench.put("a v=1 1")
    bench.receiver.handler = lambda _: httpx2.Response(429, headers={"Retry-After": header})
    bench.uplink.push()
    bench.receiver.handler = bench.receiver.accept
    bench.clock.advance((seconds - 1) * SECOND)
    assert bench.uplink.push() == 0
    bench.clock.advance(SECOND)
    assert bench.uplink.push() == 1


@pytest.mark.parametrize("header", ["soon", "-5", "", "1e9999"])
def test_a_retry_after_that_means_nothing_is_ignored(bench: Bench, header: str) -> None:
    bench.put("a v=1 1")
    bench.receiver.handler = lambda _: httpx2.Response(503, headers={"Retry-After": header})
    bench.uplink.push()
    bench.receiver.handler = bench.receiver.accept
    bench.clock.advance(SECOND)
    assert bench.uplink.push() == 1


def test_only_the_lines_that_a_brain_names_are_parked(bench: Bench) -> None:
    bench.put("good v=1 1", "bad one", "good v=2 2")
    bench.put("bad two", "good v=3 3")

    def answer(lines: list[str]) -> httpx2.Response:
        rejected = [{"number": n, "problem": "no fields"} for n, line in enumerate(lines, 1) if line.startswith("bad")]
        error = {"code": "bad_lines", "message": "2 lines are malformed", "details": {"rejected": rejected}}
        return httpx2.Response(400, json={"error": error})

    bench.receiver.handler = answer
    assert bench.uplink.push() == 2
    assert len(bench.receiver.requests) == 1, "the good lines were kept, nothing is sent twice"
    assert [(p.line, p.problem) for p in bench.spool.parked()] == [("bad one", "no fields"), ("bad two", "no fields")]
    assert bench.spool.batches == 0
    assert bench.own.value("tocsin_dropped_total", what="line", reason="refused") == 2
    assert bench.own.value("tocsin_spool_parked_lines") == 2


def test_bad_lines_beyond_those_that_a_brain_names_are_found_too(bench: Bench) -> None:
    bench.put(*(f"bad {n}" if n % 2 else f"good v={n} {n}" for n in range(20)))

    def answer(lines: list[str]) -> httpx2.Response:
        bad = [n for n, line in enumerate(lines, 1) if line.startswith("bad")]
        bench.receiver.accepted += [line for line in lines if line.startswith("good")]
        if not bad:
            return httpx2.Response(204)
        named = [{"number": n, "problem": "no fields"} for n in bad[:4]]
        details = {"rejected": named, "rejected_total": len(bad)}
        return httpx2.Response(400, json={"error": {"code": "c", "message": "m", "details": details}})

    bench.receiver.handler = answer
    assert bench.uplink.push() == 1
    assert {p.line for p in bench.spool.parked()} == {f"bad {n}" for n in range(1, 20, 2)}
    assert set(bench.receiver.accepted) == {f"good v={n} {n}" for n in range(0, 20, 2)}
    assert len(bench.receiver.requests) == 3


@pytest.mark.parametrize("alone", [False, True])
def test_influxdb_3_names_the_bad_lines_and_has_the_good_ones(bench: Bench, *, alone: bool) -> None:
    """As its reference for partial writes has it; where one line is bad, some releases answer it without a list."""
    bench.put("good v=1 1", "bad one", "good v=2 2", *(() if alone else ("bad two",)))

    def answer(lines: list[str]) -> httpx2.Response:
        bad = [
            {"original_line": line, "line_number": n, "error_message": "invalid field"}
            for n, line in enumerate(lines, 1)
            if line.startswith("bad")
        ]
        data = bad[0] if alone else bad
        return httpx2.Response(400, json={"error": "partial write of line protocol occurred", "data": data})

    bench.receiver.handler = answer
    assert bench.uplink.push() == 1
    assert len(bench.receiver.requests) == 1, "the good lines are in, nothing is sent twice"
    assert [p.line for p in bench.spool.parked()] == (["bad one"] if alone else ["bad one", "bad two"])


def test_a_refused_body_is_halved_until_the_bad_lines_are_found(bench: Bench) -> None:
    lines = [f"m v={n} {n}" for n in range(200)]
    bad = {lines[3], lines[77], lines[199]}
    bench.put(*lines)

    def answer(body: list[str]) -> httpx2.Response:
        wrong = [line for line in body if line in bad]
        if not wrong:
            return bench.receiver.accept(body)
        message = f"unable to parse '{wrong[0]}': invalid field format"
        return httpx2.Response(400, json={"code": "invalid", "message": message})

    bench.receiver.handler = answer
    assert bench.uplink.push() == 1
    parked = bench.spool.parked()
    assert {p.line for p in parked} == bad
    assert all("invalid field format" in p.problem for p in parked)
    assert sorted(bench.receiver.accepted) == sorted(set(lines) - bad), "each good line once"
    assert bench.spool.batches == 0


def test_a_receiver_that_refuses_everything_costs_a_bounded_number_of_requests(bench: Bench) -> None:
    bench.put(*(f"m v={n} {n}" for n in range(5_000)))
    bench.receiver.handler = lambda _: httpx2.Response(422, text="no")
    bench.uplink.push()
    assert len(bench.receiver.requests) <= 2 * MAX_REQUESTS_PER_BATCH
    assert bench.spool.batches == 0
    assert bench.spool.parked_lines() == 5_000
    bench.receiver.handler = bench.receiver.accept
    bench.put("next v=1 1")
    assert bench.uplink.push() == 1, "the rest goes on"


def test_a_body_that_is_too_large_is_sent_in_parts(bench: Bench) -> None:
    bench.put(*(f"m v={n} {n}" for n in range(8)))
    bench.receiver.handler = lambda body: httpx2.Response(413) if len(body) > 2 else bench.receiver.accept(body)
    assert bench.uplink.push() == 1
    assert bench.receiver.accepted == [f"m v={n} {n}" for n in range(8)]
    assert bench.spool.parked_lines() == 0


def test_a_failure_while_halving_leaves_the_batch_whole(bench: Bench) -> None:
    bench.put("a v=1 1", "bad", "c v=1 1", "d v=1 1")
    answers = iter([httpx2.Response(400), httpx2.Response(503)])
    bench.receiver.handler = lambda _: next(answers)
    assert bench.uplink.push() == 0
    assert bench.spool.batches == 1
    assert bench.spool.parked_lines() == 0


def test_a_damaged_batch_is_counted_and_does_not_block_the_next(bench: Bench, tmp_path: Path) -> None:
    bench.put("a v=1 1")
    bench.put("b v=1 1")
    with sqlite3.connect(tmp_path / "spool.db") as other:
        other.execute("UPDATE batch SET body = x'00ff' WHERE id = 1")
    other.close()
    assert bench.uplink.push() == 2
    assert bench.receiver.accepted == ["b v=1 1"]
    assert bench.own.value("tocsin_dropped_total", what="batch", reason="damaged") == 1


def test_own_metrics_tell_how_it_goes(bench: Bench) -> None:
    bench.put("a v=1 1")
    bench.clock.advance(30 * SECOND)
    assert bench.own.value("tocsin_push_age_seconds") == 30
    bench.uplink.push()
    assert bench.own.value("tocsin_push_age_seconds") == 0
    assert bench.pushes("acknowledged") == 1
    assert bench.own.value("tocsin_spool_batches") == 0


@pytest.mark.parametrize("url", ["brain:8470", "ftp://brain", "http://", "http://brain:port"])
def test_an_address_that_cannot_be_pushed_to_is_one_clear_error(tmp_path: Path, url: str) -> None:
    spool = Spool(tmp_path / "spool.db", 1 << 20, ManualClock())
    with pytest.raises(InputError, match=r"agent\.push_url = "):
        Uplink(spool, PushTarget(url, "o", "b"), ManualClock(), OwnMetrics())
    spool.close()


READS_PACKED = {"tocsin-packed": "1"}


def _packed(n: int = 0) -> str:
    return encode(Batch([reading(at_ms=T0 + n, power_watts=300.0 + n)]), packed=True).rstrip("\n")


def test_packed_lines_go_to_a_receiver_that_says_it_reads_them(bench: Bench) -> None:
    bench.receiver.handler = lambda lines: httpx2.Response(204, headers=READS_PACKED)
    assert not bench.uplink.packs, "nobody has said so yet"
    bench.put("a v=1 1")
    bench.uplink.push()
    assert bench.uplink.packs
    bench.put(*_packed().split("\n"))
    bench.uplink.push()
    assert "gpu_packed" in {line.partition(",")[0] for line in bench.receiver.bodies[-1]}


def test_packed_lines_are_text_to_every_other_receiver(bench: Bench) -> None:
    """What an agent spooled for a brain, and an InfluxDB is asked to take after a restart."""
    bench.put(*_packed().split("\n"))
    assert bench.uplink.push() == 1
    assert decode("\n".join(bench.receiver.accepted), now_ms=T0) == decode(_packed(), now_ms=T0)
    assert not [line for line in bench.receiver.accepted if line.startswith("gpu_packed")]


@pytest.mark.parametrize("status", [204, 400])
def test_a_receiver_that_reads_them_no_more_is_sent_the_same_as_text(bench: Bench, status: int) -> None:
    """A brain that was put back to an older version takes the lines as another's, or refuses them: neither counts."""
    bench.receiver.handler = lambda lines: httpx2.Response(204, headers=READS_PACKED)
    bench.put("a v=1 1")
    bench.uplink.push()
    bench.receiver.handler = lambda lines: httpx2.Response(status)
    bench.put(*_packed().split("\n"))
    assert bench.uplink.push() == 0
    assert (bench.spool.batches, bench.spool.parked_lines()) == (1, 0)
    bench.receiver.handler = bench.receiver.accept
    assert bench.uplink.push() == 1
    assert decode("\n".join(bench.receiver.accepted), now_ms=T0) == decode(_packed(), now_ms=T0)


def test_what_does_not_answer_says_nothing_of_packed_lines(bench: Bench) -> None:
    bench.receiver.handler = lambda lines: httpx2.Response(204, headers=READS_PACKED)
    bench.put("a v=1 1")
    bench.uplink.push()
    bench.receiver.handler = lambda lines: httpx2.Response(503)
    bench.put("b v=1 1")
    bench.uplink.push()
    assert bench.uplink.packs


@pytest.mark.parametrize("packs", [True, False])
def test_text_that_speaks_of_packed_lines_is_none(bench: Bench, packs: bool) -> None:
    """A process may call itself anything, and so may a host."""
    odd = Reading(gpu(0, host="gpu_packed"), T0, {'gpu_nvlink_up{link="0"}': 1.0}, {}, (Owner(7, "gpu_packed,x"),))
    if packs:
        bench.receiver.handler = lambda lines: httpx2.Response(204, headers=READS_PACKED)
        bench.put("a v=1 1")
        bench.uplink.push()
        bench.receiver.handler = bench.receiver.accept
    bench.put(*encode(Batch([odd])).rstrip("\n").split("\n"))
    assert bench.uplink.push() == 1
    assert decode("\n".join(bench.receiver.accepted), now_ms=T0).batch.readings == [odd]

"""Remote write and OTLP of a stranger: bounded before they are unpacked, never a 500, never at a good series' cost."""

from __future__ import annotations

import gzip
import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tocsin.api import ingest
from tocsin.collector.push import fleet, otlp_json, remote_write
from tocsin.collector.push.otlp_json import MAX_VALUES
from tocsin.collector.push.samples import MAX_SERIES, MAX_UNPACKED_BYTES, PushedSeries
from tocsin_testing.builders import T0
from tocsin_testing.process_cost import cost
from tocsin_testing.push_site import PushSite, series
from tocsin_testing.pushes import (
    METRICS,
    OTLP,
    OTLP_JSON,
    RW1,
    RW2,
    WRITE,
    Series,
    field,
    json_metric,
    json_point,
    json_request,
    metric,
    number,
    otlp_json_of,
    otlp_of,
    point,
    request_1,
    request_2,
    request_otlp,
    series_1,
    snappy,
    varint,
)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[PushSite]:
    made = PushSite(tmp_path)
    yield made
    made.running.stop()


def test_every_form_is_taken(site: PushSite) -> None:
    first = site.post(WRITE, RW1, snappy(request_1([series()])))
    assert (first.status_code, site.temperature("GPU-a")) == (204, 50)
    second = site.post(WRITE, RW2, snappy(request_2([series("GPU-b")])))
    assert (second.status_code, site.temperature("GPU-b")) == (204, 50)
    assert second.headers["X-Prometheus-Remote-Write-Samples-Written"] == "1"
    third = site.post(METRICS, OTLP | {"Content-Encoding": "gzip"}, gzip.compress(otlp_of([series("GPU-c")])))
    assert (third.status_code, third.content, site.temperature("GPU-c")) == (200, b"", 50)
    for uuid, more, pack in (("GPU-d", {}, bytes), ("GPU-e", {"Content-Encoding": "gzip"}, gzip.compress)):
        fourth = site.post(METRICS, OTLP_JSON | more, pack(otlp_json_of([series(uuid)])))
        assert (fourth.status_code, fourth.json(), site.temperature(uuid)) == (200, {}, 50)
        assert fourth.headers["Content-Type"] == "application/json"


@pytest.mark.parametrize(("path", "kind"), [(WRITE, RW1), (WRITE, RW2), (METRICS, OTLP), (METRICS, OTLP_JSON)])
def test_nobody_writes_without_a_token_of_an_agent(site: PushSite, path: str, kind: dict[str, str]) -> None:
    assert site.post(path, kind, b"", who="").status_code == 401
    assert site.post(path, kind, b"", who="anna").status_code == 403


def test_a_node_writes_for_itself_alone(site: PushSite) -> None:
    assert site.post(WRITE, RW1, snappy(request_1([series("GPU-b", "node-b")]))).status_code == 204
    mixed = [series("GPU-a"), series("GPU-x", "node-b"), series("GPU-b", "node-a", 99)]
    for body, kind in ((request_1(mixed), RW1), (request_2(mixed), RW2)):
        answer = site.post(WRITE, kind, snappy(body), who="node-a")
        assert answer.status_code == 400
        assert answer.headers["X-Prometheus-Remote-Write-Samples-Written"] == "1"
        assert "may not write for" in answer.text
    answer = site.post(METRICS, OTLP, otlp_of(mixed), who="node-a")
    assert answer.status_code == 200
    assert b"may not write for" in answer.content
    answer = site.post(METRICS, OTLP_JSON, otlp_json_of(mixed), who="node-a")
    assert answer.json()["partialSuccess"]["rejectedDataPoints"] == "2"
    assert "may not write for" in answer.json()["partialSuccess"]["errorMessage"]
    assert [site.temperature(uuid) for uuid in ("GPU-a", "GPU-x", "GPU-b")] == [50, None, 50]


def test_types_and_encodings_that_are_not_read(site: PushSite) -> None:
    body = snappy(request_1([series()]))
    for kind in ({"Content-Type": "text/plain"}, {"Content-Encoding": "gzip"}, {"Content-Encoding": ""}):
        assert site.post(WRITE, RW1 | kind, body).status_code == 415
    other = {"Content-Type": "application/x-protobuf;proto=io.prometheus.write.v3.Request"}
    assert site.post(WRITE, RW1 | other, body).status_code == 415
    assert site.post(METRICS, OTLP | {"Content-Type": "text/json"}, b"{}").status_code == 415
    assert site.post(METRICS, OTLP | {"Content-Encoding": "zstd"}, b"").status_code == 415


def test_bombs_are_refused_by_what_they_declare(site: PushSite) -> None:
    held = cost(os.getpid()).bytes
    for declared in (2**32 - 1, MAX_UNPACKED_BYTES + 1):
        assert site.post(WRITE, RW1, varint(declared) + b"\x00" * 100).status_code == 413
    assert site.post(WRITE, RW1, snappy(b"\x00" * (MAX_UNPACKED_BYTES + 1))).status_code == 413
    bomb = gzip.compress(b"\x00" * 200_000_000, 9)
    assert site.post(METRICS, OTLP | {"Content-Encoding": "gzip"}, bomb).status_code == 413
    assert cost(os.getpid()).bytes - held < 100_000_000
    assert site.post(WRITE, RW1, b"\xff" * 20).status_code == 400
    assert site.post(METRICS, OTLP | {"Content-Encoding": "gzip"}, b"no gzip").status_code == 400


def test_what_is_too_many_is_refused_and_what_came_before_is_kept(site: PushSite) -> None:
    good = request_1([series()])
    many = site.post(WRITE, RW1, snappy(good + b"\x0a\x00" * MAX_SERIES))
    assert (many.status_code, site.temperature("GPU-a")) == (400, 50)
    symbols = b"".join(field(4, b"%d" % n if n else b"") for n in range(100_001))
    assert site.post(WRITE, RW2, snappy(symbols)).status_code == 400
    empty = request_otlp(metric("m", b"\x0a\x00" * (MAX_SERIES + 1)))
    assert b"more than" in site.post(METRICS, OTLP, empty).content
    points = json_request(json_metric("m", *[{}] * (MAX_SERIES + 1)))
    assert "more than" in site.post(METRICS, OTLP_JSON, points).json()["partialSuccess"]["errorMessage"]


BAD = {
    "labels": series_1({"__name__": "m", **{f"l{n}": "v" for n in range(200)}}, [(T0, 1)]),
    "long label": series_1({"__name__": "m", "l": "v" * 2_000}, [(T0, 1)]),
    "no name": series_1({"l": "v"}, [(T0, 1)]),
    "long series": field(1, b"\x00" * 100_000),
    "samples": series_1({"__name__": "m"}, [(T0 + n, 1) for n in range(1_001)]),
    "no message": field(1, b"\xff\xff\xff"),
    "twice": field(1, 2 * field(1, field(1, b"l") + field(2, b"v"))),
    "no text": field(1, field(1, field(1, b"\xff\xfe") + field(2, b"v"))),
    "future": request_1([series("GPU-a", at_ms=T0 + 10**9)]),
    "time": request_1([series("GPU-a", at_ms=-5)]),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_series_costs_no_good_one(site: PushSite, name: str) -> None:
    answer = site.post(WRITE, RW1, snappy(BAD[name] + request_1([series()])))
    assert answer.status_code == (204 if name == "twice" else 400), answer.text
    assert site.temperature("GPU-a") == 50


def test_references_that_lead_nowhere(site: PushSite) -> None:
    for refs in (b"\x01\x63", b"\x01", varint(2**31)):
        bad = field(5, field(1, refs) + field(2, number(2, T0)))
        answer = site.post(WRITE, RW2, snappy(request_2([series()]) + bad))
        assert answer.status_code == 400
        assert site.temperature("GPU-a") == 50


def test_a_body_that_is_cut_short_keeps_what_came_before(site: PushSite) -> None:
    whole = request_1([series("GPU-a"), series("GPU-b")])
    assert site.post(WRITE, RW1, snappy(whole[:-3])).status_code == 400
    assert (site.temperature("GPU-a"), site.temperature("GPU-b")) == (50, None)


def test_attributes_that_are_nested_deeply(site: PushSite) -> None:
    value = field(1, b"x")
    for _ in range(3_000):
        value = field(5, field(1, value))
    bad = point(T0, 1, {}, field(7, field(1, b"deep") + field(2, value)))
    good = otlp_of([series()])
    answer = site.post(METRICS, OTLP, request_otlp(metric("m", bad)) + good)
    assert answer.status_code == 200
    assert b"broken" in answer.content
    assert site.temperature("GPU-a") == 50


def test_an_agent_outranks_what_is_pushed(site: PushSite) -> None:
    line = f"gpu,gpu_uuid=GPU-a,host=node-a temperature_celsius=40 {T0}"
    assert site.post("/api/v2/write?precision=ms", {}, line.encode()).status_code == 204
    site.clock.advance(1_000)
    assert site.post(WRITE, RW1, snappy(request_1([series(at_ms=T0 + 1_000)]))).status_code == 204
    assert site.temperature("GPU-a") == 40
    site.clock.advance(200_000)
    assert site.post(WRITE, RW1, snappy(request_1([series(at_ms=T0 + 200_000)]))).status_code == 204
    assert site.temperature("GPU-a") == 50


def codes(site: PushSite, *sent: Series, who: str = "fleet") -> list[int | None]:
    """The codes of events so far, once `sent` is taken."""
    site.post(WRITE, RW1, snappy(request_1(list(sent))), who=who)
    return [event.code for event in site.running.brain.store.events(0, 2 * T0)]


def of(host: str, name: str, at_ms: int, value: float, **labels: str) -> Series:
    return {"__name__": name, "Hostname": host, **labels}, [(at_ms, value)]


def test_samples_of_few_series_are_taken_a_part_at_a_time(site: PushSite, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = []
    take = fleet.PushedFleet.take

    def counted(self: fleet.PushedFleet, sent: list[PushedSeries], *more: Any) -> fleet.Taken:
        steps.append(sum(len(one.samples) for one in sent))
        return take(self, sent, *more)

    monkeypatch.setattr(fleet.PushedFleet, "take", counted)
    monkeypatch.setattr(ingest, "PUSH_SAMPLES", 100)
    labels, _ = series()
    sent = [(labels, [(T0 - 600 + 60 * n + place, 50.0) for place in range(60)]) for n in range(10)]
    assert site.post(WRITE, RW1, snappy(request_1(sent))).status_code == 204
    assert steps == [120] * 5
    assert site.temperature("GPU-a") == 50


def test_no_node_says_that_the_exporter_of_another_was_started_anew(site: PushSite) -> None:
    xid, start = "DCGM_FI_DEV_XID_ERRORS", "process_start_time_seconds"
    for at_ms in range(T0 - 150_000, T0, 15_000):
        codes(site, of("node-b", xid, at_ms, 0, UUID="GPU-b"))
    for value in (1, 2):
        forged = of("node-b", start, T0 - 10_000 + int(value), value)
        answer = site.post(WRITE, RW1, snappy(request_1([forged])), who="node-a")
        assert (answer.status_code, "may not write for" in answer.text) == (400, True)
    # Of a host that shows no GPU nothing is taken in, and nobody needs to be told.
    nobody = snappy(request_1([of("localhost", start, T0, 1)]))
    assert site.post(WRITE, RW1, nobody, who="node-a").status_code == 204
    assert codes(site, of("node-b", xid, T0, 79, UUID="GPU-b")) == [79]


def test_switches_without_number_hide_no_error_of_another_host(site: PushSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "MAX_KNOWN", 1_000)
    fatal = "DCGM_FI_DEV_NVSWITCH_FATAL_ERRORS"
    many = request_1([of("node-a", fatal, T0 - 50_000, 0, nvswitch=str(n)) for n in range(1_200)])
    answer = site.post(WRITE, RW1, snappy(many), who="node-a")
    assert (answer.status_code, "more than 256 NVSwitches" in answer.text) == (400, True)
    assert answer.headers["X-Prometheus-Remote-Write-Samples-Written"] == "256"
    codes(site, of("node-b", fatal, T0 - 30_000, 0, nvswitch="1"))
    assert codes(site, of("node-b", fatal, T0, 12_030, nvswitch="1")) == [12_030]


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_body_gives_a_500(site: PushSite, data: st.DataObject) -> None:
    good = bytearray(
        data.draw(st.sampled_from([request_1, request_2, otlp_of, otlp_json_of]))([series(), series("GPU-b")])
    )
    for place, byte in data.draw(st.lists(st.tuples(st.integers(0, len(good) - 1), st.integers(0, 255)), max_size=4)):
        good[place] = byte
    body = bytes(good[: data.draw(st.integers(0, len(good)))]) if data.draw(st.booleans()) else bytes(good)
    body = data.draw(st.sampled_from([body, data.draw(st.binary(max_size=60))]))
    forms = ((WRITE, RW1, snappy(body)), (WRITE, RW2, snappy(body)), (METRICS, OTLP, body), (METRICS, OTLP_JSON, body))
    for path, kind, sent in forms:
        assert site.post(path, kind, sent).status_code in {200, 204, 400}
    assert site.post(WRITE, RW1, body).status_code in {204, 400, 413}


def test_the_mark_of_a_series_that_has_ended_is_no_value(site: PushSite) -> None:
    stale = struct.unpack("<d", struct.pack("<Q", remote_write.STALE_BITS))[0]
    for make, kind in ((request_1, RW1), (request_2, RW2)):
        assert site.post(WRITE, kind, snappy(make([series(temperature=stale)]))).status_code == 204
        assert site.running.brain.memory.reading("GPU-a") is None


JSON_BOMBS = {
    "lists": b"[" + b"[]," * 2_000_000 + b"[]]",
    "objects": b'{"a":[' + b'{"a":1},' * 900_000 + b"{}]}",
    "texts": b'{"a":[' + b'"\\u4e00a",' * 800_000 + b"0]}",
    "numbers": b'{"a":[' + b"1.25," * 1_500_000 + b"0]}",
}


@pytest.mark.parametrize("name", JSON_BOMBS)
def test_json_of_more_values_than_memory_is_for_is_refused_before_it_is_read(site: PushSite, name: str) -> None:
    held = cost(os.getpid()).bytes
    assert len(JSON_BOMBS[name]) <= MAX_UNPACKED_BYTES
    assert site.post(METRICS, OTLP_JSON, JSON_BOMBS[name]).status_code == 413
    assert cost(os.getpid()).bytes - held < 30_000_000


def test_json_within_the_bound_takes_bounded_memory() -> None:
    body = b'{"a":[' + b'{"abcdefg":"hijk"},' * (MAX_VALUES // 2 - 2) + b"{}]}"
    held = cost(os.getpid()).bytes
    found = otlp_json.parsed(body)
    assert len(found["a"]) == MAX_VALUES // 2 - 1
    assert cost(os.getpid()).bytes - held < 100_000_000


NO_OBJECT = [
    b"",
    b"[]",
    b"5",
    b"{",
    b'{"a":}',
    b"\xff\xfe",
    b"[" * 200_000,
    b'{"a":' * 200_000,
    b'{"a":' + b"9" * 5_000,
]


@pytest.mark.parametrize("body", NO_OBJECT, ids=range(len(NO_OBJECT)))
def test_what_is_no_json_object_is_refused_as_a_whole(site: PushSite, body: bytes) -> None:
    assert site.post(METRICS, OTLP_JSON, body).status_code == 400


def _deep(levels: int) -> dict[str, object]:
    value: dict[str, object] = {"stringValue": "x"}
    for _ in range(levels):
        value = {"arrayValue": {"values": [value]}}
    return value


BAD_JSON_POINTS = {
    "no object": 5,
    "null": None,
    "deep": {"attributes": [{"key": "a", "value": _deep(200)}], "asDouble": 1},
    "labels": json_point(T0, 1, {f"l{n}": "v" for n in range(200)}),
    "long label": json_point(T0, 1, {"l": "v" * 2_000}),
    "attributes": {"attributes": "x", "asDouble": 1},
    "attribute": {"attributes": [7], "asDouble": 1},
    "half a character": json_point(T0, 1, {"l": "\ud800"}),
    "two values": {"asDouble": 1, "asInt": "1"},
    "number": {"asDouble": "warm"},
    "huge": {"asInt": "1e999999999"},
    "huge number": {"asDouble": 10**400},
    "range": {"asInt": str(2**70)},
    "time": {"asDouble": 1, "timeUnixNano": "-1"},
    "text as time": {"asDouble": 1, "timeUnixNano": "soon"},
}


@pytest.mark.parametrize("name", BAD_JSON_POINTS)
def test_a_bad_point_in_json_costs_no_good_one(site: PushSite, name: str) -> None:
    labels, ((at_ms, value),) = series()
    good = json_point(at_ms, value, {label: text for label, text in labels.items() if label != "__name__"})
    body = json_request(json_metric(labels["__name__"], BAD_JSON_POINTS[name], good))
    answer = site.post(METRICS, OTLP_JSON, body)
    assert (answer.status_code, site.temperature("GPU-a")) == (200, 50)
    assert answer.json()["partialSuccess"]["rejectedDataPoints"] == "1"


@pytest.mark.parametrize(
    "broken",
    [
        {"resourceMetrics": 5},
        {"resourceMetrics": [None, {"scopeMetrics": {}}, {"scopeMetrics": [[]]}, {"scopeMetrics": [{"metrics": "x"}]}]},
        {"resourceMetrics": [{"resource": 7, "scopeMetrics": [{"metrics": [{"name": 5, "gauge": []}]}]}]},
        {"resourceMetrics": [{"scopeMetrics": [{"metrics": [{"name": "m", "sum": {"dataPoints": {}}}]}]}]},
        {"unknown": {"x": [1]}, "resourceMetrics": None},
    ],
)
def test_json_of_another_shape_is_no_error_of_the_server(site: PushSite, broken: object) -> None:
    assert site.post(METRICS, OTLP_JSON, json.dumps(broken).encode()).status_code == 200

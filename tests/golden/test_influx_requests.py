"""The requests of the InfluxDB store, byte for byte, against answers that a real InfluxDB 2.0 gave."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from pydantic import SecretStr
from pytest_httpserver import HTTPServer

from tocsin.config.settings import StoreKind, StoreSettings
from tocsin.domain.batch import Batch
from tocsin.domain.errors import InputError
from tocsin.store.influx import InfluxStore, LinesParked
from tocsin.store.port import StoreRejected, StoreUnavailable
from tocsin_testing.builders import T0, gpu, reading, xid
from tocsin_testing.servers import free_port

ANSWERS = Path(__file__).parent.parent / "data" / "influxdb2"
HEADERS = {"Authorization": "Token secret"}
READINGS = '(r._measurement == "gpu" or r._measurement == "gpu_missing")'
TAIL = """
  |> drop(columns: ["_start", "_stop"])
  |> rename(fn: (column) => if column == "result" then "label_result" else column)"""
LINE = "gpu,gpu_uuid=GPU-0000000{n},host=node-1 temperature_celsius=4{n}.0 1795000000000"


class Server:
    """Expects requests in order and answers each with a recorded answer."""

    def __init__(self, server: HTTPServer) -> None:
        self._server = server

    def expect(
        self, method: str, path: str, query: str, body: bytes | None, answer: str, *changes: tuple[str, str]
    ) -> None:
        recorded = json.loads((ANSWERS / f"{answer}.json").read_text())
        text = recorded["body"]
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        self._server.expect_ordered_request(
            path, method=method, query_string=query, data=body, headers=HEADERS
        ).respond_with_data(text, recorded["status"], content_type=recorded["content_type"] or None)

    def write(self, lines: list[str], answer: str, *changes: tuple[str, str]) -> None:
        query = "org=gpu&bucket=fleet&precision=ms"
        self.expect("POST", "/api/v2/write", query, "\n".join(lines).encode(), answer, *changes)

    def flux(self, text: str, answer: str, *changes: tuple[str, str]) -> None:
        dialect = {
            "header": True,
            "delimiter": ",",
            "annotations": ["datatype", "group", "default"],
            "commentPrefix": "#",
            "dateTimeFormat": "RFC3339",
        }
        body = {"extern": {"imports": [], "body": []}, "query": text + TAIL, "dialect": dialect}
        self.expect("POST", "/api/v2/query", "org=gpu", json.dumps(body).encode(), answer, *changes)


@pytest.fixture
def server(httpserver: HTTPServer) -> Iterator[Server]:
    yield Server(httpserver)
    httpserver.check()
    assert httpserver.ordered_handlers == [], "a request that was expected did not come"


@pytest.fixture
def store(httpserver: HTTPServer) -> Iterator[InfluxStore]:
    with_bucket = made(httpserver.url_for(""))
    yield with_bucket
    with_bucket.close()


def made(url: str, **more: object) -> InfluxStore:
    fields: dict[str, object] = {"org": "gpu", "bucket": "fleet", "retention_days": 14, **more}
    return InfluxStore(StoreSettings(kind=StoreKind.INFLUXDB, url=url, token=SecretStr("secret"), **fields))  # type: ignore[arg-type]


def bare(n: int, **values: float) -> Batch:
    return Batch([reading(gpu(n, model="", index=None), **values)])


# ---------------------------------------------------------------------- bucket


def test_init_creates_the_bucket_with_its_retention(httpserver: HTTPServer, server: Server) -> None:
    server.expect("GET", "/api/v2/buckets", "org=gpu&name=raw", b"", "buckets_unknown")
    server.expect("GET", "/api/v2/orgs", "org=gpu", b"", "orgs_by_name")
    wanted = (
        b'{"orgID": "11ab04ec3ecd2000", "name": "raw", "rp": "0", '
        b'"retentionRules": [{"type": "expire", "everySeconds": 604800}]}'
    )
    server.expect("POST", "/api/v2/buckets", "", wanted, "bucket_create_retention_201")
    made(httpserver.url_for(""), bucket="raw", retention_days=7).init()


def test_init_gives_a_bucket_the_retention_of_the_settings(store: InfluxStore, server: Server) -> None:
    server.expect("GET", "/api/v2/buckets", "org=gpu&name=fleet", b"", "buckets_by_name")
    wanted = b'{"name": "fleet", "retentionRules": [{"type": "expire", "everySeconds": 1209600}]}'
    server.expect("PATCH", "/api/v2/buckets/11ab04ec3ecd2001", "", wanted, "bucket_patch_retention")
    store.init()


def test_init_leaves_a_bucket_that_is_right(store: InfluxStore, server: Server) -> None:
    rules = ('"retentionRules": []', '"retentionRules": [{"type": "expire", "everySeconds": 1209600}]')
    server.expect("GET", "/api/v2/buckets", "org=gpu&name=fleet", b"", "buckets_by_name", rules)
    store.init()


def test_a_retention_below_the_servers_least_is_raised_to_it(httpserver: HTTPServer, server: Server) -> None:
    rules = ('"retentionRules": []', '"retentionRules": [{"type": "expire", "everySeconds": 3600}]')
    server.expect("GET", "/api/v2/buckets", "org=gpu&name=fleet", b"", "buckets_by_name", rules)
    made(httpserver.url_for(""), retention_days=0.01).init()


def test_an_unknown_organisation_is_bad_input(store: InfluxStore, server: Server) -> None:
    server.expect("GET", "/api/v2/buckets", "org=gpu&name=fleet", b"", "orgs_unknown")
    with pytest.raises(InputError, match=r"store.org = 'gpu'.*not found"):
        store.init()


# ---------------------------------------------------------------------- writing


def test_a_batch_is_one_request(store: InfluxStore, server: Server) -> None:
    server.write(
        [
            'gpu_info,gpu_uuid=GPU-00000000,host=node-1 index=0i,model="NVIDIA A100-SXM4-80GB",serial="",pci_bus_id="",'
            'mig_profile="",pool="default",rack="",labels="{}",simulated=false 1795000000000',
            "gpu,gpu_uuid=GPU-00000000,host=node-1 temperature_celsius=50.0,power_watts=300.5 1795000000000",
            'gpu_event,kind=xid,gpu_uuid=GPU-00000000,host=node-1,code=79 code=79i,message="Xid 79",source="test",'
            "simulated=false 1795000000000",
        ],
        "write_204",
    )
    store.write(Batch([reading(temperature_celsius=50, power_watts=300.5)], [xid(79)]))


def test_attributes_are_written_once_while_they_stay_the_same(store: InfluxStore, server: Server) -> None:
    for at_ms, info in ((T0, True), (T0 + 1, False)):
        line = f"gpu,gpu_uuid=GPU-00000000,host=node-1 temperature_celsius=50.0 {at_ms}"
        head = (
            'gpu_info,gpu_uuid=GPU-00000000,host=node-1 index=0i,model="M",serial="",pci_bus_id="",mig_profile="",'
            f'pool="default",rack="",labels="{{}}",simulated=false {at_ms}'
        )
        server.write([head, line] if info else [line], "write_204")
        store.write(Batch([reading(gpu(0, model="M"), at_ms, temperature_celsius=50)]))


def test_text_with_a_newline_stays_in_one_point(store: InfluxStore, server: Server) -> None:
    event = xid(79)
    server.write(
        [
            'gpu_event,kind=xid,gpu_uuid=GPU-00000000,host=node-1,code=79 code=79i,message="one\ntwo",source="test",'
            "simulated=false 1795000000000"
        ],
        "write_204",
    )
    store.write(Batch(events=[type(event)(event.kind, event.gpu, event.host, T0, 79, "one\ntwo", "test")]))


def test_an_empty_batch_sends_nothing(store: InfluxStore, server: Server) -> None:
    store.write(Batch())


def test_a_line_that_the_server_names_is_parked_and_the_others_are_sent_again(
    store: InfluxStore, server: Server
) -> None:
    lines = [LINE.format(n=n) for n in range(3)]
    server.write(lines, "write_400_partly_malformed", ("this is bad", lines[1]))
    server.write([lines[0], lines[2]], "write_204")
    batch = Batch([r for n in range(3) for r in bare(n, temperature_celsius=40 + n).readings])
    with pytest.raises(LinesParked, match="refuses 1 lines, the others are stored") as caught:
        store.write(batch)
    assert caught.value.lines == ((lines[1], "invalid field format"),)


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        ("write_401_bad_token", StoreUnavailable, "401: unauthorized access"),
        ("write_403_readonly_token", StoreUnavailable, "403: insufficient permissions"),
        ("write_404_unknown_bucket", StoreUnavailable, 'bucket "nope" not found'),
        ("write_type_conflict", StoreRejected, "already Float but got String dropped=1"),
        ("write_400_partly_malformed", StoreRejected, "this is bad"),
    ],
)
def test_refusals_of_a_write(
    store: InfluxStore, server: Server, answer: str, error: type[Exception], words: str
) -> None:
    server.write([LINE.format(n=0)], answer)
    with pytest.raises(error, match=words):
        store.write(bare(0, temperature_celsius=40))


def test_no_server_is_unavailable_to_both_sides() -> None:
    store = made(f"http://127.0.0.1:{free_port()}")
    for act in (store.init, store.gpus, lambda: store.write(bare(0, temperature_celsius=40))):
        with pytest.raises(StoreUnavailable, match="InfluxDB at http"):
            act()
    store.close()


# ---------------------------------------------------------------------- reading

OURS = (("gpu_metrics", "gpu"), ("temperature_c", "temperature_celsius"), (",gpu,host\r", ",gpu_uuid,host\r"))
"""The recorded answers are of another measurement: its names in ours."""


def test_a_series_of_a_recorded_answer(store: InfluxStore, server: Server) -> None:
    server.flux(
        'from(bucket: "fleet")\n'
        "  |> range(start: 2026-11-21T02:58:20.000Z, stop: 2026-11-21T03:16:40.000Z)\n"
        f"  |> filter(fn: (r) => {READINGS} and "
        '((not exists r.mig_uuid and (r.gpu_uuid == "1")) or (exists r.mig_uuid and (r.mig_uuid == "1"))) and '
        '(r._field == "temperature_celsius"))',
        "query_csv_annotated",
        *OURS,
        ("gpu,0,node-1", "gpu,1,node-2"),
    )
    found = store.series("1", ["gpu_temperature_celsius"], 1_795_229_900_000, 1_795_231_000_000)
    assert found.at_ms.tolist() == [1_795_230_000_000 + step * 10_000 for step in range(4)]
    assert found.values.dtype == np.float64
    assert found.values[:, 0].tolist() == [50.0, 50.5, 51.0, 51.5]


def test_latest_keeps_what_is_of_the_newest_instant(store: InfluxStore, server: Server) -> None:
    server.flux(
        'from(bucket: "fleet")\n'
        "  |> range(start: 2026-11-18T11:06:40.000Z, stop: 2200-01-01T00:00:00.000Z)\n"
        f"  |> filter(fn: (r) => {READINGS})\n  |> last()",
        "query_csv_annotated_types",
        *OURS,
        ("03:00:30Z,330,power_w,", "03:00:20Z,330,power_watts,"),
        (",xid,", ",performance_state,"),
    )
    server.flux(
        'from(bucket: "fleet")\n'
        "  |> range(start: 1970-01-01T00:00:00.000Z, stop: 2200-01-01T00:00:00.000Z)\n"
        '  |> filter(fn: (r) => (r._measurement == "gpu_info"))\n  |> last()',
        "query_csv_empty",
    )
    (found,) = store.latest(T0)
    assert (found.gpu.uuid, found.gpu.host, found.at_ms) == ("0", "node-1", 1_795_230_030_000)
    assert dict(found.values) == {"gpu_temperature_celsius": 51.5, "gpu_performance_state": 0.0}


def test_names_in_a_query_cannot_end_its_text(store: InfluxStore, server: Server) -> None:
    server.flux(
        'from(bucket: "fleet")\n'
        "  |> range(start: 2026-11-18T11:06:40.000Z, stop: 2026-11-18T11:06:40.001Z)\n"
        '  |> filter(fn: (r) => (r._measurement == "gpu_event") and (r.gpu_uuid == "a\\"b\\\\\\${c}"))',
        "query_csv_empty",
    )
    assert store.events(T0, T0 + 1, 'a"b\\${c}') == []


def test_an_empty_range_asks_nothing(store: InfluxStore, server: Server) -> None:
    assert list(store.readings(T0, T0)) == store.events(T0, T0) == store.predictions(T0 + 1, T0) == []
    assert list(store.readings(T0, T0 + 1, set())) == []
    assert store.series("GPU-1", ["gpu_power_watts"], T0, T0).values.shape == (0, 1)


@pytest.mark.parametrize("answer", ["query_error_unknown_bucket", "query_unauthorized"])
def test_refusals_of_a_query(store: InfluxStore, server: Server, answer: str) -> None:
    server.flux(
        'from(bucket: "fleet")\n'
        "  |> range(start: 2026-11-18T11:06:40.000Z, stop: 2026-11-18T11:06:40.001Z)\n"
        '  |> filter(fn: (r) => (r._measurement == "gpu_event"))',
        answer,
    )
    with pytest.raises(StoreUnavailable, match=r"could not find bucket|unauthorized access"):
        store.events(T0, T0 + 1)


def test_an_error_inside_an_answer_of_status_200_is_not_an_empty_answer(store: InfluxStore, server: Server) -> None:
    server.flux(
        'from(bucket: "fleet")\n'
        "  |> range(start: 2026-11-18T11:06:40.000Z, stop: 2026-11-18T11:06:40.001Z)\n"
        '  |> filter(fn: (r) => (r._measurement == "gpu_event"))',
        "query_csv_empty",
        (
            "\r\n",
            "#datatype,string,string\r\n#group,true,true\r\n#default,,\r\n,error,reference\r\n,engine: boom,897\r\n",
        ),
    )
    with pytest.raises(StoreUnavailable, match="breaks off its answer: engine: boom"):
        store.events(T0, T0 + 1)

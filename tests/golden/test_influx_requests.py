"""The requests of the InfluxDB store, byte for byte, against answers that a real InfluxDB 2.0 gave."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from pydantic import SecretStr
from pytest_httpserver import HTTPServer
from pytest_httpserver.httpserver import HandlerType, RequestMatcher
from structlog.testing import capture_logs
from werkzeug import Request

from tocsin.config.settings import StoreKind, StoreSettings
from tocsin.domain.batch import Batch
from tocsin.domain.finding import ActionKind, Category, Finding, Severity
from tocsin.domain.metrics import variant
from tocsin.domain.prediction import Prediction, PredictionStatus
from tocsin.domain.subject import Subject, SubjectKind
from tocsin.store.flux import FAR_MS
from tocsin.store.influx import InfluxStore
from tocsin.store.influx_errors import LinesParked
from tocsin.store.port import StoreRejected, StoreUnavailable
from tocsin_testing.builders import T0, gpu, reading, xid
from tocsin_testing.servers import free_port

ANSWERS = Path(__file__).parent.parent / "data" / "influxdb2"
HEADERS = {"Authorization": "Token secret"}
READINGS = '(r._measurement == "gpu" or r._measurement == "gpu_missing")'
TAIL = """
  |> drop(columns: ["_start", "_stop"])
  |> rename(fn: (column) => if column == "result" then "label_result" else column)"""
TOKEN = r"store\.token: InfluxDB at http.* answers 40[13]: .*; set a token that may read and write bucket 'fleet'"
LINE = "gpu,gpu_uuid=GPU-{n:08d},host=node-1 temperature_celsius=4{n}.0 1795000000000"


class GzipMatcher(RequestMatcher):
    """Compares the body behind its compression, which must be there."""

    def match_data(self, request: Request) -> bool:
        return request.headers.get("Content-Encoding") == "gzip" and gzip.decompress(request.data) == self.data


class Server:
    """Expects requests in order and answers each with a recorded answer."""

    def __init__(self, server: HTTPServer) -> None:
        self._server = server

    def expect(
        self,
        method: str,
        path: str,
        query: str,
        body: bytes | None,
        answer: str,
        *changes: tuple[str, str],
        status: int | None = None,
    ) -> None:
        recorded = json.loads((ANSWERS / f"{answer}.json").read_text())
        text = recorded["body"]
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        matcher = GzipMatcher if path == "/api/v2/write" else RequestMatcher
        wanted = matcher(path, method=method, query_string=query, data=body, headers=HEADERS)
        answers = self._server.expect(wanted, HandlerType.ORDERED)
        answers.respond_with_data(text, status or recorded["status"], content_type=recorded["content_type"] or None)

    def write(self, lines: list[str], answer: str, *changes: tuple[str, str], status: int | None = None) -> None:
        query = "org=gpu&bucket=fleet&precision=ms"
        self.expect("POST", "/api/v2/write", query, "\n".join(lines).encode(), answer, *changes, status=status)

    def flux(self, text: str, answer: str, *changes: tuple[str, str], tail: str = TAIL) -> None:
        dialect = {
            "header": True,
            "delimiter": ",",
            "annotations": ["datatype", "group", "default"],
            "commentPrefix": "#",
            "dateTimeFormat": "RFC3339",
        }
        body = {"extern": {"imports": [], "body": []}, "query": text + tail, "dialect": dialect}
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


def retention(seconds: int) -> tuple[str, str]:
    rules = f'"retentionRules": [{{"type": "expire", "everySeconds": {seconds}}}]'
    return '"retentionRules": []', rules


def test_init_lengthens_the_retention_and_sends_nothing_else(store: InfluxStore, server: Server) -> None:
    server.expect("GET", "/api/v2/buckets", "org=gpu&name=fleet", b"", "buckets_by_name", retention(604_800))
    wanted = b'{"retentionRules": [{"type": "expire", "everySeconds": 1209600}]}'
    server.expect("PATCH", "/api/v2/buckets/11ab04ec3ecd2001", "", wanted, "bucket_patch_retention")
    with capture_logs() as logs:
        store.init()
    assert logs == []


@pytest.mark.parametrize(("changes", "present"), [([], "infinite"), ([retention(2_592_000)], "30 days")])
def test_init_never_shortens_a_retention(
    store: InfluxStore, server: Server, changes: list[tuple[str, str]], present: str
) -> None:
    server.expect("GET", "/api/v2/buckets", "org=gpu&name=fleet", b"", "buckets_by_name", *changes)
    with capture_logs() as logs:
        store.init()
    (entry,) = logs
    assert (entry["log_level"], entry["bucket"]) == ("warning", "fleet")
    assert (entry["bucket_retention"], entry["store_retention"]) == (present, "14 days")


def test_init_leaves_a_bucket_that_is_right(store: InfluxStore, server: Server) -> None:
    server.expect("GET", "/api/v2/buckets", "org=gpu&name=fleet", b"", "buckets_by_name", retention(1_209_600))
    store.init()


def test_a_retention_below_the_servers_least_is_raised_to_it(httpserver: HTTPServer, server: Server) -> None:
    server.expect("GET", "/api/v2/buckets", "org=gpu&name=fleet", b"", "buckets_by_name", retention(3_600))
    made(httpserver.url_for(""), retention_days=0.01).init()


def test_init_names_an_unknown_organisation(store: InfluxStore, server: Server) -> None:
    server.expect("GET", "/api/v2/buckets", "org=gpu&name=fleet", b"", "orgs_unknown")
    with pytest.raises(StoreRejected, match=r"store.org = 'gpu'.*not found.*name an organisation that is there"):
        store.init()


def test_init_names_an_organisation_of_which_no_id_is_found(store: InfluxStore, server: Server) -> None:
    server.expect("GET", "/api/v2/buckets", "org=gpu&name=fleet", b"", "buckets_unknown")
    server.expect("GET", "/api/v2/orgs", "org=gpu", b"", "orgs_unknown")
    with pytest.raises(StoreRejected, match=r"store.org = 'gpu'.*cannot find organization"):
        store.init()


@pytest.mark.parametrize("answer", ["query_unauthorized", "write_403_readonly_token"])
def test_init_names_the_token(store: InfluxStore, server: Server, answer: str) -> None:
    server.expect("GET", "/api/v2/buckets", "org=gpu&name=fleet", b"", answer)
    with pytest.raises(StoreRejected, match=TOKEN):
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


def test_each_of_many_lines_that_are_named_one_by_one_is_parked(store: InfluxStore, server: Server) -> None:
    lines = [LINE.format(n=n) for n in range(30)]
    for n in range(29):
        server.write(lines[n:], "write_400_partly_malformed", ("this is bad", lines[n]))
    server.write(lines[29:], "write_204")
    with pytest.raises(LinesParked) as caught:
        store.write(
            Batch([reading(gpu(n, model="", index=None), temperature_celsius=float(f"4{n}")) for n in range(30)])
        )
    assert [line for line, _ in caught.value.lines] == lines[:29]


@pytest.mark.parametrize("status", [500, 422])
def test_a_refused_write_is_cut_into_halves_where_no_line_is_named(
    store: InfluxStore, server: Server, status: int
) -> None:
    lines = [LINE.format(n=n) for n in range(4)]
    for part, good in ((lines, False), (lines[:2], True), (lines[2:], False), (lines[2:3], False), (lines[3:], True)):
        server.write(part, "write_204" if good else "write_type_conflict", status=None if good else status)
    with pytest.raises(LinesParked, match="refuses 1 lines, the others are stored") as caught:
        store.write(Batch([r for n in range(4) for r in bare(n, temperature_celsius=40 + n).readings]))
    assert [line for line, _ in caught.value.lines] == [lines[2]]


def test_the_search_for_lines_ends_where_the_others_are_stored(store: InfluxStore, httpserver: HTTPServer) -> None:
    text = json.loads((ANSWERS / "write_type_conflict.json").read_text())["body"]
    httpserver.expect_request("/api/v2/write").respond_with_data(text, 422, content_type="application/json")
    with pytest.raises(LinesParked) as caught:
        store.write(Batch([reading(gpu(n, model="", index=None), temperature_celsius=40) for n in range(1_000)]))
    assert len(caught.value.lines) == 1_000
    assert len(httpserver.log) < 120


def test_numbers_of_findings_and_predictions_are_of_one_type_for_good(store: InfluxStore, server: Server) -> None:
    subject = Subject(SubjectKind.GPU, "G")
    made = Finding(
        "r", subject, Severity.INFO, Category.POWER, ActionKind.NOTIFY, T0, T0, "s", value=90, threshold=85.5
    )
    soon = Prediction(
        subject, "t", T0, 60_000, PredictionStatus.CROSSING, "m", "1", "s",
        threshold=85, value=90, probability=1, eta_ms=T0 + 1, coverage=1,
    )  # fmt: skip
    server.write(
        [
            'gpu_finding,rule=r,subject_kind=gpu,subject=G severity="info",category="power",action="notify",'
            f'last_ms={T0}i,sentence="s",metric="",evidence="[]",simulated=false,subject_host="",subject_pool="",'
            f'value=90.0,threshold=85.5,absent="" {T0}',
            'gpu_prediction,model=m,target=t,subject_kind=gpu,subject=G horizon_ms=60000i,status="crossing",'
            'model_version="1",sentence="s",metric="",reason="",evidence="[]",simulated=false,subject_host="",'
            f'subject_pool="",threshold=85.0,value=90.0,probability=1.0,eta_ms={T0 + 1}i,coverage=1.0,'
            f'absent="eta_low_ms,eta_high_ms" {T0}',
        ],
        "write_204",
    )
    store.write(Batch(findings=[made], predictions=[soon]))


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        ("write_401_bad_token", StoreRejected, TOKEN),
        ("write_403_readonly_token", StoreRejected, TOKEN),
        ("write_404_unknown_bucket", StoreRejected, r"store.bucket = 'fleet'.*not found.*`tocsin store init`"),
        ("orgs_unknown", StoreRejected, r"store.org = 'gpu'.*not found.*name an organisation"),
        ("write_type_conflict", LinesParked, "already Float but got String dropped=1"),
        ("write_400_partly_malformed", LinesParked, "this is bad"),
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


OF_GPU = '((not exists r.mig_uuid and (r.gpu_uuid == "1")) or (exists r.mig_uuid and (r.mig_uuid == "1")))'
INSTANTS = '  |> keep(columns: ["_time"])\n  |> group()\n  |> unique(column: "_time")'


def instants(*stamps: str) -> tuple[str, str]:
    """Puts a table with nothing but instants in the place of the empty answer."""
    head = "#datatype,string,long,dateTime:RFC3339\r\n#group,false,false,false\r\n#default,_result,,\r\n"
    return "\r\n", head + ",result,table,_time\r\n" + "".join(f",,0,{stamp}\r\n" for stamp in stamps) + "\r\n"


def test_a_series_of_a_recorded_answer(store: InfluxStore, server: Server) -> None:
    source = (
        'from(bucket: "fleet")\n'
        "  |> range(start: 2026-11-21T02:58:20.000Z, stop: 2026-11-21T03:16:40.000Z)\n"
        f"  |> filter(fn: (r) => {READINGS} and {OF_GPU}"
    )
    field = ' and (r._field == "temperature_celsius"))'
    server.flux(source + field, "query_csv_annotated", *OURS, ("gpu,0,node-1", "gpu,1,node-2"))
    server.flux(
        f"{source})\n",
        "query_csv_empty",
        instants("2026-11-21T03:00:10Z", "2026-11-21T03:00:00Z", "2026-11-21T03:00:15.5Z"),
        tail=INSTANTS,
    )
    found = store.series("1", ["gpu_temperature_celsius"], 1_795_229_900_000, 1_795_231_000_000)
    assert (found.at_ms - 1_795_230_000_000).tolist() == [0, 10_000, 15_500, 20_000, 30_000]
    assert found.values.dtype == np.float64
    np.testing.assert_array_equal(found.values[:, 0], [50.0, 50.5, np.nan, 51.0, 51.5])


def test_a_series_of_no_known_metric_has_the_instants_alone(store: InfluxStore, server: Server) -> None:
    server.flux(
        'from(bucket: "fleet")\n'
        "  |> range(start: 2026-11-21T02:58:20.000Z, stop: 2026-11-21T03:16:40.000Z)\n"
        f"  |> filter(fn: (r) => {READINGS} and {OF_GPU})\n",
        "query_csv_empty",
        instants("2026-11-21T03:00:00Z"),
        tail=INSTANTS,
    )
    found = store.series("1", ["gpu_of_tomorrow"], 1_795_229_900_000, 1_795_231_000_000)
    assert found.at_ms.tolist() == [1_795_230_000_000]
    np.testing.assert_array_equal(found.values, [[np.nan]])


def test_variants_by_result_keep_apart(store: InfluxStore, server: Server) -> None:
    head = "#datatype,string,long,dateTime:RFC3339,double,string,string,string,string,string\r\n"
    head += "#group,false,false,false,false,true,true,true,true,true\r\n#default,_result,,,,,,,,\r\n"
    head += ",result,table,_time,_value,_field,_measurement,gpu_uuid,host,label_result\r\n"
    row = ",,{n},2026-11-21T03:00:00Z,{n},nvlink_link_recovery_total,gpu,1,node-1,{result}\r\n"
    rows = [row.format(n=n, result=result) for n, result in enumerate(("failed", "successful"))]
    latest = 'from(bucket: "fleet")\n  |> range(start: {start}, stop: 2200-01-01T00:00:00.000Z)\n'
    server.flux(
        latest.format(start="2026-11-18T11:06:40.000Z") + f"  |> filter(fn: (r) => {READINGS})\n  |> last()",
        "query_csv_empty",
        ("\r\n", head + "".join(rows)),
    )
    server.flux(
        latest.format(start="1970-01-01T00:00:00.000Z")
        + '  |> filter(fn: (r) => (r._measurement == "gpu_info"))\n  |> last()',
        "query_csv_empty",
    )
    (found,) = store.latest(T0)
    name = "gpu_nvlink_link_recovery_total"
    assert dict(found.values) == {variant(name, "result", "failed"): 0.0, variant(name, "result", "successful"): 1.0}


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
    assert store.findings(T0, T0) == []


@pytest.mark.parametrize(("start", "end"), [(-5_000, 0), (-2, -1), (FAR_MS, FAR_MS + 5), (FAR_MS + 1, FAR_MS + 2)])
def test_a_range_outside_of_what_influxdb_can_say_asks_nothing(
    store: InfluxStore, server: Server, start: int, end: int
) -> None:
    assert list(store.readings(start, end)) == []
    assert store.events(start, end) == []
    assert store.findings(start, end) == []
    assert store.predictions(start, end) == []
    assert store.series("GPU-1", ["gpu_power_watts"], start, end).values.shape == (0, 1)
    assert start < FAR_MS or store.latest(start) == []


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("query_error_unknown_bucket", r"store.bucket = 'fleet'.*could not find bucket.*`tocsin store init`"),
        ("orgs_unknown", r"store.org = 'gpu'.*not found.*name an organisation"),
        ("query_unauthorized", TOKEN),
        ("write_403_readonly_token", TOKEN),
    ],
)
def test_refusals_of_a_query(store: InfluxStore, server: Server, answer: str, words: str) -> None:
    server.flux(
        'from(bucket: "fleet")\n'
        "  |> range(start: 2026-11-18T11:06:40.000Z, stop: 2026-11-18T11:06:40.001Z)\n"
        '  |> filter(fn: (r) => (r._measurement == "gpu_event"))',
        answer,
    )
    with pytest.raises(StoreRejected, match=words):
        store.events(T0, T0 + 1)


@pytest.mark.parametrize(
    "table",
    [
        "#datatype,string,string\r\n#group,true,true\r\n#default,,\r\n,error,reference\r\n,engine: boom,897\r\n",
        "error,reference\r\nengine: boom,897\r\n",
    ],
)
def test_an_error_inside_an_answer_of_status_200_is_not_an_empty_answer(
    store: InfluxStore, server: Server, table: str
) -> None:
    server.flux(
        'from(bucket: "fleet")\n'
        "  |> range(start: 2026-11-18T11:06:40.000Z, stop: 2026-11-18T11:06:40.001Z)\n"
        '  |> filter(fn: (r) => (r._measurement == "gpu_event"))',
        "query_csv_empty",
        ("\r\n", table),
    )
    with pytest.raises(StoreUnavailable, match="breaks off its answer: engine: boom"):
        store.events(T0, T0 + 1)

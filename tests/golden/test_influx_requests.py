"""The requests of the InfluxDB store, byte for byte, against answers that a real InfluxDB 2.0 gave."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pytest
from pytest_httpserver import HTTPServer

from tocsin.domain.batch import Batch
from tocsin.domain.clock import DAY
from tocsin.domain.finding import ActionKind, Category, Finding, Severity, Subject, SubjectKind
from tocsin.domain.metrics import variant
from tocsin.domain.prediction import Prediction, PredictionStatus
from tocsin.store.influx.flux import FAR_MS
from tocsin.store.influx.store import InfluxStore, LinesParked
from tocsin.store.port import StoreRejected, StoreUnavailable
from tocsin_testing.builders import T0, gpu, reading, xid
from tocsin_testing.influx_server import ANSWERS, NOW, InfluxServer, influx_store
from tocsin_testing.servers import free_port

READINGS = '(r._measurement == "gpu" or r._measurement == "gpu_missing" or r._measurement == "gpu_owner")'
TOKEN = r"store\.token: InfluxDB at http.* answers 40[13]: .*; set a token that may read and write bucket 'fleet'"
LINE = "gpu,gpu_uuid=GPU-{n:08d},host=node-1 temperature_celsius=4{n}.0 1795000000000"


@pytest.fixture
def server(httpserver: HTTPServer) -> Iterator[InfluxServer]:
    yield InfluxServer(httpserver)
    httpserver.check()
    assert httpserver.ordered_handlers == [], "a request that was expected did not come"


@pytest.fixture
def store(httpserver: HTTPServer) -> Iterator[InfluxStore]:
    with_bucket = influx_store(httpserver.url_for(""))
    yield with_bucket
    with_bucket.close()


def bare(n: int, **values: float) -> Batch:
    return Batch([reading(gpu(n, model="", index=None), **values)])


# ---------------------------------------------------------------------- writing


def test_readings_and_words_go_to_their_buckets(store: InfluxStore, server: InfluxServer) -> None:
    server.write(
        ["gpu,gpu_uuid=GPU-00000000,host=node-1 temperature_celsius=50.0,power_watts=300.5 1795000000000"], "write_204"
    )
    server.write(
        [
            'gpu_info,gpu_uuid=GPU-00000000,host=node-1 index=0i,model="NVIDIA A100-SXM4-80GB",serial="",pci_bus_id="",'
            'mig_profile="",pool="default",rack="",labels="{}",simulated=false 1795000000000',
            'gpu_event,kind=xid,gpu_uuid=GPU-00000000,host=node-1,code=79 code=79i,message="Xid 79",source="test",'
            'simulated=false,severity="",remedy="" 1795000000000',
        ],
        "write_204",
        bucket="fleet_10m",
    )
    store.write(Batch([reading(temperature_celsius=50, power_watts=300.5)], [xid(79)]))


def test_attributes_are_written_once_while_they_stay_the_same(store: InfluxStore, server: InfluxServer) -> None:
    for at_ms, info in ((T0, True), (T0 + 1, False)):
        line = f"gpu,gpu_uuid=GPU-00000000,host=node-1 temperature_celsius=50.0 {at_ms}"
        head = (
            'gpu_info,gpu_uuid=GPU-00000000,host=node-1 index=0i,model="M",serial="",pci_bus_id="",mig_profile="",'
            f'pool="default",rack="",labels="{{}}",simulated=false {at_ms}'
        )
        server.write([line], "write_204")
        if info:
            server.write([head], "write_204", bucket="fleet_10m")
        store.write(Batch([reading(gpu(0, model="M"), at_ms, temperature_celsius=50)]))


def test_text_with_a_newline_stays_in_one_point(store: InfluxStore, server: InfluxServer) -> None:
    event = xid(79)
    server.write(
        [
            'gpu_event,kind=xid,gpu_uuid=GPU-00000000,host=node-1,code=79 code=79i,message="one\ntwo",source="test",'
            'simulated=false,severity="",remedy="" 1795000000000'
        ],
        "write_204",
        bucket="fleet_10m",
    )
    store.write(Batch(events=[type(event)(event.kind, event.gpu, event.host, T0, 79, "one\ntwo", "test")]))


def test_an_empty_batch_sends_nothing(store: InfluxStore, server: InfluxServer) -> None:
    store.write(Batch())


def test_a_line_that_the_server_names_is_parked_and_the_others_are_sent_again(
    store: InfluxStore, server: InfluxServer
) -> None:
    lines = [LINE.format(n=n) for n in range(3)]
    server.write(lines, "write_400_partly_malformed", ("this is bad", lines[1]))
    server.write([lines[0], lines[2]], "write_204")
    batch = Batch([r for n in range(3) for r in bare(n, temperature_celsius=40 + n).readings])
    with pytest.raises(LinesParked, match="refuses 1 lines, the others are stored") as caught:
        store.write(batch)
    assert caught.value.lines == ((lines[1], "invalid field format"),)


def test_each_of_many_lines_that_are_named_one_by_one_is_parked(store: InfluxStore, server: InfluxServer) -> None:
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
    store: InfluxStore, server: InfluxServer, status: int
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


def test_numbers_of_findings_and_predictions_are_of_one_type_for_good(store: InfluxStore, server: InfluxServer) -> None:
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
            f'last_ms={T0}i,sentence="s",metric="",evidence="[]",owners="[]",simulated=false,subject_host="",subject_pool="",'
            f'level="",sentence_zh="",value=90.0,threshold=85.5,absent="" {T0}',
        ],
        "write_204",
        bucket="fleet_10m",
    )
    server.write(
        [
            'gpu_prediction,model=m,target=t,subject_kind=gpu,subject=G horizon_ms=60000i,status="crossing",'
            'model_version="1",sentence="s",metric="",reason="",evidence="[]",simulated=false,subject_host="",'
            'subject_pool="",curve="",sentence_zh="",classes="",muted=false,reason_zh="",'
            f"threshold=85.0,value=90.0,probability=1.0,eta_ms={T0 + 1}i,coverage=1.0,"
            f'absent="eta_low_ms,eta_high_ms,raw" {T0}',
        ],
        "write_204",
        bucket="fleet_1m",
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
    store: InfluxStore, server: InfluxServer, answer: str, error: type[Exception], words: str
) -> None:
    server.write([LINE.format(n=0)], answer)
    with pytest.raises(error, match=words):
        store.write(bare(0, temperature_celsius=40))


def test_no_server_is_unavailable_to_both_sides() -> None:
    store = influx_store(f"http://127.0.0.1:{free_port()}")
    for act in (store.init, store.gpus, lambda: store.write(bare(0, temperature_celsius=40))):
        with pytest.raises(StoreUnavailable, match="InfluxDB at http"):
            act()
    store.close()


# ---------------------------------------------------------------------- reading

OURS = (("gpu_metrics", "gpu"), ("temperature_c", "temperature_celsius"), (",gpu,host\r", ",gpu_uuid,host\r"))
"""The recorded answers are of another measurement: its names in ours."""


INFOS = """union(tables: [
from(bucket: "fleet")
  |> range(start: 1970-01-01T00:00:00.000Z, stop: 2200-01-01T00:00:00.000Z)
  |> filter(fn: (r) => (r._measurement == "gpu_info"))
  |> last(),
from(bucket: "fleet_10m")
  |> range(start: 1970-01-01T00:00:00.000Z, stop: 2200-01-01T00:00:00.000Z)
  |> filter(fn: (r) => (r._measurement == "gpu_info"))
  |> last()
])"""
EVENTS_OF_A_MILLISECOND = """union(tables: [
from(bucket: "fleet")
  |> range(start: 2026-11-18T11:06:40.000Z, stop: 2026-11-18T11:06:40.001Z)
  |> filter(fn: (r) => (r._measurement == "gpu_event"){condition}),
from(bucket: "fleet_10m")
  |> range(start: 2026-11-18T11:06:40.000Z, stop: 2026-11-18T11:06:40.001Z)
  |> filter(fn: (r) => (r._measurement == "gpu_event"){condition})
])"""
OF_GPU = '((not exists r.mig_uuid and (r.gpu_uuid == "1")) or (exists r.mig_uuid and (r.mig_uuid == "1")))'
VALUES = '(r._measurement == "gpu")'
INSTANTS = """  |> keep(columns: ["_time", "gpu_uuid", "mig_uuid"])
  |> group(columns: ["gpu_uuid", "mig_uuid"])
  |> unique(column: "_time")"""


def instants(*stamps: str, uuid: str = "1") -> tuple[str, str]:
    """Puts a table with nothing but instants of a GPU in the place of the empty answer."""
    head = "#datatype,string,long,dateTime:RFC3339,string\r\n#group,false,false,false,true\r\n#default,_result,,,\r\n"
    rows = "".join(f",,0,{stamp},{uuid}\r\n" for stamp in stamps)
    return "\r\n", f"{head},result,table,_time,gpu_uuid\r\n{rows}\r\n"


def test_a_series_of_a_recorded_answer(store: InfluxStore, server: InfluxServer) -> None:
    source = 'from(bucket: "fleet")\n  |> range(start: 2026-11-21T02:58:20.000Z, stop: 2026-11-21T03:16:40.000Z)\n'
    field = f'  |> filter(fn: (r) => {VALUES} and {OF_GPU} and (r._field == "temperature_celsius"))'
    server.flux(source + field, "query_csv_annotated", *OURS, ("gpu,0,node-1", "gpu,1,node-2"))
    server.flux(
        f"{source}  |> filter(fn: (r) => {READINGS} and {OF_GPU})\n",
        "query_csv_empty",
        instants("2026-11-21T03:00:10Z", "2026-11-21T03:00:00Z", "2026-11-21T03:00:15.5Z"),
        tail=INSTANTS,
    )
    found = store.series("1", ["gpu_temperature_celsius"], 1_795_229_900_000, 1_795_231_000_000)
    assert (found.at_ms - 1_795_230_000_000).tolist() == [0, 10_000, 15_500, 20_000, 30_000]
    assert found.values.dtype == np.float64
    np.testing.assert_array_equal(found.values[:, 0], [50.0, 50.5, np.nan, 51.0, 51.5])


def test_a_series_of_no_known_metric_has_the_instants_alone(store: InfluxStore, server: InfluxServer) -> None:
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


def test_variants_by_result_keep_apart(store: InfluxStore, server: InfluxServer) -> None:
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
    server.flux(INFOS, "query_csv_empty")
    (found,) = store.latest(T0)
    name = "gpu_nvlink_link_recovery_total"
    assert dict(found.values) == {variant(name, "result", "failed"): 0.0, variant(name, "result", "successful"): 1.0}


def test_latest_keeps_what_is_of_the_newest_instant(store: InfluxStore, server: InfluxServer) -> None:
    server.flux(
        'from(bucket: "fleet")\n'
        "  |> range(start: 2026-11-18T11:06:40.000Z, stop: 2200-01-01T00:00:00.000Z)\n"
        f"  |> filter(fn: (r) => {READINGS})\n  |> last()",
        "query_csv_annotated_types",
        *OURS,
        ("03:00:30Z,330,power_w,", "03:00:20Z,330,power_watts,"),
        (",xid,", ",performance_state,"),
    )
    server.flux(INFOS, "query_csv_empty")
    (found,) = store.latest(T0)
    assert (found.gpu.uuid, found.gpu.host, found.at_ms) == ("0", "node-1", 1_795_230_030_000)
    assert dict(found.values) == {"gpu_temperature_celsius": 51.5, "gpu_performance_state": 0.0}


def test_names_in_a_query_cannot_end_its_text(store: InfluxStore, server: InfluxServer) -> None:
    server.flux(
        EVENTS_OF_A_MILLISECOND.replace("{condition}", ' and (r.gpu_uuid == "a\\"b\\\\\\${c}")'),
        "query_csv_empty",
    )
    assert store.events(T0, T0 + 1, 'a"b\\${c}') == []


def test_an_empty_range_asks_nothing(store: InfluxStore, server: InfluxServer) -> None:
    assert list(store.readings(T0, T0)) == store.events(T0, T0) == store.predictions(T0 + 1, T0) == []
    assert list(store.readings(T0, T0 + 1, set())) == []
    assert store.series("GPU-1", ["gpu_power_watts"], T0, T0).values.shape == (0, 1)
    assert store.findings(T0, T0) == []


@pytest.mark.parametrize(("start", "end"), [(-5_000, 0), (-2, -1), (FAR_MS, FAR_MS + 5), (FAR_MS + 1, FAR_MS + 2)])
def test_a_range_outside_of_what_influxdb_can_say_asks_nothing(
    store: InfluxStore, server: InfluxServer, start: int, end: int
) -> None:
    assert list(store.readings(start, end)) == []
    assert store.events(start, end) == []
    assert store.findings(start, end) == []
    assert store.predictions(start, end) == []
    assert store.series("GPU-1", ["gpu_power_watts"], start, end).values.shape == (0, 1)
    assert start < FAR_MS or list(store.latest(start)) == []


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("query_error_unknown_bucket", r"store.bucket = 'fleet'.*could not find bucket.*`tocsin store init`"),
        ("orgs_unknown", r"store.org = 'gpu'.*not found.*name an organisation"),
        ("query_unauthorized", TOKEN),
        ("write_403_readonly_token", TOKEN),
    ],
)
def test_refusals_of_a_query(store: InfluxStore, server: InfluxServer, answer: str, words: str) -> None:
    server.flux(
        EVENTS_OF_A_MILLISECOND.replace("{condition}", ""),
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
    store: InfluxStore, server: InfluxServer, table: str
) -> None:
    server.flux(
        EVENTS_OF_A_MILLISECOND.replace("{condition}", ""),
        "query_csv_empty",
        ("\r\n", table),
    )
    with pytest.raises(StoreUnavailable, match="breaks off its answer: engine: boom"):
        store.events(T0, T0 + 1)


# ---------------------------------------------------------------------- columns and age


def test_columns_of_a_recorded_answer(store: InfluxStore, server: InfluxServer) -> None:
    source = (
        'from(bucket: "fleet")\n  |> range(start: 2026-11-21T02:58:20.000Z, stop: 2026-11-21T03:16:40.000Z)\n'
        "  |> filter(fn: (r) => "
    )
    server.flux(f'{source}{VALUES} and (r._field == "temperature_celsius"))', "query_csv_annotated", *OURS)
    stamps = [f"2026-11-21T03:00:{second}Z" for second in ("00", "10", "20", "30", "35")]
    server.flux(f"{source}{READINGS})\n", "query_csv_empty", instants(*stamps, uuid="0"), tail=INSTANTS)
    found = store.columns(["gpu_temperature_celsius", "gpu_of_tomorrow"], 1_795_229_900_000, NOW)
    assert found.gpus == ("0", "1")
    first, second = found.gpu == 0, found.gpu == 1
    assert (found.at_ms[first] - 1_795_230_000_000).tolist() == [0, 10_000, 20_000, 30_000, 35_000]
    assert (found.at_ms[second] - 1_795_230_000_000).tolist() == [0, 10_000, 20_000, 30_000]
    assert found.values[first, 0].tolist()[:4] == [50.0, 50.5, 51.0, 51.5]
    assert np.isfinite(found.values[second, 0]).all()
    assert np.isnan(found.values[first][-1]).all()
    assert np.isnan(found.values[:, 1]).all()
    assert (np.diff(found.at_ms) >= 0).all()


def test_older_readings_come_from_coarser_buckets(store: InfluxStore, server: InfluxServer) -> None:
    spans = [
        ("fleet_10m", "2026-08-13T03:16:40.000Z", "2026-08-23T03:20:00.000Z"),
        ("fleet_1m", "2026-08-23T03:20:00.000Z", "2026-11-07T03:20:00.000Z"),
        ("fleet", "2026-11-07T03:20:00.000Z", "2026-11-21T03:16:40.000Z"),
    ]
    for bucket, start, stop in spans:
        source = f'from(bucket: "{bucket}")\n  |> range(start: {start}, stop: {stop})\n'
        server.flux(f"{source}  |> filter(fn: (r) => {READINGS})\n", "query_csv_empty", instants(start), tail=INSTANTS)
    found = store.columns([], NOW - 100 * DAY, NOW)
    assert [NOW - at for at in found.at_ms.tolist()] == [100 * DAY, 90 * DAY - 200_000, 14 * DAY - 200_000]


def test_columns_of_no_gpu_ask_nothing(store: InfluxStore, server: InfluxServer) -> None:
    assert store.columns(["gpu_power_watts"], T0, T0 + 1, []).values.shape == (0, 1)
    assert store.columns(["gpu_power_watts"], T0, T0).values.shape == (0, 1)

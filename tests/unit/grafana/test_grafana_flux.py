"""Every Flux query of the dashboards: sound in form, about what is stored, and answered by a store that was written to.

What Flux itself makes of a query a real server alone can prove: TOCSIN_TEST_INFLUX_URL names one, and every query is
asked there as it stands.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import httpx2
import pytest

from tocsin.config.settings import SimulationSettings, StoreSettings
from tocsin.domain.annotation import Annotation
from tocsin.domain.batch import Batch
from tocsin.domain.clock import HOUR, ManualClock, to_iso
from tocsin.domain.finding import ActionKind, Category, Finding, Severity, Subject, SubjectKind
from tocsin.domain.metrics import BY_FIELD, METRICS, variant
from tocsin.domain.prediction import Prediction, PredictionStatus
from tocsin.domain.reading import Reading
from tocsin.sim.fleet import SimulatedFleet
from tocsin.sim.spec import FleetSpec
from tocsin.store.annotations import KeepsAnnotations, mark_point
from tocsin.store.influx.store import InfluxStore
from tocsin.store.points import event_point, finding_point, info_point, prediction_point
from tocsin_grafana.flux import field
from tocsin_grafana.variables import ANCHOR
from tocsin_testing.builders import T0, gpu, xid
from tocsin_testing.dashboards import NAMES, Asked, asked, load
from tocsin_testing.influx_double import influx_double
from tocsin_testing.stores import influx_from_environment, nothing_left

FUNCTIONS = frozenset(
    [
        "from",
        "range",
        "filter",
        "aggregateWindow",
        "map",
        "group",
        "keep",
        "sort",
        "limit",
        "last",
        "mean",
        "max",
        "min",
        "sum",
        "count",
        "distinct",
        "pivot",
        "derivative",
        "rename",
        "buckets",
        "exists",
    ]
)
"""Functions of Flux that the queries may use: all of them are in release 2.0 and later."""
NOT_STORED = {"host_cpu_utilization_ratio", "host_cpu_iowait_ratio", "host_memory_used_ratio", "host_io_pressure_ratio"}
SUBJECT = Subject(SubjectKind.GPU, gpu(0).uuid, "node-1", "default")
FINDING = Finding(
    "temperature_high", SUBJECT, Severity.CRITICAL, Category.THERMAL, ActionKind.THROTTLE, T0, T0, "It is hot.",
    "gpu_temperature_celsius", 91.0, 85.0,
)  # fmt: skip
PREDICTION = Prediction(
    SUBJECT,
    "hardware_fault",
    T0,
    48 * HOUR,
    PredictionStatus.LIKELY,
    "hazard",
    "1",
    "A fault is likely.",
    probability=0.8,
)
MARK = Annotation(
    "k1", "execution_started", T0, "Begun: cordon.", "tocsin", host="node-1", gpu=gpu(0).uuid, action="cordon"
)


def variable_queries() -> list[Asked]:
    """Queries behind the choices of a dashboard."""
    return [
        Asked(name, variable["name"], variable["query"]["query"])
        for name in NAMES
        for variable in load("influxdb", name)["templating"]["list"]
        if variable["type"] == "query"
    ]


def marks() -> list[Asked]:
    """Queries of annotations."""
    found = [mark for name in NAMES for mark in load("influxdb", name)["annotations"]["list"]]
    return [Asked("annotations", m["name"], m["target"]["query"]) for m in found if "query" in m["target"]]


ALL = [*asked("influxdb"), *variable_queries(), *marks()]
each_query = pytest.mark.parametrize("query", ALL, ids=[f"{q.board}-{q.panel}-{n}" for n, q in enumerate(ALL)])


def bare(text: str) -> str:
    """`text` without strings and regular expressions."""
    return re.sub(r'"(?:\\.|[^"\\])*"|(?<=~ )/(?:\\.|[^/])*/', "", text)


@each_query
def test_it_is_sound_in_form(query: Asked) -> None:
    code = bare(query.text)
    for left, right in ("()", "[]", "{}"):
        assert code.count(left) == code.count(right), query.text
    called = set(re.findall(r"\b([a-zA-Z_]+)\(", code)) - {"substring", "fn"}
    assert called <= FUNCTIONS, called - FUNCTIONS
    assert ("strings." in code) == query.text.startswith('import "strings"\n')
    for line in code.split("\n")[1:]:
        assert not line or line.startswith(("  |> ", "from(")), line


@each_query
def test_it_names_buckets_by_the_variable(query: Asked) -> None:
    buckets = re.findall(r'from\(bucket: "([^"]*)"\)', query.text)
    assert set(buckets) <= {"${bucket}${detail}", "${bucket}_1m", "${bucket}_10m"}
    assert buckets or query.text.startswith("buckets()")


STORED = {
    "gpu_event": event_point(xid(79)),
    "gpu_finding": finding_point(FINDING),
    "gpu_prediction": prediction_point(PREDICTION),
    "gpu_info": info_point(gpu(0), T0),
    "tocsin_entry": mark_point(MARK),
}
"""A point of each measurement, as the store writes it."""


@each_query
def test_it_is_about_what_is_stored(query: Asked) -> None:
    for measurement in re.findall(r'r\._measurement == "([^"]*)"', query.text):
        fields = set(re.findall(r'r\._field == "([^"]*)"', query.text))
        tags = set(re.findall(r"\br\.([a-z][a-z_]*)", bare(query.text)))
        if measurement == "gpu":
            assert fields <= BY_FIELD.keys()
            known = {"gpu_uuid", "host", "mig_uuid", *(BY_FIELD[name].label for name in fields)} | fields
        else:
            point = STORED[measurement]
            assert fields <= point.fields.keys() | {"probability"}
            known = point.tags.keys() | point.fields.keys()
        assert tags <= known, tags - known


def test_the_metric_that_names_hosts_is_in_the_table() -> None:
    assert field(ANCHOR) == "temperature_celsius"
    assert METRICS[ANCHOR].entity == "gpu"


def filled(text: str, bucket: str) -> str:
    """`text` as Grafana asks it: one GPU chosen, all hosts, the time range of the test."""
    start, stop = to_iso(T0 - HOUR), to_iso(T0 + HOUR)
    for variable, value in {
        "${bucket}": bucket,
        "${detail}": "",
        "${host:regex}": "(node-1|node-2)",
        "${pool:regex}": "(default)",
        "${host}": "node-1",
        "${gpu}": gpu(0).uuid,
        "v.timeRangeStart": start,
        "v.timeRangeStop": stop,
        "v.windowPeriod": "10s",
        "start: -2d": f"start: {start}, stop: {stop}",
    }.items():
        text = text.replace(variable, value)
    assert "${" not in text
    return text


def batch() -> Batch:
    """Every metric of the table for one GPU, and those of a simulated fleet for others."""
    fleet = SimulatedFleet(FleetSpec(gpus=4, seed=1, start_ms=T0, interval_ms=10_000, fault_rate_scale=0.0))
    assert SimulationSettings().gpus > 4
    keys = [variant(s.name, s.label, "0") if s.label else s.name for s in METRICS.values() if s.entity == "gpu"]
    keys += sorted(NOT_STORED)
    whole = [Reading(gpu(0), T0 + at * 10_000, dict.fromkeys(keys, 1.0 + at)) for at in range(5)]
    return Batch([*fleet.step().readings, *whole], [xid(79)], [FINDING], [PREDICTION])


Ask = Callable[[str], list[dict[str, str]]]


@pytest.fixture(scope="module")
def ask() -> Iterator[Ask]:
    """Asks a store that was written to; raises where the answer is an error."""
    with ExitStack() as stack:
        settings = influx_from_environment()
        if settings is None:
            url = stack.enter_context(influx_double())
            days = {"raw_days": 36_500.0, "minute_days": 36_500.0, "ten_minute_days": 36_500.0}
            settings = StoreSettings.model_validate(
                {"kind": "influxdb", "url": url, "token": "secret", "org": "gpu", **days}
            )
        else:
            stack.enter_context(nothing_left(settings))
        store = InfluxStore(settings, ManualClock(T0))
        stack.callback(store.close)
        store.init()
        store.write(batch())
        assert isinstance(store, KeepsAnnotations)
        store.mark([MARK, replace(MARK, kind="outcome")])
        client = stack.enter_context(httpx2.Client(base_url=settings.url, timeout=30.0))
        yield partial(_ask, client, settings)


def _ask(client: httpx2.Client, settings: StoreSettings, text: str) -> list[dict[str, str]]:
    headers = {"authorization": f"Token {settings.token.get_secret_value()}", "accept": "application/csv"}
    body = {"query": filled(text, settings.bucket), "type": "flux"}
    answer = client.post("/api/v2/query", params={"org": settings.org}, json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    lines = [line for line in answer.text.splitlines() if line and not line.startswith("#")]
    return list(csv.DictReader(io.StringIO("\n".join(lines))))


@each_query
def test_it_finds_something(ask: Ask, query: Asked) -> None:
    if query.text.startswith("buckets()"):
        return
    assert ask(query.text), query.text


def test_a_host_that_is_not_chosen_is_not_found(ask: Ask) -> None:
    text = next(query.text for query in ALL if query.panel == "Power by pool")
    assert ask(text)
    assert ask(text.replace("${host:regex}", "(other)")) == []


def test_the_recorded_marks_are_stored_once(ask: Ask, tmp_path: Path) -> None:
    text = next(query.text for query in ALL if query.panel == "The journal in words")
    found = ask(text)
    assert {row["kind"] for row in found} == {"execution_started", "outcome"}

"""What the InfluxDB store creates in a server, byte by byte: buckets, retention, the tasks that thin out, a proof."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pytest_httpserver import HTTPServer
from structlog.testing import capture_logs

from tocsin.config.settings import StoreSettings
from tocsin.domain.metrics import METRICS, MetricKind
from tocsin.store.influx.store import MEANS, Buckets, InfluxStore, Task, tasks
from tocsin.store.port import StoreMisconfigured, StoreRejected, StoreUnavailable
from tocsin_testing.influx_server import NOW, InfluxServer, influx_store

TOKEN = r"store\.token: InfluxDB at http.* answers 40[13]: .*; set a token that may read and write bucket 'fleet'"
GOLDEN = Path(__file__).parent / "influx_tasks"
DAY_SECONDS = 86_400
ORGS = ("GET", "/api/v2/orgs", "org=gpu", b"", "orgs_by_name")
PROOF = """from(bucket: "fleet")
  |> range(start: 2026-11-21T03:16:40.000Z, stop: 2026-11-21T03:16:40.001Z)
  |> filter(fn: (r) => (r._measurement == "tocsin_ready"))"""


@pytest.fixture
def server(httpserver: HTTPServer) -> Iterator[InfluxServer]:
    yield InfluxServer(httpserver)
    httpserver.check()
    assert httpserver.ordered_handlers == [], "a request that was expected did not come"


@pytest.fixture
def store(httpserver: HTTPServer) -> Iterator[InfluxStore]:
    made = influx_store(httpserver.url_for(""))
    yield made
    made.close()


def wanted_tasks() -> list[Task]:
    return tasks(Buckets.of(StoreSettings(bucket="fleet", raw_days=14)), "gpu")


def retention(seconds: int) -> tuple[str, str]:
    return '"retentionRules": []', f'"retentionRules": [{{"type": "expire", "everySeconds": {seconds}}}]'


def there(server: InfluxServer, name: str, *changes: tuple[str, str]) -> None:
    """The bucket is there."""
    renamed = (('"name": "fleet"', f'"name": "{name}"'),)
    server.expect("GET", "/api/v2/buckets", f"org=gpu&name={name}", b"", "buckets_by_name", *renamed, *changes)


def right_buckets(server: InfluxServer) -> None:
    for name, days in (("fleet", 14), ("fleet_1m", 90), ("fleet_10m", 730)):
        there(server, name, retention(days * DAY_SECONDS))


def look_for(server: InfluxServer, task: Task, answer: str, flux: str = "") -> None:
    changes = [("NAME", task.name), ('"FLUX"', json.dumps(flux))] if flux else []
    escaped = [(old, json.dumps(new)[1:-1] if old == "NAME" else new) for old, new in changes]
    query = f"name={task.name.replace(' ', '+')}&org=gpu"
    server.expect("GET", "/api/v2/tasks", query, b"", answer, *escaped)


def right_tasks(server: InfluxServer) -> None:
    for task in wanted_tasks():
        look_for(server, task, "tasks_by_name", task.flux)


def proof(server: InfluxServer, answer: str = "query_csv_annotated") -> None:
    server.write([f"tocsin_ready value=1.0 {NOW}"], "write_204")
    server.flux(PROOF, answer)


def test_init_creates_what_is_missing(store: InfluxStore, server: InfluxServer) -> None:
    for name, days in (("fleet", 14), ("fleet_1m", 90), ("fleet_10m", 730)):
        server.expect("GET", "/api/v2/buckets", f"org=gpu&name={name}", b"", "buckets_unknown")
        server.expect(*ORGS)
        wanted = (
            f'{{"orgID": "11ab04ec3ecd2000", "name": "{name}", "rp": "0", '
            f'"retentionRules": [{{"type": "expire", "everySeconds": {days * DAY_SECONDS}}}]}}'
        )
        server.expect("POST", "/api/v2/buckets", "", wanted.encode(), "bucket_create_retention_201")
    for task in wanted_tasks():
        look_for(server, task, "tasks_none")
        body = json.dumps({"org": "gpu", "flux": task.flux, "description": task.description})
        server.expect("POST", "/api/v2/tasks", "", body.encode(), "task_created")
    proof(server)
    store.init()


def test_init_changes_nothing_that_is_right(store: InfluxStore, server: InfluxServer) -> None:
    right_buckets(server)
    right_tasks(server)
    proof(server)
    with capture_logs() as logs:
        store.init()
    assert logs == []


def test_a_task_of_another_text_is_changed(store: InfluxStore, server: InfluxServer) -> None:
    right_buckets(server)
    first, second = wanted_tasks()
    look_for(server, first, "tasks_by_name", "old text")
    server.expect("PATCH", "/api/v2/tasks/0d1", "", json.dumps({"flux": first.flux}).encode(), "task_created")
    look_for(server, second, "tasks_by_name", second.flux + "\n")
    proof(server)
    store.init()


def test_a_retention_that_is_too_short_is_lengthened(store: InfluxStore, server: InfluxServer) -> None:
    there(server, "fleet", retention(7 * DAY_SECONDS))
    wanted = b'{"retentionRules": [{"type": "expire", "everySeconds": 1209600}]}'
    server.expect("PATCH", "/api/v2/buckets/11ab04ec3ecd2001", "", wanted, "bucket_patch_retention")
    there(server, "fleet_1m", retention(90 * DAY_SECONDS))
    there(server, "fleet_10m", retention(730 * DAY_SECONDS))
    right_tasks(server)
    proof(server)
    with capture_logs() as logs:
        store.init()
    assert logs == []


@pytest.mark.parametrize(
    ("changes", "present"), [([], "infinite"), ([retention(30 * DAY_SECONDS)], "30 days")], ids=["infinite", "longer"]
)
def test_a_longer_retention_is_kept_and_read(
    store: InfluxStore, server: InfluxServer, changes: list[tuple[str, str]], present: str
) -> None:
    there(server, "fleet", *changes)
    there(server, "fleet_1m", retention(90 * DAY_SECONDS))
    there(server, "fleet_10m", retention(730 * DAY_SECONDS))
    right_tasks(server)
    proof(server)
    with capture_logs() as logs:
        store.init()
    (entry,) = logs
    assert (entry["log_level"], entry["bucket"]) == ("warning", "fleet")
    assert (entry["bucket_retention"], entry["store_retention"]) == (present, "14 days")
    three_weeks = NOW - 21 * DAY_SECONDS * 1_000
    stamps = "|> range(start: 2026-10-31T03:16:40.000Z, stop: 2026-11-21T03:16:40.000Z)"
    readings = '(r._measurement == "gpu" or r._measurement == "gpu_missing" or r._measurement == "gpu_owner")'
    server.flux(
        f'from(bucket: "fleet")\n  {stamps}\n  |> filter(fn: (r) => {readings})\n',
        "query_csv_empty",
        tail='  |> keep(columns: ["_time", "gpu_uuid", "mig_uuid"])\n'
        '  |> group(columns: ["gpu_uuid", "mig_uuid"])\n  |> unique(column: "_time")',
    )
    assert store.columns([], three_weeks, NOW).gpus == ()


def test_a_retention_below_the_servers_least_is_raised_to_it() -> None:
    settings = StoreSettings(raw_days=0.01, minute_days=0.02, ten_minute_days=1)
    assert [bucket.seconds for bucket in Buckets.of(settings).all()] == [3_600, 3_600, 86_400]


@pytest.mark.parametrize("answer", ["orgs_unknown", "orgs"])
def test_init_names_an_unknown_organisation(store: InfluxStore, server: InfluxServer, answer: str) -> None:
    if answer == "orgs_unknown":
        server.expect("GET", "/api/v2/buckets", "org=gpu&name=fleet", b"", answer)
    else:
        server.expect("GET", "/api/v2/buckets", "org=gpu&name=fleet", b"", "buckets_unknown")
        server.expect("GET", "/api/v2/orgs", "org=gpu", b"", "orgs_unknown")
    with pytest.raises(StoreRejected, match=r"store.org = 'gpu'.*(not|cannot) f.*name an organisation that is there"):
        store.init()


@pytest.mark.parametrize("answer", ["query_unauthorized", "write_403_readonly_token"])
def test_init_names_the_token(store: InfluxStore, server: InfluxServer, answer: str) -> None:
    server.expect("GET", "/api/v2/buckets", "org=gpu&name=fleet", b"", answer)
    with pytest.raises(StoreRejected, match=TOKEN):
        store.init()


def test_a_token_that_may_not_write_is_found_out(store: InfluxStore, server: InfluxServer) -> None:
    right_buckets(server)
    right_tasks(server)
    server.write([f"tocsin_ready value=1.0 {NOW}"], "write_403_readonly_token")
    with pytest.raises(StoreMisconfigured, match=TOKEN):
        store.init()


def test_a_server_that_loses_what_it_took_is_not_ready(store: InfluxStore, server: InfluxServer) -> None:
    right_buckets(server)
    right_tasks(server)
    proof(server, "query_csv_empty")
    with pytest.raises(StoreUnavailable, match="took a point of now and does not have it; compare the clocks"):
        store.init()


@pytest.mark.parametrize("number", [0, 1])
def test_the_text_of_the_tasks(number: int) -> None:
    task = wanted_tasks()[number]
    name = task.name.removeprefix("tocsin ")
    assert task.flux.replace("|".join(MEANS), "MEANS") == (GOLDEN / f"{name}.flux").read_text()


def test_means_are_of_quantities_alone() -> None:
    specs = [spec for spec in METRICS.values() if spec.field in MEANS]
    assert {spec.kind for spec in specs} == {MetricKind.GAUGE}
    assert {"temperature_celsius", "power_watts", "utilization_ratio", "memory_used_bytes"} <= set(MEANS)
    state = {"ecc_uncorrected_volatile_total", "clocks_event_reasons_bitmask", "performance_state", "ecc_mode_enabled"}
    assert not state & set(MEANS)

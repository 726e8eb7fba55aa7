"""Live GPUs out of a Prometheus-compatible server: fresh or not, whose they are, and which XIDs are new."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tocsin.collector.prometheus_history.http import AccessRefused, HistoryClient, QueryRefused, TooMuch
from tocsin.collector.promql.fleet import PromqlFleet
from tocsin.collector.promql.mapping import built_in, read_mapping
from tocsin.collector.promql.series import SURVEY_MS, NothingFound, SeriesReader
from tocsin.config.promql import PromqlSettings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import MINUTE, SECOND, ManualClock
from tocsin.domain.errors import InputError, Unavailable
from tocsin.domain.metrics import spec_of
from tocsin.domain.reading import Owner, Reading, sanitise
from tocsin.telemetry.metrics import OwnMetrics
from tocsin_testing.builders import T0
from tocsin_testing.dcgm_site import Point, labels_of
from tocsin_testing.fake_prometheus import FakePrometheus

SCRAPE = 15 * SECOND
XID = "DCGM_FI_DEV_XID_ERRORS"
TEMPERATURE = "DCGM_FI_DEV_GPU_TEMP"
ENERGY = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
COUNT = "DCGM_EXP_XID_ERRORS_COUNT"


class Site:
    """A server that scrapes what the test says, and a reader of it."""

    def __init__(self, **settings: Any) -> None:
        self.fake = FakePrometheus([])
        self.client = HistoryClient(
            "http://prometheus:9090",
            transport=httpx2.MockTransport(self.fake),
            attempts=1,
            max_bytes=settings.get("max_answer_bytes", 1 << 24),
            clock=ManualClock(T0),
        )
        wanted = PromqlSettings.model_validate({"url": "http://prometheus:9090", **settings})
        self.reader = SeriesReader(wanted, self.client)
        self.own = OwnMetrics()
        self.fleet = PromqlFleet(round(wanted.lookback_seconds * SECOND), self.own)
        self.now = T0

    def scrape(self, values: Mapping[str, float], labels: Mapping[str, str] | None = None, *, ago: int = 0) -> None:
        """One scrape of one target."""
        of = labels_of(1, 0) if labels is None else labels
        self.fake.scrape([Point(name, of, value, self.now - ago) for name, value in values.items()])

    def poll(self, after_ms: int = 0) -> Batch:
        self.now += after_ms
        return self.fleet.batch(self.reader.read(self.now), self.now)

    def scraped(self, values: Mapping[str, float], labels: Mapping[str, str] | None = None) -> Batch:
        """One interval on: a scrape, and a round."""
        self.now += SCRAPE
        self.scrape(values, labels)
        return self.poll()


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site()
    yield made
    made.client.close()


def only(batch: Batch) -> Reading:
    (one,) = batch.readings
    return one


def test_a_reading_is_dated_by_its_scrape_and_taken_once(site: Site) -> None:
    site.scrape({TEMPERATURE: 61, "DCGM_FI_DEV_FB_USED": 30, "DCGM_FI_DEV_FB_FREE": 10, XID: 0}, ago=4_321)
    one = only(site.poll())
    assert one.at_ms == T0 - 4_321
    assert (one.gpu.uuid, one.gpu.host, one.gpu.index) == ("GPU-1-0", "node-1", 0)
    assert one.gpu.model == "NVIDIA H100 80GB HBM3"
    assert one.values["gpu_temperature_celsius"] == 61.0
    assert one.values["gpu_memory_used_bytes"] == 30 * 2**20
    assert one.values["gpu_memory_used_ratio"] == 0.75
    assert one.owners == (), "the exporter's own pod owns nothing"
    assert sanitise(one)[1] == []
    assert site.poll(SCRAPE).readings == []
    assert site.fleet.outcomes["repeated"] == 4


def test_a_server_that_goes_on_with_old_samples_gives_no_fresh_reading(site: Site) -> None:
    """A plain instant query would show the value for five minutes more, dated with each query."""
    site.scrape({TEMPERATURE: 61})
    assert only(site.poll()).at_ms == T0
    for _ in range(30):
        assert site.poll(10 * SECOND).readings == []


def test_a_metric_that_the_newest_scrape_no_longer_has_is_not_in_the_reading(site: Site) -> None:
    site.scrape({TEMPERATURE: 61, "DCGM_FI_DEV_POWER_USAGE": 200})
    site.poll()
    one = only(site.scraped({TEMPERATURE: 62}))
    assert dict(one.values) == {"gpu_temperature_celsius": 62.0}
    assert site.fleet.outcomes["behind"] == 1


def test_a_latched_xid_is_an_event_when_it_changes_and_never_at_the_start(site: Site) -> None:
    site.scrape({XID: 31, TEMPERATURE: 40})
    assert site.poll().events == [], "nobody knows since when"
    assert site.scraped({XID: 31, TEMPERATURE: 40}).events == []
    (event,) = site.scraped({XID: 79, TEMPERATURE: 40}).events
    assert (event.code, event.gpu, event.host, event.at_ms) == (79, "GPU-1-0", "node-1", site.now)
    assert site.scraped({XID: 79, TEMPERATURE: 40}).events == []
    assert site.poll(SECOND).events == []


def test_a_repeat_of_an_xid_shows_in_its_count(site: Site) -> None:
    counted = {**labels_of(1, 0), "xid": "48", "window_size_in_ms": "300000"}
    site.scrape({XID: 48})
    site.scrape({COUNT: 1}, counted)
    assert site.poll().events == []
    site.now += SCRAPE
    site.scrape({XID: 48})
    site.scrape({COUNT: 2}, counted)
    assert [event.code for event in site.poll().events] == [48]


@pytest.mark.parametrize("how", ["started anew", "counter fell", "long gap", "another target"])
def test_where_nobody_can_tell_whether_a_code_is_new_there_is_no_event_and_it_is_counted(site: Site, how: str) -> None:
    start = "process_start_time_seconds"
    target = {key: labels_of(1, 0)[key] for key in ("instance", "job")}
    for _ in range(2):  # the job of the exporter is known from the second round on
        site.now += SCRAPE
        site.scrape({XID: 0, ENERGY: 5_000})
        if how == "started anew":
            site.scrape({start: 100}, target)
        site.poll()
    if how == "long gap":
        site.now += 6 * MINUTE
    if how == "started anew":
        site.now += 1
        site.scrape({start: 200}, target)
    labels = {**labels_of(1, 0), "instance": "10.9.9.9:9400"} if how == "another target" else None
    site.now += MINUTE if how == "another target" else SCRAPE
    site.scrape({XID: 79, ENERGY: 10 if how == "counter fell" else 6_000}, labels)
    batch = site.poll()
    assert len(batch.readings) == 1
    assert batch.events == []
    reason = "no_start_time" if how == "counter fell" else "exporter_restart"
    assert site.own.value("tocsin_dcgm_unsettled_errors_total", kind="xid", reason=reason) == 1


def test_an_exporter_that_says_when_it_started_keeps_its_codes_across_a_reload_of_the_driver(site: Site) -> None:
    start = {key: labels_of(1, 0)[key] for key in ("instance", "job")}
    for energy, code in ((5_000, 0), (6_000, 0), (10, 79)):
        site.now += SCRAPE
        site.scrape({XID: code, ENERGY: energy})
        site.scrape({"process_start_time_seconds": 100}, start)
        batch = site.poll()
    assert [event.code for event in batch.events] == [79]


def test_mig_instances_stand_beside_their_gpu(site: Site) -> None:
    instance = {**labels_of(1, 0), "GPU_I_ID": "2", "GPU_I_PROFILE": "1g.10gb"}
    site.scrape({TEMPERATURE: 50})
    site.scrape({"DCGM_FI_DEV_FB_USED": 90, "DCGM_FI_DEV_FB_FREE": 10}, instance)
    found = {one.gpu.uuid: one for one in site.poll().readings}
    assert found["GPU-1-0/gi2"].gpu.parent == "GPU-1-0"
    assert found["GPU-1-0/gi2"].values["gpu_memory_used_ratio"] == 0.9
    assert found["GPU-1-0"].values == {"gpu_temperature_celsius": 50.0}


def test_a_gpu_that_two_targets_show_has_its_values_from_one(site: Site) -> None:
    smi = {"uuid": "1-0", "instance": "10.0.0.1:9835", "job": "smi"}
    for number in range(4):
        site.now += SCRAPE
        site.scrape({TEMPERATURE: 50, "DCGM_FI_DEV_POWER_USAGE": 100})
        site.scrape({"nvidia_smi_temperature_gpu": 99}, smi, ago=(number % 2) * 5_000)
        assert only(site.poll()).values == {"gpu_temperature_celsius": 50.0, "gpu_power_watts": 100.0}
    assert site.fleet.outcomes["second_target"] == 1


def test_nvidia_gpu_exporter_has_its_model_from_its_info_series(site: Site) -> None:
    smi = {"uuid": "aaaa-bb", "instance": "node-7:9835", "job": "smi"}
    info = {**smi, "name": "NVIDIA L4", "index": "3", "driver_version": "570.1", "pci_bus_id": "00000000:71:00.0"}
    values = {
        "nvidia_smi_temperature_gpu": 87,
        "nvidia_smi_utilization_gpu_ratio": 0.42,
        "nvidia_smi_ecc_errors_uncorrected_volatile_total": 2,
        "nvidia_smi_clocks_event_reasons_active": 64,
    }
    site.scrape(values, smi)
    site.scrape({"nvidia_smi_gpu_info": 1}, info)
    one = only(site.poll())
    assert (one.gpu.uuid, one.gpu.host, one.gpu.index, one.gpu.model) == ("GPU-aaaa-bb", "node-7", 3, "NVIDIA L4")
    assert one.gpu.labels == {"driver_version": "570.1"}
    assert one.gpu.pci_bus_id == "00000000:71:00.0"
    assert one.values == {
        "gpu_temperature_celsius": 87.0,
        "gpu_utilization_ratio": 0.42,
        "gpu_ecc_uncorrected_volatile_total": 2.0,
        "gpu_clocks_event_reasons_bitmask": 64.0,
    }
    site.now += SCRAPE
    site.scrape(values, smi)
    site.scrape({"nvidia_smi_xid_errors_total": 1}, {**smi, "xid": "79"})
    assert [event.code for event in site.poll().events] == [79], "the series begins with its first error"


def test_amd_by_the_documentation_of_its_exporter(site: Site) -> None:
    amd = {"serial_number": "692", "gpu_id": "1", "hostname": "mi-1", "card_model": "MI300X", "job": "amd"}
    amd |= {"instance": "10.0.0.5:5000", "gpu_partition_id": "0", "exported_pod": "train-0", "job_id": "77"}
    site.scrape({"gpu_junction_temperature": 81, "gpu_gfx_activity": 97, "gpu_energy_consumed": 4e6}, amd)
    site.scrape({"gpu_used_vram": 150, "gpu_free_vram": 50, "gpu_ecc_uncorrect_umc": 1, "gpu_health": 1}, amd)
    for kind, mhz in (("system", 2100), ("memory", 1300), ("video", 900)):
        site.scrape({"gpu_clock": mhz}, {**amd, "clock_type": kind, "clock_index": "0"})
    one = only(site.poll())
    assert (one.gpu.uuid, one.gpu.host, one.gpu.model) == ("AMD-692", "mi-1", "MI300X")
    assert one.owners == (Owner(0, pod="train-0", slurm_job="77"),)
    assert one.values == pytest.approx(
        {
            "gpu_temperature_celsius": 81.0,
            "gpu_utilization_ratio": 0.97,
            "gpu_energy_joules_total": 4.0,
            "gpu_memory_used_bytes": 150 * 2**20,
            "gpu_memory_free_bytes": 50 * 2**20,
            "gpu_memory_used_ratio": 0.75,
            "gpu_ecc_dram_uncorrected_volatile_total": 1.0,
            "gpu_sm_clock_hertz": 2.1e9,
            "gpu_memory_clock_hertz": 1.3e9,
        }
    )
    site.now += SURVEY_MS  # a name that is new to the server is met by the next survey
    edge = only(site.scraped({"gpu_edge_temperature": 60, "gpu_junction_temperature": 75}, amd))
    assert edge.values["gpu_temperature_celsius"] == 60.0, "the junction only stands in"


TABLES = ("nvidia_gpu_exporter", "amd")


def test_every_row_of_the_mappings_that_come_along_is_a_metric_of_a_gpu() -> None:
    for name in TABLES:
        mapping = built_in(name)
        entity = mapping.entity({"uuid": "u", "serial_number": "u", "instance": "n"})
        heads = [mapping.head(metric, entity) for metric in mapping.names]
        assert all(head.gpu is not None for head in heads)
        assert all(spec_of(head.key) is not None for head in heads if head.field is not None)


WORDS = {
    *("used", "free", "reserved", "min", "max", "default", "enforced", "limit", "power", "memory", "sm", "width"),
    *("corrected", "uncorrected", "volatile", "aggregate", "correctable", "uncorrectable", "pending", "failure"),
    *("encoder", "decoder", "utilization", "temperature", "energy", "fan", "persistence", "ratio", "watts", "recovery"),
    *("correct", "uncorrect", "umc", "replay", "vram"),
}
SAME = {"correct": "corrected", "uncorrect": "uncorrected", "umc": "dram", "vram": "memory"}


@pytest.mark.parametrize("name", TABLES)
def test_a_metric_goes_to_the_row_that_has_its_words(name: str) -> None:
    """Two rows that change places do not pass."""
    mapping = built_in(name)
    entity = mapping.entity({"uuid": "u", "serial_number": "u", "instance": "n"})
    for metric in mapping.names:
        head = mapping.head(metric, entity)
        if head.field is not None:
            wanted = {SAME.get(word, word) for word in set(metric.split("_")) & WORDS}
            wanted |= {"total"} & set(metric.split("_")) if "memory" in wanted else set()
            wanted -= {"dram"} if metric.endswith("_activity") else set()  # there it is the controller
            assert wanted <= set(head.key.split("_")), (metric, head.key)


MAPPING = """
uuid_prefix = "ACME-"
[labels]
uuid = ["card"]
host = ["machine"]
[metrics]
acme_heat_millicelsius = { metric = "gpu_temperature_celsius", scale = 0.001 }
"""


def test_a_mapping_file_of_the_site(tmp_path: Path) -> None:
    file = tmp_path / "acme.toml"
    file.write_text(MAPPING)
    site = Site(exporters=[], mapping_file=file, pool_label="team", rack_label="row", gpu_labels=["zone"], pool="rest")
    card = {"card": "9", "machine": "m-1", "row": "r7", "zone": "z1", "instance": "10.0.0.1:80"}
    site.scrape({"acme_heat_millicelsius": 88_500, TEMPERATURE: 1}, card)
    one = only(site.poll())
    assert one.values == {"gpu_temperature_celsius": 88.5}
    assert (one.gpu.uuid, one.gpu.host, one.gpu.rack, one.gpu.pool) == ("ACME-9", "m-1", "r7", "rest")
    assert one.gpu.labels == {"zone": "z1"}
    site.client.close()


@pytest.mark.parametrize("url", ["prometheus:9090", "http://user:secret@prometheus:9090", "http://p:9090?x=1"])
def test_a_url_that_is_none_or_holds_a_secret_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="neither a name nor a query"):
        PromqlSettings(url=url)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("x = [", "is no TOML"),
        ("[metrics]", "at least 1"),
        ('[metrics]\na = "gpu_temprature"', "nearest is gpu_temperature_celsius"),
        ('[metrics]\na = "fleet_free_gpus"', "is no metric of a GPU"),
        ('[metrics]\n"a b" = "gpu_power_watts"', "is no name of a metric"),
        ('[metrics]\na = { metric = "gpu_power_watts", scale = 0 }', "greater than 0"),
        ('[labels]\nuid = ["x"]\n[metrics]\na = "gpu_power_watts"', "labels.uid"),
        ("#" * 300_000, "is larger than"),
    ],
)
def test_a_mapping_file_that_cannot_be_used_is_said(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "acme.toml"
    file.write_text(text)
    with pytest.raises(InputError, match=problem) as told:
        read_mapping(file)
    assert "promql.mapping_file" in str(told.value)


def test_the_labels_of_the_site_outrank_those_of_the_exporter() -> None:
    site = Site(host_labels=["machine"])
    labels = {"gpu": "1", "instance": "10.0.0.9:9400", "machine": "metal-9"}
    site.scrape({TEMPERATURE: 50}, labels)
    one = only(site.poll())
    assert (one.gpu.uuid, one.gpu.host) == ("metal-9/gpu1", "metal-9")
    site.client.close()


def test_an_answer_that_would_be_too_large_is_asked_for_in_parts() -> None:
    site = Site(max_answer_bytes=1400)
    values = {"DCGM_FI_DEV_POWER_USAGE": 100, TEMPERATURE: 50, ENERGY: 1000, "DCGM_FI_DEV_GPU_UTIL": 50, XID: 0}
    site.scrape(values)
    assert len(only(site.poll()).values) == len(values)
    first = len(site.fake.requests)
    assert len(only(site.scraped(values)).values) == len(values)
    assert len(site.fake.requests) - first < first, "the parts are remembered"
    site.client.close()


def test_a_metric_that_no_answer_can_hold_is_left_out_and_counted() -> None:
    site = Site(max_answer_bytes=1200)
    site.fake.scrape(Point(ENERGY, labels_of(host, 0), 5, T0) for host in range(9))
    site.scrape({TEMPERATURE: 50})
    assert only(site.poll()).values == {"gpu_temperature_celsius": 50.0}
    assert site.reader.outcomes["too_large"] == 1
    site.client.close()


def test_series_beyond_the_bound_are_left_out_and_counted() -> None:
    site = Site(max_series=5)
    site.fake.scrape(Point(TEMPERATURE, labels_of(host, 0), 50, T0) for host in range(9))
    assert len(site.poll().readings) == 5
    assert site.reader.outcomes["over_limit"] == 4
    site.client.close()


def test_a_sample_of_the_future_and_a_blank_are_no_readings(site: Site) -> None:
    site.scrape({TEMPERATURE: 61}, ago=-60 * MINUTE)
    site.now += 60 * MINUTE
    site.scrape({TEMPERATURE: float("nan")}, labels_of(1, 1))
    site.now -= 60 * MINUTE
    assert site.fleet.batch(site.reader.read(site.now + 60 * MINUTE), site.now).readings == []
    assert dict(site.fleet.outcomes) == {"future": 1, "blank": 1}
    one = only(site.scraped({TEMPERATURE: 9_000, "DCGM_FI_DEV_POWER_USAGE": 2**63 - 14}, labels_of(1, 2)))
    assert one.values == {}
    assert len(one.missing) == 2


def test_what_is_no_series_is_counted_and_costs_no_other(site: Site) -> None:
    site.scrape({TEMPERATURE: 50})
    site.poll()
    good = {"metric": {"__name__": TEMPERATURE, **labels_of(1, 0)}, "values": [[(T0 + SCRAPE) / 1000, "51"]]}
    bad = [
        {"metric": {**good["metric"], "UUID": {"a": 1}}, "values": good["values"]},
        {"metric": {**good["metric"], "UUID": 7}, "values": good["values"]},
        {"metric": {**good["metric"], "UUID": "u" * 5_000}, "values": good["values"]},
        {"metric": {**good["metric"], "UUID": "GPU-x"}, "values": [["NaN", "1"]]},
        {"metric": {**good["metric"], "UUID": "GPU-y"}, "values": [[1e300, "1"]]},
        {"metric": {**good["metric"], "__name__": ["a"]}, "values": good["values"]},
    ]
    body = json.dumps({"status": "success", "data": {"resultType": "matrix", "result": [*bad, good]}})
    site.fake.failures = [f"200 {body}"]
    assert only(site.poll(SCRAPE)).values == {"gpu_temperature_celsius": 51.0}
    assert site.reader.outcomes["malformed"] == len(bad)


def test_what_the_server_warns_of_is_kept_for_one_round(site: Site) -> None:
    site.scrape({TEMPERATURE: 50})
    for number in range(3):
        site.fake.warnings = [f"store {number} is away " + "x" * 500]
        site.poll(SCRAPE)
        assert site.reader.warned == [f"store {number} is away " + "x" * 184]
        assert site.client.warnings == set()


def test_a_server_without_a_metric_of_ours_is_said(site: Site) -> None:
    site.scrape({"node_load1": 1})
    with pytest.raises(NothingFound, match=r"promql\.exporters"):
        site.poll()


def test_metrics_that_nothing_reads_are_known_and_not_asked_for(site: Site) -> None:
    site.scrape({TEMPERATURE: 50, "DCGM_FI_DEV_VGPU_LICENSE_STATUS": 0})
    site.poll()
    assert site.reader.unknown == ["DCGM_FI_DEV_VGPU_LICENSE_STATUS"]
    assert not any(b"VGPU_LICENSE" in request.content for request in site.fake.requests)


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        ("401 who are you", AccessRefused),
        ("400 bad data", QueryRefused),
        ("422 unknown function", QueryRefused),
        ("404 no such page", InputError),
        ("503 away", Unavailable),
        (httpx2.ConnectError("refused"), Unavailable),
    ],
)
def test_what_a_server_refuses_has_its_own_error(site: Site, failure: str | Exception, error: type[Exception]) -> None:
    site.scrape({TEMPERATURE: 50})
    site.poll()
    site.fake.failures = [failure]
    with pytest.raises(error):
        site.poll(SCRAPE)


def test_an_answer_that_trickles_is_given_up() -> None:
    clock = ManualClock(T0)

    class Slow(httpx2.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            for _ in range(100):
                clock.advance(SECOND)
                yield b" "

    def serve(_request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, stream=Slow())

    client = HistoryClient(
        "http://p", transport=httpx2.MockTransport(serve), attempts=1, timeout_seconds=5, clock=clock
    )
    with pytest.raises(Unavailable, match="did not come within 5 s"):
        client.newest("up", MINUTE, T0)
    assert clock.now_ms() - T0 == 6 * SECOND
    client.close()


def test_too_much_even_in_one_part_is_an_error_of_its_own() -> None:
    client = HistoryClient("http://p", transport=httpx2.MockTransport(lambda _: httpx2.Response(413)), attempts=1)
    with pytest.raises(TooMuch):
        client.newest("up", MINUTE, T0)
    client.close()

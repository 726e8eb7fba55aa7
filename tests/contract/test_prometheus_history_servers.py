"""History out of a real Prometheus and a real VictoriaMetrics: what comes out is what went in, and again the same."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx2
import pytest

from tocsin.collector.prometheus_history.http import HistoryClient
from tocsin.collector.replay.source import read_recording
from tocsin.domain.clock import HOUR, MINUTE, SystemClock
from tocsin.domain.errors import InputError
from tocsin.domain.reading import Owner, Reading
from tocsin.offline.import_history import ImportReport, ImportRequest, import_to_file, import_to_store
from tocsin.offline.replay import run_replay
from tocsin.rules.load import load_rules
from tocsin.store.memory import MemoryStore
from tocsin_testing import needs, servers
from tocsin_testing.dcgm_site import HOURS, INTERVAL, Point, openmetrics, site

pytestmark = pytest.mark.server

START = (int(time.time()) // 3600 - 8) * HOUR
END = START + HOURS * HOUR + 30 * MINUTE
WANTED = ImportRequest(START, END)

Filled = tuple[str, list[Point]]


def fill_victoria_metrics(url: str, points: list[Point]) -> None:
    body = "".join(point.text() for point in points)
    httpx2.post(f"{url}/api/v1/import/prometheus", content=body.encode()).raise_for_status()
    httpx2.get(f"{url}/internal/force_flush").raise_for_status()


def fill_prometheus(folder: Path, points: list[Point]) -> None:
    text = folder / "site.om"
    text.write_text(openmetrics(points))
    command = [needs.program("promtool", "prometheus"), "tsdb", "create-blocks-from", "openmetrics"]
    subprocess.run([*command, str(text), str(folder / "tsdb")], check=True, capture_output=True, timeout=120)


@pytest.fixture(scope="module", params=["prometheus", "victoriametrics"])
def filled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filled]:
    folder, points = tmp_path_factory.mktemp(request.param), site(START)
    with ExitStack() as stack:
        if request.param == "prometheus":
            fill_prometheus(folder, points)
            url = stack.enter_context(servers.prometheus(folder, "global: {}\n"))
        else:
            url = stack.enter_context(servers.victoria_metrics(folder))
            fill_victoria_metrics(url, points)
        yield url, points


def silent(_line: str) -> None:
    pass


def imported(url: str, store: MemoryStore, wanted: ImportRequest = WANTED) -> ImportReport:
    client = HistoryClient(url)
    try:
        return import_to_store(client, wanted, store, SystemClock(), silent)
    finally:
        client.close()


def stored(store: MemoryStore) -> dict[tuple[str, int], Reading]:
    return {(reading.gpu.uuid, reading.at_ms): reading for reading in store.readings(0, 1 << 62)}


def gone_in(points: list[Point], tmp_path: Path) -> dict[tuple[str, int], Reading]:
    """What went in, as the reader of recorded text understands it."""
    path = tmp_path / "original.prom"
    path.write_text("".join(point.text() for point in points))
    recording = read_recording([path])
    return {(one.gpu.uuid, one.at_ms): one for _, group in recording.instants() for one in group}


def test_the_numbers_that_come_out_are_those_that_went_in_and_again(filled: Filled, tmp_path: Path) -> None:
    url, points = filled
    store = MemoryStore()
    report = imported(url, store)
    expected, found = gone_in(points, tmp_path), stored(store)
    assert found.keys() == expected.keys()
    for key, reading in found.items():
        assert reading.values == pytest.approx(expected[key].values, rel=1e-12), key
        assert (reading.gpu.host, reading.gpu.index) == (expected[key].gpu.host, expected[key].gpu.index)
    assert report.readings == len(expected)
    events = store.events(0, 1 << 62)
    again = imported(url, store)
    assert stored(store) == found
    assert store.events(0, 1 << 62) == events
    assert (again.samples, again.readings, again.xids) == (report.samples, report.readings, report.xids)


def test_a_series_that_ends_is_not_repeated(filled: Filled) -> None:
    url, points = filled
    store = MemoryStore()
    imported(url, store)
    last = max(p.at_ms for p in points if p.labels.get("UUID") == "GPU-1-1")
    assert max(at_ms for uuid, at_ms in stored(store) if uuid == "GPU-1-1") == last


@pytest.mark.parametrize("step_ms", [10_000, 15_000, 30_000, 60_000])
def test_a_coarse_step_takes_fewer_samples_and_each_is_true(filled: Filled, tmp_path: Path, step_ms: int) -> None:
    url, points = filled
    store = MemoryStore()
    imported(url, store, ImportRequest(START, END, step_ms=step_ms))
    expected, found = gone_in(points, tmp_path), stored(store)
    assert found.keys() <= expected.keys()
    temperature = "gpu_temperature_celsius"
    for key, reading in found.items():
        assert reading.values.get(temperature) == expected[key].values.get(temperature)
    assert len(found) >= 0.98 * len(expected) * min(1.0, INTERVAL / step_ms)


def test_the_report(filled: Filled) -> None:
    url, points = filled
    report = imported(url, MemoryStore())
    assert report.step_ms == INTERVAL / 2
    whole = [gpu.uuid for gpu in report.gpus if not gpu.is_mig]
    assert sorted(whole) == ["GPU-1-0", "GPU-1-1", "GPU-2-0", "GPU-2-1"]
    assert sorted(gpu.uuid for gpu in report.gpus if gpu.is_mig) == ["GPU-2-1/gi1", "GPU-2-1/gi2"]
    assert "gpu_temperature_celsius" in report.metrics
    assert report.unknown == ("DCGM_FI_DEV_VGPU_LICENSE_STATUS",)
    assert report.blank == sum(1 for p in points if p.value > 9e18)
    # The repeat after two minutes shows in the count alone.
    assert report.xids == {79: 2}
    (gap,) = report.gaps
    assert gap.host == "node-1"
    assert gap.end_ms - gap.start_ms == 41 * INTERVAL
    assert report.start_ms == min(p.at_ms for p in points)
    assert report.end_ms == max(p.at_ms for p in points)
    assert "2 GPUs" not in report.as_text().splitlines()[1]
    assert report.as_json()["gpus"] == 4


def test_owners_are_the_pods_and_not_the_exporter(filled: Filled) -> None:
    url, points = filled
    store = MemoryStore()
    imported(url, store)
    owned = {key: reading.owners for key, reading in stored(store).items() if reading.owners}
    with_pod = {(p.labels["UUID"], p.at_ms) for p in points if "exported_pod" in p.labels}
    assert owned.keys() == with_pod
    assert set(owned.values()) == {(Owner(0, container="main", pod="train-0", namespace="ml"),)}


def test_a_selector_narrows(filled: Filled) -> None:
    url, _ = filled
    report = imported(url, MemoryStore(), ImportRequest(START, END, '{instance="10.0.0.2:9400"}'))
    assert {gpu.host for gpu in report.gpus} == {"node-2"}


def test_a_span_without_anything_is_said_so(filled: Filled) -> None:
    url, _ = filled
    with pytest.raises(InputError, match="finds no metric of dcgm-exporter"):
        imported(url, MemoryStore(), ImportRequest(START - 5 * HOUR, START - 4 * HOUR))


@pytest.mark.parametrize("name", ["past.prom", "past.prom.bz2"])
def test_a_replay_of_the_imported_history_finds_what_it_finds_in_the_original(
    filled: Filled, tmp_path: Path, name: str
) -> None:
    url, points = filled
    original, ours = tmp_path / "original.prom", tmp_path / name
    original.write_text("".join(point.text() for point in points))
    client = HistoryClient(url)
    import_to_file(client, WANTED, ours, SystemClock(), silent)
    client.close()
    rules = load_rules(None)
    expected, found = run_replay([original], None, rules), run_replay([ours], None, rules)
    assert (found.gpus, found.readings, found.events) == (expected.gpus, expected.readings, expected.events)
    assert found.findings == expected.findings
    assert found.events == 1
    assert sum(found.findings.values()) >= 1


def serve_scrapes(pages: list[str]) -> tuple[str, Callable[[], int], Callable[[], None]]:
    """A scrape target that shows one page after the other; its address, how many were fetched, and its end."""
    from http.server import BaseHTTPRequestHandler, HTTPServer

    given = [0]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = pages[given[0]] if given[0] < len(pages) else ""
            given[0] += 1
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(page.encode())

        def log_message(self, *_args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def end() -> None:
        server.shutdown()
        server.server_close()

    return f"127.0.0.1:{server.server_port}", lambda: given[0], end


def test_what_a_prometheus_scraped_comes_out_once_a_scrape(tmp_path: Path) -> None:
    line = 'DCGM_FI_DEV_GPU_TEMP{{gpu="0",UUID="GPU-s",Hostname="n",pod="p",namespace="ns",container="c"}} {}\n'
    pages = [line.format(40 + k) for k in range(12)]
    address, fetched, end = serve_scrapes(pages)
    config = (
        "global: {scrape_interval: 1s, scrape_timeout: 1s}\n"
        f"scrape_configs: [{{job_name: dcgm, static_configs: [{{targets: ['{address}']}}]}}]\n"
    )
    begun = int(time.time() * 1000)
    never = threading.Event()
    try:
        with servers.prometheus(tmp_path, config) as url:
            while fetched() <= len(pages) + 1 and time.time() * 1000 - begun < 60_000:
                never.wait(0.1)
            store = MemoryStore()
            now = int(time.time() * 1000)
            imported(url, store, ImportRequest(begun - MINUTE, now, step_ms=1000))
    finally:
        end()
    found = [reading for _, reading in sorted(stored(store).items(), key=lambda item: item[0][1])]
    temperatures = [reading.values["gpu_temperature_celsius"] for reading in found]
    assert temperatures == sorted(set(temperatures))
    assert set(temperatures) <= {40.0 + k for k in range(12)}
    assert len(temperatures) >= 10
    assert {reading.owners for reading in found} == {(Owner(0, container="c", pod="p", namespace="ns"),)}

"""A brain, a real Prometheus that scrapes an exporter, and no agent anywhere: from the exporter's page to the card."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx2
import pytest
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from tocsin.config.settings import Settings
from tocsin.domain.clock import SystemClock
from tocsin.queries.service import BrainService
from tocsin.runtime.brain.assembly import RunningBrain, open_brain
from tocsin_testing.chaos import until
from tocsin_testing.dcgm_pages import page_of
from tocsin_testing.servers import prometheus, victoria_metrics

TRIES = 300


def opened(folder: Path, url: str) -> RunningBrain:
    """A brain whose only settings are where it keeps its files, and the server."""
    settings = Settings.model_validate(
        {
            "store": {"path": folder / "store.db"},
            "journal": {"path": folder / "journal.db"},
            "forecast": {"worker": False},
            "promql": {"url": url, "every_seconds": 1},
        }
    )
    return open_brain(settings, SystemClock())


def scraping(httpserver: HTTPServer) -> str:
    """The configuration of a Prometheus that scrapes the exporter every second."""
    return (
        "global: {scrape_interval: 1s, scrape_timeout: 1s}\n"
        f"scrape_configs: [{{job_name: dcgm, static_configs: [{{targets: ['127.0.0.1:{httpserver.port}']}}]}}]\n"
    )


@contextmanager
def command(folder: Path, **settings: str) -> Iterator[subprocess.Popen[bytes]]:
    """``tocsin brain`` in an empty folder with no settings but these, and the port; its words go to a file."""
    program, own = Path(sys.executable).with_name("tocsin"), {"TOCSIN_API__LISTEN": "127.0.0.1:0"}
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TOCSIN_")}
    with (folder / "brain.log").open("wb") as log:
        process = subprocess.Popen([program, "brain"], stderr=log, cwd=folder, env=environ | own | settings)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.server
def test_the_command_knows_its_first_gpus_by_the_url_of_a_prometheus_alone(
    tmp_path: Path, httpserver: HTTPServer
) -> None:
    page = Response(page_of(2, temperature=61), content_type="text/plain; version=0.0.4")
    httpserver.expect_request("/metrics").respond_with_handler(lambda _request: page)
    log, api, known = tmp_path / "brain.log", list[str](), list[dict[str, object]]()

    def says_where() -> bool:
        api[:] = [line.removeprefix("api: ") for line in log.read_text().splitlines() if line.startswith("api: ")]
        return bool(api)

    def is_ready() -> bool:
        with suppress(httpx2.HTTPError):
            return httpx2.get(f"{api[0]}/readyz", timeout=5).status_code == 200
        return False

    def knows_gpus() -> bool:
        known[:] = httpx2.get(f"{api[0]}/v1/gpus", timeout=5).raise_for_status().json()
        return bool(known)

    with (
        prometheus(tmp_path, scraping(httpserver)) as url,
        command(tmp_path, TOCSIN_PROMQL__URL=url) as process,
    ):
        until(says_where, "it says where its API is", 90)
        until(is_ready, "it is ready", 90)
        until(knows_gpus, "it knows the GPUs that Prometheus has scraped", 90)
        assert {(one["uuid"], one["host"]) for one in known} == {("GPU-0", "n1"), ("GPU-1", "n1")}
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert "Traceback" not in log.read_text()


@pytest.mark.server
def test_the_first_card_of_a_site_that_has_a_prometheus_alone(tmp_path: Path, httpserver: HTTPServer) -> None:
    xid, pause = [0], threading.Event()

    def page(_request: Request) -> Response:
        return Response(page_of(2, xid=xid[0], temperature=61), content_type="text/plain; version=0.0.4")

    httpserver.expect_request("/metrics").respond_with_handler(page)
    with prometheus(tmp_path, scraping(httpserver)) as url:
        running = opened(tmp_path, url)
        brain, service = running.brain, BrainService(running.brain)
        (thread,) = [one for one in running.threads if one.name == "promql"]
        for _ in range(TRIES):
            if "DCGM_FI_DEV_GPU_TEMP" in httpx2.get(f"{url}/api/v1/label/__name__/values").text:
                break
            pause.wait(0.1)
        thread.once()
        seen = brain.memory.latest()
        assert {one.gpu.uuid: one.values["gpu_temperature_celsius"] for one in seen} == {"GPU-0": 61, "GPU-1": 61}
        assert {one.gpu.host for one in seen} == {"n1"}
        assert all(0 <= SystemClock().now_ms() - one.at_ms < 30_000 for one in seen)
        brain.tick()
        assert service.cards(10).total == 0
        xid[0] = 79
        for _ in range(TRIES):
            thread.once()
            brain.tick()
            if service.cards(10).total:
                break
            pause.wait(0.1)
        card = service.cards(10).items[0]
        assert "79" in card.model_dump_json()
        assert {finding.rule for finding in brain.active} == {"xid_bus"}
        assert {finding.subject.name for finding in brain.active} == {"GPU-0", "GPU-1"}
        # The target is gone: Prometheus' own answers go on for five minutes, ours do not.
        httpserver.clear()
        pause.wait(1.2)
        thread.once()
        newest = [one.at_ms for one in brain.memory.latest()]
        pause.wait(1.2)
        thread.once()
        assert [one.at_ms for one in brain.memory.latest()] == newest
        running.stop()


@pytest.mark.server
def test_victoriametrics_gives_each_sample_with_its_own_time(tmp_path: Path) -> None:
    with victoria_metrics(tmp_path) as url:
        now = SystemClock().now_ms()
        text = "".join(
            line.replace("\n", f" {now - ago}\n")
            for ago in (50_000, 20_000)
            for line in page_of(2, temperature=60 - ago // 10_000).splitlines(keepends=True)
        )
        httpx2.post(f"{url}/api/v1/import/prometheus", content=text.encode()).raise_for_status()
        httpx2.get(f"{url}/internal/force_flush").raise_for_status()
        running = opened(tmp_path, url)
        (thread,) = [one for one in running.threads if one.name == "promql"]
        thread.once()
        seen = running.brain.memory.latest()
        assert [(one.gpu.uuid, one.at_ms) for one in seen] == [("GPU-0", now - 20_000), ("GPU-1", now - 20_000)]
        assert [one.values["gpu_temperature_celsius"] for one in seen] == [58, 58]
        running.stop()

"""A real Prometheus scrapes an exporter's page and writes what it has to a brain."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path

import pytest
from pydantic import SecretStr
from pytest_httpserver import HTTPServer

from tocsin.api.app import create_app
from tocsin.api.server import ApiServer
from tocsin.config.access import ApiSettings, Role, Token
from tocsin.config.settings import Settings
from tocsin.domain.clock import SystemClock
from tocsin.queries.service import BrainService
from tocsin.runtime.brain.assembly import open_brain
from tocsin_testing.dcgm_pages import page_of
from tocsin_testing.servers import prometheus

SECRET = "a-secret-of-sixteen"
TRIES = 300


@pytest.mark.server
def test_what_a_prometheus_writes_is_a_reading(tmp_path: Path, httpserver: HTTPServer) -> None:
    page = page_of(2, temperature=61) + 'up_of_something_else{a="b"} 1\n'
    httpserver.expect_request("/metrics").respond_with_data(page, content_type="text/plain; version=0.0.4")
    wanted = {
        "store": {"path": tmp_path / "store.db"},
        "journal": {"path": tmp_path / "journal.db"},
        "forecast": {"worker": False},
    }
    running = open_brain(Settings.model_validate(wanted), SystemClock())
    token = Token(name="prometheus", role=Role.AGENT, secret=SecretStr(SECRET))
    access = ApiSettings(listen="127.0.0.1:0", tokens=[token])
    server = ApiServer(create_app(BrainService(running.brain), access), settings=access)
    with ExitStack() as stack:
        port = server.start()
        stack.callback(server.stop)
        config = (
            "global: {scrape_interval: 1s, scrape_timeout: 1s}\n"
            f"scrape_configs: [{{job_name: dcgm, static_configs: [{{targets: ['127.0.0.1:{httpserver.port}']}}]}}]\n"
            f"remote_write: [{{url: 'http://127.0.0.1:{port}/api/v1/write',"
            f" authorization: {{credentials: {SECRET}}}}}]\n"
        )
        stack.enter_context(prometheus(tmp_path, config))
        pause = threading.Event()
        for _ in range(TRIES):
            seen = {one.gpu.uuid: one for one in running.brain.memory.latest()}
            if len(seen) == 2 and all("gpu_energy_joules_total" in one.values for one in seen.values()):
                break
            pause.wait(0.1)
    assert {uuid: one.values["gpu_temperature_celsius"] for uuid, one in seen.items()} == {"GPU-0": 61, "GPU-1": 61}
    assert {one.gpu.host for one in seen.values()} == {"n1"}
    metrics = running.brain.metrics
    assert metrics.value("tocsin_received_samples_total", outcome="used") > 0
    assert metrics.value("tocsin_received_samples_total", outcome="other") > 0
    assert not metrics.value("tocsin_received_samples_total", outcome="broken")
    running.stop()

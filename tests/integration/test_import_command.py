"""`tocsin import prometheus` as an operator types it, against a server over real HTTP."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from tocsin.collector.replay.source import read_recording
from tocsin.domain.clock import HOUR, to_iso
from tocsin_testing.builders import T0
from tocsin_testing.dcgm_site import HOURS, site
from tocsin_testing.fake_prometheus import FakePrometheus

SPAN = ("--since", to_iso(T0), "--until", to_iso(T0 + HOURS * HOUR))


@pytest.fixture
def fake(httpserver: HTTPServer) -> FakePrometheus:
    """Three hours of a small site behind `httpserver`."""
    server = FakePrometheus(site(T0))

    def handle(request: Request) -> Response:
        headers = [(name, value) for name, value in request.headers if name.lower() != "content-length"]
        answer = server(httpx2.Request("GET", request.url, headers=headers))
        return Response(answer.content, answer.status_code)

    httpserver.expect_request("/api/v1/label/__name__/values").respond_with_handler(handle)
    httpserver.expect_request("/api/v1/query_range").respond_with_handler(handle)
    return server


def tocsin(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not (k.startswith("TOCSIN_") and "__" in k)}
    command = [sys.executable, "-m", "tocsin.cli", "import", "prometheus", *arguments]
    return subprocess.run(command, cwd=cwd, env=clean, capture_output=True, text=True, timeout=120)


def test_into_the_store_and_again(fake: FakePrometheus, httpserver: HTTPServer, tmp_path: Path) -> None:
    first = tocsin(httpserver.url_for(""), *SPAN, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert "XID onsets: 79 2x" in first.stdout
    assert "4 GPUs and 2 MIG instances on 2 hosts" in first.stdout
    assert "100% up to" in first.stderr
    second = tocsin(httpserver.url_for(""), *SPAN, "--json", cwd=tmp_path)
    report = json.loads(second.stdout)
    assert (report["gpus"], report["mig_instances"], report["xids"]) == (4, 2, {"79": 2})
    assert report["unknown"] == ["DCGM_FI_DEV_VGPU_LICENSE_STATUS"]
    assert f"{report['readings']:,} readings" in first.stdout


def test_into_a_file(fake: FakePrometheus, httpserver: HTTPServer, tmp_path: Path) -> None:
    done = tocsin(httpserver.url_for(""), *SPAN, "--to", "past.prom.gz", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    recording = read_recording([tmp_path / "past.prom.gz"])
    assert f"{sum(t.at_ms.size for t in recording.tracks):,} readings in past.prom.gz" in done.stdout


def test_token_headers_and_selector_reach_the_server(
    fake: FakePrometheus, httpserver: HTTPServer, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("s3cret\n")
    options = ("--bearer-token-file", "token", "--header", "X-Scope-OrgID=site", "--match", '{job="dcgm"}')
    done = tocsin(httpserver.url_for(""), *SPAN, *options, "--step", "60s", "--to", "x.prom", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for request in fake.requests:
        assert request.headers["Authorization"] == "Bearer s3cret"
        assert request.headers["X-Scope-OrgID"] == "site"
        asked = request.url.params
        assert 'job="dcgm"' in asked.get("query", asked.get("match[]", ""))
    assert {r.url.params.get("step", "60.000") for r in fake.requests} == {"60.000"}
    assert "s3cret" not in done.stdout + done.stderr


def test_nobody_at_the_url_is_said_at_once(tmp_path: Path) -> None:
    done = tocsin("http://127.0.0.1:1", "--since", "1h", "--to", "x.prom", cwd=tmp_path)
    assert done.returncode == 3
    (line,) = done.stderr.strip().splitlines()
    assert "http://127.0.0.1:1 does not answer" in line
    assert "trying again" not in line
    assert list(tmp_path.glob("x.prom*")) == []


def test_a_retry_is_told_beside_the_summary(fake: FakePrometheus, httpserver: HTTPServer, tmp_path: Path) -> None:
    fake.failures = ["500 being restarted"]
    done = tocsin(httpserver.url_for(""), *SPAN, "--to", "x.prom", "--json", cwd=tmp_path)
    assert json.loads(done.stdout)["readings"] > 0
    assert done.stderr.startswith("HTTP 500 being restarted; trying again in ")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--since", "yesterday"), "--since = 'yesterday': is no time"),
        (("--since", "1d", "--header", "nonsense"), "--header = 'nonsense'"),
        (("--since", "1d", "--bearer-token-file", "nowhere"), "--bearer-token-file = 'nowhere'"),
        (("--since", "1d", "--step", "0s"), "--step = '0s'"),
        (("--since", "1h", "--until", "2h", "--to", "x.prom"), "name an earlier --since or a later --until"),
    ],
)
def test_a_wrong_option_is_one_line(options: tuple[str, ...], said: str, tmp_path: Path) -> None:
    done = tocsin("http://127.0.0.1:9", *options, cwd=tmp_path)
    assert done.returncode == 2
    (line,) = done.stderr.strip().splitlines()
    assert said in line

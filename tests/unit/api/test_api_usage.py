"""Usage over HTTP, by the client and on the command line."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from fastapi.testclient import TestClient

from tocsin.api.app import create_app
from tocsin.cli.main import cli
from tocsin.client.client import Client
from tocsin.config.access import ApiSettings
from tocsin_testing.fake_service import FakeService, serving

DAYS = "start=2026-11-16&end=2026-11-18"


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
def http(service: FakeService) -> TestClient:
    app = create_app(service, ApiSettings())
    return TestClient(app, base_url="http://127.0.0.1", client=("127.0.0.1", 1), raise_server_exceptions=False)


def test_rows_add_up_to_the_total_whatever_is_shown(http: TestClient) -> None:
    for query in ("by=job&limit=2", "by=namespace&by=user", "by=pool", ""):
        found = http.get(f"/v1/usage?{DAYS}&{query}").json()
        for name in ("gpu_hours", "used", "idle", "free", "stranded", "not_seen", "kwh"):
            assert sum(row[name] for row in found["rows"]) == pytest.approx(found["total"][name])
        assert found["total"]["gpu_hours"] == pytest.approx(6 * 48)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/usage?start=yesterday", 400),
        ("/v1/usage?start=2026-11-18T00:00:00Z", 422),
        ("/v1/usage?start=2026-02-31", 400),
        ("/v1/usage?start=2026-11-18&end=2026-11-18", 400),
        ("/v1/usage?start=2025-01-01&end=2026-11-18", 400),
        ("/v1/usage?start=2026-10-01&end=2026-11-18&by=job", 400),
        ("/v1/usage?by=colour", 422),
        ("/v1/usage?by=job&by=user&by=team&by=pool", 422),
        ("/v1/usage?limit=0", 422),
        ("/v1/usage/csv?limit=20000", 422),
        ("/v1/usage/right-size?start=2026-10-01", 400),
    ],
)
def test_bad_questions_are_told(http: TestClient, path: str, status: int) -> None:
    assert http.get(path).status_code == status


def test_csv_has_a_row_for_each_group(http: TestClient) -> None:
    answer = http.get(f"/v1/usage/csv?{DAYS}&by=namespace")
    assert answer.headers["content-type"].startswith("text/csv")
    assert 'filename="tocsin-usage-2026-11-16.csv"' in answer.headers["content-disposition"]
    head, *rows = answer.text.splitlines()
    assert head.startswith("start,end,namespace,held,rest,gpu_hours,used,")
    assert len(rows) == 4


def test_right_size_has_the_evidence(http: TestClient) -> None:
    found = http.get(f"/v1/usage/right-size?{DAYS}").json()
    assert (found["jobs"], found["fitting"], found["needed"]) == (4, 1, 3)
    first = found["rows"][0]
    assert (first["job"], first["team"], first["options"][0]["fit"]) == ("research/notebook", "vision", "card")
    assert first["memory_max"] == 8 * 1024**3


def test_the_client_and_the_command_get_what_is_served(service: FakeService) -> None:
    with serving(service) as url, Client(url) as client:
        assert client.usage("2026-11-16", "2026-11-18", ["team"]).rows[0].gpu_hours == pytest.approx(189)
        assert client.right_size("2026-11-16").fitting == 1
        run = CliRunner()
        told = ["usage", "--api-url", url, "--from", "2026-11-16", "--to", "2026-11-18"]
        text = run.invoke(cli, told)
        assert text.exit_code == 0, text.output
        assert "research" in text.output
        assert "total" in text.output
        as_json = run.invoke(cli, [*told, "--by", "job", "--json"])
        assert json.loads(as_json.stdout)["groups"] == 5
        as_csv = run.invoke(cli, [*told, "--csv"])
        assert as_csv.stdout.splitlines()[0].startswith("start,end,namespace")
        judged = run.invoke(cli, [*told, "--right-size"])
        assert "a NVIDIA L4 would do" in judged.output
        assert run.invoke(cli, [*told, "--csv", "--json"]).exit_code == 2

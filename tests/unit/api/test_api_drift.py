"""Versions that differ, over HTTP, by the client and on the command line."""

from __future__ import annotations

import json
from typing import get_args

import pytest
from click.testing import CliRunner, Result
from fastapi.testclient import TestClient

from tocsin.api.app import create_app
from tocsin.cli.main import cli
from tocsin.client.client import Client
from tocsin.client.models_drift import ComponentKey
from tocsin.config.access import ApiSettings
from tocsin.domain.versions import COMPONENTS, Standing
from tocsin_testing.fake_service import FakeService, serving


def said(*words: str) -> Result:
    return CliRunner().invoke(cli, ["drift", *words], catch_exceptions=False)


def test_a_request_may_name_what_has_a_version() -> None:
    assert get_args(ComponentKey) == tuple(COMPONENTS)


def test_the_client_gets_what_was_asked_for() -> None:
    with serving(FakeService()) as url, Client(url) as client:
        whole, part = client.drift(), client.drift("training", ["driver", "kernel"])
    assert [group.pool for group in whole.groups] == ["training", "inference", "lab"]
    assert [[one.component for one in group.components] for group in part.groups] == [["driver", "kernel"]]
    driver = part.groups[0].components[0]
    assert (driver.standing, driver.told) == (Standing.DRIFT, 16)
    assert [(one.version, one.odd, one.names) for one in driver.versions if one.odd] == [
        ("550.163.01", True, ["train-11"])
    ]
    assert sum(one.share for one in driver.versions) == pytest.approx(1.0)


def test_the_command_says_it_and_checks_it() -> None:
    with serving(FakeService()) as url:
        plain, checked = said("--api-url", url), said("--check", "--api-url", url)
        sound = said("--check", "--pool", "lab", "--api-url", url)
        document = json.loads(said("--json", "--component", "driver", "--api-url", url).output)
        wrong = CliRunner().invoke(cli, ["drift", "--component", "drivers", "--api-url", url])
    assert (plain.exit_code, checked.exit_code, sound.exit_code) == (0, 1, 0)
    assert "550.163.01 on 1 (train-11)" in plain.output
    assert {one["component"] for group in document["groups"] for one in group["components"]} == {"driver"}
    assert document["drifting"] == 1
    assert wrong.exit_code == 2


@pytest.mark.parametrize(
    ("query", "status"), [("pool=" + "x" * 201, 422), ("nonsense=1", 422), ("&".join(["component=driver"] * 33), 422)]
)
def test_what_is_out_of_bounds_is_refused(query: str, status: int) -> None:
    app = create_app(FakeService(), ApiSettings())
    http = TestClient(app, base_url="http://127.0.0.1", client=("127.0.0.1", 1), raise_server_exceptions=False)
    assert http.get(f"/v1/drift?{query}").status_code == status

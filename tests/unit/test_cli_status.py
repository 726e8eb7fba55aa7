"""`tocsin status` over the real server and the fake fleet."""

from __future__ import annotations

import json

from click.testing import CliRunner

from tocsin.cli.main import cli
from tocsin.client.client import Client
from tocsin_testing.fake_service import FakeService, serving


def test_it_says_how_things_are_what_is_worst_and_what_waits() -> None:
    with serving(FakeService()) as url, Client(url) as client:
        told = CliRunner().invoke(cli, ["status", "--api-url", url], catch_exceptions=False).output
        summary, incidents = client.summary(), client.incidents()
        waiting = [decision for decision in client.decisions() if decision.approvable]
    assert f"{summary.gpus} GPUs on {summary.hosts} hosts (simulated): " in told
    assert f"mode {summary.mode}" in told
    assert f": {max(incidents, key=lambda one: one.root.severity.rank).sentence}" in told
    assert f"waiting for a person ({len(waiting)};" in told
    assert f"  {waiting[0].id}  {waiting[0].sentence}" in told
    assert "{" not in told


def test_json_is_the_whole_summary() -> None:
    with serving(FakeService()) as url, Client(url) as client:
        told = CliRunner().invoke(cli, ["status", "--json", "--api-url", url], catch_exceptions=False).output
        assert json.loads(told).keys() == client.summary().model_dump(mode="json").keys()

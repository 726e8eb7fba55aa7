"""A GPU that was put into another host: what an operator is told, and the way out, over HTTP and by the command."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from tocsin.api.app import create_app
from tocsin.api.server import ApiServer
from tocsin.cli.main import cli
from tocsin.client.client import Client
from tocsin.client.errors import BadRequest
from tocsin.config.settings import Settings
from tocsin.domain.clock import MINUTE, ManualClock
from tocsin.queries.service import BrainService
from tocsin.runtime.brain.assembly import RunningBrain, open_brain
from tocsin_testing.builders import T0

OPERATOR, NODE_A, NODE_B = (f"the-secret-of-{who}-0123456789" for who in ("an-operator", "node-a", "node-b"))
UUID = "GPU-moved"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(T0)


@pytest.fixture
def running(tmp_path: Path, clock: ManualClock) -> Iterator[RunningBrain]:
    agents = [{"name": host, "role": "agent", "secret": secret, "host": host} for host, secret in
              (("node-a", NODE_A), ("node-b", NODE_B))]  # fmt: skip
    tokens = [{"name": "op", "role": "operator", "secret": OPERATOR}, *agents]
    settings = Settings.model_validate(
        {
            "store": {"kind": "memory"},
            "journal": {"path": tmp_path / "journal.db"},
            "forecast": {"worker": False, "models": tmp_path / "models"},
            "api": {"tokens": tokens},
        }
    )
    made = open_brain(settings, clock)
    yield made
    made.stop()


@pytest.fixture
def url(running: RunningBrain) -> Iterator[str]:
    settings = running.brain.settings.api
    server = ApiServer(create_app(BrainService(running.brain), settings, running.brain.clock), settings=settings)
    server.start()
    yield server.url
    server.stop()


def send(url: str, secret: str, host: str, clock: ManualClock, uuid: str = UUID) -> None:
    with Client(url, secret) as client:
        client.write(f"gpu,gpu_uuid={uuid},host={host} power_watts=90 {clock.now_ms()}")


def release(url: str, *what: str) -> dict[str, object]:
    command = ["release", *what, "--reason", "moved", "--api-url", url, "--token", OPERATOR, "--json"]
    done = CliRunner().invoke(cli, command, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_an_operator_is_told_and_releases_it(url: str, running: RunningBrain, clock: ManualClock) -> None:
    send(url, NODE_B, "node-b", clock)
    clock.advance(MINUTE)
    with pytest.raises(BadRequest, match="refused"):
        send(url, NODE_A, "node-a", clock)
    running.brain.tick()
    (finding,) = [one for one in running.brain.active if one.rule == "duplicate_identity"]
    assert finding.subject.name == "node-a"
    assert f"run tocsin release gpu {UUID} once node-b is silent about it" in finding.sentence
    early = release(url, "gpu", UUID)
    assert (early["given_up"], early["still_reported"]) == (0, 1)
    with pytest.raises(BadRequest, match="refused"):
        send(url, NODE_A, "node-a", clock)
    clock.advance(5 * MINUTE)
    assert release(url, "gpu", UUID)["given_up"] == 1
    send(url, NODE_A, "node-a", clock)
    assert {(one.gpu.uuid, one.gpu.host) for one in running.brain.memory.latest()} == {(UUID, "node-a")}


def test_a_host_of_a_new_name_is_released_whole(url: str, running: RunningBrain, clock: ManualClock) -> None:
    for number in range(3):
        send(url, NODE_B, "node-b", clock, f"GPU-{number}")
    clock.advance(5 * MINUTE)
    assert release(url, "host", "node-b")["given_up"] == 3
    for number in range(3):
        send(url, NODE_A, "node-a", clock, f"GPU-{number}")
    assert {one.gpu.host for one in running.brain.memory.latest()} == {"node-a"}


def test_it_passes_on_by_itself_where_its_host_reports_others(
    url: str, running: RunningBrain, clock: ManualClock
) -> None:
    send(url, NODE_B, "node-b", clock)
    for _ in range(11):
        clock.advance(MINUTE)
        send(url, NODE_B, "node-b", clock, "GPU-stays")
    send(url, NODE_A, "node-a", clock)
    running.brain.tick()
    (finding,) = [one for one in running.brain.active if one.rule == "duplicate_identity"]
    assert f"node-a reports {UUID}, which node-b reported before: taken over" in finding.sentence
    assert {one.gpu.uuid: one.gpu.host for one in running.brain.memory.latest()}[UUID] == "node-a"

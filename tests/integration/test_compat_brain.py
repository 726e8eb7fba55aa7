"""A brain over the store and the journal that a brain of commit 2bd2118 left: it knows the same, repeats nothing and
goes on."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from tocsin.actions.notifications.channel import Delivery
from tocsin.api.app import create_app
from tocsin.api.server import ApiServer
from tocsin.cli.main import cli
from tocsin.client.wire import to_json
from tocsin.config.settings import Settings
from tocsin.domain.annotation import Annotation
from tocsin.domain.clock import MINUTE, ManualClock
from tocsin.domain.entry import EntryKind
from tocsin.journal.files import read_entries
from tocsin.journal.verify import verify
from tocsin.queries.service import BrainService
from tocsin.runtime.brain.annotations import Annotations
from tocsin.runtime.brain.assembly import RunningBrain, open_brain
from tocsin.telemetry.metrics import OwnMetrics
from tocsin_testing.compat import FOLDER, WHEEL, expected, install_wheel, old_environment, settings_of, unpack, within


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return unpack(tmp_path) / "brain"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(expected()["brain"]["now_ms"])


@pytest.fixture
def running(folder: Path, clock: ManualClock) -> Iterator[RunningBrain]:
    made = open_brain(settings_of(folder), clock)
    yield made
    made.stop()
    assert verify(folder / "journal.db").ok


def test_it_answers_as_the_old_one_did(running: RunningBrain) -> None:
    service, wanted = BrainService(running.brain), expected()["brain"]
    assert running.brain.journal.epoch == wanted["epoch"]
    assert [one.uuid for one in running.brain.gpus] == wanted["gpu_uuids"]
    decisions = to_json(service.decisions(1000))
    for one, found in zip(wanted["decisions"], decisions, strict=True):
        assert within(one, found), (one, found)
    board = json.loads(service.scoreboard().model_dump_json())
    # What has come true in a window that is not over yet was counted at once, and is still to be judged now.
    wanted["scoreboard"]["confirmed"] = 0
    for rule in wanted["scoreboard"]["rules"]:
        rule["pending"] += rule["confirmed"]
        rule["confirmed"] = 0
    # Of what held a decision the old one knew the last alone; now all that ever did is counted.
    for old, new in zip((wanted["scoreboard"], *wanted["scoreboard"]["rules"]), (board, *board["rules"]), strict=True):
        held = old.pop("held_by")
        assert all(new["held_by"][guard] >= count for guard, count in held.items())
    assert within(wanted["scoreboard"], board), board
    for uuid, one in wanted["gpus"].items():
        assert within(one, json.loads(service.gpu(uuid).model_dump_json())), uuid
    for one in decisions:
        assert service.story(one["id"]).decision.id == one["id"]


def test_it_goes_on_and_does_nothing_twice(running: RunningBrain, folder: Path, clock: ManualClock) -> None:
    path = folder / "journal.db"
    before = [entry.payload["key"] for entry in read_entries(path, kinds=[EntryKind.EXECUTION_STARTED])]
    known = {entry.payload["id"] for entry in read_entries(path, kinds=[EntryKind.DECISION])}
    for _ in range(5):
        clock.advance(MINUTE)
        running.brain.tick()
    assert known <= {one.decision.id for one in running.brain.statuses()}
    started = Counter(entry.payload["key"] for entry in read_entries(path, kinds=[EntryKind.EXECUTION_STARTED]))
    assert set(before) <= started.keys()
    assert max(started.values()) == 1
    opened = Counter(entry.payload["id"] for entry in read_entries(path, kinds=[EntryKind.FINDING_OPENED]))
    assert max(opened.values()) == 1


class Shown:
    """A place for annotations, named as Grafana's."""

    name = "grafana"

    def __init__(self) -> None:
        self.keys: list[str] = []

    def put(self, mark: Annotation, doubtful: bool) -> Delivery:
        self.keys.append(mark.key)
        return Delivery(True, "written", 1)

    def close(self) -> None:
        """Nothing is open."""


def test_annotations_go_on_where_they_were(running: RunningBrain) -> None:
    place = Shown()
    Annotations(running.brain.journal, [place], ManualClock(0), OwnMetrics(), lambda _: None, lambda _: None).tick()
    assert place.keys == expected()["brain"]["annotated"]


# ------------------------------------------------------------------------------------------------ who asks it


@pytest.fixture
def served(running: RunningBrain, folder: Path) -> Iterator[str]:
    """The URL of its API, open to this machine."""
    service, settings = BrainService(running.brain), settings_of(folder).api
    running.brain.tick()
    server = ApiServer(create_app(service, settings, running.brain.clock), settings=settings)
    server.start()
    yield server.url
    server.stop()


def test_an_old_client_gets_every_answer(served: str, tmp_path: Path) -> None:
    wheel = install_wheel(tmp_path / "wheel")
    command = [sys.executable, str(FOLDER / "old_client.py"), served]
    done = subprocess.run(command, env=old_environment(wheel), capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-4000:]
    found, wanted = json.loads(done.stdout), expected()["brain"]
    kept = {one["id"]: one for one in found["decisions"]}
    for one in wanted["decisions"]:
        same = ("rule", "subject", "action", "sentence", "findings", "parameters", "simulated")
        assert {name: kept[one["id"]][name] for name in same} == {name: one[name] for name in same}
    assert {one["uuid"] for one in found["gpus"]} == set(wanted["gpu_uuids"])
    assert found["summary"]["gpus"] == len(wanted["gpu_uuids"])
    assert found["verify_journal"]["ok"]
    assert found["findings"]
    assert found["incidents"]
    assert (found["paused"]["paused"], found["resumed"]["paused"]) == (True, False)
    assert found["export"] > expected()["journals"]["brain/journal.db"]["events"]


# ------------------------------------------------------------------------------------------------ its settings


def test_every_setting_is_known_and_means_the_same() -> None:
    document = json.loads((FOLDER / "settings.json").read_text("utf-8"))
    now = Settings.model_validate(document).model_dump(mode="json")
    assert within(document, now)
    assert within(document, Settings().model_dump(mode="json")), "a default has changed"


def test_its_rules_are_still_rules(tmp_path: Path) -> None:
    with zipfile.ZipFile(WHEEL) as wheel:
        (tmp_path / "rules.toml").write_bytes(wheel.read("tocsin/rules/defaults.toml"))
    run = CliRunner().invoke(cli, ["rules", "check", str(tmp_path / "rules.toml")])
    assert run.exit_code == 0, run.output


def test_its_models_are_listed(tmp_path: Path) -> None:
    config = tmp_path / "tocsin.toml"
    config.write_text(f'[forecast]\nmodels = "{unpack(tmp_path) / "models"}"\n')
    run = CliRunner().invoke(cli, ["--config", str(config), "models", "list", "--json"])
    assert run.exit_code == 0, run.output
    assert {"one", "two"} <= {row["version"] for row in json.loads(run.stdout)}

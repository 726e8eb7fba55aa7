"""The records of rules over a running brain: API, command and metrics."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from prometheus_client import CollectorRegistry

from tocsin.cli.main import cli
from tocsin.config.settings import Settings
from tocsin.domain.clock import ManualClock
from tocsin.domain.decision import Mode
from tocsin.domain.errors import InputError
from tocsin.queries.service import BrainService
from tocsin.runtime.brain.assembly import RunningBrain, open_brain
from tocsin.runtime.brain.metrics_page import BrainPage
from tocsin_testing.builders import T0
from tocsin_testing.fake_service import FakeService, serving

RULE = """
[[rules]]
name = "hot"
severity = "critical"
category = "thermal"
action = "throttle"
mode = "act"
alert = "{where}: {value}"
all = [{kind = "threshold", metric = "gpu_temperature_celsius", above = 85}]
"""


def opened(folder: Path, **actions: object) -> RunningBrain:
    (folder / "rules.toml").write_text(RULE)
    settings = Settings.model_validate(
        {
            "store": {"path": folder / "store.db"},
            "journal": {"path": folder / "journal.db"},
            "rules": {"path": folder / "rules.toml"},
            "forecast": {"worker": False, "models": folder / "models"},
            "actions": {"mode": "act", **actions},
        }
    )
    return open_brain(settings, ManualClock(T0))


@pytest.fixture
def brain(tmp_path: Path) -> Iterator[RunningBrain]:
    made = opened(tmp_path)
    yield made
    made.stop()


def test_a_rule_that_is_set_to_act_is_held_to_propose_and_says_why(brain: RunningBrain) -> None:
    one = next(one for one in BrainService(brain.brain).rule_records() if one.rule == "hot")
    assert (one.mode_set, one.mode, one.waived, one.since) == (Mode.ACT, Mode.PROPOSE, False, None)
    assert one.lacking == "Rule hot has 0 of 20 settled cases."


def test_the_metric_says_whether_it_acts(brain: RunningBrain, tmp_path: Path) -> None:
    registry = CollectorRegistry()
    registry.register(BrainPage(brain.brain))
    assert registry.get_sample_value("tocsin_rule_acts", {"rule": "hot"}) == 0
    (tmp_path / "other").mkdir()
    waived = opened(tmp_path / "other", earn_waived=["hot"])
    registry = CollectorRegistry()
    registry.register(BrainPage(waived.brain))
    assert registry.get_sample_value("tocsin_rule_acts", {"rule": "hot"}) == 1
    assert [one.waived for one in BrainService(waived.brain).rule_records() if one.rule == "hot"] == [True]
    waived.stop()


def test_a_waiver_for_a_rule_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no rule has this name"):
        opened(tmp_path, earn_waived=["hto"])


def test_the_command_prints_every_rule() -> None:
    with serving(FakeService()) as url:
        plain = CliRunner().invoke(cli, ["rules", "record", "--api-url", url])
        coded = CliRunner().invoke(cli, ["rules", "record", "--api-url", url, "--json"])
    assert plain.exit_code == coded.exit_code == 0, plain.output
    said = (
        "xid-fatal (simulated)\tpropose (set to act)\tright 20 of 21\tgoal reached 20 of 20\tRule xid-fatal has right"
    )
    assert said in plain.stdout
    assert [one["mode"] for one in json.loads(coded.stdout)] == ["propose", "act", "propose"]


def test_config_check_is_loud_about_a_waiver(tmp_path: Path) -> None:
    file = tmp_path / "brain.toml"
    file.write_text('[actions]\nearn_waived = ["*"]\n')
    checked = CliRunner().invoke(cli, ["config", "check", str(file)])
    assert checked.exit_code == 0
    assert "warning: actions.earn_waived: every rule may act without approval and without a record" in checked.stderr
    file.write_text('[actions]\nearn_waived = ["nobody"]\n')
    assert CliRunner().invoke(cli, ["config", "check", str(file)]).exit_code != 0

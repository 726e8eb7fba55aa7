"""A recording through the running brain: what people are told, and that nothing leaves the process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tocsin.cli.main import cli
from tocsin.config.settings import Settings
from tocsin.runtime.live_replay import LiveReport, live_settings, run_live_replay

DATA = Path(__file__).parents[1] / "data" / "gwdg"
EXCERPT, LOG = DATA / "excerpt_tidy.csv.bz2", DATA / "incident_events.csv"
SELDOM = Settings.model_validate({"forecast": {"every_seconds": 6 * 3600}})
"""Forecasts of the service are judged elsewhere; every ten minutes they would take most of the time here."""


@pytest.fixture(scope="module")
def report() -> LiveReport:
    return run_live_replay([EXCERPT], LOG, SELDOM, draws=50)


def test_what_people_were_told(report: LiveReport) -> None:
    told = [(one.rule, one.nodes) for one in report.score.said.statements]
    assert told[0] == ("xid_bus", ("node_df3724dfcace",))
    assert report.evaluations == 360
    assert report.predictions > 0
    rules = [rule for rule, _ in told]
    assert rules.count("xid_bus") == 1
    assert "metric_family_lost" not in rules, "what a GPU off the bus no longer tells is of the same cause"
    alarm = report.score.said.alarm["node_df3724dfcace"]
    assert alarm[0] == report.score.said.statements[0].at_ms


def test_both_clocks(report: LiveReport) -> None:
    document = json.loads(json.dumps(report.as_json()))
    assert document["event"]["events"] == 1
    assert (document["event"]["warned"], document["event"]["announced"]) == (0, 1)
    (incident,) = document["ticket"]["incidents"]
    assert incident["lead_hours"] == 38.83
    assert document["ticket"]["held"] is False, "one start in two and a half node-days is above the budget"
    assert "event clock: 1 hardware event of nodes" in report.as_text()


def test_two_runs_say_the_same(report: LiveReport) -> None:
    again = run_live_replay([EXCERPT], LOG, SELDOM, draws=50)
    assert again.score.said.statements == report.score.said.statements
    assert again.as_json()["ticket"] == report.as_json()["ticket"]


def test_nobody_is_spoken_with(tmp_path: Path) -> None:
    site = Settings.model_validate(
        {
            "webhook": {"url": "http://127.0.0.1:9/hook"},
            "actions": {"mode": "act", "executors": ["kubernetes"]},
            "store": {"kind": "influxdb"},
            "notify": {"channels": [{"name": "s", "kind": "slack", "url": "http://127.0.0.1:9/slack"}]},
            "forecast": {"alarm_share": 0.02, "retrain_hours": 5},
        }
    )
    own = live_settings(site, tmp_path)
    assert own.webhook == Settings().webhook
    assert own.notify.channels == []
    assert own.actions == Settings().actions
    assert (own.store.kind, own.store.path.parent, own.journal.path.parent) == ("sqlite", tmp_path, tmp_path)
    assert (own.forecast.alarm_share, own.forecast.retrain_hours, own.forecast.worker) == (0.02, 0.0, False)


def test_the_command(tmp_path: Path) -> None:
    config = tmp_path / "tocsin.toml"
    config.write_text("[forecast]\nevery_seconds = 1000000\n")
    told = CliRunner().invoke(cli, ["--config", str(config), "replay", "--live", str(EXCERPT), "--json"])
    assert told.exit_code == 0, told.output
    document = json.loads(told.stdout)
    assert document["ticket"] is None
    assert document["statements"][0]["rule"] == "xid_bus"

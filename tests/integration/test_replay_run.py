"""`tocsin replay` from files to figures, on an excerpt and on the whole of the real data."""

from __future__ import annotations

import bz2
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tocsin.cli.main import cli
from tocsin.domain.clock import SystemClock
from tocsin.domain.errors import InputError
from tocsin.domain.finding import Category, Severity
from tocsin.rules.load import load_rules
from tocsin.runtime.replay import run_replay
from tocsin_testing import needs

FOLDER = Path(__file__).parents[1] / "data" / "gwdg"
EXCERPT, LOG = FOLDER / "excerpt_tidy.csv.bz2", FOLDER / "incident_events.csv"


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    made: dict[str, Any] = json.loads(json.dumps(run_replay([EXCERPT], LOG, load_rules(None), draws=50).as_json()))
    return made


def test_the_shape_is_the_documented_one(report: dict[str, Any]) -> None:
    assert report["clock"] == "ticket"
    assert {"node", "incident_date", "first_alert", "rule", "lead_hours"} <= set(report["incidents"][0])
    assert {"count", "followed", "precision", "per_node_day"} <= set(report["episodes"])
    assert set(report["null"]) == {"always_on", "coin", "shifts"}
    assert report["rows"] == 5346
    assert report["rows_per_second"] > 0
    assert report["seconds"] > 0
    assert "flattered" in report["bias"]
    assert report["problems"] == []


def test_the_incident_of_the_excerpt_is_found_by_its_xid(report: dict[str, Any]) -> None:
    (incident,) = report["incidents"]
    assert (incident["node"], incident["incident_date"]) == ("node_df3724dfcace", "2025-03-21")
    assert incident["first_alert"] == "2025-03-19T09:10:00.000Z"
    assert incident["lead_hours"] == 38.83
    assert report["episodes"] | {"node_days": 0} == {
        "count": 1,
        "followed": 1,
        "precision": 1.0,
        "per_node_day": 0.4,
        "node_days": 0,
    }
    rule = next(rule for rule in load_rules(None).rules if rule.name == incident["rule"])
    assert (rule.table.category, rule.table.severity) == (Category.HARDWARE, Severity.CRITICAL)


def test_one_incident_in_a_short_recording_is_no_proof_of_skill(report: dict[str, Any]) -> None:
    assert report["skill"]["above"] is False


def test_a_second_run_says_the_same() -> None:
    first, second = (run_replay([EXCERPT], LOG, load_rules(None), draws=20) for _ in range(2))
    changing = {"seconds", "rows_per_second"}
    assert {k: v for k, v in first.as_json().items() if k not in changing} == {
        k: v for k, v in second.as_json().items() if k not in changing
    }


def test_without_a_log_only_findings_are_reported() -> None:
    report = run_replay([EXCERPT], None, load_rules(None))
    document = report.as_json()
    assert (document["incidents"], document["episodes"], document["null"]) == ([], None, None)
    assert sum(report.findings.values()) > 0
    assert "findings opened" in report.as_text()


def test_the_text_has_the_same_figures() -> None:
    text = run_replay([EXCERPT], LOG, load_rules(None), draws=20).as_text()
    assert "node_df3724dfcace        2025-03-21 2025-03-19 09:10       38.8 h" in text
    assert "1 of 1 found; 1 starts, 1 followed: precision 1.00" in text
    assert "flattered" in text


def test_damage_costs_only_itself(tmp_path: Path) -> None:
    whole = EXCERPT.read_bytes()
    cut = tmp_path / "cut.csv.bz2"
    cut.write_bytes(whole + bz2.compress(b"2025-03-19 12:00:00,n\n" * 9000)[:-20])
    bad = tmp_path / "bad.csv"
    bad.write_text("timeUtc,node,metric,gpu,uuid\n")
    report = run_replay([bad, cut], LOG, load_rules(None), draws=20)
    assert report.ticket is not None
    assert report.ticket.score.count() == 1
    assert [sum(word in problem for problem in report.problems) for word in ("bz2 stream ends", "column value")] == [
        1,
        1,
    ]
    with pytest.raises(InputError, match="column value is missing"):
        run_replay([bad], LOG, load_rules(None))


def test_the_command_prints_one_document() -> None:
    done = CliRunner().invoke(cli, ["replay", str(EXCERPT), "--incidents", str(LOG), "--json"])
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert document["incidents"][0]["lead_hours"] == 38.83


PEAK = """
import os, resource, sys
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from pathlib import Path
from tocsin.rules.load import load_rules
from tocsin.runtime.replay import run_replay
import json
report = run_replay([Path(p) for p in sys.argv[2:]], Path(sys.argv[1]), load_rules(None)).as_json()
report["peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps(report))
"""


@pytest.fixture(scope="module")
def real() -> dict[str, Any]:
    """All windows, in a process of its own that may use one processor."""
    log = needs.data("gwdg", "incident_events.csv")
    files = sorted(needs.data("gwdg", "telemetry").glob("*.bz2"))
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(log), *map(str, files)],
        capture_output=True,
        check=True,
    )
    made: dict[str, Any] = json.loads(done.stdout)
    return made


@pytest.mark.data
def test_real_incidents_are_found_in_time(real: dict[str, Any]) -> None:
    leads = [one["lead_hours"] for one in real["incidents"] if one["lead_hours"] is not None]
    assert len(real["incidents"]) == 7
    assert len(leads) >= 6
    assert sum(lead >= 24 for lead in leads) >= 6
    assert sum(lead >= 48 for lead in leads) >= 3
    assert real["episodes"]["precision"] >= 0.85
    assert real["episodes"]["per_node_day"] <= 0.2


@pytest.mark.data
def test_no_start_is_needed_twice(real: dict[str, Any]) -> None:
    fresh = [one["fresh_lead_hours"] for one in real["incidents"] if one["fresh_lead_hours"] is not None]
    assert sum(lead >= 24 for lead in fresh) >= 6
    assert sum(lead >= 48 for lead in fresh) >= 3


@pytest.mark.data
def test_real_alerts_beat_their_own_shifts(real: dict[str, Any]) -> None:
    assert real["null"]["shifts"]["draws"] == 1000
    assert real["skill"]["figure"] == "fresh_24h"
    assert "bar" in real["skill"]["figures_above"]
    assert real["null"]["shifts"]["bar"]["reached"] < 0.05
    assert real["skill"]["above"]


@pytest.mark.data
def test_real_windows_fit_in_memory(real: dict[str, Any]) -> None:
    assert real["rows"] > 7_900_000
    assert real["peak_bytes"] < 800 * 1024 * 1024
    assert real["problems"] == []


@pytest.mark.data
def test_a_replay_takes_at_most_five_times_the_splitting_of_lines(real: dict[str, Any]) -> None:
    """The whole of it, rules and null alerts included, against expanding one window and splitting its lines."""
    path = min(needs.data("gwdg", "telemetry").glob("*.bz2"), key=lambda p: p.stat().st_size)
    clock = SystemClock()
    begun = clock.monotonic()
    with bz2.open(path, "rt") as file:
        rows = sum(1 for line in file if line.split(","))
    assert real["rows_per_second"] > 0.2 * rows / (clock.monotonic() - begun)

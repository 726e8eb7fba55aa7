"""`tocsin replay` from files to figures, on an excerpt and on the whole of the real data."""

from __future__ import annotations

import bz2
import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tocsin.cli.main import cli
from tocsin.domain.clock import SystemClock, to_iso
from tocsin.domain.errors import InputError
from tocsin.domain.finding import Category, Severity
from tocsin.forecaster.evaluation.ticket_clock import read_incidents
from tocsin.offline.replay import SHOWN_OPENINGS, run_replay
from tocsin.rules.load import load_rules
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


def test_every_opening_says_when_where_and_what() -> None:
    report = run_replay([EXCERPT], None, load_rules(None))
    document: dict[str, Any] = json.loads(json.dumps(report.as_json()))
    openings = document["openings"]
    assert Counter(one["rule"] for one in openings) == document["findings"]
    assert [one["at"] for one in openings] == sorted(one["at"] for one in openings)
    xids = [one for one in openings if one["rule"] == "xid_bus"]
    assert [(one["host"], one["gpu"], one["at"]) for one in xids] == [
        ("node_df3724dfcace", "gpu_352ccae60841", "2025-03-19T09:10:00.000Z"),
        ("node_df3724dfcace", "gpu_8c09343a012d", "2025-03-19T09:10:00.000Z"),
    ]
    assert xids[0]["sentence"].startswith("node_df3724dfcace GPU 1: XID 79")
    pools = [one for one in openings if one["rule"] == "pool_underused"]
    assert {(one["host"], one["gpu"]) for one in pools} == {(None, None)}
    line = next(line for line in report.as_text().splitlines() if "gpu_352ccae60841  xid_bus" in line)
    assert line.startswith("2025-03-19 09:10  node_df3724dfcace  gpu_352ccae60841  xid_bus")
    assert line.endswith(xids[0]["sentence"])


def test_the_text_shows_the_first_openings_and_counts_the_rest() -> None:
    report = run_replay([EXCERPT], None, load_rules(None))
    assert " more (see --json)" not in report.as_text()
    one = report.openings[-1]
    longer = replace(report, openings=(*report.openings[:1] * SHOWN_OPENINGS, one, one)).as_text()
    assert report.openings[0].sentence in longer
    assert one.sentence not in longer
    assert longer.endswith("and 2 more (see --json)\n")


def test_one_of_a_thing_is_not_many() -> None:
    report = replace(run_replay([EXCERPT], None, load_rules(None)), rows=1, gpus=1, readings=1, events=1, seconds=1.0)
    assert report.as_text().startswith("1 line in 1.0 s (1/s): 1 GPU, 1 reading, 1 XID transition\n")


def test_a_log_that_cannot_be_used_is_said_before_the_recording_is_read(tmp_path: Path) -> None:
    log = tmp_path / "incidents.csv"
    log.write_text("node,day\nn1,2025-03-21\n")
    with pytest.raises(InputError, match="column incidentDate is missing"):
        run_replay([tmp_path / "missing.csv"], log, load_rules(None))


def test_incidents_with_too_little_telemetry_before_them_are_told(tmp_path: Path) -> None:
    log = tmp_path / "incidents.csv"
    log.write_text("node,incidentDate\nnode_df3724dfcace,2024-01-01\n")
    told = run_replay([EXCERPT], log, load_rules(None)).as_text()
    assert "1 incident not scored: telemetry at fewer than 100 instants of the 48 h before" in told


def test_the_log_that_the_documentation_shows_is_understood(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "replay.md").read_text(encoding="utf-8")
    lines = [line.strip() for line in text.splitlines()]
    start = lines.index("node,incidentDate,category")
    log = tmp_path / "incidents.csv"
    log.write_text("\n".join(lines[start : start + 3]) + "\n")
    found = read_incidents(log)
    assert found.problems == []
    assert [(one.node, to_iso(one.day_ms)[:10]) for one in found.incidents] == [
        ("node_df3724dfcace", "2025-03-21"),
        ("node_df3724dfcace", "2025-04-02"),
    ]


@pytest.mark.parametrize(
    "ending", ["", ".csv", ".csv.gz", ".csv.bz2", ".prom", ".prom.gz", ".prom.bz2", ".metrics", ".gz"]
)
def test_a_file_that_is_not_there_is_bad_input(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"past{ending}"
    error = CliRunner().invoke(cli, ["replay", str(path)]).exception
    assert isinstance(error, InputError), error
    assert (error.field, error.value) == ("path", str(path))
    assert (error.problem, error.remedy) == ("cannot be read: No such file or directory", "name a readable file")


def test_the_text_has_the_same_figures() -> None:
    text = run_replay([EXCERPT], LOG, load_rules(None), draws=20).as_text()
    assert "node_df3724dfcace        2025-03-21 2025-03-19 09:10       38.8 h" in text
    assert "1 of 1 found; 1 start, 1 followed: precision 1.00" in text
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
import os, re, sys
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from pathlib import Path
from tocsin.rules.load import load_rules
from tocsin.offline.replay import run_replay
import json
report = run_replay([Path(p) for p in sys.argv[2:]], Path(sys.argv[1]), load_rules(None)).as_json()
# Not ru_maxrss: exec hands the parent's peak on to its child there.
report["peak_bytes"] = int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024
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

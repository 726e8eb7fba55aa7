"""The command line as an operator types it: exit codes, one-line errors, JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tocsin.domain.clock import ManualClock
from tocsin.domain.entry import EntryKind
from tocsin.journal.journal import Journal
from tocsin_testing.builders import T0


def tocsin(*arguments: str, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the command in `cwd` with no settings but those in `environ`."""
    clean = {k: v for k, v in os.environ.items() if not (k.startswith("TOCSIN_") and "__" in k)}
    command = [sys.executable, "-m", "tocsin.cli", *arguments]
    return subprocess.run(command, cwd=cwd, env=clean | environ, capture_output=True, text=True, timeout=120)


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    return lines[0]


def test_config_check_says_ok_or_names_the_key(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.toml", tmp_path / "bad.toml"
    good.write_text('[agent]\npool = "training"\n')
    bad.write_text("[agent]\nintervall_seconds = 5\n")
    assert tocsin("config", "check", str(good), cwd=tmp_path).stdout.startswith("ok: ")
    done = tocsin("config", "check", str(bad), cwd=tmp_path)
    assert done.returncode == 2
    assert one_line(done) == (
        f"tocsin: agent.intervall_seconds = 5: unknown key in {bad}; did you mean interval_seconds?"
    )


def test_config_show_hides_secrets(tmp_path: Path) -> None:
    done = tocsin("config", "show", cwd=tmp_path, TOCSIN_WEBHOOK__SECRET="very-secret-indeed")
    assert json.loads(done.stdout)["webhook"]["secret"] == "**********"
    assert "very-secret" not in done.stdout + done.stderr


def test_a_rule_with_an_unknown_metric_is_named_with_the_nearest(tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_text(
        '[[rules]]\nname = "hot"\nseverity = "warning"\ncategory = "thermal"\naction = "notify"\nalert = "hot"\n'
        'all = [{kind = "threshold", metric = "gpu_temprature_celsius", above = 85}]\n'
    )
    done = tocsin("rules", "check", str(path), cwd=tmp_path)
    assert done.returncode == 2
    for word in ("hot", "gpu_temprature_celsius", "gpu_temperature_celsius"):
        assert word in one_line(done)


def test_rules_list_has_the_shipped_rules(tmp_path: Path) -> None:
    listed = tocsin("rules", "list", cwd=tmp_path).stdout.splitlines()
    assert len(listed) > 20
    assert all(line.split("\t")[4] == "observe" for line in listed)


def test_store_init_prune_backup_restore(tmp_path: Path) -> None:
    assert tocsin("store", "init", cwd=tmp_path).stdout == "ok: sqlite is ready\n"
    assert tocsin("store", "init", cwd=tmp_path).returncode == 0
    assert tocsin("store", "prune", cwd=tmp_path).stdout.startswith("ok: 0 rows")
    assert tocsin("store", "backup", "copy.db", cwd=tmp_path).stdout == "ok: copy.db\n"
    assert tocsin("store", "restore", "copy.db", cwd=tmp_path).returncode == 0
    assert tocsin("store", "restore", "none.db", cwd=tmp_path).returncode == 2


def test_journal_verify_and_show(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = Journal.open(path, ManualClock(T0))
    journal.append(EntryKind.PAUSE, {"reason": "test"}, actor="anna")
    journal.append(EntryKind.RESUME, {}, actor="anna")
    journal.close()
    assert tocsin("journal", "verify", str(path), cwd=tmp_path).stdout == "ok: 2 events\n"
    shown = tocsin("journal", "show", str(path), "--kind", "resume", cwd=tmp_path).stdout
    assert [json.loads(line)["seq"] for line in shown.splitlines()] == [2]
    (tmp_path / "journal.db.head").unlink()
    broken = tocsin("journal", "verify", str(path), "--json", cwd=tmp_path)
    assert broken.returncode == 1
    assert json.loads(broken.stdout)["problem"] == "the anchor file is missing"


def test_agent_prints_one_line_for_each_gpu_with_sixty_metrics(tmp_path: Path) -> None:
    done = tocsin("agent", "--source", "simulated", "--once", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) == 64
    assert {"gpu", "at", "values", "missing"} <= set(rows[0])
    names = {name.split("{")[0] for row in rows for name in row["values"]}
    assert len(names) >= 60
    assert all(isinstance(value, float | int) for row in rows for value in row["values"].values())
    assert all(not set(row["values"]) & set(row["missing"]) for row in rows)


def test_agent_without_a_driver_says_in_one_line_what_is_missing(tmp_path: Path) -> None:
    if Path("/proc/driver/nvidia").exists():
        pytest.skip("this host has an NVIDIA driver")
    done = tocsin("agent", "--source", "nvml", "--once", "--json", cwd=tmp_path)
    assert done.returncode == 3
    assert done.stdout == ""
    assert "NVIDIA" in one_line(done)


@pytest.mark.parametrize(
    "arguments", [("status",), ("pause", "why"), ("inject", "hang", "3"), ("approve", "abc"), ("breaker", "reset")]
)
def test_without_a_brain_a_control_command_says_where_it_looked(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = tocsin(*arguments, "--api-url", "http://127.0.0.1:9", cwd=tmp_path)
    assert done.returncode == 3
    assert "http://127.0.0.1:9" in one_line(done)


def test_an_unknown_command_and_option_are_refused(tmp_path: Path) -> None:
    assert tocsin("forecst", cwd=tmp_path).returncode == 2
    assert tocsin("demo", "--for", "soon", cwd=tmp_path).returncode == 2

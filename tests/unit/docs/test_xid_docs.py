"""docs/xid.md shows what the command prints and the data has."""

from __future__ import annotations

import csv
import re
import shlex
from importlib import resources
from pathlib import Path

import pytest
from click.testing import CliRunner

from tocsin.cli.main import cli
from tocsin.domain.errors import TocsinError

TEXT = (Path(__file__).parents[3] / "docs" / "xid.md").read_text(encoding="utf-8")
SHOWN = [shown for shown in re.findall(r"```console\n\$ tocsin xid (.*)\n([^`]*)```", TEXT) if shown[1]]


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (log,) = re.findall(r"```text\n(.*?)```", TEXT, re.DOTALL)
    (tmp_path / "kernel.log").write_text(log, encoding="utf-8")
    for name in ("TOCSIN_CONFIG", "TOCSIN_SECRETS", "TOCSIN_RULES__PATH", "TOCSIN_RULES__XID_OVERRIDES"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(("command", "printed"), SHOWN)
def test_outputs_are_real(command: str, printed: str) -> None:
    done = CliRunner().invoke(cli, ["xid", *shlex.split(command)])
    said = f"tocsin: {done.exception}\n" if isinstance(done.exception, TocsinError) else done.output
    assert said == printed


def test_some_outputs_are_shown() -> None:
    assert len(SHOWN) == 5


def test_the_counts_of_rows_are_right() -> None:
    found = dict(re.findall(r"\| `(\w+\.csv)` \| (\d+) \|", TEXT))
    assert len(found) == 6
    for name, rows in found.items():
        text = resources.files("tocsin.rules").joinpath(name).read_text(encoding="utf-8")
        assert len(list(csv.DictReader(text.splitlines()))) == int(rows), name


def test_an_override_looks_as_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)
    path = tmp_path / "overrides.toml"
    path.write_text(block, encoding="utf-8")
    monkeypatch.setenv("TOCSIN_RULES__XID_OVERRIDES", str(path))
    (shown,) = re.findall(r"```\n(  overridden.*?)```", TEXT, re.DOTALL)
    assert CliRunner().invoke(cli, ["xid", "63"]).output.endswith(shown)

"""docs/backtest.md: its refusal is what the command prints, its figures and options exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from tocsin.cli.backtest import backtest
from tocsin.cli.main import cli
from tocsin.domain.errors import InputError
from tocsin.forecaster.evaluation.figures import standard
from tocsin_testing.eval_data import HORIZON, fleet

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "backtest.md").read_text(encoding="utf-8")


def test_the_refusal_is_the_one_that_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    told = CliRunner().invoke(cli, ["backtest", "tests/data/gwdg/excerpt_tidy.csv.bz2"])
    assert isinstance(told.exception, InputError)
    assert f"\ntocsin: {told.exception}\n" in TEXT


def test_every_figure_and_option_it_names_exists() -> None:
    examples = fleet(devices=12, days=20)
    score = examples.column("x").astype(float)
    told = standard({"m": (score - score.min()) / 10}, examples, HORIZON, draws=2, thresholds={"m": 0.4})["m"]
    table = TEXT[TEXT.index("| figure | meaning |") :].split("\n\n")[0]
    named = [name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    for name in named:
        assert any(known == name or known.endswith(name) for known in told), name
    options = {option for parameter in backtest.params for option in parameter.opts}
    assert set(re.findall(r"--[a-z]+", TEXT)) <= options

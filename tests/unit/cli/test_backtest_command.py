"""`tocsin backtest`: options, refusals in one line, JSON, the report on disk."""

from __future__ import annotations

import json
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tocsin.cli.main import cli
from tocsin.domain.errors import InputError
from tocsin.forecaster.evaluation.result import DataSet, Request
from tocsin.forecaster.evaluation.result import Result as Backtest
from tocsin.offline import backtest
from tocsin_testing import eval_result


class _Installed(EntryPoint):
    """An entry point of a package that is not there: it loads what it was given."""

    def __init__(self, name: str, found: DataSet) -> None:
        super().__init__(name, "made", backtest.GROUP)
        vars(self).update(found=found)

    def load(self) -> DataSet:
        found = vars(self)["found"]
        assert isinstance(found, DataSet)
        return found


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Request]:
    """A data set `made`, and the simulator's name without its work; gives the requests that came."""
    seen: list[Request] = []

    def run(request: Request) -> Backtest:
        seen.append(request)
        return eval_result.run(request)

    installed = {"made": DataSet(run), "simulator": DataSet(run, reads=False, scenarios=True)}

    def entries(*, group: str, name: str | None = None) -> EntryPoints:
        assert group == backtest.GROUP
        return EntryPoints(_Installed(one, found) for one, found in installed.items() if name in (None, one))

    monkeypatch.setattr(backtest, "entry_points", entries)
    for name in ("TOCSIN_CONFIG", "TOCSIN_SECRETS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TOCSIN_DATA_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for folder in ("made", "later half"):
        (tmp_path / folder).mkdir()
    return seen


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["backtest", *arguments])


def test_it_prints_the_report_with_the_command_that_made_it(made: list[Request]) -> None:
    told = run("--dataset", "made", "--train", "made", "--seed", "3")
    assert told.exit_code == 0, told.output
    assert "    tocsin backtest --dataset made --train $TOCSIN_DATA_DIR/made --seed 3\n" in told.stdout
    assert "Seed 3." in told.stdout
    assert made[0].test is None
    assert (made[0].quick, made[0].leak, made[0].draws) == (False, False, 200)


def test_the_report_names_the_commit_that_made_it(made: list[Request]) -> None:
    told = run("--dataset", "made", "--train", "made", "--commit", "0123456789abcdef")
    assert "    tocsin backtest --dataset made --train $TOCSIN_DATA_DIR/made # commit 01234567\n" in told.stdout


def test_json_is_one_document_with_every_figure(made: list[Request]) -> None:
    told = run("--dataset", "made", "--train", "made", "--test", "later half", "--quick", "--leak", "--json")
    document = json.loads(told.stdout)
    assert document["sections"][0]["models"]["hazard"]["roc_auc"]["holds"] is True
    command = 'tocsin backtest --dataset made --train $TOCSIN_DATA_DIR/made --test "$TOCSIN_DATA_DIR/later half"'
    assert document["command"] == f"{command} --quick --leak"
    assert made[0].test == Path("later half")


def test_out_writes_the_report_and_says_where(tmp_path: Path) -> None:
    told = run("--dataset", "made", "--train", "made", "--out", str(tmp_path / "docs"), "--json")
    assert json.loads(told.stdout)
    assert told.stderr == f"wrote {tmp_path / 'docs' / 'accuracy_figures.md'}\n"
    assert (tmp_path / "docs" / "images" / "accuracy" / "made-1-reliability.png").stat().st_size > 1000


def test_the_simulator_needs_no_folder_and_takes_a_scenario(made: list[Request]) -> None:
    assert run("--dataset", "simulator", "--scenario", "own.toml").exit_code == 0
    assert made[0].scenario == Path("own.toml")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((), "give exactly one of --dataset, recorded files (PATHS) and --store"),
        (("--store", "--dataset", "made"), "is not exactly one source of history"),
        (("--dataset", "made"), "--train = None: is missing"),
        (("--dataset", "other", "--train", "made"), "no such data set; use one of made, simulator"),
        (("--dataset", "made", "--train", "nowhere"), "--train = 'nowhere': is no folder"),
        (("--dataset", "made", "--train", "made", "--test", "nowhere"), "--test = 'nowhere': is no folder"),
        (("--dataset", "made", "--train", "made", "--scenario", "x"), "made takes none"),
        (("--dataset", "made", "--train", "made", "--model", "hazard"), "--model = 'hazard': applies only to"),
        (("--dataset", "made", "--train", "made", "--from", "30d"), "--from = '30d': applies only to recorded files"),
        (("a.csv", "--train", "made"), "--train = 'made': applies only to --dataset"),
        (("a.csv", "--from", "soon"), "--from"),
        (("nowhere.csv",), "nowhere.csv"),
        (("--store", "--from", "1d", "--to", "2d"), "not after"),
    ],
)
def test_what_cannot_be_judged_is_one_clear_error(arguments: tuple[str, ...], problem: str) -> None:
    told = run(*arguments)
    assert isinstance(told.exception, InputError), told.output
    assert problem in str(told.exception)
    assert "\n" not in str(told.exception)

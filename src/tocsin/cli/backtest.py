"""`tocsin backtest`: how often the forecaster would have been right."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tocsin.cli import values
from tocsin.cli.common import CliContext, json_option, pass_context, show
from tocsin.cli.processes import Duration
from tocsin.cli.progress import with_bars
from tocsin.domain.clock import SECOND, SystemClock
from tocsin.domain.errors import InputError

if TYPE_CHECKING:
    from tocsin.forecaster.evaluation.forward import Forward
    from tocsin.forecaster.evaluation.result import Result
    from tocsin.offline.backtest_fleet import BacktestSpan

folder = click.Path(path_type=Path)
DATA_DIR = "TOCSIN_DATA_DIR"

_FOR_DATASET = ("train", "test", "scenario", "quick")
_FOR_FLEET = ("since", "until", "every", "model", "horizon", "folds", "engine", "ray_address")


@click.command()
@click.argument("paths", nargs=-1, type=folder)
@click.option(
    "--dataset",
    shell_complete=values.datasets,
    help="Name of an installed data set; a checkout has those of its folder benchmarks.",
)
@click.option("--train", type=folder, help="Folder with training data, in the data set's format.")
@click.option("--test", type=folder, help="Folder with test data; default: the protocol's own folds of --train.")
@click.option("--scenario", type=folder, help="Scenario file of the simulator; default: the shipped one.")
@click.option("--quick", is_flag=True, help="A small run over part of a data set: a smoke test, not a measurement.")
@click.option("--store", is_flag=True, help="Score walk-forward forecasts over the configured store.")
@click.option("--from", "since", help="Time of the first forecast: an age such as 30d, or an ISO 8601 timestamp.")
@click.option("--to", "until", help="Time of the last forecast, in the same format.")
@click.option("--every", type=Duration(), help="Time between forecasts of a fleet; default: 1h.")
@click.option("--model", shell_complete=values.scorers, help="Scorers for a fleet, comma-separated; default: hazard.")
@click.option("--horizon", type=Duration(), help="How far ahead a fault of a fleet must be predicted; default: 48h.")
@click.option("--folds", type=click.IntRange(1, 50), help="Number of test periods in a fleet's history; default: 3.")
@click.option(
    "--engine", shell_complete=values.engines, help="Where a fleet's folds are fitted: local (default) or ray."
)
@click.option("--ray-address", help="Address of a running Ray cluster; default: start one here.")
@click.option("--draws", type=click.IntRange(0, 10_000), default=200, show_default=True, help="Bootstrap draws.")
@click.option("--seed", type=int, default=0, show_default=True, help="Random seed of folds, models and draws.")
@click.option("--leak", is_flag=True, help="Also print the figures of a split by random row, which leaks.")
@click.option("--commit", default="", help="What makes the figures, for the record: the commit.")
@click.option("--out", type=folder, help="Also update accuracy_figures.md, accuracy.json and the plots in this folder.")
@json_option
@pass_context
@click.pass_context
@with_bars
def backtest(
    ctx: click.Context,
    context: CliContext,
    /,
    paths: tuple[Path, ...],
    dataset: str | None,
    store: bool,
    out: Path | None,
    as_json: bool,
    **options: object,
) -> None:
    """Score the forecaster on recorded data: a data set by its protocol, recorded files (PATHS), or the store.

    Training and test data never share a device or a span of time; a split by row is refused. Prints Markdown, or JSON
    with --json.
    """
    _one_of(paths, dataset, store)
    _fitting(options, dataset is not None)
    if dataset is not None:
        result = _dataset(dataset, options)
    else:
        result = _fleet(context, paths, options)
    _show(result, _command(ctx, str(options["commit"])), out, as_json)


def _one_of(paths: tuple[Path, ...], dataset: str | None, store: bool) -> None:
    if bool(paths) + (dataset is not None) + store != 1:
        given = [name for name, one in (("PATHS", paths), ("--dataset", dataset), ("--store", store)) if one]
        remedy = "give exactly one of --dataset, recorded files (PATHS) and --store"
        raise InputError("backtest", " ".join(given), "is not exactly one source of history", remedy)


def _fitting(options: Mapping[str, object], dataset: bool) -> None:
    """Options of the other way to use the command would be passed over without a word."""
    for name in _FOR_FLEET if dataset else _FOR_DATASET:
        if options[name]:
            option = {"since": "--from", "until": "--to"}.get(name, f"--{name.replace('_', '-')}")
            kind = "recorded files and the store" if dataset else "--dataset"
            raise InputError(option, str(options[name]), f"applies only to {kind}", "leave it out")


def _dataset(name: str, options: Mapping[str, object]) -> Result:
    from tocsin.forecaster.evaluation.result import Request
    from tocsin.offline.backtest import find, run_dataset

    dataset, train = find(name), options["train"]
    if train is None and dataset.reads:
        raise InputError("--train", None, "is missing", f"name a folder of data in the format of {name}")
    own = {key: options[key] for key in ("test", "scenario", "quick", "draws", "seed", "leak")}
    request = Request(train=train or Path(), **own)  # type: ignore[arg-type]
    return run_dataset(name, dataset, request, SystemClock())


def _fleet(context: CliContext, paths: tuple[Path, ...], options: Mapping[str, object]) -> Result:
    from tocsin.forecaster.evaluation.engine import engine
    from tocsin.offline.backtest_fleet import over_files, over_store
    from tocsin.store.factory import open_store

    clock = SystemClock()
    past, wanted = _past(options, clock.now_ms()), _wanted(options)
    with engine(str(options["engine"] or "local"), str(options["ray_address"] or "")) as running:
        if paths:
            return over_files(paths, past, wanted, clock, running)
        with closing(open_store(context.settings.store)) as opened:
            return over_store(opened, past, wanted, clock, running)


def _past(options: Mapping[str, object], now_ms: int) -> BacktestSpan:
    from tocsin.offline.backtest_fleet import BacktestSpan
    from tocsin.offline.import_history import instant

    start_ms, end_ms = (
        instant(str(options[name]), now_ms, option) if options[name] else None
        for name, option in (("since", "--from"), ("until", "--to"))
    )
    every = options["every"]
    whole = BacktestSpan(start_ms, end_ms)
    return BacktestSpan(start_ms, end_ms, round(every * SECOND)) if isinstance(every, float) else whole


def _wanted(options: Mapping[str, object]) -> Forward:
    from tocsin.forecaster.evaluation.forward import Forward

    chosen: dict[str, object] = {key: options[key] for key in ("draws", "seed", "leak")}
    if options["model"]:
        chosen["models"] = tuple(one.strip() for one in str(options["model"]).split(",") if one.strip())
    if isinstance(options["horizon"], float):
        chosen["horizon_ms"] = round(options["horizon"] * SECOND)
    if options["folds"]:
        chosen["folds"] = options["folds"]
    return Forward(**chosen)  # type: ignore[arg-type]


def _show(result: Result, command: str, out: Path | None, as_json: bool) -> None:
    from tocsin.forecaster.evaluation.report import markdown, put, to_json

    text = markdown(result, command, images=False)
    show(as_json, {"command": command, **to_json(result)}, text.splitlines())
    if out is not None:
        click.echo(f"wrote {put(out, result, command)}", err=True)


def _command(ctx: click.Context, commit: str) -> str:
    """The command as somebody else would type it: without what concerns only the printing. The commit of the program
    is a remark, as far as it is told."""
    words = ["tocsin", "backtest"]
    for parameter in ctx.command.params:
        value = ctx.params.get(parameter.name or "")
        if (
            value is None
            or value is False
            or value == ()
            or parameter.name in ("as_json", "out", "commit")
            or value == parameter.get_default(ctx)
        ):
            continue
        if isinstance(parameter, click.Argument):
            words += [_path(one) for one in value]
        else:
            words.append(parameter.opts[0])
            words += [] if value is True else [_path(value) if isinstance(value, Path) else _plain(value)]
    return " ".join([*words, *([f"# commit {commit[:8]}"] if commit else [])])


def _plain(value: object) -> str:
    """A span in hours where that is a whole number: 48h reads better than 172800s."""
    if not isinstance(value, float):
        return shlex.quote(str(value))
    hours = value / 3600.0
    return f"{hours:g}h" if hours.is_integer() else f"{value:g}s"


def _path(path: Path) -> str:
    if (root := os.environ.get(DATA_DIR)) and path.resolve().is_relative_to(Path(root).resolve()):
        inner = path.resolve().relative_to(Path(root).resolve()).as_posix()
        return f'"${DATA_DIR}/{inner}"' if " " in inner else f"${DATA_DIR}/{inner}"
    return shlex.quote(str(path))


COMMANDS: list[click.Command] = [backtest]

"""`tocsin train` and `tocsin models`: models of the risk, from training to service and back."""

from __future__ import annotations

import getpass
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tocsin.cli import values
from tocsin.cli.common import CliContext, done, json_option, pass_context, show
from tocsin.cli.processes import Duration
from tocsin.cli.progress import with_bars
from tocsin.domain.clock import SECOND, SystemClock, to_iso

if TYPE_CHECKING:
    from tocsin.forecaster.lifecycle.gate import ModelGate
    from tocsin.forecaster.lifecycle.model_registry import ModelRegistry
    from tocsin.offline.train import TrainingOutcome, TrainingRequest

folder = click.Path(path_type=Path)


@click.command()
@click.argument("paths", nargs=-1, type=folder)
@click.option("--also", type=folder, multiple=True, help="Recorded file for training only, not for the test.")
@click.option("--simulated", "gpus", type=click.IntRange(16, 100_000), help="Also train on this many simulated GPUs.")
@click.option("--days", type=click.FloatRange(15), default=45.0, show_default=True, help="Simulated days.")
@click.option("--scenario", type=folder, help="Scenario file of the simulator; default: the shipped one.")
@click.option("--from", "since", help="Time of the first forecast: an age such as 30d, or an ISO 8601 timestamp.")
@click.option("--to", "until", help="Time of the last forecast, in the same format.")
@click.option("--every", type=Duration(), default=3600.0, show_default="1h", help="Time between two forecasts.")
@click.option(
    "--model",
    shell_complete=values.scorers,
    default="hazard",
    show_default=True,
    help="Family of scorers; see docs/models.md.",
)
@click.option("--version", "version", help="Name of the version; default: family and date.")
@click.option("--promote", is_flag=True, help="Promote it if it beats the rules and the model in service.")
@click.option(
    "--engine",
    shell_complete=values.engines,
    default="local",
    show_default=True,
    help="Where folds are trained: local or ray.",
)
@click.option("--ray-address", default="", help="Address of a running Ray cluster; default: start one here.")
@click.option("--folds", type=click.IntRange(1, 20), default=3, show_default=True, help="Number of test periods.")
@click.option("--draws", type=click.IntRange(20, 10_000), default=200, show_default=True, help="Bootstrap draws.")
@click.option("--seed", type=int, default=0, show_default=True, help="Random seed of folds, models and draws.")
@click.option("--out", type=folder, help="Folder of models; default: setting forecast.models.")
@json_option
@pass_context
@with_bars
def train(context: CliContext, /, paths: tuple[Path, ...], out: Path | None, as_json: bool, **options: object) -> None:
    """Train a risk model on recorded files PATHS, a simulated fleet, or the configured store.

    The model is tested on hosts and days that it was not trained on and is stored in the model registry with its
    report. It goes into service only with --promote, and only if it wins the test.
    """
    from tocsin.offline.train import run_training

    clock = SystemClock()
    outcome = run_training(context.settings, _wanted(paths, options, clock.now_ms()), clock, out)
    show(as_json, _as_json(outcome), _lines(outcome))


def _wanted(paths: tuple[Path, ...], options: dict[str, object], now_ms: int) -> TrainingRequest:
    from tocsin.forecaster.lifecycle.trial import TrialRecipe
    from tocsin.offline.import_history import instant
    from tocsin.offline.train import TrainingRequest

    seed, folds, draws = (int(str(options[name])) for name in ("seed", "folds", "draws"))
    family = str(options["model"])
    start_ms, end_ms = (
        instant(str(options[name]), now_ms, option) if options[name] else None
        for name, option in (("since", "--from"), ("until", "--to"))
    )
    scenario = options["scenario"]
    return TrainingRequest(
        recipe=TrialRecipe(family=family, folds=folds, seed=seed, draws=draws),
        version=str(options["version"] or f"{family}-{to_iso(now_ms)[:19].replace(':', '')}"),
        files=paths,
        also=[path for path in _given(options["also"]) if isinstance(path, Path)],
        gpus=int(str(options["gpus"] or 0)),
        days=float(str(options["days"])),
        scenario=scenario if isinstance(scenario, Path) else None,
        start_ms=start_ms,
        end_ms=end_ms,
        every_ms=round(float(str(options["every"])) * SECOND),
        engine=str(options["engine"]),
        address=str(options["ray_address"]),
        promote=bool(options["promote"]),
        actor=getpass.getuser(),
    )


def _given(value: object) -> Sequence[object]:
    return value if isinstance(value, tuple) else ()


def _as_json(outcome: TrainingOutcome) -> dict[str, object]:
    from tocsin.forecaster.evaluation.report import to_json

    card = outcome.trained.model.card
    return {
        "version": card.version,
        "family": card.family,
        "rows": card.rows,
        "onsets": card.onsets,
        "wins": outcome.trained.trial.wins,
        "because": list(outcome.trained.trial.because),
        "promoted": outcome.promoted,
        "gate": [asdict(record) for record in outcome.trained.model.gate.records],
        "data_hash": card.data_hash,
        "report_digest": card.report_digest,
        "provenance": card.provenance,
        "report": to_json(outcome.trained.trial.result),
    }


def _lines(outcome: TrainingOutcome) -> list[str]:
    from tocsin.forecaster.evaluation.report import markdown

    card, trial = outcome.trained.model.card, outcome.trained.trial
    verdict = (
        "in service now" if outcome.promoted else "in the model registry; tocsin models promote puts it into service"
    )
    return [
        markdown(trial.result, images=False).rstrip(),
        "",
        f"{card.version}: {card.rows} rows, {card.onsets} onsets, from {card.provenance}",
        *(f"  {reason}" for reason in trial.because),
        f"  {'wins' if trial.wins else 'does not win'}: {verdict}",
        *(f"  gate: {reason}" for record in outcome.trained.model.gate.records for reason in record.because),
    ]


@click.group()
def models() -> None:
    """Show the model registry: versions, the one in service, and those before it."""


def _model_registry(context: CliContext, out: Path | None) -> ModelRegistry:
    from tocsin.forecaster.lifecycle.model_registry import ModelRegistry

    return ModelRegistry(out or context.settings.forecast.models)


_folder = click.option("--models", "out", type=folder, help="Folder of models; default: setting forecast.models.")


def _heard(gate: ModelGate) -> str:
    """Of which GPUs the model may speak."""
    heard = [name for name, simulated in (("real", False), ("simulated", True)) if gate.heard(simulated=simulated)]
    return f"heard: {', '.join(heard)}" if heard else "not heard"


@models.command("list")
@_folder
@json_option
@pass_context
def models_list(context: CliContext, out: Path | None, as_json: bool) -> None:
    """List every version, its training data, and which one is in service."""
    from tocsin.forecaster.lifecycle.model_registry import PRIOR, shipped

    registry = _model_registry(context, out)
    serving = registry.in_service
    names = [*([PRIOR] if shipped() else []), *registry.versions()]
    cards = [(name, registry.card(name)) for name in names]
    gates = {name: registry.gate(name) for name in names}
    document = [
        {
            "version": name,
            "in_service": name == serving,
            "family": card.family,
            "created": to_iso(card.created_ms),
            "trained_to": to_iso(card.trained_to_ms),
            "rows": card.rows,
            "onsets": card.onsets,
            "provenance": card.provenance,
            "because": list(card.notes),
            "heard": {"real": gates[name].heard(simulated=False), "simulated": gates[name].heard(simulated=True)},
        }
        for name, card in cards
    ]
    lines = [
        f"{'*' if name == serving else ' '} {name:<34} {card.family:<12} {card.onsets:>6} onsets  "
        f"{_heard(gates[name]):<22} {card.provenance}"
        for name, card in cards
    ]
    show(as_json, document, lines or ["no model yet: run tocsin train"])


@models.command("judge")
@click.argument("version", shell_complete=values.versions)
@click.argument("paths", nargs=-1, required=True, type=folder)
@click.option("--every", type=Duration(), default=3600.0, show_default="1h", help="Time between two forecasts.")
@click.option("--draws", type=click.IntRange(20, 10_000), default=200, show_default=True, help="Bootstrap draws.")
@click.option("--seed", type=int, default=0, show_default=True, help="Random seed of draws and of what knows nothing.")
@_folder
@json_option
@pass_context
@with_bars
def models_judge(
    context: CliContext, /, version: str, paths: tuple[Path, ...], out: Path | None, as_json: bool, **options: object
) -> None:
    """Judge VERSION on recorded files PATHS that it was not trained on, and keep the record.

    The service hears a model of real GPUs only where a record of real telemetry says that it passed: its average
    precision is above the recency rule and what knows nothing, by the lower bound of a bootstrap over node events.
    """
    from tocsin.offline.train import judge_on_recordings

    draws, seed = (int(str(options[name])) for name in ("draws", "seed"))
    every_ms = round(float(str(options["every"])) * SECOND)
    record = judge_on_recordings(
        _model_registry(context, out), version, paths, draws=draws, seed=seed, every_ms=every_ms
    )
    verdict = "passed: it is heard" if record.passed else "not passed: it is not heard, rules speak alone"
    lines = [*(f"  {line}" for line in record.because), f"{version}: {verdict}"]
    show(as_json, {"version": version, **asdict(record)}, lines)


@models.command("promote")
@click.argument("version", shell_complete=values.versions)
@_folder
@json_option
@pass_context
def models_promote(context: CliContext, version: str, out: Path | None, as_json: bool) -> None:
    """Put VERSION into service; a running brain loads it at its next forecast and writes that to the journal."""
    before = _model_registry(context, out).promote(version, SystemClock().now_ms(), getpass.getuser())
    done(as_json, f"{version} serves, in place of {before or 'none'}", version=version, before=before)


@models.command("rollback")
@_folder
@json_option
@pass_context
def models_rollback(context: CliContext, out: Path | None, as_json: bool) -> None:
    """Return to the version that was in service before."""
    back, until_now = _model_registry(context, out).rollback(SystemClock().now_ms(), getpass.getuser())
    done(as_json, f"{back} serves again, in place of {until_now}", version=back, before=until_now)


COMMANDS: list[click.Command] = [train, models]

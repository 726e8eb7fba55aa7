"""`tocsin slurm-health`: Slurm's `HealthCheckProgram`, which ends in time whatever a driver does."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from tocsin.cli import values
from tocsin.cli.common import CliContext, json_option, pass_context, show
from tocsin.cli.scan import Judged
from tocsin.collector.child_process import run_within
from tocsin.domain.clock import Clock, SystemClock
from tocsin.domain.decision import Mode
from tocsin.domain.errors import TocsinError
from tocsin.domain.finding import Severity

if TYPE_CHECKING:
    from tocsin.actions.slurm.node_check import CheckOutcome, NodeVerdict
    from tocsin.config.settings import Settings

SCAN_SHARE = 0.6
"""Of the time for all, what the scan may take; the rest is Slurm's (own choice)."""
_COMMANDS = 7
"""Most commands of a check, each of which gets its part of the rest."""
_ACT_NOW, _CANNOT_SEE = 2, 3
"""`tocsin.runtime.agent.scan.NodeHealth`'s."""
_LABELS = {0: "healthy", 1: "attention", _ACT_NOW: "act now", _CANNOT_SEE: "cannot see"}
MOST_SAID = 300


@dataclass(frozen=True)
class _Scanned:
    """What the scan in a process of its own came to."""

    code: int
    sentence: str
    simulated: bool = False


@click.command("slurm-health", cls=Judged)
@click.option(
    "--source", shell_complete=values.sources, help="Where readings come from; default: setting agent.source."
)
@json_option
@click.pass_context
@pass_context
def slurm_health(context: CliContext, ctx: click.Context, source: str | None, as_json: bool) -> None:
    """Check this node for Slurm and print one line: the HealthCheckProgram of slurm.conf.

    With actions.mode = "act" and slurm.health.drain it drains this node where its GPUs need action now, while few nodes
    are out of service; else it says what it would do. It ends within slurm.health.seconds. Exit codes are those of
    scan: 0 healthy, 1 needs attention, 2 needs action now, 3 cannot tell.
    """
    try:
        settings = context.settings
    except TocsinError as error:
        click.echo(f"tocsin: {error}", err=True)
        ctx.exit(_CANNOT_SEE)
    clock = SystemClock()
    # Whatever hangs here, an import from a lost file system too: without a handler the signal ends the process.
    signal.setitimer(signal.ITIMER_REAL, settings.slurm.health.seconds)
    try:
        found = _scanned(context, source, settings.slurm.health.seconds * SCAN_SHARE)
        name = node_name(settings)
        outcome = _checked(settings, found, name, clock)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
    label = _LABELS[found.code]
    line = f"{name}: {label}: {found.sentence}; {outcome.said}"
    document = {
        "node": name,
        "health": label,
        "exit_code": found.code,
        "sentence": found.sentence,
        "said": outcome.said,
        "drained": outcome.drained,
    }
    show(as_json, document, [line])
    ctx.exit(found.code)


def _checked(settings: Settings, found: _Scanned, name: str, clock: Clock) -> CheckOutcome:
    from tocsin.actions.slurm.client import Slurm
    from tocsin.actions.slurm.node_check import NodeCheck
    from tocsin.actions.slurm.rest import Closing, runner_of

    chosen = settings.slurm
    each = round(chosen.health.seconds * (1.0 - SCAN_SHARE) / _COMMANDS, 1)
    limits = {"command_seconds": min(chosen.command_seconds, each), "ping_seconds": min(chosen.ping_seconds, each)}
    bounded = chosen.model_copy(update=limits)
    acts = chosen.health.drain and settings.actions.mode is Mode.ACT
    dry = chosen.dry_run or settings.actions.dry_run
    runner = runner_of(bounded, clock)
    try:
        check = NodeCheck(Slurm(bounded, runner, clock), chosen.health, may_act=acts and not dry)
        return check.run(name, _verdict(found, blind_is_bad=chosen.health.drain_blind))
    finally:
        if isinstance(runner, Closing):
            runner.close()


def _verdict(found: _Scanned, *, blind_is_bad: bool) -> NodeVerdict:
    from tocsin.actions.slurm.node_check import NodeVerdict

    bad = found.code == _ACT_NOW or (found.code == _CANNOT_SEE and blind_is_bad)
    return NodeVerdict(bad, found.sentence, found.simulated)


def node_name(settings: Settings) -> str:
    """This node's name in Slurm: as slurmd tells it, else by the settings."""
    from tocsin.actions.slurm.signs import node_of

    told = os.environ.get("SLURMD_NODENAME", "")
    host = socket.gethostname()
    named = node_of(settings.slurm, host)
    return told or (named if named != host else host.partition(".")[0])


def _scanned(context: CliContext, source: str | None, seconds: float) -> _Scanned:
    """`tocsin scan` in a process of its own: one that hangs in the driver cannot be killed, but it can be left."""
    options = [("--config", context.config), ("--secrets", context.secrets)]
    given = [word for option, path in options if path is not None for word in (option, str(path))]
    more = ["--source", source] if source else []
    command = [sys.executable, "-m", "tocsin.cli", *given, "scan", "--json", *more]
    ended = run_within(command, seconds, errors=subprocess.DEVNULL, apart=True)
    if ended is None:
        return _Scanned(_CANNOT_SEE, f"the scan did not end within {seconds:g} s; does the driver hang?")
    return read_scan(ended.out, ended.status)


def read_scan(out: bytes, code: int) -> _Scanned:
    """The verdict of ``tocsin scan --json``; where its output is none, nothing can be seen."""
    try:
        report = json.loads(out)
    except (ValueError, RecursionError):
        report = None
    if not isinstance(report, dict) or report.get("exit_code") != code or code not in _LABELS:
        return _Scanned(_CANNOT_SEE, f"the scan ended with {code} and told nothing")
    simulated = any(gpu.get("simulated") for gpu in _dicts(report.get("gpus")))
    return _Scanned(code, _sentence(report)[:MOST_SAID], simulated)


def _sentence(report: dict[str, Any]) -> str:
    told = _dicts(report.get("findings"))
    worst = next((one for one in told if one.get("severity") == Severity.CRITICAL), told[0] if told else None)
    if worst is not None:
        return f"{worst.get('severity')}: {worst.get('sentence')} [{worst.get('rule')}]"
    lost = [gpu for gpu in _dicts(report.get("gpus")) if gpu.get("health") not in ("healthy", "attention")]
    if lost:
        return f"GPU {lost[0].get('index')}: {lost[0].get('health')}"
    blind = [str(each) for each in report.get("blind") or []]
    return f"not seen: {blind[0]}" if blind else f"{len(_dicts(report.get('gpus')))} GPUs read"


def _dicts(value: object) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


COMMANDS: list[click.Command] = [slurm_health]

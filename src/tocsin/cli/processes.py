"""Commands that run a process: agent, brain, dashboard, demo."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from tocsin.cli import values
from tocsin.cli.common import CliContext, brain_of, dump, json_option, pass_context
from tocsin.domain.clock import SystemClock
from tocsin.domain.errors import InputError
from tocsin.telemetry.log import configure_logging

_DURATION = re.compile(r"^(\d+(?:\.\d+)?)(ms|s|m|h|d|)$")
_SECONDS = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


class Duration(click.ParamType[float]):
    """A time span such as ``60s``, ``2m``, ``3d`` or ``90``; seconds as a float."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, int | float):
            return float(value)
        if (match := _DURATION.match(str(value))) is None:
            self.fail(f"{value!r} is not a duration; write for example 60s, 2m or 1h", param, ctx)
        return float(match[1]) * _SECONDS[match[2]]


STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def stop_on_signal() -> Iterator[threading.Event]:
    """An event that SIGINT, SIGTERM or the end of the terminal sets."""
    stop = threading.Event()
    previous = {number: signal.signal(number, lambda _number, _frame: stop.set()) for number in STOP_SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@click.command()
@click.option(
    "--source", shell_complete=values.sources, help="Where readings come from; default: setting agent.source."
)
@click.option("--once", is_flag=True, help="Read every GPU once, print it and end.")
@json_option
@pass_context
def agent(context: CliContext, source: str | None, once: bool, as_json: bool) -> None:
    """Read this node's GPUs, serve /metrics and push to a brain, InfluxDB or VictoriaMetrics."""
    from tocsin.runtime.agent import process as runtime

    settings, clock = context.settings, SystemClock()
    name = source or settings.agent.source
    configure_logging(settings.log.level, settings.log.format)
    if once:
        for row in runtime.once(settings, name, clock):
            click.echo(json.dumps(row) if as_json else _agent_line(row))
        return
    with stop_on_signal() as stop:
        runtime.serve(settings, name, clock, stop, announce=lambda text: click.echo(text, err=True))


_ONCE_SHOWN = (
    ("gpu_temperature_celsius", "{:.0f} °C", 1.0),
    ("gpu_power_watts", "{:.0f} W", 1.0),
    ("gpu_utilization_ratio", "{:.0f} % busy", 100.0),
    ("gpu_memory_used_ratio", "memory {:.0f} % full", 100.0),
)


def _agent_line(row: dict[str, object]) -> str:
    values, missing = row["values"], row["missing"]
    assert isinstance(values, dict)
    assert isinstance(missing, dict)
    marked = " (simulated)" if row["simulated"] else ""
    shown = [
        form.format(values[name] * factor) for name, form, factor in _ONCE_SHOWN if isinstance(values.get(name), float)
    ]
    reasons = Counter(missing.values())
    counts = [f"{len(values)} values", *(f"{count} {reason}" for reason, count in sorted(reasons.items()))]
    return f"{row['host']} {row['gpu']}{marked} {row['at']}: {', '.join([*shown, *counts])}"


@click.command()
@pass_context
def brain(context: CliContext) -> None:
    """Run the brain of one fleet: rules, forecasts, decisions, actions and the API."""
    # Before the import, which takes seconds: a mistake in the file is told at once.
    settings = context.settings
    from tocsin.runtime.brain.assembly import run_brain
    from tocsin.runtime.interpreter import steady

    configure_logging(settings.log.level, settings.log.format)
    clock = SystemClock()
    with stop_on_signal() as stop, steady(clock):
        run_brain(settings, clock, stop, announce=lambda text: click.echo(text, err=True))


@click.command()
@pass_context
def dashboard(context: CliContext) -> None:
    """Serve the dashboard over the brain's API."""
    from tocsin.runtime.dashboard_process import prepare_dashboard

    settings = context.settings.dashboard
    url = brain_of(context.settings, None)
    ready = prepare_dashboard(settings.listen, url, settings.api_token.get_secret_value(), settings.api_ca)
    click.echo(f"dashboard: {ready.url}", err=True)
    with stop_on_signal() as stop, subprocess.Popen(ready.command, env=ready.environment) as process:
        while process.poll() is None and not stop.wait(0.2):
            pass
        process.terminate()
    if not stop.is_set():
        sys.exit(process.returncode)


@click.command()
@click.option("--gpus", type=click.IntRange(1, 100_000), help="How many simulated GPUs; default: simulation.gpus.")
@click.option("--speed", type=click.FloatRange(min=0, min_open=True), help="Simulated seconds per second of wall time.")
@click.option("--for", "duration", type=Duration(), help="End after this much wall time, for example 60s.")
@click.option("--seed", type=int, help="Seed of the simulated fleet.")
@click.option(
    "--scenario",
    type=click.Path(path_type=Path),
    help="Scenario file: how predictable the simulated faults are; default: the shipped one.",
)
@click.option(
    "--faults",
    type=click.IntRange(1, 1000),
    help="So many hard faults at distinct places, and nothing else goes wrong; --json then counts their cards.",
)
@click.option("--no-dashboard", is_flag=True, help="Do not start the dashboard.")
@json_option
@pass_context
def demo(
    context: CliContext,
    gpus: int | None,
    speed: float | None,
    duration: float | None,
    seed: int | None,
    scenario: Path | None,
    faults: int | None,
    no_dashboard: bool,
    as_json: bool,
) -> int:
    """Run agent, brain and dashboard with a simulated fleet on free ports; Ctrl-C ends it."""
    from tocsin.runtime.demo import run_demo

    settings = context.settings
    wanted = {"gpus": gpus, "speed": speed, "seed": seed, "scenario": scenario}
    simulation = settings.simulation.model_copy(update={k: v for k, v in wanted.items() if v is not None})
    settings = settings.model_copy(update={"simulation": simulation})
    configure_logging("warning", settings.log.format)
    if as_json and duration is None:
        raise InputError(
            "--json", True, "prints a report at the end, which this demo has not", "add --for, for example --for 60s"
        )
    with stop_on_signal() as stop:
        report = run_demo(
            settings,
            stop,
            duration=duration,
            dashboard=not no_dashboard,
            faults=faults or 0,
            announce=lambda text: click.echo(text, err=True),
            colour=sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb",
        )
    if as_json:
        dump(report)
    return 0


COMMANDS: list[click.Command] = [agent, brain, dashboard, demo]

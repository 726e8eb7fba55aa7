"""`tocsin rehearse`: what an action would do, tried on the simulated fleet."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tocsin.cli.common import CliContext, json_option, pass_context, show
from tocsin.cli.progress import with_bars
from tocsin.domain.progress import work
from tocsin.telemetry.log import configure_logging

if TYPE_CHECKING:
    from tocsin.offline.rehearsal import ArmResult, Rehearsal


@click.group()
def rehearse() -> None:
    """Try an action on the simulated fleet and compare it with doing nothing."""


@rehearse.command()
@click.option(
    "--cases",
    type=click.IntRange(1, 20_000),
    default=1000,
    show_default=True,
    help="Simulated GPUs whose cooling degrades.",
)
@click.option("--hours", type=click.FloatRange(0.05, 48), default=4.0, show_default=True, help="Length of a case.")
@click.option("--seed", type=int, default=1, show_default=True, help="The same seed gives the same cases.")
@click.option(
    "--lead-hours",
    type=(float, float),
    default=None,
    help="Shortest and longest drift from its begin to the fault; default: those of the scenario.",
)
@json_option
@pass_context
@with_bars
def thermal(
    context: CliContext, cases: int, hours: float, seed: int, lead_hours: tuple[float, float] | None, as_json: bool
) -> None:
    """Run the thermal controller on simulated GPUs whose cooling degrades; compare with no action and a fixed cap."""
    from tocsin.offline.rehearsal import rehearse as run
    from tocsin.runtime.agent.order_worker import thermal_settings

    configure_logging("error", context.settings.log.format)
    wanted = thermal_settings(context.settings.node)
    with tempfile.TemporaryDirectory(prefix="tocsin-rehearsal-") as folder, work("rehearsal", hours * 3600.0) as bar:
        done = 0.0

        def progress(share: float) -> None:
            nonlocal done
            bar.advance(share * hours * 3600.0 - done)
            done = share * hours * 3600.0

        found = run(cases, seed, hours, wanted, Path(folder), lead_hours, progress)
    show(as_json, found.as_json(), table(found))


def table(found: Rehearsal) -> list[str]:
    """The outcome as text."""
    lines = [
        f"{found.cases} simulated GPUs with a thermal drift, {found.hours:g} h each, seed {found.seed}",
        f"limit lowered in {found.engaged} cases, {found.writes} writes; "
        f"at the floor and still too hot: {found.exhausted}",
        f"limits as before at the end: {found.restored} of {found.cases}",
        "reversals in a case: " + ", ".join(f"{number} in {count}" for number, count in found.turns.items()),
        "",
        f"{'':<16}{'below slowdown':>16}{'lost, median':>14}{'lost, p90':>12}{'slowed, min':>13}{'hottest, C':>12}",
    ]
    return [*lines, *map(_row, found.arms)]


def _row(arm: ArmResult) -> str:
    return (
        f"{arm.name:<16}{arm.kept_below_slowdown:>16.1%}{_percent(arm.throughput_lost_median):>14}"
        f"{_percent(arm.throughput_lost_p90):>12}{arm.slowed_minutes:>13.1f}{arm.hottest_over_slowdown_c:>+12.1f}"
    )


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


COMMANDS = [rehearse]

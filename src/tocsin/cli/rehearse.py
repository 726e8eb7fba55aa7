"""`tocsin rehearse`: what an action would do, and whom the pager would wake, tried on the simulated fleet."""

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
    from tocsin.client.models_pager import PagerReport, StatementScore
    from tocsin.offline.rehearsal import ArmResult, Rehearsal
    from tocsin.queries.pager_score import PagerBar

MOST_DECIDED = 10
"""Lines of the most frequent decisions."""


@click.group()
def rehearse() -> None:
    """Try an action, or the pager itself, on the simulated fleet and compare it with what knows nothing."""


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


@rehearse.command()
@click.option("--gpus", type=click.IntRange(1, 10_000), default=64, show_default=True, help="Size of the fleet.")
@click.option("--days", type=click.FloatRange(0.01, 366), default=2.0, show_default=True, help="Length of the run.")
@click.option("--seed", type=int, default=1, show_default=True, help="The same seed gives the same report.")
@click.option(
    "--fault-scale",
    type=click.FloatRange(0, 1000),
    default=30.0,
    show_default=True,
    help="Multiplier on the published fault rates; 0: a quiet fleet.",
)
@click.option(
    "--life",
    type=click.Choice(["software"]),
    help="Software crashes, leaks and fragmentation at their own rates and benign precursors at 30 times theirs, "
    "whatever --fault-scale says of hard faults.",
)
@click.option(
    "--scenario", type=click.Path(path_type=Path), help="Scenario file of the simulator; default: the shipped one."
)
@click.option(
    "--bars", "judge", is_flag=True, help="Exit 1 where a bar of this life is missed; each is named on stderr."
)
@json_option
@pass_context
@with_bars
def fleet(
    context: CliContext,
    gpus: int,
    days: float,
    seed: int,
    fault_scale: float,
    life: str | None,
    scenario: Path | None,
    judge: bool,
    as_json: bool,
) -> int:
    """Run the whole service over a simulated fleet at live cadences, and judge every page, warning and forecast."""
    from tocsin.forecaster.live.worker_process import one_thread

    one_thread()
    from tocsin.runtime.fleet_rehearsal import STEPS_PER_DAY, RehearsalPlan, rehearse_fleet

    configure_logging("error", context.settings.log.format)
    plan = RehearsalPlan(gpus, days, seed, fault_scale, life == "software", scenario)
    with work("rehearsal", days * STEPS_PER_DAY) as bar:
        report = rehearse_fleet(plan, context.settings, bar.advance)
    show(as_json, report.model_dump(mode="json"), pager_lines(report, plan.life))
    missed = missed_bars(report, plan.life) if judge else []
    for line in missed:
        click.echo(line, err=True)
    return 1 if missed else 0


@rehearse.command("set")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option("--gpus", type=click.IntRange(1, 10_000), default=256, show_default=True, help="Size of each fleet.")
@click.option("--days", type=click.FloatRange(0.01, 366), default=14.0, show_default=True, help="Length of each run.")
@click.option("--seed", "seeds", type=int, multiple=True, help="Seed of a run; repeatable. Default: the full set's.")
@click.option(
    "--life",
    "lives",
    type=click.Choice(["quiet", "software", "faults"]),
    multiple=True,
    help="What the fleets live through; may be repeated. Default: all three.",
)
@click.option("--page", type=click.Path(path_type=Path, dir_okay=False), help="Also write this page from the reports.")
@click.option("--only-page", is_flag=True, help="Run nothing; write the page from the reports that are finished.")
@click.option("--commit", default="", help="What makes the reports, for the record: the commit.")
@pass_context
def whole_set(
    context: CliContext,
    folder: Path,
    gpus: int,
    days: float,
    seeds: tuple[int, ...],
    lives: tuple[str, ...],
    page: Path | None,
    only_page: bool,
    commit: str,
) -> None:
    """Rehearse each life and seed whose report is not in FOLDER yet, one at a time; finished reports stay there."""
    from tocsin.forecaster.live.worker_process import one_thread

    one_thread()
    from tocsin.domain.atomic_file import write_atomically
    from tocsin.queries.pager_score import LIVES
    from tocsin.runtime import rehearsal_set

    configure_logging("error", context.settings.log.format)
    plans = rehearsal_set.plans_of(lives or LIVES, seeds, gpus, days)
    for path in () if only_page else rehearsal_set.run_set(folder, plans, context.settings, commit=commit):
        click.echo(f"finished: {path}")
    if page is not None:
        asked = rehearsal_set.FullSet(gpus, days)
        write_atomically(page, rehearsal_set.page(rehearsal_set.kept(folder), asked), 0o644)
        click.echo(f"written: {page}")


@rehearse.command()
@click.option("--gpus", type=click.IntRange(1, 10_000), default=192, show_default=True, help="Size of each fleet.")
@click.option("--days", type=click.FloatRange(0.01, 366), default=4.0, show_default=True, help="Length of each run.")
@click.option(
    "--seed",
    "seeds",
    type=int,
    multiple=True,
    default=(1001, 1002),
    show_default=True,
    help="Seed of a fleet; may be repeated. Fleets that judge the forecasts must have others.",
)
@click.option(
    "--fault-scale",
    type=click.FloatRange(0, 1000),
    default=30.0,
    show_default=True,
    help="Multiplier on the published fault rates, alike for those that come and signs that lead to nothing.",
)
@click.option(
    "--trend-every",
    type=click.IntRange(1, 10_000),
    default=6,
    show_default=True,
    help="Ask the trend model, which costs most, about one GPU in so many.",
)
@click.option("--commit", default="", help="What made it, for the record: the commit.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="File to write; default: print it.")
@with_bars
def prior(
    gpus: int,
    days: float,
    seeds: tuple[int, ...],
    fault_scale: float,
    trend_every: int,
    commit: str,
    out: Path | None,
) -> None:
    """Count what each kind of forecast is worth in simulated fleets: what a site begins with that has no record yet."""
    from tocsin.domain.atomic_file import write_atomically
    from tocsin.offline.statement_prior import STEPS_PER_DAY, PriorPlan, count, document

    plan = PriorPlan(gpus, days, seeds, fault_scale, trend_every, commit)
    with work("rehearsal", days * STEPS_PER_DAY * len(seeds)) as bar:
        text = document(count(plan, bar.advance))
    if out is None:
        click.echo(text, nl=False)
    else:
        write_atomically(out, text, 0o644)
        click.echo(f"written: {out}")


def pager_lines(report: PagerReport, life: str) -> list[str]:
    """The report as text: bars first, then what was wrong, then the kinds of statement."""
    from tocsin.queries.pager_score import FAULTS, bars
    from tocsin.queries.statement_bars import statement_bars

    lines = [
        f"{report.gpus} simulated GPUs, {report.days:g} days, {life}: {report.hard_faults} hard faults, "
        f"{report.pages} pages, {report.warnings} warnings, {report.notes} notes, {report.decisions} decisions, "
        f"{report.breaker_trips} trips of the breaker ({report.breaker_trips_by_forecast} by a forecast)",
        "",
    ]
    judged = bars(report, life, report.days, report.breaker_trips_by_forecast)
    lines += [f"{'ok' if bar.reached else 'MISSED':<8}{_bar(bar)}" for bar in judged]
    if life == FAULTS:
        lines += ["", "forecasts and early warnings (one run has few cases):"]
        lines += [f"{'ok' if bar.reached else 'missed':<8}{_bar(bar)}" for bar in statement_bars([report])]
    wrong = [f"  {one.count:>5} {one.level} {one.rule}: {one.reason}" for one in report.wrong]
    apart = [f"  {one.count:>5} warning {one.rule}: not judged" for one in report.not_judged or ()]
    made = [f"  {one.count:>5} {one.rule}, {one.action}: {one.end}" for one in report.decided[:MOST_DECIDED]]
    lines += ["", "wrong pages and warnings:", *(wrong or ["  none"]), *apart]
    lines += ["", "decisions on actions, the most frequent:", *(made or ["  none"]), "", "kinds of statement:"]
    return [*lines, *map(_statement, report.statements)]


def missed_bars(report: PagerReport, life: str) -> list[str]:
    """A line for each bar of `life` that the report misses; empty where all are reached."""
    from tocsin.queries.pager_score import bars

    judged = bars(report, life, report.days, report.breaker_trips_by_forecast)
    return [f"missed: {_bar(bar)}" for bar in judged if not bar.reached]


def _bar(bar: PagerBar) -> str:
    figure = "not known" if bar.figure is None else f"{bar.figure:.3g}"
    return f"{bar.name}: {figure} ({bar.wanted})"


def _statement(one: StatementScore) -> str:
    told = "" if one.stated is None else f", stated {one.stated:.2f}, observed {one.observed or 0.0:.2f}"
    skill = "" if one.brier_skill is None else f", Brier skill {one.brier_skill:.2f}"
    return f"  {one.kind}: {one.right} of {one.settled} right, {one.pending} not over{told}{skill}"


COMMANDS = [rehearse]

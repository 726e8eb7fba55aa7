"""The full set of rehearsals: one life and seed at a time, each finished report kept, and a page made from them."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ValidationError

from tocsin.client.models_pager import PagerReport, WarningPolicy
from tocsin.config.settings import Settings
from tocsin.domain.atomic_file import write_atomically
from tocsin.domain.errors import InputError
from tocsin.domain.grouping import grouped
from tocsin.domain.words import counted
from tocsin.queries.pager_score import BREAKER, FAULTS, LIVES, QUIET, SOFTWARE, bars, passes
from tocsin.queries.statement_bars import bins_of, less, pooled_score, statement_bars, ways_of
from tocsin.runtime.fleet_rehearsal import RehearsalPlan, rehearse_fleet

FAULT_SCALE = 30.0
"""Times the published rates, so that a fortnight has enough hard faults to count."""
SEEDS = {QUIET: range(101, 106), SOFTWARE: range(101, 106), FAULTS: range(101, 108)}
"""Five of each life; two more with faults, as in five too few links and rows fail after a sign (`LEAST_FAULTS`)."""
GPUS, DAYS = 256, 14.0
"""The full set."""
MOST_CPU_MINUTES, CPU_GPU_DAYS = 30.0, 256 * 7.0
"""CPU time that a run of so many GPU-days may take at most; others in proportion."""
_NAME = re.compile(r"(?P<life>[a-z]+)-(?P<seed>\d+)-(?P<gpus>\d+)x(?P<days>\d+(?:\.\d+)?)\.json")

Run = Callable[[RehearsalPlan, Settings], PagerReport]


class ReportFile(BaseModel):
    """What a file of a finished rehearsal holds: the report, the commit that made it, empty where untold, and the CPU
    time of the process that it took, None where untold. The time is no part of the report: that is alike each time."""

    commit: str = ""
    cpu_seconds: float | None = None
    report: PagerReport


@dataclass(frozen=True, slots=True)
class KeptReport:
    """A finished rehearsal, as its file has it."""

    life: str
    seed: int
    report: PagerReport
    commit: str = ""
    cpu_seconds: float | None = None


def plan_of(life: str, seed: int, gpus: int, days: float) -> RehearsalPlan:
    """The rehearsal of one life."""
    return RehearsalPlan(gpus, days, seed, FAULT_SCALE if life == FAULTS else 0.0, software=life == SOFTWARE)


def file_of(folder: Path, plan: RehearsalPlan) -> Path:
    """Where the report of `plan` is kept."""
    return folder / f"{plan.life}-{plan.seed}-{plan.gpus}x{plan.days:g}.json"


def plans_of(lives: Iterable[str], seeds: Iterable[int], gpus: int, days: float) -> list[RehearsalPlan]:
    """Each life with each seed, those of the full set where none is given; all lives of a seed together."""
    asked = list(seeds)
    pairs = [(seed, place, life) for place, life in enumerate(lives) for seed in asked or SEEDS[life]]
    return [plan_of(life, seed, gpus, days) for seed, _, life in sorted(pairs)]


def run_set(
    folder: Path,
    plans: Iterable[RehearsalPlan],
    settings: Settings,
    run: Run = rehearse_fleet,
    commit: str = "",
    cpu: Callable[[], float] = time.process_time,
) -> Iterator[Path]:
    """Rehearse each plan whose report is not in `folder` yet, or is of a fleet that began new; gives each file as it is
    finished. For the record: `commit` is what made the reports, `cpu` tells the seconds of CPU time that this process
    has used. Raises InputError for a file that is no report."""
    folder.mkdir(parents=True, exist_ok=True)
    for plan in plans:
        path = file_of(folder, plan)
        if not path.exists() or _began_new(plan.life, _read(path).report):
            begun = cpu()
            report = run(plan, settings)
            made = ReportFile(commit=commit, cpu_seconds=cpu() - begun, report=report)
            write_atomically(path, json.dumps(made.model_dump(mode="json"), indent=1) + "\n", 0o644)
            yield path


def kept(folder: Path) -> list[KeptReport]:
    """The finished reports of `folder`. Raises InputError for a file that is none."""
    found = []
    for path in sorted(folder.glob("*.json")):
        named = _NAME.fullmatch(path.name)
        if named is None or named["life"] not in LIVES:
            continue
        file = _read(path)
        found.append(KeptReport(named["life"], int(named["seed"]), file.report, file.commit, file.cpu_seconds))
    return found


def _read(path: Path) -> ReportFile:
    try:
        return ReportFile.model_validate_json(path.read_bytes())
    except ValidationError as error:
        why = f"is no report of a rehearsal: {error.errors()[0]['msg']}"
        raise InputError("report", str(path), why, "remove it; the next run makes it anew") from None


def _began_new(life: str, report: PagerReport) -> bool:
    """Whether its fleet began without precursors; where nothing fails there are none to begin with."""
    return life != QUIET and not report.under_way


# The page.

_INTRO = """# Rehearsals of the pager

Made by `tocsin rehearse set` from finished reports alone; do not edit. Each rehearsal is the whole service over a
simulated fleet: readings every 60 s, forecasts every `forecast.every_seconds`, rules, incidents, decisions and
notifications in step with the fleet's time ([simulation.md](simulation.md)). A fleet begins with as many precursors
under way as at any other time; one that began without is listed as new and left out. *Quiet*: nothing fails.
*Software*: crashes, leaks and fragmentation at their own rates, benign precursors at 30 times theirs, no hard fault.
*Faults*: all rates times 30.

A page is right if it names a GPU, host or rack of a hard fault between its first symptom and 10 minutes after its
onset. Levels are those at which a receiver with the default settings hears of it. A warning of the breaker is right if
as many of the root causes that tripped it as it takes were hard faults of the hour before. Of other warnings about a
pool or the fleet the simulator's account says nothing, nor do older reports of what tripped a breaker: they are not
judged.

Decisions end *executed*, *rejected*, *proposed* (a yes alone was missing, nobody gave it), *expired* (a guard held them
until their cause or their time was over) or *held* to the end of the run.
"""
MOST_SHOWN = 10
"""Rows of the most frequent decisions."""
_ABOUT_FLEET = frozenset({BREAKER, "fleet_fragmented"})
"""Rules whose alerts older reports call wrong because they name no GPU or host."""


@dataclass(frozen=True, slots=True)
class FullSet:
    """What the page asks of a run to be one of the set: its figures are of such runs alone."""

    gpus: int = GPUS
    days: float = DAYS

    def has(self, one: KeptReport) -> bool:
        """Whether the run is as large and as long as the set asks for, and began with precursors under way."""
        return one.report.gpus >= self.gpus and one.report.days >= self.days and not _began_new(one.life, one.report)

    def runs(self, reports: Iterable[KeptReport]) -> list[KeptReport]:
        """Those of the set, of each seed the largest."""
        largest: dict[int, KeptReport] = {}
        for one in filter(self.has, reports):
            known = largest.get(one.seed)
            if known is None or (one.report.gpus, one.report.days) > (known.report.gpus, known.report.days):
                largest[one.seed] = one
        return [largest[seed] for seed in sorted(largest)]


def page(reports: Sequence[KeptReport], asked: FullSet = FullSet()) -> str:
    """The page in Markdown; lives without a finished report have no section, those without a full run no bars."""
    lines = [_INTRO, size(reports, asked), ""]
    for life in LIVES:
        mine = [one for one in reports if one.life == life]
        full = asked.runs(mine)
        if mine:
            lines += [f"## {life.capitalize()}", "", *_runs(life, mine, asked), _stands_on(life, full), ""]
        if full:
            lines += [*_nulls(life, full), *_wrong(full), *_decided(full), *_together(life, full)]
            lines += [*_statements(full), *_early(life, full)]
    if not reports:
        lines.append("No rehearsal is finished yet.")
    return "\n".join(lines).rstrip() + "\n"


def _stands_on(life: str, full: Sequence[KeptReport]) -> str:
    if not full:
        return "No run of the full set's size is finished: there are no bars."
    seeds = ", ".join(str(one.seed) for one in full)
    return f"Figures below are of {len(full)} of {len(SEEDS[life])} seeds: {seeds}."


def _runs(life: str, mine: Sequence[KeptReport], asked: FullSet) -> list[str]:
    tables = [bars(one.report, life, one.report.days, one.report.breaker_trips_by_forecast) for one in mine]
    head = [f"{bar.name} ({bar.wanted})" for bar in tables[0]]
    first = (
        "seed",
        "commit",
        "fleet",
        f"CPU minutes (256 GPUs x 7 days: at most {MOST_CPU_MINUTES:g})",
        "hard faults",
        "decisions a day",
        "breaker trips, by a forecast",
        "pages",
    )
    rows = [f"| {' | '.join((*first, *head))} |", "|---" * (len(first) + len(head)) + "|"]
    for one, table in zip(mine, tables, strict=True):
        report, full = one.report, asked.has(one)
        figures = [f"{_number(bar.figure)}{'' if bar.reached or not full else ' **missed**'}" for bar in table]
        run = (
            str(one.seed),
            _commit(one) or "-",
            f"{report.gpus} GPUs, {report.days:g} days{_left_out(one, asked)}",
            _cpu(one, full),
            str(report.hard_faults),
            f"{report.decisions / report.days:.0f}",
            f"{report.breaker_trips}, {report.breaker_trips_by_forecast}",
            str(report.pages),
        )
        rows.append(f"| {' | '.join((*run, *figures))} |")
    return [*rows, ""]


def _cpu(one: KeptReport, judged: bool) -> str:
    """CPU minutes beside the most that a run of its size may take."""
    if one.cpu_seconds is None:
        return "-"
    minutes, most = one.cpu_seconds / 60.0, MOST_CPU_MINUTES * one.report.gpus * one.report.days / CPU_GPU_DAYS
    return f"{minutes:.3g} (at most {most:.3g}){' **missed**' if judged and minutes > most else ''}"


def _left_out(one: KeptReport, asked: FullSet) -> str:
    """Why the run is none of the set."""
    short = one.report.gpus < asked.gpus or one.report.days < asked.days
    return (", short" if short else "") + (", new" if _began_new(one.life, one.report) else "")


def _commit(one: KeptReport) -> str:
    return one.commit[:8]


def _nulls(life: str, mine: Sequence[KeptReport]) -> list[str]:
    names = dict.fromkeys(name for one in mine for name in one.report.nulls)
    lines = ["The same scorer on ways of paging that know nothing:", ""]
    for name in names:
        passed = sum(passes(one.report.nulls[name], life, one.report.days) for one in mine if name in one.report.nulls)
        lines.append(f"- *{name}* reaches all bars in {passed} of {len(mine)} runs.")
    return [*lines, ""]


def _of_before(report: PagerReport, rule: str) -> bool:
    """Whether a report of before there was `not_judged` calls the alerts of a rule about the fleet wrong."""
    return report.not_judged is None and rule in _ABOUT_FLEET


def _wrong(mine: Sequence[KeptReport]) -> list[str]:
    counts: Counter[tuple[str, str, str]] = Counter()
    apart: Counter[str] = Counter()
    for report in (one.report for one in mine):
        for wrong in report.wrong:
            if _of_before(report, wrong.rule):
                apart[wrong.rule] += wrong.count
            else:
                counts[wrong.level, wrong.rule, wrong.reason] += wrong.count
        for one in report.not_judged or ():
            apart[one.rule] += one.count
    rows = ["| wrong | level | rule | what was there |", "|---|---|---|---|"] if counts else []
    rows += [f"| {count} | {level} | `{rule}` | {why} |" for (level, rule, why), count in counts.most_common()]
    told = ", ".join(f"{count} `{rule}`" for rule, count in apart.most_common())
    return [*rows, *([""] if rows else []), *([f"Not judged: {told}.", ""] if apart else [])]


def _decided(mine: Sequence[KeptReport]) -> list[str]:
    """The most frequent decisions of the runs whose reports count them."""
    told = [one.report for one in mine if one.report.decided]
    if not told:
        return []
    counts: Counter[tuple[str, str, str]] = Counter()
    for report in told:
        for one in report.decided:
            counts[one.rule, one.action, one.end] += one.count
    days = sum(report.days for report in told)
    heading = f"Decisions on actions, the most frequent, of {len(told)} of these {len(mine)} runs:"
    rows = [heading, "", "| a day | rule | action | end |", "|---:|---|---|---|"]
    largest = sorted(counts.items(), key=lambda one: (-one[1], one[0]))[:MOST_SHOWN]
    rows += [f"| {count / days:.3g} | `{rule}` | `{action}` | {end} |" for (rule, action, end), count in largest]
    return [*rows, ""]


def _statements(mine: Sequence[KeptReport]) -> list[str]:
    groups = grouped(
        (score.kind, (one.report.days, score))
        for one in mine
        for score in one.report.statements
        if not _of_before(one.report, score.kind.removeprefix("rule "))
    )
    rows = ["| kind of statement | settled | right | stated | observed | Brier skill | muted |", "|---" * 7 + "|"]
    for kind in sorted(groups):
        score = pooled_score(groups[kind])
        shares = map(_number, (score.stated, score.observed, score.brier_skill, score.muted_share))
        rows.append(f"| {kind} | {score.settled} | {score.right} | {' | '.join(shares)} |")
    return [*rows, ""]


def _early(life: str, mine: Sequence[KeptReport]) -> list[str]:
    reports = [one.report for one in mine]
    families = dict.fromkeys(early.family for report in reports for early in report.early)
    found = {family: ways_of(reports, family) for family in families}
    told = {family: ways for family, ways in found.items() if ways[0].faults or ways[0].warnings}
    if life == QUIET or not told:
        return []
    rows = [
        "| family | way of warning | warnings | precision | faults | warned with half the lead | service less it: "
        "precision | warned | the service is |",
        "|---" * 9 + "|",
    ]
    rows += [f"| {family} | {_beside(ways[0], way)} |" for family, ways in told.items() for way in ways]
    verdict = "Differences are 95 % intervals; the service is above a way of warning where both begin above 0."
    return [*rows, "", verdict, ""]


def _beside(service: WarningPolicy, way: WarningPolicy) -> str:
    figures = f"{way.name} | {way.warnings} | {_number(way.precision)} | {way.faults} | {_number(way.recall)}"
    if way is service:
        return f"{figures} | - | - | -"
    precision = less((service.right, service.warnings), (way.right, way.warnings))
    warned = less((service.warned, service.faults), (way.warned, way.faults))
    return f"{figures} | {_between(precision)} | {_between(warned)} | {_verdict(precision, warned)}"


def _verdict(*apart: tuple[float, float] | None) -> str:
    known = [ends for ends in apart if ends is not None]
    if len(known) < len(apart):
        return "-"
    return "above" if all(low > 0 for low, _ in known) else "not above"


def _between(ends: tuple[float, float] | None) -> str:
    return "-" if ends is None else f"{ends[0]:+.2f} to {ends[1]:+.2f}"


def _together(life: str, mine: Sequence[KeptReport]) -> list[str]:
    """What forecasts and early warnings are held to, over all seeds: a run has too few cases of most kinds."""
    if life != FAULTS:
        return []
    reports = [one.report for one in mine]
    heading = f"Forecasts and early warnings, {len(mine)} of {len(SEEDS[life])} seeds together:"
    rows = [heading, "", "| bar | asked for | reached | verdict |"]
    rows.append("|---|---|---:|---|")
    for bar in statement_bars(reports):
        verdict = "holds" if bar.reached else "**does not hold**"
        rows.append(f"| {bar.name} | {bar.wanted} | {_number(bar.figure)} | {verdict} |")
    rows += ["", "| stated probability | cases | mean stated | observed |", "|---|---:|---:|---:|"]
    bins = bins_of(score for report in reports for score in report.statements)
    rows += [f"| {one.low:g} to {one.high:g} | {one.cases} | {one.stated:.3f} | {one.observed:.3f} |" for one in bins]
    return [*rows, ""]


def size(reports: Sequence[KeptReport], asked: FullSet = FullSet()) -> str:
    """How much the page stands on, against the full set."""
    runs = ", ".join(f"{life} with {len(SEEDS[life])} seeds" for life in LIVES)
    told = f"The full set is {runs}, {asked.gpus} GPUs for {asked.days:g} days a run."
    if not reports:
        return f"{told} No run is finished."
    full = grouped((one.life, str(one.seed)) for one in reports if asked.has(one))
    which = "; ".join(f"{life} {', '.join(seeds)}" for life, seeds in full.items())
    commits = len({_commit(one) for one in reports if one.commit})
    stem = f"stem from {counted(commits, 'commit')}" if commits else "name no commit"
    others = len(reports) - sum(map(len, full.values()))
    left_out = f" {counted(others, 'other run')}: listed, left out of all figures below the lists." if others else ""
    return f"{told} Of that size: {which or 'none'}.{left_out} The reports {stem}."


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"

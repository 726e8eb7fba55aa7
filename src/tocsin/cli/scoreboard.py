"""`tocsin scoreboard`: what the running service said would happen, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

import click

from tocsin.cli.common import (
    CliContext,
    api_options,
    cell_option,
    connect,
    json_option,
    pass_context,
    show,
    spans_cells,
)

if TYPE_CHECKING:
    from tocsin.client.client import Client
    from tocsin.client.models import ActionScore, HazardScore, PredictionScore, RuleScore, Scoreboard
    from tocsin.client.models_pager import PagerReport, StatementScore

_HOUR = 3600.0


@click.command()
@api_options
@click.option(
    "--report", is_flag=True, help="Show the pager's report on the last fortnight, of this cell or each --cell."
)
@cell_option
@json_option
@pass_context
def scoreboard(
    context: CliContext, api_url: str | None, token: str | None, report: bool, cells: tuple[str, ...], as_json: bool
) -> None:
    """Show what Tocsin would have done, how often that would have been right, and how predictions turned out; of each
    cell of a fleet of several."""
    with connect(context, api_url, token) as client:
        if report:
            _show_reports(client, cells, as_json)
            return
        if spans_cells(client, cells):
            from tocsin.client.whole import said

            whole = client.cells_scoreboard(cells)
            lines = said(whole)
            for name, board in sorted(whole.answers.items()):
                lines += [f"{name}:", *(f"  {line}" for line in _lines(board))]
            show(as_json, whole.model_dump(mode="json"), lines, client.base_url)
            return
        board = client.scoreboard()
    show(as_json, board.model_dump(mode="json"), _lines(board), client.base_url)


def _show_reports(client: Client, cells: Sequence[str], as_json: bool) -> None:
    """The pager's report of each of `cells`; where none is named, of the brain that is asked. Cells count different
    faults over different times, so that their reports are not added up."""
    if not cells:
        found = client.pager_report()
        show(as_json, found.model_dump(mode="json"), _report(found), client.base_url)
        return
    answers = {name: client.at(name).pager_report() for name in sorted(set(cells))}
    lines = [line for name, one in answers.items() for line in (f"{name}:", *(f"  {each}" for each in _report(one)))]
    told = {name: one.model_dump(mode="json") for name, one in answers.items()}
    show(as_json, {"answers": told}, lines, client.base_url)


def _lines(board: Scoreboard) -> list[str]:
    from tocsin.terminal.text import whole_seconds

    marked = " (simulated)" if board.simulated else ""
    lines = [
        f"{whole_seconds(board.since)} to {whole_seconds(board.until)}{marked}, mode {board.mode}",
        f"decisions: {board.decisions}, {board.would_have_acted} would have acted, {board.executed} executed, "
        f"{board.held} held, {board.confirmed} confirmed by a hardware event",
        *(_rule(one) for one in board.rules),
        *(_action(one) for one in board.actions),
        _crossings(board.predictions),
        *(f"  {one.sentence}" for one in board.kinds),
    ]
    return lines + [line for one in board.hazards for line in _hazard(one)]


def _report(report: PagerReport) -> list[str]:
    marked = " (simulated)" if report.simulated else ""
    lines = [
        f"{report.days:.1f} days of {report.gpus} GPUs{marked}: {report.pages} pages, {report.warnings} warnings, "
        f"{report.notes} notes, {report.decisions} decisions, {report.breaker_trips} trips of the breaker",
        f"hard faults with an event line: {report.hard_faults}, paged {_part(report.recall)}, within two minutes "
        f"{_part(report.prompt_recall)}, right pages for each {_number(report.pages_per_cause)}",
        *(f"  {one.kind}: {one.paged} of {one.faults} paged, {one.prompt} at once" for one in report.faults),
        *(f"  {_statement(one)}" for one in report.statements),
    ]
    return [*lines, *(f"not known: {name}: {why}" for name, why in sorted(report.unknown.items()))]


def _statement(one: StatementScore) -> str:
    """Claims that something comes, and apart from them all that stated how likely it is, which are more."""
    claims = f"{one.right} of {one.settled} claims right" if one.settled else "no claim is over"
    stated = sum(row.cases for row in one.bins)
    chances = f", {stated} probabilities stated: mean {_part(one.stated)}, observed {_part(one.observed)}"
    muted = f", muted {_part(one.muted_share)} of the time"
    return f"{one.kind}: {claims}, {one.pending} not over{chances if stated else ''}{muted}"


def _rule(rule: RuleScore) -> str:
    made = "1 decision" if rule.decisions == 1 else f"{rule.decisions} decisions"
    return (
        f"  {rule.rule} ({rule.action}): {made}, {rule.confirmed} confirmed, "
        f"{rule.unconfirmed} not, {rule.pending} pending"
    )


def _action(one: ActionScore) -> str:
    effects = "".join(f", {name} {value:.3g}" for name, value in sorted(one.effects.items()))
    return f"  {one.action}: worked {one.worked} of {one.tried} times{effects}"


def _crossings(told: PredictionScore) -> str:
    lead = f", median lead {median(told.lead_s) / _HOUR:.1f} h" if told.lead_s else ""
    return (
        f"predicted crossings: {told.made} made, {told.hits} hit, {told.misses} missed, {told.pending} pending; "
        f"{told.within_interval} within their interval{lead}"
        + ("" if told.hits + told.misses else "; not yet scored: no window is over")
    )


def _hazard(one: HazardScore) -> list[str]:
    lead = f", median lead {median(one.lead_s) / _HOUR:.1f} h" if one.lead_s else ""
    lines = [
        f"{one.model}, {one.target} within {one.horizon_s / _HOUR:g} h: {one.predictions} predictions over "
        f"{one.gpu_days:.1f} GPU-days, {one.pending} pending",
        f"  onsets: {one.onsets}, warned {_part(one.onset_recall)}, 24 h before {_part(one.onset_recall_24h)}, "
        f"48 h before {_part(one.onset_recall_48h)}{lead}",
        f"  warnings: {one.alarms}, {one.false_alarms} false, "
        f"{_number(one.false_alarms_per_1000_gpu_days)} per 1,000 GPU-days; precision {_part(one.precision)}, "
        f"recall {_part(one.recall)}",
        f"  probabilities: ROC-AUC {_number(one.roc_auc)}, AUPRC {_number(one.auprc)} "
        f"(base rate {_number(one.base_rate)}), Brier {_number(one.brier)}, "
        f"calibration error {_number(one.calibration_error)}",
        f"  operators: {one.approved} approved, {one.rejected} rejected",
    ]
    if not one.predictions:
        return [lines[0], "  not yet scored: no window is over"]
    return lines + [
        f"    stated {row.low:g} to {row.high:g}: mean {row.stated:.3g}, observed {row.observed:.3g} "
        f"over {row.gpu_days:.1f} GPU-days"
        for row in one.reliability
    ]


def _part(value: float | None) -> str:
    return "-" if value is None else f"{value * 100:.0f} %"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


COMMANDS: list[click.Command] = [scoreboard]

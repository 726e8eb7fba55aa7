"""`tocsin status`: the fleet and the service on one page."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import click

from tocsin.cli.cards import hidden_line, summary_lines
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
from tocsin.client.wire import to_json
from tocsin.domain.alert_level import AlertLevel
from tocsin.domain.clock import from_iso, optional_iso

if TYPE_CHECKING:
    from tocsin.client.client import Client
    from tocsin.client.control import Readiness
    from tocsin.client.models import DecisionOut, FleetSummary
    from tocsin.domain.prediction import Prediction


# How the service itself is, from its own metrics.

NAMES = (
    "tocsin_brain_active",
    "tocsin_store_writes_total",
    "tocsin_store_write_failures_total",
    "tocsin_store_damaged_segments",
    "tocsin_store_damaged_rows",
    "tocsin_forecast_seconds_count",
    "tocsin_forecast_failures_total",
    "tocsin_forecast_worker_deaths",
    "tocsin_model_silent_gpus",
    "tocsin_loop_failures_total",
    "tocsin_promql_up",
    "tocsin_promql_gpus",
)
"""Own metrics that `tocsin status` looks at."""
_BAD = (
    "tocsin_store_write_failures_total",
    "tocsin_store_damaged_segments",
    "tocsin_store_damaged_rows",
    "tocsin_forecast_failures_total",
    "tocsin_forecast_worker_deaths",
    "tocsin_loop_failures_total",
)


def own_metrics(page: str) -> dict[str, float]:
    """Metric to value, of those in `NAMES` that `page` has; samples with different labels are added up."""
    from prometheus_client.parser import text_string_to_metric_families

    found: dict[str, float] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name in NAMES:
                found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


def needs_a_look(service: Mapping[str, float]) -> bool:
    """Whether anything has failed since the brain started, or a server that it should read cannot be read now."""
    return any(service.get(name, 0.0) > 0 for name in _BAD) or service.get("tocsin_promql_up", 1.0) == 0


def health_lines(ready: Readiness, service: Mapping[str, float]) -> list[str]:
    """Brain, store and forecaster, a line each, and the source `promql` where there is one."""

    def count(name: str) -> int:
        return round(service.get(name, 0.0))

    waits = "; ".join(ready.reasons) or "no reason given"
    standby = "" if service.get("tocsin_brain_active", 1.0) else ", on standby: another brain holds the lease"
    loops = count("tocsin_loop_failures_total")
    brain = f"brain: {'ready' if ready.ready else f'not ready ({waits})'}{standby}"
    damaged = count("tocsin_store_damaged_segments")
    rows = count("tocsin_store_damaged_rows")
    store = f"store: {count('tocsin_store_writes_total')} writes, {count('tocsin_store_write_failures_total')} failed"
    silent = count("tocsin_model_silent_gpus")
    forecaster = (
        f"forecaster: {count('tocsin_forecast_seconds_count')} forecasts, "
        f"{count('tocsin_forecast_failures_total')} failed, worker died {count('tocsin_forecast_worker_deaths')} times"
    )
    return [
        brain + (f"; {loops} unexpected errors (see its log)" if loops else ""),
        store
        + (f", {damaged} files damaged and set aside (see docs/store_embedded.md)" if damaged else "")
        + (f", {rows} rows damaged and set aside (see docs/store_embedded.md)" if rows else ""),
        forecaster + (f"; no forecast for {silent} GPUs" if silent else ""),
        *_promql_line(service),
    ]


def _promql_line(service: Mapping[str, float]) -> list[str]:
    """The source `promql`; no line where the brain reads none."""
    if "tocsin_promql_up" not in service:
        return []
    if not service["tocsin_promql_up"]:
        return ["promql: nothing can be read (the log of the brain has the reason; see docs/promql.md)"]
    return [f"promql: {round(service.get('tocsin_promql_gpus', 0.0))} GPUs in the last answers"]


_MOST_SHOWN = 8
"""Cards, predictions and decisions that a person is shown of each; --json has all but the cards of tocsin cards."""


@click.command()
@click.option("--check", is_flag=True, help="Exit with 1 if anything needs attention; for scripts and monitoring.")
@cell_option
@api_options
@json_option
@pass_context
def status(
    context: CliContext, check: bool, cells: tuple[str, ...], api_url: str | None, token: str | None, as_json: bool
) -> int:
    """Print the state of the fleet and of the service: cards, predictions, and decisions that need approval.

    Of a fleet of several cells all are asked, and what is printed says which did not answer.

    Exit codes: 0 the brain answered, 3 it does not answer, 5 it refuses the token. With --check also 1: a finding is
    warning or worse, the breaker has tripped, the service itself is unhealthy, or a cell does not answer.
    """
    with connect(context, api_url, token) as client:
        if spans_cells(client, cells):
            return _all_cells(client, cells, check, as_json)
        summary, ready = client.summary(), client.ready()
        incidents, predictions, decisions = client.incidents(), client.predictions(), client.decisions()
        cards = client.cards(_MOST_SHOWN)
        service = own_metrics(client.metrics())
    waiting = [decision for decision in decisions if decision.approvable]
    on_cards = {card.action.decision for card in cards.items if card.action is not None and card.action.can_approve}
    now_ms = from_iso(summary.now)
    ahead = _heard(predictions, now_ms)
    whole = {
        "ready": ready.model_dump(mode="json"),
        "service": service,
        "attention": to_json(incidents),
        "cards": cards.model_dump(mode="json")["items"],
        "hidden": cards.hidden,
        "ahead": to_json(ahead),
        "waiting": to_json(waiting),
    }
    lines = [
        *_summary_lines(summary),
        *summary_lines(cards.items, cards.total),
        *hidden_line(cards),
        *_ahead_lines(ahead, summary.now),
        *_waiting_lines(waiting, on_cards),
        *health_lines(ready, service),
    ]
    show(as_json, summary.model_dump(mode="json") | whole, lines, client.base_url)
    return int(check and _wants_attention(summary, ready, service))


def _heard(predictions: Iterable[Prediction], now_ms: int) -> list[Prediction]:
    """Those of crossings to come; what is made only to be judged is told to nobody."""
    return [one for one in predictions if (one.eta_ms or 0) > now_ms and not one.muted]


def _all_cells(client: Client, cells: Sequence[str], check: bool, as_json: bool) -> int:
    """The same over all cells; how the service is, is that of the brain that was asked."""
    from tocsin.client import whole
    from tocsin.client.whole_cards import fleet_cards

    found, ready = client.cells_summary(cells), client.ready()
    predictions, decisions = client.cells_predictions(cells), client.cells_decisions(cells=cells)
    cards, service = client.cells_cards(_MOST_SHOWN, cells), own_metrics(client.metrics())
    if not found.answers:
        show(as_json, {"cells": found.model_dump(mode="json")}, whole.said(found), client.base_url)
        return int(check)
    summary = whole.whole_summary(found.answers)
    shown, total = fleet_cards(cards.answers, _MOST_SHOWN)
    waiting = [one for one in whole.flat(decisions.answers) if one.approvable]
    ahead = _heard(whole.flat(predictions.answers), from_iso(summary.now))
    on_cards = {
        card.action.decision for one in shown for _, card in one.members if card.action and card.action.can_approve
    }
    document = summary.model_dump(mode="json") | {
        "cells": found.model_dump(mode="json"),
        "ready": ready.model_dump(mode="json"),
        "service": service,
        "cards": {name: one.model_dump(mode="json")["items"] for name, one in cards.answers.items()},
        "ahead": to_json(ahead),
        "waiting": to_json(waiting),
    }
    lines = [
        *whole.said(found),
        *(f"  {name}: {_cell_line(one)}" for name, one in sorted(found.answers.items())),
        *_summary_lines(summary),
        *summary_lines([one.card for one in shown], total, [one.cells for one in shown]),
        *_ahead_lines(ahead, summary.now),
        *_waiting_lines(waiting, on_cards),
        *health_lines(ready, service),
    ]
    show(as_json, document, lines, client.base_url)
    return int(check and (found.partial or _wants_attention(summary, ready, service)))


def _cell_line(one: FleetSummary) -> str:
    states = ", ".join(f"{count} {state}" for state, count in one.states.items() if count) or "no GPU yet"
    paused = f"paused by {one.paused_by}" if one.paused else "running"
    breaker = ", breaker tripped" if one.breaker.tripped else ""
    return f"{one.gpus} GPUs ({states}), mode {one.mode}, {paused}{breaker}, {one.decisions_approvable} to decide"


def _wants_attention(summary: FleetSummary, ready: Readiness, service: Mapping[str, float]) -> bool:
    bad = sum(count for severity, count in summary.findings.items() if severity.rank > 0)
    return bool(bad) or summary.breaker.tripped or not ready.ready or needs_a_look(service)


def _summary_lines(summary: FleetSummary) -> list[str]:
    marked = " (simulated)" if summary.simulated else ""
    paused = f"paused by {summary.paused_by} ({summary.paused_reason or 'no reason given'})"
    tripped = f"breaker tripped ({summary.breaker.reason or 'no reason given'}); tocsin breaker reset"
    breaker = tripped if summary.breaker.tripped else "breaker closed"
    figures = [
        form.format(value * factor)
        for value, form, factor in (
            (summary.utilization_ratio, "{:.0f} % busy", 100.0),
            (summary.memory_used_ratio, "memory {:.0f} % full", 100.0),
            (summary.power_watts, "{:.1f} kW", 0.001),
            (summary.last_reading_age_s, "last reading {:.0f} s ago", 1.0),
        )
        if value is not None
    ]
    found = ", ".join(f"{count} {severity}" for severity, count in summary.findings.items() if count) or "none"
    heard = [f"{summary.levels[one]} {one}" for one in reversed(AlertLevel) if summary.levels.get(one)]
    levels = f" ({', '.join(heard)})" if heard else ""
    states = ", ".join(f"{count} {state}" for state, count in summary.states.items() if count) or "no GPU yet"
    return [
        f"Tocsin {summary.version}: mode {summary.mode}, {paused if summary.paused else 'running'}, {breaker}",
        f"{summary.gpus} GPUs on {summary.hosts} hosts{marked}: {states}",
        *([f"journal: {summary.journal_witness}"] if summary.journal_witness else []),
        *([", ".join(figures)] if figures else []),
        f"findings: {found}; incidents: {summary.incidents}{levels}; predicted crossings: {summary.predictions}",
        *([summary.risk_model] if summary.risk_model else []),
        *summary.muted,
    ]


def _ahead_lines(ahead: Sequence[Prediction], now: str) -> list[str]:
    from tocsin.terminal.text import chance, lead, plain

    lines = [
        f"  {lead(now, *map(optional_iso, (one.eta_ms, one.eta_low_ms, one.eta_high_ms)))}"
        f"{'' if one.probability is None else f', {chance(one.probability)}'}: {plain(one.sentence)}"
        for one in ahead[:_MOST_SHOWN]
    ]
    return ["predicted:", *lines, *_more(len(ahead))] if lines else []


def _waiting_lines(waiting: Sequence[DecisionOut], on_cards: Collection[str]) -> list[str]:
    """Decisions that wait for a person and that no card above asks for."""
    from tocsin.terminal.text import plain

    rest = [decision for decision in waiting if decision.id not in on_cards]
    also = "also " if len(rest) < len(waiting) else ""
    title = f"{also}waiting for a person ({len(rest)}; tocsin approve ID, tocsin reject ID):"
    lines = [f"  {decision.id}  {plain(decision.sentence)}" for decision in rest[:_MOST_SHOWN]]
    return [title, *lines, *_more(len(rest))] if rest else []


def _more(count: int) -> list[str]:
    return [f"  and {count - _MOST_SHOWN} more (see --json)"] if count > _MOST_SHOWN else []


COMMANDS: list[click.Command] = [status]

"""`tocsin status`: the fleet and the service on one page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import click

from tocsin.cli.cards import hidden_line
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
from tocsin.cli.status_lines import Seen, all_lines, first_lines, needs_a_look
from tocsin.client.wire import to_json
from tocsin.domain.clock import from_iso

if TYPE_CHECKING:
    from tocsin.client.client import Client
    from tocsin.client.control import Readiness
    from tocsin.client.models import FleetSummary
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


def own_metrics(page: str) -> dict[str, float]:
    """Metric to value, of those in `NAMES` that `page` has; samples with different labels are added up."""
    from prometheus_client.parser import text_string_to_metric_families

    found: dict[str, float] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name in NAMES:
                found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


_ASKED = 50
"""Cards that are asked for: those that need a person may be of any level."""


@click.command()
@click.option("--all", "everything", is_flag=True, help="All cards, predictions, figures and parts of the service.")
@click.option("--check", is_flag=True, help="Exit with 1 if anything needs attention; for scripts and monitoring.")
@cell_option
@api_options
@json_option
@pass_context
def status(
    context: CliContext,
    everything: bool,
    check: bool,
    cells: tuple[str, ...],
    api_url: str | None,
    token: str | None,
    as_json: bool,
) -> int:
    """Print what needs a person first: cards, decisions that wait for approval, the service where something is wrong.
    Of the rest it prints how much it is.

    Of a fleet of several cells all are asked, and what is printed says which did not answer.

    Exit codes: 0 the brain answered, 3 it does not answer, 5 it refuses the token. With --check also 1: a finding is
    warning or worse, the breaker has tripped, the service itself is unhealthy, or a cell does not answer.
    """
    with connect(context, api_url, token) as client:
        if spans_cells(client, cells):
            return _all_cells(client, cells, _said(everything), check, as_json)
        summary, ready = client.summary(), client.ready()
        incidents, predictions, decisions = client.incidents(), client.predictions(), client.decisions()
        cards = client.cards(_ASKED)
        service = own_metrics(client.metrics())
    waiting = [decision for decision in decisions if decision.approvable]
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
    seen = Seen(summary, ready, service, cards.items, cards.total, waiting, ahead, hidden_line(cards))
    lines = _said(everything)(seen)
    show(as_json, summary.model_dump(mode="json") | whole, lines, client.base_url)
    return int(check and _wants_attention(summary, ready, service))


def _said(everything: bool) -> Callable[[Seen], list[str]]:
    return all_lines if everything else first_lines


def _heard(predictions: Iterable[Prediction], now_ms: int) -> list[Prediction]:
    """Those of crossings to come, one of each metric; what is made only to be judged is told to nobody."""
    from tocsin.domain.prediction import soonest_each

    return soonest_each(one for one in predictions if (one.eta_ms or 0) > now_ms and not one.muted)


def _all_cells(
    client: Client, cells: Sequence[str], lines_of: Callable[[Seen], list[str]], check: bool, as_json: bool
) -> int:
    """The same over all cells; how the service is, is that of the brain that was asked."""
    from tocsin.client import whole
    from tocsin.client.whole_cards import fleet_cards

    found, ready = client.cells_summary(cells), client.ready()
    predictions, decisions = client.cells_predictions(cells), client.cells_decisions(cells=cells)
    cards, service = client.cells_cards(_ASKED, cells), own_metrics(client.metrics())
    if not found.answers:
        show(as_json, {"cells": found.model_dump(mode="json")}, whole.said(found), client.base_url)
        return int(check)
    summary = whole.whole_summary(found.answers)
    shown, total = fleet_cards(cards.answers, _ASKED)
    waiting = [one for one in whole.flat(decisions.answers) if one.approvable]
    ahead = _heard(whole.flat(predictions.answers), from_iso(summary.now))
    document = summary.model_dump(mode="json") | {
        "cells": found.model_dump(mode="json"),
        "ready": ready.model_dump(mode="json"),
        "service": service,
        "cards": {name: one.model_dump(mode="json")["items"] for name, one in cards.answers.items()},
        "ahead": to_json(ahead),
        "waiting": to_json(waiting),
    }
    cards_of, names = [one.card for one in shown], [one.cells for one in shown]
    seen = Seen(summary, ready, service, cards_of, total, waiting, ahead, cells=names)
    lines = [
        *whole.said(found),
        *(f"  {name}: {_cell_line(one)}" for name, one in sorted(found.answers.items())),
        *lines_of(seen),
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


COMMANDS: list[click.Command] = [status]

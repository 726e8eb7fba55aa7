"""Commands to a running brain, over its API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import click

from tocsin.cli.common import Context, api_options, connect, dump, json_option, pass_context

if TYPE_CHECKING:
    from tocsin.client.models import DecisionOut, FleetSummary, IncidentOut

_MOST_SHOWN = 8
"""Incidents and decisions of `tocsin status`; the API has them all."""


@click.command()
@api_options
@json_option
@pass_context
def status(context: Context, api_url: str | None, token: str | None, as_json: bool) -> None:
    """Say how the fleet and the service are, what is worst, and which decisions wait for a person."""
    with connect(context, api_url, token) as client:
        summary = client.summary()
        if as_json:
            dump(summary.model_dump(mode="json"))
            return
        incidents, decisions = client.incidents(), client.decisions()
    for line in (*_summary_lines(summary), *_worst_lines(incidents), *_waiting_lines(decisions)):
        click.echo(line)


def _summary_lines(summary: FleetSummary) -> list[str]:
    marked = " (simulated)" if summary.simulated else ""
    paused = f"paused by {summary.paused_by} ({summary.paused_reason or 'no reason given'})"
    breaker = "breaker tripped" if summary.breaker.tripped else "breaker closed"
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
    states = ", ".join(f"{count} {state}" for state, count in summary.states.items() if count) or "no GPU yet"
    return [
        f"Tocsin {summary.version}: mode {summary.mode}, {paused if summary.paused else 'running'}, {breaker}",
        f"{summary.gpus} GPUs on {summary.hosts} hosts{marked}: {states}",
        *([", ".join(figures)] if figures else []),
        f"findings: {found}; incidents: {summary.incidents}; predicted crossings: {summary.predictions}",
    ]


def _worst_lines(incidents: Sequence[IncidentOut]) -> list[str]:
    worst = sorted((one for one in incidents if one.active), key=lambda one: -one.root.severity.rank)[:_MOST_SHOWN]
    return [f"  {one.root.severity}: {one.sentence}" for one in worst]


def _waiting_lines(decisions: Sequence[DecisionOut]) -> list[str]:
    waiting = [decision for decision in decisions if decision.approvable]
    lines = [f"  {decision.id}  {decision.sentence}" for decision in waiting[:_MOST_SHOWN]]
    title = f"waiting for a person ({len(waiting)}; tocsin approve ID, tocsin reject ID):"
    return [title, *lines] if waiting else []


@click.command()
@click.argument("reason")
@api_options
@pass_context
def pause(context: Context, reason: str, api_url: str | None, token: str | None) -> None:
    """Stop all actions for REASON; notifications go on."""
    with connect(context, api_url, token) as client:
        client.pause(reason)
    click.echo("ok: paused")


@click.command()
@api_options
@pass_context
def resume(context: Context, api_url: str | None, token: str | None) -> None:
    """Allow actions again after a pause."""
    with connect(context, api_url, token) as client:
        client.resume()
    click.echo("ok: resumed")


@click.command()
@click.argument("decision_id")
@api_options
@pass_context
def approve(context: Context, decision_id: str, api_url: str | None, token: str | None) -> None:
    """Approve the proposed decision DECISION_ID; the guards are asked again before it runs."""
    with connect(context, api_url, token) as client:
        client.approve(decision_id)
    click.echo(f"ok: {decision_id} approved")


@click.command()
@click.argument("decision_id")
@click.option("--reason", default="", help="Why; kept in the journal.")
@api_options
@pass_context
def reject(context: Context, decision_id: str, reason: str, api_url: str | None, token: str | None) -> None:
    """Reject the decision DECISION_ID and leave its subject alone for the hold-off."""
    with connect(context, api_url, token) as client:
        client.reject(decision_id, reason)
    click.echo(f"ok: {decision_id} rejected")


@click.group()
def breaker() -> None:
    """The circuit breaker over all actions."""


@breaker.command("reset")
@api_options
@pass_context
def breaker_reset(context: Context, api_url: str | None, token: str | None) -> None:
    """Reset the tripped breaker; who did it is kept in the journal."""
    with connect(context, api_url, token) as client:
        client.reset_breaker()
    click.echo("ok: breaker reset")


@click.command()
@click.argument("kind", type=click.Choice(["host", "gpu"]))
@click.argument("name")
@click.option("--reason", default="", help="Why; kept in the journal.")
@api_options
@pass_context
def release(
    context: Context, kind: Literal["host", "gpu"], name: str, reason: str, api_url: str | None, token: str | None
) -> None:
    """Give the host NAME, or the GPU with UUID NAME, back to service and leave it alone for the hold-off."""
    with connect(context, api_url, token) as client:
        released = client.release(kind, name, reason)
    click.echo(f"ok: {kind} {name} released, left alone until {released.held_off_until}")


@click.command()
@click.argument("kind")
@click.argument("gpu")
@api_options
@pass_context
def inject(context: Context, kind: str, gpu: str, api_url: str | None, token: str | None) -> None:
    """Inject a fault of KIND into the simulated GPU (UUID or number) of a running demo, for rehearsal."""
    with connect(context, api_url, token) as client:
        started = client.inject(kind, gpu)
        click.echo(f"ok: {kind} in simulated GPU {started.gpu} of {client.base_url}")


COMMANDS: list[click.Command] = [status, pause, resume, approve, reject, release, breaker, inject]

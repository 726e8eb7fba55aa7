"""Commands to a running brain, over its API."""

from __future__ import annotations

import click

from tocsin.cli.common import Context, api_options, connect, dump, json_option, pass_context


@click.command()
@api_options
@json_option
@pass_context
def status(context: Context, api_url: str | None, token: str | None, as_json: bool) -> None:
    """Say how the fleet and the service are."""
    with connect(context, api_url, token) as client:
        summary = client.summary()
    if as_json:
        dump(summary.model_dump(mode="json"))
        return
    for name, value in summary.model_dump(mode="json").items():
        click.echo(f"{name}: {value}")


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
@click.argument("kind")
@click.argument("gpu")
@api_options
@pass_context
def inject(context: Context, kind: str, gpu: str, api_url: str | None, token: str | None) -> None:
    """Inject a fault of KIND into the simulated GPU (UUID or number) of a running demo, for rehearsal."""
    with connect(context, api_url, token) as client:
        started = client.inject(kind, gpu)
        click.echo(f"ok: {kind} in simulated GPU {started.gpu} of {client.base_url}")


COMMANDS: list[click.Command] = [status, pause, resume, approve, reject, breaker, inject]

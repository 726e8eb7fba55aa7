"""Commands to a running brain, over its API."""

from __future__ import annotations

import click

from tocsin.cli import values
from tocsin.cli.common import CliContext, api_options, connect, done, json_option, pass_context
from tocsin.client.wire import to_json


@click.command()
@click.argument("reason")
@api_options
@json_option
@pass_context
def pause(context: CliContext, reason: str, api_url: str | None, token: str | None, as_json: bool) -> None:
    """Stop all actions for REASON; notifications go on."""
    with connect(context, api_url, token) as client:
        state = client.pause(reason)
    done(as_json, "paused", client.base_url, **state.model_dump(mode="json"))


@click.command()
@api_options
@json_option
@pass_context
def resume(context: CliContext, api_url: str | None, token: str | None, as_json: bool) -> None:
    """Allow actions again after a pause."""
    with connect(context, api_url, token) as client:
        state = client.resume()
    done(as_json, "resumed", client.base_url, **state.model_dump(mode="json"))


@click.command()
@click.argument("decision_id", shell_complete=values.waiting)
@api_options
@json_option
@pass_context
def approve(context: CliContext, decision_id: str, api_url: str | None, token: str | None, as_json: bool) -> None:
    """Approve the proposed decision DECISION_ID; the guards are asked again before it runs."""
    with connect(context, api_url, token) as client:
        decision = client.approve(decision_id)
    done(as_json, f"{decision_id} approved", client.base_url, decision=to_json(decision))


@click.command()
@click.argument("decision_id", shell_complete=values.waiting)
@click.option("--reason", default="", help="Why; kept in the journal.")
@click.option("--right", is_flag=True, help="What it says was right: it does not count against its rule.")
@api_options
@json_option
@pass_context
def reject(
    context: CliContext,
    decision_id: str,
    reason: str,
    right: bool,
    api_url: str | None,
    token: str | None,
    as_json: bool,
) -> None:
    """Reject the decision DECISION_ID and leave its subject alone for the hold-off."""
    with connect(context, api_url, token) as client:
        decision = client.reject(decision_id, reason, right=right)
    done(as_json, f"{decision_id} rejected", client.base_url, decision=to_json(decision))


@click.group()
def breaker() -> None:
    """The circuit breaker over all actions."""


@breaker.command("reset")
@api_options
@json_option
@pass_context
def breaker_reset(context: CliContext, api_url: str | None, token: str | None, as_json: bool) -> None:
    """Reset the tripped breaker; who did it is kept in the journal."""
    with connect(context, api_url, token) as client:
        state = client.reset_breaker()
    done(as_json, "breaker reset", client.base_url, **state.model_dump(mode="json"))


@click.command()
@click.argument("kind", shell_complete=values.fault_kinds)
@click.argument("gpu", shell_complete=values.gpus)
@api_options
@json_option
@pass_context
def inject(context: CliContext, kind: str, gpu: str, api_url: str | None, token: str | None, as_json: bool) -> None:
    """Inject a fault of KIND into the simulated GPU (UUID or number) of a running demo, for rehearsal."""
    with connect(context, api_url, token) as client:
        started = client.inject(kind, gpu)
    said = f"{kind} in simulated GPU {started.gpu}"
    done(as_json, said, client.base_url, **started.model_dump(mode="json"))


COMMANDS: list[click.Command] = [pause, resume, approve, reject, breaker, inject]

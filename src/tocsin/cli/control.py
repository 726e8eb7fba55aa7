"""Commands to a running brain, over its API."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tocsin.cli import values
from tocsin.cli.common import (
    CliContext,
    api_options,
    cell_option,
    connect,
    done,
    json_option,
    pass_context,
    show,
    spans_cells,
)
from tocsin.client.wire import to_json

if TYPE_CHECKING:
    from tocsin.client.models_cells import WholeControl


def _everywhere(whole: WholeControl, what: str, as_json: bool, url: str) -> int:
    """Say in which cells it is done, and where nobody knows; exit code 1 where that is anywhere."""
    from tocsin.client.whole import missing

    lacking = missing(whole)
    lines = [f"ok: {what} in cell {', '.join(sorted(whole.answers))}"] if whole.answers else []
    lines += [f"NOT KNOWN to be {what} in cell {one.cell} ({one.state}): {one.detail}" for one in lacking]
    show(as_json, {"ok": not lacking, **whole.model_dump(mode="json")}, lines, url)
    return int(bool(lacking))


@click.command()
@click.argument("reason")
@cell_option
@api_options
@json_option
@pass_context
def pause(
    context: CliContext, reason: str, cells: tuple[str, ...], api_url: str | None, token: str | None, as_json: bool
) -> int:
    """Stop all actions for REASON; notifications go on.

    In a fleet of several cells in all of them; exit code 1 where one was not reached.
    """
    with connect(context, api_url, token) as client:
        if spans_cells(client, cells):
            return _everywhere(client.pause_cells(reason, cells), "paused", as_json, client.base_url)
        state = client.pause(reason)
    done(as_json, "paused", client.base_url, **state.model_dump(mode="json"))
    return 0


@click.command()
@cell_option
@api_options
@json_option
@pass_context
def resume(context: CliContext, cells: tuple[str, ...], api_url: str | None, token: str | None, as_json: bool) -> int:
    """Allow actions again after a pause; in a fleet of several cells in all of them."""
    with connect(context, api_url, token) as client:
        if spans_cells(client, cells):
            return _everywhere(client.resume_cells(cells), "resumed", as_json, client.base_url)
        state = client.resume()
    done(as_json, "resumed", client.base_url, **state.model_dump(mode="json"))
    return 0


@click.command()
@click.argument("decision_id", shell_complete=values.waiting)
@click.option("--alike", is_flag=True, help="Also all others for the same action about the same cause that wait.")
@api_options
@json_option
@pass_context
def approve(
    context: CliContext, decision_id: str, alike: bool, api_url: str | None, token: str | None, as_json: bool
) -> None:
    """Approve the proposed decision DECISION_ID; the guards are asked again before it runs."""
    with connect(context, api_url, token) as client:
        found = client.approve_alike(decision_id) if alike else [client.approve(decision_id)]
    names = ", ".join(one.id for one in found)
    more = {"alike": to_json(found[1:])} if alike else {}
    done(as_json, f"{names} approved", client.base_url, decision=to_json(found[0]), **more)


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
@cell_option
@api_options
@json_option
@pass_context
def breaker_reset(
    context: CliContext, cells: tuple[str, ...], api_url: str | None, token: str | None, as_json: bool
) -> int:
    """Reset the tripped breaker, in every cell of a fleet; who did it is kept in the journal."""
    with connect(context, api_url, token) as client:
        if spans_cells(client, cells):
            return _everywhere(client.reset_breakers(cells), "reset", as_json, client.base_url)
        state = client.reset_breaker()
    done(as_json, "breaker reset", client.base_url, **state.model_dump(mode="json"))
    return 0


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
    done(as_json, started.sentence, client.base_url, **started.model_dump(mode="json"))


COMMANDS: list[click.Command] = [pause, resume, approve, reject, breaker, inject]

"""`tocsin ack`, `snooze`, `snoozes` and `maintenance`: what people take on, put off and plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tocsin.cli import values
from tocsin.cli.cards import readable
from tocsin.cli.common import CliContext, api_options, connect, done, json_option, pass_context, show
from tocsin.cli.processes import Duration
from tocsin.client.wire import to_json
from tocsin.domain.errors import InputError
from tocsin.domain.silence import MatcherKind, SilenceKind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tocsin.client.models_silences import SilenceOut

_PLACES = (MatcherKind.HOST, MatcherKind.POOL, MatcherKind.RACK, MatcherKind.LABEL)
reason_option = click.option("--reason", default="", help="Why; kept in the journal.")


def _place_options(command: Callable[..., object]) -> Callable[..., object]:
    for kind in reversed(_PLACES):
        shown = "KEY=VALUE" if kind is MatcherKind.LABEL else "NAME"
        what = "GPUs with this label" if kind is MatcherKind.LABEL else f"The GPUs of this {kind}"
        command = click.option(f"--{kind}", metavar=shown, help=f"{what}.")(command)
    return command


def _chosen(given: dict[str, str | None]) -> tuple[MatcherKind, str]:
    """The one thing that was named; raises InputError where that is not one."""
    named = [(MatcherKind(kind), name) for kind, name in given.items() if name]
    if len(named) != 1:
        options = ", ".join(f"--{kind}" for kind in given)
        found = ", ".join(f"--{kind} {name}" for kind, name in named) or "nothing"
        raise InputError("what", found, "one thing is needed", f"give one of {options}")
    return named[0]


def silence_line(one: SilenceOut) -> str:
    """One silence on a line."""
    why = f": {one.reason}" if one.reason else ""
    span = f"{readable(one.start)} to {readable(one.until)}"
    return f"  {one.id}  {one.kind} {one.name}, {span}, by {one.by}{why}"


@click.command()
@click.argument("card_id", metavar="CARD", shell_complete=values.cards)
@click.option("--for", "seconds", type=Duration(), default=3600.0, show_default="1h", help="For how long, 24h at most.")
@reason_option
@click.option("--end", is_flag=True, help="Give it back: the card is open again.")
@api_options
@json_option
@pass_context
def ack(
    context: CliContext,
    card_id: str,
    seconds: float,
    reason: str,
    end: bool,
    api_url: str | None,
    token: str | None,
    as_json: bool,
) -> None:
    """Acknowledge CARD: you have it, and nobody is told of its cause again until the end.

    With a token of your own its cause is kept out of the breaker as long, for 4 h at most.
    """
    with connect(context, api_url, token) as client:
        if end:
            ended = client.end_acknowledgement(card_id)
            done(as_json, f"{card_id} is open again", client.base_url, ended=to_json(ended))
            return
        made = client.acknowledge(card_id, seconds, reason)
    counts = f"; its cause is kept out of the breaker until {readable(made.breaker_until)}"
    said = f"{card_id} acknowledged by {made.by} until {readable(made.until)}"
    done(as_json, said + (counts if made.breaker_until else ""), client.base_url, **made.model_dump(mode="json"))


@click.command()
@click.option("--card", metavar="ID", shell_complete=values.cards, help="One card.")
@_place_options
@click.option("--for", "seconds", type=Duration(), help="For how long, 7 days (168h) at most.")
@reason_option
@click.option("--end", metavar="ID", help="End a snooze of this id before its time.")
@api_options
@json_option
@pass_context
def snooze(
    context: CliContext,
    /,
    seconds: float | None,
    reason: str,
    end: str | None,
    api_url: str | None,
    token: str | None,
    as_json: bool,
    **given: str | None,
) -> None:
    """Hide one card, or what lies wholly in a host, pool, rack or label, until the end or until it gets worse."""
    with connect(context, api_url, token) as client:
        if end:
            ended = client.end_silence(SilenceKind.SNOOZE, end)
            done(as_json, f"snooze {end} ended", client.base_url, **ended.model_dump(mode="json"))
            return
        kind, name = _chosen(given)
        made = client.snooze(kind, name, _needed(seconds), reason)
    said = f"{kind} {name} snoozed until {readable(made.until)} (id {made.id})"
    done(as_json, said, client.base_url, **made.model_dump(mode="json"))


def _needed(seconds: float | None) -> float:
    if seconds is None:
        raise InputError("--for", "", "an end is needed", "give one, such as --for 2h")
    return seconds


@click.command()
@api_options
@json_option
@pass_context
def snoozes(context: CliContext, api_url: str | None, token: str | None, as_json: bool) -> None:
    """List the snoozes that stand."""
    _list(context, SilenceKind.SNOOZE, api_url, token, as_json)


@click.group()
def maintenance() -> None:
    """Planned maintenance: no cards for what is planned, and no action there."""


@maintenance.command("plan")
@_place_options
@click.option("--start", metavar="INSTANT", help="RFC 3339 in UTC, 14 days ahead at most; default: now.")
@click.option("--for", "seconds", type=Duration(), required=True, help="How long, 7 days (168h) at most.")
@reason_option
@api_options
@json_option
@pass_context
def plan(
    context: CliContext,
    /,
    start: str | None,
    seconds: float,
    reason: str,
    api_url: str | None,
    token: str | None,
    as_json: bool,
    **given: str | None,
) -> None:
    """Plan maintenance of a host, pool, rack or label."""
    kind, name = _chosen(given)
    with connect(context, api_url, token) as client:
        made = client.plan_maintenance(kind, name, seconds, start, reason)
    said = f"maintenance of {kind} {name} planned, {readable(made.start)} to {readable(made.until)}"
    done(as_json, f"{said} (id {made.id})", client.base_url, **made.model_dump(mode="json"))


@maintenance.command("list")
@api_options
@json_option
@pass_context
def list_planned(context: CliContext, api_url: str | None, token: str | None, as_json: bool) -> None:
    """List maintenance that goes on or is planned."""
    _list(context, SilenceKind.MAINTENANCE, api_url, token, as_json)


@maintenance.command("end")
@click.argument("silence_id", metavar="ID")
@api_options
@json_option
@pass_context
def end_planned(context: CliContext, silence_id: str, api_url: str | None, token: str | None, as_json: bool) -> None:
    """End the maintenance ID before its time, or take the plan back."""
    with connect(context, api_url, token) as client:
        ended = client.end_silence(SilenceKind.MAINTENANCE, silence_id)
    done(as_json, f"maintenance {silence_id} ended", client.base_url, **ended.model_dump(mode="json"))


def _list(context: CliContext, kind: SilenceKind, api_url: str | None, token: str | None, as_json: bool) -> None:
    with connect(context, api_url, token) as client:
        found: Sequence[SilenceOut] = client.silences(kind)
        url = client.base_url
    nothing = "no snoozes" if kind is SilenceKind.SNOOZE else "no maintenance"
    lines = [silence_line(one) for one in found] or [nothing]
    show(as_json, {"items": to_json(list(found))}, lines, url)


COMMANDS: list[click.Command] = [ack, snooze, snoozes, maintenance]

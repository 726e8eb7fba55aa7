"""`tocsin top`: the fleet, or one node, live in a terminal."""

from __future__ import annotations

import sys
from contextlib import closing
from typing import TYPE_CHECKING

import click

from tocsin.cli import values
from tocsin.cli.common import CliContext, api_options, connect, dump, json_option, pass_context
from tocsin.domain.clock import SystemClock
from tocsin.domain.errors import InputError
from tocsin.telemetry.log import configure_logging

if TYPE_CHECKING:
    from tocsin.terminal.look import FleetFeed


@click.command()
@click.option("--local", is_flag=True, help="This node's own GPUs, without a brain.")
@click.option(
    "--source",
    shell_complete=values.sources,
    help="With --local: where readings come from; default: setting agent.source.",
)
@click.option("--agent", metavar="URL", help="The node whose agent has its /metrics at this URL, without a brain.")
@click.option(
    "--interval", type=click.FloatRange(0.5, 3600), default=2.0, show_default=True, help="Seconds between looks."
)
@click.option("--filter", "words", default="", help="Only GPUs that fit, for example 'temp>80 pool:train'.")
@click.option("--rows", type=click.IntRange(0), default=40, show_default=True, help="Most GPUs of --once; 0: all.")
@click.option("--once", is_flag=True, help="Print one look and end.")
@api_options
@json_option
@pass_context
def top(
    context: CliContext,
    local: bool,
    source: str | None,
    agent: str | None,
    interval: float,
    words: str,
    rows: int,
    once: bool,
    api_url: str | None,
    token: str | None,
    as_json: bool,
) -> None:
    """Watch the fleet live: every GPU in a line, what needs attention, decisions to approve or reject, nodes.

    Asks the brain; with --local or --agent a single node without one. `?` shows the keys. --once prints one look, with
    --json the whole of it; JSON needs no --once.
    """
    from tocsin.terminal.rows import gpu_filter

    test = gpu_filter(words)
    once = once or as_json
    if not once and not sys.stdout.isatty():
        raise InputError("tocsin top", "standard output", "is no terminal", "add --once, with --json for a program")
    configure_logging("error", context.settings.log.format)
    with closing(_feed(context, local, source, agent, interval, api_url, token)) as feed:
        if not once:
            _live(feed, interval, words)
            return
        look = feed.look()
    if as_json:
        shown = look.as_json()
        dump(shown | {"gpus": [one.model_dump(mode="json") for one in look.gpus if test(one)]})
        return
    from tocsin.terminal.plain import lines

    for line in lines(look, test, rows):
        click.echo(line)


def _feed(
    context: CliContext,
    local: bool,
    source: str | None,
    agent: str | None,
    interval: float,
    api_url: str | None,
    token: str | None,
) -> FleetFeed:
    given = [name for name, one in (("--local", local), ("--agent", agent), ("--api-url", api_url)) if one]
    if len(given) > 1:
        raise InputError(given[0], " ".join(given), "are different places to look at", "give one of them")
    if source and not local:
        raise InputError("--source", source, "belongs to --local", "add --local")
    clock = SystemClock()
    if local:
        from tocsin.runtime.agent.node_view import local_feed

        return local_feed(context.settings, source or context.settings.agent.source, clock, interval)
    if agent:
        from tocsin.runtime.agent.node_view import AgentPage, agent_feed

        return agent_feed(context.settings, AgentPage(agent), clock, interval)
    from tocsin.terminal.api_feed import ApiFeed

    return ApiFeed(connect(context, api_url, token))


def _live(feed: FleetFeed, interval: float, words: str) -> None:
    from tocsin.terminal.screen.app import TopApp

    TopApp(feed, SystemClock(), interval, words).run()


COMMANDS: list[click.Command] = [top]

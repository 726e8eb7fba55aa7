"""`tocsin mcp`: the fleet for assistants, read-only, by the Model Context Protocol."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import click

from tocsin.cli.common import NOBODY, CliContext, api_options, brain_of, pass_context
from tocsin.domain.clock import SystemClock
from tocsin.domain.errors import TocsinError

if TYPE_CHECKING:
    from tocsin.client.client import Client

_VIEWER = "viewer"


@click.command()
@click.option("--port", type=click.IntRange(1, 65_535), help="Serve HTTP on 127.0.0.1 instead of standard input.")
@api_options
@pass_context
def mcp(context: CliContext, port: int | None, api_url: str | None, token: str | None) -> None:
    """Serve the fleet to an assistant by the Model Context Protocol; nothing can be changed through it.

    It runs until standard input ends, or with --port until it is stopped. Give it the token of a viewer.
    """
    from tocsin.cli.xid import catalogues_of
    from tocsin.client.token_file import stored_token
    from tocsin.mcp_server.server import serve
    from tocsin.mcp_server.tools import Tools, reading_client

    dashboard = context.settings.dashboard
    url = brain_of(context.settings, api_url)
    found = token or stored_token(url, SystemClock()) or dashboard.api_token.get_secret_value()
    with closing(reading_client(url, found, dashboard.api_ca)) as client:
        _tell_of_more_than_reading(client)
        serve(Tools(client, catalogues_of(context)), port)


def _tell_of_more_than_reading(client: Client) -> None:
    """Say on standard error that a viewer's token would do."""
    try:
        me = client.me()
    except TocsinError as error:
        # The brain may come later; each tool says itself what is wrong.
        click.echo(f"tocsin: {error}", err=True)
        return
    if me.role != _VIEWER and me.name != NOBODY:
        click.echo(f"tocsin: this token is of the role {me.role}; that of a viewer would do", err=True)


COMMANDS: list[click.Command] = [mcp]

"""Tokens of nodes."""

from __future__ import annotations

import click

from tocsin.cli.common import CliContext, json_option, pass_context, show


@click.group()
def token() -> None:
    """Tokens for the brain's API."""


@token.command()
@click.option("--host", "hosts", multiple=True, required=True, help="A node, as its agent reports it; may be repeated.")
@json_option
@pass_context
def issue(context: CliContext, hosts: tuple[str, ...], as_json: bool) -> None:
    """Print the token of a node: the agent's push_token. It is good for that node alone.

    Needs api.host_key, which the brain has too. Nothing is stored: the same key and node give the same token.
    """
    from tocsin.config.host_tokens import host_token

    key = context.settings.api.host_key.get_secret_value()
    made = {host: host_token(key, host) for host in hosts}
    lines = made.values() if len(made) == 1 else (f"{host}\t{one}" for host, one in made.items())
    show(as_json, [{"host": host, "token": one} for host, one in made.items()], lines)


COMMANDS: list[click.Command] = [token]

"""`tocsin plugins`: what can be named in settings and rules, and which package brings it."""

from __future__ import annotations

import click

from tocsin.cli.common import json_option, show
from tocsin.plugins import Kind, plugins


@click.command("plugins")
@json_option
def list_plugins(as_json: bool) -> None:
    """List sources, companions, exporters that follower promql reads, followers, conditions, forecasters, scorers,
    guards, executors, channels and stores.

    Those of other packages are found by their entry points of group tocsin.KIND. Nothing is loaded.
    """
    found = [plugin for kind in Kind for plugin in plugins(kind).values()]
    document = [{"kind": str(one.kind), "name": one.name, "package": one.package} for one in found]
    show(as_json, document, (f"{one.kind:<10} {one.name:<22} {one.package}" for one in found))


COMMANDS: list[click.Command] = [list_plugins]

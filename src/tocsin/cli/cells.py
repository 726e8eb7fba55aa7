"""`tocsin cells`: the cells of the fleet, out of the database that they share, without a running brain."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from tocsin.cli.common import CliContext, done, json_option, pass_context, show
from tocsin.domain.errors import InputError

if TYPE_CHECKING:
    from tocsin.journal.postgres.fleet import FleetDatabase, KnownCell


@click.group(invoke_without_command=True)
@json_option
@pass_context
def cells(context: CliContext, as_json: bool) -> None:
    """List the cells that share the limits of the fleet, as each last told of itself.

    Reads the database of the settings (`journal.url`, `cell.fleet`), and needs no brain.
    """
    if click.get_current_context().invoked_subcommand is None:
        found = _fleet(context).cells()
        document = [asdict(one) | {"stale": one.stale} for one in found]
        show(as_json, {"cells": document}, [_line(one) for one in found] or ["no cell has told of itself yet"], "")


def _line(cell: KnownCell) -> str:
    state = "stale, widens no limit" if cell.stale else "fresh"
    brain = "has an active brain" if cell.held else "has no active brain"
    told = f"told of itself {cell.age_seconds:.0f} s ago ({state})"
    spread = f", gone after {cell.spread:g} s, and its hosts are the others' then" if cell.spread is not None else ""
    return f"{cell.name}  {cell.gpus} GPUs  {cell.url}: {brain}, {told}{spread}"


@cells.command()
@click.argument("name")
@json_option
@pass_context
def forget(context: CliContext, name: str, as_json: bool) -> None:
    """Take cell NAME, which is gone for good, out of the fleet.

    What it took of the limits is free again: first see that nothing of it is still out of service. Refused while a
    brain of it is active.
    """
    fleet = _fleet(context)
    if not fleet.forget(name):
        raise InputError("cell", name, f"is none of fleet {fleet.fleet}", "tocsin cells lists them")
    done(as_json, f"{name} is no cell of fleet {fleet.fleet} any more", cell=name)


def _fleet(context: CliContext) -> FleetDatabase:
    from tocsin.journal.postgres.fleet import FleetDatabase

    settings = context.settings
    url, name = settings.journal.url.get_secret_value(), settings.cell.fleet
    if not url or not name:
        remedy = "set both, as in the settings of the brains"
        raise InputError("cell.fleet", name, "is no fleet, or journal.url no database", remedy)
    fleet = FleetDatabase(url, name)
    click.get_current_context().call_on_close(fleet.close)
    fleet.prepare()
    return fleet


COMMANDS: list[click.Command] = [cells]

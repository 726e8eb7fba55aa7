"""`tocsin drift`: versions of hosts that are meant to be equal, and which of them differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from tocsin.cli.common import (
    CliContext,
    api_options,
    cell_option,
    connect,
    json_option,
    pass_context,
    show,
    spans_cells,
)
from tocsin.client.models_drift import ComponentOut, DriftOut, VersionGroupOut, VersionOut
from tocsin.domain.versions import COMPONENTS, Standing
from tocsin.domain.words import counted

if TYPE_CHECKING:
    from tocsin.client.client import Client

_NAMED = 5
_SHOWN = 6
"""Versions of one component that are listed; `--json` has all."""
_WORDS = {
    Standing.SAME: "same",
    Standing.DRIFT: "DIFFERS",
    Standing.ROLLOUT: "roll-out",
    Standing.MIXED: "mixed",
    Standing.FEW: "too few",
}


@click.command()
@click.option("--pool", default="", metavar="POOL", help="One pool alone.")
@click.option(
    "--component", "components", multiple=True, type=click.Choice(list(COMPONENTS)), help="One component; repeatable."
)
@click.option("--odd", "only_odd", is_flag=True, help="Only what differs from its pool or is on its way.")
@click.option("--check", is_flag=True, help="Exit with 1 where something differs from its pool, or a cell is missing.")
@cell_option
@api_options
@json_option
@pass_context
@click.pass_context
def drift(
    click_context: click.Context,
    context: CliContext,
    pool: str,
    components: Sequence[str],
    only_odd: bool,
    check: bool,
    cells: tuple[str, ...],
    api_url: str | None,
    token: str | None,
    as_json: bool,
) -> None:
    """Show versions of hosts that are meant to be equal, and which differ from their pool; of a fleet of several cells
    over all of them. It changes nothing."""
    with connect(context, api_url, token) as client:
        if spans_cells(client, cells):
            bad = _all_cells(client, pool, components, cells, only_odd=only_odd, as_json=as_json)
        else:
            found = client.drift(pool, components)
            show(as_json, found.model_dump(mode="json"), lines(found, only_odd=only_odd), client.base_url)
            bad = found.drifting > 0
    if check and bad:
        click_context.exit(1)


def _all_cells(
    client: Client, pool: str, components: Sequence[str], cells: Sequence[str], *, only_odd: bool, as_json: bool
) -> bool:
    """Print what all cells have; whether something differs, or nobody knows."""
    from tocsin.client.whole import said
    from tocsin.client.whole_drift import whole_drift

    whole = client.cells_drift(pool, components, cells)
    found = whole_drift(whole.answers) if whole.answers else None
    told = said(whole) if found is None else [*said(whole), *lines(found, only_odd=only_odd)]
    show(as_json, whole.model_dump(mode="json"), told, client.base_url)
    return whole.partial or found is None or found.drifting > 0


def lines(found: DriftOut, *, only_odd: bool = False) -> Iterator[str]:
    """A block for each group with a line for each component, and what it comes to."""
    if found.simulated:
        yield "SIMULATED fleet"
    for group in found.groups:
        told = [one for one in group.components if not only_odd or one.standing in (Standing.DRIFT, Standing.ROLLOUT)]
        if told or not only_odd:
            yield _title(group)
            yield from _table(told, few=group.hosts < found.least_hosts)
    if not found.groups:
        yield "No host is known."
    differ = f"{counted(found.drifting, 'component')} of groups {'differs' if found.drifting == 1 else 'differ'}"
    yield f"{differ} from their pool, {found.rolling_out} on the way; under {found.least_hosts} hosts nothing is judged"


def _title(group: VersionGroupOut) -> str:
    role = f", role {group.role}" if group.role else ""
    return f"pool {group.pool}, {group.model or 'GPUs of unknown model'}{role}: {counted(group.hosts, 'host')}"


def _table(components: Sequence[ComponentOut], *, few: bool) -> Iterator[str]:
    """Lines of components; of a group with too `few` hosts to judge, only those in which its hosts differ."""
    if few:
        components = [one for one in components if len(one.versions) > 1]
    rows = [(one.name, _WORDS[one.standing] if one.told else "untold", _said(one)) for one in components]
    widths = [max((len(row[place]) for row in rows), default=0) for place in range(2)]
    for name, standing, said in rows:
        yield f"  {name.ljust(widths[0])}  {standing.ljust(widths[1])}  {said}".rstrip()


def _said(one: ComponentOut) -> str:
    left = len(one.versions) - _SHOWN
    parts = [_version(each, one) for each in one.versions[:_SHOWN]] + ([f"and {left} more"] if left > 0 else [])
    parts += [f"{counted(n, 'host')}: {why or 'not told'}" for why, n in sorted(one.untold.items()) if n]
    return "; ".join(parts) + (f" (comes with the {one.because})" if one.because else "")


def _version(one: VersionOut, of: ComponentOut) -> str:
    if len(of.versions) == 1:
        return one.version
    names = ", ".join(one.names[:_NAMED]) + (", …" if one.hosts > _NAMED else "")
    moved = f", {one.ago} a day ago" if one.ago != one.hosts else ""
    return f"{one.version} on {one.hosts}{moved}{f' ({names})' if one.odd or one.hosts <= _NAMED else ''}"


COMMANDS: list[click.Command] = [drift]

"""`tocsin usage`: who used which GPU time, what it costs, and which jobs less would do for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import click

from tocsin.cli.common import (
    CliContext,
    all_of,
    api_options,
    cell_option,
    connect,
    json_option,
    pass_context,
    show,
    spans_cells,
)
from tocsin.client.models_usage import RightSizeOption, RightSizeOut, RightSizeRow, UsageBy, UsageOut, UsageRow

if TYPE_CHECKING:
    from tocsin.client.client import Client

_BY: tuple[UsageBy, ...] = ("namespace", "team", "account", "user", "job", "pool", "model", "kind")
_GIB = 1024**3
_days = all_of(
    click.option(
        "--from", "start", metavar="DAY", help="First day in UTC, as 2026-11-21.  [default: a week up to the end]"
    ),
    click.option("--to", "end", metavar="DAY", help="Day after the last one; tomorrow if none."),
)


@click.command()
@_days
@click.option("--by", multiple=True, type=click.Choice(_BY), default=["namespace"], show_default=True, help="Sum by.")
@click.option("--limit", type=click.IntRange(1, 1000), default=30, show_default=True, help="Most rows.")
@click.option("--right-size", is_flag=True, help="Jobs that less would do for, instead of who used what.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV instead of text.")
@cell_option
@api_options
@json_option
@pass_context
def usage(
    context: CliContext,
    start: str | None,
    end: str | None,
    by: Sequence[UsageBy],
    limit: int,
    right_size: bool,
    as_csv: bool,
    cells: tuple[str, ...],
    api_url: str | None,
    token: str | None,
    as_json: bool,
) -> None:
    """Show GPU-hours, idle and free time, energy and cost of whole UTC days by who held the GPUs; of all cells of a
    fleet of several as one."""
    if as_csv and (as_json or right_size):
        raise click.UsageError("--csv goes neither with --json nor with --right-size")
    with connect(context, api_url, token, timeout=60.0) as client:
        if spans_cells(client, cells):
            days = start, end
            if right_size:
                _all_right_size(client, days, limit, cells, as_json=as_json)
            else:
                _all_cells(client, days, by, limit, cells, as_json=as_json, as_csv=as_csv)
            return
        if right_size:
            judged = client.right_size(start, end, limit)
            show(as_json, judged.model_dump(mode="json"), right_size_lines(judged), client.base_url)
            return
        if as_csv:
            click.echo(client.usage_csv(start, end, by), nl=False)
            return
        found = client.usage(start, end, by, limit)
        show(as_json, found.model_dump(mode="json"), usage_lines(found), client.base_url)


# ---------------------------------------------------------------------- all cells

_MOST = 1_000
"""Groups that are asked of each cell: what is the largest of all need not be so in each."""
_Days = tuple[str | None, str | None]


def _all_cells(
    client: Client, days: _Days, by: Sequence[UsageBy], limit: int, cells: Sequence[str], *, as_json: bool, as_csv: bool
) -> None:
    from tocsin.client.usage_csv import csv_of
    from tocsin.client.whole import missing, said
    from tocsin.client.whole_usage import currencies, whole_usage

    whole = client.cells_usage(*days, by, _MOST, cells)
    if as_csv:
        if missing(whole):
            click.echo("\n".join(f"tocsin: {line}" for line in said(whole)), err=True)
        if whole.answers:
            click.echo(csv_of(whole_usage(whole.answers, _MOST)), nl=False)
        return
    lines = said(whole)
    if whole.answers:
        lines += usage_lines(whole_usage(whole.answers, limit), whole.answers)
        names = currencies(whole.answers)
        if len(names) > 1:
            lines.append(f"money is not added up: cells have prices in several currencies ({', '.join(names)})")
    show(as_json, whole.model_dump(mode="json"), lines, client.base_url)


def _all_right_size(client: Client, days: _Days, limit: int, cells: Sequence[str], *, as_json: bool) -> None:
    from tocsin.client.whole import said
    from tocsin.client.whole_usage import whole_right_size

    whole = client.cells_right_size(*days, limit, cells)
    lines = said(whole)
    if whole.answers:
        lines += right_size_lines(whole_right_size(whole.answers, limit))
    show(as_json, whole.model_dump(mode="json"), lines, client.base_url)


# ---------------------------------------------------------------------- who used what

_COLUMNS: tuple[tuple[str, Callable[[UsageRow], str]], ...] = (
    ("GPU-h", lambda row: _hours(row.gpu_hours)),
    ("used", lambda row: _hours(row.used)),
    ("idle", lambda row: _hours(row.idle)),
    ("untold", lambda row: _hours(row.untold)),
    ("free", lambda row: _hours(row.free)),
    ("stranded", lambda row: _hours(row.stranded)),
    ("not seen", lambda row: _hours(row.not_seen)),
    ("kWh", lambda row: _hours(row.kwh)),
)


def usage_lines(found: UsageOut, by_cell: Mapping[str, UsageOut] | None = None) -> list[str]:
    """A table of the groups with their total, and what it leaves out; of several cells `by_cell` has each."""
    head = [*found.by, *(name for name, _ in _COLUMNS), "cost", "energy"]
    body = [[*_names(row, found.by), *_figures(row, found.currency)] for row in found.rows]
    whole = ["total", *[""] * (len(found.by) - 1), *_figures(found.total, found.currency)]
    lines = [f"{found.start} to before {found.end}, UTC; counted to {found.counted}"]
    if found.simulated:
        lines.append("SIMULATED fleet")
    every = sorted((by_cell or {}).items())
    gaps = _gap(found) if by_cell is None else [f"cell {name}: {line}" for name, one in every for line in _gap(one)]
    return [*lines, *_table(head, [*body, whole], len(found.by)), *_notes(found), *gaps]


def _names(row: UsageRow, by: Sequence[str]) -> list[str]:
    blank = [""] * (len(by) - 1)
    if row.rest:
        return ["(all others)", *blank]
    if not any(row.group.get(name) for name in by):
        return ["(not known)" if row.held else "(nobody)", *blank]
    names = [row.group.get(name, "") or "-" for name in by]
    return names if row.held else [f"{names[0]} (nobody)", *names[1:]]


def _figures(row: UsageRow, currency: str) -> list[str]:
    return [*(show_(row) for _, show_ in _COLUMNS), _money(row.cost, currency), _money(row.energy_cost, currency)]


def _hours(value: float) -> str:
    return f"{value:,.1f}"


def _money(value: float | None, currency: str) -> str:
    return "no price" if value is None else f"{value:,.2f} {currency}".strip()


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], names: int) -> list[str]:
    widths = [max(len(row[place]) for row in [head, *rows]) for place in range(len(head))]

    def line(row: Sequence[str]) -> str:
        cells = [
            one.ljust(n) if at < names else one.rjust(n) for at, (one, n) in enumerate(zip(row, widths, strict=True))
        ]
        return "  ".join(cells).rstrip()

    return [line(head), *(line(row) for row in rows)]


def _notes(found: UsageOut) -> list[str]:
    total, notes = found.total, []
    if total.unpriced and total.cost is not None:
        notes.append(f"{_hours(total.unpriced)} GPU-h have no price and are in no cost")
    if total.unpriced_kwh and total.energy_cost is not None:
        notes.append(f"{_hours(total.unpriced_kwh)} kWh have no price and are in no cost of energy")
    if total.unmetered:
        notes.append(f"the energy of {_hours(total.unmetered)} GPU-h is not known")
    if found.late:
        days = "day of a host is" if found.late == 1 else "days of hosts are"
        notes.append(f"{found.late} {days} counted anew: readings came late")
    return notes


def _gap(found: UsageOut) -> list[str]:
    if found.first is None:
        return ["nothing has been counted yet"]
    return [f"nothing was counted before {found.first}"] if found.first > found.start else []


# ---------------------------------------------------------------------- right size

_UNFIT = {
    "short": ("was watched for too short a time", "were watched for too short a time"),
    "untold": ("has not enough data", "have not enough data"),
    "needed": ("needs what it has", "need what they have"),
}


def right_size_lines(found: RightSizeOut) -> list[str]:
    """A block for each job that less would do for, with the evidence; of the others how many there are, and why."""
    lines = [f"{found.start} to before {found.end}, UTC"]
    if found.simulated:
        lines.append("SIMULATED fleet")
    fitting = [row for row in found.rows if row.options]
    if not fitting:
        lines.append("No job is known that less would do for.")
    for row in fitting:
        lines += [_title(row), f"  {'; '.join(_option(one) for one in row.options)}", f"  {_evidence(row)}"]
    counts = {"short": found.short, "untold": found.untold, "needed": found.needed}
    others = [f"{n} {_UNFIT[key][n > 1]}" for key, n in counts.items() if n]
    shown = f", {len(fitting)} shown" if len(fitting) < found.fitting else ""
    return [*lines, "; ".join([f"less would do for {found.fitting} of {found.jobs} jobs{shown}", *others])]


def _title(row: RightSizeRow) -> str:
    whose = [f"{name} {value}" for name, value in (("team", row.team), ("account", row.account)) if value]
    return f"{row.job} on {row.model}{' (' + ', '.join(whose) + ')' if whose else ''}"


def _option(one: RightSizeOption) -> str:
    what = {"mig": f"MIG {one.name}", "card": f"a {one.name}", "share": f"{one.name} of the card"}[one.fit]
    return f"{what} would do, frees {_hours(one.freed)} GPU-h"


def _evidence(row: RightSizeRow) -> str:
    days = row.first if row.first == row.last else f"{row.first} to {row.last}"
    memory = f"memory p99 {_gib(row.memory_p99)}, most {_gib(row.memory_max)} of {_gib(row.memory_total)}"
    what = "kernels ran at most" if row.bounded else "SMs active"
    activity = f"{what} p99 {_percent(row.activity_p99)}, most {_percent(row.activity_max)}"
    link = "NVLink not told" if row.nvlink_max is None else f"NVLink at most {row.nvlink_max / 1e9:.1f} GB/s"
    gpus = f"{row.gpus_max} GPU{'s' if row.gpus_max != 1 else ''} of a host"
    return f"{_hours(row.gpu_hours)} GPU-h on {days}, {gpus}; {memory}; {activity}; {link}; told {_percent(row.known)}"


def _gib(value: float | None) -> str:
    return "unknown" if value is None else f"{value / _GIB:.1f} GiB"


def _percent(value: float | None) -> str:
    return "unknown" if value is None else f"{value * 100:.0f} %"


COMMANDS: list[click.Command] = [usage]

"""`tocsin usage`: who used which GPU time, what it costs, and which jobs less would do for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import click

from tocsin.cli.common import CliContext, all_of, api_options, connect, json_option, pass_context, show
from tocsin.client.models_usage import RightSizeOption, RightSizeOut, RightSizeRow, UsageBy, UsageOut, UsageRow

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
    api_url: str | None,
    token: str | None,
    as_json: bool,
) -> None:
    """Show GPU-hours, idle and free time, energy and cost of whole UTC days by who held the GPUs."""
    if as_csv and (as_json or right_size):
        raise click.UsageError("--csv goes neither with --json nor with --right-size")
    with connect(context, api_url, token, timeout=60.0) as client:
        if right_size:
            judged = client.right_size(start, end, limit)
            show(as_json, judged.model_dump(mode="json"), right_size_lines(judged), client.base_url)
            return
        if as_csv:
            click.echo(client.usage_csv(start, end, by), nl=False)
            return
        found = client.usage(start, end, by, limit)
        show(as_json, found.model_dump(mode="json"), usage_lines(found), client.base_url)


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


def usage_lines(found: UsageOut) -> list[str]:
    """A table of the groups with their total, and what it leaves out."""
    head = [*found.by, *(name for name, _ in _COLUMNS), "cost", "energy"]
    body = [[*_names(row, found.by), *_figures(row, found.currency)] for row in found.rows]
    whole = ["total", *[""] * (len(found.by) - 1), *_figures(found.total, found.currency)]
    lines = [f"{found.start} to before {found.end}, UTC; counted to {found.counted}"]
    if found.simulated:
        lines.append("SIMULATED fleet")
    return [*lines, *_table(head, [*body, whole], len(found.by)), *_notes(found)]


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
    if found.first is None:
        notes.append("nothing has been counted yet")
    elif found.first > found.start:
        notes.append(f"nothing was counted before {found.first}")
    return notes


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

"""`tocsin scan`: a one-shot health check of this node."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import click

from tocsin.cli import values
from tocsin.cli.common import CliContext, dump, json_option, pass_context, show
from tocsin.cli.processes import Duration
from tocsin.domain.clock import SECOND, SystemClock, to_iso
from tocsin.domain.errors import TocsinError
from tocsin.domain.metrics import METRICS
from tocsin.domain.reading import Missing
from tocsin.telemetry.log import configure_logging

if TYPE_CHECKING:
    # The rules bring numpy with them, which the other commands, the agent first, must not pay for.
    from tocsin.runtime.agent.scan import GpuReport, ScanReport

_MARKS = {"healthy": "ok", "attention": "ATTENTION", "act now": "ACT NOW", "cannot see": "CANNOT SEE"}
"""Marks by label of `tocsin.runtime.agent.scan.Health`."""
_TELLING = (Missing.DENIED, Missing.TIMED_OUT, Missing.LOST, Missing.RESET_REQUIRED, Missing.FROZEN)
_MOST_NAMES = 8
_COLUMNS = (
    ("temp", "gpu_temperature_celsius", "{:.0f} °C", 1.0),
    ("power", "gpu_power_watts", "{:.0f} W", 1.0),
    ("util", "gpu_utilization_ratio", "{:.0f} %", 100.0),
    ("memory", "gpu_memory_used_ratio", "{:.0f} %", 100.0),
)


_CANNOT_SEE = 3
"""`tocsin.runtime.agent.scan.Health`'s."""


class _Misused(click.UsageError):
    exit_code = _CANNOT_SEE


class Judged(click.Command):
    """Whoever runs it reads the exit code as a verdict: 2 must not also mean that it was called wrongly."""

    def make_context(self, *arguments: Any, **more: Any) -> click.Context:
        try:
            return super().make_context(*arguments, **more)
        except click.UsageError as error:
            raise _Misused(error.format_message(), error.ctx) from None


@click.command(cls=Judged)
@click.option(
    "--source", shell_complete=values.sources, help="Where readings come from; default: setting agent.source."
)
@click.option(
    "--since", type=Duration(), default=24 * 3600.0, show_default="24h", help="How far back to look for XIDs."
)
@json_option
@click.pass_context
@pass_context
def scan(context: CliContext, ctx: click.Context, source: str | None, since: float, as_json: bool) -> None:
    """Check this node's GPUs once and print their health.

    Exit codes: 0 all healthy, 1 needs attention, 2 needs action now, 3 cannot tell: no driver, no permission, a GPU
    that does not respond, or an invalid setting.
    """
    try:
        report = _scanned(context, source, since)
    except TocsinError as error:
        if as_json:
            dump(_blind(source, str(error)))
        click.echo(f"tocsin: {error}", err=True)
        ctx.exit(_CANNOT_SEE)
    show(as_json, report.as_json(), _lines(report))
    ctx.exit(int(report.health))


def _scanned(context: CliContext, source: str | None, since: float) -> ScanReport:
    from tocsin.runtime.agent import scan as node_scan

    settings = context.settings
    configure_logging(settings.log.level, settings.log.format)
    clock, wait = SystemClock(), threading.Event().wait
    return node_scan.scan_node(settings, source or settings.agent.source, clock, wait, round(since * SECOND))


def _blind(source: str | None, problem: str) -> dict[str, object]:
    """The report of a scan that could not even begin, with the same keys as that of one that could."""
    return {
        "health": "cannot see",
        "exit_code": _CANNOT_SEE,
        "source": source or "",
        "blind": [problem],
        "at": to_iso(SystemClock().now_ms()),
        "gpus": [],
        "findings": [],
        "events": [],
        "notes": [],
    }


def _lines(report: ScanReport) -> list[str]:
    lines = [_heading(report), *_table(report)]
    if report.findings:
        lines.append("")
    lines += [f"{f.severity.value}: {f.sentence} [{f.rule}; proposes: {f.action.value}]" for f in report.findings]
    if report.notes:
        lines += ["", *(f"note: {note}" for note in report.notes)]
    return lines + _unseen(report)


def _heading(report: ScanReport) -> str:
    if not report.gpus:
        return f"no GPU seen by {report.source}: {report.health.label}"
    gpus = [each.reading.gpu for each in report.gpus]
    hosts = sorted({gpu.host for gpu in gpus})
    where = hosts[0] if len(hosts) == 1 else f"{len(hosts)} hosts"
    marked = " (simulated)" if any(gpu.simulated for gpu in gpus) else ""
    whole = sum(1 for gpu in gpus if not gpu.is_mig)
    # dcgm-exporter shows a GPU in MIG mode by its instances alone.
    number = f"{whole} GPUs" if whole else f"{len(gpus)} MIG instances"
    return f"{where}{marked}: {number} read by {report.source}: {report.health.label}"


def _table(report: ScanReport) -> list[str]:
    if not report.gpus:
        return []
    rows: list[tuple[str, ...]] = [("GPU", "model", *(name for name, *_ in _COLUMNS), "metrics", "health")]
    rows += [_row(each) for each in report.gpus]
    hosts = [each.reading.gpu.host for each in report.gpus]
    if len(set(hosts)) > 1:
        rows = [(host, *row) for host, row in zip(("host", *hosts), rows, strict=True)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "",
        *("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows),
    ]


def _row(each: GpuReport) -> tuple[str, ...]:
    gpu, values = each.reading.gpu, each.reading.values
    name = "?" if gpu.index is None else str(gpu.index)
    shown = [form.format(values[metric] * factor) if metric in values else "-" for _, metric, form, factor in _COLUMNS]
    count = len({key.partition("{")[0] for key in values})
    return (
        f"{name}/{gpu.mig_profile}" if gpu.is_mig else name,
        gpu.model,
        *shown,
        str(count),
        _MARKS[each.health.label],
    )


def _unseen(report: ScanReport) -> list[str]:
    """What this look could not see and a more privileged one could; what a GPU does not have is no news."""
    reasons: dict[str, set[str]] = {}
    for each in report.gpus:
        for key, reason in each.reading.missing.items():
            name = key.partition("{")[0]
            if name in METRICS and reason in _TELLING:
                reasons.setdefault(reason.label, set()).add(name)
    lines = [f"not seen: {what}" for what in report.blind]
    lines += [f"not seen ({label}): {_some(sorted(names))}" for label, names in sorted(reasons.items())]
    return ["", *lines] if lines else []


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more


COMMANDS = [scan]

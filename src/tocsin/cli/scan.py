"""`tocsin scan`: a one-shot health check of this node."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import click

from tocsin.cli.common import Context, dump, json_option, pass_context
from tocsin.cli.processes import Duration
from tocsin.domain.clock import SECOND, SystemClock
from tocsin.domain.metrics import METRICS
from tocsin.domain.missing import Missing
from tocsin.telemetry.log import configure_logging

if TYPE_CHECKING:
    # The rules bring numpy with them, which the other commands, the agent first, must not pay for.
    from tocsin.runtime.scan import GpuReport, ScanReport

_MARKS = {"healthy": "ok", "attention": "ATTENTION", "act now": "ACT NOW", "cannot see": "CANNOT SEE"}
"""Marks by label of `tocsin.runtime.scan.Health`."""
_TELLING = (Missing.DENIED, Missing.TIMED_OUT, Missing.LOST, Missing.RESET_REQUIRED, Missing.FROZEN)
_MOST_NAMES = 8
_COLUMNS = (
    ("temp", "gpu_temperature_celsius", "{:.0f} °C", 1.0),
    ("power", "gpu_power_watts", "{:.0f} W", 1.0),
    ("util", "gpu_utilization_ratio", "{:.0f} %", 100.0),
    ("memory", "gpu_memory_used_ratio", "{:.0f} %", 100.0),
)


@click.command()
@click.option("--source", help="Where readings come from; default: setting agent.source.")
@click.option(
    "--since", type=Duration(), default=24 * 3600.0, show_default="24h", help="How far back to look for XIDs."
)
@json_option
@click.pass_context
@pass_context
def scan(context: Context, ctx: click.Context, source: str | None, since: float, as_json: bool) -> None:
    """Check this node's GPUs once and say how they are.

    Ends with 0 where all is healthy, 1 where something wants attention, 2 where something wants action now, and 3 where
    it cannot see: no driver, no permission, a GPU that does not answer.
    """
    from tocsin.runtime import node_scan

    settings = context.settings
    configure_logging(settings.log.level, settings.log.format)
    clock, wait = SystemClock(), threading.Event().wait
    report = node_scan.scan_node(settings, source or settings.agent.source, clock, wait, round(since * SECOND))
    if as_json:
        dump(report.as_json())
    else:
        for line in _lines(report):
            click.echo(line)
    ctx.exit(int(report.health))


def _lines(report: ScanReport) -> list[str]:
    whole = [each for each in report.gpus if not each.reading.gpu.is_mig]
    hosts = sorted({each.reading.gpu.host for each in whole})
    where = hosts[0] if len(hosts) == 1 else f"{len(hosts)} hosts"
    marked = " (simulated)" if any(each.reading.gpu.simulated for each in whole) else ""
    lines = [f"{where}{marked}: {len(whole)} GPUs read by {report.source}: {report.health.label}", ""]
    rows = [("GPU", "model", *(name for name, *_ in _COLUMNS), "metrics", "health")]
    rows += [_row(each) for each in report.gpus]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines += ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    if report.findings:
        lines.append("")
    for finding in report.findings:
        lines.append(f"{finding.severity.value}: {finding.sentence} [{finding.rule}; proposes: {finding.action.value}]")
    lines += _unseen(report)
    return lines


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

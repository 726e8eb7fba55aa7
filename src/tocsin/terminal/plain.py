"""One look as plain text: what ``tocsin top --once`` prints."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tocsin.client.models import GpuState, GpuSummary
from tocsin.terminal import rows, text
from tocsin.terminal.look import Look

_COLUMNS: tuple[tuple[str, Callable[[GpuSummary], str]], ...] = (
    ("util", lambda gpu: text.percent(gpu.utilization_ratio)),
    ("mem", lambda gpu: text.percent(gpu.memory_used_ratio)),
    ("temp", lambda gpu: text.degrees(gpu.temperature_celsius)),
    ("power", lambda gpu: text.watts(gpu.power_watts)),
)


def heading(look: Look) -> list[str]:
    """Who tells, how the fleet is, and what is said of the risk model where it is not heard of all GPUs."""
    marked = " (simulated)" if look.simulated else ""
    hosts = len({gpu.host for gpu in look.gpus})
    counts = ", ".join(f"{count} {state}" for state, count in look.states().items() if count) or "no GPU yet"
    return [
        f"{look.origin}: {control(look)}",
        f"{len(look.gpus)} GPUs on {hosts} hosts{marked}: {counts}",
        *([look.summary.risk_model] if look.summary is not None and look.summary.risk_model else []),
    ]


def control(look: Look) -> str:
    """Mode, pause and breaker, or that there is no brain."""
    summary = look.summary
    if summary is None:
        return "no brain: nothing is predicted and nothing is done"
    paused = f"PAUSED by {summary.paused_by}" + (f" ({summary.paused_reason})" if summary.paused_reason else "")
    breaker = f", BREAKER TRIPPED ({summary.breaker.reason})" if summary.breaker.tripped else ""
    return f"mode {summary.mode}, {paused if summary.paused else 'running'}{breaker}"


def lines(look: Look, test: rows.Test, most: int) -> list[str]:
    """The fleet, then a line for each GPU that `test` lets through, most urgent first, `most` of them (0: all)."""
    chosen = sorted(filter(test, look.gpus), key=rows.urgency)
    shown = chosen[:most] if most else chosen
    hidden = len(chosen) - len(shown)
    more = [f"and {hidden} more (see --rows and --json)"] if hidden else []
    return [*heading(look), *cards(look), "", *_table(shown, look.at), *more, *(f"note: {note}" for note in look.notes)]


def cards(look: Look) -> list[str]:
    """The cards, a line each."""
    found = rows.attention(look) if look.summary is not None else []
    return ["", *(f"{text.SYMBOLS[one.state]} {one.name}: {one.sentence}" for one in found)] if found else []


def _table(gpus: Sequence[GpuSummary], now: str) -> list[str]:
    width = max((len(text.label(gpu)) for gpu in gpus), default=3)
    head = f"  {'GPU':<{width}}" + "".join(f"{name:>8}" for name, _ in _COLUMNS) + "  finding, prediction"
    return [head, *(_line(gpu, now, width) for gpu in gpus)]


def _line(gpu: GpuSummary, now: str, width: int) -> str:
    figures = "".join(f"{form(gpu):>8}" for _, form in _COLUMNS)
    word = "" if gpu.state is GpuState.OK else f"{gpu.state.value}: "
    told = f"{word}{rows.said(gpu, now)}".strip()
    return f"{text.SYMBOLS[gpu.state]} {text.label(gpu):<{width}}{figures}  {told}".rstrip()

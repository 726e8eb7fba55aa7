"""Charts of the page of cost: what GPUs did by the hour, and their power."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from tocsin.client.models import GpuState
from tocsin.client.models_cost import HourOut
from tocsin.dashboard.charts import plain
from tocsin.dashboard.palette import Palette
from tocsin.dashboard.text import Text
from tocsin.domain.clock import HOUR, from_iso, to_iso

USES = ("busy", "held_idle", "stranded", "free", "unknown", "dark", "missing")
"""From the foot of a bar to its top."""
MOST_BARS = 84
_PATTERNS = {"held_idle": "/", "stranded": "x", "dark": "x", "missing": "."}
"""What tells the parts of a bar apart beside the colour."""


@dataclass(frozen=True, slots=True)
class Bar:
    """Some hours together: GPU-hours by use, energy, and GPU-hours whose energy is known."""

    at: str
    uses: dict[str, float]
    kwh: float
    metered: float


def bars(hours: Sequence[HourOut]) -> list[Bar]:
    """`hours` in at most `MOST_BARS` spans of equal length; a span without any hour is empty."""
    if not hours:
        return []
    first, last = from_iso(hours[0].at), from_iso(hours[-1].at)
    width = next((n for n in (1, 2, 3, 6, 12, 24) if (last - first) // HOUR < n * MOST_BARS), 24) * HOUR
    spans: dict[int, list[HourOut]] = {start: [] for start in range(first // width * width, last + 1, width)}
    for hour in hours:
        spans[from_iso(hour.at) // width * width].append(hour)
    return [_bar(to_iso(start), members) for start, members in sorted(spans.items())]


def _bar(at: str, members: Sequence[HourOut]) -> Bar:
    uses = {name: sum(getattr(one, name) for one in members) for name in USES}
    kwh = sum(one.kwh for one in members)
    return Bar(at, uses, kwh, sum(one.gpu_hours - one.unmetered for one in members))


def _colours(palette: Palette) -> dict[str, str]:
    states = palette.states
    return {
        "busy": palette.scale[1],
        "held_idle": states[GpuState.WARNING],
        "stranded": states[GpuState.CRITICAL],
        "free": palette.scale[0],
        "unknown": states[GpuState.STALE],
        "dark": states[GpuState.LOST],
        "missing": palette.grid,
    }


def uses(found: Sequence[Bar], text: Text, palette: Palette) -> go.Figure:
    """Stacked bars of GPU-hours; what nobody has in the period is left out."""
    chart = go.Figure()
    colours = _colours(palette)
    for name in USES:
        values = [one.uses[name] for one in found]
        if any(values):
            label = text(f"cost.use.{name}")
            chart.add_trace(
                go.Bar(
                    x=[one.at for one in found],
                    y=values,
                    name=label,
                    marker={
                        "color": colours[name],
                        "line": {"width": 0.5, "color": palette.muted},
                        "pattern": {"shape": _PATTERNS.get(name, ""), "size": 5, "solidity": 0.25},
                    },
                    hovertemplate=f"{label} %{{y:,.1f}}<extra></extra>",
                )
            )
    legend = {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "font": {"color": palette.muted}}
    plain(chart, 270, palette, barmode="stack", bargap=0.08, hovermode="x unified", legend=legend)
    chart.update_yaxes(title_text=text("cost.axis"))
    return chart


def power(found: Sequence[Bar], palette: Palette) -> go.Figure:
    """Mean power of a board over the time in which it was metered; a gap where none was."""
    watts = [1000 * one.kwh / one.metered if one.metered > 0 else None for one in found]
    chart = go.Figure(
        go.Scatter(
            x=[one.at for one in found],
            y=watts,
            mode="lines+markers" if len(found) < 3 else "lines",
            line={"color": palette.line, "width": 1.8},
            connectgaps=False,
            hovertemplate="%{y:,.0f} W<extra></extra>",
        )
    )
    plain(chart, 140, palette, hovermode="x unified")
    chart.update_yaxes(rangemode="tozero", title_text="W", nticks=4)
    return chart

"""The fleet as a map: a column a host, a row a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

import plotly.graph_objects as go

from tocsin.client.models import GpuState, GpuSummary
from tocsin.dashboard.format import degrees, gpu_label, percent, watts
from tocsin.dashboard.palette import SYMBOLS, Palette, ink, mix
from tocsin.dashboard.text import Text

HOSTS_PER_BAND = 32
"""Hosts side by side; more go into further bands below."""

_MAX_NUMBERS = 256
"""GPUs up to which the cells carry their number."""


@dataclass(frozen=True, slots=True)
class Measure:
    """What the colour shows: how to read it, its range, and how to write it in a cell."""

    read: Callable[[GpuSummary], float | None]
    low: float
    high: float
    factor: float
    unit: str
    alarm: float | None = None
    """Value from which the colours are those of trouble; None where high is no trouble."""

    def scale(self, palette: Palette) -> list[tuple[float, str]]:
        """Colours from 0 (`low`) to 1 (`high`)."""
        top = 1.0 if self.alarm is None else (self.alarm - self.low) / (self.high - self.low)
        stops = [(0.0, palette.scale[0]), (0.5 * top, palette.scale[1]), (top, palette.scale[2])]
        if self.alarm is None:
            return stops
        return [*stops, (top, palette.states[GpuState.WARNING]), (1.0, palette.states[GpuState.CRITICAL])]

    def colour(self, value: float, palette: Palette) -> str:
        """The colour of `value`, cut off at both ends."""
        share = min(1.0, max(0.0, (value - self.low) / (self.high - self.low)))
        stops = self.scale(palette)
        for (left, low), (right, high) in pairwise(stops):
            if share < right:
                return mix(low, high, (share - left) / (right - left))
        return stops[-1][1]


MEASURES: dict[str, Measure | None] = {
    "state": None,
    "temperature": Measure(lambda gpu: gpu.temperature_celsius, 30.0, 95.0, 1.0, "°C", 85.0),
    "utilization": Measure(lambda gpu: gpu.utilization_ratio, 0.0, 100.0, 100.0, "%"),
    "memory": Measure(lambda gpu: gpu.memory_used_ratio, 0.0, 100.0, 100.0, "%", 90.0),
}
"""Choices of colour; None colours by state."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where each GPU is drawn: `cells` maps (row, column) to it; a band has `rows` rows and one empty row below."""

    cells: dict[tuple[int, int], GpuSummary]
    hosts: list[str]
    columns: int
    rows: int
    bands: int

    @property
    def height(self) -> int:
        """Rows of all bands, with the empty ones between them."""
        return self.bands * (self.rows + 1) - 1


def arrange(gpus: Sequence[GpuSummary]) -> Layout:
    """Hosts in the order given, each host's GPUs from top to bottom by index."""
    by_host: dict[str, list[GpuSummary]] = {}
    for gpu in gpus:
        by_host.setdefault(gpu.host, []).append(gpu)
    hosts = list(by_host)
    columns = min(HOSTS_PER_BAND, max(1, len(hosts)))
    rows = max((len(members) for members in by_host.values()), default=1)
    cells = {}
    for number, members in enumerate(by_host.values()):
        band, column = divmod(number, columns)
        for row, gpu in enumerate(members):
            cells[band * (rows + 1) + row, column] = gpu
    return Layout(cells, hosts, columns, rows, -(-max(1, len(hosts)) // columns))


def _hover(gpu: GpuSummary, text: Text) -> str:
    lines = [
        f"<b>{escape(gpu_label(gpu))}</b>  {SYMBOLS[gpu.state]} {text.name('state', gpu.state.value)}",
        f"{escape(gpu.model)} · {escape(gpu.pool)}",
        f"{degrees(gpu.temperature_celsius)} · {percent(gpu.utilization_ratio)} · {watts(gpu.power_watts)}",
    ]
    lines += [escape(sentence) for sentence in (gpu.finding, gpu.prediction) if sentence]
    return "<br>".join(lines)


def _mark(gpu: GpuSummary, measure: Measure | None, crowded: bool) -> str:
    sign = "" if gpu.state is GpuState.OK else SYMBOLS[gpu.state]
    if measure is None or crowded:
        return sign
    value = measure.read(gpu)
    return sign if value is None else f"{measure.factor * value:.0f}"


def _ink(gpu: GpuSummary, measure: Measure | None, palette: Palette) -> str:
    if measure is None:
        return ink(palette.states[gpu.state])
    value = measure.read(gpu)
    return palette.text if value is None else ink(measure.colour(measure.factor * value, palette))


def _state_scale(palette: Palette) -> list[tuple[float, str]]:
    count = len(GpuState)
    return [(edge / count, palette.states[state]) for rank, state in enumerate(GpuState) for edge in (rank, rank + 1)]


def _colours(layout: Layout, measure: Measure | None) -> list[list[float | None]]:
    grid: list[list[float | None]] = [[None] * layout.columns for _ in range(layout.height)]
    for (row, column), gpu in layout.cells.items():
        if measure is None:
            grid[row][column] = gpu.state.rank + 0.5
        else:
            value = measure.read(gpu)
            grid[row][column] = None if value is None else measure.factor * value
    return grid


def figure(gpus: Sequence[GpuSummary], choice: str, text: Text, palette: Palette) -> tuple[go.Figure, list[str]]:
    """The map, and the UUIDs of its points in their order (for a click)."""
    layout, measure = arrange(gpus), MEASURES[choice]
    crowded = len(gpus) > _MAX_NUMBERS
    low, high = (0.0, float(len(GpuState))) if measure is None else (measure.low, measure.high)
    scale = _state_scale(palette) if measure is None else measure.scale(palette)
    cells = layout.cells
    colours = go.Heatmap(
        z=_colours(layout, measure),
        zmin=low,
        zmax=high,
        colorscale=scale,
        showscale=measure is not None,
        colorbar={"thickness": 10, "ticksuffix": f" {measure.unit}" if measure else "", "outlinewidth": 0},
        xgap=1 if crowded else 3,
        ygap=1 if crowded else 3,
        hoverinfo="skip",
    )
    points = go.Scatter(
        x=[column for _, column in cells],
        y=[row for row, _ in cells],
        mode="markers+text",
        marker={"size": 24 if not crowded else 12, "symbol": "square", "color": "rgba(0,0,0,0)"},
        selected={"marker": {"opacity": 0}},
        unselected={"marker": {"opacity": 0}},
        text=[_mark(gpu, measure, crowded) for gpu in cells.values()],
        textfont={"color": [_ink(gpu, measure, palette) for gpu in cells.values()], "size": 13 if not crowded else 8},
        hovertext=[_hover(gpu, text) for gpu in cells.values()],
        hoverinfo="text",
    )
    chart = go.Figure([colours, points])
    _lay_out(chart, layout, palette)
    return chart, [gpu.uuid for gpu in cells.values()]


def _lay_out(chart: go.Figure, layout: Layout, palette: Palette) -> None:
    single = layout.bands == 1
    height = (
        max(240, min(640, 50 * layout.rows + 60))
        if single
        else round(layout.height * max(9, min(20, 620 / layout.height))) + 40
    )
    chart.update_layout(
        height=height,
        margin={"l": 0, "r": 0, "t": 4, "b": 0},
        showlegend=False,
        dragmode=False,
        clickmode="event+select",
        plot_bgcolor="rgba(0,0,0,0)",
        paper_bgcolor="rgba(0,0,0,0)",
    )
    grid = {"showgrid": False, "zeroline": False, "fixedrange": True, "tickfont": {"color": palette.muted, "size": 11}}
    bands = range(layout.bands)
    firsts = [layout.hosts[band * layout.columns] for band in bands] if layout.hosts else []
    starts = [band * (layout.rows + 1) for band in bands]
    chart.update_xaxes(
        tickvals=list(range(layout.columns)) if single else [],
        ticktext=layout.hosts if single else [],
        range=[-0.5, layout.columns - 0.5],
        **grid,
    )
    chart.update_yaxes(
        tickvals=list(range(layout.rows)) if single else starts,
        ticktext=[str(row) for row in range(layout.rows)] if single else firsts,
        range=[layout.height - 0.5, -0.5],
        **grid,
    )

"""Page: who used which GPU time, what it cost, and which jobs less would have done for."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import plotly.graph_objects as go
import streamlit as st

from tocsin.client.models import GpuState
from tocsin.client.models_cells import WholeUsage
from tocsin.client.models_usage import RightSizeOption, RightSizeOut, RightSizeRow, UsageBy, UsageOut, UsageRow
from tocsin.client.usage_csv import csv_of
from tocsin.client.whole_usage import currencies
from tocsin.dashboard import cells, link, style, whole_answers
from tocsin.dashboard.access import api
from tocsin.dashboard.boundary import live
from tocsin.dashboard.charts import plain, show
from tocsin.dashboard.components import more, style_sheet
from tocsin.dashboard.frame import current_palette, current_text
from tocsin.dashboard.palette import Palette
from tocsin.dashboard.text import NOTHING, Text, money, number, percent
from tocsin.domain.clock import DAY, from_iso, to_iso

PERIODS = {"7d": 7, "30d": 30}
"""Days up to today."""
BY: tuple[UsageBy, ...] = ("namespace", "team", "account", "user", "job", "pool", "model", "kind")
ROWS, BARS, JOBS, MOST = 15, 8, 6, 1000
USES = ("used", "idle", "untold", "free", "stranded", "not_seen")
"""From the left of a bar to its right."""
_PATTERNS = {"idle": "/", "stranded": "x", "not_seen": "."}
"""What tells the parts of a bar apart beside the colour."""
_GIB = 1024**3


def name_of(row: UsageRow, by: Sequence[UsageBy], text: Text) -> str:
    """What a group is called: its values, else that nobody held it, or that it is not known who."""
    if row.rest:
        return text("usage.rest")
    names = " · ".join(
        text.name(f"usage.{key}", one) if key in ("kind", "namespace") else one
        for key in by
        if (one := row.group.get(key))
    )
    if not row.held:
        return f"{names} {text('usage.nobody')}".strip()
    return names or text("usage.not_known")


# ---------------------------------------------------------------------- figures and table


def _figures(found: UsageOut, unpaid: str, text: Text) -> str:
    total = found.total

    def part(key: str, value: float, edge: str = "line") -> str:
        share = percent(value / total.gpu_hours) if total.gpu_hours else ""
        note = " · ".join(filter(None, (share, text(f"usage.{key}.note"))))
        return style.kpi(text(f"usage.{key}"), text("cost.hours", n=number(value)), note, edge=edge)

    paid = money(total.cost, found.currency)
    bare = text("cost.bare", n=number(total.unpriced)) if total.unpriced and total.cost is not None else ""
    energy = money(total.energy_cost, found.currency)
    return style.kpis(
        [
            part("used", total.used),
            part("idle", total.idle),
            part("free", total.free + total.stranded),
            part("not_seen", total.not_seen, "stale" if total.not_seen else "grid"),
            style.kpi(text("usage.cost"), paid or NOTHING, bare if paid else unpaid, edge="line"),
            style.kpi(text("usage.energy"), f"{number(total.kwh)} kWh", energy or unpaid, edge="line"),
        ]
    )


def _table(found: UsageOut, unpaid: str, text: Text) -> str:
    columns = ("gpu_hours", *USES)
    numbers = [text("usage.gpu_hours"), *(text(f"usage.use.{use}") for use in USES)]
    head = [text(f"usage.by.{found.by[0]}"), *numbers, "kWh", text("usage.cost")]
    rows = [
        [
            escape(name_of(row, found.by, text)),
            *(_hours(getattr(row, name)) for name in columns),
            _hours(row.kwh),
            escape(money(row.cost, found.currency) or unpaid),
        ]
        for row in found.rows[:ROWS]
    ]
    table = style.table(head, rows, numbers=range(1, len(head)))
    return style.title(text("usage.table")) + table + more(found.groups, len(rows), text)


def _hours(value: float) -> str:
    return number(round(value, 1)) if value else "–"


def _notes(found: UsageOut, told: WholeUsage | None, text: Text) -> str:
    """What the figures leave out; `told` has what each cell said where all are shown."""
    lines = [text("usage.counted", at=found.counted[:16].replace("T", " "))]
    if told is None:
        lines += _since(found, text) if found.rows else []
    elif found.rows:
        lines += cells.each({name: _since(one, text) for name, one in told.answers.items()}, text)
        lines += cells.currencies(currencies(told.answers), text)
    if found.total.unmetered:
        lines.append(text("cost.unmetered", n=number(found.total.unmetered)))
    if found.total.unpriced_kwh and found.total.energy_cost is not None:
        lines.append(text("cost.bare_kwh", n=number(found.total.unpriced_kwh)))
    if found.late:
        lines.append(text("usage.late", n=found.late))
    return "".join(style.note(line) for line in lines)


def _since(found: UsageOut, text: Text) -> list[str]:
    if found.first is None:
        return [text("usage.none")]
    return [text("usage.since", day=found.first)] if found.first > found.start else []


# ---------------------------------------------------------------------- chart


def _colours(palette: Palette) -> dict[str, str]:
    states = palette.states
    return {
        "used": palette.scale[1],
        "idle": states[GpuState.WARNING],
        "untold": states[GpuState.STALE],
        "free": palette.scale[0],
        "stranded": states[GpuState.CRITICAL],
        "not_seen": palette.grid,
    }


def bars(found: UsageOut, text: Text, palette: Palette) -> go.Figure:
    """GPU-hours of the largest groups, one bar each, by what they were."""
    chart, colours = go.Figure(), _colours(palette)
    shown = found.rows[:BARS][::-1]
    names = [name_of(row, found.by, text) for row in shown]
    for use in USES:
        values = [getattr(row, use) for row in shown]
        if any(values):
            label = text(f"usage.use.{use}")
            chart.add_trace(
                go.Bar(
                    x=values,
                    y=[_short(name) for name in names],
                    name=label,
                    orientation="h",
                    marker={
                        "color": colours[use],
                        "line": {"width": 0.5, "color": palette.muted},
                        "pattern": {"shape": _PATTERNS.get(use, ""), "size": 5, "solidity": 0.25},
                    },
                    hovertemplate=f"{label} %{{x:,.1f}}<extra></extra>",
                )
            )
    font = {"color": palette.muted}
    legend = {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "font": font, "traceorder": "normal"}
    plain(chart, 90 + 34 * max(1, len(shown)), palette, barmode="stack", bargap=0.25, legend=legend)
    chart.update_xaxes(title_text=text("cost.axis"), rangemode="tozero")
    chart.update_yaxes(automargin=True, showgrid=False)
    return chart


_LONGEST = 28


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"


# ---------------------------------------------------------------------- right size


def _judged(found: RightSizeOut, text: Text) -> str:
    fitting = [row for row in found.rows if row.options][:JOBS]
    heading = style.title(text("usage.right_size"))
    lines = "".join(_job(row, text) for row in fitting) or style.note(text("usage.fit.none"))
    counts = text("usage.fit.counts", jobs=found.jobs, short=found.short, untold=found.untold, needed=found.needed)
    return heading + lines + more(found.fitting, len(fitting), text) + style.note(counts)


def _job(row: RightSizeRow, text: Text) -> str:
    whose = " · ".join(filter(None, (row.team, row.account)))
    options = text("usage.fit.or").join(_option(one, text) for one in row.options)
    body = f"<b>{escape(row.job)}</b> {escape(text('usage.fit.on', model=row.model))}"
    body += f' <span class="tc-sub">{escape(whose)}</span>' if whose else ""
    meta = f'<div class="tc-meta">{escape(options)}</div><div class="tc-meta">{escape(_evidence(row, text))}</div>'
    return style.row('<span class="tc-sign">↓</span>', body + meta)


def _option(one: RightSizeOption, text: Text) -> str:
    return text(f"usage.fit.{one.fit}", name=one.name, n=number(round(one.freed, 1)))


def _evidence(row: RightSizeRow, text: Text) -> str:
    def gib(value: float | None) -> str:
        return "–" if value is None else f"{value / _GIB:.1f} GiB"

    activity = "usage.fit.bound" if row.bounded else "usage.fit.activity"
    link_ = text("usage.fit.no_link") if row.nvlink_max is None else f"NVLink ≤ {row.nvlink_max / 1e9:.1f} GB/s"
    return " · ".join(
        [
            text("cost.hours", n=number(round(row.gpu_hours, 1))),
            row.first if row.first == row.last else f"{row.first} – {row.last}",
            text("usage.fit.memory", p99=gib(row.memory_p99), most=gib(row.memory_max), total=gib(row.memory_total)),
            text(activity, p99=percent(row.activity_p99), most=percent(row.activity_max)),
            link_,
            text("usage.fit.known", p=percent(row.known)),
        ]
    )


@live()
def render() -> None:
    """Draw the page."""
    text, palette = current_text(), current_palette()
    bar = st.container(horizontal=True, vertical_alignment="bottom", horizontal_alignment="distribute")
    with bar:
        words = {name: text("unit.d", n=days) for name, days in PERIODS.items()}
        period = link.pick("days", text("cost.period"), list(PERIODS), "7d", words.__getitem__)
        chosen = link.pick("by", text("usage.by"), BY, "namespace", lambda one: text(f"usage.by.{one}"))
    with api(text) as client:
        today = from_iso(client.summary().now) // DAY
        start, end = (to_iso(day * DAY)[:10] for day in (today + 1 - PERIODS[period], today + 1))
        by = next(one for one in BY if one == chosen)
        found, told = whole_answers.usage_of(client, start, end, [by], MOST)
        judged, judged_by = whole_answers.right_size_of(client, start, end, JOBS)
    name = f"tocsin-usage-{found.start}-{by}.csv"
    bar.download_button(text("usage.download"), csv_of(found), name, "text/csv", icon=":material/download:")
    mixed = told is not None and len(currencies(told.answers)) > 1
    unpaid = text("cells.mixed" if mixed else "usage.no_price")
    partly = "".join(map(style.note, cells.partly_all((told, judged_by), text)))
    st.html(style_sheet() + _figures(found, unpaid, text) + _notes(found, told, text) + partly)
    if not found.rows:
        st.info(text("usage.none"))
        return
    left, right = st.columns([6, 5], gap="medium")
    with left:
        st.html(style.title(text("usage.chart")))
        show(bars(found, text, palette), "usage", text("usage.chart"))
    with right:
        st.html(_judged(judged, text))
    st.html(_table(found, unpaid, text))


if __name__ == "__main__":
    render()

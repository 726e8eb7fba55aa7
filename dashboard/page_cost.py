"""Page: what the fleet was used for, what idle GPUs, energy and faults cost, and what was done before them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from html import escape
from itertools import pairwise

import plotly.graph_objects as go
import streamlit as st

from tocsin.client.models import GpuState
from tocsin.client.models_capacity import CostOut, EarlyOut, GroupOut, HourOut, MoneyOut
from tocsin.client.models_cells import WholeCost
from tocsin.client.whole_cost import bare_kwh, currencies
from tocsin.dashboard import cells, link, style, whole_answers
from tocsin.dashboard.access import api
from tocsin.dashboard.boundary import live
from tocsin.dashboard.charts import plain, show, time_axis
from tocsin.dashboard.components import gpu_link, more, style_sheet
from tocsin.dashboard.frame import current_palette, current_text
from tocsin.dashboard.palette import Palette
from tocsin.dashboard.text import Text, decided_words, effect_words, gpu_at, money, number, percent
from tocsin.domain.clock import DAY, HOUR, from_iso, to_iso
from tocsin.domain.csv_text import csv_text
from tocsin.domain.usage import Usage

# Charts of the page of cost: what GPUs did by the hour, and their power.

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
    first, last = hours[0].at_ms, hours[-1].at_ms
    width = next((n for n in (1, 2, 3, 6, 12, 24) if (last - first) // HOUR < n * MOST_BARS), 24) * HOUR
    spans: dict[int, list[HourOut]] = {start: [] for start in range(first // width * width, last + 1, width)}
    for hour in hours:
        spans[hour.at_ms // width * width].append(hour)
    return [_bar(to_iso(start), members) for start, members in sorted(spans.items())]


def _bar(at: str, members: Sequence[HourOut]) -> Bar:
    uses = {name: sum(getattr(one, name) for one in members) for name in USES}
    return Bar(at, uses, sum(one.kwh for one in members), sum(one.gpu_hours - one.unmetered for one in members))


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


def _hours_axis(chart: go.Figure, found: Sequence[Bar]) -> None:
    """The whole of the first and of the last bar, which stand on the middle of their hours or days."""
    at_ms = [from_iso(one.at) for one in found]
    half = min((after - before for before, after in pairwise(at_ms)), default=HOUR) // 2
    time_axis(chart, [at_ms[0] - half, at_ms[-1] + half] if at_ms else [])


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
    _hours_axis(chart, found)
    chart.update_yaxes(title_text=text("cost.axis"), rangemode="tozero")
    return chart


def power(found: Sequence[Bar], palette: Palette) -> go.Figure:
    """Mean power of a board over the time in which it was metered; a gap where none was."""
    chart = go.Figure(
        go.Scatter(
            x=[one.at for one in found],
            y=[1000 * one.kwh / one.metered if one.metered > 0 else None for one in found],
            mode="lines+markers" if len(found) < 3 else "lines",
            line={"color": palette.line, "width": 1.8},
            connectgaps=False,
            hovertemplate="%{y:,.0f} W<extra></extra>",
        )
    )
    plain(chart, 140, palette, hovermode="x unified")
    _hours_axis(chart, found)
    chart.update_yaxes(rangemode="tozero", title_text="W", nticks=4, tickformat=",d")
    return chart


PERIODS = {"24h": DAY, "7d": 7 * DAY, "30d": 30 * DAY}
ROWS, EARLY = 8, 4
"""Pools and models, and early actions, that are shown."""
EXAMPLE = """[prices]
currency = "EUR"
gpu_hour = { H100 = 2.4, A100 = 1.3 }
kwh = 0.21
pue = 1.3"""
COLUMNS = ("gpu_hours", *(one.name for one in fields(Usage)))


def _figures(found: CostOut, text: Text) -> str:
    usage, paid = found.usage, found.money

    def part(key: str, value: float, cost: float | None, use: str) -> str:
        hours = text("cost.hours", n=number(value))
        share = percent(value / usage.gpu_hours) if usage.gpu_hours else ""
        note = " · ".join(filter(None, (share, text(f"cost.{key}.note"))))
        bare = sum(getattr(one, use) for one in found.groups if one.gpu_hour is None)
        # A sum that leaves all of it out says nothing, and one that leaves a part out says so.
        figure = "" if value and bare >= value else money(cost, paid.currency)
        if figure and bare:
            note += " · " + text("cost.bare", n=number(bare))
        return style.kpi(text(f"cost.{key}"), figure or hours, f"{hours} · {note}" if figure else note, edge="line")

    sums = money(paid.energy, paid.currency)
    idle = text("cost.energy.note", idle=f"{number(usage.idle_kwh)} kWh")
    unmetered = text("cost.unmetered", n=number(usage.unmetered)) if usage.unmetered else ""
    known = f"{number(usage.kwh)} kWh"
    notes = " · ".join(filter(None, (known if sums else "", idle, unmetered)))
    return style.kpis(
        [
            part("idle", usage.held_idle, paid.held_idle, "held_idle"),
            part("stranded", usage.stranded, paid.stranded, "stranded"),
            part("free", usage.free, paid.free, "free"),
            style.kpi(text("cost.energy"), sums or known, notes, edge="line"),
            style.kpi(
                text("cost.faults"),
                str(found.lost.faults),
                text("cost.faults.note", n=found.lost.at_work),
                edge="critical" if found.lost.faults else "grid",
            ),
            style.kpi(
                text("cost.missing"),
                text("cost.hours", n=number(usage.missing + usage.dark)),
                text("cost.missing.note"),
                edge="stale" if usage.missing + usage.dark else "grid",
            ),
        ]
    )


def csv_of(hours: Sequence[HourOut]) -> str:
    """A row an hour, the columns of the API."""
    rows = [
        [to_iso(hour.at_ms), *(round(getattr(hour, name), 6) for name in COLUMNS), str(hour.sampled).lower()]
        for hour in hours
    ]
    return csv_text(["at", *COLUMNS, "sampled"], rows)


def _notes(found: CostOut, told: WholeCost | None, text: Text) -> str:
    """What the figures leave out; `told` has what each cell said where all are shown."""
    lines = _gaps(found, text) if told is None else _gaps_of_all(found, told, text)
    if any(hour.sampled for hour in found.hours):
        lines.append(text("cost.sampled"))
    return "".join(style.note(line) for line in lines)


def _gaps(found: CostOut, text: Text) -> list[str]:
    lines = []
    if found.hours_read < found.hours_wanted:
        lines.append(text("cost.reading", read=found.hours_read, wanted=found.hours_wanted))
    if found.hours_empty:
        lines.append(text("cost.empty", n=found.hours_empty, wanted=found.hours_wanted))
    return lines


def _gaps_of_all(found: CostOut, told: WholeCost, text: Text) -> list[str]:
    lines = cells.each({name: _gaps(one, text) for name, one in told.answers.items()}, text)
    lines += cells.currencies(currencies(told.answers), text)
    bare = bare_kwh(told.answers)
    if bare and found.money.energy is not None:
        lines.append(text("cost.bare_kwh", n=number(bare)))
    return [*lines, *cells.partly_all((told,), text)]


# ---------------------------------------------------------------------- prices


def _group(one: GroupOut, currency: str) -> list[str]:
    return [
        f'{escape(one.model or "–")} <span class="tc-sub">{escape(one.pool)}</span>',
        number(one.gpu_hours),
        number(round(one.held_idle + one.stranded + one.free, 1)),
        number(round(one.kwh, 1)),
        escape("–" if one.gpu_hour is None else money(one.gpu_hour, "")),
        escape(money(one.idle_cost, currency) or "–"),
    ]


def _prices(found: CostOut, text: Text, *, mixed: bool) -> str:
    """Groups with their prices; `mixed` where cells have prices in several currencies, of which a note tells."""
    head = [
        text("cost.model"),
        text("cost.gpu_hours"),
        text("cost.column.idle"),
        text("cost.column.kwh"),
        text("cost.column.price"),
        text("cost.column.cost"),
    ]
    rows = [_group(one, found.money.currency) for one in found.groups[:ROWS]]
    table = style.table(head, rows, numbers=range(1, len(head)))
    paid = "" if mixed else _paid(found, text)
    return style.title(text("cost.table")) + table + more(len(found.groups), len(rows), text) + paid


def _paid(found: CostOut, text: Text) -> str:
    paid: MoneyOut = found.money
    if paid.energy is None and all(one.gpu_hour is None for one in found.groups):
        return style.note(text("cost.no_price")) + f"<pre><code>{escape(EXAMPLE)}</code></pre>"
    lines = []
    if paid.unpriced:
        lines.append(text("cost.unpriced", n=number(paid.unpriced)))
    if paid.energy is not None and paid.kwh_price is not None:
        values = {"kwh": number(found.usage.kwh), "pue": f"{paid.pue:g}", "price": f"{paid.kwh_price:g}"}
        total = money(paid.energy, paid.currency)
        lines.append(text("cost.energy.price", **values, currency=paid.currency, sum=total))
    return "".join(style.note(line) for line in lines)


# ---------------------------------------------------------------------- faults


def _early(one: EarlyOut, text: Text) -> str:
    said = decided_words(one.action, one.sentence, one.cause_zh, text)
    words = text("cost.early.line", lead=text.duration(one.lead_s), sentence=said)
    facts = [] if one.idle is None else [text("cost.early.idle" if one.idle else "cost.early.busy")]
    if one.effect:
        measured = ", ".join(
            " ".join(effect_words(name, value, text)).strip() for name, value in list(one.effect.items())[:3]
        )
        facts.append(text("cost.effect", effect=measured))
    badge = f"{style.chip(text('simulated'), 'tc-sim')} " if one.simulated else ""
    meta = f'<div class="tc-meta">{badge}{escape(" · ".join(facts))}</div>' if facts or badge else ""
    name = gpu_link(one.gpu, gpu_at(one.host, None, one.gpu))
    return style.row('<span class="tc-sign">✓</span>', f"{name} {escape(words)}{meta}")


def _lost(found: CostOut, text: Text) -> str:
    lost = found.lost
    heading = style.title(text("cost.lost"))
    if not lost.faults:
        return heading + f'<span class="tc-muted">{escape(text("cost.lost.none"))}</span>'
    untold = lost.faults - lost.at_work - lost.at_rest
    lines = [text("cost.lost.hit", n=lost.faults, work=lost.at_work, rest=lost.at_rest, untold=untold)]
    if lost.at_work:
        assumed = number(lost.hit * lost.hours_each)
        lines.append(text("cost.lost.unknown", each=f"{lost.hours_each:g}", gpus=lost.hit, n=assumed))
    early = text("cost.early", n=lost.early_total, faults=lost.faults) if lost.early_total else text("cost.early.none")
    rows = "".join(_early(one, text) for one in lost.early[:EARLY])
    said = "".join(style.note(line) for line in [*lines, early])
    return heading + said + rows + more(lost.early_total, min(EARLY, len(lost.early)), text)


def _charts(found: CostOut, text: Text, palette: Palette) -> None:
    drawn = bars(found.hours)
    st.html(style.title(text("cost.by_hour")))
    if not drawn:
        st.info(text("cost.none"))
        return
    show(uses(drawn, text, palette), "uses", text("cost.by_hour"))
    st.html(style.title(text("cost.power")))
    show(power(drawn, palette), "power", text("cost.power"))


@live()
def render() -> None:
    """Draw the page."""
    text, palette = current_text(), current_palette()
    bar = st.container(horizontal=True, vertical_alignment="center", horizontal_alignment="distribute")
    with bar:
        words = {name: text(f"unit.{name[-1]}", n=name[:-1]) for name in PERIODS}
        period = link.pick("period", text("cost.period"), list(PERIODS), "24h", words.__getitem__)
    with api(text) as client:
        now_ms = from_iso(client.summary().now)
        # Whole hours, so that the period holds as many as it says.
        found, told = whole_answers.cost_of(client, (now_ms // HOUR + 1) * HOUR - PERIODS[period], now_ms)
    bar.download_button(
        text("cost.download"), csv_of(found.hours), f"tocsin-cost-{period}.csv", "text/csv", icon=":material/download:"
    )
    st.html(style_sheet() + _figures(found, text) + _notes(found, told, text))
    left, right = st.columns([6, 5], gap="medium")
    with left:
        _charts(found, text, palette)
    with right:
        st.html(_prices(found, text, mixed=told is not None and len(currencies(told.answers)) > 1))
        st.html(_lost(found, text))


if __name__ == "__main__":
    render()

"""Page: what lies ahead, with how sure it is: risks, memory, fragmentation, capacity."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import plotly.graph_objects as go
import streamlit as st

from tocsin.client.models_capacity import (
    CapacityOut,
    CourseOut,
    FillingOut,
    ForecastOut,
    HostRiskOut,
    PoolOutlook,
    RecordOut,
    RiskCalendar,
    RiskOut,
)
from tocsin.dashboard import cells, link, style
from tocsin.dashboard.access import api
from tocsin.dashboard.boundary import live
from tocsin.dashboard.charts import plain, show, time_axis
from tocsin.dashboard.components import gpu_link, heat_cell, heat_table, more, risk_text, style_sheet
from tocsin.dashboard.frame import current_palette, current_text
from tocsin.dashboard.palette import Palette, mix
from tocsin.dashboard.text import Text, chance, clock, eta_text, gpu_at, number, percent
from tocsin.domain.clock import from_iso, optional_iso
from tocsin.domain.errors import Unavailable
from tocsin.domain.prediction import PredictionStatus

# Charts of an hourly figure: its past, what is expected, and the interval around that.

HEIGHT = 188
_ROOM = 1.2
"""Room above the highest value, for the word at the level line."""


def figure(
    course: CourseOut, scale: float, there: float | None, text: Text, palette: Palette, height: int = HEIGHT
) -> go.Figure:
    """`course` times `scale`; a level line at `there`, where that is given."""
    chart = go.Figure()
    band = mix(palette.background, palette.forecast, 0.25)
    high, low, known_course = (_scaled(values, scale) for values in (course.high, course.low, course.known))
    hidden = {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
    chart.add_trace(go.Scatter(x=course.at, y=high, **hidden))
    chart.add_trace(go.Scatter(x=course.at, y=low, fill="tonexty", fillcolor=band, **hidden))
    known = {"color": palette.line, "width": 1.8}
    expected = {"color": palette.forecast, "width": 1.8, "dash": "dash"}
    for name, values, line in (
        ("ahead.known", known_course, known),
        ("ahead.likely", _scaled(course.expected, scale), expected),
    ):
        label = text(name)
        chart.add_trace(
            go.Scatter(
                x=course.at,
                y=values,
                mode="lines",
                line=line,
                name=label,
                connectgaps=False,
                hovertemplate=f"{label} %{{y:.1f}}<extra></extra>",
                showlegend=False,
            )
        )
    if there is not None:
        words = {"text": text("ahead.there"), "font": {"size": 10, "color": palette.muted}}
        line = {"color": palette.muted, "width": 1.2}
        chart.add_hline(y=there, line=line, annotation=words, annotation_position="top left")
    plain(chart, height, palette, hovermode="x unified", margin={"l": 0, "r": 4, "t": 6, "b": 0})
    known_values = [value for values in (known_course, high) for value in values if value is not None]
    top = max([*known_values, there or 0.0], default=1.0) or 1.0
    chart.update_yaxes(range=[0, _ROOM * top], nticks=5)
    time_axis(chart, [from_iso(at) for at in course.at], nticks=5)
    return chart


def _scaled(values: Sequence[float | None], scale: float) -> list[float | None]:
    return [None if value is None else value * scale for value in values]


def peak(course: CourseOut) -> int | None:
    """Place of the largest expected value; None without a forecast."""
    coming = [(value, place) for place, value in enumerate(course.expected) if value is not None]
    return max(coming, key=lambda one: (one[0], -one[1]))[1] if coming else None


# The part of the forecast about pools: what is expected against what is there, and the fleet's fragmentation.

AT_ONCE = 3
"""Pools side by side; the fourth place is the fleet's fragmentation."""


def _peak(course: CourseOut, scale: float, size: float, text: Text) -> str:
    if (place := peak(course)) is None:
        return ""
    low, middle, high = (
        number(round((values[place] or 0.0) * scale, 1)) for values in (course.low, course.expected, course.high)
    )
    return text("ahead.peak", n=middle, size=number(size), low=low, high=high, at=f"{clock(course.at[place])[5:]} UTC")


def _lines(one: PoolOutlook, text: Text) -> list[str]:
    """What is said below the chart: the peak, warnings, and GPUs that work waits for."""
    lines = [_peak(one.utilisation, one.gpus, one.in_service, text)]
    warned = [said for said in one.statements if said.status is PredictionStatus.CROSSING]
    lines += [text.said(one.sentence, one.sentence_zh) for one in warned]
    if one.waiting is not None and (place := peak(one.waiting)) is not None:
        most = one.waiting.expected[place] or 0.0
        if most >= 1:
            lines.append(text("ahead.wait", n=number(round(most))))
    return [line for line in lines if line]


def _panel(heading: str, course: CourseOut, text: Text) -> bool:
    """Heading of a chart; False where there are not enough data for one, which it says."""
    st.html(f'<b class="tc-meta">{escape(heading)}</b>')
    if course.reason and not any(value is not None for value in course.known):
        st.html(style.note(text("ahead.short", reason=text.said(course.reason, course.reason_zh))))
        return False
    return True


def _pool(one: PoolOutlook, text: Text, palette: Palette) -> None:
    heading = text("ahead.pool.title", pool=one.pool, n=one.in_service)
    if _panel(heading, one.utilisation, text):
        show(figure(one.utilisation, one.gpus, one.in_service, text, palette), f"pool-{one.pool}", heading)
        why = text.said(one.utilisation.reason, one.utilisation.reason_zh)
        short = [text("ahead.short", reason=why)] if why else []
        st.html("".join(style.note(line) for line in [*_lines(one, text), *short]))


def _fragmented(found: CapacityOut, text: Text, palette: Palette) -> None:
    course, heading = found.fragmented, text("ahead.fragmented")
    if not course.at and not course.reason:
        return
    if _panel(heading, course, text):
        show(figure(course, 1.0, None, text, palette), "fragmented", heading)
        if course.reason:
            st.html(style.note(text("ahead.short", reason=text.said(course.reason, course.reason_zh))))


@live()
def capacity() -> None:
    """Draw the charts of the largest pools, or of those that were chosen."""
    text, palette = current_text(), current_palette()
    with api(text) as client:
        try:
            found, told = cells.capacity_of(client)
        except Unavailable as error:
            st.html(style.title(text("ahead.capacity")) + style.note(cells.not_yet(error, text)))
            return
    names = [one.pool for one in found.pools]
    with st.container(horizontal=True, vertical_alignment="center"):
        st.html(style.title(text("ahead.capacity")), width="content")
        if len(names) > AT_ONCE:
            names = link.pick_many("pool", text("ahead.pool"), names)[:AT_ONCE] or names
    shown = [one for one in found.pools if one.pool in names][:AT_ONCE]
    columns = st.columns(AT_ONCE + 1, gap="small")
    for column, one in zip(columns, shown, strict=False):
        with column:
            _pool(one, text, palette)
    with columns[len(shown)]:
        _fragmented(found, text, palette)
    hint = text("ahead.capacity.hint", c=percent(found.fragmented.coverage))
    if found.pools_total > len(found.pools):
        hint += " " + text("ahead.pools.more", n=found.pools_total - len(found.pools))
    # A cell that answers all else may still work its pools out.
    st.html("".join(style.note(line) for line in (hint, cells.partly(told, text)) if line))


ROWS = 8
"""Rows of the calendar: what fits beside the other lists on one screen."""
FILLING_ROWS = 4


def _figures(found: ForecastOut, text: Text) -> str:
    risk = found.risk
    far = risk.expected[-1] if risk.expected else None
    warned = risk.statuses.get(PredictionStatus.LIKELY, 0)
    full = found.memory_statuses.get(PredictionStatus.CROSSING, 0)
    soonest = next((one.prediction for one in found.memory if one.prediction.eta_ms), None)
    when = eta_text(text, found.now, optional_iso(soonest.eta_ms), None, None) if soonest else ""
    return style.kpis(
        [
            style.kpi(
                text("ahead.expected"),
                "–" if far is None else number(far[1]),
                "" if far is None else text("ahead.expected.note", time=_hours(far[0], text)),
                edge="line",
            ),
            style.kpi(
                text("ahead.warned"),
                str(warned) if risk.model else "–",
                _level(risk, text),
                edge="forecast" if warned else "grid",
            ),
            style.kpi(
                text("ahead.memory"),
                str(full),
                text("ahead.memory.note", when=when) if when else text("ahead.memory.quiet"),
                edge="forecast" if full else "grid",
            ),
            style.kpi(
                text("ahead.fragmentation"),
                str(found.fragmentation_total),
                text("ahead.fragmentation.note"),
                edge="forecast" if found.fragmentation_total else "grid",
            ),
            style.kpi(
                text("ahead.silent"),
                str(risk.statuses.get(PredictionStatus.NOT_ENOUGH_DATA, 0)),
                _why_silent(risk, text),
            ),
        ]
    )


def _why_silent(risk: RiskCalendar, text: Text) -> str:
    """The first reason for which GPUs have no forecast."""
    why = next(iter(risk.reasons), "")
    return text.said(why, risk.reasons_zh.get(why, "")) or text("ahead.silent.note")


# ---------------------------------------------------------------------- risk


def _level(risk: RiskCalendar, text: Text) -> str:
    if not risk.model:
        return ""
    known = risk.warn_from
    return text("ahead.warned.never") if known is None else text("ahead.warned.note", level=risk_text(known))


def bin_of(probability: float, record: Sequence[RecordOut]) -> RecordOut | None:
    """What came of probabilities like this one; None where that is not known."""
    return next((one for one in record if one.low <= probability <= one.high), None)


def _so_far(probability: float, record: Sequence[RecordOut]) -> str:
    if (seen := bin_of(probability, record)) is None:
        return "–"
    low, high = (risk_text(share) if share > 0 else "0 %" for share in (seen.observed_low, seen.observed_high))
    middle = risk_text(seen.observed) if seen.observed > 0 else "0 %"
    return f'{middle} <span class="tc-sub">{low} – {high}</span>'


def _name(label: str, note: str) -> str:
    return f'<td>{label} <span class="tc-sub">{escape(note)}</span></td>'


def _gpu_row(one: RiskOut, record: Sequence[RecordOut], text: Text, palette: Palette) -> list[str]:
    part = text.name("ahead.class", one.classes[0][0]) if one.classes else "–"
    name = _name(gpu_link(one.gpu, gpu_at(one.host, one.index, one.gpu)), one.pool)
    if one.status is PredictionStatus.LIKELY:
        name = name.replace("<td>", '<td><span class="tc-forecast">↗</span> ', 1)
    cells = [heat_cell(share, palette) for _, share in one.curve]
    return [name, *cells, f"<td>{_so_far(one.probability, record)}</td>", f"<td>{escape(part)}</td>"]


def _host_row(one: HostRiskOut, text: Text, palette: Palette) -> list[str]:
    label = gpu_at(one.host, one.worst_index, one.worst).partition(" · ")[2]
    cells = [heat_cell(share, palette) for _, share in one.curve]
    note = f"{one.pool} · {text('frag.gpus', n=one.gpus)}"
    return [_name(escape(one.host), note), *cells, f"<td>{gpu_link(one.worst, label)}</td>"]


def _calendar(risk: RiskCalendar, text: Text, palette: Palette) -> None:
    with st.container(horizontal=True, vertical_alignment="center"):
        st.html(style.title(text("ahead.risk")), width="content")
        by = link.pick("by", text("ahead.by"), ["gpu", "host"], "gpu", lambda name: text(f"ahead.by.{name}"))
    told = text.said(risk.sentence, risk.sentence_zh)
    if not risk.gpus:
        st.info(told or f"{text('ahead.none')} {text('ahead.none.remedy')}")
        return
    if told:
        st.caption(told)
    horizons = [text("ahead.within", time=_hours(ahead, text)) for ahead, _ in risk.gpus[0].curve]
    if by == "host":
        head = [text("column.host"), *horizons, text("ahead.worst")]
        rows = [_host_row(one, text, palette) for one in risk.hosts[:ROWS]]
    else:
        head = [text("column.gpu"), *horizons, text("ahead.so_far"), text("ahead.part")]
        rows = [_gpu_row(one, risk.record, text, palette) for one in risk.gpus[:ROWS]]
    total = sum(risk.statuses.values()) - risk.statuses.get(PredictionStatus.NOT_ENOUGH_DATA, 0)
    rest = more(total, len(rows), text) if by == "gpu" else ""
    st.html(heat_table(head, rows) + rest + style.note(_meaning(risk, by, text)))


def _hours(seconds: float, text: Text) -> str:
    return text("unit.h", n=f"{seconds / 3600:g}")


def _meaning(risk: RiskCalendar, by: str, text: Text) -> str:
    worst, time = risk.gpus[0].probability, _hours(risk.horizon_s, text)
    of = 100 if worst >= 0.01 else 10_000 if worst >= 0.0001 else 1_000_000
    values = {"p": risk_text(worst), "of": f"{of:,}", "n": f"{max(1, round(of * worst)):,}"}
    words = text("ahead.meaning", **values, time=time, model=risk.model)
    if by == "host":
        return f"{words} {text('ahead.hosts')}"
    if not risk.record:
        return f"{words} {text('ahead.record.none', time=time)}"
    return f"{words} {text('ahead.record', c=percent(risk.record[0].coverage))}"


# ---------------------------------------------------------------------- memory and fragmentation


def _filling(one: FillingOut, now: str, text: Text) -> str:
    said = one.prediction
    label = gpu_link(said.subject.name, gpu_at(said.subject.host, one.index, said.subject.name))
    sure = "" if said.probability is None else f"{chance(said.probability)} · "
    when = eta_text(text, now, *map(optional_iso, (said.eta_ms, said.eta_low_ms, said.eta_high_ms))) or text(
        "ahead.soon"
    )
    owners = ", ".join(one.owners) or text("ahead.unowned")
    limit = text("ahead.reaches", limit=f"{said.threshold:.1%}".replace("%", " %")) if said.threshold else ""
    what = (
        f'{label} <span class="tc-forecast">{escape(sure + when)}</span>'
        f'<div class="tc-meta">{escape(" · ".join(filter(None, (limit, owners))))}</div>'
    )
    return style.row('<span class="tc-sign tc-forecast">↗</span>', what)


def _list(heading: str, found: Sequence[FillingOut], total: int, empty: str, now: str, text: Text) -> str:
    rows = "".join(_filling(one, now, text) for one in found[:FILLING_ROWS])
    body = rows or f'<span class="tc-muted">{escape(empty)}</span>'
    return style.title(heading) + body + more(total, min(len(found), FILLING_ROWS), text)


def _lists(found: ForecastOut, text: Text) -> None:
    statuses = found.memory_statuses
    empty = text("ahead.filling.none")
    if unknown := statuses.get(PredictionStatus.NOT_ENOUGH_DATA, 0):
        empty += f" {text('ahead.filling.unknown', n=unknown)}"
    full = statuses.get(PredictionStatus.CROSSING, 0)
    st.html(_list(text("ahead.filling"), found.memory, full, empty, found.now, text))
    growing = text("ahead.growing.none")
    st.html(_list(text("ahead.growing"), found.fragmentation, found.fragmentation_total, growing, found.now, text))


@live()
def _ahead() -> None:
    text, palette = current_text(), current_palette()
    with api(text) as client:
        found = cells.forecast_of(client, max(ROWS, FILLING_ROWS))
    st.html(style_sheet() + _figures(found, text))
    left, right = st.columns([7, 4], gap="medium")
    with left:
        _calendar(found.risk, text, palette)
    with right:
        _lists(found, text)


def render() -> None:
    """Draw the page."""
    _ahead()
    capacity()


if __name__ == "__main__":
    render()

"""Page: what lies ahead, with how sure it is: risks, memory, fragmentation, capacity."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import streamlit as st

from tocsin.client.models_forecast import FillingOut, ForecastOut, HostRiskOut, RecordOut, RiskCalendar, RiskOut
from tocsin.dashboard import link, style
from tocsin.dashboard.access import REFRESH_SECONDS, api
from tocsin.dashboard.ahead_pieces import gpu_link, heat_cell, heat_table, more, risk_text, style_sheet
from tocsin.dashboard.forecast_capacity import capacity
from tocsin.dashboard.format import chance, eta_text, gpu_at, number, percent
from tocsin.dashboard.frame import current_palette, current_text
from tocsin.dashboard.palette import Palette
from tocsin.dashboard.text import Text
from tocsin.domain.prediction import PredictionStatus

ROWS = 8
"""Rows of the calendar: what fits beside the other lists on one screen."""
FILLING_ROWS = 4


def _figures(found: ForecastOut, text: Text) -> str:
    risk = found.risk
    far = risk.expected[-1] if risk.expected else None
    warned = risk.statuses.get(PredictionStatus.LIKELY, 0)
    full = found.memory_statuses.get(PredictionStatus.CROSSING, 0)
    soonest = next((one.prediction for one in found.memory if one.prediction.eta), None)
    when = eta_text(text, found.now, soonest.eta, None, None) if soonest else ""
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
                next(iter(risk.reasons), text("ahead.silent.note")),
            ),
        ]
    )


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
    seen = bin_of(probability, record)
    if seen is None:
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
    if not risk.gpus:
        st.info(f"{text('ahead.none')} {text('ahead.none.remedy')}")
        return
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
    when = eta_text(text, now, said.eta, said.eta_low, said.eta_high) or text("ahead.soon")
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


@st.fragment(run_every=REFRESH_SECONDS)
def _ahead() -> None:
    text, palette = current_text(), current_palette()
    with api(text) as client:
        found = client.forecast(max(ROWS, FILLING_ROWS))
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

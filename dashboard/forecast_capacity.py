"""The part of the forecast about pools: what is expected against what is there, and the fleet's fragmentation."""

from __future__ import annotations

from html import escape

import streamlit as st

from tocsin.client.models_forecast import CapacityOut, CourseOut, PoolOutlook
from tocsin.dashboard import course_chart, link, style
from tocsin.dashboard.access import REFRESH_SECONDS, api
from tocsin.dashboard.charts import show
from tocsin.dashboard.format import clock, number, percent
from tocsin.dashboard.frame import current_palette, current_text
from tocsin.dashboard.palette import Palette
from tocsin.dashboard.text import Text
from tocsin.domain.errors import Unavailable
from tocsin.domain.prediction import PredictionStatus

AT_ONCE = 3
"""Pools side by side; the fourth place is the fleet's fragmentation."""


def _peak(course: CourseOut, scale: float, size: float, text: Text) -> str:
    place = course_chart.peak(course)
    if place is None:
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
    if one.waiting is not None and (place := course_chart.peak(one.waiting)) is not None:
        most = one.waiting.expected[place] or 0.0
        if most >= 1:
            lines.append(text("ahead.wait", n=number(round(most))))
    return [line for line in lines if line]


def _panel(heading: str, course: CourseOut, text: Text) -> bool:
    """Heading of a chart; False where there are not enough data for one, which it says."""
    st.html(f'<b class="tc-meta">{escape(heading)}</b>')
    if course.reason and not any(value is not None for value in course.known):
        st.html(style.note(text("ahead.short", reason=course.reason)))
        return False
    return True


def _pool(one: PoolOutlook, text: Text, palette: Palette) -> None:
    heading = text("ahead.pool.title", pool=one.pool, n=one.in_service)
    if _panel(heading, one.utilisation, text):
        chart = course_chart.figure(one.utilisation, one.gpus, one.in_service, text, palette)
        show(chart, f"pool-{one.pool}", heading)
        short = [text("ahead.short", reason=one.utilisation.reason)] if one.utilisation.reason else []
        st.html("".join(style.note(line) for line in [*_lines(one, text), *short]))


def _fragmented(found: CapacityOut, text: Text, palette: Palette) -> None:
    course, heading = found.fragmented, text("ahead.fragmented")
    if not course.at and not course.reason:
        return
    if _panel(heading, course, text):
        show(course_chart.figure(course, 1.0, None, text, palette), "fragmented", heading)
        if course.reason:
            st.html(style.note(text("ahead.short", reason=course.reason)))


@st.fragment(run_every=REFRESH_SECONDS)
def capacity() -> None:
    """Draw the charts of the largest pools, or of those that were chosen."""
    text, palette = current_text(), current_palette()
    found = None
    with api(text) as client:
        try:
            found = client.capacity()
        except Unavailable as error:
            if not client.healthy():
                raise
            st.html(style.title(text("ahead.capacity")) + style.note(f"{text('ahead.working')} ({error})"))
    if found is None:
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
    st.html(style.note(hint))

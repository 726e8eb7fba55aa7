"""What every page has around it: language, pages, banner and the state of the service."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import streamlit as st

from tocsin.client.models import FleetSummary
from tocsin.dashboard import cells, style
from tocsin.dashboard.access import age_of_answers, connect
from tocsin.dashboard.boundary import boundary, live
from tocsin.dashboard.login import person
from tocsin.dashboard.palette import DARK, LIGHT, Palette
from tocsin.dashboard.text import LANGUAGES, Text, clock
from tocsin.domain.decision import Mode
from tocsin.domain.errors import TocsinError


def current_text() -> Text:
    """The words of the chosen language."""
    return Text(st.session_state.get("lang", "en"))


def current_palette() -> Palette:
    """Colours for the browser's theme."""
    return DARK if st.context.theme.type == "dark" else LIGHT


def _language_changed() -> None:
    st.query_params["lang"] = st.session_state["lang"]


def adopt_language() -> None:
    """Take the language from the URL, else keep that of the session, else the browser's; write it to the URL."""
    asked = st.query_params.get("lang", "")
    if asked not in LANGUAGES:
        locale = (st.context.locale or "").lower()
        asked = st.session_state.get("lang") or ("zh" if locale.startswith("zh") else "en")
        st.query_params["lang"] = asked
    st.session_state["lang"] = asked


def sidebar(text: Text) -> None:
    """Style for everything, the language switch, and who is logged in."""
    with st.sidebar:
        st.html(style.style_sheet(current_palette()))
        st.segmented_control(
            text("language"),
            list(LANGUAGES),
            format_func=LANGUAGES.__getitem__,
            key="lang",
            required=True,
            on_change=_language_changed,
        )
        with boundary("cells.choose"):
            cells.choose(text)
        person(text)
        st.html(f'<p class="tc-keys">{escape(text("keys"))}</p>')
        st.html(style.frame_script(text.language), unsafe_allow_javascript=True)


def banner(summary: FleetSummary, text: Text, old: float = 0.0, of_cells: Sequence[str] = ()) -> str:
    """The line above every page: simulated or not, mode, pause, breaker, clock; `old` is the age of answers in s,
    `of_cells` are chips that tell of which cells it is."""
    parts = list(of_cells)
    if summary.simulated:
        parts += [style.chip(text("simulated"), "tc-sim"), f"<span>{text('simulated.banner')}</span>"]
    mode = text.name("mode", summary.mode.value)
    parts.append(style.chip(text("mode", mode=mode), "tc-alarm" if summary.mode is Mode.ACT else ""))
    if summary.paused:
        parts.append(style.chip("Ⅱ " + text("paused", who=summary.paused_by), "tc-alarm"))
    if summary.breaker.tripped:
        parts.append(style.chip("✕ " + text("breaker.tripped", n=summary.breaker.root_causes), "tc-alarm"))
    if old > 0:
        parts.append(style.chip("⧗ " + text("busy.age", age=text.duration(old)), "tc-late"))
    age = summary.last_reading_age_s
    reading = text("reading.none") if age is None else text("reading.age", age=text.duration(age))
    parts.append(f'<span class="tc-muted tc-right">{clock(summary.now)} UTC · {reading}</span>')
    return style.bar(parts)


def header() -> None:
    """The banner over a page, looked up again and again; where the API does not answer, the page below says so."""

    @live()
    def drawn() -> None:
        text = current_text()
        try:
            with connect() as client:
                summary, found = cells.summary_of(client)
                chips = [chip for chip in (cells.which(text), cells.lacking(found, text)) if chip]
                st.html(banner(summary, text, max(client.oldest_s, age_of_answers()), chips))
        except TocsinError:
            st.empty()

    drawn()

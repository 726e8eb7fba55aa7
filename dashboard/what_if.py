"""Part of the page of decisions: what another limit or mode would have let run."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import streamlit as st

from tocsin.client.client import Client
from tocsin.client.models_what_if import LIMITED_GUARDS, WhatIfOut, WhatIfRequest
from tocsin.dashboard import style
from tocsin.dashboard.text import Text, clock
from tocsin.domain.decision import Mode
from tocsin.domain.errors import TocsinError

_SHOWN = 20
"""Decisions that the table has; the API has more."""
_FOUND = "what_if_found"


def ask(client: Client, rules: Sequence[str], text: Text) -> None:
    """Draw the questions, and the answer to the last one that was asked. No setting is changed."""
    with st.expander(text("what_if.title")):
        st.html(style.note(text("what_if.note")))
        with st.form("what_if_guard", border=False), st.container(horizontal=True, vertical_alignment="bottom"):
            name = st.selectbox(
                text("what_if.guard"), list(LIMITED_GUARDS), format_func=lambda one: text.name("guard", one)
            )
            limit = st.number_input(text("what_if.limit"), min_value=0.0, value=1.0)
            if st.form_submit_button(text("what_if.ask")):
                _answer(client, WhatIfRequest(guard=name, limit=limit))
        if rules:
            with st.form("what_if_rule", border=False), st.container(horizontal=True, vertical_alignment="bottom"):
                rule = st.selectbox(text("decisions.rule"), list(rules))
                mode = st.selectbox(
                    text("what_if.mode"), list(Mode), index=2, format_func=lambda one: text.name("mode", one.value)
                )
                if st.form_submit_button(text("what_if.ask")):
                    _answer(client, WhatIfRequest(rule=rule, mode=mode))
        found = st.session_state.get(_FOUND)
        if isinstance(found, str):
            st.warning(found)
        elif found is not None:
            st.html(_shown(found, text))


def _answer(client: Client, asked: WhatIfRequest) -> None:
    try:
        st.session_state[_FOUND] = client.what_if(asked)
    except TocsinError as error:
        st.session_state[_FOUND] = str(error)


def _shown(found: WhatIfOut, text: Text) -> str:
    counts = {name: getattr(found, name) for name in ("decisions", "would_run", "still_held", "not_known")}
    told = style.note(found.change) + style.note(text("what_if.counts", **counts))
    if not found.complete:
        told += style.note(text("what_if.cut"))
    rows = [
        [
            escape(clock(one.at)),
            escape(text.name("action", one.action.value)),
            escape(one.subject.name),
            escape(text.name("what_if_answer", one.answer.value)),
            escape(one.why or ", ".join(text.name("guard", guard) for guard in one.held_by)),
            escape(text.name("what_if_after", one.after.value)),
        ]
        for one in found.items[:_SHOWN]
    ]
    keys = ("what_if.at", "column.action", "what_if.subject", "what_if.answer", "what_if.why", "what_if.after")
    return told + (style.table([text(key) for key in keys], rows) if rows else "")

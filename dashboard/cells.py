"""The other cells of the fleet on the overview: how each is, what it asks for, and which did not answer."""

from __future__ import annotations

from html import escape

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from tocsin.client.client import Client
from tocsin.client.errors import Denied, NotFound
from tocsin.client.models import FleetSummary, GpuState
from tocsin.client.models_cells import AnswerState, CellAnswer, WholeCards, WholeSummary
from tocsin.client.whole import every_card, missing
from tocsin.dashboard import style
from tocsin.dashboard.text import Text

MOST_CARDS = 8
"""Cards of other cells that are shown."""


def show(client: Client, text: Text, top: DeltaGenerator) -> None:
    """Draw it, and in `top` of which cell the page is; nothing where this cell is the whole fleet, or the brain is of a
    version that knows no cells, or shows a tenant none."""
    try:
        known = client.cells()
    except (NotFound, Denied):
        return
    others = [one.name for one in known if not one.own]
    if others:
        found = client.cells_summary()
        top.html(_which(found, text))
        st.html(_cells(found, text) + _cards(client.cells_cards(MOST_CARDS, others), text))


def _which(found: WholeSummary, text: Text) -> str:
    """Of which cell the figures of the page are, and which others are not seen at all."""
    own = ", ".join(one.cell for one in found.cells if one.own)
    lacking = ", ".join(one.cell for one in missing(found))
    said = style.chip(text("cells.own", cell=own))
    return style.bar([said, *([style.chip(text("cells.partial", cells=lacking), "tc-alarm")] if lacking else [])])


def _cells(found: WholeSummary, text: Text) -> str:
    head = [text(f"cells.{name}") for name in ("name", "gpus", "bad", "warning", "mode", "waiting", "answer")]
    rows = [_row(one, found.answers.get(one.cell), text) for one in found.cells]
    return style.title(text("cells")) + style.table(head, rows, (1, 2, 3, 5))


def _row(one: CellAnswer, summary: FleetSummary | None, text: Text) -> list[str]:
    state = GpuState.OK if one.state is AnswerState.ANSWERED else GpuState.STALE
    answer = text(f"cells.{one.state}") + (f" · {text('unit.s', n=round(one.age_s))}" if one.age_s is not None else "")
    told = f'<span title="{escape(one.detail)}">{style.sign(state)}{escape(answer)}</span>'
    name = f'<span title="{escape(one.url)}">{escape(one.cell)}</span>'
    if summary is None:
        return [name, "-" if one.gpus is None else f"{one.gpus:,}", "-", "-", "-", "-", told]
    bad = sum(summary.states.get(state, 0) for state in (GpuState.CRITICAL, GpuState.LOST))
    mode = text.name("mode", summary.mode.value)
    parts = [mode, *([text("cells.paused")] if summary.paused else [])]
    parts += [text("cells.tripped")] if summary.breaker.tripped else []
    return [
        name,
        f"{summary.gpus:,}",
        str(bad),
        str(summary.states.get(GpuState.WARNING, 0)),
        escape(", ".join(parts)),
        str(summary.decisions_approvable),
        told,
    ]


def _cards(found: WholeCards, text: Text) -> str:
    """The most urgent open cards of the other cells."""
    cards, total = every_card(found.answers, MOST_CARDS)
    if not cards:
        return ""
    rows = [
        style.row(
            style.chip(text.name("level", card.level.value)),
            escape(text.said(card.headline, card.headline_zh)),
            cell,
        )
        for cell, card in cards
    ]
    more = style.note(text("attention.more", n=total - len(cards))) if total > len(cards) else ""
    return style.title(text("cells.cards")) + "".join(rows) + more

"""Page: the fleet at a glance, and what needs attention now."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from html import escape

import streamlit as st

from tocsin.client.client import Client
from tocsin.client.errors import NotFound
from tocsin.client.models import FleetMap, FleetSummary, GpuState
from tocsin.client.models_changes import Changes
from tocsin.client.whole_views import CELL_LABEL, whole_changes
from tocsin.dashboard import cards, cells, heatmap, link, style
from tocsin.dashboard.access import api, is_tenant
from tocsin.dashboard.boundary import live
from tocsin.dashboard.decision_control import Hand, forget_news, show_news
from tocsin.dashboard.fleet_data import MAPS
from tocsin.dashboard.frame import current_palette, current_text
from tocsin.dashboard.heatmap import canvas
from tocsin.dashboard.kept_answers import PageClient
from tocsin.dashboard.palette import SYMBOLS, Palette
from tocsin.dashboard.text import Text, percent, short_clock, watts

CHANGES = 12
"""Changes that are shown."""
_BY_CELL = f"{heatmap.LABEL}{CELL_LABEL}"


def _states(summary: FleetSummary, text: Text) -> list[str]:
    wanted = (GpuState.CRITICAL, GpuState.LOST, GpuState.WARNING, GpuState.STALE)
    critical, lost, warning, stale = (summary.states.get(state, 0) for state in wanted)
    bad = text("kpi.critical.note", critical=critical, lost=lost)
    old = text("kpi.warning.note", stale=stale)
    worst = GpuState.CRITICAL if critical + lost else GpuState.OK
    return [
        style.kpi(text("kpi.critical"), str(critical + lost), bad, worst),
        style.kpi(text("kpi.warning"), str(warning), old, GpuState.WARNING if warning else GpuState.OK),
    ]


def _figures(summary: FleetSummary, text: Text) -> str:
    predictions, waiting = summary.predictions, summary.decisions_approvable
    held = text("kpi.decisions.note", held=summary.decisions_held - waiting)
    size = text("kpi.gpus.note", hosts=f"{summary.hosts:,}", pools=summary.pools)
    load = text("kpi.load.note", memory=percent(summary.memory_used_ratio), power=watts(summary.power_watts))
    ahead, mine = "forecast" if predictions else "grid", "line" if waiting else "grid"
    return style.kpis(
        [
            *_states(summary, text),
            style.kpi(text("kpi.predictions"), str(predictions), text("kpi.predictions.note"), edge=ahead),
            style.kpi(text("kpi.decisions"), str(waiting), held, edge=mine),
            style.kpi(text("kpi.gpus"), f"{summary.gpus:,}", size),
            style.kpi(text("kpi.load"), percent(summary.utilization_ratio), load),
        ]
    )


def _choices(fleet: FleetMap, text: Text) -> tuple[str, list[str], str, str]:
    """Colour, pools, what is looked for and the grouping, from the URL and the widgets above the map."""
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.html(style.title(text("fleet")), width="content")
        colour = link.pick(
            "colour", text("fleet"), list(heatmap.MEASURES), "state", lambda name: text(f"colour.{name}")
        )
        pools: list[str] = []
        names = sorted(set(fleet.pools))
        with st.popover(text("fleet.filter"), icon=":material/filter_alt:"):
            ways = heatmap.groupings(fleet)
            usual = _BY_CELL if cells.spans() and _BY_CELL in ways else heatmap.RACK
            by = link.pick_one("by", text("fleet.by"), ways, usual, partial(_grouping, text))
            if len(names) > 1:
                pools = link.pick_many("pool", text("fleet.pools"), names)
            find = _find(text)
    return colour, pools, find, by


def _grouping(text: Text, by: str) -> str:
    if by == _BY_CELL and cells.spans():
        return text("cells.name")
    if by.startswith(heatmap.LABEL):
        return text("fleet.by.label", label=by.removeprefix(heatmap.LABEL))
    return text(f"fleet.by.{by}")


def _find(text: Text) -> str:
    st.session_state["find"] = link.read("find")
    return st.text_input(text("fleet.find"), key="find", on_change=lambda: link.write("find", st.session_state["find"]))


def _legend(choice: str, text: Text, palette: Palette) -> str:
    if (measure := heatmap.MEASURES[choice]) is None:
        return style.legend(
            [(palette.states[state], f"{SYMBOLS[state]} {text.name('state', state.value)}") for state in GpuState]
        )
    return style.scale(measure.shades(palette), f"{measure.low:.0f}", f"{measure.high:.0f} {measure.unit}")


def _open(fleet: FleetMap, chosen: heatmap.Chosen, opened: heatmap.Opened) -> None:
    for gpu, node, slot in zip(chosen.gpus, chosen.node, chosen.slot, strict=True):
        if opened == heatmap.Opened(fleet.hosts[chosen.hosts[node]], chosen.groups[node], slot):
            st.switch_page(link.GPU_PAGE, query_params=link.target(gpu=fleet.uuid[gpu]))


def _map(fleet: FleetMap, text: Text, palette: Palette) -> None:
    colour, pools, find, by = _choices(fleet, text)
    chosen = heatmap.choose(fleet, pools, find, by)
    if not chosen.gpus:
        st.info(text("fleet.nothing"))
        return
    label = text("fleet.map", gpus=f"{len(chosen.gpus):,}", hosts=f"{len(chosen.hosts):,}")
    opened = canvas(heatmap.drawing(fleet, chosen, colour, text, palette, label), "map")
    st.html(_legend(colour, text, palette))
    st.caption(text("fleet.hint"))
    if opened is not None:
        _open(fleet, chosen, opened)


def _heading(summary: FleetSummary, text: Text) -> None:
    with st.container(horizontal=True, vertical_alignment="center"):
        st.html(style.title(text("attention")), width="content")
        if summary.decisions_approvable:
            st.page_link(
                link.DECISIONS_PAGE,
                label=text("attention.decisions", n=summary.decisions_approvable),
                icon=":material/gavel:",
                query_params=link.target(),
            )


def _changed(client: Client) -> Changes | None:
    """The last hour; None for a tenant, and where the brain is of a version that does not tell it."""
    if is_tenant():
        return None
    try:
        return client.changes()
    except NotFound:
        return None


def _changes(found: Changes, text: Text) -> str:
    """The last hour in HTML, a line each, newest first."""
    rows = [
        f'<div class="tc-row"><span class="tc-when">{escape(short_clock(one.at, found.end))}</span>'
        f'<span class="tc-what">{escape(text.said(one.text, one.text_zh))}</span></div>'
        for one in found.items
    ]
    more = found.total - len(found.items)
    if more or found.at_least:
        rows.append(style.note(text("changes.least" if found.at_least else "attention.more", n=more)))
    lines = "".join(rows) or style.note(text("changes.none"))
    # It scrolls: the keyboard must reach it.
    region = f'<div class="tc-changes" tabindex="0" role="region" aria-label="{escape(text("changes"))}">{lines}</div>'
    return style.title(text("changes")) + region


def _whole_map(fleet: FleetMap | None, gpus: int, text: Text, palette: Palette) -> None:
    """`fleet` is None where the `gpus` of the fleet are more than one map shows."""
    if fleet is None:
        st.info(text("cells.map.large", n=f"{gpus:,}", most=f"{cells.MOST_DRAWN:,}"))
        return
    if fleet.uuid:
        _map(fleet, text, palette)
    else:
        st.info(f"{text('no_gpus')} {text('no_gpus.remedy')}")


def _all_cells(client: PageClient, text: Text, palette: Palette) -> None:
    """The page over all cells; whatever one of them does not answer is missing, and the banner names it."""
    summary, told = cells.summary_of(client)
    assert told is not None
    # What is not drawn is not asked for either: it is most of what a large fleet sends.
    fleet = cells.whole_map(client, told) if summary.gpus <= cells.MOST_DRAWN else None
    found = client.cells_cards(cards.SHOWN)
    changed = whole_changes(client.cells_changes().answers, CHANGES)
    hand = Hand(client.me(), text)
    with st.container(key="figures"):
        st.html(_figures(summary, text))
    with st.container(key="now"):
        left, right = st.columns([5, 4], gap="medium")
    with left:
        st.html(cells.table(told, text))
        _whole_map(fleet, summary.gpus, text, palette)
        if changed is not None:
            st.html(_changes(changed, text))
    with right:
        _attention(summary, hand, lambda: cards.show_whole(found.answers, summary.now, hand))


def _attention(summary: FleetSummary, hand: Hand, show_cards: Callable[[], None]) -> None:
    text = hand.text
    _heading(summary, text)
    show_news(text)
    # The card itself says it from now on.
    forget_news()
    show_cards()
    st.caption(text("attention.cost.help"))


@live()
def render() -> None:
    """Draw the page."""
    text, palette = current_text(), current_palette()
    with api(text) as client:
        if cells.spans():
            _all_cells(client, text, palette)
            return
        summary, fleet, found = client.summary(), MAPS.look(client), client.cards(cards.SHOWN)
        changed = _changed(client)
        hand = Hand(client.me(), text)
        with st.container(key="figures"):
            st.html(_figures(summary, text))
        if not fleet.uuid:
            st.info(f"{text('no_gpus')} {text('no_gpus.remedy')}")
            return
        with st.container(key="now"):
            left, right = st.columns([5, 4], gap="medium")
        with left:
            _map(fleet, text, palette)
            if changed is not None:
                st.html(_changes(changed, text))
        with right:
            _attention(summary, hand, lambda: cards.show(found, summary.now, hand))


if __name__ == "__main__":
    render()

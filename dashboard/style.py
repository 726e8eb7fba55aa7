"""Small pieces of HTML that Streamlit has no element for, and their style. Every text that goes in is escaped."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from html import escape
from importlib import resources

from tocsin.client.models import GpuState
from tocsin.dashboard.palette import SYMBOLS, Palette


@cache
def _css() -> str:
    return resources.files("tocsin.dashboard").joinpath("style.css").read_text(encoding="utf-8")


def style_sheet(palette: Palette) -> str:
    """The style as a ``<style>`` element, with the colours of `palette`."""
    states = "".join(f"--tc-{state.value}:{colour};" for state, colour in palette.states.items())
    states += "".join(f"--tc-{state.value}-word:{colour};" for state, colour in palette.words.items())
    others = {name: getattr(palette, name) for name in ("text", "muted", "line", "grid", "forecast")}
    others["ground"] = palette.background
    names = "".join(f"--tc-{name}:{colour};" for name, colour in others.items())
    return f"<style>:root{{{states}{names}}}{_css()}</style>"


@cache
def _script() -> str:
    return resources.files("tocsin.dashboard").joinpath("frame.js").read_text(encoding="utf-8")


def frame_script(language: str) -> str:
    """The frame's script as a ``<script>`` element."""
    tag = json.dumps("zh-CN" if language == "zh" else language)
    return f'<script type="module">{_script().replace("__LANGUAGE__", tag)}</script>'


def hidden_heading(label: str) -> str:
    """The page's first heading, for those who listen."""
    return f'<h1 class="tc-hidden">{escape(label)}</h1>'


def chip(label: str, kind: str = "") -> str:
    """A framed word; `kind` is a further class."""
    return f'<span class="tc-chip {kind}">{escape(label)}</span>'


def bar(parts: Sequence[str]) -> str:
    """Chips side by side."""
    return f'<div class="tc-bar">{"".join(parts)}</div>'


def kpi(label: str, value: str, note: str, state: GpuState | None = None, edge: str = "grid") -> str:
    """One figure; `edge` names its colour, `state` takes its own and puts its symbol before the value."""
    edge = f"var(--tc-{state.value if state else edge})"
    ink = f"var(--tc-{state.value}-word)" if state else ""
    sign = f'<span style="color:{ink};font-size:1.1rem">{SYMBOLS[state]}</span> ' if state else ""
    return (
        f'<div class="tc-kpi" style="--tc-edge:{edge}"><span>{escape(label)}</span>'
        f"<b>{sign}{escape(value)}</b><span>{escape(note)}</span></div>"
    )


def kpis(cards: Sequence[str]) -> str:
    """Figures in a row that wraps."""
    return f'<div class="tc-kpis">{"".join(cards)}</div>'


def sign(state: GpuState) -> str:
    """The symbol of `state` in its colour."""
    colour = "var(--tc-muted)" if state is GpuState.OK else f"var(--tc-{state.value}-word)"
    return f'<span class="tc-sign" style="color:{colour}">{SYMBOLS[state]}</span>'


def row(mark: str, what: str, when: str = "") -> str:
    """A line of a list: `mark` and `what` are HTML, `when` is text."""
    words = f'<span class="tc-what">{what}</span><span class="tc-when">{escape(when)}</span>'
    return f'<div class="tc-row">{mark}{words}</div>'


def card(heading: str, body: str, note: str = "", state: GpuState | None = None) -> str:
    """A framed piece of a page: `body` is HTML, `heading` and `note` are text; `state` colours its edge."""
    edge = f' style="--tc-edge:var(--tc-{state.value})"' if state else ""
    below = f'<p class="tc-note">{escape(note)}</p>' if note else ""
    return f'<section class="tc-card"{edge}><h3 class="tc-title">{escape(heading)}</h3>{body}{below}</section>'


def note(words: str) -> str:
    """A quiet line of text."""
    return f'<p class="tc-note">{escape(words)}</p>'


def title(label: str) -> str:
    """A heading that takes little room."""
    return f'<h3 class="tc-title">{escape(label)}</h3>'


def facts(pairs: Sequence[tuple[str, str]]) -> str:
    """Names with values; a pair without a value is left out."""
    parts = [f"<span>{escape(name)} <b>{escape(value)}</b></span>" for name, value in pairs if value]
    return f'<div class="tc-facts">{"".join(parts)}</div>'


def table(head: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    """A table; cells of `rows` are HTML, the columns `numbers` are aligned to the right. A wide one scrolls."""

    def cells(tag: str, values: Sequence[str]) -> str:
        return "".join(f"<{tag}{' class=n' if i in numbers else ''}>{value}</{tag}>" for i, value in enumerate(values))

    top = f"<thead><tr>{cells('th', [escape(name) for name in head])}</tr></thead>"
    body = "".join(f"<tr>{cells('td', values)}</tr>" for values in rows)
    return f'<div class="tc-wide" tabindex="0"><table class="tc">{top}<tbody>{body}</tbody></table></div>'


def legend(pairs: Sequence[tuple[str, str]]) -> str:
    """Colours with their meaning: pairs of colour and label."""
    parts = [
        f'<span><i class="tc-swatch" style="background:{colour}"></i>{escape(label)}</span>' for colour, label in pairs
    ]
    return f'<div class="tc-legend">{"".join(parts)}</div>'


def scale(colours: Sequence[str], low: str, high: str) -> str:
    """A colour scale from `low` to `high`."""
    cells = "".join(f'<i style="background:{colour}"></i>' for colour in colours)
    ends = f'<span>{escape(low)}</span><span class="tc-scale">{cells}</span><span>{escape(high)}</span>'
    return f'<div class="tc-legend">{ends}</div>'

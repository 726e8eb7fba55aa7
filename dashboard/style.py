"""Small pieces of HTML that Streamlit has no element for, and their style. Every text that goes in is escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from tocsin.client.models import GpuState
from tocsin.dashboard.palette import SYMBOLS, Palette

_CSS = """
.tc-bar{display:flex;flex-wrap:wrap;align-items:center;gap:.5rem .6rem;font-size:.875rem}
.tc-chip{display:inline-block;padding:.1rem .55rem;border-radius:.25rem;border:1px solid var(--tc-grid);white-space:nowrap}
.tc-sim{background:repeating-linear-gradient(135deg,#f2c94c,#f2c94c 10px,#e8b92c 10px,#e8b92c 20px);color:#201a05;
  border-color:#b98900;font-weight:700;text-transform:uppercase;letter-spacing:.06em}
.tc-alarm{border-color:var(--tc-critical);color:var(--tc-critical);font-weight:600}
.tc-muted{color:var(--tc-muted)}.tc-right{margin-left:auto}
.tc-kpis{display:grid;grid-template-columns:repeat(auto-fit,minmax(9.5rem,1fr));gap:.6rem}
.tc-kpi{border:1px solid var(--tc-grid);border-radius:.35rem;padding:.55rem .8rem;border-left:3px solid var(--tc-edge)}
.tc-kpi b{display:block;font-size:1.6rem;font-weight:600;line-height:1.25;font-variant-numeric:tabular-nums}
.tc-kpi span{font-size:.8rem;color:var(--tc-muted)}
.tc-row{display:flex;gap:.6rem;font-size:.875rem;line-height:1.35;align-items:baseline}
.tc-row .tc-sign{flex:none;width:1.1rem;text-align:center}
.tc-row .tc-what{flex:1}.tc-row .tc-when{flex:none;color:var(--tc-muted);white-space:nowrap}
.tc-title{font-size:1.05rem;font-weight:600;margin:0}
.tc-forecast{color:var(--tc-forecast);font-weight:600}
table.tc{width:100%;border-collapse:collapse;font-size:.85rem}
table.tc th{text-align:left;font-weight:600;color:var(--tc-muted);border-bottom:1px solid var(--tc-grid);padding:.25rem .5rem}
table.tc td{border-bottom:1px solid var(--tc-grid);padding:.25rem .5rem;vertical-align:top}
table.tc td.n,table.tc th.n{text-align:right;font-variant-numeric:tabular-nums}
.tc-legend{display:flex;flex-wrap:wrap;gap:.2rem 1rem;font-size:.8rem;color:var(--tc-muted)}
.tc-swatch{display:inline-block;width:.8rem;height:.8rem;border-radius:.15rem;margin-right:.35rem;vertical-align:-.1rem}
.tc-facts{display:flex;flex-wrap:wrap;gap:.2rem 1.4rem;font-size:.85rem;color:var(--tc-muted)}
.tc-facts b{color:var(--tc-text);font-weight:600}
"""


def style_sheet(palette: Palette) -> str:
    """The style as a ``<style>`` element, with the colours of `palette`."""
    states = "".join(f"--tc-{state.value}:{colour};" for state, colour in palette.states.items())
    names = f"--tc-text:{palette.text};--tc-muted:{palette.muted};--tc-grid:{palette.grid};--tc-forecast:{palette.forecast};"
    return f"<style>:root{{{states}{names}}}{_CSS}</style>"


def chip(label: str, kind: str = "") -> str:
    """A framed word; `kind` is a further class."""
    return f'<span class="tc-chip {kind}">{escape(label)}</span>'


def bar(parts: Sequence[str]) -> str:
    """Chips side by side."""
    return f'<div class="tc-bar">{"".join(parts)}</div>'


def kpi(label: str, value: str, note: str, state: GpuState | None = None) -> str:
    """One figure; `state` colours its edge and puts the state's symbol before the value."""
    edge = f"var(--tc-{state.value})" if state else "var(--tc-grid)"
    sign = f'<span style="color:{edge};font-size:1.1rem">{SYMBOLS[state]}</span> ' if state else ""
    return (
        f'<div class="tc-kpi" style="--tc-edge:{edge}"><span>{escape(label)}</span>'
        f"<b>{sign}{escape(value)}</b><span>{escape(note)}</span></div>"
    )


def kpis(cards: Sequence[str]) -> str:
    """Figures in a row that wraps."""
    return f'<div class="tc-kpis">{"".join(cards)}</div>'


def sign(state: GpuState) -> str:
    """The symbol of `state` in its colour."""
    colour = "var(--tc-muted)" if state is GpuState.OK else f"var(--tc-{state.value})"
    return f'<span class="tc-sign" style="color:{colour}">{SYMBOLS[state]}</span>'


def row(mark: str, what: str, when: str = "") -> str:
    """A line of a list: `mark` and `what` are HTML, `when` is text."""
    return (
        f'<div class="tc-row">{mark}<span class="tc-what">{what}</span><span class="tc-when">{escape(when)}</span></div>'
    )


def title(label: str) -> str:
    """A heading that takes little room."""
    return f'<h3 class="tc-title">{escape(label)}</h3>'


def facts(pairs: Sequence[tuple[str, str]]) -> str:
    """Names with values; a pair without a value is left out."""
    parts = [f"<span>{escape(name)} <b>{escape(value)}</b></span>" for name, value in pairs if value]
    return f'<div class="tc-facts">{"".join(parts)}</div>'


def table(head: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    """A table; cells of `rows` are HTML, the columns `numbers` are aligned to the right."""

    def cells(tag: str, values: Sequence[str]) -> str:
        return "".join(
            f'<{tag}{" class=n" if i in numbers else ""}>{value}</{tag}>' for i, value in enumerate(values)
        )

    body = "".join(f"<tr>{cells('td', values)}</tr>" for values in rows)
    return f'<table class="tc"><thead><tr>{cells("th", [escape(name) for name in head])}</tr></thead><tbody>{body}</tbody></table>'


def legend(pairs: Sequence[tuple[str, str]]) -> str:
    """Colours with their meaning: pairs of colour and label."""
    parts = [f'<span><i class="tc-swatch" style="background:{colour}"></i>{escape(label)}</span>' for colour, label in pairs]
    return f'<div class="tc-legend">{"".join(parts)}</div>'

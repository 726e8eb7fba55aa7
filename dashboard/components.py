"""Pieces that the pages on the future, on fragmentation and on cost share."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from html import escape
from importlib import resources
from math import log
from urllib.parse import urlencode

from tocsin.dashboard import link
from tocsin.dashboard.palette import Palette, ink, mix
from tocsin.dashboard.text import Text

_LEAST, _MOST = 0.01, 0.5
"""Probabilities between which the colour of a risk grows, by its logarithm; a smaller one has none, for it is the usual
state of a GPU (own choice: the yearly failure rate of data-centre GPUs of some percent is 0.02 % in two days)."""


@cache
def style_sheet() -> str:
    """The style of these pages."""
    css = resources.files("tocsin.dashboard").joinpath("ahead.css").read_text(encoding="utf-8")
    return f"<style>{css}</style>"


def risk_text(probability: float) -> str:
    """A risk as a percentage with two digits that tell, never 0 and never 100 %."""
    share = 100 * probability
    if share < 0.01:
        return "< 0.01 %"
    if share > 99:
        return "> 99 %"
    return f"{share:.2f} %" if share < 1 else f"{share:.1f} %" if share < 10 else f"{share:.0f} %"


def heat(probability: float, palette: Palette) -> str:
    """The colour of a risk: the scale of the palette over the logarithm; that of the page where it is under 1 %."""
    if probability < _LEAST:
        return palette.background
    share = log(min(_MOST, max(_LEAST, probability)) / _LEAST) / log(_MOST / _LEAST)
    low, middle, high = palette.scale
    return mix(low, middle, 2 * share) if share < 0.5 else mix(middle, high, 2 * share - 1)


def heat_cell(probability: float | None, palette: Palette) -> str:
    """A cell of a table with its own ground; use it with `heat_table`."""
    if probability is None:
        return '<td class="heat">–</td>'
    ground = heat(probability, palette)
    return f'<td class="heat" style="background:{ground};color:{ink(ground)}">{risk_text(probability)}</td>'


def heat_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose cells come as whole ``<td>`` elements."""
    top = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join(f"<tr>{''.join(cells)}</tr>" for cells in rows)
    table = f'<table class="tc"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>'
    return f'<div class="tc-wide" tabindex="0">{table}</div>'


def gpu_link(uuid: str, label: str) -> str:
    """A link to the page of a GPU."""
    return page_link("gpu", label, gpu=uuid)


def page_link(page: str, label: str, **values: str) -> str:
    """A link to a page of the dashboard with its parameters; the language goes with it."""
    return f'<a class="tc-link" href="{page}?{escape(urlencode(link.target(**values)))}">{escape(label)}</a>'


def more(total: int, shown: int, text: Text) -> str:
    """The count of what a list leaves out; empty where it leaves nothing out."""
    return f'<span class="tc-meta">{escape(text("ahead.more", n=total - shown))}</span>' if total > shown else ""

"""Page: versions of hosts that are meant to be equal, and which of them differ from their pool."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import streamlit as st

from tocsin.client.models import GpuState
from tocsin.client.models_drift import ComponentOut, DriftOut, VersionGroupOut, VersionOut
from tocsin.dashboard import cells, link, style, whole_answers
from tocsin.dashboard.access import api
from tocsin.dashboard.boundary import live
from tocsin.dashboard.components import more, style_sheet
from tocsin.dashboard.frame import current_palette, current_text
from tocsin.dashboard.palette import Palette, mix
from tocsin.dashboard.text import Text, number
from tocsin.domain.versions import COMPONENTS, Standing

GROUPS, NAMES, VERSIONS = 40, 6, 8
"""What is drawn: groups, hosts of a version by name, versions of a component."""
ALL = "all"
SIGNS = {
    Standing.SAME: "●",
    Standing.DRIFT: "▲",
    Standing.ROLLOUT: "↗",
    Standing.MIXED: "◐",
    Standing.FEW: "–",
}
"""No standing is told by colour alone."""


def shown(found: DriftOut, pool: str, only_odd: bool) -> list[VersionGroupOut]:
    """The groups of `pool`, with the components that are asked for; groups without any are left out."""
    made = []
    for group in found.groups:
        told = [one for one in group.components if not only_odd or one.standing in (Standing.DRIFT, Standing.ROLLOUT)]
        if pool in (ALL, group.pool) and told:
            made.append(group.model_copy(update={"components": told}))
    return made


# ---------------------------------------------------------------------- figures


def _figures(found: DriftOut, text: Text) -> str:
    hosts = sum(group.hosts for group in found.groups)
    small = sum(group.hosts < found.least_hosts for group in found.groups)
    differs = style.kpi(
        text("versions.drifting"),
        number(found.drifting),
        text("versions.drifting.note"),
        GpuState.WARNING if found.drifting else None,
    )
    return style.kpis(
        [
            differs,
            style.kpi(text("versions.rolling"), number(found.rolling_out), text("versions.rolling.note")),
            style.kpi(text("versions.groups"), number(len(found.groups)), text("versions.groups.note")),
            style.kpi(
                text("versions.hosts"),
                number(hosts),
                text("versions.hosts.note", n=small, least=found.least_hosts) if small else "",
            ),
        ]
    )


# ---------------------------------------------------------------------- groups


def _group(group: VersionGroupOut, text: Text, palette: Palette) -> str:
    model = group.model or text("versions.no_model")
    role = text("versions.role", role=group.role) if group.role else ""
    name = " · ".join(filter(None, (text("versions.pool", pool=group.pool), model, role)))
    head = [text("versions.component"), text("versions.standing"), text("versions.shares"), text("versions.which")]
    rows = [
        [escape(_name(one, text)), _standing(one, text), _bar(one, palette), _which(one, text)]
        for one in group.components
    ]
    differs = any(one.standing is Standing.DRIFT for one in group.components)
    note = text("versions.in_group", n=group.hosts)
    return style.card(name, style.table(head, rows), note, GpuState.WARNING if differs else None)


def _name(one: ComponentOut, text: Text) -> str:
    return one.name_zh if text.language == "zh" else one.name


def _standing(one: ComponentOut, text: Text) -> str:
    if not one.told:
        return f'<span class="tc-muted">{escape(text("versions.untold"))}</span>'
    words = f"{SIGNS[one.standing]} {text(f'versions.standing.{one.standing}')}"
    kind = "tc-late" if one.standing is Standing.DRIFT and not one.because else ""
    by = COMPONENTS.get(one.because)
    with_ = text("versions.because", what=by.chinese if text.language == "zh" else by.name) if by else ""
    return style.chip(words, kind) + (f' <span class="tc-meta">{escape(with_)}</span>' if with_ else "")


def _bar(one: ComponentOut, palette: Palette) -> str:
    """A bar of the hosts by version, the most first; what differs is in the colour of a warning and hatched."""
    parts = []
    for place, each in enumerate(one.versions):
        colour = (
            palette.states[GpuState.WARNING] if each.odd else mix(palette.scale[1], palette.grid, min(place, 3) / 3)
        )
        kind = ' class="odd"' if each.odd else ""
        parts.append(f'<i{kind} style="flex-grow:{each.hosts};background-color:{colour}"></i>')
    return f'<div class="tc-share" aria-hidden="true">{"".join(parts)}</div>' if parts else ""


def _which(one: ComponentOut, text: Text) -> str:
    lines = [_version(each, one, text) for each in one.versions[:VERSIONS]]
    if len(one.versions) > VERSIONS:
        lines.append(more(len(one.versions), VERSIONS, text))
    for why, count in sorted(one.untold.items()):
        said = text("versions.why", n=count, why=_reason(why, text))
        lines.append(f'<span class="tc-meta">{escape(said)}</span>')
    return "<br>".join(lines)


def _version(each: VersionOut, of: ComponentOut, text: Text) -> str:
    said = f"<b>{escape(each.version)}</b>" if each.odd else escape(each.version)
    if len(of.versions) == 1:
        return said
    count = text("versions.on", n=each.hosts)
    if each.ago != each.hosts:
        count += text("versions.ago", n=each.ago)
    names = ", ".join(each.names[:NAMES]) + (", …" if each.hosts > NAMES else "")
    who = f": {names}" if each.odd or each.hosts <= NAMES else ""
    return f'{said} <span class="tc-meta">{escape(count)}{escape(who)}</span>'


_REASONS = (
    "",
    "not told by the source",
    "no library",
    "no package",
    "no package database that can be read",
    "no version file in /usr/local/cuda",
    "no RDMA card that tells it",
    "no osrelease in /proc",
)


def _reason(why: str, text: Text) -> str:
    """A reason of ours in the reader's language; that of another agent as it is."""
    return text(f"versions.reason.{_REASONS.index(why)}") if why in _REASONS else why


# ---------------------------------------------------------------------- the page


def _filters(found: DriftOut, text: Text) -> tuple[str, bool]:
    pools: Sequence[str] = [ALL, *sorted({group.pool for group in found.groups})]
    with st.container(horizontal=True, vertical_alignment="bottom"):
        pool = link.pick_one("pool", text("versions.which_pool"), pools, ALL, lambda one: _pool(one, text))
        views = {"everything": text("versions.everything"), "odd": text("versions.odd")}
        view = link.pick("show", text("versions.show"), list(views), "everything", views.__getitem__)
    return pool, view == "odd"


def _pool(name: str, text: Text) -> str:
    return text("versions.all_pools") if name == ALL else name


@live()
def render() -> None:
    """Draw the page."""
    text, palette = current_text(), current_palette()
    with api(text) as client:
        found, told = whole_answers.drift_of(client)
    notes = [text("versions.meaning", n=found.least_hosts)]
    if told is not None:
        notes += [text("versions.cells"), *cells.partly_all((told,), text)]
    st.html(style_sheet() + _figures(found, text) + "".join(map(style.note, notes)))
    pool, only_odd = _filters(found, text)
    groups = shown(found, pool, only_odd)
    if not groups:
        st.info(text("versions.none_odd" if only_odd and found.groups else "versions.none"))
        return
    drawn = "".join(_group(group, text, palette) for group in groups[:GROUPS])
    st.html(f'<div class="tc-versions">{drawn}{more(len(groups), GROUPS, text)}</div>')


if __name__ == "__main__":
    render()

"""MIG GPUs as rows of slices, by node: instances, free slices, and free ones that the layout keeps from instances."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import groupby

from tocsin.client.models_fragmentation import MigChange, MigGpuOut, MigInstanceOut
from tocsin.dashboard.ahead_pieces import gpu_link
from tocsin.dashboard.format import gpu_at
from tocsin.dashboard.palette import Palette, ink, mix
from tocsin.dashboard.text import Text
from tocsin.domain.fragmentation import FOUR_SLICE, SEVEN_SLICE

_SIZES = 4
"""Memory slices from which on an instance has the strongest colour."""


def _colour(slices: int, palette: Palette) -> str:
    low, middle, high = palette.scale
    share = min(1.0, slices / _SIZES)
    return mix(middle, high, share) if share > 0.25 else mix(low, middle, 4 * share)


def _block(start: int, length: int, label: str, css: str, style: str = "") -> str:
    place = f"grid-column:{start + 1} / span {length};grid-row:1"
    short = label if length > 1 else label.partition(".")[0]  # one slice has no room for the memory's size
    return f'<span class="{css}" style="{place};{style}" title="{escape(label)}">{escape(short)}</span>'


def strip(total: int, instances: Sequence[tuple[str, int, int]], free_css: str, palette: Palette) -> str:
    """A row of `total` slices; `instances` are name, start and length, the rest is free."""
    taken = {slot for _, start, length in instances for slot in range(start, start + length)}
    blocks = []
    for name, start, length in instances:
        ground = _colour(length, palette)
        blocks.append(_block(start, length, name, "", f"background:{ground};color:{ink(ground)}"))
    blocks += [_block(slot, 1, "", free_css) for slot in range(total) if slot not in taken]
    grid = f"grid-template-columns:repeat({total}, minmax(1.1rem, 1fr))"
    return f'<div class="tc-slices" style="{grid}">{"".join(blocks)}</div>'


def _placed(instances: Sequence[MigInstanceOut]) -> list[tuple[str, int, int]]:
    """Instances whose start is not known are drawn side by side from the left."""
    found, place = [], 0
    for one in instances:
        start = place if one.start is None else one.start
        found.append((one.name, start, one.slices))
        place = start + one.slices
    return found


def _why(one: MigGpuOut, text: Text) -> str:
    if one.free is None:
        return text("frag.mig.unknown")
    names = ", ".join(f"{count} x {name}" for name, count in sorted(one.ruled_out.items(), reverse=True)[:3])
    words = text("frag.mig.ruled_out", names=names) if names else text("frag.mig.whole")
    return f"{words}; {text('frag.mig.guess', n=one.layouts)}" if one.layouts > 1 else words


def draw(gpus: Sequence[MigGpuOut], text: Text, palette: Palette) -> str:
    """The GPUs in the order given, those of one node together."""
    order = {host: place for place, host in enumerate(dict.fromkeys(one.host for one in gpus))}
    cells = []
    for host, members in groupby(sorted(gpus, key=lambda one: order[one.host]), key=lambda one: one.host):
        cells.append(f'<span class="tc-node">{escape(host)}</span>')
        for one in members:
            label = f"GPU {one.index}" if one.index is not None else one.gpu[-8:]
            css = "" if one.free is None else "blocked" if one.ruled_out else "open"
            cells.append(gpu_link(one.gpu, label))
            cells.append(strip(one.slices, _placed(one.instances), css, palette))
            cells.append(f'<span class="tc-why">{escape(_why(one, text))}</span>')
    return f'<div class="tc-mig">{"".join(cells)}</div>'


def legend(text: Text, palette: Palette) -> str:
    """What the blocks mean."""
    ground = _colour(2, palette)
    parts = [
        ("", f"background:{ground}", text("frag.mig.instance")),
        ("open", "", text("frag.mig.open")),
        ("blocked", "", text("frag.mig.blocked")),
    ]
    marks = "".join(
        f'<span><span class="tc-slices" style="display:inline-grid;width:1.2rem;height:.8rem;vertical-align:-.1rem">'
        f'<span class="{css}" style="{rest}"></span></span> {escape(words)}</span>'
        for css, rest, words in parts
    )
    return f'<div class="tc-legend">{marks}</div>'


def change(one: MigChange, text: Text, palette: Palette) -> str:
    """A GPU before and after a plan, one above the other."""

    def row(layout: Sequence[tuple[str, int]]) -> str:
        return strip(one.slices, [(name, start, _length(name, one.slices)) for name, start in layout], "open", palette)

    label = gpu_link(one.gpu, gpu_at(one.host, None, one.gpu))
    before, after = escape(text("frag.plan.before")), escape(text("frag.plan.after"))
    return (
        f'<span class="tc-node">{label}</span><span class="tc-muted">{before}</span>{row(one.before)}<span></span>'
        f'<span class="tc-muted">{after}</span>{row(one.after)}<span></span>'
    )


def _length(profile: str, total: int) -> int:
    """Memory slices of a template's profile on a GPU of `total`."""
    template = FOUR_SLICE if total == FOUR_SLICE.memory_slices else SEVEN_SLICE
    known = template.profiles.get(profile)
    return known.memory_slices if known else 1

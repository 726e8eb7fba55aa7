"""A table of any length: only the lines that are seen are made, so that 10,000 cost as little as 30."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from rich.cells import set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from tocsin.client.models import GpuState
from tocsin.terminal import text
from tocsin.terminal.look import Look
from tocsin.terminal.tables import FORECAST, MUTED, STRONG, Table

# Colours by tone, for dark and light backgrounds: Okabe and Ito's palette (2008), tuned for contrast.

_DARK = {
    GpuState.OK.value: "#56b4e9",
    GpuState.STALE.value: "#9aa7b4",
    GpuState.WARNING.value: "#f0b429",
    GpuState.CRITICAL.value: "#ff7a45",
    GpuState.LOST.value: "#d9a3e0",
    FORECAST: "#7cc6f0",
    MUTED: "#9aa7b4",
}
_LIGHT = {
    GpuState.OK.value: "#00679c",
    GpuState.STALE.value: "#56606b",
    GpuState.WARNING.value: "#7a5200",
    GpuState.CRITICAL.value: "#a83a00",
    GpuState.LOST.value: "#8a3a7a",
    FORECAST: "#005f8f",
    MUTED: "#56606b",
}
_BOLD = {GpuState.CRITICAL.value, GpuState.LOST.value}


def tones(*, dark: bool) -> dict[str, Style]:
    """Styles by tone; the empty tone is plain."""
    found = {name: Style(color=colour, bold=name in _BOLD) for name, colour in (_DARK if dark else _LIGHT).items()}
    return {**found, STRONG: Style(bold=True), "": Style()}


WHEEL = 3
"""Lines a turn of the wheel."""


class FleetGrid(ScrollView, can_focus=True):
    """Shows the lines of `table`, one selected. The selection stays with its line when lines are ordered anew, except
    at the top, where it stays with the first: who looks at the worst wants to see a new worst."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("home,g", "edge(0)", show=False),
        Binding("end,G", "edge(1)", show=False),
        Binding("enter", "open", "Open"),
    ]
    DEFAULT_CSS = "FleetGrid { overflow-x: hidden; overflow-y: auto; scrollbar-size-vertical: 1; }"

    class Moved(Message):
        """Another line is selected."""

    class Opened(Message):
        """The selected line was asked for in full."""

    def __init__(self, table: Table[Any], name: str) -> None:
        super().__init__(id=name)
        self.table = table
        self.look: Look | None = None
        self.sorted_by = ""
        self.turned = False
        self.test: Callable[[Any], bool] = lambda _row: True
        self._given: Sequence[Any] = ()
        self._lines: Sequence[Any] = ()
        self._place = 0
        self._due = False

    # ------------------------------------------------------------------ content

    @property
    def count(self) -> int:
        """Lines, of the table that is seen those that the filter lets through."""
        return len(self._given if self._due else self._lines)

    @property
    def room(self) -> int:
        """Cells across, beside the scroll bar."""
        return self.scrollable_content_region.width

    @property
    def selected(self) -> Any | None:
        """The row of the selected line; None where there is none."""
        return self._lines[self._place] if self._lines else None

    def show(self, look: Look, lines: Sequence[Any]) -> None:
        """Take `lines`, those of `look` in their order of need. A table that is not seen only keeps them for later."""
        self.look, self._given = look, lines
        self.relist()

    def on_show(self) -> None:
        if self._due:
            self.relist()

    def relist(self) -> None:
        """Filter and order the lines anew."""
        self._due = not self.display
        if self.look is None or self._due:
            return
        selected = self.selected
        key = None if selected is None or self._place == 0 else self.table.key(selected)
        chosen = [row for row in self._given if self.test(row)]
        self._lines = self.table.ordered(chosen, self.sorted_by, turned=self.turned)
        self._place = self._found(key)
        self.virtual_size = Size(self.room, len(self._lines) + 1)
        self._reveal()
        self.refresh()
        self.post_message(self.Moved())

    def _found(self, key: str | None) -> int:
        if key is None:
            return 0
        kept = min(self._place, max(0, len(self._lines) - 1))
        return next((place for place, row in enumerate(self._lines) if self.table.key(row) == key), kept)

    def sort(self, step: int) -> str:
        """Order by the next column that can be ordered by, or the one before; the title of the column."""
        titles = ["", *(column.title for column, _ in self.table.shown(self.room) if column.order)]
        place = titles.index(self.sorted_by) if self.sorted_by in titles else 0
        self.sorted_by = titles[(place + step) % len(titles)]
        self.turned = False
        self.relist()
        return self.sorted_by

    def turn(self) -> None:
        self.turned = not self.turned
        self.relist()

    # ------------------------------------------------------------------ drawing

    def render_line(self, y: int) -> Strip:
        """Line `y` of what is seen; the first is the heading."""
        width = self.room
        style = self.rich_style
        place = self.scroll_offset.y + y - 1
        if y == 0:
            return self._heading(width, style)
        if self.look is None or place >= len(self._lines):
            return Strip.blank(width, style)
        inverse = place == self._place
        tone = tones(dark=self.app.current_theme.dark)
        segments: list[Segment] = []
        for column, cells in self.table.shown(width):
            words, name = column.cell(self._lines[place], self.look.at)
            words = text.fit(words, cells)
            words = words.rjust(cells) if column.right else words
            # The tone is left out of the selected line: reversed colours of any tone would lose contrast.
            look = style + Style(reverse=True, bold=True) if inverse else style + tone[name]
            segments += [Segment(set_cell_size(words, cells), look), Segment(" ", look if inverse else style)]
        return Strip(segments[:-1]).adjust_cell_length(width, style)

    def _heading(self, width: int, style: Style) -> Strip:
        segments: list[Segment] = []
        bold = style + Style(bold=True, underline=True)
        for column, cells in self.table.shown(width):
            mark = ""
            if column.title and column.title == self.sorted_by:
                mark = "▼" if column.falling is not self.turned else "▲"
            words = text.fit(column.title + mark, cells)
            segments += [Segment(words.rjust(cells) if column.right else words.ljust(cells), bold), Segment(" ", bold)]
        return Strip(segments[:-1]).adjust_cell_length(width, bold)

    def on_resize(self) -> None:
        self.virtual_size = Size(self.room, len(self._lines) + 1)
        self.refresh()

    # ------------------------------------------------------------------ moving

    def _select(self, place: int) -> None:
        place = max(0, min(place, len(self._lines) - 1))
        if place != self._place:
            self._place = place
            self._reveal()
            self.refresh()
            self.post_message(self.Moved())

    def _reveal(self) -> None:
        """Scroll as little as shows the selected line below the heading."""
        top, seen = self.scroll_offset.y, max(1, self.size.height - 1)
        if self._place < top:
            self.scroll_to(y=self._place, animate=False, immediate=True)
        elif self._place >= top + seen:
            self.scroll_to(y=self._place - seen + 1, animate=False, immediate=True)

    def action_move(self, step: int) -> None:
        self._select(self._place + step)

    def action_page(self, step: int) -> None:
        self._select(self._place + step * max(1, self.size.height - 2))

    def action_edge(self, end: int) -> None:
        self._select(len(self._lines) - 1 if end else 0)

    def action_open(self) -> None:
        if self._lines:
            self.post_message(self.Opened())

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """The wheel moves the selection, which the view follows."""
        event.stop()
        self._select(self._place + WHEEL)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        event.stop()
        self._select(self._place - WHEEL)

    def on_click(self, event: events.Click) -> None:
        """Select a line, open it by a double click, order by a heading."""
        if event.y == 0:
            self._sort_at(event.x)
            return
        place = self.scroll_offset.y + event.y - 1
        if place < len(self._lines):
            self._select(place)
            if event.chain == 2:
                self.action_open()

    def _sort_at(self, x: int) -> None:
        left = 0
        for column, cells in self.table.shown(self.room):
            if left <= x <= left + cells and column.order is not None:
                self.turned = not self.turned if self.sorted_by == column.title else False
                self.sorted_by = column.title
                self.relist()
                return
            left += cells + 1

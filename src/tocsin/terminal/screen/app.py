"""The view: fleet, tables, and what is done from them. Whoever is asked is asked in worker threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import ContentSwitcher, Footer, Input, Static

from tocsin.client.models import DecisionOut, GpuState, GpuSummary
from tocsin.domain.clock import Clock
from tocsin.domain.errors import TocsinError
from tocsin.terminal import plain, rows, tables, text
from tocsin.terminal.look import FleetFeed, Look, UtilisationHistory
from tocsin.terminal.screen.dialogs import DecisionScreen, GpuScreen, HelpScreen
from tocsin.terminal.screen.grid import FleetGrid, tones

VIEWS = ("gpus", "attention", "decisions", "nodes")
SHARE = 4.0
"""The rest between two looks is at least so many times as long as a look took: most of the time is left to others."""
MOST_REST_S = 30.0


class TopApp(App[None]):
    """Shows what `feed` tells, asked every `interval_s` seconds at most, filtered by `words`. Does not close it."""

    TITLE = "tocsin top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #fleet { height: 3; padding: 0 1; text-wrap: nowrap; text-overflow: ellipsis; }
    #tabs { height: 1; padding: 0 1; text-wrap: nowrap; text-overflow: ellipsis; }
    #views { height: 1fr; padding: 0 1; }
    FleetGrid { height: 1fr; }
    #said { height: 2; padding: 0 1; }
    #filter { display: none; height: 1; border: none; padding: 0 1; }
    #filter.open { display: block; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(str(n), f"view('{name}')", show=False) for n, name in enumerate(VIEWS, start=1)),
        Binding("tab", "turn_view(1)", "View", show=True, priority=True),
        Binding("shift+tab", "turn_view(-1)", show=False, priority=True),
        Binding("enter", "open", "Open"),
        Binding("slash", "filter", "Filter"),
        Binding("s", "sort(1)", "Order"),
        Binding("S", "sort(-1)", show=False),
        Binding("r", "turn", show=False),
        Binding("a", "settle(True)", "Approve"),
        Binding("x", "settle(False)", "Reject"),
        Binding("d", "light", show=False),
        Binding("f5", "ask", show=False),
        Binding("escape", "clear", show=False),
        Binding("question_mark", "keys", "Keys"),
        Binding("q,ctrl+c", "quit", "End"),
    ]

    def __init__(self, feed: FleetFeed, clock: Clock, interval_s: float, words: str = "") -> None:
        super().__init__()
        self.feed = feed
        self.look: Look | None = None
        self.history = UtilisationHistory()
        self._clock = clock
        self._interval = interval_s
        self._problem = ""
        self._answered: float | None = None
        self._asking = False
        made = (tables.gpus(self.history), tables.attention(), tables.decisions(), tables.nodes())
        self._grids: dict[str, FleetGrid] = {table.name: FleetGrid(table, table.name) for table in made}
        # Held rather than looked up: a screen that lies over the tables would be searched in place of theirs.
        self._views = ContentSwitcher(*self._grids.values(), id="views", initial=VIEWS[0])
        self._head, self._tabs, self._said = Static(id="fleet"), Static(id="tabs"), Static(id="said")
        self._words = words
        self._field = Input(placeholder="words, temp>80, util<10, pool:train; Enter keeps it", id="filter")

    # ------------------------------------------------------------------ building

    def compose(self) -> ComposeResult:
        """Fleet, tabs, tables, the sentence of the selected line, keys."""
        yield self._head
        yield self._tabs
        yield self._views
        yield self._said
        yield self._field
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        self._field.value = self._words
        self.grid.focus()
        self.action_ask()
        self.set_interval(1.0, self._draw_fleet)

    @property
    def grid(self) -> FleetGrid:
        return self._grids[self._views.current or VIEWS[0]]

    # ------------------------------------------------------------------ asking

    def action_ask(self) -> None:
        """Ask now; an answer that is still to come is waited for instead."""
        if not self._asking:
            self._asking = True
            self.run_worker(self._ask, thread=True, name="look", exit_on_error=False)

    def _ask(self) -> None:
        begun = self._clock.monotonic()
        try:
            look = self.feed.look()
        except TocsinError as error:
            self.call_from_thread(self._failed, str(error))
        else:
            self.history.take(look)
            lines = {name: grid.table.rows(look) for name, grid in self._grids.items()}
            self.call_from_thread(self._took, look, lines, self._clock.monotonic() - begun)

    def _took(self, look: Look, lines: Mapping[str, Sequence[Any]], seconds: float) -> None:
        self._problem, self._answered = "", self._clock.monotonic()
        self.look = look
        for name, grid in self._grids.items():
            grid.show(look, lines[name])
        self._redraw()
        if isinstance(self.screen, GpuScreen):
            self._fetch(self.screen)
        self._rest(max(self._interval, SHARE * seconds))

    def _failed(self, problem: str) -> None:
        self._problem = problem
        self._redraw()
        self._rest(self._interval)

    def _rest(self, seconds: float) -> None:
        self._asking = False
        self.set_timer(min(seconds, max(self._interval, MOST_REST_S)), self.action_ask)

    def _aside(self, ask: Callable[[], Any], then: Callable[[Any], None], failed: Callable[[str], None]) -> None:
        """Run `ask` in a thread; its answer or what went wrong comes back to the screen's own."""

        def work() -> None:
            try:
                answer = ask()
            except TocsinError as error:
                self.call_from_thread(failed, str(error))
            else:
                self.call_from_thread(then, answer)

        self.run_worker(work, thread=True, exit_on_error=False)

    # ------------------------------------------------------------------ drawing

    def _redraw(self) -> None:
        self._draw_fleet()
        self._draw_tabs()
        self._draw_said()

    def _draw_fleet(self) -> None:
        self._head.update(self._fleet())

    def _fleet(self) -> Text:
        tone, look = tones(dark=self.current_theme.dark), self.look
        made = Text()
        if look is None:
            made.append(f"tocsin top  {self.feed.origin}\n", "bold")
            made.append(self._problem or "asking ...", "bold reverse" if self._problem else "")
            return made
        made.append("tocsin top  ", "bold")
        if look.simulated:
            made.append(" SIMULATED ", "reverse")
            made.append("  ")
        alarmed = look.summary is not None and (look.summary.paused or look.summary.breaker.tripped)
        made.append(plain.control(look), "bold" if alarmed else "")
        made.append(f"\n{len(look.gpus):,} GPUs on {len({gpu.host for gpu in look.gpus}):,} nodes  ", "bold")
        for state, count in look.states().items():
            if count or state is GpuState.OK:
                made.append(f"{text.SYMBOLS[state]} {count:,} {state.value}  ", tone[state.value])
        made.append("\n")
        made.append(*self._pulse(look))
        return made

    def _pulse(self, look: Look) -> tuple[str, str]:
        """Figures and the age of what is seen; or, loudly, that there is no answer."""
        if self._problem:
            silent = self._clock.monotonic() - (self._answered or 0.0)
            return f" NO ANSWER for {text.span(silent)}, trying on: {self._problem} ", "bold reverse"
        summary = look.summary
        parts = [f"{look.at[11:19]} UTC"]
        if summary is not None:
            parts += [
                f"{text.percent(summary.utilization_ratio)} busy",
                f"memory {text.percent(summary.memory_used_ratio)}",
                text.watts(summary.power_watts),
                f"{text.FORECAST} {summary.predictions} predicted",
                f"{summary.decisions_approvable} to decide",
                *([summary.risk_model] if summary.risk_model else []),
            ]
        parts += look.notes
        return "  ".join(parts), ""

    def _draw_tabs(self) -> None:
        made, current = Text(), self.grid
        for number, (name, grid) in enumerate(self._grids.items(), start=1):
            made.append(f" {number} {name} {grid.count:,} ", "reverse bold" if grid is current else "")
            made.append(" ")
        if current.sorted_by or current.turned:
            made.append(f" by {current.sorted_by or 'need'}{' turned' if current.turned else ''}")
        if self._field.value:
            made.append(f"  filter: {self._field.value}", "bold")
        self._tabs.update(made)

    def _draw_said(self) -> None:
        selected, look = self.grid.selected, self.look
        said = self.grid.table.sentence(selected, look) if selected is not None and look is not None else ""
        self._said.update(Text(said))

    def on_fleet_grid_moved(self) -> None:
        self._draw_said()

    # ------------------------------------------------------------------ views, order, filter

    def action_view(self, name: str) -> None:
        self._views.current = name
        self.grid.relist()
        self.grid.focus()
        self._redraw()

    def action_turn_view(self, step: int) -> None:
        if len(self.screen_stack) == 1:
            self.action_view(VIEWS[(VIEWS.index(self.grid.table.name) + step) % len(VIEWS)])

    def action_sort(self, step: int) -> None:
        self.grid.sort(step)
        self._draw_tabs()

    def action_turn(self) -> None:
        self.grid.turn()
        self._draw_tabs()

    def action_filter(self) -> None:
        self._field.add_class("open")
        self._field.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter as it is typed; half a word such as `temp>` finds nothing yet and is no mistake."""
        if event.input.id == "filter":
            self._filter(event.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if event.input.id == "filter":
            event.input.remove_class("open")
            self.grid.focus()

    def _filter(self, words: str) -> None:
        try:
            test = rows.gpu_filter(words)
        except TocsinError as error:
            self.notify(str(error), severity="warning", timeout=4)
            return
        wanted = words.lower().split()
        for name, grid in self._grids.items():
            table = grid.table
            grid.test = test if name == VIEWS[0] else _worded(table.words, wanted)
            grid.relist()
        self._redraw()

    def action_clear(self) -> None:
        self._field.value = ""
        self._field.remove_class("open")
        self.grid.focus()

    def action_light(self) -> None:
        self.theme = "textual-light" if self.current_theme.dark else "textual-dark"
        self._redraw()

    def action_keys(self) -> None:
        self.push_screen(HelpScreen())

    # ------------------------------------------------------------------ one line in full

    def action_open(self) -> None:
        self.grid.action_open()

    def on_fleet_grid_opened(self) -> None:
        """A GPU, the GPU behind a line, a decision guard by guard, or the GPUs of a node."""
        selected = self.grid.selected
        if isinstance(selected, GpuSummary):
            self._open_gpu(selected.uuid, text.label(selected))
        elif isinstance(selected, rows.AttentionLine) and selected.uuid:
            self._open_gpu(selected.uuid, selected.name)
        elif isinstance(selected, DecisionOut):
            self.push_screen(DecisionScreen(selected))
        elif isinstance(selected, rows.Node):
            self._field.value = f"host:{selected.host}"
            self.action_view(VIEWS[0])

    def _open_gpu(self, uuid: str, title: str) -> None:
        screen = GpuScreen(uuid, title)
        self.push_screen(screen)
        self._fetch(screen)

    def _fetch(self, screen: GpuScreen) -> None:
        self._aside(lambda: self.feed.detail(screen.uuid), screen.show, screen.fail)

    # ------------------------------------------------------------------ deciding

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002
        """Deciding is offered where decisions are seen, opening not while something lies over the tables."""
        if action == "settle":
            return len(self.screen_stack) == 1 and self._views.current == VIEWS[2]
        return True

    def action_settle(self, yes: bool) -> None:
        """Ask for a confirmation, then approve or reject the selected decision."""
        decision, look = self.grid.selected, self.look
        if not isinstance(decision, DecisionOut) or look is None:
            return
        if not look.may_decide:
            role = look.role or "nobody"
            self.notify(f"The role {role} may not decide; log in as an operator: tocsin login", severity="warning")
        elif not decision.approvable:
            self.notify(f"This decision is {decision.state}; nobody is asked.", severity="warning")
        else:
            question = "Approve? y runs it once the guards agree, Escape goes back" if yes else "Reject?"
            screen = DecisionScreen(decision, question, reasoned=not yes)
            self.push_screen(screen, lambda reason: self._settle(decision.id, yes, reason))

    def _settle(self, decision_id: str, yes: bool, reason: str | None) -> None:
        if reason is None:
            return
        said = "approved" if yes else "rejected"

        def ask() -> None:
            if yes:
                self.feed.approve(decision_id)
            else:
                self.feed.reject(decision_id, reason)

        def done(_answer: object) -> None:
            self.notify(f"{decision_id} {said}")
            self.action_ask()

        self._aside(ask, done, lambda problem: self.notify(problem, severity="error"))


def _worded(words: Callable[[Any], str], wanted: list[str]) -> Callable[[Any], bool]:
    def test(row: Any) -> bool:
        shown = words(row).lower()
        return all(word in shown for word in wanted)

    return test

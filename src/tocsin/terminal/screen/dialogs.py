"""What lies over the tables: one GPU in full, a decision and its confirmation, the keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.style import Style
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Footer, Input, Static

from tocsin.client.models import DecisionOut
from tocsin.domain.metrics import spec_of
from tocsin.domain.parameters import encode
from tocsin.terminal import text
from tocsin.terminal.look import Detail
from tocsin.terminal.screen.grid import tones
from tocsin.terminal.tables import FORECAST, guards

CHART_LINES = 3
_CHARTS = (
    ("gpu_utilization_ratio", "utilisation", 100.0, "%", 1.0),
    ("gpu_memory_used_ratio", "memory", 100.0, "%", 1.0),
    ("gpu_temperature_celsius", "temperature", 1.0, "°C", None),
    ("gpu_power_watts", "power", 1.0, "W", None),
)
"""Metric, title, factor to the shown unit, unit, top of the scale (None: the greatest value)."""
KEYS = """\
1 2 3 4, tab     GPUs, attention, decisions, nodes
up down pgup pgdn, j k, home end, wheel
enter            the selected line in full
s  S             order by the next column, by the one before
r                the other way round; a click on a heading orders, too
/                filter: words, or temp>80  util<10  mem>90  chance>50
                 host:n1  pool:train  rack:  model:  state:warning
escape           take the filter away, close what is open
a  x             approve, reject the selected decision
d                dark or light
f5               ask now
q                end

● ok   ? no fresh reading   ▲ warning   ◆ critical   ✕ lost   ↗ predicted"""


class GpuScreen(ModalScreen[None]):
    """One GPU: its course, what is said of it, its values. `detail` is None until it has come."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,enter", "dismiss", "Back")]
    DEFAULT_CSS = """
    GpuScreen { background: $background; }
    GpuScreen VerticalScroll { padding: 0 1; }
    """

    def __init__(self, uuid: str, title: str) -> None:
        super().__init__()
        self.uuid = uuid
        self._title = title
        self._detail: Detail | None = None
        self._problem = ""

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(id="gpu")
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Say at once what is being asked for; the answer may have come already."""
        self._draw()

    def show(self, detail: Detail) -> None:
        self._detail, self._problem = detail, ""
        self._draw()

    def fail(self, problem: str) -> None:
        """Say why there is nothing; what came before stays."""
        self._problem = problem
        self._draw()

    def on_resize(self) -> None:
        self._draw()

    def _draw(self) -> None:
        if not self.is_mounted:
            return
        made = Text(f"{self._title}: {self._problem or 'asking ...'}")
        if self._detail is not None:
            ink = tones(dark=self.app.current_theme.dark)[FORECAST]
            made = detail_text(self._detail, max(20, self.size.width - 4), ink)
        self.query_one("#gpu", Static).update(made)


def detail_text(detail: Detail, width: int, ink: Style) -> Text:
    """One GPU in full, `width` cells wide, its charts in `ink`."""
    gpu, made = detail.gpu, Text()
    state = f"{text.SYMBOLS[gpu.state]} {gpu.state.value}"
    made.append(f"{text.label(gpu)}{' (simulated)' if gpu.simulated else ''}  {state}\n", "bold")
    facts = (gpu.model, gpu.uuid, gpu.pool and f"pool {gpu.pool}", gpu.rack)
    made.append(", ".join(fact for fact in facts if fact) + "\n")
    for metric, title, factor, unit, top in _CHARTS:
        values = [None if value is None else value * factor for value in detail.series.get(metric, ())]
        _append_chart(made, title, unit, values, width, None if top is None else top * factor, ink)
    if any(detail.series.values()):
        made.append(f"\nthe last {text.span(detail.span_s)}, newest on the right\n", "dim")
    for title, lines in detail.sections.items():
        made.append(f"\n{title}\n", "bold")
        made.append("".join(f"  {line}\n" for line in lines))
    if detail.values:
        made.append("\nvalues\n", "bold")
        made.append("".join(f"  {line}\n" for line in _values(detail)))
    return made


def _append_chart(
    made: Text, title: str, unit: str, values: Sequence[float | None], width: int, top: float | None, ink: Style
) -> None:
    present = [value for value in values if value is not None]
    if not present:
        return
    top = max(present) if top is None else top
    made.append(f"\n{title}", "bold")
    made.append(f"  {present[-1]:.0f} {unit}, in this time {min(present):.0f} to {max(present):.0f} {unit}\n")
    for line in text.chart(text.spread(values, width), CHART_LINES, 0.0, top):
        made.append(line.rstrip() + "\n", ink)


def _values(detail: Detail) -> list[str]:
    width = max(len(name) for name in detail.values)
    units = {name: spec.unit for name in detail.values if (spec := spec_of(name))}
    return [f"{name:<{width}}  {v:,.6g} {units.get(name, '')}".rstrip() for name, v in sorted(detail.values.items())]


class DecisionScreen(ModalScreen[str | None]):
    """A decision, guard by guard; where `question` is given, with yes and no.

    Ends with the reason typed, which may be empty, or None where it was left. `reasoned` says that a reason is asked
    for: then Enter is the yes, else the letter y.
    """

    AUTO_FOCUS = "Input"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "Back"),
        Binding("y", "yes", "Yes"),
        Binding("n,q", "leave", "No", show=False),
    ]
    DEFAULT_CSS = """
    DecisionScreen { align: center middle; background: $background 60%; }
    DecisionScreen Vertical { width: 90%; max-width: 110; height: auto; max-height: 90%; border: round $primary;
        padding: 0 1; background: $surface; }
    DecisionScreen VerticalScroll { height: auto; max-height: 20; }
    """

    def __init__(self, decision: DecisionOut, question: str = "", *, reasoned: bool = False) -> None:
        super().__init__()
        self._decision = decision
        self._question = question
        self._reasoned = reasoned

    def compose(self) -> ComposeResult:
        with Vertical():
            with VerticalScroll():
                yield Static(decision_text(self._decision), id="decision")
            if self._question:
                yield Static(Text(f"\n{self._question}", "bold"), id="question")
            if self._reasoned:
                yield Input(placeholder="reason, kept in the journal; Enter rejects, Escape goes back", id="reason")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.dismiss(event.value)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002
        """A yes needs a question, and no line that takes the letter."""
        return action != "yes" or (bool(self._question) and not self._reasoned)

    def action_yes(self) -> None:
        self.dismiss("")

    def action_leave(self) -> None:
        self.dismiss(None)


def decision_text(decision: DecisionOut) -> Text:
    """A decision and what each guard says of it."""
    made = Text()
    made.append(f"{text.plain(decision.sentence)}\n", "bold")
    made.append(f"{decision.action.value} of {decision.subject.kind.value} {decision.subject.name}, ")
    made.append(f"rule {decision.rule}, mode {decision.mode}, {decision.state}; id {decision.id}\n")
    for name, value in sorted(encode(decision.parameters).items()):
        made.append(f"{name} = {value}\n")
    made.append("\n" + "".join(f"{line}\n" for line in guards(decision)))
    if decision.outcome is not None:
        # How it ended is said above.
        made.append(f"by {decision.outcome.executor}: {decision.outcome.detail}\n", "bold")
    return made


class HelpScreen(ModalScreen[None]):
    """The keys and the signs."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,question_mark,enter", "dismiss", "Back")]
    DEFAULT_CSS = """
    HelpScreen { align: center middle; background: $background 60%; }
    HelpScreen Static { width: 78; height: auto; border: round $primary; padding: 0 1; background: $surface; }
    """

    def compose(self) -> ComposeResult:
        yield Static(Text(KEYS))

"""The four tables of the view: which columns they have, how their lines are ordered, and what a line says in full."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tocsin.client.models import DecisionOut, GpuState, GpuSummary
from tocsin.domain.clock import to_iso
from tocsin.domain.decision import DecisionState, Ruling
from tocsin.terminal import rows, text
from tocsin.terminal.look import Look, UtilisationHistory

Row = TypeVar("Row")
Cell = tuple[str, str]
"""Text and its tone: a state's value, ``muted``, ``strong``, ``forecast``, or empty."""
MUTED, STRONG, FORECAST = "muted", "strong", "forecast"
BARS = 140
"""Width of the table from which on ratios are drawn as bars beside their numbers."""
ROOMY = 100
SPARK, NARROW_SPARK = 12, 6
"""Readings that the course of a GPU shows, in a table of `ROOMY` cells and in a narrower one."""


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """`width` 0 takes what is left. `order` is what to sort by, None where its values have no order of use; `falling`
    says that the greatest come first. The column is shown where the table is `least` to `most` cells wide."""

    title: str
    width: int
    cell: Callable[[Row, str], Cell]
    order: Callable[[Row], Any] | None = None
    falling: bool = True
    right: bool = False
    least: int = 0
    most: int = 10_000


@dataclass(frozen=True, slots=True)
class Table(Generic[Row]):
    """`rows` gives the lines of a look in their order of need, `key` what tells one from another, `sentence` the whole
    of what a line has to say, `words` what a filter looks through."""

    name: str
    columns: tuple[Column[Row], ...]
    rows: Callable[[Look], Sequence[Row]]
    key: Callable[[Row], str]
    sentence: Callable[[Row, Look], str]
    words: Callable[[Row], str]

    def shown(self, width: int) -> list[tuple[Column[Row], int]]:
        """The columns that a table of `width` cells has, each with its own width; one cell lies between two."""
        columns = [column for column in self.columns if column.least <= width <= column.most]
        rest = width - sum(column.width for column in columns) - len(columns) + 1
        return [(column, column.width or max(1, rest)) for column in columns]

    def ordered(self, lines: Sequence[Row], title: str, *, turned: bool) -> list[Row]:
        """`lines` by the column `title`, the other way round where `turned`; what has no value comes last.

        An unknown title leaves the order of need.
        """
        column = next((one for one in self.columns if one.title == title), None)
        if column is None or column.order is None:
            return list(reversed(lines)) if turned else list(lines)
        order = column.order
        known = [(value, line) for line in lines if (value := order(line)) is not None]
        known.sort(key=lambda pair: pair[0], reverse=column.falling is not turned)
        return [line for _, line in known] + [line for line in lines if order(line) is None]


def _ratio(value: float | None) -> Cell:
    return text.percent(value), MUTED if value is None else ""


def _drawn(value: float | None) -> Cell:
    return text.bar(value, 8), FORECAST


def _sign(state: GpuState) -> Cell:
    return text.SYMBOLS[state], state.value


def _told(state: GpuState, sentence: str) -> Cell:
    return sentence, state.value if state is not GpuState.OK else FORECAST


def gpus(history: UtilisationHistory) -> Table[GpuSummary]:
    """A line for each GPU; `history` draws its utilisation."""

    def course(gpu: GpuSummary, width: int) -> Cell:
        return text.sparkline(history.of(gpu.uuid), width), FORECAST

    columns: tuple[Column[GpuSummary], ...] = (
        Column("S", 1, lambda gpu, _: _sign(gpu.state), lambda gpu: gpu.state.rank),
        Column("GPU", 20, lambda gpu, _: (text.label(gpu), STRONG), _place, falling=False),
        Column("UTIL", 5, lambda gpu, _: _ratio(gpu.utilization_ratio), lambda g: g.utilization_ratio, right=True),
        Column("", 8, lambda gpu, _: _drawn(gpu.utilization_ratio), least=BARS),
        Column("MEM", 5, lambda gpu, _: _ratio(gpu.memory_used_ratio), lambda g: g.memory_used_ratio, right=True),
        Column("", 8, lambda gpu, _: _drawn(gpu.memory_used_ratio), least=BARS),
        Column("TEMP", 5, lambda g, _: (text.degrees(g.temperature_celsius), ""), lambda g: g.temperature_celsius,
               right=True),
        Column("POWER", 6, lambda gpu, _: (text.watts(gpu.power_watts), ""), lambda gpu: gpu.power_watts, right=True),
        Column("HISTORY", SPARK, lambda gpu, _: course(gpu, SPARK), least=ROOMY),
        Column("PAST", NARROW_SPARK, lambda gpu, _: course(gpu, NARROW_SPARK), most=ROOMY - 1),
        Column("MODEL", 14, lambda gpu, _: (gpu.model.removeprefix("NVIDIA "), MUTED), lambda g: g.model or None,
               falling=False, least=172),
        Column("POOL", 10, lambda gpu, _: (gpu.pool, MUTED), lambda gpu: gpu.pool or None, falling=False, least=158),
        Column("LEAD", 6, lambda gpu, now: _lead(text.lead_seconds(now, gpu.eta)), lambda gpu: gpu.eta, falling=False,
               right=True),
        Column("FINDING, PREDICTION", 0, lambda gpu, now: _told(gpu.state, rows.said(gpu, now))),
    )  # fmt: skip
    return Table(
        "gpus",
        columns,
        lambda look: sorted(look.gpus, key=rows.urgency),
        lambda gpu: gpu.uuid,
        _gpu_sentence,
        lambda gpu: gpu.uuid,
    )


def _place(gpu: GpuSummary) -> tuple[str, int, str]:
    return gpu.host, -1 if gpu.index is None else gpu.index, gpu.uuid


def _lead(seconds: float | None) -> Cell:
    return ("", "") if seconds is None or seconds >= rows.LATEST else (text.span(seconds), FORECAST)


def _gpu_sentence(gpu: GpuSummary, look: Look) -> str:
    said = rows.said(gpu, look.at) or "Nothing is found and nothing is predicted."
    what = ", ".join(part for part in (gpu.model, gpu.pool and f"pool {gpu.pool}", gpu.rack) if part)
    return f"{text.label(gpu)} ({what}): {said}"


def attention() -> Table[rows.AttentionLine]:
    """What needs attention, worst first."""
    columns: tuple[Column[rows.AttentionLine], ...] = (
        Column("S", 1, lambda one, _: _sign(one.state), lambda one: one.state.rank),
        Column("WHERE", 22, lambda one, _: (one.name, STRONG), lambda one: one.name, falling=False),
        Column("LEAD", 7, lambda one, _: _lead(one.lead_s), lambda one: one.lead_s, falling=False, right=True),
        Column("CHANCE", 6, lambda one, _: (text.chance(one.probability), FORECAST) if one.probability else ("", ""),
               lambda one: one.probability, right=True),
        Column("WHAT", 0, lambda one, _: _told(one.state, one.sentence)),
    )  # fmt: skip
    return Table(
        "attention",
        columns,
        rows.attention,
        lambda one: one.key,
        lambda one, _: f"{one.name}: {one.sentence}",
        lambda one: f"{one.name} {one.state} {one.sentence}",
    )


def decisions() -> Table[DecisionOut]:
    """Decisions: those that wait for a person first."""
    columns: tuple[Column[DecisionOut], ...] = (
        Column("", 1, lambda one, _: (text.RULINGS[one.overall], STRONG if one.approvable else MUTED)),
        Column("STATE", 9, lambda one, _: (_standing(one), STRONG if one.approvable else MUTED),
               _standing, falling=False),
        Column("ACTION", 15, lambda one, _: (one.action.value, ""), lambda one: one.action.value, falling=False),
        Column("AGE", 7, lambda one, now: (text.span(text.lead_seconds(to_iso(one.at_ms), now) or 0.0), MUTED),
               lambda one: one.at_ms, right=True),
        Column("ENDS", 7, _ends, lambda one: one.expires_ms, falling=False, right=True),
        Column("DECISION", 0, lambda one, _: (text.plain(one.sentence), "")),
        Column("HELD BY", 32, lambda one, _: (rows.held(one), MUTED), least=110),
    )  # fmt: skip
    return Table(
        "decisions",
        columns,
        lambda look: rows.ordered(look.decisions),
        lambda one: one.id,
        _decision_sentence,
        lambda one: f"{one.id} {one.state} {one.action} {one.sentence} {rows.held(one)}",
    )


def _standing(decision: DecisionOut) -> str:
    if decision.state is DecisionState.GOAL_NOT_REACHED:
        return "no effect"
    return "waits" if decision.approvable else decision.state.value


def _ends(decision: DecisionOut, now: str) -> Cell:
    left = text.lead_seconds(now, to_iso(decision.expires_ms)) or 0.0
    return (text.span(left), MUTED) if left and decision.approvable else ("", "")


def _decision_sentence(decision: DecisionOut, _look: Look) -> str:
    why = rows.held(decision)
    return f"{text.plain(decision.sentence)}{f' — held by {why}' if why else ''}"


def guards(decision: DecisionOut) -> Iterable[str]:
    """A line for each guard that does not allow it, with the reason; then those that do."""
    for verdict in decision.verdicts:
        if verdict.ruling is not Ruling.ALLOW:
            until = f" (until {to_iso(verdict.until_ms)[:16].replace('T', ' ')})" if verdict.until_ms else ""
            reason = verdict.reason or verdict.ruling.value
            yield f"{text.RULINGS[verdict.ruling]} {verdict.guard:<14} {reason}{until}"
    agreed = [verdict.guard for verdict in decision.verdicts if verdict.ruling is Ruling.ALLOW]
    if agreed:
        yield f"{text.RULINGS[Ruling.ALLOW]} allowed by {', '.join(agreed)}"


def nodes() -> Table[rows.Node]:
    """A line for each host."""
    columns: tuple[Column[rows.Node], ...] = (
        Column("S", 1, lambda one, _: _sign(one.state), lambda one: one.state.rank),
        Column("NODE", 18, lambda one, _: (one.host, STRONG), lambda one: one.host, falling=False),
        Column("GPUS", 4, lambda one, _: (str(one.gpus), ""), lambda one: one.gpus, right=True),
        Column("STATES", 12, lambda one, _: _counts(one)),
        Column("UTIL", 5, lambda one, _: _ratio(one.utilization), lambda one: one.utilization, right=True),
        Column("", 8, lambda one, _: _drawn(one.utilization), least=BARS),
        Column("MEM", 5, lambda one, _: _ratio(one.memory), lambda one: one.memory, right=True),
        Column("HOT", 5, lambda one, _: (text.degrees(one.hottest), ""), lambda one: one.hottest, right=True),
        Column("POWER", 8, lambda one, _: (text.watts(one.power), ""), lambda one: one.power, right=True),
        Column("POOL", 12, lambda one, _: (one.pool, MUTED), lambda one: one.pool, falling=False, least=100),
        Column("WORST", 0, lambda one, now: _told(one.state, rows.said(one.worst, now))),
    )  # fmt: skip
    return Table(
        "nodes",
        columns,
        lambda look: sorted(rows.nodes(look.gpus), key=lambda one: (-one.state.rank, one.host)),
        lambda one: one.host,
        lambda one, look: _gpu_sentence(one.worst, look),
        lambda one: f"{one.host} {one.pool} {one.state}",
    )


def _counts(node: rows.Node) -> Cell:
    shown = [f"{text.SYMBOLS[state]}{node.states[state]}" for state in reversed(GpuState) if node.states[state]]
    return " ".join(shown), node.state.value

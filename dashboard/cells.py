"""All cells of a fleet on the pages: which is shown, what all of them say together, and which do not answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TypeVar

import streamlit as st

from tocsin.client.client import Client
from tocsin.client.errors import Busy, Denied, NotFound
from tocsin.client.models import FleetMap, FleetSummary, GpuState
from tocsin.client.models_capacity import CapacityOut, ForecastOut
from tocsin.client.models_cells import (
    AnswerState,
    CellAnswer,
    Whereabouts,
    WholeCapacity,
    WholeFleet,
    WholeSummary,
)
from tocsin.client.whole import missing, whole_summary
from tocsin.client.whole_forecast import whole_capacity, whole_forecast
from tocsin.dashboard import link, style
from tocsin.dashboard.access import CHOSEN_CELL, chosen_cell, connect
from tocsin.dashboard.fleet_data import MAPS
from tocsin.dashboard.kept_answers import PageClient
from tocsin.dashboard.text import Text
from tocsin.domain.clock import SystemClock
from tocsin.domain.errors import TocsinError, Unavailable

T = TypeVar("T")

MOST_DRAWN = 20_000
"""GPUs up to which the map shows several cells at once; a browser holds no more (own choice)."""
_LISTED = "cells.listed"
_LISTED_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Cells:
    """The cells of the fleet as this tab last read them; `names` are none where one cell is the whole fleet."""

    names: tuple[str, ...] = ()


def listed() -> Cells:
    """The cells, asked for now and then; those of before where the brain does not answer."""
    found: Cells
    at_s, found = st.session_state.get(_LISTED, (float("-inf"), Cells()))
    now_s = SystemClock().monotonic()
    if now_s - at_s < _LISTED_SECONDS:
        return found
    try:
        with connect("") as client:
            known = client.cells()
        found = Cells(tuple(one.name for one in known) if len(known) > 1 else ())
    except (NotFound, Denied):
        # A brain of a version that knows no cells, or whoever looks is shown none.
        found = Cells()
    except TocsinError:
        return found
    st.session_state[_LISTED] = (now_s, found)
    return found


def choose(text: Text) -> None:
    """The choice of a cell, in the side bar; nothing where one cell is the whole fleet."""
    found = listed()
    chosen = ""
    if found.names:
        chosen = link.pick_one(
            "cell", text("cells.choose"), ["", *found.names], "", lambda name: name or text("cells.all")
        )
    if chosen != chosen_cell():
        # What was kept of another cell is not of this one.
        st.session_state.pop("chain", None)
    st.session_state[CHOSEN_CELL] = chosen


def spans() -> bool:
    """Whether pages show all cells of a fleet of several."""
    return bool(listed().names) and not chosen_cell()


def summary_of(client: PageClient) -> tuple[FleetSummary, WholeSummary | None]:
    """The fleet in one object, and what each cell said where all of them are shown. Raises as `client` does, and
    Unavailable where no cell answers."""
    if not spans():
        return client.summary(), None
    found = client.cells_summary()
    return whole_summary(answered(found, found.answers)), found


def forecast_of(client: Client, most: int) -> ForecastOut:
    """What lies ahead in the cells that are shown, the most urgent `most` of each list. Raises as `summary_of` does."""
    if not spans():
        return client.forecast(most)
    found = client.cells_forecast(most)
    return whole_forecast(answered(found, found.answers), most)


def capacity_of(client: Client) -> tuple[CapacityOut, WholeCapacity | None]:
    """The pools a week ahead, as `summary_of` has the fleet."""
    if not spans():
        return client.capacity(), None
    found = client.cells_capacity()
    return whole_capacity(answered(found, found.answers)), found


def answered(found: WholeFleet, answers: Mapping[str, T]) -> Mapping[str, T]:
    """`answers` of `found`; raises Unavailable where there is none."""
    if not answers:
        raise Unavailable("; ".join(f"cell {one.cell}: {one.detail}" for one in found.cells))
    return answers


def not_yet(error: Unavailable, text: Text) -> str:
    """In words that an answer is being worked out, or that no cell has one. Raises `error` where it says neither."""
    if spans():
        return text("cells.none", problem=str(error))
    if not isinstance(error, Busy):
        raise error
    return f"{text('ahead.working')} ({error})"


def lacking(found: WholeFleet | None, text: Text) -> str:
    """A chip that names the cells of which nothing, or only something old, is shown; empty where there is none."""
    said = partly(found, text)
    return style.chip(f"◌ {said}", "tc-alarm") if said else ""


def partly(found: WholeFleet | None, text: Text) -> str:
    """The same in words alone."""
    gone = missing(found) if found is not None else []
    return text("cells.partial", cells=", ".join(one.cell for one in gone)) if gone else ""


def partly_all(found: Iterable[WholeFleet | None], text: Text) -> list[str]:
    """`partly` of several answers, the same once."""
    return list(dict.fromkeys(said for one in found if (said := partly(one, text))))


def each(lines: Mapping[str, Sequence[str]], text: Text) -> list[str]:
    """`lines` by cell, each once with the cells that say it before it."""
    saying: dict[str, list[str]] = {}
    for name in sorted(lines):
        for line in lines[name]:
            saying.setdefault(line, []).append(name)
    return [text("cells.also", cell=", ".join(names), headline=line) for line, names in saying.items()]


def currencies(found: Sequence[str], text: Text) -> list[str]:
    """A line that money in the currencies `found` is not added up; none where they are fewer than two."""
    names = ", ".join(one or text("cells.unnamed") for one in found)
    return [text("cells.currencies", names=names)] if len(found) > 1 else []


def which(text: Text) -> str:
    """A chip with the cells that pages are of; empty where one cell is the whole fleet."""
    found = listed()
    if not found.names:
        return ""
    if chosen_cell():
        return style.chip(text("cells.one", cell=chosen_cell()))
    return style.chip(text("cells.every", n=len(found.names)))


def table(found: WholeSummary, text: Text) -> str:
    """A row for each cell: its figures, and whether it answered."""
    head = [text(f"cells.{name}") for name in ("name", "gpus", "bad", "warning", "mode", "waiting", "answer")]
    rows = [_row(one, found.answers.get(one.cell), text) for one in found.cells]
    return style.title(text("cells")) + style.table(head, rows, (1, 2, 3, 5))


def _row(one: CellAnswer, summary: FleetSummary | None, text: Text) -> list[str]:
    state = GpuState.OK if one.state is AnswerState.ANSWERED else GpuState.STALE
    answer = text(f"cells.{one.state}") + (f" · {text.duration(one.age_s)}" if one.age_s is not None else "")
    told = f'<span title="{escape(one.detail, quote=True)}">{style.sign(state)}{escape(answer)}</span>'
    name = f'<span title="{escape(one.url, quote=True)}">{escape(one.cell)}</span>'
    if summary is None:
        return [name, "–" if one.gpus is None else f"{one.gpus:,}", "–", "–", "–", "–", told]
    bad = sum(summary.states.get(state, 0) for state in (GpuState.CRITICAL, GpuState.LOST))
    parts = [text.name("mode", summary.mode.value), *([text("cells.paused")] if summary.paused else [])]
    parts += [text("cells.tripped")] if summary.breaker.tripped else []
    return [
        name,
        f"{summary.gpus:,}",
        str(bad),
        str(summary.states.get(GpuState.WARNING, 0)),
        escape(", ".join(parts)),
        str(summary.decisions_approvable),
        told,
    ]


def whole_map(client: Client, told: WholeSummary) -> FleetMap:
    """The maps of the cells that answer now as one; of one whose map does not come nothing is there, as its absence is
    told elsewhere."""
    found: dict[str, FleetMap] = {}
    for name in answering(told, told.answers):
        try:
            found[name] = MAPS.look(client.at(name))
        except (Unavailable, Denied):
            continue
    return MAPS.whole(found)


def whereabouts(client: Client, gpu: str, host: str) -> Mapping[str, Whereabouts]:
    """What the cells that answer now have of the GPU with UUID `gpu` and of `host`. Raises as `summary_of` does."""
    found = client.cells_where(gpu, host)
    fresh = answering(found, found.answers)
    return answered(found, {name: found.answers[name] for name in fresh})


def answering(found: WholeFleet, answers: Mapping[str, object]) -> list[str]:
    """The cells that answer now, by name."""
    gone = {one.cell for one in missing(found)}
    return [name for name in sorted(answers) if name not in gone]

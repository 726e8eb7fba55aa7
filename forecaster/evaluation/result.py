"""What a backtest comes to: figures with their intervals, bars, and words on how to read them; and what a data set is.

A package registers a data set by an entry point of the group ``tocsin.datasets`` that names a ``DataSet``; the name of
the entry point is what ``tocsin backtest --dataset`` takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator

Number = Annotated[float, BeforeValidator(lambda value: float("nan") if value is None else value)]
"""A number that may not exist: NaN here, null in JSON."""


@dataclass(frozen=True, slots=True)
class Request:
    """What to run on: `train` and `test` are folders of the data set's format. Without `test` the protocol's own folds
    of `train` are used, disjoint by device and time. `draws` are bootstrap draws; `quick` asks for a small run that
    proves the way, not the figures; `leak` also asks for what a row-random split would claim. A simulated data set has
    no folders: `train` is the current one and is not looked at, `scenario` its file, None the shipped one."""

    train: Path
    test: Path | None = None
    seed: int = 0
    draws: int = 200
    quick: bool = False
    leak: bool = False
    scenario: Path | None = None


@dataclass(frozen=True, slots=True)
class Figure:
    """One number. `low` and `high` are the 95 % bootstrap interval by device or incident, None without one; `bar` is
    what it must reach (`least`: at least, else at most)."""

    value: Number
    low: float | None = None
    high: float | None = None
    bar: float | None = None
    least: bool = True

    @property
    def holds(self) -> bool | None:
        """Whether the bar is reached; None without one."""
        if self.bar is None:
            return None
        return self.value >= self.bar if self.least else self.value <= self.bar


@dataclass(frozen=True, slots=True)
class ReportTable:
    """A table of the report: reliability, lead times, folds."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str | float | int | None]]


@dataclass(frozen=True, slots=True)
class Curve:
    """Something to draw: `x` and `y` of equal length, such as a reliability or precision-recall curve."""

    title: str
    x_label: str
    y_label: str
    lines: Mapping[str, tuple[Sequence[Number], Sequence[Number]]]
    diagonal: bool = False


class SectionPlace(StrEnum):
    """Where a section of a report stands: the accuracy of the service is told apart from that of parts."""

    SERVICE = "service"
    """What the running service said, over its own path."""
    PART = "part"
    """What a part can do in a benchmark that the service runs, by default or where a setting names it."""
    RESEARCH = "research"
    """What something does that the service does not run: on a page of its own."""


@dataclass(frozen=True, slots=True)
class ReportSection:
    """Figures of one or more models on one way of splitting. `models` maps a model's name, trivial predictors among
    them, to its figures by name."""

    title: str
    models: Mapping[str, Mapping[str, Figure]]
    population: Mapping[str, float | int | str] = field(default_factory=dict)
    tables: Sequence[ReportTable] = ()
    curves: Sequence[Curve] = ()
    notes: Sequence[str] = ()
    place: SectionPlace = SectionPlace.PART


def researched(sections: Sequence[ReportSection]) -> list[ReportSection]:
    """`sections` of what the service does not run."""
    return [replace(one, place=SectionPlace.RESEARCH) for one in sections]


@dataclass(frozen=True, slots=True)
class Result:
    """One data set's report. `protocol` says in a few sentences how it was measured, `source` where the data is
    from."""

    dataset: str
    protocol: str
    source: str
    sections: Sequence[ReportSection]
    notes: Sequence[str] = ()
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class DataSet:
    """A past with a protocol of its own. `run` raises InputError for folders that it cannot use, NotEnoughData where
    too little happened in them. `reads` says whether it reads a folder of data, `scenarios` whether it takes a scenario
    file of the simulator."""

    run: Callable[[Request], Result]
    reads: bool = True
    scenarios: bool = False

"""A result as JSON and back: what a report of several data sets is put together from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tocsin.domain.errors import InputError
from tocsin.forecaster.evaluation.result import Curve, Figure, Result, Section, Table

DIGITS = 6
"""Significant digits that are kept: more would differ between processors."""

Json = dict[str, Any]


def to_json(result: Result) -> Json:
    """The document of ``tocsin backtest --json``; a number that does not exist is null."""
    return {
        "dataset": result.dataset,
        "protocol": result.protocol,
        "source": result.source,
        "seconds": round(result.seconds, 1),
        "sections": [_section(one) for one in result.sections],
        "notes": list(result.notes),
    }


def from_json(document: Json) -> Result:
    """The result that `to_json` gave. Raises InputError where it is none."""
    try:
        return Result(
            dataset=document["dataset"],
            protocol=document["protocol"],
            source=document["source"],
            seconds=document["seconds"],
            sections=[_read_section(one) for one in document["sections"]],
            notes=document["notes"],
        )
    except (KeyError, TypeError, AttributeError) as error:
        problem = f"is no report of a backtest ({error!r})"
        raise InputError("report", str(document)[:80], problem, "remove the file and run the backtest again") from None


def cell(value: object) -> object:
    """A plain JSON value: numbers of numpy become Python's, floats are rounded, what is not finite is None."""
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, Path):
        return str(value)
    number = float(value)  # type: ignore[arg-type]
    if not math.isfinite(number):
        return None
    rounded = float(f"{number:.{DIGITS}g}")
    return int(number) if number == int(number) and not isinstance(value, float) else rounded


def _section(section: Section) -> Json:
    return {
        "title": section.title,
        "population": {name: cell(value) for name, value in section.population.items()},
        "models": {
            name: {key: _figure(one) for key, one in figures.items()} for name, figures in section.models.items()
        },
        "tables": [_table(one) for one in section.tables],
        "curves": [_curve(one) for one in section.curves],
        "notes": list(section.notes),
    }


def _figure(figure: Figure) -> Json:
    out: Json = {"value": cell(figure.value)}
    if figure.low is not None:
        out |= {"low": cell(figure.low), "high": cell(figure.high)}
    if figure.bar is not None:
        out |= {"bar": cell(figure.bar), "least": figure.least, "holds": figure.holds}
    return out


def _table(table: Table) -> Json:
    return {"title": table.title, "head": list(table.head), "rows": [[cell(one) for one in row] for row in table.rows]}


def _curve(curve: Curve) -> Json:
    lines = {name: [[cell(one) for one in axis] for axis in axes] for name, axes in curve.lines.items()}
    return {
        "title": curve.title,
        "x_label": curve.x_label,
        "y_label": curve.y_label,
        "lines": lines,
        "diagonal": curve.diagonal,
    }


def _number(value: float | None) -> float:
    return float("nan") if value is None else float(value)


def _read_figure(document: Json) -> Figure:
    low, high = document.get("low"), document.get("high")
    return Figure(_number(document["value"]), low, high, document.get("bar"), document.get("least", True))


def _read_section(document: Json) -> Section:
    models: Mapping[str, Json] = document["models"]
    return Section(
        title=document["title"],
        models={name: {key: _read_figure(one) for key, one in row.items()} for name, row in models.items()},
        population=document["population"],
        tables=[Table(one["title"], one["head"], one["rows"]) for one in document["tables"]],
        curves=[_read_curve(one) for one in document["curves"]],
        notes=document["notes"],
    )


def _read_curve(document: Json) -> Curve:
    lines: Mapping[str, Sequence[Sequence[float | None]]] = document["lines"]
    drawn = {name: ([_number(x) for x in axes[0]], [_number(y) for y in axes[1]]) for name, axes in lines.items()}
    return Curve(document["title"], document["x_label"], document["y_label"], drawn, document["diagonal"])

"""One data set's result as Markdown."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence

from tocsin.forecaster.evaluation.result import Curve, Figure, Result, Section, Table

IMAGES = "images/accuracy"
"""Folder of the plots, from where the report lies."""

_WORDS = {
    "roc_auc": "ROC-AUC",
    "auprc": "AUPRC",
    "auprc_x_base": "AUPRC / base rate",
    "brier": "Brier score",
    "false_alarms_per_1000_device_days": "false alarms per 1,000 device-days",
}
_PERCENT = re.compile(r"([\d.]+)pct")


def words(name: str) -> str:
    """`recall_at_1pct` to `recall at 1 %`."""
    return _WORDS.get(name) or _PERCENT.sub(r"\1 %", name.replace("_", " "))


def number(value: object) -> str:
    """A cell: three digits that matter, a dash for what does not exist."""
    if value is None:
        return "-"
    if isinstance(value, bool | str):
        return str(value)
    if not isinstance(value, float):
        return f"{int(value):,}" if isinstance(value, int) else str(value)
    if not math.isfinite(value):
        return "-"
    if value == int(value) and abs(value) >= 1:
        return f"{int(value):,}"
    size = abs(value)
    if size >= 1000:
        return f"{value:,.0f}"
    places = next((places for least, places in ((100, 1), (1, 2), (0.01, 3)) if size >= least), None)
    if places is None:
        return "0" if value == 0 else f"{value:.2g}"
    return f"{value:.{places}f}"


def shown(figure: Figure) -> str:
    """The value with its interval."""
    if figure.low is None or figure.high is None:
        return _measured(figure.value)
    return f"{_measured(figure.value)} ({_measured(figure.low)} to {_measured(figure.high)})"


def _measured(value: float) -> str:
    """As `number`, but a whole number that was measured shows that it was."""
    return f"{value:.2f}" if value in (1.0, -1.0) else number(value)


def grid(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """A Markdown table: words to the left, columns of numbers to the right."""
    cells = [[number(one).replace("|", "\\|") for one in row] for row in rows]
    words_in = [any(_is_word(row[place]) for row in cells if place < len(row)) for place in range(len(head))]
    lines = ["| " + " | ".join(head) + " |", "|" + "|".join("---" if words else "---:" for words in words_in) + "|"]
    return lines + ["| " + " | ".join(row) + " |" for row in cells]


def _is_word(cell: str) -> bool:
    return bool(cell) and cell != "-" and not cell.removeprefix("-")[:1].isdigit()


def slug(title: str) -> str:
    """A title as a part of a file name."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def image_names(result: Result) -> list[tuple[str, Curve]]:
    """File name of each plot."""
    return [
        (f"{result.dataset}-{place}-{slug(curve.title)}.png", curve)
        for place, section in enumerate(result.sections, 1)
        for curve in section.curves
    ]


def bars(result: Result) -> list[tuple[str, ...]]:
    """Every bar: data set, section, model, figure, what was reached, what was asked for, whether it holds."""
    found: list[tuple[str, ...]] = []
    for section in result.sections:
        for model, figures in section.models.items():
            for name, one in figures.items():
                if one.bar is not None:
                    asked = f"{'at least' if one.least else 'at most'} {number(one.bar)}"
                    verdict = "holds" if one.holds else "does not hold"
                    found.append((result.dataset, section.title, model, words(name), shown(one), asked, verdict))
    return found


def markdown(result: Result, command: str = "", *, level: int = 1, images: bool = True) -> str:
    """The whole result, ending in a newline. `command` is what printed it, `level` that of its heading; `images` says
    whether the plots lie in `IMAGES`."""
    mark = "#" * level
    lines = [f"{mark} {result.dataset}", ""]
    if command:
        lines += [f"    {command}", ""]
    lines += [result.protocol, "", f"Data: {result.source}", ""]
    reached = bars(result)
    if reached:
        head = ("section", "model", "figure", "reached", "asked for", "verdict")
        lines += [*grid(head, [row[1:] for row in reached]), ""]
    names = iter(image_names(result))
    for section in result.sections:
        lines += _section(section, f"{mark}#", names if images else None)
    lines += [f"- {note}" for note in result.notes]
    return "\n".join(lines).rstrip("\n") + "\n"


def _section(section: Section, mark: str, names: Iterable[tuple[str, Curve]] | None) -> list[str]:
    lines = [f"{mark} {section.title}", ""]
    if section.population:
        told = ", ".join(f"{words(name)} {number(value)}" for name, value in section.population.items())
        lines += [f"Population: {told}.", ""]
    lines += [*_figures(section.models), ""] if section.models else []
    for table in section.tables:
        lines += _table(table)
    if names is not None:
        for _, (name, curve) in zip(section.curves, names, strict=False):
            lines += [f"![{section.title}: {curve.title}]({IMAGES}/{name})", ""]
    if section.notes:
        lines += [*(f"- {note}" for note in section.notes), ""]
    return lines


def _figures(models: Mapping[str, Mapping[str, Figure]]) -> list[str]:
    names = list(dict.fromkeys(name for figures in models.values() for name in figures))
    rows = [
        (words(name), *(shown(figures[name]) if name in figures else "" for figures in models.values()))
        for name in names
    ]
    return grid(("figure", *models), rows)


def _table(table: Table) -> list[str]:
    return [f"**{table.title}**", "", *grid(list(table.head), table.rows), ""]

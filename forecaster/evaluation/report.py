"""The report of all data sets: `accuracy_figures.md` and `research.md`, from `accuracy.json`: one part for each."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

from tocsin.domain.errors import InputError
from tocsin.forecaster.evaluation.leak import HONEST, LEAK
from tocsin.forecaster.evaluation.result import Curve, Figure, ReportSection, ReportTable, Result, SectionPlace

NAME, FIGURES, RESEARCH = "accuracy", "accuracy_figures", "research"
ORDER = ("simulator", "backblaze", "titan", "infinitehbd", "gwdg", "smd", "quantiles")
"""Data sets in the order of the report; others follow by name."""

INTRODUCTION = """\
# All figures of accuracy

How often Tocsin is right: first what the running service says, over its own path, then what its parts can do in a
benchmark. `tocsin backtest` wrote every line of this file; `make backtest` runs all of it on the folders that
`TOCSIN_DATA_DIR` names. Each data set has the command that wrote it. [backtest.md](backtest.md) has the definitions,
[research.md](research.md) what was measured of parts that the service does not run.

How to read it:

- A label is a *new* onset within the horizon after the decision. Features end at the decision. Train and test are
  parted by time with a gap of the horizon, by device, or by both; a split by row is refused.
- Failures are rare: an accuracy means something only beside that of the always-healthy predictor. AUPRC stands beside
  the base rate, as a multiple of it.
- Numbers in brackets are 95 % intervals, by resampling whole devices or incidents.
- Recall at a budget puts alerts on that share of the judged windows, highest scores first. A threshold comes from data
  that its figures do not judge.
"""

NOT_CLAIMED = """\
## What is not claimed

- Many faults give no sign that any metric shows before they happen. Recall below 1 at any budget is the rule, not a
  flaw of one model.
- Figures of the simulated fleet hold for the scenario file they are made with, whose precursors were put in by hand.
  They show that the method finds what is there to be found, not how often real GPUs give such signs.
- Drives, servers and the GPUs of one machine are not your fleet. What a model is worth there, `tocsin backtest --store`
  and `tocsin scoreboard` say.
- Point-adjusted F1 is not computed: a random score reaches 0.9 by it.
"""

SAID = """\
## What the running service says

Recordings through the running service (`tocsin replay --live`): stored, forecast, judged by rules, collapsed into
incidents, decided and notified, by the settings as they ship. Scored is what people were told. What knows nothing is
scored beside it.
"""

PARTS = """\
## What parts can do in a benchmark

Scores of single parts, on data of their own. They say what a part may contribute; what the service makes of it stands
above. By default the service runs the family `hazard` and the outlook on memory and fragmentation. `boosting`, `lstm`,
`ensemble` and `isolation` run where `forecast.retrain_model` or a promoted model names them. What no setting brings
into the service stands in [research.md](research.md).
"""

RESEARCHED = """\
# Parts that the service does not run

Scorers and detectors that were built and measured and that no running service uses: a rate that is counted from event
histories, the detector of unusual values, structural signs chosen on other nodes (the service has rules for them), the
LSTM's quantiles ahead. They are judged by the protocols of [backtest.md](backtest.md), and written by the same
`make backtest` as [accuracy_figures.md](accuracy_figures.md). Nothing on this page is a promise of the service.
"""

LEAKED = """\
The same features and model, split once as the protocol says and once by row at random. The right column is not a
result: it is what a report would have claimed that makes this mistake. The evaluator refuses such a split everywhere
else."""


def put(folder: Path, result: Result, command: str) -> Path:
    """Update the part of `result` in the report in `folder`, its plots with it; returns the report's path.

    Raises InputError where `accuracy.json` is there and is no such report.
    """
    parts = {name: part for name, part in _read(folder).items() if name != result.dataset}
    parts[result.dataset] = {"command": command, **to_json(result)}
    ordered = {name: parts[name] for name in sorted(parts, key=_place)}
    images = folder / IMAGES
    images.mkdir(parents=True, exist_ok=True)
    for old in images.glob(f"{result.dataset}-[0-9]*.png"):
        old.unlink()
    for name, curve in image_names(result):
        draw(curve, images / name)
    text = json.dumps({"parts": ordered}, indent=1, ensure_ascii=False)
    (folder / f"{NAME}.json").write_text(text + "\n", encoding="utf-8")
    (folder / f"{RESEARCH}.md").write_text(research(ordered), encoding="utf-8")
    path = folder / f"{FIGURES}.md"
    path.write_text(document(ordered), encoding="utf-8")
    return path


def document(parts: Mapping[str, Mapping[str, Any]]) -> str:
    """The report of all `parts`, in their order: what the service says, then what its parts can do."""
    said, able = (_placed(parts, place) for place in (SectionPlace.SERVICE, SectionPlace.PART))
    lines = [INTRODUCTION]
    for words_, found in ((SAID, said), (PARTS, able)):
        if found:
            lines += [words_, *_bars(found, 3), *_leaks(found, 3), *_texts(found, parts, 3)]
    return "\n".join([*lines, NOT_CLAIMED]).rstrip("\n") + "\n"


def research(parts: Mapping[str, Mapping[str, Any]]) -> str:
    """The report of what the service does not run."""
    found = _placed(parts, SectionPlace.RESEARCH)
    lines = [RESEARCHED, *_bars(found, 2), *_leaks(found, 2), *_texts(found, parts, 2)]
    return "\n".join(lines).rstrip("\n") + "\n"


def _placed(parts: Mapping[str, Mapping[str, Any]], place: SectionPlace) -> dict[str, Result]:
    """Results with their sections at `place`, those without any left out."""
    results = {name: from_json(dict(part)) for name, part in parts.items()}
    chosen = {
        name: replace(one, sections=[section for section in one.sections if section.place is place])
        for name, one in results.items()
    }
    return {name: one for name, one in chosen.items() if one.sections}


def _texts(results: Mapping[str, Result], parts: Mapping[str, Mapping[str, Any]], level: int) -> list[str]:
    return [
        markdown(one, str(parts[name]["command"]), level=level, whole=from_json(dict(parts[name])))
        for name, one in results.items()
    ]


def _bars(results: Mapping[str, Result], level: int) -> list[str]:
    rows = [row for result in results.values() for row in bars(result)]
    if not rows:
        return []
    held = sum(row[-1] == "holds" for row in rows)
    head = ("data", "section", "model", "figure", "reached", "asked for", "verdict")
    return [f"{'#' * level} Bars", "", f"{held} of {len(rows)} bars hold.", "", *grid(head, rows), ""]


def _leaks(results: Mapping[str, Result], level: int) -> list[str]:
    both = [
        (name, section.models[HONEST], section.models[LEAK])
        for name, result in results.items()
        for section in result.sections
        if HONEST in section.models and LEAK in section.models
    ]
    rows = [
        (name, words(key), shown(one), shown(leak[key]))
        for name, honest, leak in both
        for key, one in honest.items()
        if key in leak
    ]
    if not rows:
        return []
    return [
        f"{'#' * level} What a leak would have claimed",
        "",
        LEAKED,
        "",
        *grid(("data", "figure", "honest", "leaked"), rows),
        "",
    ]


def _place(name: str) -> tuple[int, str]:
    return (ORDER.index(name) if name in ORDER else len(ORDER), name)


def _read(folder: Path) -> dict[str, Any]:
    path = folder / f"{NAME}.json"
    if not path.exists():
        return {}
    try:
        parts = json.loads(path.read_text(encoding="utf-8"))["parts"]
    except (ValueError, KeyError, TypeError) as error:
        remedy = "remove the file, or choose another folder"
        raise InputError("--out", str(path), f"is no report of a backtest ({error})", remedy) from None
    return dict(parts)


# Curves as PNG files, drawn by matplotlib without a display.

SIZE_INCHES = (5.6, 4.2)
DOTS_PER_INCH = 100
FEW = 30
"""Lines of fewer points are marked at each."""
RARE = 0.01
"""A reliability curve with a stated probability below this is drawn on logarithmic axes, from `FLOOR` on."""
FLOOR = 1e-6


def draw(curve: Curve, path: Path) -> None:
    """Write `curve` to `path`; the same curve gives the same file. Points that do not exist are left out."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Drawing

    drawing = Drawing(figsize=SIZE_INCHES, dpi=DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(drawing)
    axes = drawing.add_subplot()
    rare = curve.diagonal and _is_rare(curve)
    if curve.diagonal:
        axes.plot([FLOOR if rare else 0, 1], [FLOOR if rare else 0, 1], color="0.6", linestyle="--", linewidth=1)
    for name, (x, y) in curve.lines.items():
        across, up = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
        known = np.isfinite(across) & np.isfinite(up)
        if rare:
            known &= (across >= FLOOR) & (up >= FLOOR)
        axes.plot(across[known], up[known], label=name, linewidth=1.5, marker="o" if known.sum() < FEW else None)
    axes.set(title=curve.title, xlabel=curve.x_label, ylabel=curve.y_label)
    if rare:
        axes.set(xscale="log", yscale="log", ylabel=f"{curve.y_label} (points below {FLOOR:g} are not drawn)")
    axes.grid(color="0.9")
    if curve.lines:
        axes.legend(frameon=False, fontsize="small")
    drawing.savefig(path, metadata={"Software": None})


def _is_rare(curve: Curve) -> bool:
    stated = np.concatenate([np.asarray(x, dtype=np.float64) for x, _ in curve.lines.values()] or [np.ones(1)])
    return bool((stated < RARE).any())


# A result as JSON and back: what a report of several data sets is put together from.

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
        return TypeAdapter(Result).validate_python(document)
    except ValidationError as error:
        problem = f"is no report of a backtest ({error.errors()[0]['msg']})"
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


def _section(section: ReportSection) -> Json:
    return {
        "title": section.title,
        "population": {name: cell(value) for name, value in section.population.items()},
        "models": {
            name: {key: _figure(one) for key, one in figures.items()} for name, figures in section.models.items()
        },
        "tables": [_table(one) for one in section.tables],
        "curves": [_curve(one) for one in section.curves],
        "notes": list(section.notes),
        "place": str(section.place),
    }


def _figure(figure: Figure) -> Json:
    out: Json = {"value": cell(figure.value)}
    if figure.low is not None:
        out |= {"low": cell(figure.low), "high": cell(figure.high)}
    if figure.bar is not None:
        out |= {"bar": cell(figure.bar), "least": figure.least, "holds": figure.holds}
    return out


def _table(table: ReportTable) -> Json:
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


# One data set's result as Markdown.

IMAGES = "images/accuracy"
"""Folder of the plots, from where the report lies."""

_WORDS = {
    "roc_auc": "ROC-AUC",
    "auprc": "AUPRC",
    "auprc_x_base": "AUPRC / base rate",
    "brier": "Brier score",
    "false_alarms_per_1000_device_days": "false alarms per 1,000 device-days",
}
_NOT_IN_NAMES = re.compile(r"[^a-z0-9]+")
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


def image_names(result: Result) -> list[tuple[str, Curve]]:
    """File name of each plot."""
    return [
        (f"{result.dataset}-{place}-{_NOT_IN_NAMES.sub('-', curve.title.lower()).strip('-')}.png", curve)
        for place, section in enumerate(result.sections, 1)
        for curve in section.curves
    ]


def _images_of(result: Result) -> dict[str, list[str]]:
    """File names of the plots of each section, by its title."""
    names = iter(name for name, _ in image_names(result))
    return {section.title: [next(names) for _ in section.curves] for section in result.sections}


def bars(result: Result) -> list[tuple[str, ...]]:
    """Every bar: data set, section, model, figure, what was reached, what was asked for, whether it holds."""
    return [
        (
            result.dataset,
            section.title,
            model,
            words(name),
            shown(one),
            f"{'at least' if one.least else 'at most'} {number(one.bar)}",
            "holds" if one.holds else "does not hold",
        )
        for section in result.sections
        for model, figures in section.models.items()
        for name, one in figures.items()
        if one.bar is not None
    ]


def markdown(
    result: Result, command: str = "", *, level: int = 1, images: bool = True, whole: Result | None = None
) -> str:
    """The whole result, ending in a newline. `command` is what printed it, `level` that of its heading; `images` says
    whether the plots lie in `IMAGES`. `whole` is the result of which `result` has some of the sections: plots are
    numbered by it."""
    mark = "#" * level
    lines = [f"{mark} {result.dataset}", ""]
    if command:
        lines += [f"    {command}", ""]
    lines += [result.protocol, "", f"Data: {result.source}", ""]
    reached = bars(result)
    if reached:
        head = ("section", "model", "figure", "reached", "asked for", "verdict")
        lines += [*grid(head, [row[1:] for row in reached]), ""]
    names = _images_of(whole or result) if images else {}
    for section in result.sections:
        lines += _section_text(section, f"{mark}#", names.get(section.title) if images else None)
    lines += [f"- {note}" for note in result.notes]
    return "\n".join(lines).rstrip("\n") + "\n"


def _section_text(section: ReportSection, mark: str, names: Sequence[str] | None) -> list[str]:
    lines = [f"{mark} {section.title}", ""]
    if section.population:
        told = ", ".join(f"{words(name)} {number(value)}" for name, value in section.population.items())
        lines += [f"Population: {told}.", ""]
    lines += [*_figures(section.models), ""] if section.models else []
    for table in section.tables:
        lines += [f"**{table.title}**", "", *grid(list(table.head), table.rows), ""]
    if names is not None:
        for name, curve in zip(names, section.curves, strict=True):
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

"""The report of all data sets: `accuracy.md`, from `accuracy.json` that holds one part for each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tocsin.domain.errors import InputError
from tocsin.forecaster.evaluation.leak import HONEST, LEAK
from tocsin.forecaster.evaluation.report_json import from_json, to_json
from tocsin.forecaster.evaluation.report_markdown import IMAGES, bars, grid, image_names, markdown, shown, words
from tocsin.forecaster.evaluation.report_plots import draw
from tocsin.forecaster.evaluation.result import Result

NAME = "accuracy"
ORDER = ("simulator", "backblaze", "titan", "infinitehbd", "gwdg", "smd", "quantiles")
"""Data sets in the order of the report; others follow by name."""

INTRODUCTION = """\
# Accuracy

How often Tocsin's forecaster is right, on recorded data and on a simulated fleet. `tocsin backtest` wrote every line
of this file; `make backtest` runs all of it on the folders that `TOCSIN_DATA_DIR` names. Each section has the command
that wrote it. [backtest.md](backtest.md) has the definitions.

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
    path = folder / f"{NAME}.md"
    path.write_text(document(ordered), encoding="utf-8")
    return path


def document(parts: Mapping[str, Mapping[str, Any]]) -> str:
    """The report of all `parts`, in their order."""
    results = {name: from_json(dict(part)) for name, part in parts.items()}
    lines = [INTRODUCTION, *_bars(results), *_leaks(results)]
    lines += [markdown(one, str(parts[name]["command"]), level=2) for name, one in results.items()]
    return "\n".join([*lines, NOT_CLAIMED]).rstrip("\n") + "\n"


def _bars(results: Mapping[str, Result]) -> list[str]:
    rows = [row for result in results.values() for row in bars(result)]
    if not rows:
        return []
    held = sum(row[-1] == "holds" for row in rows)
    head = ("data", "section", "model", "figure", "reached", "asked for", "verdict")
    return ["## Bars", "", f"{held} of {len(rows)} bars hold.", "", *grid(head, rows), ""]


def _leaks(results: Mapping[str, Result]) -> list[str]:
    rows = []
    for name, result in results.items():
        for section in result.sections:
            if HONEST in section.models and LEAK in section.models:
                honest, leak = section.models[HONEST], section.models[LEAK]
                rows += [(name, words(key), shown(honest[key]), shown(leak[key])) for key in honest if key in leak]
    if not rows:
        return []
    return [
        "## What a leak would have claimed",
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

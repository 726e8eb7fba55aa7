"""A model of its own for drives without counters, beside one model for all: tried and dropped.

`python -m tocsin_benchmarks.backblaze.without_counters DIR` judges the later months by the folds of the protocol,
`--before-cut` the same folds of what was known at the cut. Which model scores a snapshot is decided by its features,
so by what was known at that moment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import click
import numpy as np

from tocsin.forecaster.evaluation.bootstrap import figure
from tocsin.forecaster.evaluation.figures import Panel
from tocsin.forecaster.evaluation.report import grid, shown, words
from tocsin.forecaster.features.examples import Examples, Floats, Mask
from tocsin.forecaster.hazard import registry
from tocsin.forecaster.hazard.scorer import NotEnoughData, Scorer
from tocsin_benchmarks.backblaze.drives import read_drives
from tocsin_benchmarks.backblaze.folds import FOLDS, Sizes, cut_day, own_folds, parts
from tocsin_benchmarks.backblaze.models import (
    FULL_SIZES,
    HORIZON_MS,
    QUICK,
    QUICK_SIZES,
    SETTINGS,
    Unweighted,
)
from tocsin_benchmarks.backblaze.pool import bare, joined

FIGURES = ("roc_auc", "auprc_x_base", "recall_at_1pct")
ONE = "one model for all"


def unreported(examples: Examples) -> Mask:
    """Snapshots of drives that do not report uncorrectable errors (SMART 187): no later drive lacks all counters."""
    return np.asarray(np.isnan(examples.column("smart_187_log")))


def clean(examples: Examples) -> Mask:
    """Snapshots without a sector counter above zero."""
    return np.asarray(examples.column("defect_kinds") == 0)


WHO: Mapping[str, Callable[[Examples], Mask]] = {
    "a second model where SMART 187 is missing": unreported,
    "a second model where no sector counter is above zero": clean,
}


def scores(learn: Examples, test: Examples, build: Callable[[], Scorer]) -> dict[str, Floats]:
    """Scores [n of test] by arrangement: of one model for all, and with those of a second one, fitted on the snapshots
    of `WHO` alone, in its place where it applies."""
    one = _fitted(build(), learn).score(test)[:, -1]
    found = {ONE: one}
    for name, who in WHO.items():
        here = who(test)
        found[name] = one.copy()
        if here.any():
            found[name][here] = _fitted(build(), learn.take(who(learn))).score(test.take(here))[:, -1]
    return found


def _fitted(scorer: Scorer, learn: Examples) -> Scorer:
    scorer.fit(learn)
    return scorer


def compare(tests: Sequence[Examples], found: Sequence[Mapping[str, Floats]], draws: int) -> list[tuple[str, ...]]:
    """A row for each arrangement: its figures, and by how much they differ from `ONE` in the same draws of drives."""
    panel = Panel(joined([bare(one) for one in tests]), HORIZON_MS, draws=draws)
    drawn = {name: panel.draws(np.concatenate([one[name] for one in found])) for name in found[0]}
    rows = []
    for name, own in drawn.items():
        values = [shown(figure(own[key])) for key in FIGURES]
        differs = ["" if name == ONE else shown(figure(own[key] - drawn[ONE][key])) for key in FIGURES]
        rows.append((name, *(cell for pair in zip(values, differs, strict=True) for cell in pair)))
    return rows


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True))
@click.option("--before-cut", is_flag=True, help="Judge only what was known at the cut.")
@click.option("--quick", is_flag=True, help="A smoke test, not a measurement.")
@click.option("--draws", type=click.IntRange(2), default=200, show_default=True)
@click.option("--seed", default=0, show_default=True)
def main(folder: Path, before_cut: bool, quick: bool, draws: int, seed: int) -> None:
    """Print the comparison."""
    drives = read_drives(folder)
    if before_cut:
        drives = drives.until(cut_day(drives))
    settings: Mapping[str, object] = (QUICK if quick else SETTINGS)["boosting"]
    sizes: Sizes = QUICK_SIZES if quick else FULL_SIZES

    def build() -> Scorer:
        return Unweighted(registry.build("boosting", horizons_ms=(HORIZON_MS,), seed=seed, **settings))

    tests, found = [], []
    for fold in own_folds(drives, FOLDS):
        made = parts(fold, sizes, seed)
        tests.append(bare(made.test))
        try:
            found.append(scores(made.learn, made.test, build))
        except NotEnoughData as error:
            raise click.ClickException(str(error)) from None
    head = ["boosting", *(cell for key in FIGURES for cell in (words(key), "difference"))]
    click.echo("\n".join(grid(head, compare(tests, found, draws))))


if __name__ == "__main__":
    main()

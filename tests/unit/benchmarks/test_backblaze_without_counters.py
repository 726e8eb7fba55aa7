"""A model of its own for drives without counters: who it learns from, and whom it scores."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from click.testing import CliRunner

from tocsin.forecaster.features.examples import Examples, Floats
from tocsin_benchmarks.backblaze.drives import read_drives
from tocsin_benchmarks.backblaze.folds import own_folds, parts
from tocsin_benchmarks.backblaze.models import QUICK_SIZES
from tocsin_benchmarks.backblaze.without_counters import ONE, WHO, clean, main, scores, unreported
from tocsin_testing import drive_data


class Counting:
    """Says of every row how many it was fitted on."""

    def fit(self, examples: Examples) -> None:
        self.learned = examples

    def score(self, examples: Examples) -> Floats:
        return np.full((len(examples), 1), len(self.learned), np.float64)


def test_a_drive_without_counters_is_scored_by_what_was_learned_from_such_alone(tmp_path: Path) -> None:
    drives = read_drives(drive_data.write(tmp_path, drive_data.fleet(120)))
    made = parts(next(own_folds(drives)), QUICK_SIZES, 0)
    found = scores(made.learn, made.test, Counting)
    assert (found[ONE] == len(made.learn)).all()
    for (name, who), expected in zip(WHO.items(), (unreported, clean), strict=True):
        here = expected(made.test)
        assert who is expected
        assert (found[name][~here] == len(made.learn)).all()
        assert (found[name][here] == expected(made.learn).sum()).all()
    assert 0 < clean(made.test).sum() < len(made.test)


def test_the_comparison_is_printed_beside_one_model_for_all(tmp_path: Path) -> None:
    folder = drive_data.write(tmp_path, drive_data.fleet(500))
    told = CliRunner().invoke(main, [str(folder), "--quick", "--draws", "5"], catch_exceptions=False)
    assert told.exit_code == 0
    for name in (ONE, *WHO):
        assert f"| {name} |" in told.output


def test_too_few_failures_are_told_of(tmp_path: Path) -> None:
    folder = drive_data.write(tmp_path, drive_data.fleet(90))
    told = CliRunner().invoke(main, [str(folder), "--quick"], catch_exceptions=False)
    assert told.exit_code == 1
    assert "3 onsets needed" in told.output

"""A version is not judged by what it was fitted on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tocsin.config.settings import Settings
from tocsin.domain.clock import ManualClock
from tocsin.domain.errors import InputError
from tocsin.forecaster.lifecycle.trial import TrialRecipe
from tocsin.offline.train import TrainingRequest, _is_named, _names, run_training
from tocsin_testing.builders import T0

FILES = [Path(f"node-{n}.csv") for n in range(8)]


@pytest.mark.parametrize("file", FILES)
def test_every_file_of_a_training_is_named(file: Path) -> None:
    for provenance in (
        _names(FILES),
        f"{_names(FILES)}; beside it {_names([Path('x.csv')])}, which the trial left out",
    ):
        assert _is_named(file.name, provenance)
        assert not _is_named(file.name.removeprefix("node-"), provenance), "part of a name is another file"


@pytest.mark.parametrize(("kind", "problem"), [("sqlite", "there is no store"), ("memory", "no GPU has a reading")])
def test_without_a_past_nothing_is_made(tmp_path: Path, kind: str, problem: str) -> None:
    store, models = tmp_path / "store.db", tmp_path / "models"
    settings = Settings.model_validate({"store": {"kind": kind, "path": store}, "forecast": {"models": models}})
    with pytest.raises(InputError, match=f"{problem}.*; name recorded files"):
        run_training(settings, TrainingRequest(TrialRecipe(), "v1"), ManualClock(T0))
    assert not store.exists()

"""A version is not judged by what it was fitted on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tocsin.offline.train import _is_named, _names

FILES = [Path(f"node-{n}.csv") for n in range(8)]


@pytest.mark.parametrize("file", FILES)
def test_every_file_of_a_training_is_named(file: Path) -> None:
    for provenance in (
        _names(FILES),
        f"{_names(FILES)}; beside it {_names([Path('x.csv')])}, which the trial left out",
    ):
        assert _is_named(file.name, provenance)
        assert not _is_named(file.name.removeprefix("node-"), provenance), "part of a name is another file"

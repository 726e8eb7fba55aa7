"""The short pages about accuracy and performance have only figures that the tables beside them have."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[3] / "docs"


@pytest.mark.parametrize("name", ["accuracy", "performance"])
def test_every_figure_is_one_of_the_table(name: str) -> None:
    table = (DOCS / f"{name}_figures.md").read_text("utf-8")
    named = re.findall(
        r"\d+\.\d+(?: (?:ms|s|MB))?|\d+ of \d+ bars hold|\d+ MB", (DOCS / f"{name}.md").read_text("utf-8")
    )
    assert len(named) > 3
    assert [figure for figure in named if figure not in table] == []

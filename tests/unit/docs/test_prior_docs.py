"""What the pages say of the shipped prior is what its own records say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tocsin.forecaster.evaluation.trivial import ALWAYS_HEALTHY
from tocsin.forecaster.lifecycle.gate import ModelGate
from tocsin.forecaster.lifecycle.model_registry import GATE, shipped

DOCS = Path(__file__).parents[3] / "docs"


def test_the_page_has_the_figures_of_the_shipped_gate() -> None:
    folder = shipped()
    assert folder is not None
    (real,) = (one for one in ModelGate.load(folder / GATE).records if not one.simulated)
    (margin,) = (one for one in real.margins if one.rival == ALWAYS_HEALTHY)
    text = (DOCS / "lifecycle.md").read_text(encoding="utf-8")
    found = re.search(
        r"\*\*It (does not pass|passes) there\*\* \(average precision (\S+) above the always-healthy predictor, "
        r"interval (\S+) to (\S+)\)",
        text,
    )
    assert found is not None
    assert found[1] == ("passes" if real.passed else "does not pass")
    told = [float(figure) for figure in found.groups()[1:]]
    assert told == pytest.approx([margin.value, margin.low, margin.high], abs=0.0005)

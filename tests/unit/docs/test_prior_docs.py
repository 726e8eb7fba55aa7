"""What the pages say of the shipped prior is what its own records say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tocsin.config.settings import Settings
from tocsin.domain.clock import HOUR
from tocsin.domain.finding import Subject, SubjectKind
from tocsin.domain.prediction import Prediction, PredictionStatus
from tocsin.forecaster.evaluation.trivial import ALWAYS_HEALTHY
from tocsin.forecaster.lifecycle.gate import ModelGate
from tocsin.forecaster.lifecycle.model_registry import GATE, shipped
from tocsin.forecaster.live.recalibration import KindRecord, Recalibration, shipped_priors
from tocsin_testing.builders import T0

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


NAMES = {
    "temperature": "time_to_threshold:gpu_temperature_celsius by threshold",
    "thermal margin": "time_to_threshold:gpu_thermal_margin_celsius by threshold",
}
"""What the page calls the kinds that start muted."""


def test_the_page_names_the_kinds_that_start_muted_with_their_claims() -> None:
    floor, priors = Settings().forecast.least_precision, shipped_priors()
    muted = set()
    for kind, prior in priors.items():
        record = KindRecord(prior)
        record.judge(floor, T0)
        muted |= {kind} if record.muted else set()
    assert muted == set(NAMES.values())
    text = (DOCS / "forecast.md").read_text(encoding="utf-8")
    found = re.search(
        r"as shipped, temperature \((\d+) of (\d+) claims came true\) and thermal margin \((\d+) of (\d+)\) do\.", text
    )
    assert found is not None
    counts = [(priors[kind].right, priors[kind].claims) for kind in NAMES.values()]
    assert [(int(found[1]), int(found[2])), (int(found[3]), int(found[4]))] == counts


def test_forecasts_of_pools_have_no_record_as_the_page_says() -> None:
    assert "forecasts of pools have no record" in (DOCS / "forecast.md").read_text(encoding="utf-8")
    kinds = Recalibration(Settings().forecast.least_precision, shipped_priors())

    def said(subject: Subject) -> Prediction:
        return Prediction(
            subject=subject, target="pool_above", at_ms=T0, horizon_ms=HOUR, status=PredictionStatus.CROSSING,
            model="capacity", model_version="1", sentence="", metric="utilization", threshold=0.9, value=0.5,
            probability=0.9, eta_ms=T0 + HOUR // 2,
        )  # fmt: skip

    pool = said(Subject(SubjectKind.POOL, "train"))
    kinds.follow(kinds.restated([pool]))
    assert (kinds.restated([pool]), kinds.take_due(T0 + HOUR, 9), kinds.figures(T0 + HOUR)) == ([pool], [], [])
    gpu = said(Subject(SubjectKind.GPU, "GPU-1", "node-1"))
    kinds.follow(kinds.restated([gpu]))
    assert len(kinds.take_due(T0 + HOUR, 9)) == 1

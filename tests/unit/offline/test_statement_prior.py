"""The prior of forecasts: counted in simulated fleets that judge nothing, the same for the same fleets."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from tocsin.cli.main import cli
from tocsin.forecaster.live.recalibration import EDGES, prior_of
from tocsin.offline.statement_prior import PriorPlan, SimulatedRecord, count, document
from tocsin.runtime.rehearsal_set import SEEDS

CALL = ["rehearse", "prior", "--gpus", "24", "--days", "0.1", "--seed", "1001", "--fault-scale", "1000"]


def shipped() -> dict[str, dict[str, object]]:
    text = files("tocsin.forecaster").joinpath("prior/statements.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


def test_the_shipped_prior_says_how_it_was_made_and_by_no_fleet_that_judges() -> None:
    made = shipped()["made"]
    assert set(made) == {"commit", "days", "fault_scale", "gpus", "seeds", "trend_every"}
    assert made["commit"]
    assert isinstance(made["seeds"], list)
    assert min(made["seeds"]) > 1000, "seeds from 1001 on make priors, those below judge"
    assert max(map(max, SEEDS.values())) < 1000


def test_one_command_makes_the_same_file_each_time(tmp_path: Path) -> None:
    texts = []
    for name in ("one.json", "two.json"):
        told = CliRunner().invoke(cli, [*CALL, "--commit", "abc", "--out", str(tmp_path / name)], standalone_mode=False)
        assert told.exception is None
        texts.append((tmp_path / name).read_text())
    assert texts[0] == texts[1]
    found = json.loads(texts[0])
    assert found["made"] == {
        "commit": "abc", "days": 0.1, "fault_scale": 1000.0, "gpus": 24, "seeds": [1001], "trend_every": 6,
    }  # fmt: skip
    assert sum(sum(raw["cases"]) for raw in found["kinds"].values()) > 0
    for raw in found["kinds"].values():
        prior = prior_of(raw)
        assert len(prior.cases) == len(EDGES) - 1
        assert all(0.0 <= came <= cases for came, cases in zip(prior.came, prior.cases, strict=True))


def test_seeds_are_added_up() -> None:
    alone = [count(PriorPlan(16, 0.05, (seed,), 1000.0, 6))["kinds"] for seed in (1, 2)]
    both = count(PriorPlan(16, 0.05, (1, 2), 1000.0, 6))
    for kind, found in both["kinds"].items():
        parts = [one[kind] for one in alone if kind in one]
        assert found["claims"] == sum(part["claims"] for part in parts)
        assert found["cases"] == pytest.approx(np.sum([part["cases"] for part in parts], axis=0), abs=0.002)
    assert document(both).endswith("}\n")


def test_what_the_days_cannot_show_is_not_counted() -> None:
    record = SimulatedRecord(PriorPlan(8, 0.05, (1,), 0.0), 1).run()
    assert all(not one["claims"] for one in record.counted().values())
    assert all(one.settled == 0 for one in record.figures(0) if one.target == "hardware_fault")

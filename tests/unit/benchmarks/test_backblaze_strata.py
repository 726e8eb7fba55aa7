"""Learning without weights: the odds come back to those of all snapshots."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tocsin.domain.clock import HOUR
from tocsin.forecaster.features.examples import Examples
from tocsin.forecaster.hazard import registry
from tocsin_benchmarks.backblaze.drive_models import record
from tocsin_benchmarks.backblaze.drives import read_drives
from tocsin_benchmarks.backblaze.folds import starts
from tocsin_benchmarks.backblaze.models import Unweighted
from tocsin_benchmarks.backblaze.snapshots import Sampling, examples, snapshots, stratum
from tocsin_testing import drive_data

HORIZON_MS = 48 * HOUR


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Examples:
    folder: Path = drive_data.write(tmp_path_factory.mktemp("strata"), drive_data.fleet(150))
    drives = read_drives(folder)
    return examples(drives, record(drives), snapshots(drives, starts(drives), Sampling(1_500, 1_500, 0, fresh=1_500)))


def scorer() -> Unweighted:
    settings = {"horizons_ms": (HORIZON_MS,), "balance": 0.0, "folds": 2, "max_iter": 20, "seed": 1}
    return Unweighted(registry.build("boosting", **settings))


def test_chances_are_those_of_all_snapshots(table: Examples) -> None:
    made = scorer()
    made.fit(table)
    chance = made.score(table)[:, 0]
    onset, _ = table.label(HORIZON_MS)
    assert np.average(chance, weights=table.weight) == pytest.approx(np.average(onset, weights=table.weight), rel=0.2)
    for one in range(3):
        rows = stratum(table) == one
        stated = float((chance * table.weight)[rows].sum())
        assert 0.5 < (stated + 3) / (float((onset * table.weight)[rows].sum()) + 3) < 2


def test_sampling_less_of_a_stratum_moves_nothing_but_its_odds(table: Examples) -> None:
    made, heavier = scorer(), scorer()
    made.fit(table)
    onset, _ = table.label(HORIZON_MS)
    cold = (stratum(table) == 0) & ~onset
    heavier.fit(replace(table, weight=np.where(cold, 10 * table.weight, table.weight)))
    odds, other = (one / (1 - one) for one in (made.score(table)[:, 0], heavier.score(table)[:, 0]))
    np.testing.assert_allclose(odds / other, np.where(stratum(table) == 0, 10.0, 1.0), rtol=1e-4)


def test_state_keeps_the_weights(table: Examples) -> None:
    made, again = scorer(), scorer()
    made.fit(table)
    again.restore(made.state())
    np.testing.assert_array_equal(again.score(table), made.score(table))

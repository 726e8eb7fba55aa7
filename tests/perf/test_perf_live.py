"""A whole turn of the risk from a warm store: read what is new, features, score, sentences; beside reading alone.

Run without --benchmark-only it is a small fleet, for correctness alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from tocsin.config.settings import StoreKind, StoreSettings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import DAY, HOUR, MINUTE
from tocsin.domain.reading import Gpu, Reading
from tocsin.forecaster.features.examples import HORIZONS_MS, NEVER, Examples, HeldSequences
from tocsin.forecaster.features.plan import FeaturePlan
from tocsin.forecaster.features.table import names_of
from tocsin.forecaster.hazard import registry
from tocsin.forecaster.hazard.artefact import ModelCard
from tocsin.forecaster.lifecycle.gate import GateRecord, ModelGate
from tocsin.forecaster.lifecycle.model_registry import ModelRegistry, ModelVersion
from tocsin.forecaster.live.risk import RiskWatch
from tocsin.forecaster.live.risk_inputs import RiskInputs, SeenGpus
from tocsin.store.embedded.store import SqliteStore
from tocsin_testing.scale import fleet, matrix

Say = Callable[[str], None]

STEP = 10 * MINUTE
START = 1_795_000_000_000 // DAY * DAY
PLAN = FeaturePlan()
KEYS = tuple(name for name in PLAN.metrics if "{" not in name)
WARM = 9
"""Steps that are there before the first turn."""
SMALL = 16
CASES: Mapping[str, tuple[str, int, float]] = {
    "demo, hazard": ("hazard", 64, 0.2),
    "fleet, LSTM": ("lstm", 8_000, 10.0),
}
"""Family, GPUs, and seconds that a turn may take on two cores."""


def learned(family: str, folder: Path) -> None:
    """A model of the family in service, fitted on noise over the features of the service."""
    rng = np.random.default_rng(0)
    rows, names = 400, names_of(PLAN)
    at_ms = START + np.arange(rows) * HOUR
    event = np.where(np.arange(rows) % 8 == 0, at_ms + 6 * HOUR, NEVER)
    shown = rng.standard_normal((rows, PLAN.steps, len(PLAN.sequence)), dtype=np.float32)
    examples = Examples(
        devices=tuple(f"G{n}" for n in range(rows)), device=np.arange(rows, dtype=np.int32), groups=("g",),
        group=np.zeros(rows, np.int32), at_ms=at_ms, names=names,
        features=rng.standard_normal((rows, len(names)), dtype=np.float32), seen_ms=at_ms,
        history_ms=np.full(rows, 30 * DAY), event_ms=event, until_ms=np.full(rows, START + 100 * DAY),
        event_class=np.where(event < NEVER, "bus", ""), weight=np.ones(rows),
        sequences=HeldSequences(PLAN.sequence, shown),
    )  # fmt: skip
    scorer = registry.build("calibrated", scorer=family, of={"min_history_ms": 0})
    scorer.fit(examples)
    card = ModelCard(
        name="risk", version="v1", family="calibrated", horizons_ms=HORIZONS_MS, features=names, provenance="noise",
        data_hash="d", code_version="c", created_ms=START, trained_from_ms=START, trained_to_ms=START + DAY, rows=rows,
        onsets=50,
    )  # fmt: skip
    shelf = ModelRegistry(folder)
    heard = ModelGate((GateRecord(True, False, "noise", 50),))
    shelf.add(ModelVersion("v1", scorer, card, None, gate=heard))
    shelf.promote("v1", START, "test")


def write(store: SqliteStore, gpus: list[Gpu], step: int) -> int:
    """A reading of each GPU at the end of `step`; returns its instant."""
    at_ms = START + (step + 1) * STEP
    values = matrix(KEYS, len(gpus), step)
    store.write(
        Batch(
            readings=[
                Reading(gpu, at_ms, dict(zip(KEYS, row, strict=True)))
                for gpu, row in zip(gpus, values.tolist(), strict=True)
            ]
        )
    )
    return at_ms


@pytest.mark.parametrize("case", CASES)
def test_a_turn_of_the_risk(benchmark: BenchmarkFixture, tmp_path: Path, say: Say, case: str) -> None:
    family, size, most = CASES[case]
    gpus = fleet(SMALL if benchmark.disabled else size)
    path = tmp_path / "store.db"
    store = SqliteStore(path)
    store.init()
    now = [write(store, gpus, step) for step in range(WARM)][-1]
    learned(family, tmp_path / "models")
    watch = RiskWatch(RiskInputs(StoreSettings(kind=StoreKind.SQLITE, path=path), tmp_path / "models"), store)
    assert len(watch.predict(SeenGpus(gpus), now)) >= len(gpus)
    steps = iter(range(WARM, WARM + 9))
    instants: list[int] = []

    def turn() -> int:
        return len([one for one in watch.predict(SeenGpus(gpus), instants[-1]) if one.probability is not None])

    assert benchmark.pedantic(turn, setup=lambda: instants.append(write(store, gpus, next(steps))), rounds=3) == len(
        gpus
    )
    if not benchmark.disabled:
        begun = time.perf_counter()
        found = store.columns(PLAN.metrics, instants[-1] - STEP + 1, instants[-1] + 1)
        reading = time.perf_counter() - begun
        assert len(found.at_ms) == len(gpus)
        mine = float(benchmark.stats.stats.median)
        say(f"turn of the risk ({case}, {size:,} GPUs): {mine:.3f} s, of which reading the store {reading:.3f} s")
        assert mine < most
    store.close()

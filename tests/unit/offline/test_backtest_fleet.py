"""Walking forward over files and stores: made-up GPUs that show a sign before they fall off the bus."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from tocsin.collector.replay.source import read_recording
from tocsin.domain.batch import Batch
from tocsin.domain.clock import DAY, HOUR, ManualClock, to_iso
from tocsin.domain.errors import InputError
from tocsin.forecaster.evaluation.forward import Forward, forward
from tocsin.forecaster.evaluation.leak import HONEST, LEAK
from tocsin.forecaster.evaluation.trivial import ALWAYS_HEALTHY, BASE_RATES, RECENCY
from tocsin.forecaster.hazard.scorer import NotEnoughData
from tocsin.offline.backtest_fleet import BacktestSpan, batches, over_files, over_store
from tocsin.store.memory import MemoryStore
from tocsin_testing.eval_data import START, fleet, rows

DAYS = 12
GPUS = 8
LAST = START + DAYS * DAY
QUICK = Forward(models=("rules",), horizon_ms=24 * HOUR, folds=2, draws=5)


def fails_at(gpu: int) -> float:
    """Day on which an odd GPU falls off the bus."""
    return 1.3 + 0.9 * gpu + (0.0 if gpu % 2 else 1_000.0)


def tidy(path: Path) -> Path:
    """Readings every two hours; ECC errors rise in the day before the XID gauge goes to 79."""
    lines = ["timeUtc,node,metric,value,gpu,uuid,modelName"]
    for hour in range(0, DAYS * 24, 2):
        for gpu in range(GPUS):
            day, fails = hour / 24, fails_at(gpu)
            values = {
                "DCGM_FI_DEV_GPU_TEMP": 40 + (hour * 7 + gpu) % 5,
                "DCGM_FI_DEV_POWER_USAGE": 200 + (hour * 13 + gpu) % 17,
                "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": max(0, int(40 * (day - fails + 1))) if day < fails else 40,
                "DCGM_FI_DEV_XID_ERRORS": 79 if day >= fails else 0,
            }
            prefix = f"{to_iso(START + hour * HOUR)},node-{gpu // 2}"
            lines += [f"{prefix},{name},{value},{gpu % 2},GPU-{gpu},NVIDIA A100" for name, value in values.items()]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tidy(tmp_path_factory.mktemp("recorded") / "tidy.csv")


def test_files_and_a_store_of_the_same_past_give_the_same_report(recorded: Path) -> None:
    clock = ManualClock(LAST)
    past = BacktestSpan(START, LAST, 6 * HOUR)
    files = over_files([recorded], past, QUICK, clock)
    store = MemoryStore()
    for batch in batches(read_recording([recorded])):
        store.write(Batch(batch.readings, batch.events))
    kept = over_store(store, past, QUICK, clock)
    assert files.sections[0].models == kept.sections[0].models
    assert files.sections[0].models.keys() == {"rules", BASE_RATES, RECENCY, ALWAYS_HEALTHY}
    assert files.sections[0].population["onsets"] == 3
    assert "parted by time and by host, in 2 parts of the hosts" in files.protocol
    assert files.source.startswith("1 recorded files, 2025-01-01T00:00 to 2025-01-13T00:00")


def test_a_past_without_a_reading_or_too_short_is_refused(recorded: Path) -> None:
    clock = ManualClock(LAST)
    with pytest.raises(InputError, match="too little history for 2 folds with a gap of 24 h"):
        over_files([recorded], BacktestSpan(START, START + 2 * DAY, 6 * HOUR), QUICK, clock)
    with pytest.raises(InputError, match="no GPU has a reading to decide on"):
        over_store(MemoryStore(), BacktestSpan(every_ms=6 * HOUR), QUICK, clock)
    with pytest.raises(InputError, match="not after"):
        over_files([recorded], BacktestSpan(end_ms=START - DAY), QUICK, clock)


ONE_STRENGTH = {"hazard": {"strengths": [0.1]}}
WANTED = Forward(models=("rules", "hazard"), folds=2, budget=0.1, draws=10, leak=True, settings=ONE_STRENGTH)


def test_a_model_that_sees_the_sign_beats_the_trivial_ones() -> None:
    result = forward(fleet(devices=30, days=30), WANTED)
    honest, leak = result.sections
    models = honest.models
    assert models["hazard"]["roc_auc"].value > 0.85
    assert models["hazard"]["roc_auc"].value > models[BASE_RATES]["roc_auc"].value
    assert models["hazard"]["incident_recall_any_lead"].value > 0.1
    assert leak.models.keys() >= {HONEST, LEAK}
    folds, *others = honest.tables
    assert len(folds.rows) == 4
    assert all(one is None or one >= 0.5 for *_, one in folds.rows)  # type: ignore[operator]
    assert [table.title.split(" of ")[0] for table in others] == ["Lead", "Lead", "Reliability", "Reliability"]
    assert [curve.title for curve in honest.curves][:2] == ["Reliability", "Precision and recall"]


def test_it_gives_the_same_report_again_and_leaves_the_examples_alone() -> None:
    examples = fleet(devices=30, days=30)
    before = examples.features.copy(), examples.event_ms.copy()
    once = Forward(models=("hazard",), folds=2, devices=1, draws=5, settings=ONE_STRENGTH)
    first, again = forward(examples, once), forward(examples, once)
    assert first.sections[0].models == again.sections[0].models
    np.testing.assert_array_equal(examples.features, before[0])
    np.testing.assert_array_equal(examples.event_ms, before[1])


def test_one_host_is_split_by_time_alone_and_said_so() -> None:
    examples = fleet(devices=16, days=30)
    host = np.zeros(len(examples), dtype=np.int32)
    result = forward(dataclasses.replace(examples, group=host), Forward(models=("rules",), folds=2, draws=2))
    assert "parted by time alone: there is one host" in result.protocol


def test_what_leaks_or_teaches_nothing_is_refused() -> None:
    examples = fleet(devices=20, days=30)
    late = rows(
        examples.device, (examples.at_ms - START) / DAY, names=("x", "y"), features=examples.features,
        seen_ms=examples.at_ms + 1,
    )  # fmt: skip
    with pytest.raises(InputError, match="features dated after the decision"):
        forward(late, WANTED)
    healthy = rows(examples.device, (examples.at_ms - START) / DAY, names=("x", "y"), features=examples.features)
    with pytest.raises(NotEnoughData, match="hazard: no fold can be learned from; nothing learned before"):
        forward(healthy, WANTED)
    with pytest.raises(InputError, match="none is observed for 48 h after"):
        forward(rows([0, 1], [0, 1], until_ms=np.array([START, START])), WANTED)


def test_without_an_onset_in_the_test_it_says_that_there_is_no_ranking() -> None:
    examples = fleet(devices=20, days=30)
    healthy = rows(examples.device, (examples.at_ms - START) / DAY, names=("x", "y"), features=examples.features)
    section = forward(healthy, Forward(models=("rules",), folds=2, draws=2)).sections[0]
    assert "roc_auc" not in section.models["rules"]
    assert section.notes == ("No onset falls into a tested window: ranking figures do not exist.",)

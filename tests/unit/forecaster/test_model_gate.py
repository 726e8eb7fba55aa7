"""The gate: who passes it, who does not, and what is said of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tocsin.domain.clock import DAY, HOUR
from tocsin.domain.errors import InputError
from tocsin.forecaster.evaluation.trivial import recency
from tocsin.forecaster.features.examples import NEVER, Examples, Floats
from tocsin.forecaster.lifecycle.gate import COIN, LEAST_EVENTS, SHIFTED, GateRecord, ModelGate, judge, node_events

HORIZON = 48 * HOUR


def past(events: int = 12, nodes: int = 6, days: int = 120) -> Examples:
    """Rows every 12 h of nodes of two GPUs, each hit by a fault now and then; both GPUs of a node are hit at once."""
    rng = np.random.default_rng(1)
    at = np.arange(0, days * DAY, 12 * HOUR)
    hit = {node: np.sort(rng.integers(5, days - 5, events // nodes)) * DAY for node in range(nodes)}
    device = np.repeat(np.arange(2 * nodes, dtype=np.int32), at.size)
    at_ms = np.tile(at, 2 * nodes)
    group = device // 2
    event = np.full(device.size, NEVER)
    for node, times in hit.items():
        rows = group == node
        place = np.searchsorted(times, at_ms[rows], side="right")
        event[rows] = np.append(times, NEVER)[place]
    return Examples(
        devices=tuple(f"G{n}" for n in range(2 * nodes)), device=device, groups=tuple(f"n{n}" for n in range(nodes)),
        group=group.astype(np.int32), at_ms=at_ms, names=("x",), features=np.zeros((device.size, 1), np.float32),
        seen_ms=at_ms, history_ms=np.full(device.size, 30 * DAY), event_ms=event,
        until_ms=np.full(device.size, days * DAY), event_class=np.where(event < NEVER, "bus", ""),
        weight=np.ones(device.size),
    )  # fmt: skip


def told(rows: Examples, scores: Floats, **more: bool) -> GateRecord:
    return judge(rows, scores, HORIZON, data="a made-up past", simulated=more.get("simulated", False), draws=100)


def knowing(rows: Examples) -> Floats:
    onset, _ = rows.label(HORIZON)
    return np.where(onset, 1.0, 0.0) + np.random.default_rng(3).random(len(rows)) * 0.5


def test_a_model_that_knows_passes() -> None:
    rows = past()
    record = told(rows, knowing(rows))
    assert record.passed
    assert record.node_events == np.unique(node_events(rows)[rows.label(HORIZON)[0]]).size > LEAST_EVENTS
    assert {one.rival for one in record.margins} == {"recency rule", "always healthy", COIN, SHIFTED}
    assert all(one.low > 0 for one in record.margins)


@pytest.mark.parametrize("alarm", ["stuck", "random", "always on", "recency"])
def test_what_knows_nothing_does_not_pass(alarm: str) -> None:
    rows = past()
    scores = {
        "stuck": np.where(rows.at_ms > rows.at_ms.mean(), 1.0, 0.0),
        "random": np.random.default_rng(8).random(len(rows)),
        "always on": np.ones(len(rows)),
        "recency": recency(rows),
    }[alarm]
    record = told(rows, scores)
    assert not record.passed
    assert any(line.startswith("not above") for line in record.because)


def test_few_node_events_are_not_enough_to_pass() -> None:
    rows = past(events=4, nodes=4)
    record = told(rows, knowing(rows))
    assert (record.passed, record.margins) == (False, ())
    assert f"{LEAST_EVENTS} are needed" in record.because[0]


def test_all_gpus_of_a_node_up_to_one_onset_are_one_event() -> None:
    rows = past()
    twice = replace(rows, group=(rows.device % 6).astype(np.int32))
    assert np.unique(node_events(rows)).size < np.unique(node_events(twice)).size


def test_rows_without_a_score_are_left_out() -> None:
    rows = past()
    scores = np.where(np.arange(len(rows)) % 3 == 0, np.nan, knowing(rows))
    assert told(rows, scores).passed


def test_records_are_kept_by_data_and_world(tmp_path: Path) -> None:
    rows = past()
    passed, failed = told(rows, knowing(rows), simulated=True), told(rows, np.ones(len(rows)))
    gate = ModelGate().also(passed).also(failed)
    gate.save(tmp_path / "gate.json")
    again = ModelGate.load(tmp_path / "gate.json")
    assert again == gate
    assert (again.heard(simulated=True), again.heard(simulated=False)) == (True, False)
    assert again.also(replace(failed, passed=True)).heard(simulated=False)
    assert ModelGate.load(tmp_path / "none.json") == ModelGate()
    (tmp_path / "gate.json").write_text('{"records": 3}')
    with pytest.raises(InputError, match="judge the model again"):
        ModelGate.load(tmp_path / "gate.json")


def test_a_lucky_small_recording_outvotes_no_larger_one_that_failed() -> None:
    failed, lucky = GateRecord(False, False, "a", 40), GateRecord(True, False, "b", 12)
    for records in ((failed, lucky), (lucky, failed)):
        assert not ModelGate(records).heard(simulated=False)
    assert ModelGate((lucky,)).heard(simulated=False)
    assert not ModelGate((replace(lucky, simulated=True),)).heard(simulated=False)

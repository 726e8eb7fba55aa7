"""Leaks, orphans, idle and stranded GPUs, floods and long requests; and all of it over a store."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from tocsin.cli.main import cli
from tocsin.config.settings import StoreKind, StoreSettings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import HOUR, MINUTE, to_minute
from tocsin.domain.diagnosis import Diagnosis, DiagnosisKind, DiagnosisVerdict
from tocsin.domain.prediction import Prediction, PredictionStatus
from tocsin.domain.reading import Owner, Reading
from tocsin.forecaster.capacity.leak import LeakingGpu, leak_statement
from tocsin.forecaster.diagnosis.fleet import (
    PAST_METRICS,
    STAGE_METRICS,
    DiagnosisInputs,
    diagnose,
    orphaned,
    request_pattern,
)
from tocsin.queries.service import diagnose_fleet
from tocsin.store.factory import open_store
from tocsin.store.port import Store
from tocsin_testing.builders import T0, gpu
from tocsin_testing.fake_service import FakeService, serving

GIB = float(1 << 30)
TOTAL = 80 * GIB


def test_memory_without_a_process_is_measured_against_gpus_of_the_model_at_rest() -> None:
    used = np.array([0.5, 9.0, 40.0, 5.0, np.nan]) * GIB
    processes = np.array([0.0, 0.0, 1.0, 0.0, 0.0])
    models = np.array(["H100", "H100", "H100", "L4", "H100"])
    assert (orphaned(used, processes, models) / GIB).tolist() == [0.0, 8.5, 0.0, 0.0, 0.0]


def server(now: dict[str, float], past: dict[str, float]) -> tuple[np.ndarray, np.ndarray]:
    """An hour of a server, `past` until the last five minutes and `now` from then: rates per second, levels."""
    at_ms = T0 + np.arange(0, HOUR + 1, 15_000)
    late = at_ms > T0 + HOUR - 5 * MINUTE - 60_000
    pick = {name: np.where(late, now[name], past[name]) for name in past}
    ended = np.cumsum(pick["ended"] * 15.0)
    return at_ms, np.column_stack(
        [
            pick["running"],
            np.where(late, np.maximum.accumulate(pick["waiting"] * (at_ms - at_ms[late][0]) / MINUTE), past["waiting"]),
            ended,
            np.cumsum(pick["ended"] * 15.0 * 300),
            np.cumsum(pick["ended"] * 15.0 * 200),
            np.cumsum(pick["ended"] * 15.0 * pick["seconds"]),
        ]
    )


USUAL = {"running": 8.0, "waiting": 0.0, "ended": 2.0, "seconds": 4.0}


@pytest.mark.parametrize(
    ("now", "verdict"),
    [
        (USUAL, DiagnosisVerdict.HEALTHY),
        (USUAL | {"ended": 5.0, "running": 60.0}, DiagnosisVerdict.HEALTHY),
        (USUAL | {"ended": 4.0, "running": 60.0, "waiting": 400.0}, DiagnosisVerdict.FLOOD),
        (USUAL | {"ended": 0.1, "running": 30.0, "seconds": 300.0}, DiagnosisVerdict.LONG_REQUESTS),
        (USUAL | {"ended": 0.0, "running": 30.0}, DiagnosisVerdict.LONG_REQUESTS),
        (USUAL | {"ended": 0.0, "running": 0.0}, DiagnosisVerdict.HEALTHY),
    ],
)
def test_requests_are_judged_by_the_servers_own_past(now: dict[str, float], verdict: DiagnosisVerdict) -> None:
    at_ms, values = server(now, USUAL)
    assert request_pattern(at_ms, values, int(at_ms[-1])).verdict is verdict


def test_requests_without_a_past_are_not_judged() -> None:
    at_ms, values = server(USUAL, USUAL)
    assert (
        request_pattern(at_ms[-30:], values[-30:], int(at_ms[-1])).reason
        == "1 earlier windows of five minutes, 4 needed"
    )
    assert "last five minutes" in request_pattern(at_ms, values, int(at_ms[-1]) + HOUR).reason
    assert request_pattern(at_ms[:0], values[:0], T0).verdict is DiagnosisVerdict.NOT_ENOUGH_DATA


@pytest.fixture
def store() -> Store:
    made = open_store(StoreSettings(kind=StoreKind.MEMORY))
    made.init()
    return made


def row(index: int, at_ms: int, **more: float) -> Reading:
    values = {
        "gpu_utilization_ratio": 0.96,
        "gpu_sm_active_ratio": 0.8,
        "gpu_memory_total_bytes": TOTAL,
        "gpu_memory_used_bytes": 30 * GIB,
        "gpu_memory_used_ratio": 0.4,
        "gpu_processes": 1.0,
    }
    return Reading(gpu(index), at_ms, values | more, {}, (Owner(7, slurm_job="99"),) if index < 4 else ())


def run(store: Store, *filling: Prediction, **changes: dict[str, object]) -> list[Diagnosis]:
    """An hour of eight GPUs, the first four of them of one job, the others free."""
    free = {"gpu_utilization_ratio": 0.0, "gpu_processes": 0.0, "gpu_memory_used_bytes": 0.5 * GIB}
    readings = []
    for number, at_ms in enumerate(range(T0 - HOUR, T0 + 1, MINUTE)):
        for index in range(8):
            values: dict[str, float] = {} if index < 4 else dict(free)
            for name, made in changes.get(f"g{index}", {}).items():
                values[name] = made(number) if callable(made) else made  # type: ignore[assignment]
            readings.append(row(index, at_ms, **values))
    store.write(Batch(readings=readings))
    return diagnose_fleet(store, store.latest(T0 - MINUTE), filling, T0)


def leaks(number: int, ahead_ms: int, **more: Any) -> Prediction:
    one = LeakingGpu(
        gpu(number), "gpu_memory_used_ratio", "gpu_memory_used_ratio", 0.985, 0.8, T0 - HOUR, T0 + ahead_ms, 0.5, 1e-3
    )
    return replace(leak_statement(one, T0 - MINUTE), **more)


@pytest.mark.parametrize(
    "said",
    [[], [leaks(0, HOUR, muted=True)], [leaks(0, -MINUTE)], [leaks(0, HOUR, status=PredictionStatus.NO_CROSSING)]],
)
def test_growth_of_which_no_forecast_stands_is_no_leak(store: Store, said: list[Prediction]) -> None:
    """A server whose cache fills grows as evenly, and stops where it was made to."""
    found = run(store, *said, g0={"gpu_memory_used_bytes": lambda n: (30 + n / 2) * GIB})
    assert [one for one in found if one.kind is DiagnosisKind.MEMORY] == []


def test_a_pod_is_not_told_of_a_checkpoint(store: Store) -> None:
    found = diagnose(
        DiagnosisInputs(
            T0, [gpu(0)], {gpu(0).uuid: [Owner(7, pod="chat-0", namespace="ml")]},
            store.columns(STAGE_METRICS, T0 - HOUR, T0), store.columns(PAST_METRICS, T0 - HOUR, T0), [leaks(0, HOUR)],
        )
    )  # fmt: skip
    assert [one.remedy.partition(";")[0] for one in found if one.remedy] == ["restart the pod when it can be spared"]


def verdicts(found: list[Diagnosis]) -> dict[str, DiagnosisVerdict]:
    return {one.name: one.verdict for one in found}


def test_a_fleet_in_order_has_its_jobs_and_nothing_else(store: Store) -> None:
    found = run(store, **{f"g{n}": {"gpu_utilization_ratio": 0.9, "gpu_processes": 1.0} for n in range(4, 8)})
    assert verdicts(found) == {"Slurm job 99": DiagnosisVerdict.DEVICE, "work on node-1": DiagnosisVerdict.DEVICE}
    assert all(one.kind is DiagnosisKind.SLOW_JOB for one in found)


def test_what_is_wrong_is_found_and_named_with_its_owner(store: Store) -> None:
    found = run(
        store,
        leaks(0, 3 * HOUR),
        g1={"gpu_utilization_ratio": 0.0, "gpu_sm_active_ratio": 0.0},
        g5={"gpu_memory_used_bytes": 20 * GIB},
    )
    by_name = {(one.name, one.kind): one for one in found}
    leak = by_name["node-1 GPU 0", DiagnosisKind.MEMORY]
    assert leak.verdict is DiagnosisVerdict.LEAK
    full = to_minute(T0 + 3 * HOUR)
    assert f"(Slurm job 99): memory grows without a plateau and, if it goes on, is full at {full}" in leak.sentence
    assert leak.remedy.startswith("restart the job at its next checkpoint")
    assert by_name["node-1 GPU 5", DiagnosisKind.MEMORY].verdict is DiagnosisVerdict.ORPHAN
    assert by_name["node-1 GPU 1", DiagnosisKind.IDLE].verdict is DiagnosisVerdict.HELD_IDLE


def test_free_gpus_are_stranded_where_the_pool_has_enough_for_a_node(store: Store) -> None:
    elsewhere = [
        Reading(
            gpu(8 + n, host="node-2"), at_ms, {"gpu_utilization_ratio": 0.0 if n < 4 else 0.9, "gpu_processes": n // 4}
        )
        for at_ms in range(T0 - HOUR, T0 + 1, MINUTE)
        for n in range(8)
    ]
    store.write(Batch(readings=elsewhere))
    found = run(store)
    assert {one.name for one in found if one.verdict is DiagnosisVerdict.STRANDED} == {"node-1", "node-2"}
    alone = [one for one in run(store) if one.verdict is DiagnosisVerdict.STRANDED]
    assert all(len(one.gpus) == 4 for one in alone)


def test_one_node_alone_can_be_asked_for(store: Store) -> None:
    run(store)
    assert diagnose_fleet(store, store.latest(T0 - MINUTE), (), T0, "node-9") == []


def test_the_command_says_it_in_both_languages() -> None:
    runner = CliRunner()
    with serving(FakeService()) as url:
        told = runner.invoke(cli, ["diagnose", "--api-url", url], catch_exceptions=False).output
        chinese = runner.invoke(cli, ["diagnose", "--chinese", "--api-url", url], catch_exceptions=False).output
        parsed = json.loads(runner.invoke(cli, ["diagnose", "--json", "--api-url", url], catch_exceptions=False).output)
        none = runner.invoke(cli, ["diagnose", "--host", "nowhere", "--api-url", url], catch_exceptions=False).output
    assert "  Slurm job 4711 on 8 GPUs is limited by communication between the GPUs.\n    try: overlap" in told
    assert "Memory that leaks\n  gpu-node-02 GPU 3: memory grows" in told
    assert "受限于" in chinese
    assert [one["verdict"] for one in parsed] == ["between_gpus", "memory_leak"]
    assert none.splitlines()[-1] == "What limits each job (the last 15 minutes): no job runs"

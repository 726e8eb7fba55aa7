"""The engine judges a large fleet in array operations: compared with a plain loop, not with the clock."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
from dataclasses import replace

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from tocsin.domain.clock import MINUTE
from tocsin.domain.metrics import METRICS, MetricKind, variant
from tocsin.domain.number_row import NumberRow, names_of
from tocsin.domain.reading import Gpu, Reading
from tocsin.rules.engine import Inputs, RuleEngine
from tocsin.rules.load import load_rules, parse_rules
from tocsin_testing.builders import T0, gpu
from tocsin_testing.rule_runs import HEAD

LEVELS = {
    "gpu_temperature_celsius": 85.0,
    "gpu_memory_temperature_celsius": 95.0,
    "gpu_memory_used_ratio": 0.9,
    "gpu_utilization_ratio": 0.99,
    "gpu_power_watts": 690.0,
    "gpu_mig_fragmentation_ratio": 0.3,
    "gpu_recovery_action": 0.5,
    "gpu_row_remap_pending": 0.5,
    "gpu_row_remap_failure": 0.5,
    "gpu_memory_unrepairable": 0.5,
}


def fleet(count: int) -> list[Gpu]:
    return [gpu(n, host=f"node-{n // 8}", rack=f"r{n // 64}", pool=f"p{n // 2048}") for n in range(count)]


def calm(metric: str) -> float:
    spec = METRICS[metric]
    if spec.kind is MetricKind.COUNTER or spec.unit in ("bool", "action", "bits"):
        return 0.0
    if spec.maximum == 1:
        return 0.5
    return {
        "gpu_temperature_slowdown_celsius": 89.0,
        "gpu_temperature_shutdown_celsius": 92.0,
        "gpu_memory_temperature_max_operating_celsius": 95.0,
        "gpu_bad_pages_max": 256.0,
    }.get(metric, 40.0)


PLAIN = {spec.name: calm(spec.name) for spec in METRICS.values() if spec.entity == "gpu" and not spec.label}
LINKS = {variant("gpu_nvlink_recovery_errors_total", "link", str(n)): 0.0 for n in range(18)}


def values_of(n: int, step: int) -> dict[str, float]:
    return PLAIN | LINKS | {"gpu_mig_fragmentation_ratio": 0.1, "gpu_power_watts": 300.0 + (n + step) % 50}


def readings(gpus: list[Gpu], step: int) -> list[Reading]:
    """Values lie in rows under names that the fleet has in common, as those that agents push do."""
    found = [values_of(n, step) for n in range(len(gpus))]
    return [
        Reading(which, T0 + step * MINUTE, NumberRow(names_of(tuple(values)), array("d", values.values())))
        for which, values in zip(gpus, found, strict=True)
    ]


def best(function: Callable[[int], object], runs: int) -> float:
    taken = []
    for n in range(runs):
        begun = time.process_time()
        function(n)
        taken.append(time.process_time() - begun)
    return min(taken)


def naive(found: list[Reading], since: dict[tuple[str, str], int], active: set[tuple[str, str]]) -> None:
    """What a rule engine without arrays does for each GPU and rule: look up, compare, keep the timer."""
    for reading in found:
        for metric, level in LEVELS.items():
            key = (metric, reading.gpu.uuid)
            value = reading.values.get(metric)
            if value is not None and value > level:
                if reading.at_ms - since.setdefault(key, reading.at_ms) >= MINUTE:
                    active.add(key)
            else:
                since.pop(key, None)
                active.discard(key)


def threshold_rules(copies: int) -> str:
    return "\n".join(
        f'[[rules]]\nname = "r{n}_{i}"\n{HEAD}for = "1m"\nalert = "{{where}}"\n'
        f'all = [{{ kind = "threshold", metric = "{metric}", above = {level} }}]'
        for n in range(copies)
        for i, (metric, level) in enumerate(LEVELS.items())
    )


def test_rules_cost_less_than_a_loop_over_gpus() -> None:
    gpus = fleet(4000)
    copies = 10
    engine = RuleEngine(parse_rules(threshold_rules(copies), "x"))
    steps = [readings(gpus, n) for n in range(5)]
    engine.step(Inputs(T0, steps[0]))
    ours = best(lambda n: engine.step(Inputs(T0 + (n + 1) * MINUTE, steps[n + 1])), 4)
    since: dict[tuple[str, str], int] = {}
    active: set[tuple[str, str]] = set()
    dicts = [[replace(one, values=dict(one.values)) for one in step] for step in steps[:2]]  # quicker in a loop

    def loop(n: int) -> None:
        for _ in range(copies):
            naive(dicts[n], since, active)

    assert ours * 2 < best(loop, 2)


def test_ten_times_the_gpus_cost_less_than_thirty_times_the_time() -> None:
    def cost(count: int) -> float:
        engine = RuleEngine(load_rules())
        gpus = fleet(count)
        steps = [readings(gpus, n) for n in range(4)]
        engine.step(Inputs(T0, steps[0]))
        return best(lambda n: engine.step(Inputs(T0 + (n + 1) * MINUTE, steps[n + 1])), 3)

    assert cost(4000) < 30 * cost(400)


SIZES = [pytest.param(count, rounds, id=f"{count}_GPUs") for count, rounds in ((4, 200), (1000, 10), (10_000, 3))]
GROUP = "an evaluation of the rules"


@pytest.mark.benchmark(group=GROUP)
@pytest.mark.parametrize(("count", "rounds"), SIZES)
def test_step_of_the_shipped_rules(benchmark: BenchmarkFixture, count: int, rounds: int) -> None:
    engine = RuleEngine(load_rules())
    gpus = fleet(count)
    step = iter(range(rounds + 1))

    def setup() -> tuple[tuple[Inputs], dict[str, object]]:
        n = next(step)
        return (Inputs(T0 + n * MINUTE, readings(gpus, n)),), {}

    evaluation = benchmark.pedantic(engine.step, setup=setup, rounds=rounds, warmup_rounds=1)
    assert evaluation.dropped == {}
    assert evaluation.active == []


@pytest.mark.benchmark(group=GROUP)
@pytest.mark.parametrize(("count", "rounds"), SIZES)
def test_baseline_loop_over_gpus(benchmark: BenchmarkFixture, count: int, rounds: int) -> None:
    """As many thresholds as rules ship, looked at one after the other."""
    gpus, copies = fleet(count), len(load_rules()) // len(LEVELS)
    since: dict[tuple[str, str], int] = {}
    active: set[tuple[str, str]] = set()
    step = iter(range(rounds + 1))

    def setup() -> tuple[tuple[list[Reading]], dict[str, object]]:
        return (readings(gpus, next(step)),), {}

    def loop(found: list[Reading]) -> None:
        for _ in range(copies):
            naive(found, since, active)

    benchmark.pedantic(loop, setup=setup, rounds=rounds, warmup_rounds=1)
    assert not active

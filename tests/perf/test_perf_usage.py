"""Counting who uses 10,000 GPUs: what it adds to taking in their readings, against decoding those readings."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from tocsin.accounting.prices import PriceList
from tocsin.accounting.table import UsageTable
from tocsin.config.usage import UsageSettings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import SECOND, ManualClock
from tocsin.domain.metrics import METRICS
from tocsin.domain.reading import Owner, Reading
from tocsin.runtime.brain.usage_keeper import WRITE_SECONDS, UsageKeeper, UsageParts
from tocsin.store.line_protocol.decode import decode
from tocsin.store.line_protocol.encode import encode
from tocsin.store.memory import MemoryStore
from tocsin.telemetry.metrics import OwnMetrics
from tocsin_testing.builders import T0, gpu

GPUS, EVERY_MS, NAMES = 10_000, 10 * SECOND, 60
GROUP = f"usage of {GPUS} GPUs with {NAMES} values, one reading of each"
MOST = 0.2
"""Of the time that decoding the same readings takes."""
MOST_WRITING = 0.02
"""The same of what is written every five minutes, against decoding the readings of these."""


def readings(at_ms: int = T0) -> list[Reading]:
    names = [name for name, spec in METRICS.items() if not spec.label and name.startswith("gpu_")][:NAMES]
    owner = [(Owner(n, "train", slurm_job=str(n // 16), user="ann"),) for n in range(GPUS)]
    return [
        Reading(gpu(n % 8 + n * 100, host=f"node-{n // 8}"), at_ms, dict.fromkeys(names, 0.5), owners=owner[n])
        for n in range(GPUS)
    ]


def keeper(path: Path | None) -> UsageKeeper:
    gpus = {one.gpu.uuid: one.gpu for one in readings()}
    clock, settings = ManualClock(T0), UsageSettings()
    return UsageKeeper(
        MemoryStore(), UsageParts(UsageTable(path), PriceList()), settings, clock, OwnMetrics(), gpus.get, dict
    )


class Taking:
    """Gives the next reading of every GPU to a keeper; `rounds` readings of each are made beforehand."""

    def __init__(self, rounds: int, path: Path | None = None) -> None:
        self.keeper, made = keeper(path), readings()
        instants = range(T0 + EVERY_MS, T0 + (rounds + 1) * EVERY_MS, EVERY_MS)
        self._next = iter([[replace(one, at_ms=at_ms) for one in made] for at_ms in instants])

    def __call__(self) -> int:
        made = next(self._next)
        for first in range(0, GPUS, 8):
            self.keeper.take(made[first : first + 8])
        return len(made)


def texts() -> list[str]:
    made = readings()
    return [encode(Batch(made[first : first + 8])) for first in range(0, GPUS, 8)]


def decoded(lines: list[str]) -> int:
    """The baseline: what the brain does with every reading before it is counted."""
    return sum(len(decode(one, precision="ms", now_ms=T0).batch.readings) for one in lines)


def fastest(work: Callable[[], object], rounds: int = 4) -> float:
    """Processor seconds of the quickest of `rounds`: a busy neighbour does not count."""
    taken = []
    for _ in range(rounds):
        begun = time.process_time()
        work()
        taken.append(time.process_time() - begun)
    return min(taken)


def test_counting_adds_little_to_taking_readings_in(tmp_path: Path) -> None:
    taking, lines = Taking(5, tmp_path / "u.db"), texts()
    taking()
    ours, theirs = fastest(taking), fastest(lambda: decoded(lines), 2)
    assert ours <= MOST * theirs, f"{ours:.3f} s against {theirs:.3f} s"
    writing = fastest(taking.keeper.write, 1)
    between = WRITE_SECONDS * SECOND / EVERY_MS
    assert writing <= MOST_WRITING * between * theirs, f"{writing:.3f} s against {between * theirs:.3f} s"
    assert taking.keeper.table.groups(0, 10**6, ["user"])[0].row.seconds[0] == pytest.approx(GPUS * 40)


@pytest.mark.benchmark(group=GROUP)
def test_usage(benchmark: BenchmarkFixture) -> None:
    assert benchmark.pedantic(Taking(3), rounds=3) == GPUS


@pytest.mark.benchmark(group=GROUP)
def test_baseline_decode(benchmark: BenchmarkFixture) -> None:
    assert benchmark.pedantic(decoded, (texts(),), rounds=3) == GPUS

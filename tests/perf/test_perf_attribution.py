"""Owners of the processes on eight GPUs: what a reading pays, against reading the same files of /proc and no more."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from tocsin.collector.attribution import Attribution, AttributionCompanion
from tocsin.domain.batch import Batch
from tocsin.domain.metrics import METRICS, variant
from tocsin.domain.reading import Reading
from tocsin_testing.builders import T0, gpu

GPUS, NAMES = 8, 130
GROUP = f"owners on {GPUS} GPUs with {NAMES} values and a process each"


def _readings() -> Batch:
    links = [variant("gpu_nvlink_up", "link", str(n)) for n in range(18)]
    names = [*(name for name, spec in METRICS.items() if not spec.label), *links][-NAMES + 1 :]
    owned = [variant("gpu_process_memory_used_bytes", "pid", str(1000 + n)) for n in range(GPUS)]
    return Batch(tuple(Reading(gpu(n), T0, dict.fromkeys([*names, key], 1.0)) for n, key in enumerate(owned)))


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A made-up /proc with a process for each GPU."""
    for pid in range(1000, 1000 + GPUS):
        folder = tmp_path / str(pid)
        folder.mkdir()
        (folder / "stat").write_text(f"{pid} (python3) S {' '.join(['1'] * 18)} 4711 {' '.join(['0'] * 30)}\n")
        (folder / "cgroup").write_text("0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0\n")
        (folder / "comm").write_text("python3\n")
        (folder / "environ").write_text("")
    return tmp_path


def bare(proc: Path) -> int:
    """The baseline: the file that tells one process from the next with its number, read of each."""
    return sum(len((proc / str(pid) / "stat").read_bytes()) for pid in range(1000, 1000 + GPUS))


def fastest(work: Callable[[], object], rounds: int = 7, times: int = 50) -> float:
    """Processor seconds of the quickest of `rounds`: a busy neighbour does not count."""
    taken = []
    for _ in range(rounds):
        begun = time.process_time()
        for _ in range(times):
            work()
        taken.append(time.process_time() - begun)
    return min(taken) / times


def test_owners_cost_at_most_what_reading_the_files_does(proc: Path) -> None:
    batch, companion = _readings(), AttributionCompanion(Attribution(proc, proc))
    assert all(reading.owners for reading in companion.enrich(batch, T0).readings)
    ours, files = fastest(lambda: companion.enrich(batch, T0)), fastest(lambda: bare(proc))
    assert ours <= 1.5 * files, f"{ours * 1e3:.3f} ms against {files * 1e3:.3f} ms"


@pytest.mark.benchmark(group=GROUP)
def test_owners(benchmark: BenchmarkFixture, proc: Path) -> None:
    batch, companion = _readings(), AttributionCompanion(Attribution(proc, proc))
    assert len(benchmark(companion.enrich, batch, T0).readings) == GPUS


@pytest.mark.benchmark(group=GROUP)
def test_baseline_files(benchmark: BenchmarkFixture, proc: Path) -> None:
    assert benchmark(bare, proc) > 0

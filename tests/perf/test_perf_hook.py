"""What the hook takes of a training step: its own work in CPU time, as a share of the same loop without it.

0.1 % of a step is less than what two runs of one loop differ by. So everything that the hook adds to the loop is
measured by itself and laid over the interval in which it happens once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from tocsin.hook.memory import SNAPSHOT_SHARE, TorchMemory, free_memory
from tocsin.hook.watch import SAMPLE_SECONDS, TURN_SECONDS
from tocsin_testing.fake_torch import MIB, block, install, segment
from tocsin_testing.hook_pair import Pair, pair

LIMIT = 0.001
"""Most of a step that the hook may take."""
STEP_SECONDS = 0.05
"""A short step of training on one GPU; a longer one makes every share smaller but that of the timed work."""
BLOCKS = 4000
"""Blocks of an allocator in the middle of training a large model."""


def best(work: Callable[[], object], runs: int, times: int = 1) -> float:
    """Least CPU seconds of this thread that one `work` took."""
    taken = []
    for _ in range(runs):
        begun = time.thread_time()
        for _ in range(times):
            work()
        taken.append((time.thread_time() - begun) / times)
    return min(taken)


def busy_allocator() -> list[dict[str, Any]]:
    used, free = block(2 * MIB, "active_allocated"), block(MIB)
    return [segment(*[used, free] * 10) for _ in range(BLOCKS // 20)]


@pytest.fixture
def both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    install(monkeypatch, busy_allocator())
    with pair(tmp_path) as made:
        made.settle()
        yield made


def shares(both: Pair) -> dict[str, float]:
    """Share of the time for each thing that the hook does, with steps of `STEP_SECONDS`."""
    watch = both.watch
    read = TorchMemory(both.clock.monotonic, 1e9)
    read.read()

    def sample() -> None:
        watch._next_sample = 0.0
        watch._sample()
        watch._flush()

    both.clock.advance(100_000)
    sample()
    turn = best(watch.turn, 20)
    return {
        "counting, each step": best(watch.step, 20, 2000) / STEP_SECONDS,
        "sampling, each interval": best(sample, 50) / SAMPLE_SECONDS,
        "the thread, each turn": turn / TURN_SECONDS,
        "snapshots, at most": SNAPSHOT_SHARE,
    }


def test_all_of_it_is_within_a_thousandth_of_a_step(both: Pair, benchmark: BenchmarkFixture) -> None:
    """The loop without the hook is `STEP_SECONDS` a step: what is named here comes on top of it."""
    found = shares(both)
    for name, share in found.items():
        benchmark.extra_info[name] = f"{100 * share:.4f} % of the loop without the hook"
    benchmark.extra_info["together"] = f"{100 * sum(found.values()):.4f} %"
    benchmark(both.watch.step)
    assert sum(found.values()) < LIMIT, found


def test_a_snapshot_of_many_blocks_is_summed_up_within_its_bound(benchmark: BenchmarkFixture) -> None:
    """One pass in Python over the blocks, against the bound of 50 ms that the whole snapshot has."""
    segments = busy_allocator()
    found = benchmark(free_memory, segments)
    assert found[0]["free"] == BLOCKS // 2 * MIB
    assert best(lambda: free_memory(segments), 5) < 0.025


@pytest.mark.gpu
def test_a_real_allocator_within_a_thousandth_of_a_step(tmp_path: Path, benchmark: BenchmarkFixture) -> None:
    """The same with PyTorch's own allocator, holding a model's worth of blocks."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("PyTorch finds no GPU")
    held = [torch.empty(n % 64 * 16384 + 512, device="cuda") for n in range(BLOCKS)]
    del held[::2]
    with pair(tmp_path) as both:
        both.settle()
        found = shares(both)
        for name, share in found.items():
            benchmark.extra_info[name] = f"{100 * share:.4f} %"
        memory = TorchMemory(time.perf_counter, 1e9)
        benchmark(memory.read)
        assert sum(found.values()) < LIMIT, found

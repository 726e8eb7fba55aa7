"""A scrape of eight GPUs: our reader against the parser of prometheus_client over the same text."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pytest_benchmark.fixture import BenchmarkFixture

from tocsin.collector.dcgm.exporter import read_page
from tocsin.collector.dcgm.exposition import Heads
from tocsin.collector.dcgm.fields import names_numbered, readable_ids
from tocsin.collector.source import NodeIdentity
from tocsin_testing.dcgm_pages import line

GPUS, METRICS = 8, 60
NAMES = [names_numbered(number)[0].removeprefix("DCGM_FI_") for number in readable_ids()][:METRICS]
LABELS = {"DCGM_FI_DRIVER_VERSION": "550.90.07", "container": "", "namespace": "", "pod": ""}
PAGE = "".join(line(name, 0, gpu, **LABELS) for name in NAMES for gpu in range(GPUS))
GROUP = f"scrape of {GPUS} GPUs and {METRICS} metrics"


def by_library() -> int:
    """The baseline: samples of the page, nothing made of them."""
    return sum(len(family.samples) for family in text_string_to_metric_families(PAGE))


def fastest(work: Callable[[], object], rounds: int = 5) -> float:
    """Processor seconds of the quickest of `rounds`: a busy neighbour does not count."""
    taken = []
    for _ in range(rounds):
        begun = time.process_time()
        work()
        taken.append(time.process_time() - begun)
    return min(taken)


@pytest.fixture
def heads() -> Heads:
    """As they are after the first scrape."""
    known = Heads(NodeIdentity())
    read_page(PAGE, known)
    return known


def test_a_scrape_costs_at_most_a_quarter_of_what_the_library_takes(heads: Heads) -> None:
    assert sum(len(row.values) for row in read_page(PAGE, heads).rows.values()) == by_library() == GPUS * METRICS
    ours, theirs = fastest(lambda: read_page(PAGE, heads)), fastest(by_library)
    assert theirs / ours >= 4.0, f"{ours * 1000:.2f} ms against {theirs * 1000:.2f} ms"


@pytest.mark.benchmark(group=GROUP)
def test_scrape(benchmark: BenchmarkFixture, heads: Heads) -> None:
    assert len(benchmark(read_page, PAGE, heads).rows) == GPUS


@pytest.mark.benchmark(group=GROUP)
def test_first_scrape(benchmark: BenchmarkFixture) -> None:
    assert len(benchmark(lambda: read_page(PAGE, Heads(NodeIdentity()))).rows) == GPUS


@pytest.mark.benchmark(group=GROUP)
def test_baseline_prometheus_client(benchmark: BenchmarkFixture) -> None:
    assert benchmark(by_library) == GPUS * METRICS

"""A scrape of eight GPUs: our reader against the parser of prometheus_client over the same text."""

from __future__ import annotations

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
PAGE = "".join(line(name, 1, gpu, **LABELS) for name in NAMES for gpu in range(GPUS))
GROUP = f"scrape of {GPUS} GPUs and {METRICS} metrics"


def by_library() -> int:
    """The baseline: samples of the page, nothing made of them."""
    return sum(len(family.samples) for family in text_string_to_metric_families(PAGE))


@pytest.fixture
def heads() -> Heads:
    """As they are after the first scrape."""
    known = Heads(NodeIdentity())
    read_page(PAGE, known)
    return known


def test_a_scrape_finds_every_sample_of_the_library(heads: Heads) -> None:
    assert sum(len(row.values) for row in read_page(PAGE, heads).rows.values()) == by_library() == GPUS * METRICS


@pytest.mark.benchmark(group=GROUP)
def test_scrape(benchmark: BenchmarkFixture, heads: Heads) -> None:
    assert len(benchmark(read_page, PAGE, heads).rows) == GPUS


@pytest.mark.benchmark(group=GROUP)
def test_first_scrape(benchmark: BenchmarkFixture) -> None:
    assert len(benchmark(lambda: read_page(PAGE, Heads(NodeIdentity()))).rows) == GPUS


@pytest.mark.benchmark(group=GROUP)
def test_baseline_prometheus_client(benchmark: BenchmarkFixture) -> None:
    assert benchmark(by_library) == GPUS * METRICS

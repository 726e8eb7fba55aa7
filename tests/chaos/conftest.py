"""A node of the mock library, and a store for its agent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tocsin_testing import servers
from tocsin_testing.chaos import GPUS
from tocsin_testing.mock_gpus import h100
from tocsin_testing.mock_nvml import MockFleet


@pytest.fixture
def fleet(tmp_path: Path) -> MockFleet:
    return MockFleet(tmp_path, [h100(n) for n in range(GPUS)])


@pytest.fixture
def uuids(fleet: MockFleet) -> list[str]:
    return [gpu.uuid for gpu in fleet.gpus.values()]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[str]:
    # Without the flag this server keeps a sample that was sent twice as two equal ones.
    with servers.victoria_metrics(tmp_path, "-dedup.minScrapeInterval=1ms") as url:
        yield url

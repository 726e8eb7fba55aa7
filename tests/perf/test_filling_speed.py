"""A look at memory and fragmentation of 8,000 GPUs, beside numpy's fit of 80 one by one; `make bench` prints both."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tocsin.forecaster.capacity.filling import PAST, outlook

GROUP = "a look at memory and fragmentation ahead"


def rows(count: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    rng = np.random.default_rng(1)
    return np.asarray(
        0.6 + 0.001 * rng.standard_normal((count, PAST)) + 0.001 * rng.random((count, 1)) * np.arange(PAST)
    )


@pytest.mark.benchmark(group=GROUP)
def test_outlook_of_8000(benchmark: Any) -> None:
    values = rows(8_000)
    assert benchmark.pedantic(outlook, (values, 0.98), rounds=3).steps.shape == (8_000,)


@pytest.mark.benchmark(group=GROUP)
def test_baseline_polyfit_of_80(benchmark: Any) -> None:
    values = rows(80)
    at = np.arange(PAST)
    found = benchmark.pedantic(lambda: [np.polyfit(at, row, 1) for row in values], rounds=3)
    assert len(found) == 80

"""How long one step of a simulated fleet takes, readings among it; `make bench` prints it."""

from __future__ import annotations

from typing import Any

import pytest

from tocsin_testing.simulated import fleet


@pytest.mark.parametrize("gpus", [256, 10_000])
def test_step(benchmark: Any, gpus: int) -> None:
    simulated = fleet(gpus, scale=1.0)
    simulated.step()
    batch = benchmark.pedantic(simulated.step, rounds=5)
    assert len(batch.readings) == gpus

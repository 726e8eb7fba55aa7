"""The service's own figures of free GPUs, from readings to the registry."""

from __future__ import annotations

from pathlib import Path

import pytest

from tocsin.config.settings import Settings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import MINUTE, ManualClock
from tocsin.runtime.brain.assembly import open_brain
from tocsin_testing.builders import T0, gpu, reading


@pytest.mark.parametrize(
    ("mix", "fragmented", "unusable"),
    [([], 3.0, 3.0), ([{"gpus": 2, "share": 3}, {"gpus": 4, "share": 1}], 0.75, 0.0)],
)
def test_free_fragmented_unusable_and_stranded_gpus(
    tmp_path: Path, mix: list[dict[str, float]], fragmented: float, unusable: float
) -> None:
    settings = Settings.model_validate(
        {
            "store": {"path": tmp_path / "store.db"},
            "journal": {"path": tmp_path / "journal.db"},
            "forecast": {"worker": False},
            "fragmentation": {"task_mix": mix},
        }
    )
    clock = ManualClock(T0)
    running = open_brain(settings, clock, propose=True)
    try:
        clock.advance(MINUTE)
        idle = {n: n < 8 or 8 <= n < 11 for n in range(16)}
        running.brain.accept(
            Batch(
                [
                    reading(
                        gpu(n, host=f"node-{n // 8}"), clock.now_ms(),
                        utilization_ratio=0.0 if idle[n] else 0.9, processes=0.0 if idle[n] else 1.0,
                    )
                    for n in range(16)
                ]
            )
        )  # fmt: skip
        running.brain.tick()
        own = running.brain.metrics
        assert own.value("tocsin_fleet_free_gpus") == 11
        assert own.value("tocsin_fleet_fragmented_gpus") == fragmented
        assert own.value("tocsin_fleet_unusable_gpus") == unusable
        assert own.value("tocsin_fleet_stranded_gpus") == 3
    finally:
        running.stop()

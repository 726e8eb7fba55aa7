"""A clock that is set back does not put off what NVML's source has to try again."""

from __future__ import annotations

from pathlib import Path

from tocsin.collector.nvml.library import PynvmlLibrary
from tocsin.collector.nvml.source import FIRST_RETRY_MS, HungCalls, NvmlSource
from tocsin.collector.source import NodeIdentity
from tocsin.domain.clock import HOUR, SECOND
from tocsin_testing.builders import T0
from tocsin_testing.mock_gpus import h100
from tocsin_testing.mock_nvml import MockFleet


def test_a_driver_that_came_back_is_opened_at_once(tmp_path: Path) -> None:
    fleet = MockFleet(tmp_path, [h100(0)])
    with fleet.loaded():
        source = NvmlSource(PynvmlLibrary(), NodeIdentity("node-1"))
        assert source.read(T0).readings[0].values
        fleet.system.fail("nvmlInitWithFlags", "DRIVER_NOT_LOADED")
        fleet.reload()
        for n in range(8):
            assert not source.read(T0 + n * 60 * SECOND).readings[0].values
        fleet.heal()
        assert source.read(T0 - HOUR).readings[0].values
        source.close()


def test_a_reader_that_hangs_is_tried_again() -> None:
    stuck = HungCalls()
    stuck.note({"GPU-1"}, T0)
    assert not stuck.due("GPU-1", T0 + FIRST_RETRY_MS - 1)
    assert stuck.due("GPU-1", T0 - HOUR)
    assert not stuck.due("GPU-1", T0 - HOUR + 1)

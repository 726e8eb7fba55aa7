"""A GPU that was lost before the agent started still has a reading, and a name where the driver's files tell it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tocsin.collector.nvml.device import DriverGpu, driver_gpus, name_closed
from tocsin.collector.nvml.library import PynvmlLibrary
from tocsin.collector.nvml.source import NvmlSource
from tocsin.collector.source import NodeIdentity
from tocsin.domain.event import EventKind
from tocsin.domain.reading import Missing
from tocsin_testing.builders import T0
from tocsin_testing.mock_gpus import h100
from tocsin_testing.mock_nvml import MockFleet

INFORMATION = """Model: \t\t NVIDIA H100 80GB HBM3
IRQ:   \t\t 112
GPU UUID: \t {uuid}
Video BIOS: \t 96.00.74.00.09
Bus Type: \t PCIe
Bus Location: \t {bus}
Device Minor: \t {minor}
GPU Excluded:\t No
"""
UUIDS = ["GPU-00000000-3e97-4000-8000-000000000000", "GPU-lost-one"]


def files(folder: Path, *uuids: str) -> Path:
    for minor, uuid in enumerate(uuids):
        bus = f"0000:{0x1A + minor:02x}:00.0"
        (folder / bus).mkdir(parents=True)
        (folder / bus / "information").write_text(INFORMATION.format(uuid=uuid, bus=bus, minor=minor))
    return folder


def test_the_drivers_files_name_its_gpus(tmp_path: Path) -> None:
    found = driver_gpus(files(tmp_path, *UUIDS))
    assert [gpu.uuid for gpu in found] == UUIDS
    assert found[1] == DriverGpu("00000000:1b:00.0", "GPU-lost-one", "NVIDIA H100 80GB HBM3")


def test_a_name_that_the_driver_has_lost_is_empty_and_no_files_are_nobody(tmp_path: Path) -> None:
    assert driver_gpus(files(tmp_path / "a", "GPU-????????-????-????-????-????????????"))[0].uuid == ""
    assert driver_gpus(tmp_path / "nothing") == []


def test_closed_indices_are_named_only_where_it_is_certain() -> None:
    gpus = [DriverGpu(f"00000000:0{bus}:00.0", f"GPU-{bus}", "") for bus in range(4)]
    named = name_closed([3, 1], ["GPU-0", "GPU-2"], gpus)
    assert {index: gpu.uuid for index, gpu in named.items()} == {1: "GPU-1", 3: "GPU-3"}
    assert name_closed([1], ["GPU-0"], gpus) == {}


@pytest.mark.parametrize(
    ("uuids", "expected"), [(UUIDS, "GPU-lost-one"), ([], "GPU-unknown-node-1-1")], ids=["named", "by its place"]
)
def test_a_gpu_lost_before_the_start_is_reported(tmp_path: Path, uuids: list[str], expected: str) -> None:
    fleet = MockFleet(tmp_path, [h100(0), h100(1)])
    real = fleet.gpus[1]
    real.lose()
    fleet.apply()
    with fleet.loaded():
        source = NvmlSource(PynvmlLibrary(), NodeIdentity("node-1"), driver_files=files(tmp_path / "proc", *uuids))
        batch = source.read(T0)
        source.close()
    well, lost = batch.readings
    assert well.values
    assert (lost.gpu.uuid, lost.gpu.index, lost.values) == (expected, 1, {})
    assert set(lost.missing.values()) == {Missing.LOST}
    assert [(event.kind, event.gpu) for event in batch.events] == [(EventKind.GPU_LOST, expected)]


def test_a_gpu_that_belongs_to_somebody_else_is_no_loss(tmp_path: Path) -> None:
    fleet = MockFleet(tmp_path, [h100(0), h100(1)])
    fleet.gpus[1].fail("nvmlDeviceGetUUID", "NO_PERMISSION")
    fleet.apply()
    with fleet.loaded():
        source = NvmlSource(PynvmlLibrary(), NodeIdentity("node-1"), driver_files=tmp_path / "proc")
        batch = source.read(T0)
        source.close()
    assert len(batch.readings) == 1
    assert batch.events == ()

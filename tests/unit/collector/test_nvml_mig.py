"""MIG layouts and vGPU instances, over recorded answers that are extended by constructed ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tocsin.collector.nvml import events as nvml_events
from tocsin.collector.nvml.library import Code
from tocsin.collector.nvml.source import NvmlSource
from tocsin.collector.source import NodeIdentity
from tocsin.domain.clock import MINUTE
from tocsin.domain.fragmentation import SEVEN_SLICE, mig_capacity, mig_fragmentation
from tocsin.domain.reading import MIG_START, Missing, Reading
from tocsin_testing.builders import T0
from tocsin_testing.nvml_replay import RecordedNvml, devices

GIB = 2**30
CAPACITY = "nvmlDeviceGetGpuInstanceRemainingCapacity"
PROFILES: dict[str, tuple[int, int, int, str]] = {
    "1g": (0, 19, 7, "1g.5gb"),
    "2g": (1, 14, 3, "2g.10gb"),
    "3g": (2, 9, 2, "3g.20gb"),
    "4g": (3, 5, 1, "4g.20gb"),
    "7g": (4, 0, 1, "7g.40gb"),
    "1g+me": (7, 20, 1, "1g.5gb+me"),
    "1g.double": (9, 15, 4, "1g.10gb"),
}
"""Profile of the template: constant of the header, id on this product, most instances, name (A100, as captured)."""
SHAPES = dict.fromkeys((name for name in PROFILES if "+" not in name), 1.0)
"""All shapes alike; a media variant has the slices of its shape and weighs nothing of its own."""


@pytest.fixture(autouse=True)
def quick_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing a source waits for its event thread, which waits in the driver."""
    monkeypatch.setattr(nvml_events, "WAIT_MS", 10)


@pytest.fixture
def a100() -> RecordedNvml:
    library = RecordedNvml(devices("a100-healthy"))
    library.devices[0]["nvmlDeviceGetMigMode"] = {"value": [1, 1]}
    library.devices[0] |= described()
    return library


def described() -> dict[str, Any]:
    """What the driver says of the profiles of an A100, with a media variant of the smallest."""
    answers: dict[str, Any] = {}
    for shape, (constant, number, most, name) in PROFILES.items():
        profile = SEVEN_SLICE.profiles[shape]
        info = {"id": number, "sliceCount": profile.compute_slices, "instanceCount": most, "memorySizeMB": 4864}
        answers[f"nvmlDeviceGetGpuInstanceProfileInfo({constant},)"] = {"value": info | {"name": f"MIG {name}"}}
        places = [[start, profile.memory_slices] for start in profile.starts]
        answers[f"nvmlDeviceGetGpuInstancePossiblePlacements({number},)"] = {"value": places}
    return answers


def split(library: RecordedNvml, *layout: tuple[str, int], numbers: Sequence[int] | None = None) -> None:
    """Instances of a profile at a slice; the capacity is what the placement template leaves."""
    library.migs[0] = []
    for i, (shape, start) in enumerate(layout):
        _, number, _, name = PROFILES[shape]
        instance = (numbers or range(1, 20))[i]
        info = {"profileId": number, "placement": {"start": start, "size": SEVEN_SLICE.profiles[shape].memory_slices}}
        memory = {"version": 0, "total": 20 * GIB, "reserved": 0, "free": 10 * GIB, "used": 10 * GIB}
        library.migs[0].append(
            {
                "nvmlDeviceGetUUID": {"value": f"MIG-{i}"},
                "nvmlDeviceGetName": {"value": f"NVIDIA A100-SXM4-40GB MIG {name}"},
                "nvmlDeviceGetGpuInstanceId": {"value": instance},
                "nvmlDeviceGetMemoryInfo(33554472,)": {"value": memory},
                "nvmlDeviceGetComputeRunningProcesses": {"value": [{"pid": 77, "usedGpuMemory": GIB}]},
            }
        )
        library.placements[instance] = info
    for shape, count in mig_capacity(tuple(dict.fromkeys(layout))).items():
        library.devices[0][f"{CAPACITY}({PROFILES[shape][1]},)"] = {"value": count}


@pytest.fixture
def opened(a100: RecordedNvml) -> Iterator[list[NvmlSource]]:
    sources: list[NvmlSource] = []
    yield sources
    for source in sources:
        source.close()


def parent(library: RecordedNvml, opened: list[NvmlSource]) -> Reading:
    source = NvmlSource(library, NodeIdentity("node-1"), 10.0)
    opened.append(source)
    return source.read(T0).readings[0]


@pytest.mark.parametrize(
    "layout",
    [
        (),
        (("3g", 4),),
        (("3g", 0),),
        (("1g", 6),),
        (("1g", 0),),
        (("4g", 0), ("2g", 4)),
        (("4g", 0), ("2g", 4), ("1g", 6)),
    ],
)
def test_capacity_and_fragmentation_follow_the_placements(
    a100: RecordedNvml, opened: list[NvmlSource], layout: tuple[tuple[str, int], ...]
) -> None:
    split(a100, *layout)
    values = parent(a100, opened).values
    for shape, count in mig_capacity(layout).items():
        assert values[f'gpu_mig_remaining_capacity{{profile="{PROFILES[shape][3]}"}}'] == count
    expected = mig_fragmentation(layout, SHAPES)
    assert values["gpu_mig_fragmentation_ratio"] == pytest.approx(expected)


def test_an_instance_tells_where_it_begins(a100: RecordedNvml, opened: list[NvmlSource]) -> None:
    split(a100, ("4g", 0), ("2g", 4))
    parent(a100, opened)
    starts = {gpu.uuid: gpu.labels.get(MIG_START) for gpu in opened[0].gpus() if gpu.is_mig}
    assert starts == {"MIG-0": "0", "MIG-1": "4"}


def test_a_media_variant_takes_the_slices_of_its_shape(a100: RecordedNvml, opened: list[NvmlSource]) -> None:
    split(a100, ("1g", 0))
    a100.placements[1]["profileId"] = 20
    expected = mig_fragmentation((("1g", 0),), SHAPES)
    assert parent(a100, opened).values["gpu_mig_fragmentation_ratio"] == pytest.approx(expected)


def test_two_compute_instances_of_one_gpu_instance_are_one_placement(
    a100: RecordedNvml, opened: list[NvmlSource]
) -> None:
    split(a100, ("3g", 4), ("3g", 4), numbers=(2, 2))
    reading = parent(a100, opened)
    assert reading.values["gpu_mig_fragmentation_ratio"] == 0
    assert reading.values['gpu_mig_instances{profile="3g.20gb"}'] == 2


def test_without_privilege_the_layout_is_denied_and_the_instances_stay(
    a100: RecordedNvml, opened: list[NvmlSource]
) -> None:
    split(a100, ("3g", 4))
    a100.failures[0, CAPACITY] = Code.NO_PERMISSION
    a100.failures[0, "nvmlDeviceGetGpuInstancePossiblePlacements"] = Code.NO_PERMISSION
    reading = parent(a100, opened)
    denied = {key.split("{")[0] for key, reason in reading.missing.items() if reason is Missing.DENIED}
    assert {"gpu_mig_remaining_capacity", "gpu_mig_fragmentation_ratio"} <= denied
    assert reading.values['gpu_mig_instance_memory_used_ratio{instance="MIG-0"}'] == 0.5
    asked = a100.calls.count(CAPACITY)
    opened[0].read(T0 + MINUTE)
    assert a100.calls.count(CAPACITY) == asked, "a denial is remembered"


def test_a_layout_that_changed_in_between_is_blank(a100: RecordedNvml, opened: list[NvmlSource]) -> None:
    split(a100, ("3g", 4), ("3g", 4))
    assert parent(a100, opened).missing["gpu_mig_fragmentation_ratio"] is Missing.BLANK


def test_an_instance_has_its_own_activity_and_processes(a100: RecordedNvml, opened: list[NvmlSource]) -> None:
    split(a100, ("3g", 4))
    a100.gpm_values[0] = {2: 80.0, 20: 1.0}
    parent(a100, opened)
    (instance,) = (r for r in opened[0].read(T0 + 5_000).readings if r.gpu.parent)
    assert instance.values["gpu_sm_active_ratio"] == 0.8
    assert "gpu_pcie_transmit_bytes_per_second" not in {**instance.values, **instance.missing}, "links are the GPU's"
    assert instance.values['gpu_process_memory_used_bytes{pid="77"}'] == GIB
    assert instance.missing["gpu_process_sm_utilization_ratio"] is Missing.UNSUPPORTED


def test_without_mig_there_is_no_layout(opened: list[NvmlSource]) -> None:
    library = RecordedNvml(devices("a100-healthy"))
    reading = parent(library, opened)
    assert not [key for key in (*reading.values, *reading.missing) if "remaining_capacity" in key or "fragment" in key]
    assert CAPACITY not in library.calls


def test_vgpus_are_counted_by_type_and_have_memory(opened: list[NvmlSource]) -> None:
    library = RecordedNvml(devices("h100-healthy")[:1])
    library.devices[0]["nvmlDeviceGetActiveVgpus"] = {"value": [7, 8]}
    library.vgpus = {
        7: {"nvmlVgpuInstanceGetUUID": "vgpu-7", "nvmlVgpuInstanceGetType": 900, "nvmlVgpuInstanceGetFbUsage": 4 * GIB},
        8: {"nvmlVgpuInstanceGetUUID": "vgpu-8", "nvmlVgpuInstanceGetType": 900},
        900: {"nvmlVgpuTypeGetName": b"NVIDIA H100-8C", "nvmlVgpuTypeGetFramebufferSize": 8 * GIB},
    }
    reading = parent(library, opened)
    assert reading.values['gpu_vgpu_instances{profile="NVIDIA H100-8C"}'] == 2
    assert reading.values['gpu_mig_instance_memory_used_ratio{instance="vgpu-7"}'] == 0.5
    assert reading.missing['gpu_mig_instance_memory_used_ratio{instance="vgpu-8"}'] is Missing.BLANK


def test_a_host_for_vgpus_without_any_has_none(opened: list[NvmlSource]) -> None:
    library = RecordedNvml(devices("h100-healthy")[:1])
    library.devices[0]["nvmlDeviceGetActiveVgpus"] = {"value": []}
    assert parent(library, opened).values["gpu_vgpu_instances"] == 0

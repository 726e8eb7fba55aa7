"""The mock NVML as pynvml sees it: what a script says is what ctypes gets."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from tocsin_testing.mock_gpus import GIB, a100, h100, packed_rate, split, t4, vgpu
from tocsin_testing.mock_nvml import SOURCES, MockFleet, build, nvml_header


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[MockFleet]:
    with MockFleet(tmp_path, [h100(0), split(a100(1), "3g.40gb", "1g.10gb"), t4(2)]).loaded() as loaded:
        yield loaded


@pytest.fixture
def handles(fleet: MockFleet) -> Iterator[list[object]]:
    pynvml.nvmlInit()
    yield [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    fleet.heal()


def test_every_function_of_the_list_is_exported_and_of_nvidias_header() -> None:
    header = nvml_header().read_text()
    library = ctypes.CDLL(str(build() / "libnvidia-ml.so.1"))
    listed = [
        line.split("(")[1].split(",")[0].rstrip(")")
        for line in (SOURCES / "functions.def").read_text().splitlines()
        if line.startswith(("ONE", "TWO", "TEXT", "SPECIAL"))
    ]
    assert len(listed) > 120
    assert [name for name in listed if not hasattr(library, name)] == []
    assert [name for name in listed if name not in header] == []


def test_attributes_numbers_and_structures(handles: list[object]) -> None:
    h = handles[0]
    assert pynvml.nvmlSystemGetDriverVersion() == "580.105.08"
    assert pynvml.nvmlDeviceGetName(h) == "NVIDIA H100 80GB HBM3"
    assert pynvml.nvmlDeviceGetPciInfo(h).busId == "00000000:1A:00.0"
    assert pynvml.nvmlDeviceGetPciInfo(h).bus == 0x1A
    assert pynvml.nvmlDeviceGetMaxClockInfo(h, pynvml.NVML_CLOCK_MEM) == 2619
    assert pynvml.nvmlDeviceGetTemperatureThreshold(h, pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN) == 89
    assert pynvml.nvmlDeviceGetPowerManagementLimitConstraints(h) == [200_000, 700_000]
    assert pynvml.nvmlDeviceGetMemoryErrorCounter(h, 1, 0, pynvml.NVML_MEMORY_LOCATION_SRAM) == 0
    assert pynvml.nvmlDeviceGetRowRemapperHistogram(h).max == 640
    assert pynvml.nvmlDeviceGetCudaComputeCapability(h) == (9, 0)
    assert [len(pynvml.nvmlDeviceGetRetiredPages(handles[2], cause)) for cause in (0, 1)] == [2, 0]


def test_numbers_grow_and_go_up_and_down_from_answer_to_answer(fleet: MockFleet, handles: list[object]) -> None:
    fleet.gpus[0].set("nvmlDeviceGetPowerUsage", to="100+5")
    fleet.gpus[0].set("nvmlDeviceGetPerformanceState", to="0~8")
    fleet.apply()
    assert [pynvml.nvmlDeviceGetPowerUsage(handles[0]) for _ in range(3)] == [100, 105, 110]
    assert [pynvml.nvmlDeviceGetPerformanceState(handles[0]) for _ in range(3)] == [0, 8, 0]
    fleet.gpus[0].set("nvmlDeviceGetNumFans", to=1)
    fleet.apply()
    assert pynvml.nvmlDeviceGetPowerUsage(handles[0]) == 115, "a rewritten script is no reset"


def test_what_is_not_scripted_is_not_supported_and_what_is_refused_has_its_code(
    fleet: MockFleet, handles: list[object]
) -> None:
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetFanSpeed_v2(handles[0], 0)
    fleet.gpus[0].refuse("nvmlDeviceGetFanSpeed_v2", 0, code="NO_PERMISSION")
    fleet.gpus[0].fail("nvmlDeviceGetName", "UNKNOWN", times=2)
    fleet.apply()
    with pytest.raises(pynvml.NVMLError_NoPermission):
        pynvml.nvmlDeviceGetFanSpeed_v2(handles[0], 0)
    for _ in range(2):
        with pytest.raises(pynvml.NVMLError_Unknown):
            pynvml.nvmlDeviceGetName(handles[0])
    assert pynvml.nvmlDeviceGetName(handles[0]).startswith("NVIDIA")


def test_a_lost_gpu_says_so_for_everything_but_what_it_answers_from_a_cache(
    fleet: MockFleet, handles: list[object]
) -> None:
    fleet.gpus[0].lose()
    fleet.gpus[0].fail("nvmlDeviceGetName", "OK")
    fleet.apply()
    assert pynvml.nvmlDeviceGetName(handles[0]).startswith("NVIDIA")
    for call in (pynvml.nvmlDeviceGetPowerUsage, pynvml.nvmlDeviceGetUUID):
        with pytest.raises(pynvml.NVMLError_GpuIsLost):
            call(handles[0])
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        pynvml.nvmlDeviceGetHandleByIndex(0)
    assert pynvml.nvmlDeviceGetName(handles[1]).startswith("NVIDIA A100")


def test_a_call_hangs_until_the_script_says_otherwise(fleet: MockFleet, handles: list[object]) -> None:
    fleet.gpus[1].hang("nvmlDeviceGetName")
    fleet.apply()
    answered = threading.Event()
    thread = threading.Thread(target=lambda: (pynvml.nvmlDeviceGetName(handles[1]), answered.set()))
    thread.start()
    assert pynvml.nvmlDeviceGetName(handles[0]).startswith("NVIDIA H100")
    assert not answered.is_set()
    fleet.heal()
    thread.join(10)
    assert answered.is_set()
    assert fleet.waiting == 0


def test_a_call_takes_its_time(fleet: MockFleet, handles: list[object]) -> None:
    fleet.gpus[0].set("nvmlDeviceGetPcieThroughput", 0, to=5)
    fleet.gpus[0].delay("nvmlDeviceGetPcieThroughput", 20_000)
    fleet.apply()
    begun = time.monotonic()
    assert pynvml.nvmlDeviceGetPcieThroughput(handles[0], pynvml.NVML_PCIE_UTIL_TX_BYTES) == 5
    assert time.monotonic() - begun >= 0.02


def test_a_reload_voids_handles_and_asks_for_a_new_opening(fleet: MockFleet, handles: list[object]) -> None:
    fleet.reload()
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlDeviceGetCount()
    pynvml.nvmlInit()
    assert fleet.stale_handles == 0
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetName(handles[0])
    assert fleet.stale_handles == 1
    assert pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0)).startswith("NVIDIA")


def test_gpus_come_and_go(fleet: MockFleet, handles: list[object]) -> None:
    del fleet.gpus[1]
    fleet.gpus[7] = h100(7)
    fleet.apply()
    found = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    assert [pynvml.nvmlDeviceGetUUID(h) for h in found] == [fleet.gpus[n].uuid for n in (0, 2, 7)]
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        pynvml.nvmlDeviceGetName(handles[1])
    by_uuid = pynvml.nvmlDeviceGetHandleByUUID(fleet.gpus[7].uuid)
    assert pynvml.nvmlDeviceGetPciInfo(by_uuid).busId == "00000000:8A:00.0"


def test_a_batch_of_fields_fails_entry_by_entry(fleet: MockFleet, handles: list[object]) -> None:
    fleet.gpus[0].field(220, packed_rate(3, 7), scope=4)
    fleet.gpus[0].refuse_field(94, "GPU_IS_LOST")
    fleet.apply()
    answers = pynvml.nvmlDeviceGetFieldValues(handles[0], [193, 94, (220, 4), (220, 5), 9_999])
    codes = [answer.nvmlReturn for answer in answers]
    assert codes == [0, pynvml.NVML_ERROR_GPU_IS_LOST, 0, pynvml.NVML_ERROR_NOT_SUPPORTED, 3]
    assert (answers[0].valueType, answers[0].value.siVal) == (pynvml.NVML_VALUE_TYPE_SIGNED_INT, -8)
    assert answers[2].value.ullVal == 0x307
    assert answers[1].value.ullVal != 0, "what failed holds nonsense, not a plausible zero"


def test_processes_grow_between_the_two_calls(fleet: MockFleet, handles: list[object]) -> None:
    fleet.gpus[0].process(7, None)
    fleet.gpus[0].burst(1)
    fleet.apply()
    with pytest.raises(pynvml.NVMLError_InsufficientSize):
        pynvml.nvmlDeviceGetComputeRunningProcesses(handles[0])
    found = pynvml.nvmlDeviceGetComputeRunningProcesses(handles[0])
    assert [(process.pid, process.usedGpuMemory) for process in found] == [(40_000, 60 * GIB), (7, None)]
    assert pynvml.nvmlDeviceGetGraphicsRunningProcesses(handles[0]) == []
    assert pynvml.nvmlDeviceGetProcessUtilization(handles[0], 0)[0].smUtil == 88
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetProcessUtilization(handles[0], 2**60)


def test_mig_devices_have_answers_of_their_own(handles: list[object]) -> None:
    h = handles[1]
    assert pynvml.nvmlDeviceGetMigMode(h) == [1, 1]
    mig = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(h, 1)
    assert pynvml.nvmlDeviceIsMigDeviceHandle(mig)
    assert pynvml.nvmlDeviceGetName(mig).endswith("MIG 1g.10gb")
    assert pynvml.nvmlDeviceGetMemoryInfo(mig, version=pynvml.nvmlMemory_v2).total == 10 * GIB
    assert pynvml.nvmlDeviceGetAttributes_v2(mig).memorySizeMB == 10 * 1024
    assert pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(mig)).startswith("GPU-")
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetMigDeviceHandleByIndex(h, 2)
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetUtilizationRates(h)
    assert [pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(h, profile) for profile in (19, 9, 0)] == [2, 0, 0]
    instance = pynvml.nvmlDeviceGetGpuInstanceById(h, pynvml.nvmlDeviceGetGpuInstanceId(mig))
    assert pynvml.nvmlGpuInstanceGetInfo(instance).placement.start == 4
    places, count = (pynvml.c_nvmlGpuInstancePlacement_t * 8)(), ctypes.c_uint(8)
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(h, 14, places, ctypes.byref(count))
    assert [(place.start, place.size) for place in places[: count.value]] == [(0, 2), (2, 2), (4, 2)]


def test_vgpu_instances(fleet: MockFleet, handles: list[object]) -> None:
    vgpu(fleet.gpus[0], fleet.system, 21)
    fleet.apply()
    assert list(pynvml.nvmlDeviceGetActiveVgpus(handles[0])) == [21]
    used = ctypes.c_ulonglong()
    assert pynvml.nvmlLib.nvmlVgpuInstanceGetFbUsage(21, ctypes.byref(used)) == 0
    assert used.value == 5 * GIB
    assert pynvml.nvmlVgpuTypeGetName(pynvml.nvmlVgpuInstanceGetType(21)) == "NVIDIA H100-20C"
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetActiveVgpus(handles[2])


def gpm(h: object, *metrics: int, other: object | None = None) -> list[tuple[int, float]]:
    first, second = pynvml.nvmlGpmSampleAlloc(), pynvml.nvmlGpmSampleAlloc()
    pynvml.nvmlGpmSampleGet(h, first)
    pynvml.nvmlGpmSampleGet(other or h, second)
    request = pynvml.c_nvmlGpmMetricsGet_t()
    request.version, request.numMetrics = pynvml.NVML_GPM_METRICS_GET_VERSION, len(metrics)
    request.sample1, request.sample2 = first, second
    for entry, number in zip(request.metrics, metrics, strict=False):
        entry.metricId = number
    pynvml.nvmlGpmMetricsGet(request)
    for sample in (first, second):
        pynvml.nvmlGpmSampleFree(sample)
    return [(request.metrics[i].nvmlReturn, request.metrics[i].value) for i in range(len(metrics))]


def test_gpm_needs_two_samples_of_one_gpu(fleet: MockFleet, handles: list[object]) -> None:
    assert gpm(handles[0], pynvml.NVML_GPM_METRIC_SM_UTIL, 200) == [(0, 91.5), (pynvml.NVML_ERROR_NOT_SUPPORTED, 0.0)]
    fleet.gpus[3] = h100(3)
    fleet.apply()
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        gpm(handles[0], 1, other=pynvml.nvmlDeviceGetHandleByIndex(3))
    with pytest.raises(pynvml.NVMLError_NotSupported):
        gpm(handles[2], 1)


def test_events_reach_the_sets_that_watch_the_gpu_from_then_on(fleet: MockFleet, handles: list[object]) -> None:
    fleet.event(0, 13)
    events = pynvml.nvmlEventSetCreate()
    pynvml.nvmlDeviceRegisterEvents(handles[0], pynvml.nvmlEventTypeXidCriticalError, events)
    with pytest.raises(pynvml.NVMLError_Timeout):
        pynvml.nvmlEventSetWait_v2(events, 0)
    fleet.event(1, 48)
    fleet.event(0, 79)
    seen = pynvml.nvmlEventSetWait_v2(events, 10_000)
    assert (seen.eventData, seen.gpuInstanceId) == (79, 0xFFFFFFFF)
    assert pynvml.nvmlDeviceGetUUID(seen.device) == fleet.gpus[0].uuid
    fleet.gpus[0].set("nvmlDeviceGetSupportedEventTypes", to=0)
    fleet.apply()
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceRegisterEvents(handles[0], pynvml.nvmlEventTypeXidCriticalError, events)


def test_what_is_set_can_be_read_back(handles: list[object]) -> None:
    pynvml.nvmlDeviceSetPowerManagementLimit(handles[0], 450_000)
    assert pynvml.nvmlDeviceGetPowerManagementLimit(handles[0]) == 450_000
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceSetPowerManagementLimit(handles[0], 10_000)


def test_calls_are_counted_by_gpu(fleet: MockFleet, handles: list[object]) -> None:
    fleet.forget_calls()
    for _ in range(3):
        pynvml.nvmlDeviceGetName(handles[2])
    assert (fleet.calls("nvmlDeviceGetName"), fleet.calls("nvmlDeviceGetName", gpu=2)) == (3, 3)
    assert fleet.all_calls() == {"nvmlDeviceGetName": 3}


def test_a_function_left_out_is_not_found(tmp_path: Path) -> None:
    with MockFleet(tmp_path, [h100(0)]).loaded(without=("nvmlDeviceGetTemperatureV",)):
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        with pytest.raises(pynvml.NVMLError_FunctionNotFound):
            pynvml.nvmlDeviceGetTemperatureV(handle, pynvml.NVML_TEMPERATURE_GPU)
        assert pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU) == 58


def run(fleet: MockFleet, program: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | fleet.environment()
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_a_script_with_a_mistake_is_told_with_its_line(tmp_path: Path) -> None:
    fleet = MockFleet(tmp_path, [h100(0)])
    fleet.gpus[0].set("nvmlDeviceGetNmae", to="x")
    fleet.apply()
    program = "import pynvml; pynvml.nvmlInit()"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | fleet.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert "no such function in the mock: nvmlDeviceGetNmae" in done.stderr
    assert "NVMLError_Unknown" in done.stderr


def test_pynvml_of_another_process_loads_the_mock_by_itself(tmp_path: Path) -> None:
    fleet = MockFleet(tmp_path, [h100(0), h100(1)])
    program = "import pynvml; pynvml.nvmlInit(); print(pynvml.nvmlDeviceGetCount())"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | fleet.environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "2\n"
    assert fleet.opens == 1

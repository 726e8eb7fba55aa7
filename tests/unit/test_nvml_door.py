"""The door to pynvml, with pynvml's own marshalling over a library whose functions are written here."""

# ruff: noqa: N802  # the names are NVML's

from __future__ import annotations

import ctypes
from typing import Any

import pynvml
import pytest

from tocsin.collector.nvml import NvmlSource
from tocsin.collector.nvml_device import Place
from tocsin.collector.nvml_library import (
    Code,
    DeviceEvent,
    FieldAnswer,
    NvmlFailure,
    PynvmlLibrary,
    decode,
    unavailable,
)
from tocsin.domain.missing import Missing
from tocsin_testing.builders import T0

FIELDS = {
    82: (pynvml.NVML_VALUE_TYPE_UNSIGNED_INT, "uiVal", 61),
    83: (pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, "ullVal", 5_000),
    193: (pynvml.NVML_VALUE_TYPE_SIGNED_INT, "siVal", -5),
}


class FakeLibrary:
    """What ``libnvidia-ml.so.1`` exports; a function left out is one that an older driver lacks."""

    def __init__(self) -> None:
        self.open = 0
        self.xids = [79]
        self.fabric_versions: list[int] = []

    def nvmlInitWithFlags(self, _flags: int) -> int:
        self.open += 1
        return 0

    def nvmlShutdown(self) -> int:
        self.open -= 1
        return 0

    def nvmlErrorString(self, _code: int) -> bytes:
        return b"some text"

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = 1
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, handle: Any) -> int:
        handle._obj.contents = pynvml.struct_c_nvmlDevice_t()
        self.handle = ctypes.cast(handle._obj, ctypes.c_void_p).value
        return 0

    def nvmlDeviceGetUUID(self, _handle: Any, text: Any, _size: Any) -> int:
        text.value = b"GPU-feedface"
        return 0

    def nvmlDeviceGetName(self, _handle: Any, text: Any, _size: Any) -> int:
        text.value = b"NVIDIA H200"
        return 0

    def nvmlDeviceGetTemperatureV(self, _handle: Any, answer: Any) -> int:
        answer._obj.temperature = 47
        return 0

    def nvmlDeviceGetMemoryInfo_v2(self, _handle: Any, answer: Any) -> int:
        memory = answer._obj
        assert memory.version == 33_554_472
        memory.total, memory.reserved, memory.used, memory.free = 1_000, 200, 400, 400
        return 0

    def nvmlDeviceGetFieldValues(self, _handle: Any, count: Any, values: Any) -> int:
        for entry in values._obj[: count.value]:
            kind = FIELDS.get(entry.fieldId)
            entry.nvmlReturn = Code.NOT_SUPPORTED if kind is None else 0
            if kind is not None:
                entry.valueType = kind[0]
                setattr(entry.value, kind[1], kind[2])
        return 0

    def nvmlDeviceGetSramEccErrorStatus(self, _handle: Any, answer: Any) -> int:
        answer._obj.bThresholdExceeded = 1
        return 0

    def nvmlDeviceGetGpuFabricInfoV(self, _handle: Any, answer: Any) -> int:
        self.fabric_versions.append(answer._obj.version)
        if isinstance(answer._obj, pynvml.c_nvmlGpuFabricInfo_v3_t):
            return int(Code.ARGUMENT_VERSION_MISMATCH)
        answer._obj.state = 3
        return 0

    def nvmlDeviceGetRemappedRows(self, _handle: Any, *answers: Any) -> int:
        for number, answer in enumerate(answers):
            answer._obj.value = number % 2
        return 0

    def nvmlDeviceGetUtilizationRates(self, _handle: Any, _answer: Any) -> int:
        return int(Code.NO_PERMISSION)

    def nvmlEventSetCreate(self, _event_set: Any) -> int:
        return 0

    def nvmlDeviceRegisterEvents(self, _handle: Any, _types: Any, _event_set: Any) -> int:
        return 0

    def nvmlEventSetWait_v2(self, _event_set: Any, event: Any, timeout: Any) -> int:
        assert timeout.value == 0
        if not self.xids:
            return int(Code.TIMEOUT)
        event._obj.device = ctypes.cast(self.handle, pynvml.c_nvmlDevice_t)
        event._obj.eventType = 8
        event._obj.eventData = self.xids.pop()
        return 0


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeLibrary:
    fake = FakeLibrary()
    monkeypatch.setattr(pynvml, "nvmlLib", fake)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    return fake


def test_a_whole_reading_goes_through_pynvml(driver: FakeLibrary) -> None:
    source = NvmlSource(PynvmlLibrary(), Place("node-1"))
    batch = source.read(T0)
    reading = batch.readings[0]
    assert (reading.gpu.uuid, reading.gpu.model) == ("GPU-feedface", "NVIDIA H200")
    assert reading.values["gpu_temperature_celsius"] == 47
    assert reading.values["gpu_memory_used_ratio"] == 0.5
    assert reading.values["gpu_memory_temperature_celsius"] == 61
    assert reading.values["gpu_energy_joules_total"] == 5
    assert reading.values["gpu_tlimit_shutdown_celsius"] == -5
    assert reading.values["gpu_ecc_sram_threshold_exceeded"] == 1
    assert reading.values["gpu_row_remap_failure"] == 1
    assert reading.values["gpu_fabric_state"] == 3
    assert len(driver.fabric_versions) == 2, "the newer structure was refused, the older one taken"
    assert reading.missing["gpu_utilization_ratio"] is Missing.DENIED
    assert reading.missing["gpu_sm_clock_hertz"] is Missing.UNSUPPORTED, "this library does not export the function"
    assert [(e.code, e.gpu) for e in batch.events] == [(79, "GPU-feedface")]
    source.close()
    assert driver.open == 0


@pytest.mark.parametrize(
    ("member", "value_type", "value"),
    [
        ("dVal", pynvml.NVML_VALUE_TYPE_DOUBLE, 0.125),
        ("uiVal", pynvml.NVML_VALUE_TYPE_UNSIGNED_INT, 4_000_000_000),
        ("ulVal", pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG, 2**40),
        ("ullVal", pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, 2**63),
        ("sllVal", pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG, -(2**40)),
        ("siVal", pynvml.NVML_VALUE_TYPE_SIGNED_INT, -5),
        ("usVal", pynvml.NVML_VALUE_TYPE_UNSIGNED_SHORT, 65_535),
    ],
)
def test_field_values_are_decoded_by_their_type(member: str, value_type: int, value: float) -> None:
    entry = pynvml.c_nvmlFieldValue_t()
    entry.valueType = value_type
    setattr(entry.value, member, value)
    assert decode(entry) == FieldAnswer(Code.SUCCESS, value)


def test_a_field_that_failed_has_no_value_whatever_lies_in_the_union() -> None:
    entry = pynvml.c_nvmlFieldValue_t()
    entry.value.ullVal = 42
    entry.nvmlReturn = Code.GPU_IS_LOST
    assert decode(entry) == FieldAnswer(Code.GPU_IS_LOST, None)


def test_a_type_of_value_that_is_not_known_is_no_value() -> None:
    entry = pynvml.c_nvmlFieldValue_t()
    entry.valueType = 99
    assert decode(entry) == FieldAnswer(Code.UNKNOWN, None)


def test_a_function_that_pynvml_lacks_is_a_failure_like_any_other(driver: FakeLibrary) -> None:
    with pytest.raises(NvmlFailure) as caught:
        PynvmlLibrary().call("nvmlDeviceGetTomorrowsTemperature", 1)
    assert caught.value.code == Code.FUNCTION_NOT_FOUND


def test_waiting_without_an_event_gives_none(driver: FakeLibrary) -> None:
    library = PynvmlLibrary()
    handle = library.call("nvmlDeviceGetHandleByIndex", 0)
    assert library.wait(None, 0) == DeviceEvent(library.key(handle), 8, 79)
    assert library.wait(None, 0) is None


@pytest.mark.parametrize("code", [Code.LIBRARY_NOT_FOUND, Code.DRIVER_NOT_LOADED, Code.NO_PERMISSION, 18, 999, 77])
def test_every_way_of_not_opening_is_one_line_with_a_remedy(code: int) -> None:
    text = str(unavailable(NvmlFailure(code)))
    assert "\n" not in text
    assert ";" in text, "what is missing; what to do"

"""The door to pynvml, with pynvml's own marshalling over a library whose functions are written here."""

# ruff: noqa: N802  # the names are NVML's

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Sequence
from typing import Any

import pynvml
import pytest

from tocsin.collector.nvml.library import (
    Code,
    DeviceEvent,
    FieldBatch,
    FieldReplies,
    FieldValue,
    NvmlFailure,
    PynvmlLibrary,
    unavailable,
)
from tocsin.collector.nvml.source import NvmlSource
from tocsin.collector.source import NodeIdentity
from tocsin.domain.reading import NVLINK_DOMAIN, Missing
from tocsin_testing.builders import T0

FIELDS = {
    82: (pynvml.NVML_VALUE_TYPE_UNSIGNED_INT, "uiVal", 61),
    83: (pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, "ullVal", 5_000),
    193: (pynvml.NVML_VALUE_TYPE_SIGNED_INT, "siVal", -5),
}


def union(member: str, value: float) -> int:
    """The eight bytes of a ``nvmlValue_t`` one of whose members was set; the others hold what lies there."""
    written = pynvml.c_nvmlValue_t()
    written.ullVal = 0xDEAD_BEEF_DEAD_BEEF
    setattr(written, member, value)
    return int.from_bytes(bytes(written), sys.byteorder)


def answered(*entries: tuple[int, int, int]) -> FieldReplies:
    """What a batch makes of entries of code, type and union."""

    def function(_handle: Any, count: Any, values: Any) -> int:
        for i, (code, kind, value) in enumerate(entries[: count.value]):
            slot = values._obj[i]
            slot.nvmlReturn, slot.valueType, slot.value, slot.latencyUsec = code, kind, value, 10 * i
        return 0

    code, replies = FieldBatch(function, None, [(1, 0)] * len(entries))()
    assert code == 0
    assert replies is not None
    return replies


class FakeLibrary:
    """What ``libnvidia-ml.so.1`` exports; a function left out is one that an older driver lacks."""

    def __init__(self) -> None:
        self.open = 0
        self.xids = [79]
        self.waited = threading.Event()
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
                entry.value = union(kind[1], kind[2])
        return 0

    def nvmlDeviceGetSramEccErrorStatus(self, _handle: Any, answer: Any) -> int:
        answer._obj.bThresholdExceeded = 1
        return 0

    def nvmlDeviceGetGpuFabricInfoV(self, _handle: Any, answer: Any) -> int:
        self.fabric_versions.append(answer._obj.version)
        answer._obj.clusterUuid[:] = range(16)
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

    def nvmlEventSetFree(self, _event_set: Any) -> int:
        return 0

    def nvmlDeviceGetSupportedEventTypes(self, _handle: Any, types: Any) -> int:
        types._obj.value = 0xFFFF
        return 0

    def nvmlEventSetWait_v2(self, _event_set: Any, event: Any, _timeout: Any) -> int:
        if not self.xids:
            return int(Code.TIMEOUT)
        event._obj.device = ctypes.cast(self.handle, pynvml.c_nvmlDevice_t)
        event._obj.eventType = 8
        event._obj.gpuInstanceId = 0xFFFF_FFFF
        event._obj.eventData = self.xids.pop()
        self.waited.set()
        return 0


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeLibrary:
    fake = FakeLibrary()
    monkeypatch.setattr(pynvml, "nvmlLib", fake)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    return fake


def test_a_whole_reading_goes_through_pynvml(driver: FakeLibrary) -> None:
    source = NvmlSource(PynvmlLibrary(), NodeIdentity("node-1"))
    assert driver.waited.wait(10)
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
    newer, older, *again = driver.fabric_versions
    assert (newer > older, again) == (True, [newer, older]), "the newer structure was refused, the older one taken"
    assert reading.gpu.labels[NVLINK_DOMAIN] == "00010203-0405-0607-0809-0a0b0c0d0e0f.0"
    assert reading.missing["gpu_utilization_ratio"] is Missing.DENIED
    assert reading.missing["gpu_sm_clock_hertz"] is Missing.UNSUPPORTED, "this library does not export the function"
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
    replies = answered((0, pynvml.NVML_VALUE_TYPE_DOUBLE, union("dVal", 1.5)), (0, value_type, union(member, value)))
    assert replies == FieldReplies((0, 0), (1.5, value), 10)


def test_a_batch_is_decoded_anew_when_a_type_changes() -> None:
    kinds = [(pynvml.NVML_VALUE_TYPE_UNSIGNED_INT, "uiVal", 7), (pynvml.NVML_VALUE_TYPE_DOUBLE, "dVal", 0.5)]

    def function(_handle: Any, _count: Any, values: Any) -> int:
        kind, member, value = kinds[0]
        values._obj[0].valueType, values._obj[0].value = kind, union(member, value)
        return 0

    batch = FieldBatch(function, None, [(82, 0)])
    seen: list[Sequence[float]] = []
    for _ in range(3):
        _, replies = batch()
        assert replies is not None
        seen.append(replies.values)
        kinds.reverse()
    assert seen == [(7,), (0.5,), (7,)]


def test_entries_of_a_batch_fail_one_by_one() -> None:
    replies = answered((0, 1, union("uiVal", 3)), (int(Code.GPU_IS_LOST), 3, 42), (int(Code.NOT_SUPPORTED), 0, 0))
    assert list(replies.codes) == [0, Code.GPU_IS_LOST, Code.NOT_SUPPORTED]
    assert replies.values[0] == 3
    assert replies.latency_us == 20


def test_a_type_of_value_that_is_not_known_is_no_value() -> None:
    replies = answered((0, 99, 5), (int(Code.NO_PERMISSION), 99, 5), (0, 1, union("uiVal", 3)))
    assert list(replies.codes) == [Code.UNKNOWN, Code.NO_PERMISSION, 0]


def test_the_laid_out_field_value_is_that_of_the_header() -> None:
    names = ("fieldId", "scopeId", "timestamp", "latencyUsec", "valueType", "nvmlReturn", "value")
    assert ctypes.sizeof(FieldValue) == ctypes.sizeof(pynvml.c_nvmlFieldValue_t)
    for name in names:
        assert getattr(FieldValue, name).offset == getattr(pynvml.c_nvmlFieldValue_t, name).offset


@pytest.mark.parametrize(
    ("structure", "version"), [("c_nvmlTemperature_v1_t", 0x100_000C), ("c_nvmlMarginTemperature_v1_t", 0x100_0008)]
)
def test_versions_of_structures_carry_their_size(structure: str, version: int) -> None:
    assert ctypes.sizeof(getattr(pynvml, structure)) == version & 0xFF_FFFF


def test_what_pynvml_makes_of_an_unforeseen_answer_costs_one_call(
    driver: FakeLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_handle: Any) -> Any:
        raise TypeError("byref() argument must be a ctypes instance")

    monkeypatch.setattr(pynvml, "nvmlDeviceGetSerial", broken)
    with pytest.raises(NvmlFailure) as caught:
        PynvmlLibrary().call("nvmlDeviceGetSerial", 1)
    assert caught.value.code == Code.UNKNOWN


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

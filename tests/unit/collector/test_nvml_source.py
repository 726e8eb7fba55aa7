"""The NVML source over recorded answers: values, reasons, and what one GPU's trouble costs the others."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest

from tocsin.collector.nvml import events as nvml_events
from tocsin.collector.nvml.library import Code
from tocsin.collector.nvml.probes import CALLS, PROBED
from tocsin.collector.nvml.source import ENUMERATE_MS, NvmlSource
from tocsin.collector.source import NodeIdentity
from tocsin.domain.clock import MINUTE
from tocsin.domain.errors import Unavailable
from tocsin.domain.event import EventKind
from tocsin.domain.metrics import METRICS, spec_of
from tocsin.domain.reading import Missing, Reading, sanitise
from tocsin.domain.versions import versions_of
from tocsin_testing.builders import T0
from tocsin_testing.nvml_replay import RecordedNvml, devices, dump

PLACE = NodeIdentity("node-1", "training", "rack-7", {"team": "vision"})


@pytest.fixture(autouse=True)
def quick_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing a source waits for its event thread, which waits in the driver."""
    monkeypatch.setattr(nvml_events, "WAIT_MS", 10)


def open_source(library: RecordedNvml, deadline: float = 10.0) -> NvmlSource:
    return NvmlSource(library, PLACE, deadline)


@pytest.fixture
def h100() -> Iterator[tuple[RecordedNvml, NvmlSource]]:
    library = RecordedNvml(devices("h100-healthy"))
    source = open_source(library)
    yield library, source
    source.close()


def by_index(source: NvmlSource, at_ms: int = T0) -> dict[int, Reading]:
    return {r.gpu.index or 0: r for r in source.read(at_ms).readings if not r.gpu.parent}


def values_of(library: RecordedNvml, device: int = 0) -> dict[str, Any]:
    """The recorded field values of a device, to be changed."""
    found: dict[str, Any] = library.devices[device]["nvmlDeviceGetFieldValues"]["value"]
    return found


def test_healthy_a100_has_the_recorded_values() -> None:
    source = open_source(RecordedNvml(devices("a100-healthy")))
    reading = source.read(T0).readings[0]
    gpu = reading.gpu
    assert (gpu.uuid, gpu.model) == ("GPU-12345678-1234-1234-1234-123456780000", "NVIDIA A100-SXM4-40GB")
    assert (gpu.serial, gpu.pci_bus_id, gpu.index) == ("1324821083800", "00000000:07:00.0", 0)
    assert (gpu.host, gpu.pool, gpu.rack, gpu.labels["team"]) == ("node-1", "training", "rack-7", "vision")
    assert versions_of(gpu.labels) == {
        "driver": "550.163.01",
        "cuda_driver": "12.4",
        "vbios": "92.00.45.00.03",
        "inforom": "G506.0200.00.04",
        "gsp_firmware": "550.54.15",
    }
    values = reading.values
    assert values["gpu_temperature_celsius"] == 33
    assert values["gpu_temperature_shutdown_celsius"] == 92
    assert values["gpu_temperature_slowdown_celsius"] == 87
    assert values["gpu_memory_total_bytes"] == 42949672960
    assert values["gpu_memory_reserved_bytes"] == 611319808
    assert values["gpu_memory_used_bytes"] == 0
    assert values["gpu_sm_clock_hertz"] == 210e6
    assert values["gpu_sm_clock_max_hertz"] == 1410e6
    assert values["gpu_power_limit_max_watts"] == 400
    assert values["gpu_pcie_link_generation_max"] == 4
    assert values["gpu_nvlink_links_max"] == 12
    assert values['gpu_nvlink_up{link="0"}'] == 1
    assert values["gpu_processes"] == 0
    source.close()


def test_at_least_ninety_metrics_are_asked_for_and_each_is_known(h100: tuple[RecordedNvml, NvmlSource]) -> None:
    _, source = h100
    assert len(PROBED) >= 120
    assert set(PROBED) <= set(METRICS)
    for reading in source.read(T0).readings:
        told = set(reading.values) | set(reading.missing)
        assert all(spec_of(key) is not None for key in told)
        assert not set(reading.values) & set(reading.missing)
        names = {key.split("{")[0] for key in told}
        of_processes = {"gpu_process_memory_used_bytes", "gpu_process_sm_utilization_ratio"}
        assert set(PROBED) - names <= of_processes, "only what has no process may be untold"
        assert sanitise(reading)[1] == []


def test_fields_come_first_and_calls_fill_in(h100: tuple[RecordedNvml, NvmlSource]) -> None:
    library, source = h100
    source.read(T0)
    assert "nvmlDeviceGetPowerUsage" not in library.calls, "field 185 answered"
    assert "nvmlDeviceGetEnforcedPowerLimit" in library.calls, "field 190 is not in the recording"
    assert library.batches == 3 * len(library.devices), "one batch of each tier that has fields, per GPU"
    before = library.batches
    source.read(T0 + 1_000)
    assert library.batches == before + len(library.devices), "one batched call per GPU and reading"


def test_static_and_unsupported_are_asked_once_per_enumeration(h100: tuple[RecordedNvml, NvmlSource]) -> None:
    library, source = h100
    source.read(T0)
    library.calls.clear()
    second = by_index(source, T0 + MINUTE)
    assert "nvmlDeviceGetMaxClockInfo" not in library.calls
    assert "nvmlDeviceGetApplicationsClock" not in library.calls
    assert second[0].values["gpu_sm_clock_max_hertz"] == 1980e6
    assert second[0].missing["gpu_app_sm_clock_hertz"] is Missing.UNSUPPORTED
    source.read(T0 + ENUMERATE_MS)
    assert "nvmlDeviceGetMaxClockInfo" in library.calls
    assert "nvmlDeviceGetApplicationsClock" in library.calls


def test_temperature_falls_back_to_the_deprecated_call(h100: tuple[RecordedNvml, NvmlSource]) -> None:
    library, source = h100
    library.failures[0, "nvmlDeviceGetTemperatureV"] = Code.FUNCTION_NOT_FOUND
    readings = by_index(source)
    assert readings[0].values["gpu_temperature_celsius"] == readings[1].values["gpu_temperature_celsius"]
    assert library.calls.count("nvmlDeviceGetTemperature") == 1


def test_old_driver_without_memory_version_2_does_not_pass_reserved_off_as_used() -> None:
    recorded = devices("h100-healthy")[:1]
    del recorded[0]["nvmlDeviceGetMemoryInfo(33554472,)"]
    source = open_source(RecordedNvml(recorded))
    reading = source.read(T0).readings[0]
    assert reading.values["gpu_memory_total_bytes"] == 85899345920
    for name in ("gpu_memory_used_bytes", "gpu_memory_reserved_bytes", "gpu_memory_used_ratio"):
        assert reading.missing[name] is Missing.UNSUPPORTED
    source.close()


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (Code.NOT_SUPPORTED, Missing.UNSUPPORTED),
        (Code.FUNCTION_NOT_FOUND, Missing.UNSUPPORTED),
        (Code.ARGUMENT_VERSION_MISMATCH, Missing.UNSUPPORTED),
        (Code.NO_PERMISSION, Missing.DENIED),
        (Code.OPERATING_SYSTEM, Missing.DENIED),
        (Code.TIMEOUT, Missing.TIMED_OUT),
        (Code.RESET_REQUIRED, Missing.RESET_REQUIRED),
        (Code.NOT_FOUND, Missing.BLANK),
        (Code.UNKNOWN, Missing.BLANK),
        (31337, Missing.BLANK),
    ],
)
def test_each_error_becomes_a_reason_for_that_metric_alone(code: int, reason: Missing) -> None:
    library = RecordedNvml(devices("h100-healthy")[:1])
    library.failures[0, "nvmlDeviceGetUtilizationRates"] = code
    source = open_source(library)
    reading = source.read(T0).readings[0]
    assert reading.missing["gpu_utilization_ratio"] is reason
    assert reading.missing["gpu_memory_copy_utilization_ratio"] is reason
    assert "gpu_temperature_celsius" in reading.values
    source.close()


@pytest.mark.parametrize("function", sorted({call.function for call in CALLS}))
def test_any_call_may_fail_without_costing_what_others_answer(function: str) -> None:
    whole = open_source(RecordedNvml(devices("h100-healthy")[:1]))
    library = RecordedNvml(devices("h100-healthy")[:1])
    library.failures[0, function] = Code.UNKNOWN
    source = open_source(library)
    expected, reading = whole.read(T0).readings[0], source.read(T0).readings[0]
    own = {metric for call in CALLS if call.function == function for metric in call.metrics}
    lost = {key for key in expected.values if key not in reading.values}
    assert {key.split("{")[0] for key in lost} <= own
    assert all(reading.missing[key] is Missing.BLANK for key in lost)
    whole.close()
    source.close()


def test_a_batch_of_fields_that_fails_whole_is_made_up_for_by_calls() -> None:
    library = RecordedNvml(devices("h100-healthy")[:1])
    library.failures[0, "nvmlDeviceGetFieldValues"] = Code.UNKNOWN
    source = open_source(library)
    reading = source.read(T0).readings[0]
    assert reading.values["gpu_power_watts"] == 95
    assert reading.values["gpu_row_remap_pending"] == 0
    assert reading.missing["gpu_memory_temperature_celsius"] is Missing.BLANK
    source.close()


@pytest.mark.parametrize("fault", ["h100-lost", "h100-off-bus-xid79"])
def test_a_lost_gpu_has_only_reasons_and_the_others_their_values(fault: str) -> None:
    library = RecordedNvml([*devices("h100-healthy"), *devices(fault)])
    source = open_source(library)
    batch = source.read(T0)
    lost = batch.readings[3]
    assert lost.gpu.uuid.endswith("3")
    assert not lost.values, "the clocks and limits that the driver still answers from its caches are not to be trusted"
    assert set(lost.missing) == set(PROBED)
    assert set(lost.missing.values()) == {Missing.LOST}
    assert all(reading.values["gpu_temperature_celsius"] > 0 for reading in batch.readings[:3])
    assert [(e.kind, e.gpu) for e in batch.events] == [(EventKind.GPU_LOST, lost.gpu.uuid)]
    assert source.read(T0 + 10_000).events == (), "one loss is one event"
    source.close()


def test_a_lost_gpu_that_answers_again_is_found(h100: tuple[RecordedNvml, NvmlSource]) -> None:
    library, source = h100
    library.failures[1, "*"] = Code.GPU_IS_LOST
    assert [e.kind for e in source.read(T0).events] == [EventKind.GPU_LOST]
    del library.failures[1, "*"]
    batch = source.read(T0 + 10_000)
    assert [e.kind for e in batch.events] == [EventKind.GPU_FOUND]
    assert batch.readings[1].values


def test_a_lost_gpu_without_a_handle_stays_lost_over_an_enumeration(h100: tuple[RecordedNvml, NvmlSource]) -> None:
    library, source = h100
    source.read(T0)
    library.failures[1, "*"] = Code.GPU_IS_LOST
    library.closed_indices[1] = Code.GPU_IS_LOST
    batch = source.read(T0 + ENUMERATE_MS)
    assert set(batch.readings[2].missing.values()) == {Missing.LOST}, "kept at the end of the list"
    assert [e.kind for e in batch.events] == [EventKind.GPU_LOST]
    assert len([r for r in batch.readings if r.values]) == 2


def test_a_gpu_that_is_no_longer_listed_vanishes(h100: tuple[RecordedNvml, NvmlSource]) -> None:
    library, source = h100
    gone = source.gpus()[2].uuid
    source.read(T0)
    removed = library.devices.pop()
    batch = source.read(T0 + 10_000)
    assert [(e.kind, e.gpu) for e in batch.events] == [(EventKind.GPU_LOST, gone)]
    assert gone not in {gpu.uuid for gpu in source.gpus()}
    library.devices.append(removed)
    assert [(e.kind, e.gpu) for e in source.read(T0 + 20_000).events] == [(EventKind.GPU_FOUND, gone)]


def test_a_gpu_that_hangs_costs_neither_the_others_nor_the_next_reading() -> None:
    library = RecordedNvml(devices("h100-healthy"))
    source = open_source(library)
    source.read(T0)
    library.hung[1] = gate = threading.Event()
    source.deadline_seconds = 1.0
    for step in (1, 2):
        readings = by_index(source, T0 + step * 10_000)
        assert set(readings[1].missing.values()) == {Missing.TIMED_OUT}
        assert not readings[1].values
        assert readings[0].values
        assert readings[2].values
    del library.hung[1]
    source.deadline_seconds = 10.0
    gate.set()
    answered = next(r for step in range(3, 50) if (r := by_index(source, T0 + step * 10_000)[1]).values)
    assert answered.values["gpu_temperature_celsius"] > 0
    source.close()


def test_a_hot_gpu_is_seen() -> None:
    source = open_source(RecordedNvml(devices("h100-hot")))
    values = source.read(T0).readings[0].values
    assert values["gpu_temperature_celsius"] == 91
    assert values["gpu_power_watts"] == 690
    assert values["gpu_utilization_ratio"] == 1
    source.close()


def test_a_failed_row_remap_is_seen() -> None:
    source = open_source(RecordedNvml(devices("h100-remap-failure")))
    values = source.read(T0).readings[0].values
    assert values["gpu_row_remap_failure"] == 1
    assert values["gpu_row_remap_uncorrectable_total"] == 8
    source.close()


def test_link_errors_fall_back_to_one_call_per_link() -> None:
    source = open_source(RecordedNvml(devices("h100-nvlink-errors")))
    reading = source.read(T0).readings[0]
    assert reading.values['gpu_nvlink_recovery_errors_total{link="0"}'] == 373238
    assert reading.values["gpu_nvlink_links_max"] == 18
    assert reading.missing["gpu_nvlink_symbol_errors_total"] is Missing.UNSUPPORTED
    source.close()


def test_rates_come_from_the_byte_counters(h100: tuple[RecordedNvml, NvmlSource]) -> None:
    library, source = h100
    entries = library.devices[0]["nvmlDeviceGetFieldValues"]["value"]

    def count(sent: int) -> None:
        for name in ("NVML_FI_DEV_PCIE_COUNT_TX_BYTES", "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX"):
            entries[name] = {"nvmlReturn": 0, "valueType": 3, "value": sent}
        entries["NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX"] = {"nvmlReturn": 0, "valueType": 3, "value": 0}

    count(1_000)
    first = by_index(source)[0]
    assert first.missing["gpu_pcie_transmit_bytes_per_second"] is Missing.NOT_DUE
    assert first.missing["gpu_nvlink_bandwidth_bytes_per_second"] is Missing.NOT_DUE
    count(51_000)
    second = by_index(source, T0 + 10_000)[0]
    assert second.values["gpu_pcie_transmit_bytes_per_second"] == 5_000
    assert second.values["gpu_nvlink_bandwidth_bytes_per_second"] == 5_000 * 1024
    count(0)
    third = by_index(source, T0 + 20_000)[0]
    assert third.missing["gpu_pcie_transmit_bytes_per_second"] is Missing.BLANK, "the counter started again"


def test_process_list_is_read_again_when_it_grew_in_between(h100: tuple[RecordedNvml, NvmlSource]) -> None:
    library, source = h100
    library.devices[0]["nvmlDeviceGetComputeRunningProcesses"] = {
        "value": [{"pid": 4711, "usedGpuMemory": 2**30}, {"pid": 4712, "usedGpuMemory": None}]
    }
    library.once[0, "nvmlDeviceGetComputeRunningProcesses"] = deque([Code.INSUFFICIENT_SIZE] * 2)
    reading = by_index(source)[0]
    assert reading.values["gpu_processes"] == 2
    assert reading.values['gpu_process_memory_used_bytes{pid="4711"}'] == 2**30
    assert reading.missing['gpu_process_memory_used_bytes{pid="4712"}'] is Missing.BLANK


def test_sentinels_are_blank_not_data(h100: tuple[RecordedNvml, NvmlSource]) -> None:
    library, source = h100
    entries = library.devices[0]["nvmlDeviceGetFieldValues"]["value"]
    entries["NVML_FI_DEV_ECC_SBE_VOL_TOTAL"] = {"nvmlReturn": 0, "valueType": 3, "value": 2**64 - 1}
    entries["NVML_FI_DEV_MEMORY_TEMP"] = {"nvmlReturn": 0, "valueType": 3, "value": 0x7FFFFFFFFFFFFFF2}
    reading = by_index(source)[0]
    assert reading.missing["gpu_memory_temperature_celsius"] is Missing.BLANK
    assert reading.values["gpu_ecc_corrected_volatile_total"] == 0, "the call has the count that the field has not"


def test_an_answer_of_another_shape_is_blank(h100: tuple[RecordedNvml, NvmlSource]) -> None:
    library, source = h100
    library.devices[0]["nvmlDeviceGetUtilizationRates"] = {"value": "busy"}
    reading = by_index(source)[0]
    assert reading.missing["gpu_utilization_ratio"] is Missing.BLANK
    assert "gpu_temperature_celsius" in reading.values


def test_gpu_without_event_support_says_why() -> None:
    library = RecordedNvml(devices("h100-healthy")[:1])
    library.failures[0, "nvmlDeviceRegisterEvents"] = Code.NOT_SUPPORTED
    source = open_source(library)
    assert source.read(T0).readings[0].missing["gpu_xid_last_code"] is Missing.UNSUPPORTED
    source.close()


def test_a_change_of_the_drivers_verdict_is_an_event(h100: tuple[RecordedNvml, NvmlSource]) -> None:
    library, source = h100
    entries = library.devices[0]["nvmlDeviceGetFieldValues"]["value"]
    entries["NVML_FI_DEV_GET_GPU_RECOVERY_ACTION"] = {"nvmlReturn": 0, "valueType": 1, "value": 0}
    assert source.read(T0).events == ()
    entries["NVML_FI_DEV_GET_GPU_RECOVERY_ACTION"]["value"] = 1
    assert [(e.kind, e.code) for e in source.read(T0 + 10_000).events] == [(EventKind.RECOVERY_ACTION, 1)]
    assert source.read(T0 + 20_000).events == ()


def test_driver_reload_reopens_within_the_same_reading(h100: tuple[RecordedNvml, NvmlSource]) -> None:
    library, source = h100
    source.read(T0)
    library.opened = False
    batch = source.read(T0 + 10_000)
    assert all(reading.values for reading in batch.readings)
    assert [e.kind for e in batch.events] == [EventKind.DRIVER_RELOAD]
    assert library.opening == 2


def test_driver_that_stays_away_is_retried_with_growing_pauses(h100: tuple[RecordedNvml, NvmlSource]) -> None:
    library, source = h100
    source.read(T0)
    library.opened, library.init_error = False, int(Code.DRIVER_NOT_LOADED)
    first = source.read(T0 + 10_000)
    assert {reason for r in first.readings for reason in r.missing.values()} == {Missing.LOST}
    assert [e.kind for e in first.events] == [EventKind.GPU_LOST] * 3
    pauses = []
    at, opened = T0 + 10_000, T0 + 10_000
    tries = _count_opens(library)
    while len(pauses) < 7:
        at += 500
        before = tries()
        source.read(at)
        if tries() > before:
            pauses.append((at - opened) / 1000)
            opened = at
    assert pauses == [1, 2, 4, 8, 16, 32, 60]
    library.init_error = None
    back = source.read(at + 61_000)
    assert all(reading.values for reading in back.readings)
    assert [e.kind for e in back.events] == [EventKind.DRIVER_RELOAD] + [EventKind.GPU_FOUND] * 3


def test_replaced_driver_needs_a_new_process(h100: tuple[RecordedNvml, NvmlSource]) -> None:
    library, source = h100
    library.failures[0, "nvmlDeviceGetTemperatureV"] = Code.LIB_RM_VERSION_MISMATCH
    with pytest.raises(Unavailable, match="restart the agent"):
        source.read(T0)


def test_library_missing_is_said_in_one_line() -> None:
    with pytest.raises(Unavailable) as caught:
        NvmlSource(RecordedNvml([], init_error=dump("error-library-missing")["nvml_init"]["code"]), PLACE)
    text = str(caught.value)
    assert "libnvidia-ml.so.1 was not found" in text
    assert "install the NVIDIA driver" in text
    assert "\n" not in text
    assert caught.value.exit_code == 3


def test_driver_not_loaded_is_said_in_one_line() -> None:
    with pytest.raises(Unavailable, match=r"kernel driver is not loaded.*modprobe nvidia"):
        NvmlSource(RecordedNvml([], init_error=dump("error-driver-not-loaded")["nvml_init"]["code"]), PLACE)


_OPEN_FOR_REAL = """
from tocsin.collector.nvml.source import NvmlSource
from tocsin.collector.source import NodeIdentity
from tocsin.collector.nvml.library import PynvmlLibrary
from tocsin.domain.errors import Unavailable
try:
    NvmlSource(PynvmlLibrary(), NodeIdentity("node-1")).close()
except Unavailable as problem:
    raise SystemExit(str(problem))
"""


def test_the_real_library_opens_or_says_in_one_line_why_not() -> None:
    # In a process of its own: in this one a mock may have been loaded under the library's name.
    done = subprocess.run(
        [sys.executable, "-c", _OPEN_FOR_REAL], capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode:
        assert done.stderr.count("\n") == 1
        assert done.stderr.startswith(("NVML is missing", "the NVIDIA kernel driver is not loaded"))


def test_mig_instances_have_a_parent_and_their_own_memory() -> None:
    library = RecordedNvml(devices("a100-healthy"))
    library.devices[0]["nvmlDeviceGetMigMode"] = {"value": [1, 1]}
    library.failures[0, "nvmlDeviceGetUtilizationRates"] = Code.NOT_SUPPORTED
    gib = 2**30
    library.migs[0] = [
        _instance("MIG-1", "NVIDIA A100-SXM4-40GB MIG 3g.20gb", 20 * gib, 15 * gib),
        _instance("MIG-2", "", 20 * gib, 5 * gib),
    ]
    source = open_source(library)
    readings = {reading.gpu.uuid: reading for reading in source.read(T0).readings}
    parent = readings["GPU-12345678-1234-1234-1234-123456780000"]
    first, second = readings["MIG-1"], readings["MIG-2"]
    assert (first.gpu.parent, first.gpu.mig_profile) == (parent.gpu.uuid, "3g.20gb")
    assert second.gpu.mig_profile == "3g.20gb", "made of the attributes where the name does not tell"
    assert first.values["gpu_memory_used_ratio"] == 0.75
    assert parent.values['gpu_mig_instance_memory_used_ratio{instance="MIG-1"}'] == 0.75
    assert parent.values['gpu_mig_instances{profile="3g.20gb"}'] == 2
    assert parent.missing["gpu_utilization_ratio"] is Missing.UNSUPPORTED
    assert {gpu.uuid for gpu in source.gpus()} == set(readings)
    library.failures[0, "*"] = Code.GPU_IS_LOST
    lost = {reading.gpu.uuid: reading for reading in source.read(T0 + 10_000).readings}
    assert set(lost["MIG-1"].missing.values()) == {Missing.LOST}
    source.close()


def test_close_is_safe_to_repeat(h100: tuple[RecordedNvml, NvmlSource]) -> None:
    library, source = h100
    source.close()
    source.close()
    assert not library.opened


def _instance(uuid: str, name: str, total: int, used: int) -> dict[str, Any]:
    memory = {"version": 0, "total": total, "reserved": 0, "free": total - used, "used": used}
    return {
        "nvmlDeviceGetUUID": {"value": uuid},
        "nvmlDeviceGetName": {"value": name},
        "nvmlDeviceGetAttributes_v2": {"value": {"gpuInstanceSliceCount": 3, "memorySizeMB": total // 2**20}},
        "nvmlDeviceGetMemoryInfo(33554472,)": {"value": memory},
        "nvmlDeviceGetComputeRunningProcesses": {"value": []},
    }


def _count_opens(library: RecordedNvml) -> Any:
    count = 0
    original = library.open

    def counted() -> None:
        nonlocal count
        count += 1
        original()

    library.open = counted  # type: ignore[method-assign]
    return lambda: count

"""Traps of NVML that corrupt a collector silently, and the test that holds each (other files: ``test_nvml_<file>``).

| trap | file | test |
|---|---|---|
| sentinels are data (all ones, DCGM's blanks) | | `sentinels_of_any_kind_are_blank` |
| a process's memory of all ones is "not known" | | `memory_of_a_process_that_is_not_known_is_blank` |
| a batch of fields succeeds while entries fail | door | `entries_of_a_batch_fail_one_by_one` |
| ... and each is another reason | | `entries_fail_one_by_one` |
| values must be decoded by their type | door | `field_values_are_decoded_by_their_type` |
| margins are signed | | `a_margin_below_zero_stays_below_zero` |
| link fields need the link as scope, all links are UINT_MAX | | `scopes_say_which_link_is_meant` |
| nvidia-ml-py wrappers that never check the return code | | `no_wrapper_that_hides_its_failure_is_used` |
| the list of processes grows between its two calls | source | `process_list_is_read_again_when_it_grew_in_between` |
| R535 fills a longer structure per process | | `a_list_in_a_structure_of_another_length_is_not_believed` |
| nvidia-ml-py gives a vGPU's memory four bytes of room, not eight | | `memory_of_a_vgpu_has_room_for_eight_bytes` |
| an empty list raises the error "success" | | `the_error_success_is_no_failure` |
| memory version 1 counts what is reserved as used | source | `old_driver_without_memory_version_2_does_not_...` |
| the deprecated temperature call | source | `temperature_falls_back_to_the_deprecated_call` |
| PCIe throughput blocks 20 ms a counter | cadence | `pcie_throughput_is_measured_once_a_slow_period_...` |
| units: mW, mJ, ns, KiB, MHz, percent | | `units_are_base_units` |
| packed error rates of NVLink 5 | | `packed_error_rates_are_unpacked` |
| counters wrap or start again | source | `rates_come_from_the_byte_counters` |
| a sum over links that lacks a link looks like a restart | cadence | `a_sum_that_lacks_a_link_is_no_sum` |
| average power is sampled a quarter of the time: use energy | | `energy_is_read_beside_power` |
| `>= 128` on the clock reasons also matches 0x100 | cadence | `every_bit_of_the_clock_reasons_is_a_metric` |
| GPM samples closer than 100 ms | cadence | `samples_that_lie_too_close_are_not_taken` |
| a lost GPU still answers from caches | source | `a_lost_gpu_has_only_reasons_and_the_others_their_values` |
| a failed event wait taken for failed GPUs | events | `a_wait_that_fails_is_no_failure_of_any_gpu` |
| an XID gauge hides repeats and never clears | events | `xids_are_counted_by_code_and_gpu` |
| NotFound, Timeout, InsufficientSize are normal answers | | `normal_answers_are_no_failures` |
| a handle used after a reload crashes the process | source | `driver_reload_reopens_within_the_same_reading` |
| closing the library under a call that hangs | workers | `the_library_is_not_closed_under_a_call_that_hangs` |
| init and shutdown per reading leak | | `the_library_is_opened_once` |
| openings are counted: one too many is never closed | opening | `openings_that_lead_nowhere_are_closed_again` |
| open handles block resets and unbinding | opening | `the_gpus_are_let_go_of_on_request` |
| a library that is open may not see a new GPU | opening | `a_gpu_that_only_a_new_opening_shows_is_found` |
| without persistence mode opening takes seconds a GPU | opening | `a_library_that_takes_its_time_to_open_...` |
| a clock that is set makes rates wrong | opening | `rates_do_not_follow_a_clock_that_is_set` |
"""

from __future__ import annotations

import ctypes
import inspect
from collections.abc import Iterator
from typing import Any

import pynvml
import pytest

from tocsin.collector.nvml import events as nvml_events
from tocsin.collector.nvml.answers import divisor, scaled, unpack_ber
from tocsin.collector.nvml.library import ALL_LINKS, Code, NvmlFailure, PynvmlLibrary, coded
from tocsin.collector.nvml.probes import (
    BYTE_FIELDS,
    CALLS,
    FIELDS,
    LINK_CALLS,
    LINK_FIELDS,
    PROBED,
    THROUGHPUT,
    Tier,
    link_fields,
    tier_of,
)
from tocsin.collector.nvml.source import NvmlSource
from tocsin.collector.source import NodeIdentity
from tocsin.domain.metrics import METRICS
from tocsin.domain.reading import Missing, Reading
from tocsin_testing.builders import T0
from tocsin_testing.nvml_replay import RecordedNvml, devices

PLACE = NodeIdentity("node-1")
BLANKS = (0x7FFF_FFFF_FFFF_FFF0, 0x7FFF_FFFF_FFFF_FFF2, 2**64 - 1, float("nan"), float("inf"))
PROCESSES = "nvmlDeviceGetComputeRunningProcesses"


@pytest.fixture(autouse=True)
def quick_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing a source waits for its event thread, which waits in the driver."""
    monkeypatch.setattr(nvml_events, "WAIT_MS", 10)


Opened = tuple[RecordedNvml, NvmlSource]


@pytest.fixture
def h100() -> Iterator[Opened]:
    library = RecordedNvml(devices("h100-healthy")[:1])
    source = NvmlSource(library, PLACE, 10.0)
    yield library, source
    source.close()


def fields(library: RecordedNvml) -> dict[str, Any]:
    found: dict[str, Any] = library.devices[0]["nvmlDeviceGetFieldValues"]["value"]
    return found


def first(source: NvmlSource, at_ms: int = T0) -> Reading:
    return source.read(at_ms).readings[0]


@pytest.mark.parametrize("blank", BLANKS)
def test_sentinels_of_any_kind_are_blank(h100: Opened, blank: float) -> None:
    library, source = h100
    name = "NVML_FI_DEV_MEMORY_TEMP"
    fields(library)[name] = {"nvmlReturn": 0, "valueType": 3, "value": blank}
    library.devices[0]["nvmlDeviceGetMarginTemperature"] = {"value": blank}
    library.gpm_values[0] = {2: blank, 3: 50.0}
    source.read(T0)
    reading = first(source, T0 + 5_000)
    for metric in ("gpu_memory_temperature_celsius", "gpu_thermal_margin_celsius", "gpu_sm_active_ratio"):
        assert reading.missing[metric] is Missing.BLANK
        assert metric not in reading.values
    assert reading.values["gpu_sm_occupancy_ratio"] == 0.5
    assert reading.values["gpu_power_watts"] > 0, "the rest of the batch stays"


def test_memory_of_a_process_that_is_not_known_is_blank(h100: Opened) -> None:
    library, source = h100
    library.devices[0][PROCESSES] = {
        "value": [{"pid": 1, "usedGpuMemory": None}, {"pid": 2, "usedGpuMemory": 2**64 - 1}]
    }
    reading = first(source)
    assert reading.values["gpu_processes"] == 2
    for pid in (1, 2):
        assert reading.missing[f'gpu_process_memory_used_bytes{{pid="{pid}"}}'] is Missing.BLANK


def test_a_list_in_a_structure_of_another_length_is_not_believed(h100: Opened) -> None:
    library, source = h100
    library.devices[0][PROCESSES] = {
        "value": [{"pid": 4711, "usedGpuMemory": 2**30}, {"pid": 0, "usedGpuMemory": 4712}]
    }
    reading = first(source)
    assert reading.missing["gpu_processes"] is Missing.BLANK, "a GPU that looks free may be reset"
    assert not [key for key in reading.values if key.startswith("gpu_process_memory_used_bytes")]


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (Code.NOT_SUPPORTED, Missing.UNSUPPORTED),
        (Code.NO_PERMISSION, Missing.DENIED),
        (Code.UNKNOWN, Missing.BLANK),
        (Code.NOT_READY, Missing.BLANK),
        (Code.RESET_REQUIRED, Missing.RESET_REQUIRED),
    ],
)
def test_entries_fail_one_by_one(h100: Opened, code: int, reason: Missing) -> None:
    library, source = h100
    library.field_failures[0, pynvml.NVML_FI_DEV_MEMORY_TEMP] = code
    reading = first(source)
    assert reading.missing["gpu_memory_temperature_celsius"] is reason
    assert reading.values["gpu_power_watts"] > 0
    assert reading.values["gpu_energy_joules_total"] > 0


def test_a_passing_failure_of_an_entry_passes(h100: Opened) -> None:
    library, source = h100
    library.field_failures[0, pynvml.NVML_FI_DEV_MEMORY_TEMP] = Code.UNKNOWN
    assert first(source).missing["gpu_memory_temperature_celsius"] is Missing.BLANK
    library.field_failures.clear()
    assert "gpu_memory_temperature_celsius" in first(source, T0 + 1_000).values


def test_a_margin_below_zero_stays_below_zero(h100: Opened) -> None:
    library, source = h100
    for name in ("SHUTDOWN", "SLOWDOWN", "MEM_MAX", "GPU_MAX"):
        fields(library)[f"NVML_FI_DEV_TEMPERATURE_{name}_TLIMIT"] = {"nvmlReturn": 0, "valueType": 5, "value": -5}
    library.devices[0]["nvmlDeviceGetMarginTemperature"] = {"value": -3}
    values = first(source).values
    for metric in ("shutdown", "slowdown", "memory_max", "max_operating"):
        assert values[f"gpu_tlimit_{metric}_celsius"] == -5
    assert values["gpu_thermal_margin_celsius"] == -3


def test_scopes_say_which_link_is_meant() -> None:
    sums = {probe.field for probe in FIELDS if probe.scope == ALL_LINKS}
    assert sums == {pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX}
    for row in (*LINK_FIELDS, *BYTE_FIELDS):
        assert [probe.scope for probe in link_fields((row,), 18)] == list(range(18))


def test_every_field_id_is_the_headers() -> None:
    known = {value for name, value in vars(pynvml).items() if name.startswith("NVML_FI_") and isinstance(value, int)}
    assert {row.field for row in (*FIELDS, *LINK_FIELDS, *BYTE_FIELDS)} <= known


def test_no_wrapper_that_hides_its_failure_is_used() -> None:
    used = {row.function for row in (*CALLS, *THROUGHPUT)} | {row.function for row in LINK_CALLS}
    assert used, "the tables name functions"
    for name in used:
        if name.startswith(("nvmlDeviceGetEncoder", "nvmlDeviceGetDecoder")):
            continue
        function = inspect.unwrap(getattr(pynvml, name))
        source = inspect.getsource(function)
        assert "_nvmlCheckReturn" in source or "raise NVMLError" in source or "return nvml" in source, name


def test_memory_of_a_vgpu_has_room_for_eight_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(_instance: Any, used: Any) -> int:
        assert ctypes.sizeof(used._obj) == 8
        used._obj.value = 20 * 2**30
        return 0

    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer", lambda _name: fill)
    assert PynvmlLibrary().call("nvmlVgpuInstanceGetFbUsage", 7) == 20 * 2**30


def test_the_error_success_is_no_failure(h100: Opened) -> None:
    def empty() -> Any:
        raise NvmlFailure(0, "SUCCESS")

    assert coded(empty)() == (Code.NOT_FOUND, None)
    library, source = h100
    library.failures[0, "nvmlDeviceGetProcessUtilization"] = 0
    reading = first(source)
    assert "gpu_process_sm_utilization_ratio" not in reading.missing, "nothing ran, which is no failure"


def test_normal_answers_are_no_failures(h100: Opened) -> None:
    library, source = h100
    library.failures[0, "nvmlDeviceGetProcessUtilization"] = Code.NOT_FOUND
    reading = first(source)
    assert "gpu_process_sm_utilization_ratio" not in {**reading.values, **reading.missing}


def test_units_are_base_units(h100: Opened) -> None:
    library, source = h100
    written = {
        "NVML_FI_DEV_POWER_AVERAGE": ("gpu_power_watts", 312_500, 312.5),
        "NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION": ("gpu_energy_joules_total", 1_234_567, 1234.567),
        "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN": ("gpu_hw_thermal_slowdown_seconds_total", 5 * 10**8, 0.5),
        "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX": ("gpu_nvlink_transmit_bytes_total", 3, 3072),
    }
    for name, (_, raw, _) in written.items():
        fields(library)[name] = {"nvmlReturn": 0, "valueType": 3, "value": raw}
    library.devices[0]["nvmlDeviceGetClockInfo(1,)"] = {"value": 1980}
    library.devices[0]["nvmlDeviceGetUtilizationRates"] = {"value": {"gpu": 57, "memory": 3}}
    values = first(source).values
    for metric, _, value in written.values():
        assert values[metric] == value
    assert values["gpu_sm_clock_hertz"] == 1.98e9
    assert values["gpu_utilization_ratio"] == 0.57, "exactly, not 0.5700000000000001"


@pytest.mark.parametrize("scale", sorted({probe.scale for probe in FIELDS}))
@pytest.mark.parametrize("raw", [0, 1, 57, 312_500, 2**53 - 1])
def test_dividing_a_batch_gives_what_scaling_one_value_gives(scale: float, raw: int) -> None:
    assert raw / divisor(scale) == scaled(raw, scale)


@pytest.mark.parametrize(
    ("packed", "rate"), [(0x10F, 1e-15), (0xC0A, 12e-10), (0x000, 0.0), (0xF00, 15.0), (2.5e-12, 2.5e-12)]
)
def test_packed_error_rates_are_unpacked(packed: float, rate: float) -> None:
    assert unpack_ber(packed) == pytest.approx(rate, rel=1e-12)


def test_energy_is_read_beside_power() -> None:
    for metric in ("gpu_energy_joules_total", "gpu_power_watts"):
        assert metric in PROBED
        assert tier_of(metric) is Tier.FAST


def test_a_denial_is_remembered_and_told_as_such(h100: Opened) -> None:
    library, source = h100
    function = "nvmlDeviceGetBAR1MemoryInfo"
    library.failures[0, function] = Code.NO_PERMISSION
    for step in range(3):
        assert first(source, T0 + step * 5_000).missing["gpu_bar1_used_bytes"] is Missing.DENIED
    assert library.calls.count(function) == 1


def test_the_library_is_opened_once(h100: Opened) -> None:
    library, source = h100
    for step in range(100):
        source.read(T0 + step * 5_000)
    assert library.opening == 1


def test_every_tier_reads_what_belongs_to_it() -> None:
    tiers = {name: tier_of(name) for name in PROBED}
    assert {tiers[name] for name in PROBED if METRICS[name].static} == {Tier.STATIC}
    fast = {name for name, tier in tiers.items() if tier is Tier.FAST}
    slow = {name for name, tier in tiers.items() if tier is Tier.SLOW}
    assert {"gpu_temperature_celsius", "gpu_power_watts", "gpu_utilization_ratio", "gpu_memory_used_bytes"} <= fast
    assert {"gpu_clocks_hw_power_brake", "gpu_recovery_action", "gpu_energy_joules_total"} <= fast
    assert {"gpu_ecc_dram_corrected_volatile_total", "gpu_row_remap_banks", "gpu_pcie_link_width"} <= slow
    assert {"gpu_fabric_state", "gpu_nvlink_replay_errors_total", "gpu_pcie_errors_total"} <= slow

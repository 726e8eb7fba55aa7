"""Each way in which NVML silently corrupts a collector, met through ctypes on the mock library."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pynvml
import pytest

import tocsin
from tocsin.collector.nvml.library import PynvmlLibrary
from tocsin.collector.nvml.source import NvmlSource
from tocsin.collector.source import NodeIdentity
from tocsin.domain.reading import Missing, Reading, sanitise
from tocsin_testing.builders import T0
from tocsin_testing.mock_gpus import ANY_LINK, GIB, MIB, a100, b200, h100, packed_rate, split, t4, vgpu
from tocsin_testing.mock_nvml import MockFleet, MockGpu

MINUTE = 60_000
Read = Callable[..., Reading]


class Bench:
    """A fleet and the source that reads it; `read` moves time on by a minute, so that every cadence is due."""

    def __init__(self, fleet: MockFleet, stack: ExitStack, without: tuple[str, ...]) -> None:
        stack.enter_context(fleet.loaded(without))
        self.fleet = fleet
        self.source = NvmlSource(PynvmlLibrary(), NodeIdentity("node-1"), 10.0)
        stack.callback(self.source.close)
        self.now_ms = T0

    def read_all(self, after_ms: int = MINUTE) -> dict[str, Reading]:
        self.fleet.apply()
        self.now_ms += after_ms
        return {reading.gpu.uuid: reading for reading in self.source.read(self.now_ms).readings}

    def read(self, gpu: int = 0, after_ms: int = MINUTE) -> Reading:
        return self.read_all(after_ms)[self.fleet.gpus[gpu].uuid]


Open = Callable[..., Bench]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Open]:
    with ExitStack() as stack:

        def make(*gpus: MockGpu, without: tuple[str, ...] = ()) -> Bench:
            return Bench(MockFleet(tmp_path, gpus), stack, without)

        yield make


def unlabelled(values: Mapping[str, object], metric: str) -> dict[str, object]:
    return {key: value for key, value in values.items() if key.split("{")[0] == metric}


@pytest.mark.parametrize(
    ("kind", "raw", "value"),
    [
        ("double", 61.5, 61.5),
        ("uint", 61, 61),
        ("ulong", 61, 61),
        ("ull", 61, 61),
        ("sll", -7, -7),
        ("int", -7, -7),
        ("ushort", 61, 61),
    ],
)
def test_a_field_is_decoded_by_the_type_that_comes_with_it(bench: Open, kind: str, raw: float, value: float) -> None:
    gpu = h100()
    gpu.field(82, raw, kind)
    assert bench(gpu).read().values["gpu_memory_temperature_celsius"] == value


def test_a_type_changes_from_one_reading_to_the_next(bench: Open) -> None:
    desk = bench(h100())
    desk.read()
    desk.fleet.gpus[0].field(82, -3, "int")
    assert desk.read().values["gpu_memory_temperature_celsius"] == -3


def test_a_type_of_value_of_tomorrow_is_a_blank(bench: Open) -> None:
    gpu = h100()
    gpu.field(82, 61, "9")
    reading = bench(gpu).read()
    assert reading.missing["gpu_memory_temperature_celsius"] is Missing.BLANK
    assert "gpu_energy_joules_total" in reading.values


def test_thermal_limits_are_signed(bench: Open) -> None:
    values = bench(h100()).read().values
    assert values["gpu_tlimit_shutdown_celsius"] == -8
    assert values["gpu_tlimit_slowdown_celsius"] == -2


def test_a_margin_below_zero_stays_below_zero(bench: Open) -> None:
    gpu = h100()
    gpu.set("nvmlDeviceGetMarginTemperature", to=-4)
    assert bench(gpu).read().values["gpu_thermal_margin_celsius"] == -4


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("NOT_SUPPORTED", Missing.UNSUPPORTED),
        ("NO_PERMISSION", Missing.DENIED),
        ("INVALID_ARGUMENT", Missing.UNSUPPORTED),
        ("RESET_REQUIRED", Missing.RESET_REQUIRED),
        ("UNKNOWN", Missing.BLANK),
    ],
)
def test_a_batch_of_fields_succeeds_while_one_entry_fails(bench: Open, code: str, reason: Missing) -> None:
    gpu = h100()
    gpu.refuse_field(82, code)
    reading = bench(gpu).read()
    assert reading.missing["gpu_memory_temperature_celsius"] is reason
    assert reading.values["gpu_energy_joules_total"] >= 9_000_000
    assert reading.values["gpu_power_instant_watts"] > 600


@pytest.mark.parametrize("blank", [2**63 - 16, 2**63 - 14, 2**64 - 1])
def test_blank_sentinels_are_no_numbers(bench: Open, blank: int) -> None:
    gpu = h100()
    gpu.field(197, blank)
    reading = bench(gpu).read()
    assert reading.missing["gpu_pcie_transmit_bytes_total"] is Missing.BLANK
    assert "gpu_pcie_receive_bytes_total" in reading.values


def test_a_process_whose_memory_is_not_known_is_blank_and_counts(bench: Open) -> None:
    gpu = h100()
    gpu.process(77, None)
    reading = bench(gpu).read()
    assert reading.values["gpu_processes"] == 2
    assert reading.values['gpu_process_memory_used_bytes{pid="40000"}'] == 60 * GIB
    assert reading.missing['gpu_process_memory_used_bytes{pid="77"}'] is Missing.BLANK
    assert max(unlabelled(reading.values, "gpu_process_memory_used_bytes").values()) < 2**60  # type: ignore[operator,type-var]


def test_a_list_of_processes_that_grows_between_two_calls_is_asked_again(bench: Open) -> None:
    gpu = h100()
    gpu.burst(2)
    assert bench(gpu).read().values["gpu_processes"] == 1


def test_a_list_that_keeps_growing_is_not_known_and_never_an_empty_one(bench: Open) -> None:
    gpu = h100()
    gpu.burst(1_000)
    reading = bench(gpu).read()
    assert "gpu_processes" not in reading.values, "a GPU that looks free may be reset"
    assert reading.missing["gpu_processes"] is Missing.BLANK
    assert "gpu_temperature_celsius" in reading.values


def test_what_a_gpu_does_not_support_is_asked_once(bench: Open) -> None:
    desk = bench(t4())
    desk.read()
    desk.fleet.forget_calls()
    again = desk.read()
    asked = desk.fleet.all_calls()
    for function in ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetMarginTemperature", "nvmlDeviceGetGpuFabricInfoV"):
        assert function not in asked
    assert again.missing["gpu_thermal_margin_celsius"] is Missing.UNSUPPORTED
    assert again.missing["gpu_fabric_state"] is Missing.UNSUPPORTED


def test_static_values_are_read_once_and_the_library_opened_once(bench: Open) -> None:
    desk = bench(h100(0), h100(1))
    first = desk.read()
    desk.fleet.forget_calls()
    second = desk.read()
    asked = desk.fleet.all_calls()
    for function in ("Name", "UUID", "MaxClockInfo", "TemperatureThreshold", "MaxPcieLinkWidth", "HandleByIndex_v2"):
        assert f"nvmlDeviceGet{function}" not in asked
    assert second.values["gpu_sm_clock_max_hertz"] == first.values["gpu_sm_clock_max_hertz"] == 1980e6
    assert desk.fleet.opens == 1


@pytest.mark.parametrize(
    ("metric", "newest", "value"),
    [
        ("gpu_temperature_celsius", "nvmlDeviceGetTemperatureV", 58),
        ("gpu_clocks_event_reasons_bitmask", "nvmlDeviceGetCurrentClocksEventReasons", 4),
        ("gpu_memory_total_bytes", "nvmlDeviceGetMemoryInfo_v2", 81559 * MIB),
    ],
)
def test_an_older_driver_is_asked_by_the_deprecated_call(bench: Open, metric: str, newest: str, value: float) -> None:
    assert bench(h100(), without=(newest,)).read().values[metric] == value


def test_a_deprecated_call_is_not_made_where_the_new_one_answers(bench: Open) -> None:
    desk = bench(h100())
    desk.read()
    asked = desk.fleet.all_calls()
    for function in ("Temperature", "CurrentClocksThrottleReasons", "MemoryInfo", "FanSpeed", "PowerState"):
        assert desk.fleet.calls(f"nvmlDeviceGet{function}") <= (1 if function == "FanSpeed" else 0), asked


def test_the_old_memory_structure_must_not_pass_reserved_memory_off_as_used(bench: Open) -> None:
    desk = bench(h100(), without=("nvmlDeviceGetMemoryInfo_v2",))
    reading = desk.read()
    assert reading.values["gpu_memory_free_bytes"] > 0
    for metric in ("gpu_memory_used_bytes", "gpu_memory_reserved_bytes", "gpu_memory_used_ratio"):
        assert reading.missing[metric] is Missing.UNSUPPORTED


def test_a_list_that_is_denied_is_not_known_and_never_an_empty_one(bench: Open) -> None:
    gpu = h100()
    gpu.fail("nvmlDeviceGetComputeRunningProcesses_v3", "NO_PERMISSION")
    reading = bench(gpu).read()
    assert "gpu_processes" not in reading.values, "a GPU that looks free may be reset"
    assert reading.missing["gpu_processes"] is Missing.DENIED


def test_memory_is_in_bytes_and_the_ratio_leaves_out_what_is_reserved(bench: Open) -> None:
    gpu = h100()
    gpu.set("nvmlDeviceGetMemoryInfo_v2", to=(80 * GIB, 16 * GIB, 32 * GIB, 32 * GIB))
    values = bench(gpu).read().values
    assert (values["gpu_memory_total_bytes"], values["gpu_memory_used_ratio"]) == (80 * GIB, 0.5)


def test_an_older_structure_is_taken_where_the_driver_refuses_the_newest(bench: Open) -> None:
    gpu = h100()
    gpu.set("nvmlDeviceGetGpuFabricInfoV", to=(3, 0, 1, 0, 1, 2))
    reading = bench(gpu).read()
    assert reading.values["gpu_fabric_state"] == 3
    assert "gpu_fabric_health" not in reading.values, "version 2 has no health"


def test_a_driver_without_any_function_of_the_last_years_is_still_read(bench: Open) -> None:
    newer = (
        "nvmlDeviceGetMarginTemperature",
        "nvmlDeviceGetTemperatureV",
        "nvmlDeviceGetGpuFabricInfoV",
        "nvmlDeviceGetRepairStatus",
        "nvmlDeviceGetUnrepairableMemoryFlag_v1",
        "nvmlDeviceGetSramEccErrorStatus",
        "nvmlDeviceGetJpgUtilization",
        "nvmlDeviceGetOfaUtilization",
        "nvmlDeviceGetMemoryLimits_v1",
        "nvmlDeviceGetFanSpeedRPM",
        "nvmlGpmQueryDeviceSupport",
        "nvmlGpmSampleAlloc",
        "nvmlGpmSampleGet",
        "nvmlGpmMetricsGet",
        "nvmlDeviceGetProcessUtilization",
        "nvmlDeviceGetActiveVgpus",
    )
    desk = bench(h100(), without=newer)
    reading = desk.read()
    assert reading.values["gpu_temperature_celsius"] == 58
    assert reading.missing["gpu_fabric_state"] is Missing.UNSUPPORTED
    assert len({key.split("{")[0] for key in reading.values}) > 65


def test_error_rates_of_nvlink_5_are_unpacked(bench: Open) -> None:
    gpu = b200()
    gpu.field(220, packed_rate(12, 9), scope=3)
    gpu.field(222, packed_rate(0, 255), scope=3)
    values = bench(gpu).read().values
    assert values['gpu_nvlink_effective_ber_ratio{link="3"}'] == pytest.approx(12e-9)
    assert values['gpu_nvlink_symbol_ber_ratio{link="3"}'] == 0
    assert values['gpu_nvlink_symbol_errors_total{link="17"}'] == 0


def test_link_fields_name_their_link_and_all_links_are_uint_max(bench: Open) -> None:
    gpu = h100()
    gpu.field(161, 41, scope=7)
    gpu.field(138, 1_000, scope=ANY_LINK)
    gpu.field(138, 999_999, scope=0)
    values = bench(gpu).read().values
    assert values['gpu_nvlink_replay_errors_total{link="7"}'] == 41
    assert values['gpu_nvlink_replay_errors_total{link="6"}'] == 0
    assert values["gpu_nvlink_transmit_bytes_total"] == 1_000 * 1024


def test_a_gpu_without_links_has_no_metrics_of_links(bench: Open) -> None:
    reading = bench(t4()).read()
    assert unlabelled(reading.values, "gpu_nvlink_up") == {}
    assert reading.missing["gpu_nvlink_up"] is Missing.UNSUPPORTED


UNCHECKED = (
    "nvmlDeviceSetPowerManagementLimit_v2",
    "nvmlDeviceSetClockOffsets",
    "nvmlDeviceGetClockOffsets",
    "nvmlDeviceGetCapabilities",
    "nvmlDeviceSetVirtualizationMode",
    "nvmlSystemGetConfComputeSettings",
    "nvmlDeviceGetPowerMizerMode_v1",
    "nvmlDeviceSetPowerMizerMode_v1",
    "nvmlVgpuInstanceSetEncoderCapacity",
)
"""Wrappers of nvidia-ml-py that never look at the code that NVML returns."""


def test_a_wrapper_that_does_not_check_passes_a_failure_off_as_success(bench: Open) -> None:
    desk = bench(h100())
    desk.fleet.gpus[0].fail("nvmlDeviceSetPowerManagementLimit_v2", "NO_PERMISSION")
    desk.fleet.gpus[0].fail("nvmlDeviceSetPowerManagementLimit", "NO_PERMISSION")
    desk.fleet.apply()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    pynvml.nvmlDeviceSetPowerManagementLimit_v2(handle, pynvml.NVML_POWER_SCOPE_GPU, 300_000)
    with pytest.raises(pynvml.NVMLError_NoPermission):
        pynvml.nvmlDeviceSetPowerManagementLimit(handle, 300_000)
    assert pynvml.nvmlDeviceGetPowerManagementLimit(handle) == 700_000


def test_wrappers_that_do_not_check_are_used_nowhere() -> None:
    root = Path(tocsin.__file__).parent
    sources = {path: path.read_text() for path in root.rglob("*.py")}
    assert len(sources) > 100
    named = re.compile("|".join(rf"\b{name}\b" for name in UNCHECKED))
    assert {str(path): found.group() for path, text in sources.items() if (found := named.search(text))} == {}


def test_memory_of_a_vgpu_above_4_gib_is_not_cut_to_32_bits(bench: Open) -> None:
    desk = bench(h100())
    vgpu(desk.fleet.gpus[0], desk.fleet.system, 21)
    reading = desk.read()
    used = unlabelled(reading.values, "gpu_mig_instance_memory_used_ratio")
    assert list(used.values()) == [0.25], "5 of 20 GiB; pynvml's own wrapper has room for 4 bytes"


def test_mig_takes_metrics_away_from_the_gpu_and_gives_some_to_the_instances(bench: Open) -> None:
    desk = bench(split(h100(), "3g.40gb", "1g.10gb"))
    readings = desk.read_all()
    whole = readings[desk.fleet.gpus[0].uuid]
    for metric in ("gpu_utilization_ratio", "gpu_memory_copy_utilization_ratio", "gpu_encoder_utilization_ratio"):
        assert whole.missing[metric] is Missing.UNSUPPORTED
    assert whole.values["gpu_row_remap_failure"] == 0, "the call is refused under MIG, field 145 is not"
    assert whole.values['gpu_mig_instances{profile="3g.40gb"}'] == 1
    instances = [reading for reading in readings.values() if reading.gpu.parent]
    assert [reading.gpu.mig_profile for reading in instances] == ["3g.40gb", "1g.10gb"]
    assert [reading.values["gpu_memory_total_bytes"] for reading in instances] == [40 * GIB, 10 * GIB]


def test_an_unprivileged_reader_of_a_mig_gpu_is_told_what_is_denied(bench: Open) -> None:
    gpu = split(a100(), "1g.10gb")
    for function in ("MemoryInfo_v2", "BAR1MemoryInfo", "ComputeRunningProcesses_v3"):
        gpu.fail(f"nvmlDeviceGet{function}", "NO_PERMISSION")
    for function in ("MemoryInfo_v2", "BAR1MemoryInfo"):
        gpu.migs[0].fail(f"nvmlDeviceGet{function}", "OK")
    desk = bench(gpu)
    readings = desk.read_all()
    whole = readings[desk.fleet.gpus[0].uuid]
    assert whole.missing["gpu_bar1_used_bytes"] is Missing.DENIED
    assert whole.missing["gpu_processes"] is Missing.DENIED
    (instance,) = (reading for reading in readings.values() if reading.gpu.parent)
    assert instance.values["gpu_memory_total_bytes"] == 10 * GIB


def test_the_call_that_blocks_20_ms_is_not_made_where_counters_answer(bench: Open) -> None:
    desk = bench(h100())
    desk.fleet.gpus[0].set("nvmlDeviceGetPcieThroughput", 0, to=5)
    for _ in range(3):
        reading = desk.read(after_ms=5_000)
    assert desk.fleet.calls("nvmlDeviceGetPcieThroughput") == 0
    assert reading.values["gpu_pcie_transmit_bytes_per_second"] == 1_300_000_000 / 5


def test_the_call_that_blocks_20_ms_is_made_at_its_own_cadence_where_nothing_else_answers(bench: Open) -> None:
    desk = bench(t4())
    for counter in (0, 1):
        desk.fleet.gpus[0].set("nvmlDeviceGetPcieThroughput", counter, to=7)
    for _ in range(12):
        reading = desk.read(after_ms=5_000)
        assert reading.values["gpu_pcie_receive_bytes_per_second"] == 7 * 1024
    assert desk.fleet.calls("nvmlDeviceGetPcieThroughput") <= 2 * 2, "two counters, once a minute"


def test_a_counter_that_starts_again_is_no_negative_rate(bench: Open) -> None:
    desk = bench(a100())
    desk.read()
    desk.fleet.gpus[0].field(197, 10)
    reading = desk.read()
    assert reading.missing["gpu_pcie_transmit_bytes_per_second"] is Missing.BLANK
    assert reading.values["gpu_pcie_transmit_bytes_total"] == 10
    desk.fleet.gpus[0].field(197, 60_010)
    assert desk.read().values["gpu_pcie_transmit_bytes_per_second"] == 1_000


@pytest.mark.parametrize("make", [h100, a100, b200, t4])
def test_nothing_that_the_mock_answers_is_implausible(bench: Open, make: Callable[[int], MockGpu]) -> None:
    desk = bench(make(0))
    for _ in range(3):
        assert sanitise(desk.read())[1] == []

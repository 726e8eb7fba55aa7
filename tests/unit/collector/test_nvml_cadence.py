"""What is read when: fast and slow tiers, activity between two samples, processes, links, fallbacks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tocsin.collector.nvml import events as nvml_events
from tocsin.collector.nvml.library import Code
from tocsin.collector.nvml.probes import Tier
from tocsin.collector.nvml.source import NvmlSource
from tocsin.collector.source import NodeIdentity
from tocsin.domain.clock import MINUTE, SECOND
from tocsin.domain.reading import Missing, Reading
from tocsin.telemetry.metrics import OwnMetrics
from tocsin_testing.builders import T0
from tocsin_testing.nvml_replay import RecordedNvml, devices

PLACE = NodeIdentity("node-1")
WIDTH = "nvmlDeviceGetCurrPcieLinkWidth"
LISTS = "nvmlDeviceGetComputeRunningProcesses"


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


def entries(library: RecordedNvml, device: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = library.devices[device]["nvmlDeviceGetFieldValues"]["value"]
    return found


def entry(value: float, kind: int = 3) -> dict[str, Any]:
    return {"nvmlReturn": 0, "valueType": kind, "value": value}


def whole(source: NvmlSource, at_ms: int) -> Reading:
    return next(reading for reading in source.read(at_ms).readings if not reading.gpu.parent)


def test_slow_values_stand_for_their_period_and_are_then_read_anew(h100: Opened) -> None:
    library, source = h100
    assert whole(source, T0).values["gpu_pcie_link_width"] == 16
    source.read(T0 + MINUTE)
    library.calls.clear()
    library.devices[0][WIDTH] = {"value": 8}
    held = whole(source, T0 + MINUTE + 59 * SECOND)
    assert held.values["gpu_pcie_link_width"] == 16
    assert WIDTH not in library.calls
    assert library.calls.count("nvmlDeviceGetUtilizationRates") == 1, "fast values are read every time"
    assert whole(source, T0 + 2 * MINUTE).values["gpu_pcie_link_width"] == 8


def test_nothing_of_a_healthy_gpu_is_ever_not_due_after_the_first_reading(h100: Opened) -> None:
    _, source = h100
    names = set(whole(source, T0).values)
    for step in range(1, 30):
        reading = whole(source, T0 + step * 5 * SECOND)
        assert set(reading.values) == names
        assert Missing.NOT_DUE not in reading.missing.values()


def test_a_slow_value_that_fails_when_due_does_not_stay(h100: Opened) -> None:
    library, source = h100
    whole(source, T0)
    library.failures[0, WIDTH] = Code.UNKNOWN
    later = whole(source, T0 + MINUTE)
    assert later.missing["gpu_pcie_link_width"] is Missing.BLANK
    assert "gpu_pcie_link_width" not in later.values
    del library.failures[0, WIDTH]
    assert whole(source, T0 + 2 * MINUTE).values["gpu_pcie_link_width"] == 16


def test_a_clock_that_goes_back_makes_everything_due(h100: Opened) -> None:
    library, source = h100
    source.read(T0)
    library.devices[0][WIDTH] = {"value": 4}
    assert whole(source, T0 - MINUTE).values["gpu_pcie_link_width"] == 4


def test_gpus_take_turns_with_their_slow_questions() -> None:
    library = RecordedNvml([*devices("h100-healthy"), *devices("h100-hot")])
    source = NvmlSource(library, PLACE, 10.0)
    source.read(T0)
    most = 0
    for step in range(1, 25):
        library.calls.clear()
        source.read(T0 + step * 5 * SECOND)
        most = max(most, library.calls.count(WIDTH))
    assert most == 1
    source.close()


def test_process_lists_have_a_period_between_fast_and_slow(h100: Opened) -> None:
    library, source = h100
    assert Tier.FAST.value < Tier.PROCESSES.value < Tier.SLOW.value
    source.read(T0)
    source.read(T0 + Tier.PROCESSES.value)
    library.calls.clear()
    source.read(T0 + Tier.PROCESSES.value + 29 * SECOND)
    assert LISTS not in library.calls
    source.read(T0 + 2 * Tier.PROCESSES.value)
    assert LISTS in library.calls


def test_activity_needs_two_samples_and_is_asked_in_one_call(h100: Opened) -> None:
    library, source = h100
    library.gpm_values[0] = {1: 97.0, 2: 91.5, 3: 40.0, 5: 62.0, 7: 60.0, 10: 55.0, 12: 11.0, 20: 2.0, 61: 100.0}
    first = whole(source, T0)
    assert first.missing["gpu_sm_active_ratio"] is Missing.NOT_DUE
    second = whole(source, T0 + 5_000)
    values = second.values
    assert values["gpu_graphics_engine_active_ratio"] == 0.97
    assert values["gpu_sm_active_ratio"] == 0.915
    assert values["gpu_sm_occupancy_ratio"] == 0.4
    assert values["gpu_tensor_active_ratio"] == 0.62
    assert values['gpu_tensor_pipe_active_ratio{pipe="hmma"}'] == 0.6
    assert values["gpu_dram_active_ratio"] == 0.55
    assert values["gpu_fp32_active_ratio"] == 0.11
    assert values["gpu_pcie_transmit_bytes_per_second"] == 2 * 2**20
    assert values["gpu_nvlink_transmit_bytes_per_second"] == 100 * 2**20
    assert second.missing["gpu_fp64_active_ratio"] is Missing.UNSUPPORTED, "GPM fails metric by metric"
    assert library.gpm_samples == 2, "the newer sample is the next one's older"


def test_samples_that_lie_too_close_are_not_taken(h100: Opened) -> None:
    library, source = h100
    library.gpm_values[0] = {2: 50.0}
    source.read(T0)
    source.read(T0 + 1_000)
    library.gpm_values[0] = {2: 75.0}
    assert whole(source, T0 + 1_100).values["gpu_sm_active_ratio"] == 0.5, "the last answer, 100 ms on"
    assert whole(source, T0 + 1_201).values["gpu_sm_active_ratio"] == 0.75


def test_a_sample_that_fails_begins_the_pair_again(h100: Opened) -> None:
    library, source = h100
    library.gpm_values[0] = {2: 50.0}
    source.read(T0)
    library.once[0, "nvmlGpmSampleGet"] = deque([Code.UNKNOWN])
    assert whole(source, T0 + 5_000).missing["gpu_sm_active_ratio"] is Missing.BLANK
    assert whole(source, T0 + 10_000).missing["gpu_sm_active_ratio"] is Missing.NOT_DUE
    assert whole(source, T0 + 15_000).values["gpu_sm_active_ratio"] == 0.5


def test_activity_outlives_an_enumeration(h100: Opened) -> None:
    library, source = h100
    library.gpm_values[0] = {2: 50.0}
    source.read(T0)
    assert whole(source, T0 + 5 * MINUTE).values["gpu_sm_active_ratio"] == 0.5


def test_a_gpu_without_gpm_is_asked_once(h100: Opened) -> None:
    library, source = h100
    assert whole(source, T0).missing["gpu_sm_active_ratio"] is Missing.UNSUPPORTED
    source.read(T0 + 5_000)
    assert library.calls.count("nvmlGpmQueryDeviceSupport") == 1


def test_pcie_throughput_is_measured_once_a_slow_period_where_nothing_else_tells(h100: Opened) -> None:
    library, source = h100
    function = "nvmlDeviceGetPcieThroughput"
    library.devices[0][f"{function}(0,)"] = {"value": 3}
    first = whole(source, T0)
    assert first.values["gpu_pcie_transmit_bytes_per_second"] == 3 * 1024
    for step in range(1, 7):
        assert whole(source, T0 + step * SECOND).values["gpu_pcie_transmit_bytes_per_second"] == 3 * 1024
    assert library.calls.count(function) == 2, "it blocks 20 ms per counter: once for each, in the slow tier"


def test_pcie_throughput_is_never_measured_where_counters_tell(h100: Opened) -> None:
    library, source = h100
    entries(library)["NVML_FI_DEV_PCIE_COUNT_TX_BYTES"] = entry(1)
    entries(library)["NVML_FI_DEV_PCIE_COUNT_RX_BYTES"] = entry(1)
    for step in range(20):
        source.read(T0 + step * 5 * SECOND)
    assert "nvmlDeviceGetPcieThroughput" not in library.calls


def test_counters_beat_gpm_where_both_tell_a_rate(h100: Opened) -> None:
    library, source = h100
    library.gpm_values[0] = {20: 7.0}
    entries(library)["NVML_FI_DEV_PCIE_COUNT_TX_BYTES"] = entry(1_000)
    source.read(T0)
    entries(library)["NVML_FI_DEV_PCIE_COUNT_TX_BYTES"] = entry(6_000)
    assert whole(source, T0 + 5_000).values["gpu_pcie_transmit_bytes_per_second"] == 1_000


def by_link(library: RecordedNvml, name: str, value: Callable[[int], float], kind: int = 3) -> None:
    for link in range(18):
        entries(library)[f"{name}[{link}]"] = entry(value(link), kind)


def test_bytes_by_link_make_the_rates_where_there_is_no_sum(h100: Opened) -> None:
    library, source = h100
    for name in ("NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES", "NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES"):
        by_link(library, name, lambda link: 1_000 * link)
    first = whole(source, T0)
    assert first.values['gpu_nvlink_transmit_bytes_total{link="17"}'] == 17_000
    for name in ("NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES", "NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES"):
        by_link(library, name, lambda link: 1_000 * link + 500)
    second = whole(source, T0 + 1_000)
    assert second.values["gpu_nvlink_transmit_bytes_per_second"] == 18 * 500
    assert second.values["gpu_nvlink_bandwidth_bytes_per_second"] == 36 * 500


def test_bytes_by_link_are_not_asked_for_where_there_is_a_sum(h100: Opened) -> None:
    library, source = h100
    entries(library)["NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX"] = entry(5)
    by_link(library, "NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES", float)
    values = whole(source, T0).values
    assert values["gpu_nvlink_transmit_bytes_total"] == 5 * 1024
    assert not [key for key in values if key.startswith("gpu_nvlink_transmit_bytes_total{")]


def test_nvlink5_errors_come_by_link_or_summed_by_kind(h100: Opened) -> None:
    library, source = h100
    by_link(library, "NVML_FI_DEV_NVLINK_COUNT_MALFORMED_PACKET_ERRORS", float)
    by_link(library, "NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS", lambda _: 2)
    by_link(library, "NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS", float)
    by_link(library, "NVML_FI_DEV_NVLINK_GET_STATE", lambda link: link % 4)
    values = whole(source, T0).values
    assert values['gpu_nvlink_packet_errors_total{kind="malformed"}'] == sum(range(18))
    assert values['gpu_nvlink_link_recovery_total{result="failed"}'] == 36
    assert values['gpu_nvlink_effective_errors_total{link="5"}'] == 5
    states = [values[f'gpu_nvlink_up{{link="{link}"}}'] for link in range(4)]
    assert states == [0, 1, 1, 0], "a sleeping link is up"


def test_a_sum_that_lacks_a_link_is_no_sum(h100: Opened) -> None:
    library, source = h100
    name = "NVML_FI_DEV_NVLINK_COUNT_MALFORMED_PACKET_ERRORS"
    by_link(library, name, float)
    entries(library)[f"{name}[3]"] = {"nvmlReturn": int(Code.UNKNOWN), "value": None}
    reading = whole(source, T0)
    key = 'gpu_nvlink_packet_errors_total{kind="malformed"}'
    assert key not in reading.values
    assert reading.missing[key] is Missing.BLANK


def test_links_are_counted_where_the_driver_does_not_say(h100: Opened) -> None:
    library, source = h100
    del entries(library)["NVML_FI_DEV_NVLINK_LINK_COUNT"]
    library.devices[0]["nvmlDeviceGetNvLinkState(1,)"] = {"value": 0}
    values = whole(source, T0).values
    assert values["gpu_nvlink_links_max"] == 2
    assert (values['gpu_nvlink_up{link="0"}'], values['gpu_nvlink_up{link="1"}']) == (1, 0)


def test_every_bit_of_the_clock_reasons_is_a_metric(h100: Opened) -> None:
    library, source = h100
    library.devices[0]["nvmlDeviceGetCurrentClocksEventReasons"] = {"value": 0x100 | 0x40}
    values = whole(source, T0).values
    assert values["gpu_clocks_event_reasons_bitmask"] == 0x140
    assert values["gpu_clocks_hw_thermal_slowdown"] == 1
    assert values["gpu_clocks_hw_power_brake"] == 0, "0x100 is above 0x80 and is another bit"
    assert values["gpu_clocks_display_setting"] == 1


def test_time_counters_of_the_clock_reasons_are_seconds(h100: Opened) -> None:
    library, source = h100
    for name in ("POWER", "THERMAL", "SYNC_BOOST", "BOARD_LIMIT", "LOW_UTILIZATION", "RELIABILITY"):
        entries(library)[f"NVML_FI_DEV_PERF_POLICY_{name}"] = entry(2_500_000_000)
    values = whole(source, T0).values
    for name in ("power_cap", "thermal_violation", "sync_boost", "board_limit", "low_utilization", "reliability"):
        assert values[f"gpu_{name}_seconds_total"] == 2.5


def test_the_drivers_own_latency_is_the_longest_of_the_batch(h100: Opened) -> None:
    library, source = h100
    library.latencies[0] = 1_500
    assert whole(source, T0).values["gpu_driver_latency_seconds"] == 0.0015


def test_pending_modes_are_told_beside_the_present_ones(h100: Opened) -> None:
    library, source = h100
    library.devices[0]["nvmlDeviceGetMigMode"] = {"value": [0, 1]}
    library.devices[0]["nvmlDeviceGetEccMode"] = {"value": [1, 0]}
    values = whole(source, T0).values
    assert (values["gpu_mig_mode"], values["gpu_mig_mode_pending"]) == (0, 1)
    assert (values["gpu_ecc_mode_enabled"], values["gpu_ecc_mode_pending"]) == (1, 0)


def test_the_fabrics_health_mask_is_told_problem_by_problem(h100: Opened) -> None:
    library, source = h100
    # Degraded bandwidth yes (1), route recovery no (2), route unhealthy not supported, a wrong configuration (5).
    mask = 1 | 2 << 2 | 5 << 8
    library.devices[0]["nvmlDeviceGetGpuFabricInfoV"] = {
        "value": {"state": 3, "status": 0, "healthMask": mask, "healthSummary": 3}
    }
    values = whole(source, T0).values
    assert (values["gpu_fabric_state"], values["gpu_fabric_health"]) == (3, 3)
    told = {key.split('"')[1]: value for key, value in values.items() if key.startswith("gpu_fabric_problem")}
    assert told == {"degraded_bandwidth": 1, "route_recovery": 0, "incorrect_configuration": 1}


def test_sram_errors_are_told_by_location(h100: Opened) -> None:
    library, source = h100
    counts = {f"aggregateUncBucket{name}": i for i, name in enumerate(("L2", "Sm", "Pcie", "Mcu", "Other"))}
    library.devices[0]["nvmlDeviceGetSramEccErrorStatus"] = {"value": {"bThresholdExceeded": 1, **counts}}
    values = whole(source, T0).values
    assert values["gpu_ecc_sram_threshold_exceeded"] == 1
    assert values['gpu_ecc_sram_uncorrected_aggregate_total{location="microcontroller"}'] == 3


def process(pid: int, used: int | None) -> dict[str, Any]:
    return {"pid": pid, "usedGpuMemory": used}


def test_graphics_and_mps_processes_count_beside_compute_and_once(h100: Opened) -> None:
    library, source = h100
    library.devices[0] |= {
        LISTS: {"value": [process(10, 100), process(11, 200)]},
        "nvmlDeviceGetGraphicsRunningProcesses": {"value": [process(11, 250), process(12, None)]},
        "nvmlDeviceGetMPSComputeRunningProcesses": {"value": [process(13, 5)]},
    }
    reading = whole(source, T0)
    assert reading.values["gpu_processes"] == 4
    memory = {pid: reading.values.get(f'gpu_process_memory_used_bytes{{pid="{pid}"}}') for pid in (10, 11, 12, 13)}
    assert memory == {10: 100, 11: 250, 12: None, 13: 5}
    assert reading.missing['gpu_process_memory_used_bytes{pid="12"}'] is Missing.BLANK


def test_without_any_list_of_processes_the_reason_is_that_of_compute(h100: Opened) -> None:
    library, source = h100
    for kind in ("Compute", "Graphics", "MPSCompute"):
        library.failures[0, f"nvmlDeviceGet{kind}RunningProcesses"] = Code.NOT_SUPPORTED
    library.failures[0, LISTS] = Code.NO_PERMISSION
    assert whole(source, T0).missing["gpu_processes"] is Missing.DENIED


def sample(pid: int, at: int, sm: int) -> dict[str, Any]:
    return {"pid": pid, "timeStamp": at, "smUtil": sm, "memUtil": 0, "encUtil": 0, "decUtil": 0}


def test_sm_utilisation_of_a_process_is_the_mean_since_the_reading_before(h100: Opened) -> None:
    library, source = h100
    function = "nvmlDeviceGetProcessUtilization"
    library.devices[0][LISTS] = {"value": [process(10, 1), process(11, 1)]}
    library.devices[0][f"{function}(0,)"] = {
        "value": [sample(10, 100, 20), sample(10, 200, 41), sample(99, 150, 60), sample(11, 210, 4_000_000_000)]
    }
    reading = whole(source, T0)
    told = {key: value for key, value in reading.values.items() if key.startswith("gpu_process_sm")}
    assert told == {'gpu_process_sm_utilization_ratio{pid="10"}': 0.305}, "not of what ended, nor of nonsense"
    library.devices[0][f"{function}(210,)"] = {"value": [sample(11, 300, 50)]}
    later = whole(source, T0 + MINUTE)
    assert later.values['gpu_process_sm_utilization_ratio{pid="11"}'] == 0.5
    library.failures[0, function] = Code.NOT_FOUND
    quiet = whole(source, T0 + 2 * MINUTE)
    assert not [key for key in (*quiet.values, *quiet.missing) if key.startswith("gpu_process_sm")]


def test_readings_are_counted_by_outcome_and_timed() -> None:
    library = RecordedNvml(devices("h100-healthy"))
    own = OwnMetrics()
    source = NvmlSource(library, PLACE, 10.0, own=own)
    source.read(T0)
    library.failures[1, "*"] = Code.GPU_IS_LOST
    source.read(T0 + 5_000)
    assert own.value("tocsin_nvml_reads_total", outcome="ok") == 5
    assert own.value("tocsin_nvml_reads_total", outcome="lost") == 1
    assert own.value("tocsin_nvml_read_seconds_count") == 6
    source.close()


def test_what_a_model_has_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    source = NvmlSource(RecordedNvml(devices("h100-healthy")), PLACE, 10.0)
    source.read(T0)
    source.read(T0 + 5 * MINUTE)
    source.close()
    lines = [line for line in capsys.readouterr().out.splitlines() if "GPU model" in line]
    assert len(lines) == 1
    assert "driver=550.163.01" in lines[0]
    assert "gpu_app_sm_clock_hertz" in lines[0]


def test_a_rate_that_gpm_will_tell_is_not_measured_meanwhile(h100: Opened) -> None:
    library, source = h100
    library.gpm_values[0] = {20: 1.0, 21: 1.0}
    assert whole(source, T0).missing["gpu_pcie_transmit_bytes_per_second"] is Missing.NOT_DUE
    for step in range(1, 20):
        assert whole(source, T0 + step * 5 * SECOND).values["gpu_pcie_transmit_bytes_per_second"] == 2**20
    assert "nvmlDeviceGetPcieThroughput" not in library.calls

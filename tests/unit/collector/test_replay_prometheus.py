"""Text dumps of dcgm-exporter in the label sets of its releases."""

from __future__ import annotations

import bz2
import os
from pathlib import Path

import pytest

from tocsin.collector.replay.formats import INTERVAL_MS, instant_of_name
from tocsin.collector.replay.recording import ReplayRecording
from tocsin.collector.replay.source import read_recording
from tocsin.domain.clock import MINUTE, from_iso
from tocsin.domain.reading import Missing, Reading

T = from_iso("2025-03-14T00:10:00Z")

OLD = """\
# HELP DCGM_FI_DEV_GPU_TEMP GPU temperature (in C).
# TYPE DCGM_FI_DEV_GPU_TEMP gauge
DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-aa",device="nvidia0",modelName="NVIDIA A100-SXM4-80GB",Hostname="n1",pod=""} 41
DCGM_FI_DEV_GPU_TEMP{gpu="1",UUID="GPU-bb",device="nvidia1",modelName="NVIDIA A100-SXM4-80GB",Hostname="n1",pod="x"} 42
# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION counter
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu="0",UUID="GPU-aa",Hostname="n1"} 5000
DCGM_FI_DEV_MEMORY_TEMP{gpu="0", UUID="GPU-aa", Hostname="n1"} 9223372036854775794
"""


def write(tmp_path: Path, text: str, name: str = "scrape-2025-03-14T00:10:00Z.prom") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def readings(recording: ReplayRecording) -> list[Reading]:
    return [reading for _, group in recording.instants() for reading in group]


def test_a_dump_of_an_old_exporter(tmp_path: Path) -> None:
    recording = read_recording([write(tmp_path, OLD)])
    first, second = readings(recording)
    assert (first.gpu.uuid, first.gpu.host, first.gpu.index) == ("GPU-aa", "n1", 0)
    assert first.gpu.model == "NVIDIA A100-SXM4-80GB"
    assert first.values == {"gpu_temperature_celsius": 41.0, "gpu_energy_joules_total": 5.0}
    assert first.missing == {"gpu_memory_temperature_celsius": Missing.BLANK}
    assert second.values == {"gpu_temperature_celsius": 42.0}
    assert {first.at_ms, second.at_ms} == {T}
    (problem,) = recording.problems
    assert "blank" in str(problem)


@pytest.mark.parametrize("uuid", ["UUID", "uuid", "gpu_uuid"])
@pytest.mark.parametrize("host", ["Hostname", "hostname"])
def test_spellings_of_labels(tmp_path: Path, uuid: str, host: str) -> None:
    text = f'DCGM_FI_DEV_GPU_TEMP{{gpu="3",{uuid}="GPU-cc",pci_bus_id="00000000:3B:00.0",{host}="n9"}} 55.5\n'
    (reading,) = readings(read_recording([write(tmp_path, text)]))
    assert (reading.gpu.uuid, reading.gpu.host, reading.gpu.index) == ("GPU-cc", "n9", 3)
    assert reading.gpu.pci_bus_id == "00000000:3b:00.0"
    assert reading.values == {"gpu_temperature_celsius": 55.5}


def test_field_names_of_dcgm_4_6_are_the_same_metrics(tmp_path: Path) -> None:
    text = 'DCGM_FI_DEV_GPU_UTIL_RATIO{gpu="0",UUID="GPU-aa",hostname="n1"} 80\n'
    (reading,) = readings(read_recording([write(tmp_path, text)]))
    assert reading.values == {"gpu_utilization_ratio": 0.8}


def test_a_mig_instance_is_a_gpu_of_its_own(tmp_path: Path) -> None:
    labels = 'gpu="0",UUID="GPU-aa",Hostname="n1"'
    text = (
        f"DCGM_FI_DEV_GPU_TEMP{{{labels}}} 40\n"
        f'DCGM_FI_PROF_GR_ENGINE_ACTIVE{{{labels},GPU_I_PROFILE="2g.12gb",GPU_I_ID="1"}} 0.38\n'
        f'DCGM_FI_PROF_GR_ENGINE_ACTIVE{{{labels},GPU_I_PROFILE="1g.6gb",GPU_I_ID="5"}} 0.5\n'
    )
    parent, one, five = readings(read_recording([write(tmp_path, text)]))
    assert parent.values == {"gpu_temperature_celsius": 40.0}
    assert (one.gpu.parent, one.gpu.mig_profile, one.values["gpu_graphics_engine_active_ratio"]) == (
        "GPU-aa",
        "2g.12gb",
        0.38,
    )
    assert five.gpu.uuid != one.gpu.uuid


def test_links_are_variants(tmp_path: Path) -> None:
    line = 'DCGM_FI_DEV_NVLINK_GET_STATE{{nvlink="{0}",gpu="0",gpu_uuid="GPU-aa",hostname="n1"}} {1}\n'
    text = line.format(0, 1) + line.format(1, 0)
    (reading,) = readings(read_recording([write(tmp_path, text)]))
    assert reading.values == {'gpu_nvlink_up{link="0"}': 1.0, 'gpu_nvlink_up{link="1"}': 0.0}


def test_scrapes_in_one_file_follow_each_other(tmp_path: Path) -> None:
    recording = read_recording([write(tmp_path, OLD + OLD.replace(" 41\n", " 43\n"))])
    temperatures = [(r.at_ms, r.values.get("gpu_temperature_celsius")) for r in readings(recording) if r.gpu.index == 0]
    assert temperatures == [(T, 41.0), (T + INTERVAL_MS, 43.0)]


def test_a_line_s_own_timestamp_dates_it(tmp_path: Path) -> None:
    line = 'DCGM_FI_DEV_GPU_TEMP{{gpu="0",UUID="GPU-aa",Hostname="n1"}} {0} {1}\n'
    text = line.format(40, T + 5) + line.format(41, T + MINUTE)
    assert [r.at_ms for r in readings(read_recording([write(tmp_path, text)]))] == [T + 5, T + MINUTE]


def test_a_sequence_of_files_is_one_recording(tmp_path: Path) -> None:
    paths = [
        write(tmp_path, f'DCGM_FI_DEV_XID_ERRORS{{gpu="0",UUID="GPU-aa",Hostname="n1"}} {code}\n', name)
        for name, code in (("b-1741911600.prom", 79), ("a-1741911000000.txt", 0), ("2025-03-14_00-30-00.metrics", 79))
    ]
    recording = read_recording(paths)
    assert [(e.at_ms, e.code) for e in recording.events()] == [(T + 10 * MINUTE, 79)]


def test_a_file_without_an_instant_is_dated_by_its_modification(tmp_path: Path) -> None:
    path = write(tmp_path, OLD, "metrics.prom")
    os.utime(path, (T / 1000, T / 1000))
    assert {r.at_ms for r in readings(read_recording([path]))} == {T}


def test_a_packed_dump_is_expanded(tmp_path: Path) -> None:
    path = tmp_path / "2025-03-14T001000.prom.bz2"
    path.write_bytes(bz2.compress(OLD.encode()))
    assert len(readings(read_recording([path]))) == 2


def test_bad_lines_and_odd_values_cost_only_themselves(tmp_path: Path) -> None:
    bad = (
        'DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-aa" 41\n'
        "DCGM_FI_DEV_POWER_USAGE{} \n"
        'DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-aa",Hostname="n1"} NaN\n'
        'DCGM_FI_DEV_SM_CLOCK{gpu="0",UUID="GPU-aa",Hostname="n1"} +Inf\n'
        'DCGM_FI_DEV_SOMETHING_NEW{gpu="0",UUID="GPU-aa",Hostname="n1"} 3\n'
        'DCGM_FI_DEV_CPU_TEMP_CURRENT{cpu="0"} 3\n'
        "go_goroutines 7\n"
    )
    recording = read_recording([write(tmp_path, bad + OLD)])
    assert readings(recording)[0].values == {"gpu_temperature_celsius": 41.0, "gpu_energy_joules_total": 5.0}
    assert sorted((p.value, p.problem) for p in recording.problems) == [
        ("2 lines", "not a sample line"),
        ("3 lines", "value is blank, NaN or infinite"),
    ]


@pytest.mark.parametrize(
    ("name", "at_ms"),
    [
        ("x-2025-03-14T00:10:00Z.prom", T),
        ("20250314T001000.prom", T),
        ("2025-03-14 00-10-00.txt", T),
        ("dump-1741911000.prom", T),
        ("dump-1741911000000.prom", T),
        ("gpu12.prom", None),
        ("2025-99-14T00:10:00Z.prom", None),
    ],
)
def test_instants_in_names(name: str, at_ms: int | None) -> None:
    assert instant_of_name(name) == at_ms

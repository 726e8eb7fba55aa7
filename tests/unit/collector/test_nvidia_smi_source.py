"""The nvidia-smi source: cells, XML, CSV, and a program that fails or hangs."""

from __future__ import annotations

import signal
import stat
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.collector.nvidia_smi.cells import ROWS, cell
from tocsin.collector.nvidia_smi.formats import SmiError, parse_csv, parse_xml
from tocsin.collector.nvidia_smi.source import NvidiaSmiSource
from tocsin.collector.smi_program import SmiAnswer, SmiProgram
from tocsin.collector.source import NodeIdentity
from tocsin.domain.errors import Unavailable
from tocsin.domain.event import EventKind
from tocsin.domain.metrics import spec_of
from tocsin.domain.reading import Missing, sanitise
from tocsin_testing.builders import T0
from tocsin_testing.smi import FakeSmi, recorded

PLACE = NodeIdentity("node-1")
CRASH = SmiAnswer(139, recorded("h100-truncated.xml"))


def ok(name: str) -> SmiAnswer:
    return SmiAnswer(0, recorded(name))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("57 %", 0.57),
        ("81920 MiB", 81920.0 * 1024 * 1024),
        ("1275 MHz", 1275e6),
        ("67.03 W", 67.03),
        ("-2 C", -2.0),
        ("16x", 16.0),
        ("512 bank(s)", 512.0),
        ("25483012608 us", 25483.012608),
        ("P8", 8.0),
        ("0x0000000000000041", 65.0),
        ("Yes", 1.0),
        ("Not Active", 0.0),
        ("Drain and Reset", 4.0),
        ("Completed", 3.0),
        (" 34 ", 34.0),
        ("[N/A]", Missing.UNSUPPORTED),
        ("N/A", Missing.UNSUPPORTED),
        ("[Not Supported]", Missing.UNSUPPORTED),
        ("[GPU is lost]", Missing.LOST),
        ("[GPU requires reset]", Missing.RESET_REQUIRED),
        ("[Insufficient Permissions]", Missing.DENIED),
        ("Requested functionality has been deprecated", Missing.UNSUPPORTED),
        ("[Unknown Error]", Missing.BLANK),
        ("12 furlongs", Missing.BLANK),
        ("0xzz", Missing.BLANK),
        ("", Missing.BLANK),
    ],
)
def test_cell_has_a_value_or_a_reason(text: str, value: float | Missing) -> None:
    assert cell(text) == value
    assert isinstance(cell(text), Missing) == isinstance(value, Missing)


@given(st.text(max_size=40))
def test_no_cell_raises(text: str) -> None:
    assert isinstance(cell(text), float | Missing)


@given(st.text(max_size=200))
def test_a_parser_raises_nothing_but_its_own_error(text: str) -> None:
    for parse in (parse_xml, parse_csv):
        with suppress(SmiError):
            assert isinstance(parse(text), list)


def test_every_row_is_a_metric_of_the_table() -> None:
    assert [row.key for row in ROWS if spec_of(row.key) is None] == []


@pytest.mark.parametrize("name", ["a100-mig-v12.xml", "blackwell-v13.xml", "t4-v11.xml"])
def test_values_lie_within_the_bounds_of_the_table(name: str) -> None:
    source = NvidiaSmiSource(FakeSmi(ok(name), listing=recorded("a100-mig-list.txt")), PLACE)
    problems = [problem for reading in source.read(T0).readings for problem in sanitise(reading)[1]]
    assert problems == []


def test_mig_instances_get_their_uuid_from_the_listing() -> None:
    source = NvidiaSmiSource(FakeSmi(ok("a100-mig-v12.xml"), listing=recorded("a100-mig-list.txt")), PLACE)
    own, first, second = source.read(T0).readings
    assert [gpu.uuid[-1] for gpu in (first.gpu, second.gpu)] == ["1", "2"]
    assert first.gpu.parent == own.gpu.uuid
    assert first.gpu.mig_profile == "3g.20gb"
    assert first.values["gpu_memory_used_ratio"] == pytest.approx(17000 / 19968)
    key = f'gpu_mig_instance_memory_used_ratio{{instance="{first.gpu.uuid}"}}'
    assert own.values[key] == first.values["gpu_memory_used_ratio"]
    assert own.values['gpu_mig_instances{profile="2g.10gb"}'] == 1
    assert own.missing["gpu_utilization_ratio"] is Missing.UNSUPPORTED
    assert own.values['gpu_process_memory_used_bytes{pid="4711"}'] == 16980 * 1024 * 1024
    assert own.missing['gpu_process_memory_used_bytes{pid="4712"}'] is Missing.DENIED
    assert own.values["gpu_processes"] == 2


def test_a_crash_of_the_xml_falls_back_to_csv() -> None:
    source = NvidiaSmiSource(FakeSmi(CRASH, ok("h100-healthy-query.csv")), PLACE)
    readings = source.read(T0).readings
    assert len(readings) == 4
    assert all(reading.values["gpu_power_watts"] == 95.0 for reading in readings)


def test_a_field_that_the_driver_does_not_know_is_asked_for_once() -> None:
    program = FakeSmi(CRASH, ok("h100-healthy-query.csv"))
    program.unknown_fields = {"power.draw.average", "clocks_event_reasons.active", "utilization.ofa"}
    source = NvidiaSmiSource(program, PLACE)
    program.asked.clear()
    assert source.read(T0).readings[0].values["gpu_power_watts"] == 95.0
    queries = [asked[0] for asked in program.asked if asked[0].startswith("--query")]
    assert len(queries) == 1
    assert "power.draw," in queries[0]
    assert "clocks_throttle_reasons.active" in queries[0]


def test_a_lost_gpu_costs_no_other_and_its_cached_values_are_not_trusted() -> None:
    program = FakeSmi(CRASH, ok("h100-healthy-query.csv"))
    source = NvidiaSmiSource(program, PLACE)
    source.read(T0)
    program.csv = ok("h100-lost-query.csv")
    batch = source.read(T0 + 10_000)
    *others, lost = batch.readings
    assert lost.values == {}
    assert set(lost.missing.values()) == {Missing.LOST}
    assert all(reading.values["gpu_temperature_celsius"] == 34.0 for reading in others)
    assert [(event.kind, event.gpu) for event in batch.events] == [(EventKind.GPU_LOST, lost.gpu.uuid)]
    program.csv = ok("h100-healthy-query.csv")
    assert [event.kind for event in source.read(T0 + 20_000).events] == [EventKind.GPU_FOUND]


def test_a_program_that_hangs_gives_readings_without_values() -> None:
    program = FakeSmi(ok("t4-v11.xml"))
    source = NvidiaSmiSource(program, PLACE)
    program.xml = None
    batch = source.read(T0)
    assert set(batch.readings[0].missing.values()) == {Missing.TIMED_OUT}
    assert batch.events == ()


def test_a_driver_that_goes_away_is_a_loss_of_every_gpu() -> None:
    program = FakeSmi(ok("t4-v11.xml"))
    source = NvidiaSmiSource(program, PLACE)
    program.xml = SmiAnswer(9, "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.")
    batch = source.read(T0)
    assert set(batch.readings[0].missing.values()) == {Missing.LOST}
    assert [event.kind for event in batch.events] == [EventKind.GPU_LOST]


def test_a_new_verdict_of_the_driver_is_an_event() -> None:
    program = FakeSmi(ok("blackwell-v13.xml"))
    source = NvidiaSmiSource(program, PLACE)
    assert [(event.kind, event.code) for event in source.read(T0).events] == [(EventKind.RECOVERY_ACTION, 4)]
    assert source.read(T0 + 10_000).events == ()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (SmiAnswer(12, "couldn't find libnvidia-ml.so"), "no libnvidia-ml.so"),
        (SmiAnswer(9, "couldn't communicate with the NVIDIA driver"), "modprobe nvidia"),
        (None, "did not answer"),
    ],
)
def test_opening_without_a_driver_says_what_is_missing(answer: SmiAnswer | None, words: str) -> None:
    with pytest.raises(Unavailable, match=words):
        NvidiaSmiSource(FakeSmi(answer, answer), PLACE)


def test_a_program_that_is_not_there_is_named_with_its_setting() -> None:
    with pytest.raises(Unavailable, match=r"agent\.nvidia_smi_command"):
        NvidiaSmiSource(SmiProgram(("/nonexistent/nvidia-smi",)), PLACE)


def test_nvlinks_are_up_or_down_by_their_speed() -> None:
    smi = FakeSmi(SmiAnswer(0, recorded("blackwell-v13.xml")))
    smi.links = (
        "GPU 0: NVIDIA B200 (UUID: GPU-99999999-1111-2222-3333-444444444444)\n"
        "\t Link 0: 50 GB/s\n\t Link 1: <inactive>\n\t Link 2: 0.000 GB/s\n"
        "GPU 1: NVIDIA B200 (UUID: GPU-of-another)\n\t Link 0: 50 GB/s\n"
    )
    values = NvidiaSmiSource(smi, PLACE).read(T0).readings[0].values
    assert [values[f'gpu_nvlink_up{{link="{n}"}}'] for n in range(3)] == [1.0, 0.0, 0.0]


def test_a_node_without_nvlink_is_asked_about_it_once() -> None:
    smi = FakeSmi(SmiAnswer(0, recorded("t4-v11.xml")))
    source = NvidiaSmiSource(smi, PLACE)
    source.read(T0)
    source.read(T0 + 10_000)
    assert smi.asked.count(["nvlink", "-s"]) == 1


def _script(folder: Path, text: str) -> SmiProgram:
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return SmiProgram((str(path),))


def test_the_real_program_gives_output_and_status(tmp_path: Path) -> None:
    program = _script(tmp_path, 'echo "$1 $2"; echo wrong >&2; exit 6')
    assert program.run(["-q", "-x"], 30.0) == SmiAnswer(6, "-q -x\n", "wrong\n")


def test_a_run_that_hangs_is_not_killed_and_no_other_is_started(tmp_path: Path) -> None:
    # It ignores the request to end, as a call that is stuck in the driver does.
    marks = tmp_path / "starts"
    program = _script(
        tmp_path, f"trap '' TERM; echo x >> {marks}; while [ ! -e {tmp_path}/go ]; do read -t 1 y < /dev/zero; done"
    )
    assert program.run([], 0.5) is None
    assert program.run([], 30.0) is None
    assert marks.read_text() == "x\n"
    child = program._stuck
    assert child is not None
    assert child.poll() is None
    child.send_signal(signal.SIGKILL)
    child.wait()
    program.close()


@pytest.mark.parametrize(
    ("status", "words"), [(6, "something else went wrong"), (0, "no header at all"), (255, "Segmentation fault")]
)
def test_a_program_that_fails_is_no_loss_of_any_gpu(status: int, words: str) -> None:
    program = FakeSmi(CRASH, ok("h100-healthy-query.csv"))
    source = NvidiaSmiSource(program, PLACE)
    source.read(T0)
    program.csv = SmiAnswer(status, words)
    batch = source.read(T0 + 10_000)
    assert [set(reading.missing.values()) for reading in batch.readings] == [{Missing.TIMED_OUT}] * 4
    assert batch.events == ()


def test_a_lost_gpu_that_ends_every_query_is_the_only_one_lost() -> None:
    program = FakeSmi(CRASH, ok("h100-healthy-query.csv"))
    source = NvidiaSmiSource(program, PLACE)
    before = source.read(T0).readings
    bus = before[2].gpu.pci_bus_id
    program.csv = SmiAnswer(
        15, f"Unable to determine the device handle for GPU {bus}: GPU is lost.  Reboot the system to recover this GPU"
    )
    program.xml = program.csv
    batch = source.read(T0 + 10_000)
    reasons = [set(reading.missing.values()) for reading in batch.readings]
    assert reasons == [{Missing.TIMED_OUT}, {Missing.TIMED_OUT}, {Missing.LOST}, {Missing.TIMED_OUT}]
    assert [(event.kind, event.gpu) for event in batch.events] == [(EventKind.GPU_LOST, before[2].gpu.uuid)]

"""Ascend NPUs: npu-smi's text in its several forms, health and fault codes, the device plugin's list, and trouble."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.collector.npu_smi.plugin_faults import MOST_BYTES, PluginFault, PluginFileError, parse_plugin_faults
from tocsin.collector.npu_smi.source import NpuSmiSource
from tocsin.collector.npu_smi.text import NpuError, codes_of, parse_info, parse_keys, parse_mapping
from tocsin.collector.smi_program import MOST_BYTES as MOST_OUTPUT
from tocsin.collector.smi_program import SmiProgram
from tocsin.collector.source import NodeIdentity
from tocsin.domain.clock import HOUR, MINUTE, ManualClock
from tocsin.domain.device_fault import DeviceFault
from tocsin.domain.errors import Unavailable
from tocsin.domain.event import Event, EventKind
from tocsin.domain.reading import Missing
from tocsin_testing.builders import T0
from tocsin_testing.vendor_doubles import FakeNpu
from tocsin_testing.vendor_facts import Texts, ascend, ecc, health, keys, plugin_config, recorded

PLACE = NodeIdentity("node-1")
ILL = "NPU-42C711D420B037044A10C8D414CC040AD2102001"

TWO_DIES = """\
| npu-smi 24.1.0                   Version: 24.1.0                                               |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip  Phy-ID              | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     Ascend910           | OK            | 171.5       37                0    / 0             |
| 0     0                   | 0000:9D:00.0  | 0           0    / 0          3126 / 65536         |
+---------------------------+---------------+----------------------------------------------------+
| 0     Ascend910           | Warning       | -           36                0    / 0             |
| 1     1                   | 0000:9F:00.0  | 0           0    / 0          2880 / 65536         |
+===========================+===============+====================================================+
| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |
+===========================+===============+====================================================+
| 0       1                 | 77            | python                   | 120                     |
| No running processes found in NPU 1                                                            |
"""
OLD = """\
+------------------------------------------------------------------------------------------------------+
| npu-smi 22.0.4                       Version: 22.0.4                                                  |
+-------------------------------+-----------------+------------------------------------------------------+
| NPU     Name                  | Health          | Power(W)     Temp(C)           Hugepages-Usage(page) |
| Chip    Device                | Bus-Id          | AICore(%)    Memory-Usage(MB)                        |
+===============================+=================+======================================================+
| 5       310P3                 | OK              | NA           51                0     / 0             |
| 0       0                     | 0000:86:00.0    | 3            1872 / 21527                            |
+===============================+=================+======================================================+
"""


def opened(texts: Texts | None = None, faults: Path | None = None) -> tuple[NpuSmiSource, FakeNpu]:
    program = FakeNpu(ascend("healthy") if texts is None else texts)
    return NpuSmiSource(program, PLACE, ManualClock(T0), faults), program


def faults_in(events: tuple[Event, ...] | list[Event]) -> list[tuple[str, int]]:
    return [(event.gpu, event.code) for event in events if event.kind is EventKind.DEVICE_FAULT]


def test_the_table_of_a_card_with_two_dies() -> None:
    first, second = parse_info(TWO_DIES)
    assert (first.npu, first.chip, first.phy, first.name, first.health) == (0, 0, 0, "Ascend910", "OK")
    assert (second.chip, second.phy, second.health, second.bus) == (1, 1, "Warning", "0000:9F:00.0")
    assert (first.cells["power(w)"], second.cells["power(w)"]) == ("171.5", "-")
    assert (second.cells["hbm-usage(mb)used"], second.cells["hbm-usage(mb)total"]) == ("2880", "65536")
    assert (first.processes, second.processes) == ({}, {77: "120"})


def test_the_table_of_a_card_without_hbm_is_read_by_its_own_columns() -> None:
    source, _ = opened({"info": OLD})
    reading = source.read(T0).readings[0]
    assert reading.values["gpu_memory_used_bytes"] == 1872 * 2**20
    assert reading.values["gpu_memory_total_bytes"] == 21527 * 2**20
    assert reading.missing["gpu_power_watts"] is Missing.BLANK
    assert reading.missing["gpu_ecc_dram_corrected_volatile_total"] is Missing.UNSUPPORTED
    assert (reading.gpu.index, reading.gpu.uuid, reading.gpu.model) == (5, "NPU-node-1-5-0", "Ascend 310P3")


def test_what_the_board_s_controller_measures_is_not_the_chip_s() -> None:
    found = parse_keys(ascend("healthy")["info -t common -i 0 -c 0"])
    assert (found["temperature(c)"], found["npureal-timepower(w)"]) == ("46", "127.6")
    assert "temperature(c)" not in parse_keys(keys(("Chip Name", "mcu"), ("Temperature(C)", 38)))
    after = parse_keys(keys(("Chip Name", "MCU"), ("Temperature(C)", 38), ("Chip ID", 1), ("Temperature (C)", 45)))
    assert after["temperature(c)"] == "45"


def test_logic_numbers_of_chips_without_those_of_controllers() -> None:
    assert parse_mapping(ascend("healthy")["info -m"]) == {(0, 0): 0, (1, 0): 1}


@pytest.mark.parametrize("text", ["", "Error parameter of -t", "dcmi module initialize failed. ret is -8005"])
def test_what_is_no_table_is_one_clear_error(text: str) -> None:
    with pytest.raises(NpuError):
        parse_info(text)
    with pytest.raises(Unavailable, match="cannot be used"):
        opened({"info": text})


def test_codes_in_every_spelling() -> None:
    assert codes_of("80E01801") == ["80E01801"]
    assert codes_of("0x80e01801, 81078603 0x80E01801") == ["80E01801", "81078603"]
    assert codes_of("NA") == codes_of("8C2FA0091") == codes_of("") == []


@given(st.text(max_size=300))
def test_no_text_raises_anything_but_what_is_said(text: str) -> None:
    for read, expected in ((parse_info, NpuError), (parse_plugin_faults, PluginFileError)):
        try:
            read(text)
        except expected:
            continue
    parse_keys(text)
    parse_mapping(text)
    codes_of(text)


@given(st.integers(0, 200), st.integers(0, 120))
def test_a_cut_table_gives_what_is_whole(cut: int, start: int) -> None:
    text = TWO_DIES[start:] if start > 100 else TWO_DIES
    try:
        chips = parse_info(text[: len(text) - cut])
    except NpuError:
        return
    assert all(chip.name and chip.health for chip in chips)


def test_a_multi_bit_error_is_a_fault_of_memory_while_it_stands_and_over_after() -> None:
    source, program = opened()
    source.read(T0)
    program.texts = recorded("ascend_memory.json")
    begun = source.read(T0 + MINUTE)
    assert faults_in(begun.events) == [(ILL, DeviceFault.MEMORY_UNCORRECTED)]
    assert "80E01801" in begun.events[0].message
    assert faults_in(source.read(T0 + 2 * MINUTE).events) == []
    assert faults_in(source.read(T0 + 7 * HOUR).events) == [(ILL, DeviceFault.MEMORY_UNCORRECTED)], "told again"
    program.texts = ascend("healthy")
    assert faults_in(source.read(T0 + 8 * HOUR).events) == [(ILL, DeviceFault.MEMORY_UNCORRECTED.over)]
    assert faults_in(source.read(T0 + 9 * HOUR).events) == []


def test_a_code_that_no_table_has_is_an_unknown_fault_and_never_silence() -> None:
    texts = ascend("memory")
    texts["info -t health -i 1 -c 0"] = health("Alarm", "8ABCDEF0")
    source, _ = opened(texts)
    event = source.read(T0).events[0]
    assert (event.code, event.gpu) == (DeviceFault.UNKNOWN, ILL)
    assert "8ABCDEF0" in event.message


@pytest.mark.parametrize("text", ["", health("Alarm"), "\tHealth : Critical\n"])
def test_a_bad_health_without_a_code_is_an_unknown_fault(text: str) -> None:
    texts = ascend("memory") | {"info -t health -i 1 -c 0": text}
    assert faults_in(opened(texts)[0].read(T0).events) == [(ILL, DeviceFault.UNKNOWN)]


def test_health_that_does_not_answer_takes_nothing_back() -> None:
    source, program = opened(recorded("ascend_memory.json"))
    assert len(source.read(T0).events) == 1
    program.hangs = ("info -t health",)
    assert source.read(T0 + MINUTE).events == ()


def test_a_dropped_card_is_lost_by_its_code_and_by_its_absence() -> None:
    texts = ascend("memory")
    texts["info -t health -i 1 -c 0"] = health("Critical", "40F84E00")
    source, program = opened()
    source.read(T0)
    program.texts = texts
    batch = source.read(T0 + MINUTE)
    assert batch.readings[1].is_lost
    assert [event.kind for event in batch.events] == [EventKind.GPU_LOST]
    program.texts = recorded("ascend_bus.json")
    assert [reading.gpu.uuid for reading in source.read(T0 + 2 * MINUTE).readings] != [ILL]


def test_a_program_that_hangs_or_fails_costs_values_and_calls_nothing_lost() -> None:
    source, program = opened()
    source.read(T0)
    program.hangs = ("info",)
    batch = source.read(T0 + MINUTE)
    assert {reason for reading in batch.readings for reason in reading.missing.values()} == {Missing.TIMED_OUT}
    program.hangs, program.status = (), 255
    batch = source.read(T0 + 2 * MINUTE)
    assert len(batch.readings) == 2
    assert not batch.events


def test_questions_that_a_release_does_not_know_are_asked_once() -> None:
    texts = {line: text for line, text in ascend("healthy").items() if "pcie-err" not in line}
    source, program = opened(texts)
    source.read(T0)
    reading = source.read(T0 + MINUTE).readings[0]
    assert reading.missing['gpu_pcie_errors_total{kind="lcrc"}'] is Missing.UNSUPPORTED
    assert len([line for line in program.asked if "pcie-err -i 0" in line]) == 1


def test_a_slow_program_is_asked_in_turn() -> None:
    clock = ManualClock(T0)
    program = FakeNpu(ascend("healthy"))
    source = NpuSmiSource(program, PLACE, clock)
    run = program.run

    def slow(arguments: object, seconds: float) -> object:
        clock.advance(3_000)
        return run(arguments, seconds)  # type: ignore[arg-type]

    program.run = slow  # type: ignore[method-assign, assignment]
    asked: list[int] = []
    for n in range(1, 8):
        program.asked.clear()
        source.read(T0 + n * MINUTE)
        asked.append(len([line for line in program.asked if "-t" in line]))
    assert max(asked) == 2
    seen = source.read(T0 + HOUR).readings[0]
    assert "gpu_sm_clock_max_hertz" in seen.values, "what does not change stays"
    assert Missing.NOT_DUE in seen.missing.values()


def test_pending_pages_wait_for_a_reset() -> None:
    texts = ascend("healthy")
    texts["info -t ecc -i 0 -c 0"] = ecc(0, 0).replace(
        "Next-Isolated Pages Count : 0", "Next-Isolated Pages Count : 2", 1
    )
    values = opened(texts)[0].read(T0).readings[0].values
    assert (values["gpu_retired_pages_pending"], values["gpu_bad_pages"]) == (1.0, 0.0)


def test_the_device_plugin_s_list_counts_as_well(tmp_path: Path) -> None:
    file = tmp_path / "DeviceInfoCfg"
    file.write_text(
        plugin_config(
            (1, "80E01801", "RestartBusiness"), (0, "80818C00", "NotHandleFault"), (1, "8ABCDEF0", "SeparateNPU")
        )
    )
    source, _ = opened(faults=file)
    sound = source.gpus()[0].uuid
    assert sorted(faults_in(source.read(T0).events)) == sorted(
        [(ILL, DeviceFault.MEMORY_UNCORRECTED), (ILL, DeviceFault.ISOLATE), (sound, DeviceFault.WATCH)]
    ), "the site's level outranks the table's, a meaning outranks a level"
    file.write_text(plugin_config((1, "81078603", "NotHandleFault")))
    batch = source.read(T0 + MINUTE)
    assert batch.readings[1].values['gpu_nvlink_up{link="network"}'] == 0.0
    assert faults_in(batch.events) == [
        (sound, DeviceFault.WATCH.over),
        (ILL, DeviceFault.MEMORY_UNCORRECTED.over),
        (ILL, DeviceFault.ISOLATE.over),
    ]


def test_the_list_of_a_whole_configmap_and_bad_ones() -> None:
    inner = plugin_config((3, "0x40f84e00", "RestartNPU"))
    fault = PluginFault(3, "40F84E00", "RestartNPU")
    assert parse_plugin_faults(inner) == [fault]
    assert parse_plugin_faults('{"DeviceInfoCfg": ' + json.dumps(inner) + "}") == [fault]
    for bad in ("", "[]", "{}", '{"DeviceInfo": {"DeviceList": {"a-Fault": "no"}}}', "[" * 100_000):
        with pytest.raises(PluginFileError):
            parse_plugin_faults(bad)


def test_a_list_that_cannot_be_read_costs_nothing_else(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        assert opened(faults=path)[0].read(T0).readings[0].values
    (tmp_path / "big").write_bytes(b" " * (MOST_BYTES + 1))
    assert opened(faults=tmp_path / "big")[0].read(T0).readings[0].values


def test_a_program_that_is_not_there_is_named_with_its_setting() -> None:
    with pytest.raises(Unavailable, match=r"agent\.npu_smi_command"):
        NpuSmiSource(SmiProgram(["/nonexistent/npu-smi"]), PLACE, ManualClock(T0))


def test_output_without_end_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "npu-smi"
    path.write_text(f"#!/bin/sh\nhead -c {MOST_OUTPUT + 100_000} /dev/zero\necho end >&2\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    answer = SmiProgram([str(path)]).run(["info"], 20.0)
    assert answer is not None
    assert (len(answer.out), answer.err) == (MOST_OUTPUT, "end\n")

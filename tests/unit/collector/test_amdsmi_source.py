"""AMD's cards: what the library answers in every form, what it refuses, hangs and forgets, and the door to it."""

from __future__ import annotations

import json
import sys
import threading
from enum import IntEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tocsin.collector.amdsmi.library import AmdEvent, AmdFailure, AmdSmiLibrary, ErrorRecord, Status
from tocsin.collector.amdsmi.source import REOPEN_SECONDS, SLOW_SECONDS, AmdSmiSource
from tocsin.collector.source import NodeIdentity
from tocsin.domain.clock import MINUTE, ManualClock
from tocsin.domain.device_fault import DeviceFault
from tocsin.domain.errors import Unavailable
from tocsin.domain.event import EventKind
from tocsin.domain.reading import Missing
from tocsin_testing.builders import T0
from tocsin_testing.vendor_doubles import FakeAmd
from tocsin_testing.vendor_facts import MAX_U16, MAX_U64, amd, files, mi300x, recorded

PLACE = NodeIdentity("node-1", pool="mi", labels={"vendor": "amd", "site": "here"})
TEMPERATURE = "amdsmi_get_temp_metric(HOTSPOT, CURRENT)"


def opened(cards: list[dict[str, Any]] | None = None, **more: Any) -> tuple[AmdSmiSource, FakeAmd, ManualClock]:
    library, clock = FakeAmd(amd("healthy") if cards is None else cards), ManualClock(T0)
    return AmdSmiSource(library, PLACE, clock, **more), library, clock


def refused(code: int) -> dict[str, int]:
    return {"error": code}


def test_the_files_of_the_fixtures_are_what_the_script_writes() -> None:
    for name, text in files().items():
        assert recorded(name) == json.loads(text), "python -m tocsin_testing.vendor_facts"


def test_a_card_is_known_by_its_chip_and_its_part() -> None:
    cards = [mi300x(0), mi300x(0), mi300x(1)]
    cards[1]["amdsmi_get_gpu_kfd_info"]["current_partition_id"] = 1
    for card in cards[:2]:
        card["amdsmi_get_gpu_compute_partition"] = "CPX"
    gpus = opened(cards)[0].gpus()
    assert [gpu.uuid for gpu in gpus] == [
        "AMD-0x7A3D0F1E2C4B0000",
        "AMD-0x7A3D0F1E2C4B0000/part1",
        "AMD-0x7A3D0F1E2C4B0001",
    ]
    assert [gpu.labels.get("compute_partition") for gpu in gpus] == ["CPX", "CPX", None]
    assert gpus[0].pci_bus_id == "00000000:1b:00.0"
    assert (gpus[0].pool, gpus[0].model, gpus[0].labels["site"]) == ("mi", "AMD Instinct MI300X", "here")


def test_two_cards_of_one_identity_are_one() -> None:
    assert len(opened([mi300x(0), mi300x(0)])[0].gpus()) == 1


def test_without_a_serial_the_library_s_uuid_is_the_name() -> None:
    card = mi300x(0)
    card["amdsmi_get_gpu_asic_info"]["asic_serial"] = "N/A"
    assert opened([card])[0].gpus()[0].uuid == f"AMD-{card['amdsmi_get_gpu_device_uuid']}"


@pytest.mark.parametrize(("raw", "celsius"), [(62_000, 62.0), (62, 62.0), (149, 149.0), (1_000, 1.0), (-5_000, -5.0)])
def test_a_temperature_is_in_degrees_whichever_unit_the_release_has(raw: int, celsius: float) -> None:
    cards = amd("healthy")
    cards[0][TEMPERATURE] = raw
    assert opened(cards)[0].read(T0).readings[0].values["gpu_temperature_celsius"] == celsius


def test_mi200_has_its_edge_sensor_and_average_power() -> None:
    card = mi300x(0)
    card[TEMPERATURE], card["amdsmi_get_temp_metric(EDGE, CURRENT)"] = refused(Status.NOT_SUPPORTED), 48_000
    card["amdsmi_get_power_info"] |= {"current_socket_power": "N/A", "socket_power": "N/A", "average_socket_power": 311}
    values = opened([card])[0].read(T0).readings[0].values
    assert (values["gpu_temperature_celsius"], values["gpu_power_watts"]) == (48.0, 311.0)


@pytest.mark.parametrize("blank", ["N/A", MAX_U16, 0xFFFF_FFFF, MAX_U64, None, [], float("nan")])
def test_what_is_not_there_is_blank_in_every_form(blank: object) -> None:
    cards = amd("healthy")
    cards[0]["amdsmi_get_clock_info(GFX)"]["clk"] = blank
    reading = opened(cards)[0].read(T0).readings[0]
    assert reading.missing["gpu_sm_clock_hertz"] is Missing.BLANK
    assert reading.values["gpu_memory_clock_hertz"] == 1.3e9


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (Status.NOT_SUPPORTED, Missing.UNSUPPORTED),
        (Status.NO_DATA, Missing.UNSUPPORTED),
        (Status.NO_PERM, Missing.DENIED),
        (Status.TIMEOUT, Missing.TIMED_OUT),
        (Status.BUSY, Missing.BLANK),
        (4294967295, Missing.BLANK),
    ],
)
def test_a_refusal_is_a_reason(code: int, reason: Missing) -> None:
    cards = amd("healthy")
    cards[0]["amdsmi_get_power_info"] = refused(code)
    reading = opened(cards)[0].read(T0).readings[0]
    assert reading.missing["gpu_power_watts"] is reason
    assert "gpu_temperature_celsius" in reading.values


def test_what_a_card_does_not_have_is_asked_once_and_what_is_slow_once_a_minute() -> None:
    source, library, clock = opened()
    source.read(T0)
    library.asked.clear()
    reading = source.read(T0 + 10_000).readings[0]
    assert (0, "amdsmi_get_violation_status") not in library.asked
    assert reading.missing["gpu_bad_pages"] is Missing.NOT_DUE
    assert reading.values["gpu_temperature_slowdown_celsius"] == 100.0, "rules compare with it at each reading"
    clock.advance(round(SLOW_SECONDS * 1_000))
    source.read(T0 + MINUTE)
    asked = [call for card, call in library.asked if card == 0]
    assert "amdsmi_get_violation_status" in asked
    assert "amdsmi_get_gpu_ecc_count(ATHUB)" not in asked


def test_bad_pages_are_counted_by_their_state() -> None:
    cards = amd("healthy")
    cards[0]["amdsmi_get_gpu_bad_page_info"] = [{"value": n, "status": n % 3} for n in range(7)]
    values = opened(cards)[0].read(T0).readings[0].values
    assert (values["gpu_bad_pages"], values["gpu_retired_pages_pending"]) == (5.0, 1.0)


def test_links_that_are_off_are_left_out_and_one_that_is_down_is_down() -> None:
    values = opened(recorded("amd_link.json"))[0].read(T0).readings[1].values
    links = {name: value for name, value in values.items() if name.startswith("gpu_nvlink_up")}
    assert len(links) == 7
    assert [name for name, value in links.items() if not value] == ['gpu_nvlink_up{link="3"}']


def test_a_card_is_lost_once_the_kernel_agrees(tmp_path: Path) -> None:
    devices = tmp_path / "bus/pci/devices"
    for address in ("0000:1b:00.0", "0000:2b:00.0"):
        (devices / address).mkdir(parents=True)
        (devices / address / "config").write_bytes(b"\x02\x10\xa1\x74")
    source, library, _ = opened(sys=tmp_path)
    assert not source.read(T0).events
    library.cards = recorded("amd_bus.json")
    there = source.read(T0 + MINUTE)
    assert not there.readings[1].is_lost
    assert not there.events
    (devices / "0000:2b:00.0" / "config").write_bytes(b"\xff" * 4)
    gone = source.read(T0 + 2 * MINUTE)
    assert gone.readings[1].is_lost
    assert gone.readings[0].values, "the other card is read"
    assert [(event.kind, event.gpu) for event in gone.events] == [(EventKind.GPU_LOST, source.gpus()[1].uuid)]
    assert not source.read(T0 + 3 * MINUTE).events


def test_without_a_pci_tree_nobody_calls_a_card_lost(tmp_path: Path) -> None:
    source, library, _ = opened(sys=tmp_path)
    library.cards = recorded("amd_bus.json")
    assert not source.read(T0).readings[1].is_lost


def test_a_card_that_hangs_costs_only_itself() -> None:
    gate = threading.Event()
    source, library, _ = opened(deadline_seconds=0.3)
    ask = library.ask
    library.ask = lambda card, call: gate.wait(20) and None if card == 1 else ask(card, call)  # type: ignore[method-assign]
    readings = source.read(T0).readings
    assert readings[0].values
    assert set(readings[1].missing.values()) == {Missing.TIMED_OUT}
    assert source.stuck_readers == 1
    gate.set()
    source.close()


def test_a_reset_is_an_event_and_the_library_is_opened_anew() -> None:
    source, library, _ = opened()
    library.told = [AmdEvent(1, "GPU_PRE_RESET", "reset of card"), AmdEvent(1, "GPU_POST_RESET", "")]
    events = source.read(T0).events
    assert [(e.kind, e.code, e.gpu) for e in events] == [
        (EventKind.DEVICE_FAULT, DeviceFault.RESET, source.gpus()[1].uuid)
    ]
    assert library.opened == 1
    assert source.read(T0 + MINUTE).readings[1].values
    assert library.opened == 2


def test_an_event_that_no_table_has_is_not_passed_over() -> None:
    source, library, _ = opened()
    library.told = [AmdEvent(0, "SOMETHING_NEW", "x"), AmdEvent(9, "GPU_PRE_RESET", "of no card")]
    assert [event.code for event in source.read(T0).events] == [DeviceFault.UNKNOWN]


def test_a_driver_that_is_gone_loses_the_cards_until_it_is_back() -> None:
    source, library, clock = opened()
    source.read(T0)
    sound, library.cards = library.cards, [{TEMPERATURE: refused(Status.DRIVER_NOT_LOADED)}] * 2
    library.refuses = "amdsmi cannot be opened"
    source.read(T0 + MINUTE)
    waiting = source.read(T0 + 2 * MINUTE)
    assert {reason for reading in waiting.readings for reason in reading.missing.values()} == {Missing.TIMED_OUT}
    assert not waiting.events, "the driver may be at work on a reset"
    clock.advance(round(REOPEN_SECONDS * 1_000))
    gone = source.read(T0 + 2 * MINUTE + 30_000)
    assert all(reading.is_lost for reading in gone.readings)
    assert {event.kind for event in gone.events} == {EventKind.GPU_LOST}
    library.refuses, library.cards = "", sound
    assert source.read(T0 + 3 * MINUTE).readings[0].is_lost, "not tried at every reading"
    clock.advance(round(REOPEN_SECONDS * 1_000))
    back = source.read(T0 + 4 * MINUTE)
    assert back.readings[0].values
    assert {event.kind for event in back.events} == {EventKind.GPU_FOUND}


def test_new_records_of_the_card_s_log_are_events_and_old_ones_are_past() -> None:
    source, library, clock = opened()
    library.log[0] = [ErrorRecord("fatal", "MCE", "2026/11/18 10:00:00")]
    assert not source.read(T0).events
    library.log[0].append(ErrorRecord("non_fatal_uncorrected", "MCE", "2026/11/18 11:00:00"))
    library.log[0].append(ErrorRecord("strange", "CPE", "2026/11/18 11:00:01"))
    clock.advance(round(SLOW_SECONDS * 1_000))
    events = source.read(T0 + MINUTE).events
    assert [event.code for event in events] == [DeviceFault.BLOCK_UNCORRECTED, DeviceFault.UNKNOWN]
    assert len({event.id for event in events}) == 2
    assert "MCE at 2026/11/18 11:00:00" in events[0].message


# The door, over a stand-in for the package.


class _LibraryError(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code

    def get_error_code(self) -> int:
        return self.code


def package(**calls: Any) -> Any:
    """A module with the names of amdsmi that are used."""

    def member(name: str, *names: str) -> Any:
        return IntEnum(name, {one: number for number, one in enumerate(names)})

    made = SimpleNamespace(
        AmdSmiException=_LibraryError,
        AmdSmiLibraryException=_LibraryError,
        AmdSmiTemperatureType=member("AmdSmiTemperatureType", "EDGE", "HOTSPOT"),
        AmdSmiTemperatureMetric=member("AmdSmiTemperatureMetric", "CURRENT"),
        amdsmi_init=lambda: None,
        amdsmi_shut_down=lambda: None,
        amdsmi_get_processor_handles=lambda: ["h0", "h1"],
    )
    for name, call in calls.items():
        setattr(made, name, call)
    return made


def _raise(error: Exception) -> Any:
    raise error


def test_the_door_resolves_names_to_the_package_s_enumerations() -> None:
    door = AmdSmiLibrary(package(amdsmi_get_temp_metric=lambda handle, kind, metric: (handle, kind.name, metric.name)))
    assert door.open() == 2
    assert door.ask(1, TEMPERATURE) == ("h1", "HOTSPOT", "CURRENT")


@pytest.mark.parametrize(
    ("call", "code"),
    [
        ("amdsmi_get_temp_metric(VRAM, CURRENT)", Status.NOT_SUPPORTED),
        ("amdsmi_get_clock_info(GFX)", Status.NOT_SUPPORTED),
        ("amdsmi_get_gpu_bad_page_info", Status.NOT_SUPPORTED),
        ("amdsmi_get_temp_metric", Status.INVAL),
        ("os.system(X)", Status.INVAL),
        ("amdsmi_get_a", Status.IO),
        ("amdsmi_get_b", Status.UNEXPECTED_DATA),
    ],
)
def test_whatever_an_older_or_newer_package_lacks_is_a_failure_with_a_number(call: str, code: int) -> None:
    door = AmdSmiLibrary(
        package(
            amdsmi_get_temp_metric=lambda *_: 1,
            amdsmi_get_a=lambda _: _raise(_LibraryError(12)),
            amdsmi_get_b=lambda _: _raise(KeyError("enum")),
        )
    )
    door.open()
    with pytest.raises(AmdFailure) as failed:
        door.ask(0, call)
    assert failed.value.code == code


def test_no_card_and_no_driver_are_said_clearly() -> None:
    with pytest.raises(Unavailable, match="finds no AMD GPU"):
        AmdSmiLibrary(package(amdsmi_get_processor_handles=list)).open()
    with pytest.raises(Unavailable, match="is the driver amdgpu loaded"):
        AmdSmiLibrary(package(amdsmi_init=lambda: _raise(_LibraryError(34)))).open()


@pytest.mark.parametrize("error", [KeyError("libamd_smi.so"), ImportError("no amdsmi"), OSError("libdrm")])
def test_a_missing_rocm_is_one_clear_error(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """amdsmi 7.0.2 raises KeyError while it is imported."""
    monkeypatch.setattr("importlib.import_module", lambda _name: _raise(error))
    with pytest.raises(Unavailable, match=r"library not found.*extra amd"):
        AmdSmiLibrary().open()
    assert "amdsmi" not in sys.modules


def test_records_and_events_of_the_package() -> None:
    entry = {"error_severity": "FATAL", "notify_type": "MCE", "timestamp": "2026/11/18 10:00:00"}
    kinds = IntEnum("AmdSmiEvtNotificationType", {"GPU_PRE_RESET": 3, "GPU_POST_RESET": 4})

    class Reader:
        def __init__(self, handle: str, wanted: list[Any]) -> None:
            assert [one.name for one in wanted] == ["GPU_PRE_RESET", "GPU_POST_RESET"]

        def read(self, _milliseconds: int) -> list[dict[str, Any]]:
            return [{"processor_handle": "h1", "event": "GPU_PRE_RESET", "message": "m"}, {"processor_handle": "old"}]

        def stop(self) -> None:
            raise _LibraryError(32)

    door = AmdSmiLibrary(
        package(
            amdsmi_get_gpu_cper_entries=lambda *_: ({0: entry}, 7, [], 0),
            AmdSmiEvtNotificationType=kinds,
            AmdSmiEventReader=Reader,
        )
    )
    door.open()
    assert door.records(0, 0) == ([ErrorRecord("fatal", "MCE", "2026/11/18 10:00:00")], 7)
    assert door.events() == [AmdEvent(1, "GPU_PRE_RESET", "m")]
    door.close()
    door.close()

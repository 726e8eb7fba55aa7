"""The source over a dcgm-exporter: failures, restarts, lost GPUs, names that vanish, latched codes."""

from __future__ import annotations

from collections.abc import Iterator

import httpx2
import pytest

from tocsin.collector.dcgm.exporter import LOST_MS, checked_url, open_dcgm_exporter
from tocsin.collector.dcgm.http import MAX_BYTES
from tocsin.collector.source import NodeIdentity
from tocsin.config.settings import Settings
from tocsin.domain.clock import SECOND, ManualClock
from tocsin.domain.errors import InputError
from tocsin.domain.event import EventKind
from tocsin.domain.reading import Missing, Owner, Reading
from tocsin.telemetry.metrics import OwnMetrics
from tocsin_testing.builders import T0
from tocsin_testing.dcgm_pages import Exporter, exporter_source, line, page_of

STEP = 10 * SECOND
TEMPERATURE = "gpu_temperature_celsius"


def by_uuid(readings: object) -> dict[str, Reading]:
    return {reading.gpu.uuid: reading for reading in readings}  # type: ignore[attr-defined]


def test_it_asks_for_the_text_format() -> None:
    exporter = Exporter(page_of())
    exporter_source(exporter).read(T0)
    assert exporter.requests[0].headers["accept"].startswith("text/plain;version=0.0.4")


def test_a_page_becomes_readings_in_our_units() -> None:
    readings = by_uuid(exporter_source(Exporter(page_of())).read(T0).readings)
    assert readings["GPU-0"].values == {
        TEMPERATURE: 40.0,
        "gpu_energy_joules_total": 1000.0,
        "gpu_xid_last_code": 0.0,
    }
    assert readings["GPU-0"].at_ms == T0
    assert (readings["GPU-1"].gpu.index, readings["GPU-1"].gpu.host) == (1, "n1")


@pytest.mark.parametrize(
    "break_it",
    [
        lambda e: setattr(e, "error", httpx2.ConnectError("refused")),
        lambda e: setattr(e, "error", httpx2.ReadTimeout("slow")),
        lambda e: setattr(e, "status", 503),
        lambda e: setattr(e, "page", ""),
        lambda e: setattr(e, "page", "go_goroutines 7\n"),
    ],
)
def test_a_failed_scrape_gives_reasons_and_never_old_values(break_it: object) -> None:
    exporter, own = Exporter(page_of()), OwnMetrics()
    source = exporter_source(exporter, own=own)
    source.read(T0)
    break_it(exporter)  # type: ignore[operator]
    failed = source.read(T0 + STEP)
    assert len(failed.readings) == 2
    for reading in failed.readings:
        assert reading.values == {}
        assert set(reading.missing.values()) == {Missing.TIMED_OUT}
        assert TEMPERATURE in reading.missing
    assert failed.events == ()
    assert own.value("tocsin_source_failures_total", source="dcgm_exporter") == 1
    exporter.error, exporter.status, exporter.page = None, 200, page_of(temperature=50)
    again = source.read(T0 + 2 * STEP)
    assert again.readings[0].values[TEMPERATURE] == 50.0
    assert not again.events


def test_an_exporter_that_is_not_there_yet_is_waited_for() -> None:
    exporter = Exporter()
    exporter.error = httpx2.ConnectError("refused")
    source = exporter_source(exporter)
    assert source.gpus() == []
    assert source.read(T0).readings == []
    exporter.error, exporter.page = None, page_of()
    assert len(source.read(T0 + STEP).readings) == 2


class Trickle(httpx2.SyncByteStream):
    """A body that never ends, a line in 2 s."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock

    def __iter__(self) -> Iterator[bytes]:
        while True:
            self._clock.advance(2 * SECOND)
            yield b"# nothing\n"


def test_a_server_that_trickles_cannot_hold_up_the_reading() -> None:
    clock = ManualClock(T0)
    source = exporter_source(lambda _request: httpx2.Response(200, stream=Trickle(clock)), clock=clock)
    assert source.read(T0).readings == []
    assert clock.monotonic() <= 8


def test_a_page_without_end_is_cut_off() -> None:
    body = b"#" * (1 << 20)
    pieces = 2 * MAX_BYTES // len(body)

    class Flood(httpx2.SyncByteStream):
        given = 0

        def __iter__(self) -> Iterator[bytes]:
            for _ in range(pieces):
                Flood.given += 1
                yield body

    assert exporter_source(lambda _request: httpx2.Response(200, stream=Flood())).read(T0).readings == []
    assert Flood.given < pieces


def test_a_family_that_vanishes_is_missing() -> None:
    exporter = Exporter(page_of(1))
    source = exporter_source(exporter)
    source.read(T0)
    exporter.page = line("DEV_GPU_TEMP", 41)
    (reading,) = source.read(T0 + STEP).readings
    assert reading.values == {TEMPERATURE: 41.0}
    assert reading.missing == {"gpu_energy_joules_total": Missing.BLANK, "gpu_xid_last_code": Missing.BLANK}


def test_a_gpu_that_vanishes_is_lost_for_a_while_and_found_again() -> None:
    exporter = Exporter(page_of(2))
    source = exporter_source(exporter)
    source.read(T0)
    exporter.page = page_of(1)
    batch = source.read(T0 + STEP)
    lost = by_uuid(batch.readings)["GPU-1"]
    assert lost.values == {}
    assert set(lost.missing.values()) == {Missing.LOST}
    assert [(e.kind, e.gpu) for e in batch.events] == [(EventKind.GPU_LOST, "GPU-1")]
    assert source.read(T0 + 2 * STEP).events == []
    exporter.page = page_of(2)
    assert [(e.kind, e.gpu) for e in source.read(T0 + 3 * STEP).events] == [(EventKind.GPU_FOUND, "GPU-1")]
    exporter.page = page_of(1)
    source.read(T0 + 4 * STEP)
    late = source.read(T0 + 5 * STEP + LOST_MS)
    assert set(by_uuid(late.readings)) == {"GPU-0"}
    assert not late.events


def test_a_gpu_that_becomes_instances_is_not_lost() -> None:
    exporter = Exporter(page_of(1))
    source = exporter_source(exporter)
    source.read(T0)
    exporter.page = line("PROF_GR_ENGINE_ACTIVE", 0.5, 0, GPU_I_ID="1", GPU_I_PROFILE="1g.10gb")
    batch = source.read(T0 + STEP)
    assert [(r.gpu.uuid, r.gpu.parent) for r in batch.readings] == [("GPU-0/gi1", "GPU-0")]
    assert not batch.events
    exporter.page = page_of(1)
    batch = source.read(T0 + 2 * STEP)
    assert [r.gpu.uuid for r in batch.readings] == ["GPU-0"]
    assert EventKind.GPU_LOST not in {event.kind for event in batch.events}


def test_instances_are_never_summed_into_the_gpu() -> None:
    page = line("DEV_FB_USED", 9000) + "".join(
        line("DEV_FB_USED", used, 0, GPU_I_ID=str(i), GPU_I_PROFILE="1g.10gb") for i, used in ((1, 7000), (2, 2000))
    )
    readings = by_uuid(exporter_source(Exporter(page)).read(T0).readings)
    used = {uuid: reading.values["gpu_memory_used_bytes"] / 2**20 for uuid, reading in readings.items()}
    assert used == {"GPU-0": 9000, "GPU-0/gi1": 7000, "GPU-0/gi2": 2000}


def test_a_change_of_the_latched_code_is_an_event() -> None:
    exporter = Exporter(page_of(1, xid=31))
    source = exporter_source(exporter)
    assert not source.read(T0).events
    exporter.page = page_of(1, xid=79)
    (event,) = source.read(T0 + STEP).events
    assert (event.kind, event.gpu, event.host, event.code, event.source) == (
        EventKind.XID,
        "GPU-0",
        "n1",
        79,
        "dcgm_exporter",
    )
    assert not source.read(T0 + 2 * STEP).events


def test_repeats_are_seen_by_the_count() -> None:
    def counted(count: int) -> str:
        labels = 'gpu="0",UUID="GPU-0",Hostname="n1",window_size_in_ms="300000",xid="31"'
        return page_of(1, xid=31) + f"DCGM_EXP_XID_ERRORS_COUNT{{{labels}}} {count}\n"

    exporter = Exporter(counted(1))
    source = exporter_source(exporter)
    assert not source.read(T0).events
    exporter.page = counted(2)
    (event,) = source.read(T0 + STEP).events
    assert event.code == 31
    assert "300 s" in event.message


def started(page: str, at: float) -> str:
    return f"{page}process_start_time_seconds {at}\n"


def doubts(own: OwnMetrics, reason: str, kind: str = "xid") -> float:
    labels = {"kind": kind, "reason": reason}
    return own.registry.get_sample_value("tocsin_dcgm_unsettled_errors_total", labels) or 0.0


def test_after_a_restart_of_the_exporter_a_code_may_be_old() -> None:
    own = OwnMetrics()
    exporter = Exporter(started(page_of(1, xid=0), 1.79e9))
    source = exporter_source(exporter, own=own)
    source.read(T0)
    exporter.page = started(page_of(1, xid=79), 1.79e9 + 60)
    assert not source.read(T0 + STEP).events
    assert doubts(own, "exporter_restart") == 1
    exporter.page = started(page_of(1, xid=31), 1.79e9 + 60)
    assert [e.code for e in source.read(T0 + 2 * STEP).events] == [31]
    assert doubts(own, "exporter_restart") == 1


@pytest.mark.parametrize("failures", [0, 3])
def test_an_xid_that_came_with_a_reload_of_the_driver_is_an_event(failures: int) -> None:
    own = OwnMetrics()
    exporter = Exporter(started(page_of(1, xid=31, energy=5_000_000), 1.79e9))
    source = exporter_source(exporter, own=own)
    source.read(T0)
    for n in range(failures):
        exporter.page = ""
        assert not source.read(T0 + n + 1).events
    exporter.page = started(page_of(1, xid=79, energy=1_000), 1.79e9)
    assert [(e.kind, e.code) for e in source.read(T0 + STEP).events] == [(EventKind.XID, 79)]
    assert doubts(own, "no_start_time") == doubts(own, "exporter_restart") == 0


@pytest.mark.parametrize("code", [0, 31])
def test_a_reload_that_brings_no_new_code_is_no_onset(code: int) -> None:
    exporter = Exporter(started(page_of(1, xid=31, energy=5_000_000), 1.79e9))
    source = exporter_source(exporter)
    source.read(T0)
    exporter.page = started(page_of(1, xid=code, energy=1_000), 1.79e9)
    assert not source.read(T0 + STEP).events


def test_counters_that_fall_leave_it_open_where_the_page_has_no_start() -> None:
    own = OwnMetrics()
    exporter = Exporter(page_of(1, xid=0, energy=5_000_000))
    source = exporter_source(exporter, own=own)
    source.read(T0)
    exporter.page = page_of(1, xid=79, energy=1_000)
    assert not source.read(T0 + STEP).events
    assert doubts(own, "no_start_time") == 1
    exporter.page = page_of(1, xid=31, energy=2_000)
    assert [e.code for e in source.read(T0 + 2 * STEP).events] == [31]


def test_a_start_that_one_page_leaves_out_is_remembered() -> None:
    own = OwnMetrics()
    exporter = Exporter(started(page_of(1, xid=0), 1.79e9))
    source = exporter_source(exporter, own=own)
    source.read(T0)
    exporter.page = page_of(1, xid=0)
    source.read(T0 + STEP)
    exporter.page = started(page_of(1, xid=79), 1.79e9 + 60)
    assert not source.read(T0 + 2 * STEP).events
    assert doubts(own, "exporter_restart") == 1


def test_after_a_restart_switch_errors_may_be_old_too() -> None:
    def page(code: int, at: float) -> str:
        return started(page_of(1), at) + f'DCGM_FI_DEV_NVSWITCH_FATAL_ERRORS{{nvswitch="s",Hostname="n1"}} {code}\n'

    own = OwnMetrics()
    exporter = Exporter(page(0, 1.79e9))
    source = exporter_source(exporter, own=own)
    source.read(T0)
    exporter.page = page(20034, 1.79e9 + 60)
    assert not source.read(T0 + STEP).events
    assert doubts(own, "exporter_restart", "sxid") == 1


def test_switches_give_events_of_the_host() -> None:
    def page(code: int) -> str:
        return page_of(1) + f'DCGM_FI_DEV_NVSWITCH_FATAL_ERRORS{{nvswitch="nvswitch3",Hostname="n1"}} {code}\n'

    exporter = Exporter(page(0))
    source = exporter_source(exporter)
    source.read(T0)
    exporter.page = page(20034)
    (event,) = source.read(T0 + STEP).events
    assert (event.kind, event.gpu, event.host, event.code) == (EventKind.SXID, "", "n1", 20034)


def test_what_is_no_use_is_counted_by_what_it_is() -> None:
    own = OwnMetrics()
    page = (
        page_of(1)
        + 'DCGM_FI_DEV_CPU_UTIL_TOTAL{cpu="0"} 0.5\n'
        + line("DEV_SOMETHING_NEW", 1)
        + line("DEV_MEMORY_TEMP", "9223372036854775794")
        + line("DEV_GPU_UTIL", 700)
        + "DCGM_FI_DEV_GPU_TEMP{gpu= 1\n"
    )
    (reading,) = exporter_source(Exporter(page), own=own).read(T0).readings
    counted = {o: own.value("tocsin_dcgm_lines_total", outcome=o) for o in ("used", "blank", "implausible")}
    assert counted == {"used": 3, "blank": 1, "implausible": 1}
    for outcome in ("other_entity", "unknown", "malformed"):
        assert own.value("tocsin_dcgm_lines_total", outcome=outcome) == 1
    assert reading.missing["gpu_memory_temperature_celsius"] is Missing.UNSUPPORTED
    assert reading.missing["gpu_utilization_ratio"] is Missing.BLANK


def test_owners_come_from_the_labels_and_go_with_them() -> None:
    exporter = Exporter(line("DEV_GPU_TEMP", 40, pod="train-0", namespace="ml", container="main"))
    source = exporter_source(exporter)
    (reading,) = source.read(T0).readings
    assert reading.owners == (Owner(0, container="main", pod="train-0", namespace="ml"),)
    exporter.page = line("DEV_GPU_TEMP", 40, pod="", namespace="", container="")
    assert source.read(T0 + STEP).readings[0].owners == ()


def test_two_pods_on_one_gpu_are_two_owners_of_one_reading() -> None:
    page = line("DEV_GPU_TEMP", 40, pod="a", vgpu="0") + line("DEV_GPU_TEMP", 40, pod="b", vgpu="1")
    (reading,) = exporter_source(Exporter(page)).read(T0).readings
    assert [owner.pod for owner in reading.owners] == ["a", "b"]


def test_the_operator_s_word_about_the_gpus_counts() -> None:
    node = NodeIdentity("renamed", "inference", "rack-7", {"team": "a"})
    page = line("DEV_GPU_TEMP", 40, DCGM_FI_DRIVER_VERSION="550.90")
    (reading,) = exporter_source(Exporter(page), node=node).read(T0).readings
    gpu = reading.gpu
    assert (gpu.host, gpu.pool, gpu.rack) == ("renamed", "inference", "rack-7")
    assert gpu.labels == {"driver_version": "550.90", "team": "a"}


def test_labels_that_come_and_go_do_not_pile_up() -> None:
    exporter = Exporter()
    source = exporter_source(exporter)
    for step in range(200):
        exporter.page = "".join(line("DEV_GPU_TEMP", 40, gpu, pod=f"pod-{step}-{gpu}") for gpu in range(20))
        source.read(T0 + step * STEP)
    assert len(source._heads) < 1_200


@pytest.mark.parametrize("url", ["", "ftp://x/", "127.0.0.1:9400/metrics", "http://[::1"])
def test_a_url_that_is_none(url: str) -> None:
    with pytest.raises(InputError, match=r"agent\.dcgm_url"):
        checked_url(url)


def test_it_opens_from_settings() -> None:
    settings = Settings.model_validate({"agent": {"host": "h", "dcgm_url": "http://exporter:9400/metrics"}})
    exporter = Exporter(page_of(1))
    source = open_dcgm_exporter(settings, ManualClock(T0), OwnMetrics(), httpx2.MockTransport(exporter))
    assert source.read(T0).readings[0].gpu.host == "h"
    assert str(exporter.requests[0].url) == "http://exporter:9400/metrics"
    source.close()
    source.close()


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_fields_of_one_row_do_not_alternate(order: tuple[int, int]) -> None:
    """The exporter writes its families in no fixed order; a counter that jumped between two would seem to restart."""
    both = (
        line("DEV_POWER_VIOLATION", 5_000_000_000),
        line("DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP_NS", 2_000_000_000),
    )
    exporter = Exporter("".join(both[place] for place in order))
    assert exporter_source(exporter).read(T0).readings[0].values["gpu_power_cap_seconds_total"] == 5.0
    exporter.page = both[1]
    assert exporter_source(exporter).read(T0).readings[0].values["gpu_power_cap_seconds_total"] == 2.0


def test_digits_that_are_no_number_do_not_stop_a_reading() -> None:
    odd = line("DEV_GPU_TEMP", 41, gpu="\N{SUPERSCRIPT TWO}", UUID="GPU-odd")
    odd += 'DCGM_EXP_XID_ERRORS_COUNT{gpu="0",UUID="GPU-0",Hostname="n1",xid="\N{SUPERSCRIPT TWO}"} 1\n'
    readings = by_uuid(exporter_source(Exporter(page_of(1) + odd)).read(T0).readings)
    assert readings["GPU-odd"].gpu.index is None
    assert readings["GPU-0"].values[TEMPERATURE] == 40.0

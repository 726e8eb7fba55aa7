"""The source over `dcgmi dmon`, driven by a program that prints real captures."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tocsin.collector.dcgm.dcgmi import MOST_READS, READ_BYTES, Backoff, Child, DcgmiSource, ask, open_dcgmi
from tocsin.collector.source import NodeIdentity
from tocsin.config.settings import Settings
from tocsin.domain.clock import SECOND, ManualClock
from tocsin.domain.errors import Unavailable
from tocsin.domain.event import EventKind
from tocsin.domain.reading import Missing, Reading
from tocsin.telemetry.metrics import OwnMetrics
from tocsin_testing.builders import T0
from tocsin_testing.dcgm_pages import DATA, LIVE_IDS, FakeDcgmi, live_rows

UUID = "GPU-01000100-0000-0000-0000-00000000000{}"
TEMPERATURE = "gpu_temperature_celsius"
STEP = 10 * SECOND

Opener = Callable[[FakeDcgmi], DcgmiSource]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(T0)


@pytest.fixture
def own() -> OwnMetrics:
    return OwnMetrics()


@pytest.fixture
def opened(clock: ManualClock, own: OwnMetrics) -> Iterator[Opener]:
    made: list[DcgmiSource] = []

    def make(fake: FakeDcgmi) -> DcgmiSource:
        made.append(DcgmiSource([str(fake.path)], NodeIdentity("n1"), clock, own))
        return made[-1]

    yield make
    for source in made:
        source.close()


def until(source: DcgmiSource, now_ms: int, wanted: Callable[[dict[str, Reading]], bool]) -> dict[str, Reading]:
    """Read until `wanted` holds: the child needs a moment to print. Fails after some 10 s."""
    never = threading.Event()
    readings: dict[str, Reading] = {}
    for _ in range(500):
        readings = {reading.gpu.uuid: reading for reading in source.read(now_ms).readings}
        if wanted(readings):
            return readings
        never.wait(0.02)
    raise AssertionError(readings)


def starts(own: OwnMetrics, reason: str) -> float:
    return own.value("tocsin_child_starts_total", source="dcgmi", reason=reason)


def test_a_real_capture_becomes_readings(tmp_path: Path, opened: Opener, own: OwnMetrics) -> None:
    fake = FakeDcgmi(tmp_path, LIVE_IDS, live_rows("dmon_live_off_bus.txt")[0])
    source = opened(fake)
    readings = until(source, T0, lambda found: all(r.values for r in found.values()))
    assert sorted(readings) == [UUID.format(n) for n in range(8)]
    seven = readings[UUID.format(7)]
    assert seven.values == {
        TEMPERATURE: 34.0,
        "gpu_power_watts": 95.0,
        "gpu_utilization_ratio": 0.0,
        "gpu_xid_last_code": 0.0,
        "gpu_ecc_corrected_aggregate_total": 0.0,
        "gpu_ecc_uncorrected_aggregate_total": 0.0,
    }
    assert (seven.gpu.index, seven.gpu.model, seven.gpu.pci_bus_id) == (7, "NVIDIA H100 80GB HBM3", "00000000:cb:00.0")
    assert "dmon -e 150,155,203,230,312,313 -d 5000" in fake.calls()
    assert starts(own, "first") == 1


def test_a_gpu_that_falls_off_the_bus_while_it_runs_is_lost(tmp_path: Path, opened: Opener) -> None:
    ticks = live_rows("dmon_live_off_bus.txt")
    fake = FakeDcgmi(tmp_path, LIVE_IDS, ticks[0])
    source = opened(fake)
    until(source, T0, lambda found: all(r.values for r in found.values()))
    fake.write("discovery_l", (DATA / "discovery_gpu_lost.txt").read_text())
    fake.add("".join(ticks[1:]))
    readings = until(source, T0 + STEP, lambda found: not found[UUID.format(5)].values)
    assert set(readings[UUID.format(5)].missing.values()) == {Missing.LOST}
    assert all(readings[UUID.format(n)].values for n in range(8) if n != 5)


def test_loss_and_return_are_events(tmp_path: Path, opened: Opener) -> None:
    ticks = live_rows("dmon_live_off_bus.txt")
    fake = FakeDcgmi(tmp_path, LIVE_IDS, ticks[0])
    source = opened(fake)
    source.read(T0)
    fake.write("discovery_l", (DATA / "discovery_gpu_lost.txt").read_text())
    fake.add(ticks[-1])
    assert wait_for_event(source) == (EventKind.GPU_LOST, UUID.format(5))
    fake.add(ticks[0])
    assert wait_for_event(source) == (EventKind.GPU_FOUND, UUID.format(5))


def wait_for_event(source: DcgmiSource) -> tuple[EventKind, str]:
    never = threading.Event()
    for step in range(500):
        for event in source.read(T0 + step).events:
            return event.kind, event.gpu
        never.wait(0.02)
    raise AssertionError("no event came")


def test_a_gpu_of_nothing_but_blanks_that_dcgm_still_knows_is_not_lost(tmp_path: Path, opened: Opener) -> None:
    ticks = live_rows("dmon_live_off_bus.txt")
    fake = FakeDcgmi(tmp_path, LIVE_IDS, ticks[0])
    source = opened(fake)
    source.read(T0)
    fake.add(ticks[-1])
    readings = until(source, T0 + STEP, lambda found: TEMPERATURE not in found[UUID.format(5)].values)
    assert readings[UUID.format(5)].missing[TEMPERATURE] is Missing.BLANK
    assert readings[UUID.format(5)].values == {"gpu_xid_last_code": 0.0}


def test_a_lost_gpu_does_not_keep_the_others_from_being_read(
    tmp_path: Path, opened: Opener, own: OwnMetrics, clock: ManualClock
) -> None:
    rows = live_rows("dmon_live_off_bus.txt")[0]
    fake = FakeDcgmi(tmp_path, LIVE_IDS, rows)
    source = opened(fake)
    until(source, T0, lambda found: all(r.values for r in found.values()))
    # The host engine is started anew with a lost GPU: `dmon` refuses to start at all.
    fake.write("dmon_end", (DATA / "dmon_off_bus.txt").read_text().split("\n", 1)[1])
    fake.write("discovery_then", (DATA / "discovery_gpu_lost.txt").read_text())
    fake.write("dmon_grouped", "".join(t for t in rows.splitlines(keepends=True) if not t.startswith("GPU 5")))
    kill(source)
    until(source, T0 + STEP, lambda _found: fake.calls()[-1].endswith("-i 0,1,2,3,4,6,7"))
    readings = until(source, T0 + STEP, lambda found: bool(found[UUID.format(0)].values))
    assert readings[UUID.format(5)].values == {}
    assert set(readings[UUID.format(5)].missing.values()) == {Missing.LOST}
    assert starts(own, "regrouped") == 1


def kill(source: DcgmiSource) -> None:
    """End the child as the kernel or an operator would."""
    child = source._child
    assert child is not None
    child._process.kill()
    child._process.wait(10)
    while child.wait_for_output(5) and not child.ended:
        source._drain()


def test_a_child_that_ends_is_started_again(tmp_path: Path, opened: Opener, own: OwnMetrics) -> None:
    fake = FakeDcgmi(tmp_path, LIVE_IDS, live_rows("dmon_live_ecc_dbe.txt")[0])
    source = opened(fake)
    source.read(T0)
    kill(source)
    until(source, T0 + STEP, lambda _found: starts(own, "ended") == 1)
    until(source, T0 + STEP, lambda found: all(r.values for r in found.values()))


def test_starts_that_fail_are_spaced_out(tmp_path: Path, opened: Opener, clock: ManualClock) -> None:
    fake = FakeDcgmi(tmp_path, LIVE_IDS)
    fake.write("discovery_l", (DATA / "err_no_hostengine.txt").read_text())
    source = opened(fake)
    assert source.gpus() == []
    for _ in range(60):
        source.read(clock.now_ms())
        clock.advance(SECOND)
    # At once at the start, then after 0, 1, 2, 4, 8, 16 and 32 seconds.
    assert 6 <= fake.calls().count("discovery -l") <= 9
    fake.write("discovery_l", (DATA / "discovery_l.txt").read_text())
    fake.write("dmon", live_rows("dmon_live_ecc_dbe.txt")[0])
    clock.advance(60 * SECOND)
    until(source, clock.now_ms(), lambda found: len(found) == 8 and all(r.values for r in found.values()))


def test_a_child_that_falls_silent_is_stuck(
    tmp_path: Path, opened: Opener, own: OwnMetrics, clock: ManualClock
) -> None:
    fake = FakeDcgmi(tmp_path, LIVE_IDS, live_rows("dmon_live_ecc_dbe.txt")[0])
    source = opened(fake)
    until(source, T0, lambda found: all(r.values for r in found.values()))
    clock.advance(11 * SECOND)
    late = source.read(clock.now_ms())
    assert {reason for r in late.readings for reason in r.missing.values()} == {Missing.TIMED_OUT}
    assert all(not r.values for r in late.readings)
    assert not late.events
    clock.advance(5 * SECOND)
    source.read(clock.now_ms())
    assert starts(own, "stuck") == 1
    until(source, clock.now_ms(), lambda found: all(r.values for r in found.values()))


def test_the_first_code_after_a_restart_is_no_onset(tmp_path: Path, opened: Opener, own: OwnMetrics) -> None:
    healthy, *_, broken = live_rows("dmon_live_ecc_dbe.txt")
    assert healthy != broken
    fake = FakeDcgmi(tmp_path, LIVE_IDS, healthy)
    source = opened(fake)
    assert not source.read(T0).events
    # Killed first: the old child would tell of the new code, and rightly as an onset.
    kill(source)
    fake.write("dmon", broken.replace(" 0 ", " 48 ", 1))
    until(source, T0 + STEP, lambda _found: starts(own, "ended") == 1)
    for step in range(5):
        assert not source.read(T0 + 2 * STEP + step).events


def test_a_change_of_the_code_is_an_event(tmp_path: Path, opened: Opener) -> None:
    row = "GPU 3     34           95.000            0                 {}            0            0\n"
    fake = FakeDcgmi(tmp_path, LIVE_IDS, row.format(31))
    source = opened(fake)
    assert not source.read(T0).events
    fake.add(row.format(79))
    assert wait_for_event(source) == (EventKind.XID, UUID.format(3))


def test_entities(tmp_path: Path, opened: Opener, own: OwnMetrics) -> None:
    text = (DATA / "dmon_entities.txt").read_text()
    fake = FakeDcgmi(tmp_path, (150, 155, 429), text)
    fake.write("discovery_c", (DATA / "discovery_c.txt").read_text())
    source = opened(fake)
    readings = until(source, T0, lambda found: bool(found[UUID.format(1)].values))
    assert readings[UUID.format(0)].values == {
        TEMPERATURE: 34.0,
        "gpu_power_watts": 95.0,
        "gpu_nvlink_replay_errors_total": 12.0,
        'gpu_nvlink_replay_errors_total{link="5"}': 7.0,
    }
    assert readings[UUID.format(1)].missing["gpu_nvlink_replay_errors_total"] is Missing.UNSUPPORTED
    instance = readings[f"{UUID.format(0)}/gi1"]
    assert (instance.gpu.parent, instance.values) == (UUID.format(0), {TEMPERATURE: 35.0})
    assert own.value("tocsin_dcgm_lines_total", outcome="other_entity") == 1
    assert own.value("tocsin_dcgm_lines_total", outcome="malformed") >= 1


def test_profiling_fields_are_left_out_where_they_keep_dmon_from_starting(tmp_path: Path, opened: Opener) -> None:
    fake = FakeDcgmi(tmp_path, (150, 1002), "GPU 0     34\n")
    trouble = "Error setting watches. Result: The third-party Profiling module returned an unrecoverable error\n"
    fake.path.write_text(
        fake.path.read_text().replace(
            'if [ -e "$here/dmon_end" ]',
            f'case "$*" in *1002*) echo "{trouble.strip()}"; exit 238 ;; esac\n    if false',
        )
    )
    source = opened(fake)
    until(source, T0, lambda found: found[UUID.format(0)].values == {TEMPERATURE: 34.0})
    assert [call for call in fake.calls() if "-d" in call] == ["dmon -e 150,1002 -d 5000", "dmon -e 150 -d 5000"]


def test_a_program_that_is_not_installed(clock: ManualClock, own: OwnMetrics) -> None:
    with pytest.raises(Unavailable, match="install DCGM"):
        DcgmiSource(["/nowhere/dcgmi"], NodeIdentity("n1"), clock, own)


def test_it_opens_from_settings(tmp_path: Path, clock: ManualClock, own: OwnMetrics) -> None:
    fake = FakeDcgmi(tmp_path, LIVE_IDS, live_rows("dmon_live_ecc_dbe.txt")[0])
    settings = Settings.model_validate({"agent": {"dcgmi_command": [str(fake.path)], "host": "h", "pool": "p"}})
    source = open_dcgmi(settings, clock, own)
    assert {(gpu.host, gpu.pool) for gpu in source.gpus()} == {("h", "p")}
    source.close()
    source.close()


def test_a_child_gives_whole_lines_and_the_last_one_at_its_end() -> None:
    child = Child(["printf", "a\\nb"])
    lines: list[str] = []
    while not child.ended:
        child.wait_for_output(5)
        lines += child.lines()
    assert lines == ["a", "b"]
    assert child.pid > 0
    child.stop()
    child.stop()


def test_backoff_doubles_up_to_its_bound_and_begins_anew() -> None:
    clock = ManualClock(T0)
    backoff = Backoff(clock, 4.0)
    pauses = []
    for _ in range(5):
        backoff.failed()
        pause = 0
        while not backoff.is_due():
            clock.advance(SECOND)
            pause += 1
        pauses.append(pause)
    assert pauses == [0, 1, 2, 4, 4]
    backoff.worked()
    backoff.failed()
    assert backoff.is_due()


def test_a_question_that_leaves_its_pipe_to_another_is_given_up() -> None:
    script = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE).wait()"
    assert ask([sys.executable, "-c", script], [], 0.5) is None


def test_a_child_that_never_stops_printing_does_not_keep_the_reader() -> None:
    child = Child([sys.executable, "-c", "while True: print('x' * 1000, flush=True)"])
    try:
        assert child.wait_for_output(30.0)
        assert sum(map(len, child.lines())) <= MOST_READS * READ_BYTES
        assert not child.ended
    finally:
        child.stop()

"""The companion: events at their GPU and instant, one of two witnesses, metrics, restarts, bounds."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tocsin.collector.kernel_log import companion as kernel_log
from tocsin.collector.kernel_log.companion import KernelLogCompanion, driver_version, open_kernel_log
from tocsin.collector.kernel_log.parser import KernelRecord
from tocsin.collector.kernel_log.readers import Chunk, KmsgReader, Position, load_position
from tocsin.config.settings import Settings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import DAY, HOUR, ManualClock, SystemClock
from tocsin.domain.errors import Unavailable
from tocsin.domain.event import Event, EventKind
from tocsin.domain.finding import Severity, SubjectKind
from tocsin.domain.reading import Missing, Reading
from tocsin.rules.engine import Inputs, RuleEngine
from tocsin.rules.load import load_rules
from tocsin.telemetry.metrics import OwnMetrics
from tocsin_testing.builders import T0, gpu, xid

GPU = gpu(0, pci_bus_id="00000000:05:00.0")
OTHER = gpu(1, pci_bus_id="00000000:06:00.0")
LAST, COUNT = "gpu_xid_last_code", 'gpu_xid_events_total{xid="31"}'
XID_31 = "NVRM: Xid (PCI:0000:05:00): 31, pid=7, name=train, MMU Fault"
SXID = "nvidia-nvswitch%d: SXid (PCI:0000:0%d:00.0): 20034, Fatal, Link 3 LTSSM Fault Up"


class FakeReader:
    """Gives the chunks that a test puts in; `position` follows the records' numbers."""

    name = "kmsg"
    starts = 1

    def __init__(self) -> None:
        self.position = Position("boot", T0)
        self.chunks: list[Chunk | Exception] = []
        self.closed = 0
        self._bell = threading.Event()

    def say(self, *texts: str, at_ms: int = T0, **more: int) -> None:
        first = (self.position.seq or 0) + 1 + sum(len(c.records) for c in self.chunks if isinstance(c, Chunk))
        records = [KernelRecord(text, at_ms, first + n) for n, text in enumerate(texts)]
        self.chunks.append(Chunk(records, len(records), **more))

    def read(self, seconds: float) -> Chunk:
        if not self.chunks:
            self._bell.wait(seconds)
            return Chunk()
        chunk = self.chunks.pop(0)
        if isinstance(chunk, Exception):
            raise chunk
        if chunk.records:
            self.position = replace(self.position, seq=chunk.records[-1].seq)
        return chunk

    def wake(self) -> None:
        self._bell.set()

    def close(self) -> None:
        self.closed += 1


class Bench:
    """A companion over a fake reader."""

    def __init__(self, folder: Path, **more: int) -> None:
        self.reader = FakeReader()
        self.own = OwnMetrics()
        self.state = folder / "kernel_log.json"
        self.companion = KernelLogCompanion(self.reader, self.own, host="node-9", state=self.state, **more)

    def hear(self, *texts: str, at_ms: int = T0) -> None:
        self.reader.say(*texts, at_ms=at_ms)
        self.companion.pump()

    def enrich(self, *events: Event, now_ms: int = T0, readings: Sequence[Reading] | None = None) -> Batch:
        return self.companion.enrich(Batch(readings_of() if readings is None else readings, events), now_ms)


def readings_of(missing: dict[str, Missing] | None = None, **values: float) -> list[Reading]:
    made = {f"gpu_{name}": value for name, value in values.items()}
    return [Reading(which, T0, made, missing or {}) for which in (GPU, OTHER)]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def told(batch: Batch) -> list[tuple[EventKind, str, int, int]]:
    return [(event.kind, event.gpu, event.code, event.at_ms) for event in batch.events]


def test_an_xid_is_dated_and_put_to_its_gpu(bench: Bench) -> None:
    bench.hear(XID_31, at_ms=T0 - 3_000)
    (event,) = bench.enrich().events
    assert event == Event(
        EventKind.XID, GPU.uuid, "node-1", T0 - 3_000, 31, "MMU Fault; process 7 train", "kmsg", simulated=False
    )
    assert bench.enrich().events == ()


def test_an_event_brings_what_its_line_says_of_its_weight(bench: Bench) -> None:
    bench.hear(
        "NVRM: Xid (PCI:0000:05:00): 149, NETIR_BER_EVENT Nonfatal XC0 i0 Link 03 (0x00086226 0x1 0x0 0x0 0x0 0x0)"
    )
    bench.hear(SXID % (1, 5), XID_31)
    weights = {event.code: (event.severity, event.remedy) for event in bench.enrich().events}
    assert weights == {149: (Severity.WARNING, "ignore"), 20034: (Severity.CRITICAL, ""), 31: (None, "")}


def test_a_quiet_log_changes_nothing(bench: Bench) -> None:
    batch = Batch(readings_of(), [xid(31, GPU)])
    assert bench.companion.enrich(batch, T0) is batch


def test_the_bus_is_known_from_any_earlier_reading_and_from_the_log(bench: Bench) -> None:
    bench.enrich()
    bench.hear(XID_31, "NVRM: GPU at PCI:0000:07:00: GPU-00000000-7777", XID_31.replace("05:", "07:"))
    batch = bench.enrich(readings=[])
    assert [event.gpu for event in batch.events] == [GPU.uuid, "GPU-00000000-7777"]


def test_an_unknown_bus_is_the_hosts(bench: Bench) -> None:
    bench.hear(XID_31.replace("05:", "77:"))
    (event,) = bench.enrich(readings=[]).events
    assert (event.gpu, event.host) == ("", "node-9")
    assert event.message.startswith("PCI 00000000:77:00.0, a GPU that nothing else reports: MMU Fault")


def test_a_mig_instance_does_not_take_the_bus_of_its_gpu(bench: Bench) -> None:
    instance = gpu(9, uuid="MIG-1", parent=GPU.uuid, pci_bus_id=GPU.pci_bus_id)
    bench.hear(XID_31)
    batch = bench.enrich(readings=[*readings_of(), Reading(instance, T0, {})])
    assert [event.gpu for event in batch.events] == [GPU.uuid]


def test_switches_belong_to_the_host_and_each_report_counts(bench: Bench) -> None:
    bench.hear(
        SXID % (1, 5), SXID % (2, 6), SXID % (3, 7), "nvidia-nvswitch3: SXid (PCI:0000:07:00.0): 20034, Data {0x1}"
    )
    events = bench.enrich().events
    assert [(e.kind, e.gpu, e.code, e.at_ms) for e in events] == [(EventKind.SXID, "", 20034, T0 + n) for n in range(3)]
    assert len({event.id for event in events}) == 3


def test_a_verdict_is_an_xid_and_a_recovery_action(bench: Bench) -> None:
    bench.hear(
        "NVRM: Xid (PCI:0000:05:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"
    )
    assert told(bench.enrich()) == [
        (EventKind.XID, GPU.uuid, 154, T0),
        (EventKind.RECOVERY_ACTION, GPU.uuid, 2, T0),
    ]


def test_of_two_witnesses_the_kernel_is_kept(bench: Bench) -> None:
    bench.hear(XID_31, at_ms=T0 - 9_000)
    batch = bench.enrich(xid(31, GPU), xid(79, GPU), xid(31, OTHER))
    assert told(batch) == [
        (EventKind.XID, GPU.uuid, 79, T0),
        (EventKind.XID, OTHER.uuid, 31, T0),
        (EventKind.XID, GPU.uuid, 31, T0 - 9_000),
    ]
    assert bench.own.value("tocsin_kernel_log_twins_total", kept="kernel") == 1


def test_the_source_may_be_late(bench: Bench) -> None:
    bench.hear(XID_31)
    assert len(bench.enrich().events) == 1
    assert bench.enrich(xid(31, GPU, T0 + 10_000), now_ms=T0 + 10_000).events == []


def test_the_kernel_log_may_be_late(bench: Bench) -> None:
    assert len(bench.enrich(xid(31, GPU, T0 + 2_000)).events) == 1
    bench.hear(XID_31)
    assert bench.enrich().events == ()
    assert bench.own.value("tocsin_kernel_log_twins_total", kept="other") == 1


def test_each_witness_speaks_for_one(bench: Bench) -> None:
    bench.hear(XID_31, XID_31)
    batch = bench.enrich(*(xid(31, GPU, T0 + n) for n in range(3)))
    assert len(batch.events) == 3, "two of the kernel's, and the third of the source"


@pytest.mark.parametrize(("apart_ms", "events"), [(15_000, 1), (15_001, 2), (-5_000, 1), (-5_001, 2)])
def test_how_far_two_witnesses_may_be_apart(bench: Bench, apart_ms: int, events: int) -> None:
    bench.hear(XID_31)
    assert len(bench.enrich(xid(31, GPU, T0 + apart_ms)).events) == events


def test_other_events_of_the_source_pass(bench: Bench) -> None:
    bench.hear(XID_31)
    lost = Event(EventKind.GPU_LOST, GPU.uuid, "node-1", T0)
    assert bench.enrich(lost).events[0] == lost


@pytest.mark.parametrize("blindness", [{LAST: Missing.UNSUPPORTED}, {LAST: Missing.DENIED}, {}])
def test_metrics_are_kept_where_the_source_cannot(bench: Bench, blindness: dict[str, Missing]) -> None:
    blind = readings_of({**blindness, "gpu_fan_ratio": Missing.BLANK}, power_watts=70.0)
    bench.hear(XID_31, XID_31, XID_31.replace("31,", "45,"))
    bench.enrich(readings=blind)
    first, second = bench.enrich(readings=blind).readings
    assert first.values == {"gpu_power_watts": 70.0, LAST: 45.0, COUNT: 2.0, COUNT.replace("31", "45"): 1.0}
    assert second.values == {"gpu_power_watts": 70.0} | ({LAST: 0.0} if blindness else {})
    assert first.missing == second.missing == {"gpu_fan_ratio": Missing.BLANK}


def test_metrics_of_a_source_that_sees_are_its_own(bench: Bench) -> None:
    bench.hear(XID_31)
    assert [reading.values for reading in bench.enrich(readings=readings_of(xid_last_code=3.0)).readings] == [
        {LAST: 3.0}
    ] * 2


def test_a_lost_gpu_stays_without_values_and_a_late_metric_missing(bench: Bench) -> None:
    bench.hear(XID_31)
    for reading in (*readings_of({LAST: Missing.LOST}), *readings_of({LAST: Missing.NOT_DUE}, power_watts=70.0)):
        assert bench.enrich(readings=[reading]).readings == [reading]


def test_a_storm_is_bounded_and_counted(tmp_path: Path) -> None:
    bench = Bench(tmp_path, queue_events=3)
    bench.hear(*(XID_31.replace("31,", f"{n},") for n in range(1, 6)))
    bench.hear(XID_31)
    assert [event.code for event in bench.enrich().events] == [1, 2, 3]
    assert bench.own.value("tocsin_dropped_total", what="event", reason="kernel_log_full") == 3
    bench.hear(XID_31)
    assert len(bench.enrich().events) == 1


def test_losses_before_the_reader_are_counted(bench: Bench) -> None:
    bench.reader.say(XID_31, overrun=7, malformed=2)
    bench.companion.pump()
    assert bench.own.value("tocsin_dropped_total", what="line", reason="kernel_log_overrun") == 7
    assert bench.own.value("tocsin_dropped_total", what="line", reason="kernel_log_malformed") == 2
    assert bench.own.value("tocsin_kernel_log_lines_total", source="kmsg") == 1
    assert bench.own.value("tocsin_kernel_log_reading", source="kmsg") == 1


def test_the_position_is_kept_once_the_events_were_handed_on(bench: Bench) -> None:
    bench.hear(XID_31)
    bench.enrich()
    assert load_position(bench.state) is None, "a crash here must repeat the event"
    bench.enrich()
    assert load_position(bench.state) == Position("boot", T0, 1)
    bench.hear(XID_31)
    bench.enrich()
    bench.companion.close()
    assert load_position(bench.state) == Position("boot", T0, 2)


def test_what_waits_at_the_end_is_read_again(bench: Bench) -> None:
    bench.hear(XID_31)
    bench.companion.close()
    assert load_position(bench.state) is None


def test_a_state_that_cannot_be_written_costs_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    bench = Bench(tmp_path / "file")
    bench.hear(XID_31)
    assert len(bench.enrich().events) == 1
    assert bench.enrich().events == ()


def test_the_thread_survives_errors_and_ends(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_log, "_REST_SECONDS", 0.0)
    bench.reader.chunks.append(OSError("broken"))
    bench.reader.say(XID_31)
    bench.companion.start()
    for _ in range(10_000):
        if bench.own.value("tocsin_kernel_log_lines_total", source="kmsg") == 1:
            break
        threading.Event().wait(0.001)
    bench.companion.close()
    bench.companion.close()
    assert bench.own.value("tocsin_loop_failures_total", loop="kernel_log") == 1
    assert bench.reader.closed == 2
    assert len(bench.enrich().events) == 1


def kmsg(folder: Path, *lines: tuple[int, str]) -> Path:
    """A stand-in for the device whose records have (seconds since boot, text)."""
    path = folder / "kmsg"
    before = path.read_text() if path.exists() else ""
    count = before.count("\n")
    new = [f"4,{count + n},{seconds * 1_000_000},-;{text}\n" for n, (seconds, text) in enumerate(lines)]
    path.write_text(before + "".join(new))
    return path


def agent(folder: Path, clock: ManualClock) -> KernelLogCompanion:
    """A companion as a new process would open it."""
    state = folder / "kernel_log.json"
    (folder / "boot_id").write_text("boot\n")
    reader = KmsgReader(clock, load_position(state), kmsg(folder), folder / "boot_id")
    companion = KernelLogCompanion(reader, OwnMetrics(), host="node-1", state=state)
    companion.pump()
    return companion


def uptime(seconds: int) -> ManualClock:
    """A clock that shows T0, `seconds` after the boot."""
    clock = ManualClock(T0 - 1_000 * seconds)
    clock.advance(1_000 * seconds)
    return clock


def test_a_restart_emits_what_came_in_between_and_nothing_twice(tmp_path: Path) -> None:
    clock = uptime(3_600)
    kmsg(tmp_path, (100, XID_31), (200, "usb 1-1"))
    first = agent(tmp_path, clock)
    assert [event.code for event in first.enrich(Batch(readings_of()), T0).events] == [31]
    first.close()
    kmsg(tmp_path, (300, XID_31.replace("31,", "79,")))
    second = agent(tmp_path, clock)
    events = second.enrich(Batch(readings_of()), T0).events
    assert [(event.code, event.at_ms) for event in events] == [(79, T0 - 3_300_000)]
    second.close()
    third = agent(tmp_path, clock)
    assert third.enrich(Batch(readings_of()), T0).events == ()
    third.close()


def test_a_killed_agent_repeats_events_under_the_same_ids(tmp_path: Path) -> None:
    kmsg(tmp_path, (100, XID_31), (100, XID_31), (100, XID_31))
    clock = uptime(3_600)
    first = agent(tmp_path, clock)
    before = first.enrich(Batch(readings_of()), T0).events
    clock.advance(40)
    again = agent(tmp_path, clock).enrich(Batch(readings_of()), T0).events
    assert [event.id for event in again] == [event.id for event in before]
    assert len({event.id for event in again}) == 3


def judged(events: Sequence[Event]) -> dict[str, int]:
    """Rules that hold after `events`, with the instant since when."""
    engine = RuleEngine(load_rules())
    result = engine.step(Inputs(T0, readings_of(), events))
    return {finding.rule: finding.started_ms for finding in result.active}


@pytest.mark.parametrize(
    "text", [XID_31.replace("31,", "79,"), SXID % (1, 5), "NVRM: GPU 0000:05:00.0: GPU has fallen off the bus."]
)
def test_an_error_from_before_every_window_is_no_live_one(tmp_path: Path, text: str) -> None:
    kmsg(tmp_path, (100, text))
    events = agent(tmp_path, uptime(3 * DAY // 1000)).enrich(Batch(readings_of()), T0).events
    assert [event.at_ms for event in events] == [T0 - 3 * DAY + 100_000]
    assert judged(events) == {}


def test_an_error_in_the_boot_log_is_found_at_its_own_time(tmp_path: Path) -> None:
    kmsg(tmp_path, (600, XID_31.replace("31,", "79,")))
    events = agent(tmp_path, uptime(7_200)).enrich(Batch(readings_of()), T0).events
    assert judged(events) == {"xid_bus": T0 - 2 * HOUR + 600_000}


def test_an_error_from_before_the_driver_was_loaded_is_past(tmp_path: Path) -> None:
    kmsg(tmp_path, (600, XID_31.replace("31,", "79,")), (601, SXID % (1, 5)))
    kmsg(tmp_path, (700, "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  575.57.08  x"))
    events = agent(tmp_path, uptime(7_200)).enrich(Batch(readings_of()), T0).events
    assert [event.kind for event in events] == [EventKind.XID, EventKind.SXID, EventKind.DRIVER_RELOAD]
    assert judged(events) == {}


def test_a_switch_error_is_found_on_the_host(tmp_path: Path) -> None:
    kmsg(tmp_path, (7_000, SXID % (1, 5)))
    events = agent(tmp_path, uptime(7_200)).enrich(Batch(readings_of()), T0).events
    result = RuleEngine(load_rules()).step(Inputs(T0, readings_of(), events))
    (finding,) = result.active
    assert (finding.rule, finding.subject.kind, finding.subject.name) == (
        "nvswitch_partition_fatal",
        SubjectKind.HOST,
        "node-1",
    )


def test_the_driver_is_read_where_it_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "version"
    assert driver_version(path) == ""
    path.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.154.05  Thu Dec 28 15:37:48 UTC 2023\n")
    assert driver_version(path) == "535.154.05"
    path.write_text("nothing")
    assert driver_version(path) == ""


def test_it_does_not_load_what_only_the_brain_needs() -> None:
    heavy = ("numpy", "polars", "pyarrow", "tocsin.rules.engine")
    code = f"import sys, tocsin.collector.kernel_log.companion; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def settings(folder: Path, kind: str) -> Settings:
    return Settings.model_validate({"agent": {"kernel_log": kind, "spool": folder / "spool.db"}})


def shut(monkeypatch: pytest.MonkeyPatch, *, journalctl: str | None) -> None:
    """Make the device unreadable, and journalctl `journalctl`."""

    def refuse(*_: object) -> KmsgReader:
        raise Unavailable("/dev/kmsg cannot be read: Operation not permitted; x")

    monkeypatch.setattr(kernel_log, "KmsgReader", refuse)
    monkeypatch.setattr(kernel_log.shutil, "which", lambda _: journalctl)


def test_it_opens_what_the_settings_ask_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, own = SystemClock(), OwnMetrics()
    assert open_kernel_log(settings(tmp_path, "off"), clock, own) is None
    shut(monkeypatch, journalctl=None)
    with pytest.raises(Unavailable, match="Operation not permitted"):
        open_kernel_log(settings(tmp_path, "kmsg"), clock, own)
    with pytest.raises(Unavailable, match="neither /dev/kmsg nor journald"):
        open_kernel_log(settings(tmp_path, "auto"), clock, own)


def test_auto_falls_back_to_journald(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shut(monkeypatch, journalctl="/bin/journalctl")
    monkeypatch.setattr(kernel_log, "JournalReader", lambda *_: FakeReader())
    companion = open_kernel_log(settings(tmp_path, "auto"), SystemClock(), OwnMetrics())
    assert companion is not None
    companion.close()

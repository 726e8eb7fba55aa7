"""The kernel log costs little more than looking for the driver's mark: 99 of 100 lines are none of its."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from tocsin.collector.kernel_log.parser import KernelLogParser
from tocsin.collector.kernel_log.readers import KmsgReader, decode_any, decode_journal
from tocsin.domain.clock import ManualClock
from tocsin_testing.builders import T0

LINES = 100_000
WANTED_PER_MINUTE = 1_000_000
PACKETS = 200

OTHERS = (
    'audit: type=1400 audit(1763695000.123:456): apparmor="ALLOWED" operation="open" profile="docker-default"',
    "IPv6: ADDRCONF(NETDEV_CHANGE): cali0123456789a: link becomes ready",
    "mlx5_core 0000:c1:00.0: Port module event: module 0, Cable plugged",
    "EXT4-fs (nvme0n1p1): mounted filesystem with ordered data mode. Quota mode: none.",
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=cri-containerd,mems_allowed=0-1,task=python3,pid=4711",
    "nvidia-uvm: Loaded the UVM driver, major device number 510.",
    "[drm] [nvidia-drm] [GPU ID 0x00000500] Loading driver",
)
DRIVER = (
    "NVRM: Xid (PCI:0000:65:00): 31, pid=4712, name=train.py, Ch 00000010, intr 00000000. MMU Fault: ENGINE GRAPHICS",
    "NVRM: Xid (PCI:0018:01:00): 145, pid=876767, name=ray::WorkerDict, RLW_RXPIPE Nonfatal XC0 i0 Link 13 "
    "(0x0409a0c2 0x00000008 0x00000001 0x00000000 0x00100000 0x00000004)",
    "NVRM: Xid (PCI:0003:00:00): 74, pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 14"
    "(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)",
    "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)",
    "NVRM: GPU at PCI:0000:65:00: GPU-b6c3b2be-c55b-d076-fa0e-d464e4c7e08b",
)
EVENTS = LINES // 100 * 4 // 5
"""One line in a hundred is the driver's; one in five of those says who a GPU is and is no event."""


def text(number: int) -> str:
    if number % 100 == 0:
        return DRIVER[number // 100 % len(DRIVER)]
    return OTHERS[number % len(OTHERS)]


def kmsg(number: int) -> bytes:
    return f"6,{number},{1_000_000 + number * 10},-;{text(number)}\n".encode()


def journal(number: int) -> bytes:
    row = {
        "__CURSOR": f"s=0123456789abcdef0123456789abcdef;i={number:x};b=fedcba9876543210fedcba9876543210;m=1;t=2;x=3",
        "__REALTIME_TIMESTAMP": str(T0 * 1000 + number),
        "__MONOTONIC_TIMESTAMP": str(number),
        "_BOOT_ID": "fedcba9876543210fedcba9876543210",
        "_TRANSPORT": "kernel",
        "PRIORITY": "6",
        "SYSLOG_IDENTIFIER": "kernel",
        "_HOSTNAME": "node-1",
        "MESSAGE": text(number),
    }
    return json.dumps(row, separators=(",", ":")).encode() + b"\n"


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kernel_log")
    (folder / "kmsg").write_bytes(b"".join(kmsg(n) for n in range(LINES)))
    (folder / "boot_id").write_text("boot\n")
    return folder


def read_kmsg(folder: Path) -> int:
    """Everything that the agent's thread does: read, number, find, decode and parse."""
    reader = KmsgReader(ManualClock(T0), None, folder / "kmsg", folder / "boot_id")
    parser = KernelLogParser()
    lines = events = 0
    while chunk := reader.read(0):
        if not chunk.lines:
            break
        lines += chunk.lines
        events += sum(len(parser.feed(record)) for record in chunk.records)
    reader.close()
    assert lines == LINES
    return events


def read_text(lines: list[bytes]) -> int:
    parser = KernelLogParser()
    return sum(len(parser.feed(decode_any(line))) for line in lines)


def read_journal(lines: list[bytes]) -> int:
    parser = KernelLogParser()
    found = (decode_journal(line) for line in lines if b"NVRM" in line or b"SXid" in line)
    return sum(len(parser.feed(record)) for record in found if record is not None)


def scan(lines: list[bytes]) -> int:
    return sum(b"NVRM" in line for line in lines)


def per_minute(benchmark: BenchmarkFixture) -> None:
    if benchmark.stats is not None:
        benchmark.extra_info["lines_per_minute"] = round(LINES / benchmark.stats.stats.min * 60)


@pytest.mark.benchmark(group=f"kernel log of {LINES} lines, 1 % of the driver")
def test_kmsg(benchmark: BenchmarkFixture, log: Path) -> None:
    assert benchmark.pedantic(read_kmsg, args=(log,), rounds=5, warmup_rounds=1) == EVENTS
    per_minute(benchmark)


@pytest.mark.parametrize(
    ("read", "make", "found"),
    [
        pytest.param(read_journal, journal, EVENTS, id="journald"),
        pytest.param(read_text, lambda n: f"[{n}.5] {text(n)}".encode(), EVENTS, id="text"),
        pytest.param(scan, lambda n: text(n).encode(), LINES // 100 * 4 // 5, id="baseline_only_look_for_the_mark"),
    ],
)
@pytest.mark.benchmark(group=f"kernel log of {LINES} lines, 1 % of the driver")
def test_lines(
    benchmark: BenchmarkFixture, read: Callable[[list[bytes]], int], make: Callable[[int], bytes], found: int
) -> None:
    lines = [make(n) for n in range(LINES)]
    assert benchmark.pedantic(read, args=(lines,), rounds=5, warmup_rounds=1) == found
    per_minute(benchmark)


@pytest.mark.benchmark(group=f"kernel log, {PACKETS} records, one a read as the device gives them")
def test_one_record_a_read(benchmark: BenchmarkFixture, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hear, say = os.pipe2(os.O_DIRECT | os.O_NONBLOCK)
    fcntl.fcntl(say, fcntl.F_SETPIPE_SZ, 1 << 20)
    reader = KmsgReader(ManualClock(T0), None, Path(f"/proc/self/fd/{hear}"), log / "boot_id")
    # A packet pipe opened by its name forgets that it is one, so that the reader takes over the descriptor itself.
    os.close(reader._fd)
    reader._fd = reader._stream._fd = hear
    numbers = iter(range(10**9))

    def setup() -> None:
        for _ in range(PACKETS):
            os.write(say, kmsg(next(numbers)))

    chunk = benchmark.pedantic(lambda: reader.read(0), setup=setup, rounds=50, warmup_rounds=1)
    assert chunk.lines == PACKETS
    reader.close()
    os.close(say)


def test_a_million_lines_a_minute_on_one_core(log: Path) -> None:
    begun = time.process_time()
    read_kmsg(log)
    taken = time.process_time() - begun
    assert LINES / taken * 60 > WANTED_PER_MINUTE

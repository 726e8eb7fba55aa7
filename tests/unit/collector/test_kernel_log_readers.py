"""Readers against files, pipes and a stand-in for journalctl; the real device where it can be read."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from tocsin.collector.kernel_log import readers as kernel_log_stream
from tocsin.collector.kernel_log.parser import KernelRecord
from tocsin.collector.kernel_log.readers import (
    BOOT_ID,
    KMSG,
    Chunk,
    JournalReader,
    KmsgReader,
    LineStream,
    Position,
    WakePipe,
    boot_instant,
    load_position,
    save_position,
)
from tocsin.domain.clock import ManualClock, SystemClock
from tocsin.domain.errors import Unavailable
from tocsin_testing.builders import T0

BOOT = "11111111-2222-3333-4444-555555555555"
XID = "NVRM: Xid (PCI:0000:05:00): 31, x"


@pytest.fixture
def boot_id(tmp_path: Path) -> Path:
    path = tmp_path / "boot_id"
    path.write_text(BOOT + "\n")
    return path


@pytest.fixture
def clock() -> ManualClock:
    clock = ManualClock(T0)
    clock.advance(10_000)
    return clock


def kmsg(seq: int, text: str = XID, usec: int = 2_500_000) -> str:
    return f"4,{seq},{usec},-;{text}\n SUBSYSTEM=pci\n DEVICE=+pci:0000:05:00.0\n"


def write(path: Path, *texts: str) -> None:
    with path.open("a") as out:
        out.write("".join(texts))


class Kmsg:
    """A file in place of the device, and readers of it."""

    def __init__(self, path: Path, boot_id: Path, clock: ManualClock) -> None:
        self.path, self._boot_id, self._clock = path, boot_id, clock
        path.touch()

    def open(self, before: Position | None = None) -> KmsgReader:
        return KmsgReader(self._clock, before, self.path, self._boot_id)


@pytest.fixture
def device(tmp_path: Path, boot_id: Path, clock: ManualClock) -> Kmsg:
    return Kmsg(tmp_path / "kmsg", boot_id, clock)


def test_kmsg_gives_the_drivers_records_at_their_instant(device: Kmsg) -> None:
    write(device.path, kmsg(5, "usb 1-1: new device"), kmsg(6), "malformed\n")
    reader = device.open()
    chunk = reader.read(0)
    assert (chunk.lines, chunk.overrun, chunk.malformed) == (2, 0, 1)
    # The clock has run 10 s since a boot at T0, and the record is 2.5 s old by then.
    assert [(r.text, r.at_ms, r.seq) for r in chunk.records] == [(XID, T0 + 2_500, 6)]
    assert reader.position == Position(BOOT, T0, 6)
    assert reader.read(0).lines == 0
    write(device.path, kmsg(7))
    assert len(reader.read(0).records) == 1
    reader.close()
    reader.close()


def test_a_restart_repeats_nothing_and_misses_nothing(device: Kmsg) -> None:
    write(device.path, kmsg(5), kmsg(6))
    first = device.open()
    first.read(0)
    first.close()
    write(device.path, kmsg(7), kmsg(8))
    again = device.open(first.position)
    chunk = again.read(0)
    assert [record.seq for record in chunk.records] == [7, 8]
    assert chunk.overrun == 0
    again.close()


def test_what_the_kernel_overwrote_is_counted(device: Kmsg) -> None:
    write(device.path, kmsg(50))
    reader = device.open(Position(BOOT, T0, 40))
    chunk = reader.read(0)
    assert (chunk.overrun, len(chunk.records)) == (9, 1)
    reader.close()


def test_another_boot_begins_anew(device: Kmsg) -> None:
    write(device.path, kmsg(1))
    reader = device.open(Position("an earlier boot", T0 - 10**9, 4_000, "s=1"))
    assert [record.at_ms for record in reader.read(0).records] == [T0 + 2_500]
    assert reader.position == Position(BOOT, T0, 1, "s=1")
    reader.close()


def test_the_start_of_a_boot_does_not_drift(device: Kmsg, clock: ManualClock) -> None:
    write(device.path, kmsg(1))
    known = Position(BOOT, T0 - 4_000, None)
    reader = device.open(known)
    assert [record.at_ms for record in reader.read(0).records] == [T0 - 1_500]
    clock.set(clock.now_ms() + 3_600_000)
    write(device.path, kmsg(2))
    assert [record.at_ms for record in reader.read(0).records] == [T0 + 3_600_000 + 2_500]
    reader.close()
    assert boot_instant(clock, T0) == T0 + 3_600_000


def test_kmsg_that_cannot_be_opened_says_what_to_do(tmp_path: Path, boot_id: Path, clock: ManualClock) -> None:
    with pytest.raises(Unavailable, match=r"cannot be read: No such file .*CAP_SYSLOG.*agent\.kernel_log"):
        KmsgReader(clock, None, tmp_path / "none", boot_id)


def test_an_overrun_is_counted_also_without_a_number_before(device: Kmsg, monkeypatch: pytest.MonkeyPatch) -> None:
    write(device.path, kmsg(50))
    reader = device.open()
    answers: list[OSError | None] = [OSError(errno.EPIPE, "overrun"), None]
    read = os.read

    def faulty(fd: int, count: int) -> bytes:
        error = answers.pop(0) if answers else None
        if error is not None:
            raise error
        return read(fd, count)

    monkeypatch.setattr(kernel_log_stream.os, "read", faulty)
    chunk = reader.read(0)
    assert (chunk.overrun, len(chunk.records)) == (1, 1)
    answers.append(OSError(errno.EIO, "broken"))
    with pytest.raises(OSError, match="broken"):
        reader.read(0)
    reader.close()


def test_a_reader_waits_for_the_pipe_and_for_the_bell(tmp_path: Path, boot_id: Path, clock: ManualClock) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    hold = os.open(path, os.O_RDWR)
    reader = KmsgReader(clock, None, path, boot_id)
    os.write(hold, kmsg(1)[:10].encode())
    assert reader.read(0).lines == 0
    found: list[Chunk] = []
    thread = threading.Thread(target=lambda: found.append(reader.read(60)))
    thread.start()
    os.write(hold, kmsg(1)[10:].encode())
    thread.join(30)
    assert [chunk.lines for chunk in found] == [1]
    reader.wake()
    assert reader.read(60).lines == 0, "the bell ended the wait"
    reader.close()
    os.close(hold)


def test_lines_of_a_stream_whatever_the_pieces() -> None:
    hear, say = os.pipe()
    stream = LineStream(hear)
    os.write(say, b"one\ntw")
    assert stream.lines() == [b"one"]
    os.write(say, b"o\n\nthr")
    assert stream.lines() == [b"two", b""]
    os.write(say, b"ee\n")
    os.close(say)
    assert stream.lines() == [b"three"]
    assert stream.ended
    os.close(hear)


def test_a_line_without_end_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_log_stream, "MAX_LINE_BYTES", 100)
    monkeypatch.setattr(kernel_log_stream, "READ_BYTES", 60)
    path = tmp_path / "log"
    path.write_bytes(b"x" * 1_000 + b"\nnext\n")
    fd = os.open(path, os.O_RDONLY)
    stream = LineStream(fd)
    assert stream.lines() == [b"next"]
    assert stream.given_up == 1
    os.close(fd)


def test_a_bell_can_be_rung_often() -> None:
    bell = WakePipe()
    for _ in range(100_000):
        bell.ring()
    bell.wait(60)
    bell.close()


FAKE = """#!/bin/sh
printf '%s\\n' "$*" >> {folder}/calls
cat {folder}/out.$(wc -l < {folder}/calls) 2>/dev/null
[ -e {folder}/stay ] && exec sleep 600
exit 1
"""


class Journal:
    """A script in place of journalctl: its n-th start prints ``out.n``, then stays if it is to."""

    def __init__(self, folder: Path, clock: ManualClock) -> None:
        self.folder, self.clock = folder, clock
        self.script = folder / "journalctl"
        self.script.write_text(FAKE.format(folder=folder))
        self.script.chmod(0o755)
        self._open: list[JournalReader] = []

    def says(self, start: int, *rows: dict[str, object] | bytes) -> None:
        raw = [row if isinstance(row, bytes) else json.dumps(row, separators=(",", ":")).encode() for row in rows]
        (self.folder / f"out.{start}").write_bytes(b"".join(line + b"\n" for line in raw))

    def stays(self) -> None:
        (self.folder / "stay").touch()

    @property
    def calls(self) -> list[str]:
        return (self.folder / "calls").read_text().splitlines()

    def open(self, before: Position | None = None) -> JournalReader:
        self._open.append(JournalReader(self.clock, before, [str(self.script)]))
        return self._open[-1]

    def close(self) -> None:
        for reader in self._open:
            reader.close()


@pytest.fixture
def journal(tmp_path: Path, clock: ManualClock) -> Iterator[Journal]:
    made = Journal(tmp_path, clock)
    yield made
    made.close()


def entry(number: int, message: object = XID) -> dict[str, object]:
    stamp = str((T0 + 1_000 * number) * 1000)
    return {"__REALTIME_TIMESTAMP": stamp, "__CURSOR": f"s=1;i={number}", "MESSAGE": message}


def until(reader: JournalReader, enough: Callable[[list[Chunk]], bool]) -> list[Chunk]:
    """Read until it is `enough`; each read ends as soon as the child says something."""
    chunks: list[Chunk] = []
    for _ in range(600):
        chunks.append(reader.read(0.05))
        if enough(chunks):
            return chunks
    raise AssertionError(chunks[-3:])


def lines(wanted: int) -> Callable[[list[Chunk]], bool]:
    return lambda chunks: sum(chunk.lines for chunk in chunks) >= wanted


def test_journald_begins_with_this_boot_and_follows(journal: Journal) -> None:
    journal.says(1, entry(1, "usb 1-1"), entry(2), entry(3, list(XID.encode())), b"no json NVRM")
    journal.stays()
    reader = journal.open()
    chunks = until(reader, lines(4))
    records = [record for chunk in chunks for record in chunk.records]
    assert [(r.text, r.at_ms, r.cursor) for r in records] == [
        (XID, T0 + 2_000, "s=1;i=2"),
        (XID, T0 + 3_000, "s=1;i=3"),
    ]
    assert sum(chunk.malformed for chunk in chunks) == 1
    assert reader.position.cursor == "s=1;i=3"
    assert journal.calls == ["--output=json --follow --no-tail --quiet --boot _TRANSPORT=kernel"]


def test_journald_goes_on_behind_the_cursor_also_of_an_earlier_boot(journal: Journal) -> None:
    journal.stays()
    reader = journal.open(Position("an earlier boot", cursor="s=1;i=9"))
    until(reader, lambda chunks: journal.folder.joinpath("calls").exists())
    assert journal.calls == ["--output=json --follow --no-tail --quiet --after-cursor=s=1;i=9 _TRANSPORT=kernel"]


def test_journalctl_that_ends_is_started_again_behind_the_last_line(journal: Journal) -> None:
    journal.says(1, entry(1), entry(2, "usb"))
    journal.says(2, entry(3))
    reader = journal.open()
    until(reader, lines(2))
    until(reader, lambda _: reader._child is None)
    assert reader.read(0).lines == 0, "too early"
    assert reader.starts == 1
    journal.clock.advance(1_000)
    records = [record.at_ms for chunk in until(reader, lines(1)) for record in chunk.records]
    assert records == [T0 + 3_000]
    assert reader.starts == 2
    assert "--after-cursor=s=1;i=2" in journal.calls[1]


def test_a_cursor_that_leads_nowhere_is_given_up_without_repeating(journal: Journal) -> None:
    journal.says(1, entry(1))
    journal.says(5, entry(1), entry(2))
    reader = journal.open()
    until(reader, lines(1))
    records: list[KernelRecord] = []

    def found(chunks: list[Chunk]) -> bool:
        journal.clock.advance(60_000)
        records.extend(chunks[-1].records)
        return bool(records)

    until(reader, found)
    assert [record.at_ms for record in records] == [T0 + 2_000]
    assert ["--after-cursor" in call for call in journal.calls] == [False, True, True, True, False]


def test_journalctl_that_is_not_there(clock: ManualClock) -> None:
    with pytest.raises(Unavailable, match=r"/no/such cannot be started: No such file.*agent\.kernel_log"):
        JournalReader(clock, None, ["/no/such"])


def test_closing_ends_the_child(journal: Journal) -> None:
    journal.stays()
    reader = journal.open()
    child = reader._child
    assert child is not None
    reader.close()
    reader.close()
    assert child.poll() is not None


def test_a_position_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "state" / "kernel_log.json"
    assert load_position(path) is None
    position = Position(BOOT, T0, 17, "s=1;i=2")
    save_position(path, position)
    assert load_position(path) == position
    save_position(path, replace(position, seq=None))
    assert load_position(path) == replace(position, seq=None)
    assert [child.name for child in path.parent.iterdir()] == ["kernel_log.json"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"boot_id": 1, "boot_ms": 1, "seq": 1, "cursor": ""}', "\x00" * 9])
def test_a_damaged_position_is_no_position(tmp_path: Path, text: str) -> None:
    path = tmp_path / "kernel_log.json"
    path.write_text(text)
    assert load_position(path) is None


def test_the_real_device() -> None:
    with suppress(Unavailable):
        reader = KmsgReader(SystemClock())
        chunk = reader.read(0)
        assert chunk.malformed == 0
        assert reader.position.boot_id == BOOT_ID.read_text().strip()
        assert reader.position.seq is not None
        reader.close()
        return
    pytest.skip(f"{KMSG} cannot be read here")

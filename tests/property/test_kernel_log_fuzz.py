"""No input raises, and what comes out is always fit to be stored."""

from __future__ import annotations

import json

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tocsin.collector.kernel_log.parser import KernelLogParser, KernelRecord, parse_line
from tocsin.collector.kernel_log.readers import (
    LineStream,
    decode_any,
    decode_journal,
    decode_kmsg,
    decode_text,
    kmsg_sequence,
)
from tocsin.domain.event import EventKind
from tocsin.domain.reading import normalise_pci_bus_id
from tocsin.rules.xid_nvlink import decode

PIECES = [
    "NVRM: ",
    "Xid (PCI:0000:05:00): ",
    "Xid (0000:03:00): ",
    "SXid (PCI:0000:05:00.0): ",
    "nvidia-nvswitch3: ",
    "GPU at PCI:0000:05:00: GPU-b6c3b2be-c55b",
    "GPU 0000:05:00.0: GPU has fallen off the bus.",
    "The NVIDIA GPU 0000:05:00.0",
    "fallen off the bus and is not responding to commands.",
    "loading NVIDIA UNIX x86_64 Kernel Module  575.57.08  x",
    "79, ",
    "74, NVLink: fatal error detected on link 14(0x0, 0x0, 0x10000",
    "149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x0)",
    "154, GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)",
    "20034, Fatal, Link 3 LTSSM",
    "pid=7, name=x, ",
    "pid='<unknown>', name=<unknown>, ",
    "\n",
    "99999999999999999999",
    "٣",  # a digit to Unicode, not to the driver
    "\x00\ufffd",
]
lines = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=20)), max_size=8).map("".join)
mostly_xid = st.builds("NVRM: Xid (PCI:{}): {}{}".format, st.text(max_size=15), st.integers(-5, 10**7), lines)
texts = st.one_of(lines, mostly_xid, st.text())


@settings(max_examples=500)
@given(texts)
@example("NVRM: Xid (" + "a" * 10_000)
@example("NVRM: The NVIDIA GPU " + "0:" * 10_000)
@example("NVRM: Xid (PCI:0000:05:00): 149, " + "A" * 10_000 + " (0x" + "0x0 " * 1_000)
def test_a_line_never_raises(text: str) -> None:
    line = parse_line(text)
    if line is not None:
        assert 0 <= line.code <= 999_999
        assert line.bus == normalise_pci_bus_id(line.bus)
        assert all(0 <= word < 1 << 32 for word in line.words)


@settings(max_examples=300)
@given(st.lists(st.builds(KernelRecord, texts, st.one_of(st.none(), st.integers(0, 2**42))), max_size=12))
def test_a_log_never_raises_and_gives_storable_events(records: list[KernelRecord]) -> None:
    parser = KernelLogParser()
    for record in records:
        for event in parser.feed(record):
            assert event.kind in (EventKind.XID, EventKind.SXID, EventKind.RECOVERY_ACTION, EventKind.DRIVER_RELOAD)
            assert event.message.isprintable()
            assert len(event.message) <= 500
            assert event.kind is not EventKind.XID or 0 < event.code <= 65_535
            assert event.kind is not EventKind.RECOVERY_ACTION or 0 <= event.code <= 7


@settings(max_examples=300)
@given(st.one_of(st.binary(), texts.map(lambda text: text.encode("utf-8", "surrogatepass"))))
@example(b"6,1,99999999999999999999999,-;NVRM")
@example(b"6,99999999999999999999999,1,-;NVRM")
@example(b"6," + b"9" * 10_000 + b"," + b"9" * 10_000 + b",-;NVRM")
@example(b'{"MESSAGE": "x", "__REALTIME_TIMESTAMP": "' + b"9" * 10_000 + b'"}')
@example(b"{" * 100_000)
def test_bytes_never_raise(raw: bytes) -> None:
    kmsg_sequence(raw)
    decode_kmsg(raw, 0)
    decode_journal(raw)
    KernelLogParser().feed(decode_any(raw))
    decode_text(raw.decode("utf-8", "replace"))


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=9)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=9), inner, max_size=3)),
    max_leaves=6,
)
keys = st.sampled_from(["MESSAGE", "__REALTIME_TIMESTAMP", "__CURSOR"])


@settings(max_examples=300)
@given(st.dictionaries(keys, st.one_of(json_values, texts, st.lists(st.integers(-9, 300)))))
def test_no_object_of_journald_raises(row: dict[str, object]) -> None:
    record = decode_journal(json.dumps(row).encode())
    if record is not None:
        KernelLogParser().feed(record)


@settings(max_examples=300)
@given(
    st.integers(0, 200),
    st.lists(st.integers(0, 2**32 - 1), max_size=8),
    st.one_of(st.just(""), st.text(max_size=12)),
    st.one_of(st.none(), st.integers(0, 999)),
)
def test_no_words_raise(code: int, words: list[int], unit: str, driver: int | None) -> None:
    found = decode(code, words, unit=unit, driver=driver)
    if found is not None:
        assert found.sentence()
        json.dumps(found.as_json())


@settings(max_examples=200)
@given(st.lists(st.binary(max_size=40), max_size=10))
def test_lines_do_not_depend_on_how_they_come_in_pieces(pieces: list[bytes]) -> None:
    whole = b"".join(pieces)
    stream = LineStream.__new__(LineStream)
    stream._rest, stream._skipping, stream.given_up = b"", False, 0
    found: list[bytes] = []
    for piece in pieces:
        if piece:
            stream._split(piece, found)
    assert found == whole.split(b"\n")[:-1]

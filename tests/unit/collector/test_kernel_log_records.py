"""What carries the kernel log: kmsg lines, journald objects, text with prefixes."""

from __future__ import annotations

import json

import pytest

from tocsin.collector.kernel_log.parser import KernelRecord
from tocsin.collector.kernel_log.readers import decode_any, decode_journal, decode_kmsg, decode_text
from tocsin_testing.builders import T0


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"6,339,5140900,-;NVRM: x", KernelRecord("NVRM: x", T0 + 5140, 339)),
        (b"30,339,5140900,-,caller=T1;plain", KernelRecord("plain", T0 + 5140, 339)),
        (b"6,339,5140900,c,more=1;a;b", KernelRecord("a;b", T0 + 5140, 339)),
        (b"6,1,0,-;one\\x0atwo \\xc3\\xa9 \\\\x5c", KernelRecord("one\ntwo é \\\\", T0, 1)),
        (b"6,1,0,-;bad \\xff byte \xfe", KernelRecord("bad � byte �", T0, 1)),
        (b"6,1,0,-;", KernelRecord("", T0, 1)),
        (b" SUBSYSTEM=pci", None),
        (b" DEVICE=+pci:0000:05:00.0", None),
        (b"6,1;x", None),
        (b"a,b,c,d;x", None),
        (b"6,1,-5,-;x", None),
        (b"no header", None),
        (b"", None),
    ],
)
def test_kmsg(raw: bytes, expected: KernelRecord | None) -> None:
    assert decode_kmsg(raw, T0) == expected


def row(**more: object) -> bytes:
    return json.dumps({"__REALTIME_TIMESTAMP": str(T0 * 1000 + 999), "__CURSOR": "s=1;i=2", **more}).encode()


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (row(MESSAGE="NVRM: x"), KernelRecord("NVRM: x", T0, cursor="s=1;i=2")),
        (row(MESSAGE=list(b"NVRM: \xff")), KernelRecord("NVRM: �", T0, cursor="s=1;i=2")),
        (row(MESSAGE=["NVRM: a", "NVRM: b"]), KernelRecord("NVRM: a", T0, cursor="s=1;i=2")),
        (row(MESSAGE="x", __REALTIME_TIMESTAMP=None, __CURSOR=7), KernelRecord("x")),
        (row(MESSAGE="x", __REALTIME_TIMESTAMP="soon"), KernelRecord("x", cursor="s=1;i=2")),
        (row(MESSAGE=None), None),
        (row(MESSAGE=[1, 2, 300]), None),
        (row(MESSAGE=[]), None),
        (row(MESSAGE={"a": 1}), None),
        (row(), None),
        (b"[1]", None),
        (b"{", None),
        (b"\xff\xfe", None),
        (b"[" * 100_000, None),
    ],
)
def test_journald(raw: bytes, expected: KernelRecord | None) -> None:
    assert decode_journal(raw) == expected


@pytest.mark.parametrize(
    ("line", "at_ms", "when"),
    [
        ("[    4.100000] NVRM: x", None, "4.100000"),
        ("[Sat Nov 21 03:54:16 2026] NVRM: x", None, "Sat Nov 21 03:54:16 2026"),
        ("Nov 21 03:54:16 host kernel: [1.5] NVRM: x", None, "Nov 21 03:54:16"),
        ("2026-11-18T11:06:40.500Z host kernel: NVRM: x", T0 + 500, "2026-11-18T11:06:40.500Z"),
        ("2026-11-18T12:06:40,500000+01:00 n kernel: NVRM: x", T0 + 500, "2026-11-18T12:06:40,500000+01:00"),
        ("2026-11-18 11:06:40 NVRM: x", T0, "2026-11-18 11:06:40"),
        ("2026-99-99T99:99:99Z NVRM: x", None, "2026-99-99T99:99:99Z"),
        ("NVRM: x", None, ""),
    ],
)
def test_text(line: str, at_ms: int | None, when: str) -> None:
    assert decode_text(line) == KernelRecord("NVRM: x", at_ms, when=when)


def test_any_of_the_three() -> None:
    assert decode_any(b"6,339,5140900,-;NVRM: x") == KernelRecord("NVRM: x", seq=339, when="5.140")
    assert decode_any(row(MESSAGE="NVRM: x")).at_ms == T0
    assert decode_any(b"{ no journal } NVRM: x").text == "NVRM: x"
    assert decode_any(b"nothing\xff").text == "nothing�"

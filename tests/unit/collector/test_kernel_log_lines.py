"""Every form of the driver's lines, as a table."""

from __future__ import annotations

import pytest

from tocsin.collector.kernel_log.parser import KernelLine, LineKind, parse_line

HEAD = "NVRM: Xid (PCI:0000:05:00): "
BUS = "00000000:05:00.0"


def parsed(text: str) -> KernelLine:
    line = parse_line(text)
    assert line is not None
    return line


@pytest.mark.parametrize(
    ("text", "code", "bus", "pid", "process", "rest"),
    [
        (HEAD + "79, pid=7, name=python, GPU is gone.", 79, BUS, 7, "python", "GPU is gone."),
        (HEAD + "79, pid='<unknown>', name=<unknown>, GPU is gone.", 79, BUS, None, "", "GPU is gone."),
        (HEAD + "79, pid=<n/a>, name=<unknown>, GPU is gone.", 79, BUS, None, "", "GPU is gone."),
        (HEAD + "79, GPU is gone.", 79, BUS, None, "", "GPU is gone."),
        (HEAD + "63, pid=1896, Row Remapper: New row", 63, BUS, 1896, "", "Row Remapper: New row"),
        (HEAD + "45, pid=1, name=a b::c-d, Ch 8, x=1", 45, BUS, 1, "a b::c-d", "Ch 8, x=1"),
        (HEAD + "45, pid='7', name='train', Ch 8", 45, BUS, 7, "train", "Ch 8"),
        (HEAD + "38, pid=1659,", 38, BUS, 1659, "", ""),
        (HEAD + "38", 38, BUS, None, "", ""),
        ("NVRM: Xid (0000:03:00): 14, Channel 00000001", 14, "00000000:03:00.0", None, "", "Channel 00000001"),
        ("NVRM: Xid (03:00): 14, Channel 1", 14, "00000000:03:00.0", None, "", "Channel 1"),
        ("NVRM: Xid (PCI:0009:01:00.0): 8, x", 8, "00000009:01:00.0", None, "", "x"),
        ("[ 12.5] NVRM: Xid (PCI:00010000:A1:1C): 8, x", 8, "00010000:a1:1c.0", None, "", "x"),
        ("Nov 21 03:54:16 n kernel: [1.5] NVRM: Xid (PCI:0000:05:00): 8, x\r", 8, BUS, None, "", "x"),
        ("NVRM: Xid (nonsense): 79, GPU is gone.", 79, "", None, "", "GPU is gone."),
    ],
)
def test_xid(text: str, code: int, bus: str, pid: int | None, process: str, rest: str) -> None:
    line = parsed(text)
    assert line.kind is LineKind.XID
    assert (line.code, line.bus, line.pid, line.process, line.text) == (code, bus, pid, process, rest)


def test_a_mig_instance_is_kept() -> None:
    line = parsed("NVRM: Xid (PCI:0000:05:00 GPU-I:05): 43, pid=7, name=p, Ch 8")
    assert (line.bus, line.instance, line.code) == (BUS, "GPU-I:05", 43)


@pytest.mark.parametrize(
    ("rest", "unit", "link", "words"),
    [
        (
            "NETIR_LINK_EVT  Fatal   XC0 i0 Link 08 (0x004505c6 0x00000000 0x0 0x0 0x0 0x0)",
            "NETIR_LINK_EVT",
            8,
            (0x004505C6, 0, 0, 0, 0, 0),
        ),
        ("NETIR Fatal XC0 i0 Link -1 (0x000fe406 0x00000000)", "NETIR", -1, (0x000FE406, 0)),
        (
            "pid=1, name=x, TLW_RX/TLW_RX_PIPE0 Nonfatal XC0 i0 Link 00 (0x0000000a 0x1)",
            "TLW_RX/TLW_RX_PIPE0",
            0,
            (10, 1),
        ),
        ("NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00", "NETIR_LINK_EVT", 8, (0x004505C6, 0)),
        ("NETIR_LINK_EVT Fatal XC0 i0 Link 08", "NETIR_LINK_EVT", 8, ()),
        ("something else", "", None, ()),
    ],
)
def test_nvlink_5(rest: str, unit: str, link: int | None, words: tuple[int, ...]) -> None:
    line = parsed(f"{HEAD}149, {rest}")
    assert (line.unit, line.link, line.words) == (unit, link, words)


def test_registers_of_74() -> None:
    line = parsed(
        HEAD + "74, pid='<unknown>', NVLink: fatal error detected on link 14(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)"
    )
    assert (line.link, line.words) == (14, (0, 0, 0x10000, 0, 0, 0, 0))
    bare = parsed(HEAD + "74, NVLink: fatal error detected on link 2")
    assert (bare.link, bare.words) == (None, ())


@pytest.mark.parametrize(
    ("rest", "kind", "fatal", "link", "text"),
    [
        ("20034, Fatal, Link 30 LTSSM Fault Up", LineKind.SXID, True, 30, "Link 30 LTSSM Fault Up"),
        ("12028, Non-fatal, Link 32 egress (First)", LineKind.SXID, False, 32, "Link 32 egress (First)"),
        ("22003, Fatal, Minion halt", LineKind.SXID, True, None, "Minion halt"),
        ("20034, Severity 1 Engine instance 60", LineKind.SXID_MORE, None, None, "Severity 1 Engine instance 60"),
        ("20034, Data {0x50610002, 0x10100030}", LineKind.SXID_MORE, None, None, "Data {0x50610002, 0x10100030}"),
    ],
)
def test_sxid(rest: str, kind: LineKind, fatal: bool | None, link: int | None, text: str) -> None:
    line = parsed(f"[131453.740743] nvidia-nvswitch3: SXid (PCI:0000:05:00.0): {rest}")
    assert (line.kind, line.fatal, line.link, line.text) == (kind, fatal, link, text)
    assert (line.device, line.bus, line.code) == ("nvidia-nvswitch3", BUS, int(rest[:5]))


@pytest.mark.parametrize(
    ("text", "kind", "bus"),
    [
        ("NVRM: GPU 0000:05:00.0: GPU has fallen off the bus.", LineKind.BUS_LOSS, BUS),
        ("NVRM: GPU 05:00.0: GPU has fallen off the bus.", LineKind.BUS_LOSS, BUS),
        ("NVRM: GPU at 0000:05:00.0 has fallen off the bus.", LineKind.BUS_LOSS, BUS),
        (
            "NVRM: The NVIDIA GPU 0000:05:00.0 (PCI ID: 10de:2d04) installed has fallen off the bus",
            LineKind.BUS_LOSS,
            BUS,
        ),
        ("NVRM: The NVIDIA GPU 0000:05:00.0", LineKind.LOSS_HEAD, BUS),
        ("NVRM: The NVIDIA GPU 0000:05:00.0 (PCI ID: 10de:2d04) installed in this system has", LineKind.LOSS_HEAD, BUS),
        ("  NVRM: fallen off the bus and is not responding to commands.", LineKind.LOSS_TAIL, ""),
    ],
)
def test_bus_loss_without_an_xid(text: str, kind: LineKind, bus: str) -> None:
    line = parsed(text)
    assert (line.kind, line.bus) == (kind, bus)


def test_identity_and_driver() -> None:
    line = parsed("NVRM: GPU at PCI:0000:05:00: GPU-b6c3b2be-c55b-d076-fa0e-d464e4c7e08b")
    assert (line.kind, line.bus, line.uuid) == (LineKind.IDENTITY, BUS, "GPU-b6c3b2be-c55b-d076-fa0e-d464e4c7e08b")
    for text, version in (
        ("NVRM: loading NVIDIA UNIX x86_64 Kernel Module  525.125.06  Tue May 30 05:11:37 UTC 2023", "525.125.06"),
        ("NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  575.57.08  Release Build", "575.57.08"),
    ):
        line = parsed(text)
        assert (line.kind, line.driver) == (LineKind.DRIVER_LOADED, version)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Regular log content",
        "NVRM: Xid error: xyz, invalid data",
        "NVRM: Xid (PCI:0000:05:00): xyz",
        "NVRM: Xid (PCI:0000:05:00): 0, zero is no XID",
        "NVRM: Xid (PCI:0000:05:00): 123456, too long",
        "NVRM: Xid (PCI:0000:05:00): 70000, beyond the metric table",
        "NVRM: Xid (PCI:0000:05:00",
        "NVRM: GPU Board Serial Number: 1653723052734",
        "NVRM: GPU 0000:91:00.0: GPU serial number is 1653723052734.",
        "NVRM: The NVIDIA GPU invalid-bdf.0",
        "NVRM: GPU invalid: GPU has fallen off the bus.",
        "nvidia-nvswitch0: SXid (PCI:0000:00:00.0): xyz, Fatal error",
        "nvidia-nvswitch0: SXid (invalid): some error",
        "Xid without the driver's mark: Xid (PCI:0000:05:00): 79, x",
        "the words fallen off the bus alone",
    ],
)
def test_anything_else_is_nothing(text: str) -> None:
    assert parse_line(text) is None

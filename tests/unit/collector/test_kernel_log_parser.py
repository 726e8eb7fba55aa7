"""Events out of several lines: losses said in pieces, switches, identities, verdicts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tocsin.collector.kernel_log.parser import KernelEvent, KernelLogParser, KernelRecord
from tocsin.collector.kernel_log.readers import decode_any
from tocsin.domain.event import EventKind
from tocsin_testing.builders import T0

DATA = Path(__file__).parents[2] / "data" / "kernel_log"
XID, SXID, VERDICT, LOADED = EventKind.XID, EventKind.SXID, EventKind.RECOVERY_ACTION, EventKind.DRIVER_RELOAD


def fed(*texts: str, parser: KernelLogParser | None = None, step_ms: int = 1) -> list[KernelEvent]:
    parser = parser or KernelLogParser()
    return [event for n, text in enumerate(texts) for event in parser.feed(KernelRecord(text, T0 + n * step_ms))]


def file(name: str) -> list[KernelEvent]:
    parser = KernelLogParser()
    lines = (DATA / name).read_bytes().splitlines()
    return [event for line in lines for event in parser.feed(decode_any(line))]


def codes(events: list[KernelEvent]) -> list[tuple[EventKind, int, str]]:
    return [(event.kind, event.code, event.bus[4:-2]) for event in events]


def test_a_lost_gpu_and_its_switches() -> None:
    events = file("published_bus_loss_with_switches.log")
    assert codes(events) == [
        (XID, 79, "0000:91:00"),
        (SXID, 20034, "0000:06:00"),
        (SXID, 20034, "0000:05:00"),
        (SXID, 20034, "0000:07:00"),
    ]
    assert events[0].uuid == "GPU-11111111-2222-3333-4444-555555555555"
    assert events[0].when == "6781741.548779"
    expected = "nvidia-nvswitch1 00000000:06:00.0 fatal: Link 48 LTSSM Fault Up; class partition"
    assert events[1].message == expected


def test_memory() -> None:
    events = file("published_memory.log")
    assert [event.code for event in events] == [48, 63, 94]
    assert (
        events[1].message == "Row Remapper: New row (0x0000000018f31d80) marked for remapping, reset gpu to activate."
    )


def test_nvlink_5_is_decoded_and_a_verdict_is_two_events() -> None:
    events = file("published_nvlink5.log")
    assert codes(events) == [
        (XID, 149, "0018:01:00"),
        (XID, 145, "0018:01:00"),
        (XID, 149, "0019:01:00"),
        (XID, 149, "0009:01:00"),
        (XID, 154, "0009:01:00"),
        (VERDICT, 4, "0009:01:00"),
        (XID, 154, "0019:01:00"),
        (VERDICT, 1, "0019:01:00"),
    ]
    units = [event.decoded.unit for event in events[:4] if event.decoded]
    assert units == ["NETIR_BER_EVENT", "RLW_RXPIPE", "NETIR/NETIR_INT", "NETIR_LINK_EVT/NETIR_LINK_DOWN"]
    assert "immediate action reset_gpu; then investigate_peer_device" in events[3].message
    assert "link-down reason 33" in events[3].message
    assert events[1].message.endswith("process 876767 ray::WorkerDict")


def test_lost_when_the_driver_was_loaded() -> None:
    assert codes(file("published_lost_at_load.log")) == [(XID, 79, "0000:5d:00"), (LOADED, 0, "")]


def test_the_other_forms() -> None:
    events = file("built_mixed.log")
    assert [event.code for event in events] == [0, 14, 43, 31, 45, 64, 74, 12028, 999]
    assert events[0].message == "driver 575.57.08 was loaded"
    assert "instance GPU-I:05; process 4711 python3" in events[2].message
    assert "register 3" in events[6].message


LOSS = "NVRM: GPU 0000:18:00.0: GPU has fallen off the bus."
XID_79 = "NVRM: Xid (PCI:0000:18:00): 79, pid=1, name=x, GPU has fallen off the bus."
PIECES = (
    "NVRM: The NVIDIA GPU 0000:18:00.0",
    "NVRM: (PCI ID: 10de:2901) installed in this system has",
    "NVRM: fallen off the bus and is not responding to commands.",
)


@pytest.mark.parametrize(
    "texts",
    [
        (LOSS,),
        (XID_79,),
        PIECES,
        ("\n".join(PIECES),),
        ("\n               ".join(PIECES),),
        (" ".join((PIECES[0], "(PCI ID: 10de:2901) installed in this system has")), PIECES[2]),
        (XID_79, LOSS),
        (LOSS, XID_79),
        (LOSS, LOSS),
        (*PIECES, LOSS, XID_79),
        (XID_79, *PIECES),
        (PIECES[0], "NVRM: something between", *PIECES[1:]),
    ],
)
def test_one_loss_in_whatever_words_is_one_event(texts: tuple[str, ...]) -> None:
    assert codes(fed(*texts)) == [(XID, 79, "0000:18:00")]


@pytest.mark.parametrize(
    ("texts", "count"),
    [
        ((XID_79, XID_79), 2),
        ((LOSS, LOSS.replace("18:", "19:")), 2),
        ((XID_79, "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  575.57.08  x", LOSS), 2),
        ((PIECES[0], PIECES[0].replace("18:", "19:"), PIECES[2]), 1),
        ((PIECES[2],), 0),
        ((PIECES[0], *["NVRM: other"] * 4, PIECES[2]), 0),
    ],
)
def test_losses_that_are_more_or_fewer(texts: tuple[str, ...], count: int) -> None:
    assert sum(event.code == 79 for event in fed(*texts)) == count


def test_a_loss_long_after_the_first_is_another() -> None:
    assert len(fed(XID_79, LOSS, step_ms=299_000)) == 1
    assert len(fed(XID_79, LOSS, step_ms=300_000)) == 2


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("changed from 0x0 (None) to 0x4 (Drain and Reset)", 4),
        ("changed from 0x4 (Drain and Reset) to 0x1 (GPU Reset Required)", 1),
        ("changed from 0x0 (None) to 0x2 (Node Reboot Required)", 2),
        ("changed from 0x0 (None) to 0x2 (OS Reboot)", 2),
        ("changed from 0x0 (None) to 0x1 (PF FLR)", 1),
        ("changed from 0x1 (GPU Reset Required) to 0x0 (None)", 0),
        ("changed from None to GPU Reset Required", 1),
        ("changed from (None) to (Node Reboot Required)", 2),
        ("changed from (None) to (Drain P2P)", 3),
        ("changed from 0x0 (None) to 0x7f (Something new)", None),
        ("changed to something that nobody knows", None),
        ("", None),
    ],
)
def test_verdicts_in_both_wordings(text: str, verdict: int | None) -> None:
    events = fed(f"NVRM: Xid (PCI:0000:18:00): 154, GPU recovery action {text}")
    assert events[0].code == 154
    assert [event.code for event in events[1:]] == ([] if verdict is None else [verdict])
    assert all(event.kind is VERDICT and event.bus == events[0].bus for event in events[1:])


def test_identities_are_kept_for_gpus_that_nothing_else_sees() -> None:
    parser = KernelLogParser()
    fed("NVRM: GPU at PCI:0000:18:00: GPU-00000000-1111-2222-3333-444444444444", parser=parser)
    assert parser.uuids == {"00000000:18:00.0": "GPU-00000000-1111-2222-3333-444444444444"}
    (event,) = fed(LOSS, parser=parser)
    assert event.uuid == "GPU-00000000-1111-2222-3333-444444444444"


def test_the_drivers_branch_decides_the_layout() -> None:
    text = "NVRM: Xid (PCI:0000:18:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 1 (0x00400011 0x0)"
    assert KernelLogParser().branch is None
    for version, known in (("575.57.08", True), ("570.86.15", False)):
        parser = KernelLogParser(version)
        assert parser.branch == int(version[:3])
        (event,) = fed(text, parser=parser)
        assert event.decoded is not None
        assert event.decoded.known is known
    parser = KernelLogParser("570.86.15")
    fed("NVRM: loading NVIDIA UNIX x86_64 Kernel Module  575.57.08  x", parser=parser)
    assert parser.branch == 575


def test_a_message_is_bounded_and_printable() -> None:
    (event,) = fed("NVRM: Xid (PCI:0000:18:00): 31, a\tb\x07" + "x" * 1000)
    assert event.message.startswith("a b ")
    assert len(event.message) == 500
    assert event.message.endswith("...")

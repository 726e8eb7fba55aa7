"""What amdgpu's lines mean, by the forms of Linux 6.1 and of newer drivers; nothing that looks bad is passed over."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.collector.kernel_log.amdgpu import AmdgpuParser, meaning_of
from tocsin.collector.kernel_log.companion import KernelLogCompanion
from tocsin.collector.kernel_log.parser import KernelRecord
from tocsin.collector.kernel_log.readers import Chunk, Position
from tocsin.domain.batch import Batch
from tocsin.domain.device_fault import DeviceFault
from tocsin.domain.event import EventKind
from tocsin.domain.reading import Reading
from tocsin.rules.device_faults import shipped_meanings
from tocsin.telemetry.metrics import OwnMetrics
from tocsin_testing.builders import T0, gpu

HEAD = "amdgpu 0000:1b:00.0: amdgpu: "

LINES: dict[str, DeviceFault | None] = {
    "2 uncorrectable hardware errors detected in umc block": DeviceFault.MEMORY_UNCORRECTED,
    "{77}socket: 0, die: 1, 1 new uncorrectable hardware errors detected in umc block": DeviceFault.MEMORY_UNCORRECTED,
    "[socket: 0, die: 0] 3 uncorrectable hardware errors detected in gfx block": DeviceFault.BLOCK_UNCORRECTED,
    "1 uncorrectable hardware errors detected in xgmi_wafl block": DeviceFault.LINK,
    "0 uncorrectable hardware errors detected in umc block": None,
    "{77}socket: 0, die: 1, 4 uncorrectable hardware errors detected in total in umc block": None,
    "[socket: 0, die: 0] 3 correctable hardware errors detected in umc block, no user action is needed.": None,
    "{78}socket: 0, die: 1, 1 new deferred hardware errors detected in  UMC block": DeviceFault.WATCH,
    "Poison is created, no user action is needed.": DeviceFault.WATCH,
    "GPU reset for umc RAS poison consumption is issued!": DeviceFault.MEMORY_UNCORRECTED,
    "uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT) detected!": DeviceFault.BLOCK_UNCORRECTED,
    "Uncorrectable error detected in UMC inst: 3, chan_idx: 7": DeviceFault.MEMORY_UNCORRECTED,
    "RAS records:231 exceeds 90% of threshold:256": DeviceFault.MEMORY_WORN_OUT,
    "Saved bad pages 256 reaches threshold value 256": DeviceFault.MEMORY_WORN_OUT,
    "This GPU is in BAD status.": DeviceFault.MEMORY_WORN_OUT,
    "ring sdma0 timeout, signaled seq=12, emitted seq=14": DeviceFault.HANG,
    "ring gfx timeout, but soft recovered": None,
    "GPU recovery disabled.": DeviceFault.RESET_FAILED,
    "GPU mode1 reset": DeviceFault.RESET,
    "GPU psp mode1 reset": DeviceFault.RESET,
    "GPU reset succeeded, trying to resume": DeviceFault.RESET,
    "GPU reset(3) succeeded!": DeviceFault.RESET,
    "GPU reset end with ret = 0": DeviceFault.RESET,
    "GPU reset end with ret = -110": DeviceFault.RESET_FAILED,
    "GPU mode1 reset failed": DeviceFault.RESET_FAILED,
    "ASIC reset failed with error, -62 for drm dev, 0000:1b:00.0": DeviceFault.RESET_FAILED,
    "VRAM is lost due to GPU reset!": DeviceFault.RESET,
    "ERROR: GPU over temperature range(SW CTF) detected!": DeviceFault.TOO_HOT,
    "ERROR: System is going to shutdown due to GPU HW CTF!": DeviceFault.TOO_HOT,
    "WARN: GPU thermal throttling temperature reached, expect performance decrease.": DeviceFault.TOO_HOT,
    "PCIe error recovery succeeded": DeviceFault.BUS,
    "PCIe error recovery failed, err:-5": DeviceFault.BUS,
    "XGMI: Get topology failure on device 1, hive 2, ret -5": DeviceFault.LINK,
    "device lost from bus!": DeviceFault.LOST,
    "some new uncorrectable error of a part that nobody has heard of": DeviceFault.UNKNOWN,
    "Saved 3 pages to EEPROM table.": None,
    "initializing kernel modesetting (ALDEBARAN 0x1002:0x740F)": None,
    "[gfxhub] page fault (src_id:0 ring:24 vmid:3 pasid:32770)": None,
}


@pytest.mark.parametrize("text", LINES)
def test_what_a_line_means(text: str) -> None:
    meaning = meaning_of(HEAD + text)
    assert (meaning.meaning if meaning is not None else None) == LINES[text]


def test_every_line_of_the_table_has_a_form() -> None:
    lines = {
        code for vendor, code in shipped_meanings() if vendor == "amd" and not code.startswith(("event:", "cper:"))
    }
    found = {meaning.code for text in LINES if (meaning := meaning_of(HEAD + text)) is not None}
    assert lines - found == {"ras_uncorrected:pcie_bif"}
    assert meaning_of(HEAD + "1 uncorrectable hardware errors detected in pcie_bif block") is not None


def test_an_error_in_two_lines_is_one_event() -> None:
    parser = AmdgpuParser()
    text = "{5}socket: 0, die: 0, 1 new uncorrectable hardware errors detected in umc block"
    events = parser.feed(KernelRecord("\n".join((HEAD + text, HEAD + text)), T0))
    assert [(event.kind, event.code, event.bus) for event in events] == [
        (EventKind.DEVICE_FAULT, DeviceFault.MEMORY_UNCORRECTED, "00000000:1b:00.0")
    ]
    assert parser.feed(KernelRecord(HEAD + text.replace("{5}", "{6}"), T0))
    other = HEAD.replace("1b", "2b") + text
    assert parser.feed(KernelRecord(other, T0)), "event numbers are each card's own"


def test_a_line_of_the_drm_core_has_no_card() -> None:
    record = KernelRecord(
        "[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring gfx timeout, signaled seq=1, emitted seq=2", T0
    )
    (event,) = AmdgpuParser().feed(record)
    assert (event.bus, event.code) == ("", DeviceFault.HANG)


@given(st.text(max_size=200))
def test_no_line_raises(text: str) -> None:
    AmdgpuParser().feed(KernelRecord(f"amdgpu {text}"))
    AmdgpuParser().feed(KernelRecord(HEAD + "uncorrectable " + text))


class _Reader:
    name = "kmsg"
    starts = 0
    position = Position()

    def __init__(self, *lines: str) -> None:
        self._lines = lines

    def read(self, _seconds: float) -> Chunk:
        return Chunk([KernelRecord(line, T0) for line in self._lines], len(self._lines))

    def wake(self) -> None:
        """Nothing waits."""

    def close(self) -> None:
        """Nothing is held."""


def test_beside_a_source_the_event_is_of_the_card_at_that_address(tmp_path: Path) -> None:
    reader = _Reader(HEAD + "GPU reset(1) failed", HEAD.replace("1b", "5b") + "GPU reset(1) failed")
    companion = KernelLogCompanion(reader, OwnMetrics(), host="node-1", state=tmp_path / "state.json")
    companion.pump()
    card = gpu(0, pci_bus_id="00000000:1b:00.0")
    events = companion.enrich(Batch((Reading(card, T0, {"gpu_power_watts": 1.0}),)), T0).events
    assert [(event.gpu, event.code) for event in events] == [(card.uuid, 8), ("", 8)]
    assert events[1].message.startswith("PCI 00000000:5b:00.0, a GPU that nothing else reports")
    companion.close()

"""What the driver amdgpu says of its cards, which have no XIDs: by the form of the line, to a row of the fault table.

Forms are those of Linux 6.1 (``drivers/gpu/drm/amd``), of errors by block also those of newer drivers. What is only
corrected, and a ring that recovered by itself, are left to counters.
"""

from __future__ import annotations

import re

from tocsin.collector.kernel_log.parser import KernelEvent, KernelRecord
from tocsin.domain.device_fault import DeviceFault
from tocsin.domain.event import EventKind
from tocsin.domain.reading import normalise_pci_bus_id
from tocsin.domain.vendor_metrics import AMD
from tocsin.rules.device_faults import FaultMeaning, fault_meaning

MARK = "amdgpu"
_MOST_CHARACTERS = 2_048
_MOST_LINES = 200
_MESSAGE_LIMIT = 300
_MOST_EVENTS_SEEN = 256

_ADDRESS = re.compile(r"amdgpu ([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])")
_EVENT_ID = re.compile(r"\{([0-9]{1,19})\}")
_BLOCK = re.compile(r"\b([0-9]{1,10}) (?:new )?uncorrectable hardware errors detected in\s+([A-Za-z0-9_]{1,20}) block")
_DEFERRED = re.compile(r"\b[0-9]{1,10} new deferred hardware errors detected in\s+[A-Za-z0-9_]{1,20} block")
_CORRECTED = re.compile(r"\bcorrectable hardware errors? detected|\bhardware errors detected in total\b")
_RING = re.compile(r"\bring (\S{1,40}) timeout, (but soft recovered|signaled)")
_FORMS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), code)
    for pattern, code in (
        (r"uncorrectable hardware error\(ERREVENT_ATHUB_INTERRUPT\) detected", "athub"),
        (r"Uncorrectable error detected in UMC inst", "umc_page"),
        (r"GPU reset for \S{1,20} RAS poison consumption is issued", "poison_consumed"),
        (r"Poison is created, no user action is needed", "poison_created"),
        (r"RAS records:[0-9]{1,10} exceeds 90% of threshold", "pages_near_threshold"),
        (r"Saved bad pages [0-9]{1,10} reaches threshold|RAS records:[0-9]{1,10} exceed threshold", "bad_status"),
        (r"This GPU is in BAD status", "bad_status"),
        (r"GPU recovery disabled", "no_recovery"),
        (r"ASIC reset failed with error|GPU reset\([0-9]{1,6}\) failed|GPU mode1 reset failed", "reset_failed"),
        (r"GPU Recovery Failed:", "reset_failed"),
        (r"GPU (?:smu |psp )?mode1 reset|GPU reset begin!|GPU reset succeeded", "reset"),
        (r"GPU reset\([0-9]{1,6}\) succeeded|GPU reset end with ret = 0\b", "reset"),
        (r"GPU reset end with ret = ", "reset_failed"),
        (r"VRAM is lost due to GPU reset", "vram_lost"),
        (r"over temperature range\(SW CTF\)", "over_temperature"),
        (r"System is going to shutdown due to GPU [SH]W CTF", "heat_shutdown"),
        (r"GPU thermal throttling temperature reached", "thermal_throttling"),
        (r"PCIe error recovery succeeded|PCI error: slot reset callback", "pcie_recovered"),
        (r"PCIe error recovery failed", "pcie_failed"),
        (r"XGMI: [GS]et topology failure", "xgmi_topology"),
        (r"device lost from bus", "lost"),
    )
)
_NO_FORM = re.compile(r"\buncorrectable\b|\bunrecoverable\b|\bRAS\b.*\bfatal\b", re.IGNORECASE)
"""A line with such words and in no known form is a fault that nobody knows; others may be anything."""


class AmdgpuParser:
    """Feeds on records in the order of the log. One error of a block is told in two lines with one event number."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str, str], None] = {}

    def feed(self, record: KernelRecord) -> list[KernelEvent]:
        """The faults that `record` tells, most often none; no input raises."""
        if MARK not in record.text:
            return []
        found: list[KernelEvent] = []
        for line in record.text.split("\n", _MOST_LINES)[:_MOST_LINES]:
            line = line[:_MOST_CHARACTERS]
            if MARK in line and (meaning := meaning_of(line)) is not None and not self._again(line, meaning):
                found.append(_event(line, meaning, record))
        return found

    def _again(self, line: str, meaning: FaultMeaning) -> bool:
        match = _EVENT_ID.search(line)
        if match is None:
            return False
        key = _bus(line), match[1], meaning.code
        if key in self._seen:
            return True
        self._seen[key] = None
        if len(self._seen) > _MOST_EVENTS_SEEN:
            del self._seen[next(iter(self._seen))]
        return False


def meaning_of(line: str) -> FaultMeaning | None:
    """What a line of amdgpu means; None where it tells of no fault."""
    if (block := _BLOCK.search(line)) is not None:
        return fault_meaning(AMD, f"ras_uncorrected:{block[2].lower()}", "ras_uncorrected") if int(block[1]) else None
    if _DEFERRED.search(line) is not None:
        return fault_meaning(AMD, "deferred")
    if (ring := _RING.search(line)) is not None:
        return fault_meaning(AMD, "ring_timeout") if ring[2] == "signaled" else None
    code = next((code for pattern, code in _FORMS if pattern.search(line) is not None), "")
    if code:
        return fault_meaning(AMD, code)
    if _NO_FORM.search(line) is None or _CORRECTED.search(line) is not None:
        return None
    return fault_meaning(AMD, "line")


def _bus(line: str) -> str:
    match = _ADDRESS.search(line)
    return normalise_pci_bus_id(match[1]) if match is not None else ""


def _event(line: str, meaning: FaultMeaning, record: KernelRecord) -> KernelEvent:
    match = _ADDRESS.search(line)
    said = line[match.end() :] if match is not None else line[line.index(MARK) :]
    said = said.removeprefix(":").strip().removeprefix("amdgpu:").strip()
    clean = "".join(mark if mark.isprintable() else " " for mark in f"{meaning.help}: {said}")
    fault = DeviceFault(meaning.meaning)
    return KernelEvent(EventKind.DEVICE_FAULT, fault, _bus(line), clean[:_MESSAGE_LIMIT], record.at_ms, record.when)

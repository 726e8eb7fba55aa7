"""What the kernel says of the node beside its GPUs: network cards (mlx5), PCIe, memory and processors.

Forms are those of Linux 6.1: ``drivers/net/ethernet/mellanox/mlx5/core``, ``drivers/pci/pcie/aer.c``,
``drivers/edac/edac_mc.c``, ``arch/x86/kernel/cpu/mce/core.c`` and ``drivers/firmware/efi/cper.c``. What was
corrected is left to the counters of sysfs: a line for each would be a flood.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from tocsin.collector.kernel_log.parser import KernelEvent, KernelRecord
from tocsin.domain.event import EventKind
from tocsin.domain.node_fault import NodeFault
from tocsin.domain.reading import normalise_pci_bus_id

_MOST_CHARACTERS = 2_048
_MOST_LINES = 200
_MESSAGE_LIMIT = 300

_ADDRESS = r"([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])"
_MLX5 = re.compile(rf"mlx5_core {_ADDRESS}[^:]{{0,40}}: (.*)")
_HEALTH = re.compile(r"Health issue observed, (.{1,80}), severity\(([0-7])\)")
_LEAST_SEVERITY = 3
"""Of the kernel's levels, of which lower is worse: up to ``ERROR``."""
_CARD_LOST = (
    "Fatal error ",
    "device's health compromised",
    "health recovery failed",
    "health recovery flow aborted",
    "PCI slot is unavailable",
    "Driver is in error state. Unloading",
)
_BUS_ERROR = re.compile(
    rf"{_ADDRESS}: (?:AER: )?PCIe Bus Error: severity=Uncorrected \(Fatal\), (?:type=([A-Za-z ]{{1,40}}))?"
)
_NOT_RECOVERED = re.compile(rf"{_ADDRESS}: AER: device recovery failed")
_EDAC = re.compile(r"EDAC MC[0-9]{1,3}: [0-9]{1,9} UE (.{1,160})")
_MACHINE_CHECK = re.compile(
    r"\[Hardware Error\]: CPU ([0-9]{1,5}): Machine Check(?: Exception)?: [0-9a-f]{1,16} Bank ([0-9]{1,4}): "
    r"([0-9a-f]{1,16})"
)
_UNCORRECTED_BIT = 1 << 61
"""``MCI_STATUS_UC``."""
_FIRMWARE = re.compile(r"\[Hardware Error\]: event severity: (recoverable|fatal)")

Found = tuple[int, str, str]
"""Code, address and message."""


def host_events(record: KernelRecord) -> list[KernelEvent]:
    """The faults of the node that `record` tells, most often none; `KernelEvent.bus` is empty for memory and
    processors."""
    readers = [read for mark, read in _READERS.items() if mark in record.text]
    if not readers:
        return []
    found: list[KernelEvent] = []
    for line in record.text.split("\n", _MOST_LINES)[:_MOST_LINES]:
        said = next((one for read in readers if (one := read(line[:_MOST_CHARACTERS])) is not None), None)
        if said is not None:
            code, address, message = said
            bus = normalise_pci_bus_id(address)
            text = message[:_MESSAGE_LIMIT]
            found.append(KernelEvent(EventKind.NODE_FAULT, code, bus, text, record.at_ms, record.when))
    return found


def _card(line: str) -> Found | None:
    match = _MLX5.search(line)
    if match is None:
        return None
    address, rest = match.groups()
    card = f"network card {address}"
    health = _HEALTH.search(rest)
    if health is not None:
        bad = int(health[2]) <= _LEAST_SEVERITY
        return (NodeFault.NIC_HEALTH, address, f"{card}: {health[1]}") if bad else None
    if "health recovery succeeded" in rest:
        return NodeFault.NIC_LOST.over, address, f"{card} has recovered"
    if any(text in rest for text in _CARD_LOST):
        return NodeFault.NIC_LOST, address, f"{card}: {rest.strip()}"
    if "Port module event" in rest and "Cable error" in rest:
        return NodeFault.NIC_CABLE, address, f"{card}: {rest[rest.index('Port module event') :].strip()}"
    if "High temperature on sensors" in rest:
        return NodeFault.NIC_HOT, address, f"{card} is too hot"
    return None


def _bus(line: str) -> Found | None:
    match = _BUS_ERROR.search(line)
    if match is not None:
        layer = f" ({match[2].strip()})" if match[2] else ""
        return NodeFault.PCIE_FATAL, match[1], f"PCIe device {match[1]}: fatal error{layer}"
    match = _NOT_RECOVERED.search(line)
    if match is not None:
        return NodeFault.PCIE_FATAL, match[1], f"PCIe device {match[1]}: recovery from an error failed"
    return None


def _memory(line: str) -> Found | None:
    match = _EDAC.search(line)
    if match is not None:
        return NodeFault.MEMORY_UNCORRECTED, "", f"memory error that was not corrected: {match[1].strip()}"
    if "Uncorrected hardware memory error in user-access" in line or "Memory error not recovered" in line:
        return NodeFault.MEMORY_UNCORRECTED, "", "memory error that was not corrected"
    return None


def _processor(line: str) -> Found | None:
    match = _MACHINE_CHECK.search(line)
    if match is not None:
        cpu, bank, status = match.groups()
        if not int(status, 16) & _UNCORRECTED_BIT:
            return None
        return NodeFault.MACHINE_CHECK, "", f"machine check on CPU {cpu}, bank {bank}, status {status}, not corrected"
    match = _FIRMWARE.search(line)
    return (NodeFault.MACHINE_CHECK, "", f"the firmware reports a {match[1]} hardware error") if match else None


_READERS: dict[str, Callable[[str], Found | None]] = {
    "mlx5_core": _card,
    "PCIe Bus Error": _bus,
    "AER: device recovery": _bus,
    "EDAC MC": _memory,
    "hardware memory error": _memory,
    "Memory error not recovered": _memory,
    "[Hardware Error]": _processor,
}
"""What a line must hold to be looked at, and who reads it."""

HOST_MARKS = tuple(_READERS)

"""``nvidia-smi -q -x``: everything that nvidia-smi knows of every GPU, as XML."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from xml.etree.ElementTree import Element, ParseError, fromstring

from tocsin.collector.nvidia_smi.cells import REASON_BITS, ROWS, Cells, cell, first, total
from tocsin.domain.identity import normalise_pci_bus_id
from tocsin.domain.metrics import variant
from tocsin.domain.missing import Missing


class SmiError(Exception):
    """What nvidia-smi printed cannot be used; the text says why."""


@dataclass(frozen=True, slots=True)
class SmiInstance:
    """One MIG instance: its place in the GPU's list, its GPU and compute instance, its cells."""

    index: int
    gpu_instance: int
    compute_instance: int
    cells: Cells


@dataclass(frozen=True, slots=True)
class SmiGpu:
    """One GPU as printed. Empty text where nvidia-smi does not say."""

    uuid: str
    index: int
    model: str
    serial: str
    pci_bus_id: str
    cells: Cells
    instances: tuple[SmiInstance, ...] = field(default=())


def parse_xml(text: str) -> list[SmiGpu]:
    """The GPUs of a whole document, in its order. Raises SmiError where it is cut off or is none of nvidia-smi's."""
    try:
        root = fromstring(text)  # noqa: S314  # printed by a program of the driver, not by a stranger
    except ParseError as error:
        raise SmiError(f"the XML cannot be read ({error})") from None
    if root.tag != "nvidia_smi_log":
        raise SmiError(f"the XML is a <{root.tag[:40]}>, not a <nvidia_smi_log>")
    return [_gpu(element, index) for index, element in enumerate(root.findall("gpu"))]


def _gpu(element: Element, index: int) -> SmiGpu:
    uuid = _plain(element, "uuid")
    if not uuid:
        raise SmiError(f"GPU {element.get('id', index)} has no UUID")
    cells = Cells()
    ask = _asker(element)
    for row in ROWS:
        if row.xml:
            cells.add(row.key, first(row.xml, lambda path: total(path, ask)))
    cells.add("gpu_clocks_event_reasons_bitmask", _reasons(element))
    cells.finish()
    _processes(element, cells)
    instances = tuple(_instance(device) for device in element.findall("mig_devices/mig_device"))
    bus = normalise_pci_bus_id(_plain(element, "pci/pci_bus_id") or element.get("id", ""))
    return SmiGpu(uuid, index, _plain(element, "product_name"), _plain(element, "serial"), bus, cells, instances)


def _asker(element: Element) -> Callable[[str], float | Missing | None]:
    def ask(path: str) -> float | Missing | None:
        found = element.findtext(path)
        if found is None:
            # `<remapped_rows>N/A</remapped_rows>` speaks for all that it would hold.
            above = element.findtext(path.split("/", 1)[0])
            return cell(above) if above is not None and above.strip() else None
        return cell(found)

    return ask


def _reasons(element: Element) -> float | Missing:
    for name in ("clocks_event_reason", "clocks_throttle_reason"):
        block = element.find(f"{name}s")
        if block is None:
            continue
        found = {bit: cell(block.findtext(f"{name}_{reason}", "N/A")) for reason, bit in REASON_BITS.items()}
        if any(isinstance(value, float) for value in found.values()):
            return float(sum(bit for bit, value in found.items() if value == 1.0 and isinstance(value, float)))
        return cell(block.text or "N/A")
    return Missing.UNSUPPORTED


def _processes(element: Element, cells: Cells) -> None:
    block = element.find("processes")
    if block is None or (block.text or "").strip():
        cells.add("gpu_processes", cell((block.text or "N/A") if block is not None else "N/A"))
        return
    counted: set[str] = set()
    for process in block.findall("process_info"):
        pid = _plain(process, "pid")
        if not pid.isdecimal():
            continue
        counted.add(pid)
        cells.add(variant("gpu_process_memory_used_bytes", "pid", pid), cell(process.findtext("used_memory", "N/A")))
    cells.add("gpu_processes", float(len(counted)))


def _instance(device: Element) -> SmiInstance:
    cells = Cells()
    for part in ("total", "used", "free", "reserved"):
        cells.add(f"gpu_memory_{part}_bytes", cell(device.findtext(f"fb_memory_usage/{part}", "N/A")))
    cells.finish()
    return SmiInstance(
        _number(device, "index"), _number(device, "gpu_instance_id"), _number(device, "compute_instance_id"), cells
    )


def count_instances(profiles: list[str], cells: Cells) -> None:
    """Add how many instances of each profile there are."""
    for profile, count in Counter(profiles).items():
        cells.add(variant("gpu_mig_instances", "profile", profile), float(count))


def _plain(element: Element, path: str) -> str:
    text = (element.findtext(path) or "").strip()
    return "" if text in ("N/A", "[N/A]") else text


def _number(element: Element, path: str) -> int:
    text = _plain(element, path)
    return int(text) if text.isdecimal() else -1

"""The two forms in which nvidia-smi answers: XML (``-q -x``) and CSV (``--query-gpu=... --format=csv``).

The XML has everything that nvidia-smi knows of every GPU. The CSV has less, but answers for the others when one GPU is
lost.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from io import StringIO
from xml.etree.ElementTree import Element, ParseError, fromstring

from tocsin.collector.nvidia_smi.cells import REASON_BITS, ROWS, Cells, cell, first, total
from tocsin.domain.metrics import variant
from tocsin.domain.reading import Missing, normalise_pci_bus_id
from tocsin.domain.versions import clean


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
    """One GPU as printed. Empty text where nvidia-smi does not say; `versions` by component, which the CSV lacks."""

    uuid: str
    index: int
    model: str
    serial: str
    pci_bus_id: str
    cells: Cells
    instances: tuple[SmiInstance, ...] = field(default=())
    versions: Mapping[str, str] = field(default_factory=dict)


_VERSIONS = {
    "vbios": "vbios_version",
    "inforom": "inforom_version/img_version",
    "gsp_firmware": "gsp_firmware_version",
}
"""Where a GPU's element has them; the driver and its CUDA stand above all GPUs."""


def parse_xml(text: str) -> list[SmiGpu]:
    """The GPUs of a whole document, in its order. Raises SmiError where it is cut off or is none of nvidia-smi's."""
    try:
        root = fromstring(text)  # noqa: S314  # printed by a program of the driver, not by a stranger
    except ParseError as error:
        raise SmiError(f"the XML cannot be read ({error})") from None
    if root.tag != "nvidia_smi_log":
        raise SmiError(f"the XML is a <{root.tag[:40]}>, not a <nvidia_smi_log>")
    above = {"driver": _plain(root, "driver_version"), "cuda_driver": _plain(root, "cuda_version")}
    return [_gpu(element, index, above) for index, element in enumerate(root.findall("gpu"))]


def _gpu(element: Element, index: int, above: Mapping[str, str]) -> SmiGpu:
    if not (uuid := _plain(element, "uuid")):
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
    told = {**above, **{key: _plain(element, path) for key, path in _VERSIONS.items()}}
    versions = {key: version for key, text in told.items() if (version := clean(text))}
    model, serial = _plain(element, "product_name"), _plain(element, "serial")
    return SmiGpu(uuid, index, model, serial, bus, cells, instances, versions)


def _asker(element: Element) -> Callable[[str], float | Missing | None]:
    def ask(path: str) -> float | Missing | None:
        if (found := element.findtext(path)) is None:
            # `<remapped_rows>N/A</remapped_rows>` speaks for all that it would hold.
            above = element.findtext(path.split("/", 1)[0])
            return cell(above) if above is not None and above.strip() else None
        return cell(found)

    return ask


def _reasons(element: Element) -> float | Missing:
    for name in ("clocks_event_reason", "clocks_throttle_reason"):
        if (block := element.find(f"{name}s")) is None:
            continue
        found = {bit: cell(block.findtext(f"{name}_{reason}", "N/A")) for reason, bit in REASON_BITS.items()}
        if any(isinstance(value, float) for value in found.values()):
            return float(sum(bit for bit, value in found.items() if value == 1.0 and isinstance(value, float)))
        return cell(block.text or "N/A")
    return Missing.UNSUPPORTED


def _processes(element: Element, cells: Cells) -> None:
    if (block := element.find("processes")) is None or (block.text or "").strip():
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
    return _without_na(element.findtext(path) or "")


def _number(element: Element, path: str) -> int:
    text = _plain(element, path)
    return int(text) if text.isdecimal() else -1


_LINKS_OF = re.compile(r"^GPU \d+: .*\(UUID: (GPU-[^)]+)\)")
_LINK = re.compile(r"^\s+Link (\d{1,3}): (?:(\d{1,5}(?:\.\d{1,6})?) GB/s|<inactive>)")


def parse_links(text: str) -> dict[str, dict[int, bool]]:
    """Whether each NVLink is up, by UUID and number, from ``nvidia-smi nvlink -s``; a link without speed is not."""
    found: dict[str, dict[int, bool]] = {}
    links: dict[int, bool] = {}
    for line in text.splitlines():
        if (gpu := _LINKS_OF.match(line)) is not None:
            links = found.setdefault(gpu[1], {})
        elif (link := _LINK.match(line)) is not None:
            links[int(link[1])] = link[2] is not None and float(link[2]) > 0
    return found


_MOST_NAME = 200
"""Longer than any name of a field with its unit."""
IDENTITY = ("index", "uuid", "name", "serial", "pci.bus_id")
_UNIT = re.compile(r"\s*\[[^\]]*\]$")
_RENAMED = {
    "clocks.sm": "clocks.current.sm",
    "clocks.mem": "clocks.current.memory",
    "clocks_throttle_reasons.active": "clocks_event_reasons.active",
}
"""Short and old spellings of fields, which the header prints in their long and new form or as they were asked."""
_BAD_FIELD = re.compile(r'Field "([^"]*)" is not a valid field')


def csv_fields(refused: Collection[str]) -> list[str]:
    """What to ask for: identity, then for each metric its first field that the driver has not `refused`."""
    wanted = [next((name for name in row.csv if name not in refused), "") for row in ROWS]
    return [*IDENTITY, *(name for name in dict.fromkeys(wanted) if name)]


def refused_field(text: str) -> str | None:
    """The field that nvidia-smi says it does not know; None where that is not what it says."""
    match = _BAD_FIELD.search(text)
    return match[1] if match else None


def parse_csv(text: str) -> list[SmiGpu]:
    """The GPUs of an answer with header and units. Raises SmiError where the header lacks index or UUID."""
    try:
        rows = [row for row in csv.reader(StringIO(text), skipinitialspace=True) if row]
    except csv.Error as error:
        raise SmiError(f"the CSV cannot be read ({error})") from None
    if not rows:
        raise SmiError("the answer is empty")
    header = [_name(column) for column in rows[0]]
    if "uuid" not in header or "index" not in header:
        raise SmiError(f"the header {', '.join(rows[0])[:120]!r} has no index or no uuid")
    return [_csv_gpu(dict(zip(header, row, strict=True))) for row in rows[1:] if len(row) == len(header)]


def _name(column: str) -> str:
    name = _UNIT.sub("", column.strip()[:_MOST_NAME])
    return _RENAMED.get(name, name)


def _csv_gpu(row: dict[str, str]) -> SmiGpu:
    cells = Cells()
    for metric in ROWS:
        names = {_RENAMED.get(name, name) for name in metric.csv}
        if present := [name for name in names if name in row]:
            cells.add(metric.key, first(present, lambda name: cell(row[name])))
    cells.finish()
    return SmiGpu(
        row["uuid"].strip(),
        int(row["index"]) if row["index"].strip().isdecimal() else -1,
        _without_na(row.get("name", "")),
        _without_na(row.get("serial", "")),
        normalise_pci_bus_id(row.get("pci.bus_id", "")),
        cells,
    )


def _without_na(text: str) -> str:
    return "" if text.strip() in ("N/A", "[N/A]") else text.strip()

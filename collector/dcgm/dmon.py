"""The text of `dcgmi`: rows of `dmon`, the GPUs of `discovery`, the fields of `dmon -l`.

Columns of `dmon` are known by the order of `-e` alone: titles can repeat, and DCGM 4.6 changed some.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tocsin.collector.dcgm.fields import blank_number, blank_text
from tocsin.domain.identity import normalise_pci_bus_id
from tocsin.domain.missing import Missing

_ENTITY = re.compile(r"^(GPU-CI|GPU-I|GPU)\s+(\d+)(?:\s+LINK\s+(\d+))?\s+(?=\S)")
_GPU_ID = re.compile(r"^\|\s*(\d+)\s*\|\s*Name:\s*(.*?)\s*\|\s*$")
_DETAIL = re.compile(r"^\|\s*\|\s*(PCI Bus ID|Device UUID):\s*(.*?)\s*\|\s*$")
_INSTANCE = re.compile(r"^\|\s*->\s*I\s+(\d+)/(\d+)\s*\|.*EntityID:\s*(\d+)")
_LISTED = re.compile(r"^\S+\s+\S+\s+(\d+)\s*$")
GPU, GPU_INSTANCE, COMPUTE_INSTANCE = "GPU", "GPU-I", "GPU-CI"


@dataclass(frozen=True, slots=True)
class DmonRow:
    """One entity at one tick. `values` are in the order of `-e`: numbers, or the reason for having none."""

    entity: str
    number: int
    link: str
    values: tuple[float | Missing, ...]


@dataclass(frozen=True, slots=True)
class ListedGpu:
    """One GPU of `dcgmi discovery -l`; `uuid` is empty where DCGM knows it no more, as after a fall off the bus."""

    number: int
    model: str
    pci_bus_id: str
    uuid: str


def is_heading(line: str) -> bool:
    """Whether `line` is one of the two lines of titles, which come again every few rows."""
    return line.startswith(("#Entity", "# Entity", "ID "))


def _cell(text: str) -> float | Missing | None:
    try:
        raw = float(text)
    except ValueError:
        return blank_text(text)
    reason = blank_number(raw, text)
    return raw if reason is None else reason


def dmon_row(line: str, columns: int) -> DmonRow | None:
    """The row on `line`; None where it is none, or has another number of columns."""
    match = _ENTITY.match(line)
    if match is None:
        return None
    values: list[float | Missing] = []
    for text in line[match.end() :].split():
        cell = _cell(text)
        if cell is None:
            return None
        values.append(cell)
    if len(values) != columns:
        return None
    return DmonRow(match[1], int(match[2]), match[3] or "", tuple(values))


def _known(text: str) -> str:
    return "" if blank_text(text) is not None else text


def discovered(text: str) -> list[ListedGpu]:
    """The GPUs of `dcgmi discovery -l`, by number."""
    found: dict[int, dict[str, str]] = {}
    details: dict[str, str] = {}
    for line in text.splitlines():
        if (match := _GPU_ID.match(line)) is not None:
            details = found.setdefault(int(match[1]), {"Name": _known(match[2])})
        elif (match := _DETAIL.match(line)) is not None:
            details[match[1]] = _known(match[2])
    return [
        ListedGpu(number, d["Name"], normalise_pci_bus_id(d.get("PCI Bus ID", "")), d.get("Device UUID", ""))
        for number, d in sorted(found.items())
    ]


def instances(text: str) -> dict[int, tuple[int, int]]:
    """GPU instances of `dcgmi discovery -c`: entity id, as `dmon` names it, to (GPU, instance of that GPU)."""
    matches = (_INSTANCE.match(line) for line in text.splitlines())
    return {int(m[3]): (int(m[1]), int(m[2])) for m in matches if m is not None}


def listed_fields(text: str) -> frozenset[int]:
    """Ids that `dcgmi dmon -l` lists: those that this DCGM knows."""
    matches = (_LISTED.match(line) for line in text.splitlines())
    return frozenset(int(m[1]) for m in matches if m is not None)


def dmon_arguments(ids: Sequence[int], delay_ms: int, gpus: Sequence[int]) -> list[str]:
    """Arguments of `dcgmi` for an endless `dmon`; no `gpus` means all."""
    arguments = ["dmon", "-e", ",".join(map(str, ids)), "-d", str(delay_ms)]
    return [*arguments, "-i", ",".join(map(str, gpus))] if gpus else arguments

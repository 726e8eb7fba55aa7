"""``nvidia-smi --query-gpu=... --format=csv``: less than the XML, but it answers for the others when a GPU is lost."""

from __future__ import annotations

import csv
import re
from collections.abc import Collection
from io import StringIO

from tocsin.collector.nvidia_smi.cells import ROWS, Cells, cell, first
from tocsin.collector.nvidia_smi.xml_format import SmiError, SmiGpu
from tocsin.domain.identity import normalise_pci_bus_id

IDENTITY = ("index", "uuid", "name", "serial", "pci.bus_id")
_UNIT = re.compile(r"\s*\[[^\]]*\]$")
_RENAMED = {
    "clocks.sm": "clocks.current.sm",
    "clocks.mem": "clocks.current.memory",
    "clocks_throttle_reasons.active": "clocks_event_reasons.active",
}
"""Short and old spellings of fields, which the header prints in their long and new form or as they were asked."""
_BAD_FIELD = re.compile(r'Field "([^"]*)" is not a valid field')


def fields(refused: Collection[str]) -> list[str]:
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
    return [_gpu(dict(zip(header, row, strict=True))) for row in rows[1:] if len(row) == len(header)]


def _name(column: str) -> str:
    name = _UNIT.sub("", column.strip())
    return _RENAMED.get(name, name)


def _gpu(row: dict[str, str]) -> SmiGpu:
    cells = Cells()
    for metric in ROWS:
        names = {_RENAMED.get(name, name) for name in metric.csv}
        present = [name for name in names if name in row]
        if present:
            cells.add(metric.key, first(present, lambda name: cell(row[name])))
    cells.finish()
    return SmiGpu(
        row["uuid"].strip(),
        int(row["index"]) if row["index"].strip().isdecimal() else -1,
        _plain(row.get("name", "")),
        _plain(row.get("serial", "")),
        normalise_pci_bus_id(row.get("pci.bus_id", "")),
        cells,
    )


def _plain(text: str) -> str:
    return "" if text.strip() in ("N/A", "[N/A]") else text.strip()

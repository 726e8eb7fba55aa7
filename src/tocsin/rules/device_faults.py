"""What fault codes and lines of AMD and Ascend mean: rows of ``device_faults.csv``, by vendor and code.

A code is Ascend's eight hexadecimal digits, ``level:`` and a level of its device plugin, or this product's name for a
line of the kernel log, an event or a record of AMD. Meanings, and which rules they feed, are Tocsin's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

from tocsin.domain.device_fault import DeviceFault
from tocsin.rules.catalogue import csv_rows


@dataclass(frozen=True, slots=True)
class FaultMeaning:
    """One row; a code without one is `DeviceFault.UNKNOWN`."""

    vendor: str
    code: str
    meaning: DeviceFault
    help: str
    provenance: str


Meanings = Mapping[tuple[str, str], FaultMeaning]


def meanings_of(rows: Iterable[Mapping[str, str]]) -> Meanings:
    """Rows of this form by vendor and code."""
    return {
        (row["vendor"], row["code"]): FaultMeaning(
            row["vendor"], row["code"], DeviceFault[row["meaning"]], row["help"], row["provenance"]
        )
        for row in rows
    }


@cache
def shipped_meanings() -> Meanings:
    """The table that comes with Tocsin."""
    return meanings_of(csv_rows("device_faults.csv"))


def fault_meaning(vendor: str, *codes: str) -> FaultMeaning:
    """The row of the first of `codes` that has one, else a stand-in that calls the first unknown."""
    known = shipped_meanings()
    for code in codes:
        if (found := known.get((vendor, code))) is not None:
            return found
    return FaultMeaning(vendor, codes[0], DeviceFault.UNKNOWN, "a fault code that is in no table", "unknown")
